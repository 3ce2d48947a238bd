//! The reader on journals written by hand: which bytes it reads and which it need not.

use super::*;
use crate::journal::jsonl::file::{Position, Reader};
use crate::journal::jsonl::layout::Place;
use crate::journal::jsonl::line;
use crate::journal::jsonl::marks::Marks;

/// How long the lines are: a mark stands before every second one.
const LINE: usize = 40 * 1024;

/// A journal without checksums, so that its lines can be anything.
struct Written {
    _dir: tempfile::TempDir,
    place: Place,
    header: String,
    lines: Vec<String>,
}

impl Written {
    fn new(lines: Vec<String>) -> Self {
        let (dir, session) = (tempfile::tempdir().unwrap(), SessionId::from("ses_1"));
        let place = Place::of(dir.path(), &session).unwrap();
        fs::create_dir(place.dir()).unwrap();
        let header = r#"{"format":"bingo-journal","version":1,"session":"ses_1"}"#.to_owned();
        Self { _dir: dir, place, header, lines }
    }

    /// Ten long frames, of the even seqs up to 20.
    fn long() -> Self {
        let session = SessionId::from("ses_1");
        let line = |number: u64| {
            let event = completed("itm_a", ItemBody::Assistant { text: "x".repeat(LINE) });
            serde_json::to_string(&frame(&session, 2 * number, event)).unwrap()
        };
        Self::new((1..=10).map(line).collect())
    }

    fn spoil(&mut self, line: usize) {
        self.lines[line] = "x".repeat(self.lines[line].len());
    }

    fn open(&self) -> Result<Reader, JournalError> {
        let text = format!("{}\n{}\n", self.header, self.lines.join("\n"));
        fs::write(self.place.journal(), text).unwrap();
        Ok(Reader::open(&FileSystem, &self.place)?.unwrap())
    }

    fn reader(&self) -> Reader {
        self.open().unwrap()
    }

    fn marks(&self) -> Marks {
        self.reader().marks().unwrap()
    }

    /// Returns where a line begins; the seq is that of the frame there.
    fn begins(&self, line: usize) -> Position {
        let before = self.lines[..line].iter().map(|line| line.len() + 1).sum::<usize>();
        let bytes = (self.header.len() + 1 + before) as u64;
        Position { bytes, lines: 1 + line as u64, seq: Seq(2 * line as u64 + 2) }
    }
}

fn seqs(frames: Option<Vec<Frame>>) -> Vec<u64> {
    frames.unwrap().iter().map(|frame| frame.seq.0).collect()
}

#[test]
fn lines_that_marks_pass_over_are_not_read() {
    let mut written = Written::long();
    let marks = written.marks();
    assert_eq!(marks.before(Seq(20)), Some(written.begins(8)), "before every second line stands one");
    written.spoil(2);
    let (none, all) = (Marks::default(), [Seq(14), Seq(18)]);
    assert_eq!(seqs(written.reader().frames_between(Seq(12), Seq(18), &marks).unwrap()), [14, 16, 18]);
    assert_eq!(seqs(written.reader().pick(&all, &marks).unwrap()), [14, 18]);
    assert!(written.reader().find(Seq(14), &marks).unwrap().is_some());
    assert!(written.reader().frames_between(Seq(12), Seq(18), &none).is_err());
    assert!(written.reader().pick(&all, &none).is_err());
    assert!(written.reader().find(Seq(14), &none).is_err());
}

#[test]
fn lines_behind_the_last_that_is_wanted_are_not_read() {
    let mut written = Written::long();
    let marks = written.marks();
    written.spoil(7);
    assert_eq!(seqs(written.reader().frames_between(Seq(10), Seq(14), &marks).unwrap()), [12, 14]);
    assert_eq!(seqs(written.reader().pick(&[Seq(12), Seq(14)], &marks).unwrap()), [12, 14]);
    assert_eq!(written.reader().find(Seq(14), &marks).unwrap().map(|found| found.lines), Some(8));
    assert!(
        written.reader().frames_between(Seq(10), Seq(15), &marks).is_err(),
        "its end is behind that line"
    );
}

