//! A tree of processes, found through `/proc`, and its end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How soon the tree is looked at again while it is being stopped: most trees end at once, and each look reads all of
/// `/proc`.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A process as `/proc/PID/stat` has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    /// Ended, and only waits to be reaped.
    pub(super) zombie: bool,
}

/// Returns every process that can be seen.
pub(super) fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        // One that ended meanwhile has no file any more.
        .filter_map(|pid: i32| parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
        .collect()
}

/// Reads a line such as `42 (na) me) S 1 …`: the name may hold anything, so the last parenthesis counts.
fn parse_stat(stat: &str) -> Option<Process> {
    let (pid, _) = stat.split_once(' ')?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    Some(Process { pid: pid.parse().ok()?, parent, zombie: matches!(state, "Z" | "X" | "x") })
}

/// Returns the living processes among `roots` and below them.
pub(super) fn living(processes: &[Process], roots: &[i32]) -> Vec<i32> {
    let mut found: Vec<i32> = roots.to_vec();
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        for process in processes.iter().filter(|process| process.parent == parent) {
            if !found.contains(&process.pid) {
                found.push(process.pid);
            }
        }
    }
    let lives = |pid: &i32| processes.iter().any(|process| process.pid == *pid && !process.zombie);
    found.into_iter().filter(lives).collect()
}

/// Sends TERM to everything that `find` returns, also to what appears meanwhile; after `grace`, which may become shorter
/// meanwhile, KILL, until it returns nothing.
pub(super) fn stop(grace: impl Fn() -> Duration, mut find: impl FnMut() -> Vec<i32>) {
    let begun = Instant::now();
    let mut told = HashSet::new();
    let mut pause = PAUSE;
    loop {
        let tree = find();
        if tree.is_empty() {
            return;
        }
        let late = begun.elapsed() >= grace();
        for pid in tree {
            // A failure means that it is gone, or is not ours to stop; either way the next look decides.
            if late {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            } else if told.insert(pid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_over() {
        let process = parse_stat("42 (a) b) c) Z 7 42 42 0").unwrap();
        assert_eq!(process, Process { pid: 42, parent: 7, zombie: true });
        assert_eq!(parse_stat("42 (cut"), None);
    }

    #[test]
    fn the_tree_goes_through_zombies_but_does_not_count_them() {
        let process = |pid, parent, zombie| Process { pid, parent, zombie };
        let all = [process(2, 1, false), process(3, 2, true), process(4, 3, false), process(9, 8, false)];
        assert_eq!(living(&all, &[2]), [2, 4]);
        assert_eq!(living(&all, &[7]), Vec::<i32>::new());
    }

    #[test]
    fn this_process_is_among_the_processes() {
        let own = std::process::id() as i32;
        assert!(processes().iter().any(|process| process.pid == own && !process.zombie));
    }
}
