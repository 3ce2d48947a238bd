//! One hash over a folder and what is said about it.
//!
//! Every field goes in behind its length, so that no two different things feed the hash the same bytes. Nothing of a
//! folder is left out: whatever a program may load from it counts.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

/// The most files of a folder, and the most folders in it: nobody looks through more before they trust it.
const MAX_FILES: usize = 10_000;
/// The most bytes of all files together. They are read before each start of the plugin.
const MAX_BYTES: u64 = 64 << 20;
/// The permission bits of a mode, with those that change whose rights a program runs with.
const MODE_BITS: u32 = 0o7777;

/// What stands for everything that was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// SHA-256 in lower-case hex.
    pub hash: String,
    pub files: usize,
    pub bytes: u64,
}

/// Why something has no fingerprint, so that it cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds more than {MAX_FILES} files, too many to be checked before each start", folder.display())]
    TooMany { folder: PathBuf },
    #[error("{} holds more than {} MiB, too much to be checked before each start", folder.display(), MAX_BYTES >> 20)]
    TooLarge { folder: PathBuf },
    #[error("{} is neither a file nor a folder nor a link, so it cannot be checked", path.display())]
    Special { path: PathBuf },
    #[error("the link {} leads to the folder {}, whose files would not be checked", path.display(), target.display())]
    FolderOutside { path: PathBuf, target: PathBuf },
}

/// Collects what a fingerprint is made of; the order counts.
pub struct Builder {
    hash: Sha256,
    files: usize,
    bytes: u64,
}

impl Builder {
    /// Starts one for this kind of thing; kinds never share a hash.
    pub fn new(kind: &str) -> Self {
        let mut builder = Self { hash: Sha256::new(), files: 0, bytes: 0 };
        builder.field(kind.as_bytes());
        builder
    }

    /// Adds one field.
    pub fn field(&mut self, bytes: &[u8]) {
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    /// Adds several fields and how many there are.
    pub fn fields<'a>(&mut self, fields: impl ExactSizeIterator<Item = &'a [u8]>) {
        self.hash.update((fields.len() as u64).to_le_bytes());
        fields.for_each(|field| self.field(field));
    }

    /// Adds a file that was read already, or that it is not there.
    pub fn text(&mut self, content: Option<&[u8]>) {
        match content {
            None => self.field(b"nothing"),
            Some(content) => {
                self.field(b"text");
                self.field(content);
                self.files += 1;
                self.bytes += content.len() as u64;
            }
        }
    }

    /// Adds a folder with everything in it.
    ///
    /// # Errors
    /// When something in it cannot be read or checked, or there is too much of it.
    pub fn folder(&mut self, root: &Path) -> Result<(), FingerprintError> {
        let root = root.canonicalize().map_err(failed(root))?;
        let paths = list(&root)?;
        self.field(root.as_os_str().as_bytes());
        self.hash.update((paths.len() as u64).to_le_bytes());
        paths.iter().try_for_each(|path| self.entry(&root, path))
    }

    /// Adds where a path leads, and the file there unless it lies in the folder, which is added by itself.
    ///
    /// # Errors
    /// When it cannot be read, is no file, or is too large.
    pub fn file(&mut self, folder: &Path, path: &Path) -> Result<(), FingerprintError> {
        let target = path.canonicalize().map_err(failed(path))?;
        self.field(target.as_os_str().as_bytes());
        if target.starts_with(folder) { Ok(()) } else { self.content(folder, &target) }
    }

    /// Returns the fingerprint.
    pub fn finish(self) -> Fingerprint {
        let hash = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Fingerprint { hash, files: self.files, bytes: self.bytes }
    }

    /// Adds one thing of a folder: a file, a folder without what is in it, or a link.
    ///
    /// # Errors
    /// When it cannot be read or checked, or is too much beside what was added.
    pub fn entry(&mut self, root: &Path, relative: &Path) -> Result<(), FingerprintError> {
        let path = root.join(relative);
        let metadata = path.symlink_metadata().map_err(failed(&path))?;
        self.field(relative.as_os_str().as_bytes());
        if metadata.is_dir() {
            self.field(b"folder");
            self.mode(&metadata);
            return Ok(());
        }
        if metadata.is_symlink() {
            return self.link(root, &path);
        }
        self.content(root, &path)
    }

