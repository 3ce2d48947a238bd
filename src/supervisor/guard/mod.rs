//! The guard: a tiny process between the host and each plugin, so that no process of a plugin outlives it or the host.
//!
//! The host starts `bingo __guard LIFELINE REPORT GRACE_MS PROGRAM ARG…` with two pipes beside the three streams. The
//! guard ([`run`], `inside.rs`) reads the *lifeline*: a byte asks for the stop, its end means that the host is gone, which
//! leaves the tree less time; on the *report* it writes `started PID`, `failed TEXT`, `exited CODE`, `signaled NUMBER`, one a line. It is subreaper,
//! so descendants that left group and session stay its own (`tree.rs`). `host.rs` is the host's side.

mod host;
mod inside;
mod tree;
mod vitals;

pub use host::adopt_orphans;
pub(super) use host::{Exit, GuardError, Guarded, start};
pub use inside::run;
pub(super) use vitals::{ProcessMetrics, Vitals};

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__guard";
