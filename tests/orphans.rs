//! A guard that is killed: what it watched is stopped and reaped by the host. Apart from the other tests, because from
//! then on every unknown child of this process counts as an orphan.

#![expect(clippy::unwrap_used, reason = "the helpers of tests fail by panicking, as tests do")]

mod host;

use std::time::Duration;

use bingo::supervisor::guard;
use host::{Host, lives, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn parent(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_a_killed_guard_leaves_is_stopped_and_reaped() {
    guard::adopt_orphans().unwrap();
    let mut host = Host::new();
    host.limits.stop_term = Duration::from_millis(300);
    let running = host
        .start(
            r#"
child = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
subprocess.run([sys.executable, "-c", child, "away.tmp"], stdin=subprocess.DEVNULL)
while not (os.path.exists("away.tmp") and open("away.tmp").read()):
    time.sleep(0.01)
os.rename("away.tmp", "away")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note_pid("own", os.getpid())
hello()
while True:
    time.sleep(1000)
"#,
        )
        .await;
    let (away, own) = (running.pid("away").await, running.pid("own").await);
    assert!(lives(away) && lives(own));
    kill(Pid::from_raw(parent(own)), Signal::SIGKILL).unwrap();
    assert!(running.heard.wait("PLUGIN_DIED").await.contains("the guard of its process was killed"));
    let gone = |pid: i32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_for("both gone and reaped", || gone(away) && gone(own)).await;
    running.supervisor.shutdown().await;
}