#[test]
fn a_frame_is_found_by_its_seq_also_where_a_mark_names_it() {
    let written = Written::long();
    let marks = written.marks();
    for line in 0..10 {
        let behind = Position { seq: Seq(2 * line as u64 + 2), ..written.begins(line + 1) };
        assert_eq!(written.reader().find(behind.seq, &marks).unwrap(), Some(behind));
        assert_eq!(written.reader().find(Seq(behind.seq.0 - 1), &marks).unwrap(), None);
    }
}

#[test]
fn marks_that_do_not_fit_are_told_and_not_gone_by() {
    let mut marks = Marks::default();
    let written = Written::long();
    marks.note(written.begins(4), Seq(12));
    assert_eq!(
        written.reader().frames_between(Seq(12), Seq(18), &marks).unwrap(),
        None,
        "the line is of seq 10"
    );
    assert_eq!(written.reader().pick(&[Seq(14)], &marks).unwrap(), None);
    assert_eq!(written.reader().find(Seq(14), &marks).unwrap(), None);
}

#[test]
fn a_reader_goes_on_only_where_a_line_can_begin_and_only_forward() {
    let written = Written::long();
    let mut reader = written.reader();
    let begins = reader.at();
    let end = written.begins(10);
    for refused in [begins.bytes, begins.bytes + 1, begins.bytes - 1, end.bytes - 1, end.bytes + 1] {
        let position = Position { bytes: refused, lines: 99, seq: Seq(99) };
        assert!(!reader.skip_to(position).unwrap(), "{refused}");
        assert_eq!(reader.at(), begins, "{refused}");
    }
    assert_eq!(seqs(reader.frames_between(Seq(0), Seq(2), &Marks::default()).unwrap()), [2], "it stayed");
    assert!(reader.skip_to(end).unwrap());
    assert_eq!(reader.at(), end);
    assert!(reader.next_frame().unwrap().is_none());
}

#[test]
fn the_number_of_a_line_is_read_however_it_is_written() {
    let read = |text: &str| {
        let mut reader = Written::new(vec![text.to_owned()]).reader();
        reader.find(Seq(7), &Marks::default()).map(|found| found.is_some())
    };
    for text in [r#"{"seq":7,"a":1}"#, r#"{"seq":7}"#, r#"{ "seq": 7 }"#, r#"{"a":[8,9],"seq":7}"#] {
        assert!(read(text).unwrap(), "{text}");
    }
    for text in
        [r#"{"seq":7.5,"a":1}"#, r#"{"seq":7x"#, r#"{"seq":,"#, r#"{"seq":"7","a":1}"#, r#"{"seq":"#, "{}"]
    {
        let error = read(text).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { line: 2, .. }), "{text}: {error}");
    }
}

#[test]
fn only_a_greater_version_is_a_newer_one() {
    let mut written = Written::long();
    for (version, newer) in [(0, false), (2, true)] {
        written.header = format!(r#"{{"format":"bingo-journal","version":{version},"session":"ses_1"}}"#);
        let error = written.open().err().unwrap();
        assert_eq!(matches!(error, JournalError::Newer { version: 2, .. }), newer, "{error}");
        assert_eq!(matches!(error, JournalError::NotJournal { .. }), !newer, "{error}");
    }
}

#[test]
fn a_whole_line_whose_newline_is_gone_is_told_with_its_place() {
    let mut text = Vec::new();
    let session = SessionId::from("ses_1");
    for (seq, event) in [(1, summary(&session, "a")), (2, extension("a"))] {
        line::write(&frame(&session, seq, event), &mut text).unwrap();
    }
    *text.last_mut().unwrap() = b'?';
    let text = String::from_utf8(text).unwrap();
    let (first, last) = text.split_once('\n').unwrap();
    let written = Written::new(vec![first.to_owned(), last.to_owned()]);
    let begins = written.begins(1).bytes;
    fs::write(written.place.journal(), format!("{}\n{first}\n{last}", written.header)).unwrap();
    let mut reader = Reader::open(&FileSystem, &written.place).unwrap().unwrap();
    assert!(reader.next_frame().unwrap().is_some());
    match reader.next_frame().unwrap_err() {
        JournalError::Damaged { line, offset, .. } => assert_eq!((line, offset), (3, begins)),
        other => panic!("{other}"),
    }
}
