//! Real processes under the real guard: what a plugin may do wrong, and that nothing of it is left.

mod host;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use host::{Host, context, lives, only_text, wait_for};

#[tokio::test]
async fn a_tool_is_called_and_its_process_knows_where_it_is() {
    let mut host = Host::new();
    host.config = json!({"key": [1]});
    let running = host
        .start(
            r#"
first = hello(tools=TOOL)
message = read()
params = message["params"]
send({"jsonrpc": "2.0", "method": "tool/progress", "params": {"callId": params["callId"], "tail": "half"}})
text(message, json.dumps([first["id"], first["params"], params["name"], params["input"], os.getcwd(), os.environ["ROOT"]]))
read()
"#,
        )
        .await;
    let snapshot = running.snapshot();
    assert_eq!(snapshot.plugins[0].version, "1.2");
    let tool = Arc::clone(&snapshot.tools[0]);
    assert_eq!(tool.spec().name, "plugin__p__t");
    assert_eq!(json!(tool.spec().meta), json!({"plugin": "p"}));
    let tails = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&tails);
    let output = tool
        .call(
            context(snapshot),
            "c1".to_owned(),
            json!({"a": 1}),
            Arc::new(move |tail| sink.lock().unwrap().push(tail)),
        )
        .await
        .unwrap();
    let root = running.root.to_string_lossy();
    let config_dir = host.folder.path().to_string_lossy();
    let expected = json!([
        1,
        {
            "protocol": 5, "pluginRoot": root, "config": {"key": [1]},
            "env": {"home": "/home/someone", "configDir": config_dir, "dataDir": running.data_dir.to_string_lossy()},
        },
        "t", {"a": 1}, root, root,
    ]);
    assert_eq!(serde_json::from_str::<Value>(&only_text(output)).unwrap(), expected);
    assert_eq!(*tails.lock().unwrap(), ["half"]);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_death_is_told_at_once_with_status_and_last_words() {
    let host = Host::new();
    let running = host
        .start(
            r#"
hello(tools=TOOL)
read()
print("no such table", file=sys.stderr, flush=True)
os._exit(3)
"#,
        )
        .await;
    let begun = Instant::now();
    let error = running.call(json!({})).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(
        error.message,
        "p: tool/call failed (sent, no answer): its process exited with code 3; its last words on stderr:\nno such table"
    );
    assert!(running.heard.wait("PLUGIN_DIED").await.contains("exited with code 3"));
    let snapshot = running.snapshot();
    assert!(snapshot.tools.is_empty());
    assert!(snapshot.plugins[0].reason.as_ref().unwrap().contains("code 3"));
    running.supervisor.shutdown().await;
    let log = std::fs::read_to_string(running.data_dir.join("logs/plugin-p.log")).unwrap();
    assert!(log.ends_with("generation=1 no such table\n"), "{log}");
}

