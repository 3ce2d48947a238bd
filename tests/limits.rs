//! What a plugin's processes may use: real processes behind the real guard, through the ports.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod host;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use host::{Host, Running, lives, only_text};

/// A host whose plugin has these limits, as they stand in settings.
fn limited(limits: Value) -> Host {
    let mut host = Host::new();
    host.resources = serde_json::from_value(limits).unwrap();
    host
}

async fn said(running: &Running) -> Value {
    serde_json::from_str(&only_text(running.call(json!({})).await.unwrap())).unwrap()
}

/// The words of a limit's line in `/proc/PID/limits`: the soft and the hard one.
fn limits_of(pid: i32, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().take(2).map(str::to_owned).collect()
}

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_plugin_sees_each_limit_and_none_that_was_not_set() {
    let script = r#"
import resource
hello(tools=TOOL)
names = ["AS", "NOFILE", "FSIZE", "CPU"]
text(read(), json.dumps([resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in names]))
read()
"#;
    let gib = 1u64 << 30;
    let all = json!({"addressSpace": gib, "openFiles": 40, "fileSize": 5000, "cpuSeconds": 100});
    let running = limited(all).start(script).await;
    assert_eq!(said(&running).await, json!([[gib, gib], [40, 40], [5000, 5000], [100, 101]]));
    running.supervisor.shutdown().await;

    let running = Host::new().start(script).await;
    let unlimited = said(&running).await;
    running.supervisor.shutdown().await;
    let running = limited(json!({"fileSize": 5000})).start(script).await;
    let mut expected = unlimited.clone();
    expected[2] = json!([5000, 5000]);
    assert_eq!(said(&running).await, expected);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn each_limit_holds() {
    let script = r#"
import mmap
hello(tools=TOOL)
message = read()
opened, failed = [], []
try:
    while len(opened) < 1000: opened.append(open("/dev/null"))
except OSError as error:
    failed.append(error.strerror)
count = len(opened) + 3
opened = None
try:
    with open("large", "wb") as file:
        file.write(b"x" * 6000)
        file.flush()
        file.write(b"x")
        file.flush()
except OSError as error:
    failed.append(error.strerror)
try:
    mmap.mmap(-1, 2 << 30)
except OSError as error:
    failed.append(error.strerror)
text(message, json.dumps([count, os.path.getsize("large"), failed]))
read()
"#;
    let limits = json!({"addressSpace": 1u64 << 30, "openFiles": 40, "fileSize": 5000});
    let running = limited(limits).start(script).await;
    let failed = ["Too many open files", "File too large", "Cannot allocate memory"];
    assert_eq!(said(&running).await, json!([40, 5000, failed]));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_child_of_a_plugin_is_limited_too() {
    let script = r#"
hello(tools=TOOL)
child = "import resource; print(list(resource.getrlimit(resource.RLIMIT_NOFILE)))"
text(read(), subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
read()
"#;
    let running = limited(json!({"openFiles": 40})).start(script).await;
    assert_eq!(said(&running).await, json!([40, 40]));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn an_end_by_a_limit_names_the_setting() {
    let busy = "hello(tools=TOOL)\nread()\nwhile True: pass\n";
    let running = limited(json!({"cpuSeconds": 1})).start(busy).await;
    let error = running.call(json!({})).await.unwrap_err();
    assert_eq!(
        error.message,
        "p: tool/call failed (sent, no answer): its process was ended by signal 24 (SIGXCPU): \
         it used more than `supervisor.p.limits.cpuSeconds` allows, 1 s of a processor"
    );
    running.supervisor.shutdown().await;

    // One that does not heed the signal has a second more.
    let running = limited(json!({"cpuSeconds": 1}))
        .start(&format!("signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n{busy}"))
        .await;
    let error = running.call(json!({})).await.unwrap_err();
    assert!(error.message.ends_with("its process was ended by signal 9 (SIGKILL)"), "{error}");
    running.supervisor.shutdown().await;

    // Python ignores the signal, most programs do not.
    let large = r#"
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
hello(tools=TOOL)
read()
with open("large", "wb") as file:
    file.write(b"x" * 6000)
    file.flush()
    file.write(b"x")
    file.flush()
"#;
    let running = limited(json!({"fileSize": 5000})).start(large).await;
    let error = running.call(json!({})).await.unwrap_err();
    assert_eq!(
        error.message,
        "p: tool/call failed (sent, no answer): its process was ended by signal 25 (SIGXFSZ): \
         it wrote to a file more than `supervisor.p.limits.fileSize` allows, 5000 bytes"
    );
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn the_guard_has_no_limits_and_stops_all_there_is() {
    let script = r#"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
note_pid("child", child.pid)
note_pid("own", os.getpid())
hello(tools=TOOL)
time.sleep(1000)
"#;
    // A guard could not even look for processes with so few.
    let running = limited(json!({"openFiles": 12, "cpuSeconds": 30})).start(script).await;
    let (child, own) = (running.pid("child").await, running.pid("own").await);
    assert_eq!(limits_of(own, "Max open files"), ["12", "12"]);
    assert_eq!(limits_of(own, "Max cpu time"), ["30", "31"]);
    let here = std::process::id().cast_signed();
    for name in ["Max open files", "Max cpu time"] {
        assert_eq!(limits_of(parent(own), name), limits_of(here, name), "{name}");
    }
    running.supervisor.shutdown().await;
    assert!(!lives(child) && !lives(own));
}

#[tokio::test]
async fn a_limited_plugin_inherits_no_open_file_but_its_streams_and_stays_the_leader_of_its_group() {
    let script = r#"
hello(tools=TOOL)
files = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
text(read(), json.dumps([files, os.getpgid(0) == os.getpid()]))
read()
"#;
    let running = limited(json!({"openFiles": 40})).start(script).await;
    assert_eq!(said(&running).await, json!([[0, 1, 2], true]));
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_program_that_does_not_fit_into_its_limits_says_so() {
    let host = limited(json!({"addressSpace": 1}));
    let running = host.start_unsettled(host.source("note_pid('own', os.getpid())\n"));
    let expected = "p is not available: its process was ended by signal 11 (SIGSEGV): \
                    perhaps `supervisor.p.limits.addressSpace` allows too little, 1 bytes";
    assert_eq!(running.heard.wait("PLUGIN_UNAVAILABLE").await, expected);
    running.supervisor.shutdown().await;
    assert!(!running.root.join("own").exists());
}

#[tokio::test]
async fn a_limited_program_that_cannot_be_run_says_why() {
    use std::os::unix::fs::PermissionsExt;
    let host = limited(json!({"openFiles": 40}));
    let mut source = host.source("");
    let outer = format!("#!{}\n", host.root().join("inner").display());
    for (name, text) in [("run", outer.as_str()), ("inner", "#!/no/such/interpreter\n")] {
        std::fs::write(host.root().join(name), text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(host.root().join(name), mode).unwrap();
    }
    source.manifest.entry.command = "./run".to_owned();
    let running = host.start_unsettled(source);
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    assert!(notice.contains("its program could not be started: No such file"), "{notice}");
    running.supervisor.shutdown().await;
}

/// The cgroup of this process, found without the program's own code.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?.split(' ').nth(1)?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(own))
}

/// An empty cgroup below our own, where we may make one.
fn new_cgroup(name: &str) -> Option<PathBuf> {
    let folder = own_cgroup()?.join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir(&folder).ok()?;
    Some(folder)
}

/// Runs a program in Python behind a guard with these confines, from a host in Python that begins so. Returns what the
/// program printed.
fn guarded(begin: &str, confines: &Value, program: &str) -> String {
    const HOST: &str = r#"
lifeline, host_end = os.pipe()
host_report, report = os.pipe()
guard = subprocess.Popen([sys.argv[1], "__guard", str(lifeline), str(report), "300", sys.argv[2], "-", sys.executable, "-c", sys.argv[3]],
    pass_fds=[lifeline, report])
sys.exit(guard.wait())
"#;
    #[expect(clippy::disallowed_methods, reason = "a host in place of the program")]
    let ran = std::process::Command::new("python3")
        .args(["-c", &format!("import os, resource, subprocess, sys\n{begin}{HOST}")])
        .args([env!("CARGO_BIN_EXE_bingo"), &confines.to_string(), program])
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn a_stricter_limit_of_the_system_stays() {
    let begin = "resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))";
    let limits = json!({"limits": {"openFiles": 40, "fileSize": 7}});
    let program = "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE), *resource.getrlimit(resource.RLIMIT_FSIZE))";
    assert_eq!(guarded(begin, &limits, program), "30 30 7 7\n");
}

#[test]
fn a_plugin_and_not_its_guard_stands_in_its_cgroup_which_goes_with_it() {
    // Without controllers, so that it can be seen wherever cgroups can be made at all.
    let Some(cgroup) = new_cgroup("bingo-test") else { return };
    let program =
        "import os; [print(open('/proc/%d/cgroup' % pid).read()) for pid in (os.getpid(), os.getppid())]";
    let said = guarded("", &json!({"cgroup": cgroup}), program);
    let groups: Vec<&str> = said.lines().filter(|line| line.starts_with("0::")).collect();
    let name = format!("/{}", cgroup.file_name().unwrap().to_string_lossy());
    assert!(groups.len() == 2 && groups[0].ends_with(&name) && !groups[1].contains(&name), "{groups:?}");
    assert!(!cgroup.exists(), "it is left");
}

/// The cgroup of this process where it can hand on these controllers.
fn delegated(controllers: &[&str]) -> Option<PathBuf> {
    let own = own_cgroup()?;
    let on = std::fs::read_to_string(own.join("cgroup.subtree_control")).ok()?;
    if !controllers.iter().all(|controller| on.split_whitespace().any(|word| word == *controller)) {
        return None;
    }
    let probe = new_cgroup(&format!("bingo-probe-{}", controllers.concat()))?;
    std::fs::remove_dir(probe).unwrap();
    Some(own)
}

/// Starts a plugin that must be refused because its limit cannot hold here.
async fn is_refused(key: &str, controller: &str) {
    let host = limited(json!({ key: 100_000_000 }));
    let running = host.start_unsettled(host.source("note_pid('own', os.getpid())\n"));
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    let begin = format!(
        "p is not available: `supervisor.p.limits.{key}` needs the controller `{controller}` of cgroup version 2, and "
    );
    assert!(notice.starts_with(&begin), "{notice}");
    assert!(notice.contains("; take the setting out, or start bingo alone in a cgroup"), "{notice}");
    running.supervisor.shutdown().await;
    assert!(!running.root.join("own").exists(), "it ran without its limit");
}

#[tokio::test]
async fn processes_are_limited_together_or_the_plugin_is_refused() {
    let Some(own) = delegated(&["pids"]) else { return is_refused("processes", "pids").await };
    let script = r#"
hello(tools=TOOL)
message = read()
children = []
try:
    while len(children) < 20: children.append(subprocess.Popen(["sleep", "1000"]))
except BlockingIOError:
    pass
text(message, json.dumps([len(children), open("/proc/self/cgroup").read()]))
read()
"#;
    let running = limited(json!({"processes": 5})).start(script).await;
    let said = said(&running).await;
    assert_eq!(said[0], 4, "and itself");
    let groups = said[1].as_str().unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
    let folder = own.join(Path::new(group).file_name().unwrap());
    assert!(folder.exists());
    running.supervisor.shutdown().await;
    assert!(!folder.exists(), "its cgroup is left");
}

#[tokio::test]
async fn memory_is_limited_together_or_the_plugin_is_refused() {
    let Some(own) = delegated(&["memory"]) else { return is_refused("memory", "memory").await };
    let script = "hello(tools=TOOL)\nread()\nall = [bytearray(b'x' * (10 << 20)) for _ in range(100)]\n";
    let running = limited(json!({"memory": 100u64 << 20})).start(script).await;
    let error = running.call(json!({})).await.unwrap_err().message;
    let expected = "the plugin used more than `supervisor.p.limits.memory` allows, 104857600 bytes";
    assert!(error.contains(expected), "{error}");
    running.supervisor.shutdown().await;
    let left = std::fs::read_dir(own).unwrap().flatten();
    let own = format!("bingo-plugin-p-{}-", std::process::id());
    assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(&own)));
}
