//! Copies a plugin's folder, or unpacks an archive of it, and refuses what could reach outside it or fill the disk.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use tar::EntryType;

/// The most that a plugin may bring along.
const ENTRIES: u64 = 50_000;
const BYTES: u64 = 1024 * 1024 * 1024;

/// The longest description of an entry, such as a long name, which is held in memory.
const DESCRIPTION: u64 = 64 * 1024;

/// Where the marker of a tar archive stands (POSIX ustar and GNU).
const MAGIC: std::ops::Range<usize> = 257..262;

/// Why a plugin was not copied.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("there is nothing at {}", path.display())]
    Missing { path: PathBuf },
    #[error("{} is no `.tar` and no `.tar.gz`; unpack it, and name the folder", path.display())]
    Unknown { path: PathBuf },
    #[error("it holds no plugin.json, neither at its top nor in its only folder")]
    NoManifest,
    #[error("{} is around the folder of plugins, so it cannot be copied into it", path.display())]
    Around { path: PathBuf },
    #[error("the description of an entry in it has {bytes} bytes; at most {DESCRIPTION} are taken")]
    Description { bytes: u64 },
    #[error("it is too large: at most {ENTRIES} files and {BYTES} bytes are taken")]
    TooLarge,
    #[error("`{}` in it leads outside, or nowhere", path.display())]
    Outside { path: PathBuf },
    #[error("`{}` in it is neither a file, a folder nor a link", path.display())]
    Kind { path: PathBuf },
    #[error("cannot read or copy it")]
    Io(#[from] io::Error),
}

/// Copies what is at `path` below `staging`; returns the folder that the manifest stands in.
pub(super) fn unpack(path: &Path, staging: &Path) -> Result<PathBuf, UnpackError> {
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let real = match fs::canonicalize(path) {
        Err(error) if missing(&error) => return Err(UnpackError::Missing { path: path.to_owned() }),
        real => real?,
    };
    let content = staging.join("content");
    fs::create_dir(&content)?;
    if real.is_dir() {
        if staging.canonicalize()?.starts_with(&real) {
            return Err(UnpackError::Around { path: real });
        }
        Budget::default().copy(&real, &content)?;
    } else {
        let open = || archive(&real)?.ok_or_else(|| UnpackError::Unknown { path: real.clone() });
        look_through(open()?)?;
        extract(open()?, &content)?;
        let top = content.canonicalize()?;
        check_links(&content, &top)?;
    }
    top(content)
}

/// Returns the bytes of a tar archive, if the file is one.
fn archive(path: &Path) -> io::Result<Option<Box<dyn Read>>> {
    // A pipe would be waited for.
    if !path.metadata()?.is_file() {
        return Ok(None);
    }
    let mut file = BufReader::new(File::open(path)?);
    let mut head = Vec::new();
    (&mut file).take(MAGIC.end as u64).read_to_end(&mut head)?;
    file.rewind()?;
    Ok(match head.as_slice() {
        [0x1f, 0x8b, ..] => Some(Box::new(MultiGzDecoder::new(file))),
        head if head.get(MAGIC) == Some(b"ustar") => Some(Box::new(file)),
        _ => None,
    })
}

/// Archives often hold one folder with everything in it.
fn top(content: PathBuf) -> Result<PathBuf, UnpackError> {
    let is_plugin = |folder: &Path| folder.join("plugin.json").is_file();
    if is_plugin(&content) {
        return Ok(content);
    }
    let entries: Vec<PathBuf> =
        fs::read_dir(&content)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    match entries.as_slice() {
        [only] if is_plugin(only) => Ok(only.clone()),
        _ => Err(UnpackError::NoManifest),
    }
}

/// Refuses an archive that would take too much memory or room, before anything of it is held.
fn look_through(reader: Box<dyn Read>) -> Result<(), UnpackError> {
    let mut budget = Budget::default();
    // Whatever the headers say, no more than this is read.
    let mut archive = tar::Archive::new(reader.take(2 * BYTES));
    for entry in archive.entries()?.raw(true) {
        let entry = entry?;
        let size = entry.header().entry_size()?;
        let describes = matches!(
            entry.header().entry_type(),
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
        );
        if describes && size > DESCRIPTION {
            return Err(UnpackError::Description { bytes: size });
        }
        budget.take(size)?;
    }
    Ok(())
}