#[tokio::test]
async fn a_signal_is_named() {
    let running =
        Host::new().start("hello(tools=TOOL)\nread()\nos.kill(os.getpid(), signal.SIGKILL)\n").await;
    let error = running.call(json!({})).await.unwrap_err();
    assert!(error.message.contains("ended by signal 9 (SIGKILL)"), "{error}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn the_end_of_its_output_is_its_end() {
    let running = Host::new()
        .start("hello(tools=TOOL)\nread()\nnote_pid('own', os.getpid())\nos.close(1)\ntime.sleep(1000)\n")
        .await;
    let error = running.call(json!({})).await.unwrap_err();
    assert!(error.message.contains("it closed its stdout"), "{error}");
    let pid = running.pid("own").await;
    wait_for("the process that lived on", || !lives(pid)).await;
}

#[tokio::test]
async fn a_grandchild_in_a_session_of_its_own_is_stopped_too() {
    let running = Host::new()
        .start(
            r#"
child = "import os, sys, time; os.fork() and os._exit(0); os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(1000)"
subprocess.run([sys.executable, "-c", child, "away.tmp"], stdin=subprocess.DEVNULL)
while not (os.path.exists("away.tmp") and open("away.tmp").read()):
    time.sleep(0.01)
os.rename("away.tmp", "away")
hello(tools=TOOL)
read()
"#,
        )
        .await;
    let pid = running.pid("away").await;
    assert!(lives(pid));
    running.supervisor.shutdown().await;
    assert!(!lives(pid), "it outlived the shutdown");
}

#[tokio::test]
async fn what_ignores_term_is_killed_with_its_children() {
    let running = Host::new()
        .start(
            r#"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
note_pid("child", child.pid)
note_pid("own", os.getpid())
hello(tools=TOOL)
while True:
    time.sleep(1000)
"#,
        )
        .await;
    let (child, own) = (running.pid("child").await, running.pid("own").await);
    running.supervisor.shutdown().await;
    assert!(!lives(child) && !lives(own));
}

#[test]
fn a_supervisor_that_is_only_dropped_leaves_nothing() {
    let host = Host::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pid = runtime.block_on(async {
        let running = host.start("note_pid('own', os.getpid())\nhello()\ntime.sleep(1000)\n").await;
        running.pid("own").await
    });
    runtime.shutdown_background();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(wait_for("the plugin's end", || !lives(pid)));
}

#[tokio::test]
async fn when_the_host_is_killed_its_plugins_end() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
import os, subprocess, sys, time
lifeline, host_end = os.pipe()
host_report, report = os.pipe()
subprocess.Popen([sys.argv[1], "__guard", str(lifeline), str(report), "300", "{}", "-", sys.executable, "-c",
    "import subprocess, sys; subprocess.run(['sleep', '1000'], start_new_session=True)"], pass_fds=[lifeline, report])
os.close(lifeline)
open("host.tmp", "w").write(os.read(host_report, 100).decode().split()[1])
os.rename("host.tmp", "plugin")
time.sleep(1000)
"#;
    #[expect(clippy::disallowed_methods, reason = "a host to be killed, in place of the program")]
    let mut host = std::process::Command::new("python3")
        .args(["-c", script, env!("CARGO_BIN_EXE_bingo")])
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    let path = folder.path().join("plugin");
    wait_for("the plugin's start", || path.exists()).await;
    let plugin: i32 = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let mut sleeper = None;
    wait_for("its child", || {
        let children = std::fs::read_to_string(format!("/proc/{plugin}/task/{plugin}/children")).unwrap();
        sleeper = children.split_whitespace().next().and_then(|pid| pid.parse().ok());
        sleeper.is_some()
    })
    .await;
    host.kill().unwrap();
    host.wait().unwrap();
    wait_for("the whole tree's end", || !lives(plugin) && !lives(sleeper.unwrap())).await;
}

#[tokio::test]
async fn printed_lines_are_told_once_and_harm_nothing() {
    let running = Host::new()
        .start(
            r#"
print("loading...")
print("")
sys.stdout.flush()
sys.stdout.buffer.write(b"\xff\xfe\n")
hello(tools=TOOL)
text(read(), "fine")
read()
"#,
        )
        .await;
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "fine");
    assert_eq!(
        running.heard.wait("PLUGIN_STRAY_OUTPUT").await,
        "p: printed a line on stdout that is no JSON-RPC message: \"loading...\"; print to stderr instead"
    );
    running.supervisor.shutdown().await;
    let texts: Vec<String> =
        running.heard.0.lock().unwrap().iter().map(|notice| notice.text.clone()).collect();
    assert!(texts[1].contains("not UTF-8"), "{texts:?}");
    assert!(texts[2].ends_with("no JSON-RPC message (1 more)"), "{texts:?}");
}

#[tokio::test]
async fn a_result_that_breaks_the_schema_names_the_field() {
    let running = Host::new()
        .start(
            r#"
hello(tools=TOOL)
reply(read(), {"output": {"parts": [{"type": "txt", "text": "x"}]}})
text(read(), "well again")
read()
"#,
        )
        .await;
    let error = running.call(json!({})).await.unwrap_err();
    assert_eq!(
        error.message,
        r#"p: tool/call result at /output/parts/0/type: expected one of "text", "image", "toolUse", "toolResult", "reasoning", got "txt""#
    );
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "well again");
    running.supervisor.shutdown().await;
}

/// Starts a plugin that must be refused, and returns the notice.
async fn refused(host: &Host, script: &str) -> String {
    let running = host.start(&format!("note_pid('own', os.getpid())\n{script}")).await;
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    assert!(running.snapshot().plugins[0].reason.is_some());
    let pid = running.pid("own").await;
    wait_for("the refused process's end", || !lives(pid)).await;
    notice
}

