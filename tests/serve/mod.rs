//! `bingo serve --stdio`, driven as a frontend drives it.

mod attach;
mod bad_input;
mod conversation;
mod crash;
mod frames;
mod kills;
mod queue;
mod sessions;
mod slow_reader;
mod storage;
mod tree;