/// Refuses links whose real target is not below the top: by their words alone a chain of links cannot be judged.
fn check_links(folder: &Path, top: &Path) -> Result<(), UnpackError> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let about = path.symlink_metadata()?;
        if about.is_symlink() && !path.canonicalize().is_ok_and(|real| real.starts_with(top)) {
            let inside = path.strip_prefix(top).unwrap_or(&path);
            return Err(outside(inside));
        }
        if about.is_dir() {
            check_links(&path, top)?;
        }
    }
    Ok(())
}

fn extract(reader: Box<dyn Read>, content: &Path) -> Result<(), UnpackError> {
    let mut budget = Budget::default();
    // Whatever the headers say, no more than this is read.
    let mut archive = tar::Archive::new(reader.take(2 * BYTES));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        budget.take(entry.size())?;
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse | EntryType::Directory => {}
            EntryType::XGlobalHeader => continue,
            EntryType::Link => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                stays_inside(Path::new(""), &target).then_some(()).ok_or(outside(&path))?;
            }
            EntryType::Symlink => {
                let target = entry.link_name()?.unwrap_or_default().into_owned();
                let folder = path.parent().unwrap_or(Path::new(""));
                stays_inside(folder, &target).then_some(()).ok_or(outside(&path))?;
            }
            _ => return Err(UnpackError::Kind { path }),
        }
        if !entry.unpack_in(content)? {
            return Err(outside(&path));
        }
        if entry.header().entry_type() == EntryType::Directory {
            make_writable(&content.join(&path))?;
        }
    }
    Ok(())
}

/// Lets what follows be put into a folder, and be deleted again.
fn make_writable(folder: &Path) -> io::Result<()> {
    let mut mode = fs::symlink_metadata(folder)?.permissions();
    mode.set_mode(mode.mode() | 0o700);
    fs::set_permissions(folder, mode)
}

fn outside(path: &Path) -> UnpackError {
    UnpackError::Outside { path: path.to_owned() }
}

/// Says that a link in this folder leads to something below the top.
fn stays_inside(folder: &Path, target: &Path) -> bool {
    let mut depth = 0i64;
    folder.components().chain(target.components()).all(|component| {
        depth += match component {
            Component::Normal(_) => 1,
            Component::CurDir => 0,
            Component::ParentDir => -1,
            Component::RootDir | Component::Prefix(_) => i64::MIN / 2,
        };
        depth >= 0
    })
}

/// What may still be copied.
struct Budget {
    entries: u64,
    bytes: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self { entries: ENTRIES, bytes: BYTES }
    }
}

impl Budget {
    fn take(&mut self, bytes: u64) -> Result<(), UnpackError> {
        let left = self.entries.checked_sub(1).zip(self.bytes.checked_sub(bytes));
        (self.entries, self.bytes) = left.ok_or(UnpackError::TooLarge)?;
        Ok(())
    }

