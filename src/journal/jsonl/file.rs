//! Reading `journal.jsonl`: its header, its whole lines, and where a torn tail begins. It changes nothing.
//!
//! A line counts when it ends in a newline; what follows the last newline is a torn tail, the rest of a write that never
//! ended, whatever it says. A line that *does* end in a newline was written whole, so one that cannot be read was damaged
//! later, the last line included: its frame may have been published, and cutting it would lose that silently.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bingo_plugin_sdk::event::{Event, Frame};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::jsonl::disk::{Disk, failed, if_found};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::line::{self, Sum};
use crate::journal::jsonl::marks::Marks;
use crate::ports::JournalError;

const FORMAT: &str = "bingo-journal";
const VERSION: u64 = 1;

/// The longest first line that is looked at, in bytes: a foreign file may be one endless line.
const MAX_HEADER: u64 = 64 * 1024;

/// A place between two lines of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Position {
    /// Bytes before it, all whole lines.
    pub(super) bytes: u64,
    /// Lines before it, the header included.
    pub(super) lines: u64,
    /// The seq of the last frame before it; 0 when there is none.
    pub(super) seq: Seq,
}

/// Returns the first line of a session's journal, newline included.
pub(super) fn header_line(session: &SessionId) -> String {
    format!(
        "{{\"format\":\"{FORMAT}\",\"version\":{VERSION},\"session\":{},\"sums\":\"crc32\"}}\n",
        Value::from(session.as_str())
    )
}

const START: Position = Position { bytes: 0, lines: 0, seq: Seq(0) };

/// How much of a journal is read at a time, in bytes.
const BUFFER: usize = 32 * 1024;

/// Reads one journal from front to back.
pub(super) struct Reader {
    place: Place,
    path: PathBuf,
    input: BufReader<File>,
    /// Where the first frame begins.
    begins: Position,
    at: Position,
    line: Vec<u8>,
    torn: bool,
    /// Each line has a checksum: the header says so. Earlier versions wrote none.
    sums: bool,
}

impl Reader {
    /// Opens a journal and checks its header. Returns nothing when the header itself was never finished: the host died
    /// while it began the session.
    ///
    /// # Errors
    /// `NotFound`; `NotJournal` and `Newer` by the header; `Damaged` when the header names another session; `Io`.
    pub(super) fn open(disk: &dyn Disk, place: &Place) -> Result<Option<Self>, JournalError> {
        let path = place.journal();
        let found = if_found(disk.open(&path)).map_err(failed("open", &path))?;
        let file = found.ok_or_else(|| place.not_found())?;
        let mut reader = Self {
            place: place.clone(),
            path,
            input: BufReader::with_capacity(BUFFER, file),
            begins: START,
            at: START,
            line: Vec::new(),
            torn: false,
            sums: false,
        };
        Ok(reader.read_header()?.then_some(reader))
    }

    /// Returns where the next line begins.
    pub(super) fn at(&self) -> Position {
        self.at
    }

    /// Returns whether the end was reached and a torn tail stands behind it.
    pub(super) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Goes on from a position noted earlier. Returns false, and stays, where no line of this file can begin.
    pub(super) fn skip_to(&mut self, position: Position) -> Result<bool, JournalError> {
        let begins_line = position.bytes > self.at.bytes
            && self.input.get_ref().metadata().map_err(failed("read", &self.path))?.len() >= position.bytes
            && self.byte_before(position.bytes)? == b'\n';
        if begins_line {
            self.at = position;
        }
        self.seek(self.at.bytes)?;
        Ok(begins_line)
    }

    /// Returns the next frame, or nothing at the end of the whole lines.
    ///
    /// # Errors
    /// `Damaged` for a line that is no frame, or a frame that cannot stand here; `Io`.
    pub(super) fn next_frame(&mut self) -> Result<Option<Frame>, JournalError> {
        if !self.next_line()? {
            return Ok(None);
        }
        let frame = self.frame()?;
        if let Some(reason) = misplaced(self.at.seq, self.place.session(), &frame) {
            return Err(self.damaged(reason));
        }
        self.at.seq = frame.seq;
        Ok(Some(frame))
    }

    /// Goes on behind a line that was told as damaged, as if it had been the first frame where none came before.
    pub(super) fn pass(&mut self) {
        self.at.seq = self.at.seq.max(Seq(1));
    }

