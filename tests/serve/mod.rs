//! `bingo serve --stdio`, driven as a frontend drives it.

mod conversation;
