//! What a plugin's processes may use: the settings table `supervisor.<name>.limits`. Nothing is limited unless it is set.
//!
//! The first four are limits of each process, which the system enforces by itself; the last two count all processes of the
//! plugin together and need a cgroup (`cgroup.rs`).

use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::Exit;

/// How many CPU seconds a process has after the signal that tells it of its limit: at once would be without the signal.
const LAST_CPU_SECONDS: u64 = 1;

/// The limits of one plugin, in bytes, seconds and numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceLimits {
    /// Bytes that a process may map, whether or not it uses them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_space: Option<NonZeroU64>,
    /// Files that a process may have open, its three streams included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<NonZeroU64>,
    /// Bytes of a file that a process writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size: Option<NonZeroU64>,
    /// Seconds of a processor that a process may use in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<NonZeroU64>,
    /// Processes and threads at a time, of all of the plugin together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<NonZeroU64>,
    /// Bytes of memory in use, by all of the plugin together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<NonZeroU64>,
}

/// What holds for the processes behind one guard. It travels as JSON among the guard's arguments.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Confines {
    pub(super) limits: ResourceLimits,
    /// The folder of the cgroup that they stand in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cgroup: Option<PathBuf>,
}

impl Confines {
    pub(super) fn is_empty(&self) -> bool {
        self.cgroup.is_none() && self.limits.per_process().next().is_none()
    }
}

impl ResourceLimits {
    /// Returns the limits of each process: the setting, the system's name for it, its number and how much the hard limit
    /// is above.
    fn per_process(&self) -> impl Iterator<Item = (&'static str, Resource, u64, u64)> {
        // The address space last: after it there may be no room for anything.
        let all = [
            ("openFiles", Resource::RLIMIT_NOFILE, self.open_files, 0),
            ("fileSize", Resource::RLIMIT_FSIZE, self.file_size, 0),
            ("cpuSeconds", Resource::RLIMIT_CPU, self.cpu_seconds, LAST_CPU_SECONDS),
            ("addressSpace", Resource::RLIMIT_AS, self.address_space, 0),
        ];
        all.into_iter().filter_map(|(key, resource, most, above)| Some((key, resource, most?.get(), above)))
    }

    /// Returns the limits of all processes together: the setting, the cgroup controller that it needs, and its number.
    pub(super) fn shared(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let all = [("processes", "pids", self.processes), ("memory", "memory", self.memory)];
        all.into_iter().filter_map(|(key, controller, most)| Some((key, controller, most?.get())))
    }

    /// Limits this process and those that it starts. A limit of the system that is stricter stays.
    pub(super) fn apply(&self) -> io::Result<()> {
        for (key, resource, most, above) in self.per_process() {
            let set = getrlimit(resource).and_then(|(now, hardest)| {
                setrlimit(resource, most.min(now), most.saturating_add(above).min(hardest))
            });
            set.map_err(|error| {
                let words = format!("its limit `{key}` cannot be set to {most}: {}", error.desc());
                io::Error::new(io::Error::from(error).kind(), words)
            })?;
        }
        Ok(())
    }

    /// Returns the limit that ended a process, in words, where the end shows it. `killed` counts processes of the plugin
    /// that the system ended for their memory.
    pub(super) fn passed(&self, plugin: &str, exit: &Exit, killed: u64) -> Option<String> {
        let words = |key: &str, most: u64, unit: &str, what: &str| {
            format!("{what} more than `supervisor.{plugin}.limits.{key}` allows, {most} {unit}")
        };
        if let Some(most) = self.memory.filter(|_| killed > 0) {
            return Some(words("memory", most.get(), "bytes", "the plugin used"));
        }
        let Exit::Signal(number) = exit else { return None };
        match Signal::try_from(*number).ok()? {
            Signal::SIGXCPU => {
                let most = self.cpu_seconds?.get();
                Some(words("cpuSeconds", most, "s of a processor", "it used"))
            }
            Signal::SIGXFSZ => Some(words("fileSize", self.file_size?.get(), "bytes", "it wrote to a file")),
            // Programs that cannot have the memory they want end so, and for many other reasons.
            Signal::SIGSEGV | Signal::SIGABRT | Signal::SIGBUS => {
                let most = self.address_space?.get();
                Some(format!(
                    "perhaps `supervisor.{plugin}.limits.addressSpace` allows too little, {most} bytes"
                ))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits(table: serde_json::Value) -> ResourceLimits {
        serde_json::from_value(table).unwrap()
    }

    #[test]
    fn nothing_is_limited_unless_it_is_set() {
        assert!(Confines::default().is_empty());
        assert_eq!(serde_json::to_string(&Confines::default()).unwrap(), r#"{"limits":{}}"#);
        let memory = Confines { limits: limits(json!({"memory": 5})), cgroup: None };
        assert!(memory.is_empty(), "without its cgroup there is nothing that a process can set");
        assert!(!Confines { limits: limits(json!({"openFiles": 9})), cgroup: None }.is_empty());
    }

    #[test]
    fn what_is_passed_is_named_only_when_it_was_limited() {
        let all = limits(json!({"cpuSeconds": 2, "fileSize": 10, "memory": 99}));
        let passed = |limits: &ResourceLimits, exit: Exit, killed| limits.passed("p", &exit, killed);
        let signal = |signal: Signal| Exit::Signal(signal as i32);
        assert_eq!(
            passed(&all, signal(Signal::SIGXCPU), 0).unwrap(),
            "it used more than `supervisor.p.limits.cpuSeconds` allows, 2 s of a processor"
        );
        assert_eq!(
            passed(&all, signal(Signal::SIGXFSZ), 0).unwrap(),
            "it wrote to a file more than `supervisor.p.limits.fileSize` allows, 10 bytes"
        );
        assert_eq!(
            passed(&all, signal(Signal::SIGKILL), 1).unwrap(),
            "the plugin used more than `supervisor.p.limits.memory` allows, 99 bytes"
        );
        assert_eq!(passed(&all, signal(Signal::SIGKILL), 0), None);
        assert_eq!(passed(&all, signal(Signal::SIGSEGV), 0), None);
        assert_eq!(passed(&ResourceLimits::default(), signal(Signal::SIGXCPU), 0), None);
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        assert!(serde_json::from_value::<ResourceLimits>(json!({"openFiles": 0})).is_err());
        assert!(serde_json::from_value::<ResourceLimits>(json!({"openFile": 1})).is_err());
    }
}