    /// Adds a link: what stands in it, and where it ends. What lies in the folder is hashed in its own place.
    fn link(&mut self, root: &Path, path: &Path) -> Result<(), FingerprintError> {
        self.field(b"link");
        self.field(path.read_link().map_err(failed(path))?.as_os_str().as_bytes());
        let target = match path.canonicalize() {
            Ok(target) => target,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                self.field(b"nowhere");
                return Ok(());
            }
            Err(source) => return Err(FingerprintError::Io { path: path.to_owned(), source }),
        };
        // Links on the way may lie outside, and change.
        self.field(target.as_os_str().as_bytes());
        if target.starts_with(root) {
            return Ok(());
        }
        if target.is_dir() {
            return Err(FingerprintError::FolderOutside { path: path.to_owned(), target });
        }
        self.content(root, &target)
    }

    /// Adds the mode and the content of a regular file.
    fn content(&mut self, folder: &Path, path: &Path) -> Result<(), FingerprintError> {
        let too_large = || FingerprintError::TooLarge { folder: folder.to_owned() };
        let (file, metadata) = open(path)?;
        self.files += 1;
        if self.files > MAX_FILES {
            return Err(FingerprintError::TooMany { folder: folder.to_owned() });
        }
        let room = MAX_BYTES - self.bytes;
        if metadata.len() > room {
            return Err(too_large());
        }
        self.field(b"file");
        self.mode(&metadata);
        let mut content = Sha256::new();
        // The file may grow under our eyes.
        let length = copy(file.take(room + 1), &mut content).map_err(failed(path))?;
        if length > room {
            return Err(too_large());
        }
        self.bytes += length;
        self.field(&content.finalize());
        Ok(())
    }

    fn mode(&mut self, metadata: &Metadata) {
        self.field(&(metadata.permissions().mode() & MODE_BITS).to_le_bytes());
    }
}

/// Opens a regular file. Neither a link nor a pipe that takes its place meanwhile is followed or waited for.
fn open(path: &Path) -> Result<(File, Metadata), FingerprintError> {
    let special = || FingerprintError::Special { path: path.to_owned() };
    if !path.symlink_metadata().map_err(failed(path))?.is_file() {
        return Err(special());
    }
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed(path))?;
    let metadata = file.metadata().map_err(failed(path))?;
    if metadata.is_file() { Ok((file, metadata)) } else { Err(special()) }
}

