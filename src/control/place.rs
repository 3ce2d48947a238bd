//! Where the sockets of hosts are: `$XDG_RUNTIME_DIR/bingo`, or `run` in the data folder where there is no such directory.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

/// What others may do in the folder: nothing.
const OTHERS: u32 = 0o077;

/// The folder of control sockets, for one person on one machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlace {
    folder: PathBuf,
}

/// The folder, held open, and reached by nothing else: paths through it are short, whatever its name is (`sun_path` has 108 bytes), and lead to the
/// folder that was checked.
pub(super) struct Folder {
    handle: File,
}

impl ControlPlace {
    /// Returns the place of hosts with this data folder.
    pub fn new(data_dir: &Path) -> Self {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let folder = match runtime.filter(|path| path.is_absolute() && path.is_dir()) {
            Some(runtime) => runtime.join("bingo"),
            None => data_dir.join("run"),
        };
        Self { folder }
    }

    /// Opens the folder, making it when it is not there.
    ///
    /// # Errors
    /// When it cannot be made, or others than this person could put sockets there.
    pub(super) fn make(&self) -> io::Result<Folder> {
        if let Some(parent) = self.folder.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.open(),
        }
    }

    /// Opens the folder.
    ///
    /// # Errors
    /// As `make`, and when it is not there.
    pub(super) fn open(&self) -> io::Result<Folder> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let handle = OpenOptions::new().read(true).custom_flags(flags.bits()).open(&self.folder)?;
        let about = handle.metadata()?;
        if about.uid() != nix::unistd::geteuid().as_raw() || about.mode() & OTHERS != 0 {
            let path = self.folder.display();
            let text = format!("{path} must be yours, and closed to others (chmod 700)");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Folder { handle })
    }
}

impl Folder {
    /// Returns a short path of the same, good for as long as the folder is held.
    pub(super) fn address(&self, pid: u32) -> PathBuf {
        self.inside().join(name(pid))
    }

    /// Connects to the socket of a host, or fails at once: one that hangs takes no clients, and must hold up nobody.
    ///
    /// # Errors
    /// `ConnectionRefused` when nobody listens, `WouldBlock` when too many wait there already.
    pub(super) fn connect(&self, pid: u32) -> io::Result<UnixStream> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(&self.address(pid))?)?;
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn inside(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd()))
    }

    /// Keeps other hosts from sweeping and binding until what is returned is dropped: a socket that is bound and does not
    /// listen yet looks like a dead one.
    pub(super) fn lock(&self) -> io::Result<File> {
        let handle = File::open(self.inside())?;
        handle.lock()?;
        Ok(handle)
    }

    /// Returns the hosts whose sockets are there, living or not, in the order of their numbers.
    pub(super) fn pids(&self) -> io::Result<Vec<u32>> {
        let entries = std::fs::read_dir(self.inside())?;
        let pid = |entry: io::Result<std::fs::DirEntry>| {
            entry.ok()?.file_name().to_str()?.strip_suffix(".sock")?.parse().ok()
        };
        let mut pids: Vec<u32> = entries.filter_map(pid).collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Removes the sockets that nobody listens on: those of hosts that were killed.
    pub(super) fn sweep(&self) -> io::Result<()> {
        for pid in self.pids()? {
            let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
            if self.connect(pid).as_ref().is_err_and(refused) {
                // Another host may sweep at the same time.
                let _ = std::fs::remove_file(self.address(pid));
            }
        }
        Ok(())
    }
}

fn name(pid: u32) -> String {
    format!("{pid}.sock")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use nix::sys::socket::{Backlog, bind, listen};

    use super::*;

    fn place(folder: &Path) -> ControlPlace {
        ControlPlace { folder: folder.join("run") }
    }

    #[test]
    fn the_folder_is_closed_to_others_or_refused() {
        let home = tempfile::tempdir().unwrap();
        let place = place(home.path());
        assert_eq!(place.open().map(drop).unwrap_err().kind(), io::ErrorKind::NotFound);
        place.make().unwrap();
        let folder = home.path().join("run");
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o750)).unwrap();
        let error = place.make().map(drop).unwrap_err();
        assert!(
            error.to_string().ends_with("run must be yours, and closed to others (chmod 700)"),
            "{error}"
        );
    }

    #[test]
    fn a_link_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", home.path().join("run")).unwrap();
        assert!(place(home.path()).make().is_err());
    }

    #[test]
    fn a_host_that_takes_no_clients_holds_up_nobody() {
        let home = tempfile::tempdir().unwrap();
        let folder = place(home.path()).make().unwrap();
        let hung = socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(hung.as_raw_fd(), &UnixAddr::new(&folder.address(7)).unwrap()).unwrap();
        listen(&hung, Backlog::new(0).unwrap()).unwrap();
        let waiting: Vec<_> =
            std::iter::repeat_with(|| folder.connect(7)).take_while(Result::is_ok).collect();
        assert!(!waiting.is_empty());
        assert_eq!(folder.connect(7).map(drop).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        folder.sweep().unwrap();
        assert_eq!(folder.pids().unwrap(), [7], "it may come to");
    }

    #[test]
    fn sockets_of_dead_hosts_are_swept_in_a_folder_of_any_name() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("long".repeat(40));
        let folder = place(&deep).make().unwrap();
        drop(UnixListener::bind(folder.address(7)).unwrap());
        let _living = UnixListener::bind(folder.address(8)).unwrap();
        std::fs::write(folder.inside().join("note.txt"), "").unwrap();
        assert_eq!(folder.pids().unwrap(), [7, 8]);
        folder.sweep().unwrap();
        assert_eq!(folder.pids().unwrap(), [8]);
    }
}
