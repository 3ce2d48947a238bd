//! Surfaces: how clients meet the kernel.

mod print;
mod rpc;
mod stdio;

pub use print::{Ending, OutputFormat, PrintError, PrintRequest, print, print_notices};
pub use stdio::{Served, serve};