    /// Copies what a folder holds; links are copied as they are.
    fn copy(&mut self, from: &Path, to: &Path) -> Result<(), UnpackError> {
        for entry in fs::read_dir(from)? {
            let (source, target) = entry.map(|entry| (entry.path(), to.join(entry.file_name())))?;
            let about = source.symlink_metadata()?;
            self.take(if about.is_file() { about.len() } else { 0 })?;
            if about.is_dir() {
                fs::create_dir(&target)?;
                self.copy(&source, &target)?;
                fs::set_permissions(&target, about.permissions())?;
                make_writable(&target)?;
            } else if about.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(&source)?, &target)?;
            } else if about.is_file() {
                fs::copy(&source, &target)?;
            } else {
                return Err(UnpackError::Kind { path: source });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, kind, text) in entries {
            let mut header = tar::Header::new_gnu();
            // Written by hand: the library refuses to make what the tests need.
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(0o755);
            let link = matches!(kind, EntryType::Symlink | EntryType::Link);
            let body = if link { "" } else { text };
            if link {
                header.as_mut_bytes()[157..157 + text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_size(body.len() as u64);
            header.set_cksum();
            builder.append(&header, body.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> Result<(tempfile::TempDir, PathBuf), UnpackError> {
        let folder = tempfile::tempdir().unwrap();
        let (file, staging) = (folder.path().join("it"), folder.path().join("staging"));
        fs::write(&file, bytes).unwrap();
        fs::create_dir(&staging).unwrap();
        unpack(&file, &staging).map(|path| (folder, path))
    }

    const FILE: EntryType = EntryType::Regular;

    #[test]
    fn the_manifest_stands_at_the_top_or_in_the_only_folder() {
        let plain = [("plugin.json", FILE, "{}"), ("a/b.py", FILE, "x"), ("l", EntryType::Symlink, "a/b.py")];
        let (_folder, path) = unpacked(&tar(&plain)).unwrap();
        assert_eq!(fs::read_to_string(path.join("l")).unwrap(), "x");
        let (_folder, path) = unpacked(&tar(&[("p-1.0/plugin.json", FILE, "{}")])).unwrap();
        assert!(path.ends_with("content/p-1.0"));
        let two = [("p/plugin.json", FILE, "{}"), ("q", FILE, "")];
        assert!(matches!(unpacked(&tar(&two)), Err(UnpackError::NoManifest)));
    }

    #[test]
    fn a_compressed_archive_is_the_same() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut encoder, &tar(&[("plugin.json", FILE, "{}")])).unwrap();
        assert!(unpacked(&encoder.finish().unwrap()).is_ok());
    }

    #[test]
    fn nothing_leads_outside() {
        for (path, kind, text) in [
            ("../evil", FILE, "x"),
            ("a/../../evil", FILE, "x"),
            ("l", EntryType::Symlink, "/etc/passwd"),
            ("a/l", EntryType::Symlink, "../../x"),
            ("h", EntryType::Link, "../x"),
        ] {
            let error = unpacked(&tar(&[("plugin.json", FILE, "{}"), (path, kind, text)])).unwrap_err();
            assert!(matches!(error, UnpackError::Outside { .. }), "{path}: {error}");
        }
        // Each step stays inside by its words; together they do not.
        let chain = [
            ("plugin.json", FILE, "{}"),
            ("d/e", FILE, "x"),
            ("x", EntryType::Symlink, "."),
            ("y", EntryType::Symlink, "x/x/x/x/d/../../../../.."),
        ];
        assert!(matches!(unpacked(&tar(&chain)), Err(UnpackError::Outside { .. })));
        let fifo = unpacked(&tar(&[("f", EntryType::Fifo, "")])).unwrap_err();
        assert_eq!(fifo.to_string(), "`f` in it is neither a file, a folder nor a link");
    }

    #[test]
    fn what_is_too_large_or_no_archive_is_refused() {
        let mut bomb = tar(&[("plugin.json", FILE, "")]);
        bomb[124..136].copy_from_slice(b"77777777777\0");
        let sum: u32 = bomb[..512]
            .iter()
            .enumerate()
            .map(|(at, byte)| match at {
                148..156 => 32,
                _ => u32::from(*byte),
            })
            .sum();
        bomb[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        assert!(matches!(unpacked(&bomb), Err(UnpackError::TooLarge)));
        let name = "n".repeat(DESCRIPTION as usize + 1);
        let long = tar(&[("././@LongLink", EntryType::GNULongName, &name), ("a", FILE, "")]);
        assert!(matches!(unpacked(&long), Err(UnpackError::Description { .. })));
        assert!(matches!(unpacked(b"PK\x03\x04"), Err(UnpackError::Unknown { .. })));
        assert!(matches!(unpacked(&[0x1f, 0x8b, 1, 2]), Err(UnpackError::Io(_))));
    }

    #[test]
    fn a_folder_around_the_plugins_is_not_copied_into_itself() {
        let folder = tempfile::tempdir().unwrap();
        let staging = folder.path().join("plugins/.unfinished");
        fs::create_dir_all(&staging).unwrap();
        assert!(matches!(unpack(folder.path(), &staging), Err(UnpackError::Around { .. })));
    }
}
