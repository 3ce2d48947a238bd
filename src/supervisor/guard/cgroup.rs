//! Cgroups (version 2) for the limits that count all processes of a plugin together: one cgroup a process, below our own.
//!
//! A cgroup that hands controllers on may hold no process itself, so a host that was given one moves into a leaf of it
//! first. Where that is not possible the plugin is refused: a limit that does not hold must not look as if it did.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::resources::ResourceLimits;

/// Where this host makes cgroups, or why it cannot.
static PLACE: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The number of the next cgroup.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The leaf that the host moves into, and what the names of the others begin with.
const LEAF: &str = "bingo-host";
const PREFIX: &str = "bingo-plugin";

/// Why the limits of all processes together cannot be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CgroupError {
    #[error(
        "`supervisor.{plugin}.limits.{key}` needs the controller `{controller}` of cgroup version 2, and {reason}; take the setting out, or start bingo alone in a cgroup that is delegated to it, such as with `systemd-run --user --scope -p Delegate=yes`"
    )]
    NotHere { plugin: String, key: &'static str, controller: &'static str, reason: String },
    #[error("cannot set the limits of a plugin: {}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A cgroup of one process of a plugin. It goes when it is empty: with this, or with the guard if that ends later.
#[derive(Debug)]
pub(crate) struct Cgroup {
    pub(super) path: PathBuf,
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Gets the place for cgroups ready when one of these limits needs it. To be called before the first plugin is started:
/// later its guard would stand where no process may.
pub(crate) fn ready<'a>(mut limits: impl Iterator<Item = &'a ResourceLimits>) {
    if limits.any(|limits| limits.shared().next().is_some()) {
        place();
    }
}

/// Makes the cgroup that these limits need, if they need one.
pub(crate) fn create(plugin: &str, limits: &ResourceLimits) -> Result<Option<Cgroup>, CgroupError> {
    match limits.shared().next() {
        None => Ok(None),
        Some(_) => create_in(place(), plugin, limits).map(Some),
    }
}

fn create_in(
    place: &Result<PathBuf, String>,
    plugin: &str,
    limits: &ResourceLimits,
) -> Result<Cgroup, CgroupError> {
    for (key, controller, _) in limits.shared() {
        let reason = match place {
            Err(reason) => reason.clone(),
            Ok(place)
                if words(&place.join("cgroup.subtree_control")).iter().any(|word| word == controller) =>
            {
                continue;
            }
            Ok(place) => format!("the cgroup {} has not got it", place.display()),
        };
        return Err(CgroupError::NotHere { plugin: plugin.to_owned(), key, controller, reason });
    }
    let place = place.as_ref().map_or(Path::new(""), PathBuf::as_path);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| CgroupError::Io { path, source }
    };
    let own = std::process::id();
    let path = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("{PREFIX}-{plugin}-{own}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => break path,
            // A host that had this number was killed together with a guard.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&path)(error)),
        }
    };
    let cgroup = Cgroup { path };
    for (_, controller, most) in limits.shared() {
        let file = cgroup.path.join(format!("{controller}.max"));
        std::fs::write(&file, most.to_string()).map_err(failed(&file))?;
    }
    if limits.memory.is_some() {
        // Without these the limit holds too: a part of the plugin may then live on, and what is too much be swapped out.
        let _ = std::fs::write(cgroup.path.join("memory.oom.group"), "1");
        let _ = std::fs::write(cgroup.path.join("memory.swap.max"), "0");
    }
    Ok(cgroup)
}

/// Moves this process into a cgroup.
pub(super) fn join(cgroup: &Path) -> io::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), "0").map_err(|error| {
        io::Error::new(error.kind(), format!("it cannot enter the cgroup {}: {error}", cgroup.display()))
    })
}

/// Returns how many processes of a cgroup the system ended because of the limit of memory.
pub(super) fn killed_for_memory(cgroup: &Path) -> u64 {
    let events = std::fs::read_to_string(cgroup.join("memory.events")).unwrap_or_default();
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or(0)
}

/// Removes a cgroup that holds no process; one that does, or is gone, is left.
pub(super) fn remove(cgroup: &Path) {
    if let Err(error) = std::fs::remove_dir(cgroup) {
        tracing::debug!(%error, cgroup = %cgroup.display(), "a cgroup is not removed");
    }
}

fn place() -> &'static Result<PathBuf, String> {
    PLACE.get_or_init(|| {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let own = own(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
            .ok_or("no cgroups of version 2 are mounted here")?;
        open(own)
    })
}

/// Returns the folder of the cgroup that this process stands in.
fn own(mounts: &str, groups: &str) -> Option<PathBuf> {
    let group = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, place) = (fields.next()?, fields.next()?);
        let below = group.strip_prefix(root).ok()?;
        // Spaces and the like are escaped there; whoever mounts cgroups so has none.
        Some(Path::new(place).join(below))
    })
}