    /// Returns the frames with `after < seq <= through`; of the lines before them only the numbers are read, and those that
    /// marks pass over are not read at all. Returns nothing when the marks are not of this journal.
    ///
    /// # Errors
    /// `Damaged` for a line up to `through` that is no frame; `Io`.
    pub(super) fn frames_between(
        &mut self,
        after: Seq,
        through: Seq,
        marks: &Marks,
    ) -> Result<Option<Vec<Frame>>, JournalError> {
        let mut frames = Vec::new();
        if !self.jump(marks.before(after))? {
            return Ok(None);
        }
        while self.at.seq < through && self.next_line()? {
            let seq = self.seq()?;
            if seq > after && seq <= through {
                frames.push(self.frame()?);
            }
            self.at.seq = seq;
        }
        Ok(Some(frames))
    }

    /// Returns the frames of these ascending seqs; of the other lines only the numbers are read, if at all. Returns nothing
    /// when the marks are not of this journal.
    ///
    /// # Errors
    /// As `frames_between`.
    pub(super) fn pick(&mut self, seqs: &[Seq], marks: &Marks) -> Result<Option<Vec<Frame>>, JournalError> {
        let mut frames = Vec::new();
        let mut read: Option<Seq> = None;
        for wanted in seqs {
            if read.is_some_and(|seq| seq >= *wanted) {
                continue;
            }
            if !self.jump(marks.before(*wanted))? {
                return Ok(None);
            }
            while read.is_none_or(|seq| seq < *wanted) && self.next_line()? {
                let seq = self.seq()?;
                if seqs.binary_search(&seq).is_ok() {
                    frames.push(self.frame()?);
                }
                self.at.seq = seq;
                read = Some(seq);
            }
        }
        Ok(Some(frames))
    }

    /// Returns the place behind the frame of this seq; nothing when there is none, or the marks are not of this journal.
    ///
    /// # Errors
    /// As `frames_between`.
    pub(super) fn find(&mut self, seq: Seq, marks: &Marks) -> Result<Option<Position>, JournalError> {
        if !self.jump(marks.before(seq))? {
            return Ok(None);
        }
        while self.at.seq < seq && self.next_line()? {
            self.at.seq = self.seq()?;
        }
        Ok(Some(self.at).filter(|at| at.seq == seq && seq > Seq(0)))
    }

    /// Goes forward to a mark. Returns false when the frame that it names does not begin there.
    fn jump(&mut self, mark: Option<Position>) -> Result<bool, JournalError> {
        let Some(mark) = mark.filter(|mark| mark.bytes > self.at.bytes) else { return Ok(true) };
        if !self.skip_to(Position { seq: Seq(mark.seq.0.saturating_sub(1)), ..mark })? {
            return Ok(false);
        }
        let begins = self.at;
        // Whatever is wrong with the line is told by whoever reads it without the mark.
        let fits =
            self.next_line().is_ok_and(|is_line| is_line) && self.seq().is_ok_and(|seq| seq == mark.seq);
        self.at = begins;
        self.seek(begins.bytes)?;
        Ok(fits)
    }

    /// Returns the marks of the whole journal.
    ///
    /// # Errors
    /// `Damaged` for a line without a number; `Io`.
    pub(super) fn marks(&mut self) -> Result<Marks, JournalError> {
        let mut marks = Marks::default();
        let mut begins = self.at;
        while self.next_line()? {
            let seq = self.seq()?;
            marks.note(begins, seq);
            self.at.seq = seq;
            begins = self.at;
        }
        Ok(marks)
    }

    /// Goes back to before the first frame.
    pub(super) fn rewind(&mut self) -> Result<(), JournalError> {
        self.at = self.begins;
        self.seek(self.at.bytes)
    }

    /// Returns the number of the frame on the line that was read. Ours stand at its head.
    fn seq(&self) -> Result<Seq, JournalError> {
        #[derive(Deserialize)]
        struct Numbered {
            seq: Seq,
        }
        let digits = self.line.strip_prefix(b"{\"seq\":").unwrap_or_default();
        let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(0);
        let number = str::from_utf8(&digits[..end]).ok().and_then(|digits| digits.parse().ok());
        match number {
            Some(number) if digits[end] == b',' => Ok(Seq(number)),
            _ => {
                let numbered = serde_json::from_slice(&self.line).map_err(|error| self.no_frame(&error));
                numbered.map(|Numbered { seq }| seq)
            }
        }
    }

