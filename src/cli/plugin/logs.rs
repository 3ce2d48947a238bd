//! `bingo plugin logs`: what a plugin wrote on stderr, from its log files; no host need run.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::{plugin_name, remark};
use crate::cli::{CliError, PlaceArgs};
use crate::printable;
use crate::supervisor::logs;

/// How often a followed file is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How much of a followed file is read at a time.
const PIECE: u64 = 64 * 1024;

/// Show what a plugin wrote on stderr
#[derive(Debug, Args)]
pub(in crate::cli) struct LogsArgs {
    name: String,
    /// Go on with what is written from now on
    #[arg(short, long)]
    follow: bool,
    /// How many of the last lines
    #[arg(short = 'n', long, value_name = "LINES", default_value_t = 100)]
    lines: usize,
    #[command(flatten)]
    places: PlaceArgs,
}

pub(super) fn logs(args: &LogsArgs) -> Result<ExitCode, CliError> {
    let (name, places) = (plugin_name(&args.name)?, args.places.find()?);
    let files = logs::files(&places.data_dir, &name);
    let none = files.iter().all(|path| !path.exists());
    if none && args.follow {
        remark(&format!("there is no log of `{name}` yet; it is shown when there is one"));
    }
    if none && !args.follow {
        let what = format!("there is no log of `{name}` in {}", logs::folder(&places.data_dir).display());
        return Err(CliError::Failed { what });
    }
    let unreadable = |error: io::Error| CliError::Failed {
        what: format!(
            "cannot read the log of `{name}` in {}: {error}",
            logs::folder(&places.data_dir).display()
        ),
    };
    let (lines, at) = last_lines(&files, args.lines).map_err(unreadable)?;
    let mut out = io::stdout().lock();
    let shown = lines.iter().try_for_each(|line| show(&mut out, line));
    let shown = shown.and_then(|()| if args.follow { follow(&files[0], at) } else { Ok(()) });
    shown.map_err(CliError::Output)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the last lines of log files, the newest file first in `files`; and where the newest one was read to.
fn last_lines(files: &[PathBuf], most: usize) -> io::Result<(Vec<Vec<u8>>, Position)> {
    let (mut lines, mut newest) = (Vec::new(), Position::default());
    for (number, path) in files.iter().enumerate() {
        if lines.len() >= most && number > 0 {
            break;
        }
        // A pipe would be waited for.
        if path.metadata().is_ok_and(|about| !about.is_file()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is no file", path.display()),
            ));
        }
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if number == 0 {
            newest = Position { inode: file.metadata()?.ino(), offset: bytes.len() as u64 };
        }
        let older: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.splice(0..0, older);
    }
    lines.drain(..lines.len().saturating_sub(most));
    Ok((lines, newest))
}

/// Where in which file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    inode: u64,
    offset: u64,
}

/// Shows what is added to a file, and to the one that takes its place, until the reader is gone or the person stops it.
fn follow(path: &Path, mut at: Position) -> io::Result<()> {
    let mut open: Option<BufReader<File>> = None;
    let mut line = Vec::new();
    loop {
        if open.is_none() {
            open = next_file(path, &mut at)?;
        }
        let mut more = false;
        if let Some(reader) = &mut open {
            let read = reader.take(PIECE).read_until(b'\n', &mut line)?;
            more = read > 0;
            if line.ends_with(b"\n") {
                show(&mut io::stdout().lock(), &line)?;
                line.clear();
            }
        }
        if !more {
            std::thread::sleep(LOOK);
            let now = path.metadata().ok();
            let position = open.as_mut().and_then(|reader| reader.stream_position().ok());
            if now.as_ref().zip(position).is_some_and(|(now, read)| now.ino() == at.inode && now.len() < read)
            {
                // Somebody emptied it.
                (open, at) = (None, Position::default());
                continue;
            }
            // What was put aside is read to its end before.
            let replaced = now.is_some_and(|now| now.ino() != at.inode);
            if replaced && open.as_mut().is_none_or(|reader| reader.fill_buf().is_ok_and(<[u8]>::is_empty)) {
                open = None;
            }
        }
    }
}

/// Opens the file where it was read to, or from its start when it is another one.
fn next_file(path: &Path, at: &mut Position) -> io::Result<Option<BufReader<File>>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let inode = file.metadata()?.ino();
    let offset = if inode == at.inode { at.offset } else { 0 };
    file.seek(SeekFrom::Start(offset))?;
    *at = Position { inode, offset };
    Ok(Some(BufReader::new(file)))
}

/// Writes a line of a plugin so that a terminal only shows it.
fn show(out: &mut impl Write, line: &[u8]) -> io::Result<()> {
    let line = String::from_utf8_lossy(line);
    writeln!(out, "{}", printable::text(line.trim_end_matches('\n')))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_come_from_as_many_files_as_they_need() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["a.log", "a.log.1", "a.log.2"].map(|name| folder.path().join(name)).into();
        for (file, text) in files.iter().zip(["5\n6\n", "3\n4\n", "1\n2\n"]) {
            std::fs::write(file, text).unwrap();
        }
        let last = |most| {
            let (lines, at) = last_lines(&files, most).unwrap();
            assert_eq!(at.offset, 4);
            String::from_utf8(lines.concat()).unwrap().replace('\n', "")
        };
        assert_eq!([0, 1, 2, 3, 6, 100].map(last), ["", "6", "56", "456", "123456", "123456"]);
    }
}
