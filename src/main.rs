//! The `bingo` program.

use std::ffi::OsString;
use std::process::ExitCode;

use bingo::supervisor::guard;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.split_first() {
        // Before anything is opened or started: a guard holds nothing but its pipes.
        Some((first, rest)) if first == guard::SUBCOMMAND => guard::run(rest),
        _ => ExitCode::SUCCESS,
    }
}
