//! The kernel over doubles: what its sessions do, seen through their frames.

mod commands;
mod faults;
mod interleavings;
mod long;
mod repeats;
mod rewind;
mod tree;
mod turns;
