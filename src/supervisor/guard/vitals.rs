//! What can be seen of a plugin's process from outside, without asking anybody.

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use serde::Serialize;

/// How many threads are looked at: a debugger attaches to all, and a plugin may have thousands.
const THREADS: usize = 64;

/// One guard and the plugin's own process behind it, shared by whoever looks.
#[derive(Debug)]
pub(crate) struct Vitals {
    guard: i32,
    /// 0 until it was started and from its end on: the number may be another's then.
    plugin: AtomicI32,
    spawned: Instant,
}

/// What is known of a process at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessMetrics {
    /// The plugin's own process, while it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<i32>,
    /// Since the guard was started.
    pub(crate) uptime_ms: u64,
    /// Resident memory of the plugin's own process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rss_kib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard_rss_kib: Option<u64>,
}

impl Vitals {
    pub(in crate::supervisor) fn new(guard: i32) -> Self {
        Self { guard, plugin: AtomicI32::new(0), spawned: Instant::now() }
    }

    pub(in crate::supervisor) fn set_plugin(&self, pid: i32) {
        self.plugin.store(pid, Ordering::Relaxed);
    }

    pub(super) fn clear_plugin(&self) {
        self.set_plugin(0);
    }

    fn plugin(&self) -> Option<i32> {
        Some(self.plugin.load(Ordering::Relaxed)).filter(|pid| *pid > 0)
    }

    /// Returns whether a debugger is attached to the plugin's own process: to any of its first threads.
    pub(crate) fn is_traced(&self) -> bool {
        let Some(pid) = self.plugin() else { return false };
        let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
        threads.take(THREADS).flatten().any(|thread| {
            let tracer: Option<i32> = figure(&thread.path(), "TracerPid:");
            tracer.is_some_and(|tracer| tracer != 0)
        })
    }

    pub(crate) fn read(&self) -> ProcessMetrics {
        let pid = self.plugin();
        ProcessMetrics {
            pid,
            uptime_ms: u64::try_from(self.spawned.elapsed().as_millis()).unwrap_or(u64::MAX),
            rss_kib: pid.and_then(rss),
            guard_rss_kib: rss(self.guard),
        }
    }
}

/// Returns the resident memory of a process in KiB. `status` has it in that unit, `statm` in pages of whatever size.
fn rss(pid: i32) -> Option<u64> {
    figure(Path::new(&format!("/proc/{pid}")), "VmRSS:")
}

/// Returns a number that the `status` of a process or a thread says.
fn figure<T: FromStr>(process: &Path, key: &str) -> Option<T> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim().trim_end_matches("kB").trim_end().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_seen_while_it_is_there() {
        let own = std::process::id().cast_signed();
        let vitals = Vitals::new(own);
        assert_eq!((vitals.read().pid, vitals.read().rss_kib), (None, None));
        vitals.set_plugin(own);
        let seen = vitals.read();
        assert_eq!(seen.pid, Some(own));
        assert!(seen.rss_kib.unwrap() > 100 && seen.guard_rss_kib.unwrap() > 100, "{seen:?}");
        vitals.clear_plugin();
        assert_eq!((vitals.read().pid, vitals.read().rss_kib), (None, None));
    }
}
