//! The kernel over doubles: what its sessions do, seen through their frames.

mod interleavings;
mod long;
mod repeats;
