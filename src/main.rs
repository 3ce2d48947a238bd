//! The `bingo` program. Hidden subcommands are the processes it starts of itself.

use std::ffi::OsString;
use std::process::ExitCode;

use bingo::app::PROVIDER_SUBCOMMAND;
use bingo::provider::echo;
use bingo::supervisor::guard;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1) {
        // Before anything is opened or started: a guard holds nothing but its pipes.
        Some(first) if first == guard::SUBCOMMAND => guard::run(&args[2..]),
        Some(first) if first == guard::LIMITED => guard::run_limited(&args[2..]),
        Some(first) if first == PROVIDER_SUBCOMMAND => echo::run(),
        _ => bingo::cli::run(args),
    }
}