fn copy(mut file: impl Read, hash: &mut Sha256) -> io::Result<u64> {
    let mut piece = vec![0; 64 << 10];
    let mut length = 0;
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(length),
            Ok(read) => {
                hash.update(&piece[..read]);
                length += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns everything in a folder and the folder itself, as paths from there, in the order of their bytes.
fn list(root: &Path) -> Result<Vec<PathBuf>, FingerprintError> {
    let (mut found, mut files, mut folders) = (vec![PathBuf::new()], 0, 0);
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let path = root.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(failed(&path))? {
            let entry = entry.map_err(failed(&path))?;
            let relative = folder.join(entry.file_name());
            if entry.file_type().map_err(failed(&path))?.is_dir() {
                folders += 1;
                open.push(relative.clone());
            } else {
                files += 1;
            }
            if files > MAX_FILES || folders > MAX_FILES {
                return Err(FingerprintError::TooMany { folder: root.to_owned() });
            }
            found.push(relative);
        }
    }
    found.sort_by(|one, other| one.as_os_str().as_bytes().cmp(other.as_os_str().as_bytes()));
    Ok(found)
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> FingerprintError {
    let path = path.to_owned();
    move |source| FingerprintError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        /// A plugin that imports a module and has a link to it.
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            folder.write("p/main.py", "import lib.one");
            folder.write("p/lib/one.py", "x = 1");
            folder.write("outside.py", "y = 1");
            symlink("lib/one.py", folder.path("p/link")).unwrap();
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, content: &str) {
            std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
            std::fs::write(self.path(name), content).unwrap();
        }

        fn hash(&self) -> Result<Fingerprint, FingerprintError> {
            let mut builder = Builder::new("test");
            builder.folder(&self.path("p"))?;
            Ok(builder.finish())
        }
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Asserts that a change gives the folder another hash, and that the same change gives the same one.
    #[track_caller]
    fn changes(what: &str, change: impl Fn(&Folder)) {
        let folder = Folder::new();
        let before = folder.hash().unwrap();
        assert_eq!(folder.hash().unwrap(), before, "{what}: reading changes nothing");
        change(&folder);
        let after = folder.hash().unwrap();
        assert_ne!(after.hash, before.hash, "{what}");
    }

    #[test]
    fn each_kind_of_change_changes_the_hash() {
        changes("content", |folder| folder.write("p/main.py", "import lib.two"));
        changes("an imported module", |folder| folder.write("p/lib/one.py", "x = 2"));
        changes("an added file", |folder| folder.write("p/new.py", ""));
        changes("an added hidden file", |folder| folder.write("p/.git/hooks/x", ""));
        changes("an added compiled module", |folder| folder.write("p/__pycache__/main.pyc", ""));
        changes("an added folder", |folder| std::fs::create_dir(folder.path("p/empty")).unwrap());
        changes("a removed file", |folder| std::fs::remove_file(folder.path("p/lib/one.py")).unwrap());
        changes("a rename", |folder| {
            std::fs::rename(folder.path("p/lib/one.py"), folder.path("p/lib/two.py")).unwrap();
        });
        changes("a move between folders", |folder| {
            std::fs::rename(folder.path("p/lib/one.py"), folder.path("p/one.py")).unwrap();
        });
        changes("a file's mode", |folder| mode(&folder.path("p/main.py"), 0o755));
        changes("a set-user-id bit", |folder| mode(&folder.path("p/main.py"), 0o4644));
        changes("a folder's mode", |folder| mode(&folder.path("p/lib"), 0o777));
    }

    #[test]
    fn a_changed_link_changes_the_hash() {
        let relink = |folder: &Folder, target: &str| {
            std::fs::remove_file(folder.path("p/link")).unwrap();
            symlink(target, folder.path("p/link")).unwrap();
        };
        changes("another target", |folder| relink(folder, "main.py"));
        changes("a target written otherwise", |folder| relink(folder, "./lib/one.py"));
        changes("a broken link", |folder| relink(folder, "gone.py"));
        changes("a file in the place of a link", |folder| {
            std::fs::remove_file(folder.path("p/link")).unwrap();
            folder.write("p/link", "lib/one.py");
        });
    }

    #[test]
    fn a_link_out_of_the_folder_takes_its_file_along() {
        let folder = Folder::new();
        symlink("../outside.py", folder.path("p/out")).unwrap();
        let before = folder.hash().unwrap();
        assert_eq!(before.files, 3);
        folder.write("outside.py", "y = 2");
        let after = folder.hash().unwrap();
        assert_ne!(before.hash, after.hash);
        mode(&folder.path("outside.py"), 0o755);
        assert_ne!(folder.hash().unwrap().hash, after.hash);
    }

    #[test]
    fn a_link_by_way_of_outside_shows_where_it_ends() {
        let folder = Folder::new();
        symlink("p/main.py", folder.path("way")).unwrap();
        symlink("../way", folder.path("p/out")).unwrap();
        let before = folder.hash().unwrap();
        std::fs::remove_file(folder.path("way")).unwrap();
        symlink("p/lib/one.py", folder.path("way")).unwrap();
        assert_ne!(folder.hash().unwrap().hash, before.hash);
    }

    #[test]
    fn fields_do_not_run_together() {
        let hash = |fields: &[&str]| {
            let mut builder = Builder::new("test");
            builder.fields(fields.iter().map(|field| field.as_bytes()));
            builder.finish().hash
        };
        let all = [hash(&["ab", "c"]), hash(&["a", "bc"]), hash(&["abc"]), hash(&["", "abc"])];
        let different: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        let one = Folder::new();
        one.write("p/a", "bc");
        let other = Folder::new();
        other.write("p/ab", "c");
        assert_ne!(one.hash().unwrap().hash, other.hash().unwrap().hash);
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        let folder = Folder::new();
        symlink("..", folder.path("p/up")).unwrap();
        assert!(matches!(folder.hash(), Err(FingerprintError::FolderOutside { .. })));
        std::fs::remove_file(folder.path("p/up")).unwrap();
        symlink("/dev/null", folder.path("p/null")).unwrap();
        assert!(matches!(folder.hash(), Err(FingerprintError::Special { .. })));
        std::fs::remove_file(folder.path("p/null")).unwrap();
        symlink("loop", folder.path("p/loop")).unwrap();
        assert!(matches!(folder.hash(), Err(FingerprintError::Io { .. })));
        std::fs::remove_file(folder.path("p/loop")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.path("p/socket")).unwrap();
        assert!(matches!(folder.hash(), Err(FingerprintError::Special { .. })));
        std::fs::remove_file(folder.path("p/socket")).unwrap();
        nix::unistd::mkfifo(&folder.path("p/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = folder.hash().unwrap_err().to_string();
        assert!(error.ends_with("p/fifo is neither a file nor a folder nor a link, so it cannot be checked"));
    }

    #[test]
    fn too_many_files_are_refused() {
        let folder = Folder::new();
        // Three are there.
        for number in 3..MAX_FILES {
            folder.write(&format!("p/many/{number}"), "");
        }
        folder.hash().unwrap();
        folder.write("p/many/more", "");
        let error = folder.hash().unwrap_err().to_string();
        assert!(error.contains("p holds more than 10000 files"), "{error}");
    }

    #[test]
    fn too_many_bytes_are_refused() {
        let folder = Folder::new();
        let rest = MAX_BYTES - folder.hash().unwrap().bytes;
        let large = File::create(folder.path("p/large")).unwrap();
        large.set_len(rest).unwrap();
        assert_eq!(folder.hash().unwrap().bytes, MAX_BYTES);
        large.set_len(rest + 1).unwrap();
        let error = folder.hash().unwrap_err().to_string();
        assert!(error.contains("p holds more than 64 MiB"), "{error}");
    }
}
