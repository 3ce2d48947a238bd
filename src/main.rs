//! The `bingo` program.

fn main() {}
