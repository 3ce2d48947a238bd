//! What sessions and their journals cost, in ratios of one run: `cargo bench --bench kernel`.
//!
//! A word as argument chooses the parts whose names hold it. `BINGO_BENCH_FRAMES` makes the journal of `replay` smaller than
//! 1,000,000 frames, `BINGO_BENCH_ITEMS` the session of `open` than 100,000 items, `BINGO_BENCH_SESSIONS` those of `sessions` fewer than 1,000. Exit code 1 means that an aim is missed.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking, as tests do")]

mod append;
mod bare;
mod interrupt;
mod open;
mod replay;
mod server;
mod sessions;
mod story;

use std::io::Write;
use std::process::ExitCode;

const PARTS: [&str; 5] = ["append", "replay", "open", "sessions", "interrupt"];

/// What a figure must be at least.
const AT_LEAST: [(&str, f64); 2] = [("append, frame / bare loops", 0.8), ("replay / bare parse", 0.7)];
/// What a figure may be at most.
const AT_MOST: [(&str, f64); 4] = [
    ("open: CPU, ms", 150.0),
    ("open: resident, MiB", 40.0),
    ("interrupt: provider/cancel, p99 ms", 5.0),
    ("interrupt: acknowledged / its bound", 1.0),
];

type Figures = Vec<(String, f64)>;

fn print(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").unwrap();
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, times] = &args[..]
        && flag == interrupt::PROVIDER
    {
        return interrupt::provide(times.as_ref());
    }
    let wanted = std::env::args().skip(1).find(|arg| arg != "--bench").unwrap_or_default();
    let mut missed = false;
    for part in PARTS.iter().filter(|part| part.contains(&wanted)) {
        print(&format!("== {part}"));
        let figures = match *part {
            "append" => append::run(),
            "replay" => replay::run(),
            "open" => open::run(),
            "sessions" => sessions::run(),
            _ => interrupt::run(),
        };
        for (name, value) in figures {
            missed |= !figure(&name, value);
        }
    }
    if missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Prints a figure with its aim; returns whether it is reached.
fn figure(name: &str, value: f64) -> bool {
    let aim = |aims: &[(&str, f64)]| aims.iter().find(|(aimed, _)| *aimed == name).map(|(_, aim)| *aim);
    let (least, most) = (aim(&AT_LEAST), aim(&AT_MOST));
    let reached = least.is_none_or(|least| value >= least) && most.is_none_or(|most| value <= most);
    let bound = least.map(|least| format!("at least {least}")).or(most.map(|most| format!("at most {most}")));
    let verdict = match bound {
        None => String::new(),
        Some(bound) if reached => format!("  is {bound}"),
        Some(bound) => format!("  MISSES {bound}"),
    };
    print(&format!("{name:<44}{value:>12.2}{verdict}"));
    reached
}

/// Returns a number from the environment, or this one.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns the time that the threads of a process spent on a processor, in milliseconds. Threads that ended are not in it,
/// but a runtime keeps its own for longer than a part takes.
fn processor_time(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let nanoseconds = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e6
}