    fn read_header(&mut self) -> Result<bool, JournalError> {
        let input = &mut self.input;
        let read = input.take(MAX_HEADER).read_until(b'\n', &mut self.line);
        read.map_err(failed("read", &self.path))?;
        let expected = header_line(self.place.session());
        if self.line.len() < expected.len() && expected.as_bytes().starts_with(&self.line) {
            return Ok(false);
        }
        self.check_header()?;
        self.begins = Position { bytes: self.line.len() as u64, lines: 1, seq: Seq(0) };
        self.at = self.begins;
        Ok(true)
    }

    fn check_header(&mut self) -> Result<(), JournalError> {
        let header: Value = serde_json::from_slice(&self.line).unwrap_or_default();
        self.sums = header["sums"] == "crc32";
        let version = header["version"].as_u64().filter(|_| header["format"] == FORMAT);
        match version {
            Some(VERSION) if !self.line.ends_with(b"\n") => Err(self.not_journal()),
            Some(VERSION) if header["session"] == self.place.session().as_str() => Ok(()),
            Some(VERSION) => Err(JournalError::Damaged {
                path: self.path.clone(),
                line: 1,
                offset: 0,
                reason: format!("it is the journal of session {}", header["session"]),
            }),
            Some(version) if version > VERSION => {
                Err(JournalError::Newer { path: self.path.clone(), version })
            }
            _ => Err(self.not_journal()),
        }
    }

    fn not_journal(&self) -> JournalError {
        JournalError::NotJournal { path: self.path.clone() }
    }

    /// Reads the next whole line into `self.line`, without its newline. Returns false at the end of the whole lines.
    fn next_line(&mut self) -> Result<bool, JournalError> {
        self.line.clear();
        self.input.read_until(b'\n', &mut self.line).map_err(failed("read", &self.path))?;
        if self.line.last() != Some(&b'\n') {
            self.torn = !self.line.is_empty();
            return if line::was_whole(&self.line) {
                Err(self.damaged_at(self.at.lines + 1, self.at.bytes, "its newline is gone".to_owned()))
            } else {
                Ok(false)
            };
        }
        self.at.bytes += self.line.len() as u64;
        self.at.lines += 1;
        self.line.pop();
        match line::check(&self.line) {
            Sum::Differs => Err(self.damaged("its checksum does not fit".to_owned())),
            Sum::Missing if self.sums => Err(self.damaged("its checksum is gone".to_owned())),
            Sum::Fits | Sum::Missing => Ok(true),
        }
    }

    fn frame(&self) -> Result<Frame, JournalError> {
        line::parse(&self.line).map_err(|error| self.no_frame(&error))
    }

    fn no_frame(&self, error: &serde_json::Error) -> JournalError {
        self.damaged(format!("not a frame: {error}"))
    }

    /// Tells damage of the line that was read.
    fn damaged(&self, reason: String) -> JournalError {
        let offset = self.at.bytes.saturating_sub(self.line.len() as u64 + 1);
        self.damaged_at(self.at.lines, offset, reason)
    }

    fn damaged_at(&self, line: u64, offset: u64, reason: String) -> JournalError {
        JournalError::Damaged { path: self.path.clone(), line, offset, reason }
    }

    fn byte_before(&mut self, offset: u64) -> Result<u8, JournalError> {
        self.seek(offset - 1)?;
        let mut byte = [0];
        self.input.read_exact(&mut byte).map_err(failed("read", &self.path))?;
        Ok(byte[0])
    }

    fn seek(&mut self, offset: u64) -> Result<(), JournalError> {
        self.input.seek(SeekFrom::Start(offset)).map_err(failed("read", &self.path))?;
        Ok(())
    }
}

/// Returns why a frame cannot follow the frame of seq `last` in the journal of `session`, or nothing when it can.
pub(super) fn misplaced(last: Seq, session: &SessionId, frame: &Frame) -> Option<String> {
    if frame.session != *session {
        return Some(format!("a frame of session {}", frame.session));
    }
    if frame.seq <= last {
        return Some(format!("seq {} after seq {last}", frame.seq));
    }
    if !frame.event.is_durable() {
        return Some("an event that is never journaled".to_owned());
    }
    if last == Seq(0) && !matches!(frame.event, Event::SessionUpdated { .. }) {
        return Some("the first frame is not `sessionUpdated`".to_owned());
    }
    None
}
