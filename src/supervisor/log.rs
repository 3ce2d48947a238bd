//! A plugin's stderr: always read, kept in a log file that rotates, its last lines kept for errors.
//!
//! What stands there is neither hidden nor an error by itself.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::ids::{Generation, PluginName};
use bingo_plugin_sdk::ndjson::Line;
use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::lines::Lines;
use super::logs;
use crate::telemetry;

/// How large a log file grows before it is put aside.
const FILE_SIZE: u64 = 1024 * 1024;

/// The longest line that is kept; of a longer one the length is.
const LINE: usize = 64 * 1024;

/// How many last lines stand in errors, and how many characters of each.
const TAIL: usize = 10;
const TAIL_LINE: usize = 300;

/// The last words of one process, shared between the task that reads them and whoever needs them for an error.
#[derive(Clone)]
pub(super) struct Tail(Arc<Mutex<TailState>>);

struct TailState {
    lines: VecDeque<String>,
    /// When the last line came.
    touched: Instant,
}

impl Tail {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(TailState { lines: VecDeque::new(), touched: Instant::now() })))
    }

    fn push(&self, line: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.touched = Instant::now();
        if line.trim().is_empty() {
            return;
        }
        if state.lines.len() == TAIL {
            state.lines.pop_front();
        }
        state.lines.push_back(line.chars().take(TAIL_LINE).collect());
    }

    /// Returns when the last line came; when none did, when the process was started.
    pub(super) fn touched(&self) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).touched
    }

    /// Returns the last line.
    pub(super) fn last(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines.back().cloned()
    }

    /// Returns the last lines as they stand behind a reason: empty, or `; its last words on stderr: …`.
    pub(super) fn words(&self) -> String {
        self.words_on("stderr")
    }

    pub(super) fn words_on(&self, stream: &str) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.lines.is_empty() {
            return String::new();
        }
        let lines: Vec<&str> = state.lines.iter().map(String::as_str).collect();
        format!("; its last words on {stream}:\n{}", lines.join("\n"))
    }
}

/// Reads a process's stderr to its end.
pub(super) async fn read(stderr: impl AsyncRead + Unpin, mut log: Log, tail: Tail) {
    let mut lines = Lines::new(stderr, LINE);
    while let Some(line) = lines.next().await {
        let text = text(line);
        tail.push(&text);
        log.write(&text);
    }
}

/// Reads both outputs of a program that speaks to nobody, to their ends. `tail` gets what stands on stderr, `all` both.
pub(super) async fn read_both(
    stdout: impl AsyncRead + Unpin,
    stderr: impl AsyncRead + Unpin,
    mut log: Log,
    (tail, all): (Tail, Tail),
) {
    let (mut out, mut err) = (Lines::new(stdout, LINE), Lines::new(stderr, LINE));
    loop {
        let line = tokio::select! {
            Some(line) = out.next() => text(line),
            Some(line) = err.next() => {
                let text = text(line);
                tail.push(&text);
                text
            }
            else => return,
        };
        all.push(&line);
        log.write(&line);
    }
}

fn text(line: Line) -> String {
    match line {
        Line::Text(text) => text,
        Line::NotUtf8 { lossy, .. } => lossy,
        Line::TooLong { length, .. } => format!("[a line of {length} bytes]"),
    }
}

/// The log file of one plugin, written by one generation.
///
/// Short appends to a local file: they are written in place, not sent to another thread.
pub(super) struct Log {
    path: PathBuf,
    /// Who writes: `generation=3`, `prepare`.
    writer: String,
    file: Option<File>,
    /// Set after a failure: told once, then stderr is read on without a file.
    broken: bool,
}

impl Log {
    pub(super) fn new(data_dir: &Path, plugin: &PluginName, generation: Generation) -> Self {
        Self::of(data_dir, plugin, format!("generation={generation}"))
    }

    /// Returns the log of the plugin's `prepare` step.
    pub(super) fn of_prepare(data_dir: &Path, plugin: &PluginName) -> Self {
        Self::of(data_dir, plugin, "prepare".to_owned())
    }

