//! The guard: a tiny process between the host and each plugin, so that no process of a plugin outlives it or the host.
//!
//! The host starts `bingo __guard LIFELINE REPORT GRACE_MS CONFINES PROGRAM ARG…` with two pipes beside the three streams. The
//! guard ([`run`], `inside.rs`) reads the *lifeline*: a byte asks for the stop, its end means that the host is gone, which
//! leaves the tree less time; on the *report* it writes `started PID`, `failed TEXT`, `memory COUNT`, `exited CODE`, `signaled NUMBER`, one a
//! line. It is subreaper, so descendants that left group and session stay its own (`tree.rs`). `host.rs` is the host's side.
//!
//! *Confines* are the limits of the plugin (`resources.rs`) and its cgroup (`cgroup.rs`). Where there are any, the guard
//! starts `bingo __limited`, which limits itself and becomes the program (`limited.rs`).

mod cgroup;
mod host;
mod inside;
mod limited;
mod resources;
mod tree;
mod vitals;

pub(super) use cgroup::ready as ready_cgroups;
pub use host::adopt_orphans;
pub(super) use host::{Exit, GuardError, Guarded, Manner, start};
pub use inside::run;
pub use limited::run_limited;
pub use resources::ResourceLimits;
pub(super) use vitals::{ProcessMetrics, Vitals};

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "__guard";

/// The hidden subcommand of a process that is not yet the plugin.
pub const LIMITED: &str = "__limited";