#[tokio::test]
async fn a_crash_at_the_start_shows_its_last_words() {
    let running = Host::new().start("import no_such_module\n").await;
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    assert!(notice.starts_with("p is not available: its process exited with code 1;"), "{notice}");
    assert!(notice.ends_with("No module named 'no_such_module'"), "{notice}");
}

#[tokio::test]
async fn another_protocol_is_refused_with_both_numbers() {
    let script = "reply(read(), {'protocol': 6, 'other': 'shape'})\ntime.sleep(1000)\n";
    assert_eq!(
        refused(&Host::new(), script).await,
        "p is not available: it speaks plugin protocol 6, this host speaks 5; both must be the same"
    );
}

#[tokio::test]
async fn a_wrong_declaration_is_refused_with_its_pointer() {
    let script = "hello(hooks=[{'id': 'h', 'points': ['never']}])\ntime.sleep(1000)\n";
    let notice = refused(&Host::new(), script).await;
    assert!(notice.contains("initialize result at /hooks/0/points/0: expected one of"), "{notice}");
}

#[tokio::test]
async fn silence_is_refused_and_words_on_stderr_are_signs_of_life() {
    let mut host = Host::new();
    host.limits.handshake = Duration::from_millis(1500);
    let notice = refused(&host, "print('warming up', file=sys.stderr, flush=True)\ntime.sleep(1000)\n").await;
    assert!(notice.contains("wrote nothing to stderr for 1500 ms"), "{notice}");
    assert!(notice.ends_with("\nwarming up"), "{notice}");

    let script = r#"
for _ in range(20):
    time.sleep(0.15)
    print("compiling", file=sys.stderr, flush=True)
hello(tools=TOOL)
read()
"#;
    let running = host.start(script).await;
    assert_eq!(running.snapshot().tools.len(), 1);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_missing_program_names_the_path() {
    let host = Host::new();
    let mut source = host.source("");
    source.manifest.entry.command = "no-such-program".to_owned();
    let running = host.start_unsettled(source);
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    let expected = "p is not available: the command `no-such-program` was not found on the PATH (";
    assert!(notice.starts_with(expected), "{notice}");
}

#[tokio::test]
async fn a_program_that_cannot_be_run_says_why() {
    use std::os::unix::fs::PermissionsExt;
    let host = Host::new();
    let mut source = host.source("");
    let outer = format!("#!{}\n", host.root().join("inner").display());
    // Of scripts that are run by scripts only the first is looked at.
    for (name, line) in [("run", outer.as_str()), ("inner", "#!/no/such/interpreter\n")] {
        let path: &Path = &host.root().join(name);
        std::fs::write(path, line).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    source.manifest.entry.command = "./run".to_owned();
    let running = host.start_unsettled(source);
    let notice = running.heard.wait("PLUGIN_UNAVAILABLE").await;
    assert!(notice.contains("its program could not be started: No such file"), "{notice}");
}

#[tokio::test]
async fn a_line_over_the_limit_fails_its_call_and_no_other() {
    let mut host = Host::new();
    host.limits.line = 64 * 1024;
    let running = host
        .start(
            r#"
hello(tools=TOOL)
text(read(), "x" * 200000)
text(read(), "short")
read()
"#,
        )
        .await;
    let error = running.call(json!({})).await.unwrap_err();
    assert!(
        error.message.starts_with("p: the response to tool/call cannot be used: its line has 200"),
        "{error}"
    );
    assert!(error.message.ends_with("bytes, the limit is 65536"), "{error}");
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "short");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_call_is_told_and_its_late_answer_is_dropped() {
    let running = Host::new()
        .start(
            r#"
hello(tools=TOOL)
first = read()
note_pid("got", os.getpid())
cancel = read()
text(first, "too late")
text(read(), json.dumps(cancel))
read()
"#,
        )
        .await;
    let snapshot = running.snapshot();
    let tool = Arc::clone(&snapshot.tools[0]);
    let context = context(snapshot);
    let cancel = context.cancel.clone();
    let call = tokio::spawn(tool.call(context, "c0".to_owned(), json!({}), Arc::new(|_| {})));
    // It must be there first: a call that waits in the queue is taken back without a word.
    running.pid("got").await;
    cancel.cancel();
    assert!(call.await.unwrap().is_err());
    let text = only_text(running.call(json!({})).await.unwrap());
    let expected = json!({"jsonrpc": "2.0", "method": "tool/cancel", "params": {"callId": "c0"}});
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_silent_tool_times_out() {
    let mut host = Host::new();
    host.limits.tool_idle = Duration::from_millis(200);
    let running = host.start("hello(tools=TOOL)\nread()\nread()\ntime.sleep(1000)\n").await;
    let error = running.call(json!({})).await.unwrap_err();
    assert_eq!(json!(error.code), json!("TIMEOUT"));
    assert_eq!(error.message, "p: the tool neither answered nor showed progress for 200 ms");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_plugin_that_ends_with_its_input_is_not_killed() {
    let running = Host::new()
        .start(
            r#"
hello(tools=TOOL)
signal.signal(signal.SIGTERM, lambda *_: note_pid("terminated", 1))
sys.stdin.readline()
note_pid("ended", os.getpid())
"#,
        )
        .await;
    running.supervisor.shutdown().await;
    assert!(running.root.join("ended").exists() && !running.root.join("terminated").exists());
    assert!(running.heard.0.lock().unwrap().is_empty(), "a stop is no death");
}

#[tokio::test]
async fn a_plugin_that_takes_no_input_is_dead() {
    let running = Host::new()
        .start("hello(tools=TOOL)\nos.close(0)\nnote_pid('closed', os.getpid())\ntime.sleep(1000)\n")
        .await;
    running.pid("closed").await;
    let error = running.call(json!({})).await.unwrap_err();
    assert_eq!(error.message, "p: tool/call failed (never sent): it closed its stdin");
}

#[tokio::test]
async fn a_guard_that_is_asked_to_end_ends_its_plugin_first() {
    let running = Host::new()
        .start("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nnote_pid('own', os.getpid())\nhello()\ntime.sleep(1000)\n")
        .await;
    let own = running.pid("own").await;
    let stat = std::fs::read_to_string(format!("/proc/{own}/stat")).unwrap();
    let guard = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guard), nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(running.heard.wait("PLUGIN_DIED").await.contains("signal 9 (SIGKILL)"));
    wait_for("both gone", || !lives(own) && !lives(guard)).await;
}

#[tokio::test]
async fn settings_that_break_the_manifests_schema_keep_a_plugin_from_starting() {
    let mut host = Host::new();
    host.config = json!({"depth": "deep"});
    let mut source = host.source("note_pid('own', os.getpid())\n");
    source.manifest.config = Some(json!({"properties": {"depth": {"type": "integer"}}}));
    let running = host.start_unsettled(source);
    assert_eq!(
        running.heard.wait("PLUGIN_UNAVAILABLE").await,
        r#"p is not available: the settings plugins.p at /depth: expected integer, got "deep""#
    );
    assert!(!running.root.join("own").exists());
}

#[tokio::test]
async fn a_plugin_gets_only_the_variables_meant_for_it() {
    let host = Host::new();
    let running =
        host.start("hello(tools=TOOL)\ntext(read(), json.dumps(sorted(os.environ)))\nread()\n").await;
    let names: Vec<String> =
        serde_json::from_str(&only_text(running.call(json!({})).await.unwrap())).unwrap();
    assert!(names.contains(&"PATH".to_owned()) && names.contains(&"ROOT".to_owned()), "{names:?}");
    // Cargo sets many of these for its tests; none is on the list.
    assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn a_plugin_inherits_no_open_file_but_its_streams() {
    let running = Host::new()
        .start("hello(tools=TOOL)\ntext(read(), json.dumps(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1]))\nread()\n")
        .await;
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "[0, 1, 2]");
    running.supervisor.shutdown().await;
}

#[tokio::test]
async fn little_of_a_plugins_output_may_wait_in_its_pipe() {
    // 1032 asks for the size of a pipe: an answer waits behind what stands in it.
    let running = Host::new()
        .start("import fcntl\nhello(tools=TOOL)\ntext(read(), str(fcntl.fcntl(1, 1032)))\nread()\n")
        .await;
    assert_eq!(only_text(running.call(json!({})).await.unwrap()), "16384");
    running.supervisor.shutdown().await;
}