    fn of(data_dir: &Path, plugin: &PluginName, writer: String) -> Self {
        let path = logs::newest(data_dir, plugin);
        Self { path, writer, file: None, broken: false }
    }

    fn write(&mut self, line: &str) {
        if self.broken {
            return;
        }
        if let Err(error) = self.append(line) {
            tracing::warn!(path = %self.path.display(), %error, "the plugin's log cannot be written");
            self.broken = true;
        }
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let entry = format!("{} {} {line}\n", telemetry::now(), self.writer);
        let size = self.open()?;
        if size > 0 && size + entry.len() as u64 > FILE_SIZE {
            self.rotate()?;
        }
        match &mut self.file {
            Some(file) => file.write_all(entry.as_bytes()),
            None => Ok(()),
        }
    }

    /// Opens the newest file, unless it is open; returns how large it is. Other processes of the plugin, and other hosts,
    /// write there too and may have put aside what was the newest.
    fn open(&mut self) -> io::Result<u64> {
        if let Some(size) = self.file.as_ref().and_then(|file| self.size_at_path(file)) {
            return Ok(size);
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        let size = file.metadata()?.len();
        self.file = Some(file);
        Ok(size)
    }

    /// Returns the size of an open file that is still the newest.
    fn size_at_path(&self, file: &File) -> Option<u64> {
        let (open, newest) = (file.metadata().ok()?, self.path.metadata().ok()?);
        ((open.dev(), open.ino()) == (newest.dev(), newest.ino())).then_some(newest.len())
    }

    /// Moves `x.log` to `x.log.1`, that to `x.log.2`, and so on; the oldest is gone. Who has to wait for another that does
    /// the same finds it done.
    fn rotate(&mut self) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        file.lock()?;
        if self.size_at_path(&file).is_some() {
            let files = logs::rotation(&self.path);
            for pair in files.windows(2).rev() {
                if pair[0].exists() {
                    std::fs::rename(&pair[0], &pair[1])?;
                }
            }
        }
        self.open().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(folder: &Path) -> Log {
        Log::new(folder, &PluginName::parse("a").unwrap(), Generation(3))
    }

    #[tokio::test]
    async fn every_line_is_kept_with_time_and_generation() {
        let folder = tempfile::tempdir().unwrap();
        let tail = Tail::new();
        read(&b"one\n\xffbad\n\nlast"[..], log(folder.path()), tail.clone()).await;
        let text = std::fs::read_to_string(folder.path().join("logs/plugin-a.log")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].ends_with("Z generation=3 one"), "{}", lines[0]);
        assert_eq!(tail.words(), "; its last words on stderr:\none\n\u{fffd}bad\nlast");
    }

    #[test]
    fn the_log_rotates_and_keeps_five_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(folder.path());
        let line = "x".repeat(FILE_SIZE as usize / 2);
        for _ in 0..14 {
            log.write(&line);
        }
        assert!(!log.broken);
        let mut names: Vec<String> = std::fs::read_dir(folder.path().join("logs"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let expected = ["", ".1", ".2", ".3", ".4"].map(|end| format!("plugin-a.log{end}"));
        assert_eq!(names, expected);
    }

    #[test]
    fn several_writers_fill_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (log(folder.path()), log(folder.path()));
        let line = "x".repeat(FILE_SIZE as usize / 4);
        for number in 0..8 {
            if number % 2 == 0 { one.write(&line) } else { other.write(&line) }
        }
        let sizes = ["", ".1", ".2"].map(|end| {
            let path = folder.path().join(format!("logs/plugin-a.log{end}"));
            path.metadata().map_or(0, |about| about.len() / (FILE_SIZE / 4))
        });
        assert_eq!(sizes, [2, 3, 3], "each file is full before it is put aside");
    }

    #[test]
    fn only_the_last_lines_stand_in_errors() {
        let tail = Tail::new();
        (0..30).for_each(|number| tail.push(&number.to_string()));
        assert!(tail.words().contains("\n20\n21\n"));
        assert!(!tail.words().contains("\n19\n"));
    }
}