/// Lets the cgroup hand its controllers on; the host leaves it for a leaf when it is alone in it.
fn open(own: PathBuf) -> Result<PathBuf, String> {
    let wanted = |controller: &&str| {
        let given = words(&own.join("cgroup.controllers"));
        let on = words(&own.join("cgroup.subtree_control"));
        given.iter().any(|word| word == controller) && !on.iter().any(|word| word == controller)
    };
    let missing: Vec<&str> = ["pids", "memory"].into_iter().filter(wanted).collect();
    if missing.is_empty() || enable(&own, &missing).is_ok() {
        return Ok(own);
    }
    let processes = words(&own.join("cgroup.procs"));
    if processes != [std::process::id().to_string()] {
        let count = processes.len();
        return Err(format!(
            "the cgroup {} is not bingo's alone: {count} processes stand in it",
            own.display()
        ));
    }
    let leaf = own.join(LEAF);
    let moved = match std::fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => join(&leaf).and_then(|()| enable(&own, &missing)),
    };
    match moved {
        Ok(()) => Ok(own),
        Err(error) => Err(format!("the cgroup {} is not delegated to bingo: {error}", own.display())),
    }
}

fn enable(cgroup: &Path, controllers: &[&str]) -> io::Result<()> {
    let text: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    std::fs::write(cgroup.join("cgroup.subtree_control"), text.join(" "))
}

fn words(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn limits() -> ResourceLimits {
        serde_json::from_value(json!({"processes": 7, "memory": 1000, "openFiles": 9})).unwrap()
    }

    #[test]
    fn the_own_cgroup_is_found_below_its_mount() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - tmpfs tmpfs rw\n\
                      40 30 0:35 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        let groups = "5:memory:/elsewhere\n0::/user.slice/a\n";
        assert_eq!(own(mounts, groups), Some(PathBuf::from("/sys/fs/cgroup/unified/user.slice/a")));
        let inside = mounts.replace("0:35 / ", "0:35 /user.slice ");
        assert_eq!(own(&inside, groups), Some(PathBuf::from("/sys/fs/cgroup/unified/a")));
        assert_eq!(own(&mounts.replace("cgroup2", "cgroup"), groups), None);
        assert_eq!(own(mounts, "5:memory:/elsewhere\n"), None);
    }

    #[test]
    fn a_cgroup_gets_the_limits_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        let place = Ok(folder.path().to_owned());
        let cgroup = create_in(&place, "p", &limits()).unwrap();
        let read = |name: &str| std::fs::read_to_string(cgroup.path.join(name)).unwrap();
        assert_eq!((read("pids.max"), read("memory.max")), ("7".to_owned(), "1000".to_owned()));
        assert!(cgroup.path.starts_with(folder.path()));
        let other = create_in(&place, "p", &limits()).unwrap();
        assert_ne!(other.path, cgroup.path, "each process has its own");
        join(&cgroup.path).unwrap();
        assert_eq!(read("cgroup.procs"), "0");
        std::fs::write(cgroup.path.join("memory.events"), "low 0\noom 2\noom_kill 3\n").unwrap();
        assert_eq!(killed_for_memory(&cgroup.path), 3);
        assert_eq!(killed_for_memory(folder.path()), 0);
    }

    #[test]
    fn what_is_missing_is_named_with_its_setting() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cgroup.subtree_control"), "pids\n").unwrap();
        let error = create_in(&Ok(folder.path().to_owned()), "p", &limits()).unwrap_err().to_string();
        let begin = "`supervisor.p.limits.memory` needs the controller `memory` of cgroup version 2, and the cgroup /";
        assert!(error.starts_with(begin) && error.contains(" has not got it; "), "{error}");
        let error = create_in(&Err("there is nothing".to_owned()), "p", &limits()).unwrap_err().to_string();
        assert!(
            error.contains(".limits.processes` needs") && error.contains("and there is nothing; "),
            "{error}"
        );
        assert!(create("p", &ResourceLimits::default()).unwrap().is_none());
    }

    #[test]
    fn a_cgroup_with_other_processes_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        // A folder where the file should be lets no write succeed, as a cgroup with processes does not.
        std::fs::create_dir(folder.path().join("cgroup.subtree_control")).unwrap();
        std::fs::write(folder.path().join("cgroup.controllers"), "memory pids").unwrap();
        std::fs::write(folder.path().join("cgroup.procs"), format!("1\n{}\n", std::process::id())).unwrap();
        let reason = open(folder.path().to_owned()).unwrap_err();
        assert!(reason.ends_with("is not bingo's alone: 2 processes stand in it"), "{reason}");
        assert!(!folder.path().join(LEAF).exists());
    }
}
