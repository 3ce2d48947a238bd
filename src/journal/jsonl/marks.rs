//! Where in a journal its frames stand: an index from seqs to offsets, with a mark every 64 KiB.
//!
//! It is built as frames are read and appended, and kept in the checkpoint. A mark is checked where it is used: the line
//! that begins there must hold the frame it names. Seqs ascend, so a mark that holds can hide nothing behind it.

use bingo_plugin_sdk::ids::Seq;
use serde::{Deserialize, Serialize};

use crate::journal::jsonl::file::Position;

/// How many bytes of a journal lie between two marks, at least.
const APART: u64 = 64 * 1024;

/// The index of one journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Marks {
    /// In the order of the journal; the seq of each is that of the frame behind it.
    marks: Vec<Position>,
}

impl Marks {
    /// Notes that a frame begins at a position, whose own seq is that of the frame before.
    pub(super) fn note(&mut self, begins: Position, seq: Seq) {
        if self.marks.last().is_none_or(|last| last.bytes + APART <= begins.bytes) {
            self.marks.push(Position { seq, ..begins });
        }
    }

    /// Takes the place of marks that were wrong; what was appended since these were made is noted as it goes on.
    pub(super) fn replace(&mut self, marks: &Self) {
        self.marks.clone_from(&marks.marks);
    }

    /// Returns those of frames up to a seq.
    pub(super) fn through(&self, seq: Seq) -> Self {
        Self { marks: self.marks.iter().filter(|mark| mark.seq <= seq).copied().collect() }
    }

    /// Returns the last mark at or before a seq.
    pub(super) fn before(&self, seq: Seq) -> Option<Position> {
        let behind = self.marks.partition_point(|mark| mark.seq <= seq);
        behind.checked_sub(1).map(|at| self.marks[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_stand_apart_and_the_last_one_before_a_seq_is_found() {
        let mut marks = Marks::default();
        assert_eq!(marks.before(Seq(1)), None);
        for line in 0..1000u64 {
            let begins = Position { bytes: 100 + line * 1000, lines: 1 + line, seq: Seq(line * 2) };
            marks.note(begins, Seq(line * 2 + 2));
        }
        assert_eq!(marks.marks.len(), 16);
        let first = Position { bytes: 100, lines: 1, seq: Seq(2) };
        let second = Position { bytes: 66_100, lines: 67, seq: Seq(134) };
        for (seq, mark) in [(1, None), (2, Some(first)), (133, Some(first)), (134, Some(second))] {
            assert_eq!(marks.before(Seq(seq)), mark, "seq {seq}");
        }
        let some = marks.through(Seq(134));
        assert_eq!(some.marks, [first, second]);
        assert_eq!(marks.through(Seq(133)).marks, [first]);
        marks.replace(&some);
        assert_eq!(marks, some);
    }
}
