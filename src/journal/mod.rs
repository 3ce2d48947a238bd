//! The durable record of sessions behind [`crate::ports::Journal`].
//!
//! It owns what lies under `<data_dir>/sessions` and knows frames only as lines: it folds no more than a summary, runs
//! nothing, and never decides what a session does next.

mod jsonl;
mod retention;

pub use jsonl::{JsonlJournal, Overdue, Verified};
pub use retention::{Keep, MIB, SessionTree, below};
