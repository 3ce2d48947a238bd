//! Processes: what a plugin gets from the host, and that nothing of it is left, however the host or the guard ends.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::common::{Ran, Sandbox, Started, end, program, repository, signal, wait_until};

const SLOW: &str = r#"@tool plugin__stress__slow {"ms":600000}"#;

/// Starts a run that permits everything, with this plugin and this prompt to the echo model.
fn start(sandbox: &Sandbox, plugin: &Path, prompt: &str) -> Started {
    let plugin = plugin.to_str().unwrap();
    let rest = ["--permission-mode", "bypassPermissions", "--model", "echo/echo", "--output-format", "json"];
    sandbox.start(["--plugin", plugin].iter().chain(&rest).chain(&["-p", prompt]))
}

/// Starts a call of the stress plugin that lasts, and returns when it is under way.
fn start_slow(sandbox: &Sandbox, faults: &str) -> Started {
    let run = start(sandbox, &sandbox.stress(faults), SLOW);
    run.wait_for_stdout("step 0 of 10");
    run
}

/// The id of the one process whose command line fulfils `wanted`.
#[track_caller]
fn find(sandbox: &Sandbox, wanted: impl Fn(&str) -> bool) -> u32 {
    let found = sandbox.processes();
    let fitting: Vec<u32> = found.iter().filter(|(_, line)| wanted(line)).map(|(id, _)| *id).collect();
    assert_eq!(fitting.len(), 1, "{found:?}");
    fitting[0]
}

fn is_guard_of(line: &str, name: &str) -> bool {
    line.contains("__guard") && line.contains(name)
}

/// Whether a process is there; one that ended and was not reaped is not.
fn lives(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits for the ids of the processes that the stress plugin has started.
fn started_by_stress(plugin: &Path, count: usize) -> Vec<u32> {
    wait_until("the plugin's own processes are there", || {
        let text = std::fs::read_to_string(plugin.join("pids")).unwrap_or_default();
        let ids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if ids.len() == count { Ok(ids) } else { Err(text) }
    })
}

#[track_caller]
fn all_end(what: &str, ids: &[u32]) {
    wait_until(&format!("{what} are gone"), || {
        let left: Vec<&u32> = ids.iter().filter(|id| lives(**id)).collect();
        left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
    });
}

/// The failed output of the one tool call of a run, and its status.
fn tool_text(ran: &Ran) -> String {
    let frames = ran.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut outputs = frames.filter_map(|frame| {
        Some(frame["event"]["item"]["body"]["output"]["parts"][0]["text"].as_str()?.to_owned())
    });
    outputs.next().unwrap_or_else(|| panic!("{ran:#?}"))
}

#[test]
fn a_process_that_a_test_forgets_is_found() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.processes(), []);
    let mut child = program("sleep").arg("1000").env("HOME", sandbox.home()).spawn().unwrap();
    let found = wait_until("it is found", || {
        let found = sandbox.processes();
        found
            .iter()
            .any(|(_, line)| line == "sleep 1000 ")
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))?;
        Ok(found)
    });
    assert_eq!(found, [(child.id(), "sleep 1000 ".to_owned())]);
    end(child.id());
    child.wait().unwrap();
    assert_eq!(sandbox.processes(), []);
}

#[test]
fn a_host_that_is_killed_takes_its_plugins_along_within_a_second() {
    let sandbox = Sandbox::new();
    let pipe = sandbox.work().join("pipe");
    assert!(program("mkfifo").arg(&pipe).status().unwrap().success());
    let plugin = repository("examples/plugins/wordcount");
    let host = start(&sandbox, &plugin, &format!("/wordcount {}", pipe.display()));
    // Opens when the plugin has opened it to read: it counts, until the end that never comes.
    let writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    let own = find(&sandbox, |line| line.contains("wordcount/main.py") && !line.contains("__guard"));
    let guard = find(&sandbox, |line| is_guard_of(line, "wordcount/main.py"));
    host.signal("KILL");
    let killed = Instant::now();
    all_end("the plugin", &[own]);
    let took = killed.elapsed();
    assert!(took < Duration::from_secs(1), "the plugin took {took:?} to end");
    all_end("its guard", &[guard]);
    drop(writer);
    assert_eq!(host.finish().code, None);
}

#[test]
fn what_a_plugin_started_is_gone_when_the_host_has_ended() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.stress("fork-detach,ignore-term");
    let run = start(&sandbox, &plugin, "hi\n@wait 60000");
    let ids = started_by_stress(&plugin, 2);
    assert!(ids.iter().all(|id| lives(*id)));
    run.wait_for_stdout("itemDelta");
    run.signal("INT");
    let ran = run.finish().expect(130);
    // Gone already, not soon: the host ends last.
    let left: Vec<&u32> = ids.iter().filter(|id| lives(**id)).collect();
    assert!(left.is_empty(), "{left:?} outlived the host: {ran:#?}");
}

#[test]
fn what_a_plugin_started_is_gone_when_the_host_was_killed() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.stress("fork-detach,ignore-term");
    let run = start(&sandbox, &plugin, "hi\n@wait 60000");
    let ids = started_by_stress(&plugin, 2);
    run.wait_for_stdout("itemDelta");
    run.signal("KILL");
    all_end("the detached one and the one that ignores TERM", &ids);
    assert_eq!(run.finish().code, None);
}

/// With `BINGO_ENDURANCE=full` a hundred times.
#[test]
fn whenever_a_host_is_killed_nothing_of_its_plugins_is_left_after_a_second() {
    let full = std::env::var("BINGO_ENDURANCE").is_ok_and(|size| size == "full");
    let mut slowest = Duration::ZERO;
    for round in 0u64..if full { 100 } else { 8 } {
        let sandbox = Sandbox::new();
        let stress = sandbox.stress("fork-detach,ignore-term");
        let deaf = sandbox
            .python("deaf", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nhello()\ntime.sleep(1000)\n");
        let shell = sandbox.python("shell", "hello()\ntime.sleep(1000)\n");
        let entry = json!({ "command": "sh", "args": ["-c", "trap '' TERM; python3 -B main.py; exit 0"] });
        let manifest = json!({ "name": "shell", "version": "1", "entry": entry });
        std::fs::write(shell.join("plugin.json"), manifest.to_string()).unwrap();
        let mut args: Vec<&str> =
            [&stress, &deaf, &shell].iter().flat_map(|dir| ["--plugin", dir.to_str().unwrap()]).collect();
        args.extend(["--model", "echo/echo", "-p", "hi\n@wait 60000"]);
        let run = sandbox.start(args);
        // Anywhere in the start, and after it.
        std::thread::sleep(Duration::from_millis(round * 7919 % 600));
        run.signal("KILL");
        let killed = Instant::now();
        wait_until("everything is gone", || {
            let left = sandbox.processes();
            left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
        });
        slowest = slowest.max(killed.elapsed());
        assert_eq!(run.finish().code, None);
    }
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let mut stderr = std::io::stderr().lock();
    writeln!(stderr, "the slowest end of all processes took {slowest:?}").unwrap();
}

#[test]
fn a_plugin_that_ignores_the_end_of_its_input_and_term_is_killed() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python(
        "stubborn",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nhello()\nopen('ready', 'w').close()\nwhile True:\n    time.sleep(1000)\n",
    );
    let run = start(&sandbox, &plugin, "hi\n@wait 60000");
    wait_until("it is ready", || plugin.join("ready").exists().then_some(()).ok_or_else(|| run.stderr()));
    let own = find(&sandbox, |line| line.contains("stubborn/main.py") && !line.contains("__guard"));
    run.wait_for_stdout("itemDelta");
    run.signal("INT");
    let ran = run.finish().expect(130);
    assert!(!lives(own), "{ran:#?}");
}

#[test]
fn a_guard_that_is_killed_fails_the_call_in_words_and_its_plugin_ends() {
    let sandbox = Sandbox::new();
    let run = start_slow(&sandbox, "");
    let own = find(&sandbox, |line| line.ends_with("bingo-stress ") && !line.contains("__guard"));
    signal(find(&sandbox, |line| is_guard_of(line, "bingo-stress")), "KILL");
    let ran = run.finish().expect(0);
    let expected = "stress: tool/call failed (sent, no answer): the guard of its process was killed";
    assert_eq!(tool_text(&ran), expected, "{ran:#?}");
    assert!(!lives(own), "{ran:#?}");
}

#[test]
fn a_plugin_that_is_killed_in_a_call_fails_it_with_the_signal() {
    let sandbox = Sandbox::new();
    let run = start_slow(&sandbox, "");
    signal(find(&sandbox, |line| line.ends_with("bingo-stress ") && !line.contains("__guard")), "KILL");
    let ran = run.finish().expect(0);
    let expected = "stress: tool/call failed (sent, no answer): its process was ended by signal 9 (SIGKILL)";
    assert_eq!(tool_text(&ran), expected, "{ran:#?}");
}

#[test]
fn no_descriptor_of_the_host_reaches_a_plugin() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python(
        "fds",
        r#"
def links():
    for number in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            yield [int(number), os.readlink("/proc/self/fd/" + number)]
        except FileNotFoundError:
            pass  # that of the listing itself

hello()
text(read(), json.dumps(list(links())))
read()
"#,
    );
    // The host itself is given a descriptor that is open across `exec`, as a careless shell does.
    let mut command = program("sh");
    command.args(["-c", r#"exec 7</dev/null 9>"$HOME/leak"; exec "$0" "$@""#, env!("CARGO_BIN_EXE_bingo")]);
    command.args(["--plugin", plugin.to_str().unwrap(), "--permission-mode", "bypassPermissions"]);
    command.args(["--model", "echo/echo", "--output-format", "json", "-p", "@tool plugin__fds__t"]);
    command.env("HOME", sandbox.home()).current_dir(sandbox.work());
    let ran = Started::spawn(command, b"").finish().expect(0);
    let links: Vec<(u32, String)> = serde_json::from_str(&tool_text(&ran)).unwrap();
    let foreign: Vec<&(u32, String)> =
        links.iter().filter(|(number, link)| *number > 2 && !link.ends_with("fds/main.py")).collect();
    assert!(foreign.is_empty(), "{links:?}");
    let (numbers, kinds): (Vec<u32>, Vec<&str>) =
        links.iter().take(3).map(|(number, link)| (*number, link.split(':').next().unwrap())).unzip();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(kinds.iter().all(|kind| ["pipe", "socket"].contains(kind)), "{links:?}");
}

#[test]
fn of_the_hosts_variables_a_plugin_gets_the_common_ones_and_those_that_are_named() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.python("env", "hello()\ntext(read(), json.dumps(dict(os.environ)))\nread()\n");
    let environment = || -> serde_json::Map<String, Value> {
        let mut command = sandbox.command(["--plugin", plugin.to_str().unwrap()]);
        command.args(["--permission-mode", "bypassPermissions", "--model", "echo/echo"]);
        command.args(["--output-format", "json", "-p", "@tool plugin__env__t"]);
        command.env("A_SECRET_KEY", "s3cret").env("ANOTHER_SECRET", "too").env("LC_ALL", "C.UTF-8");
        let ran = Started::spawn(command, b"").finish().expect(0);
        serde_json::from_str(&tool_text(&ran)).unwrap()
    };
    let without = environment();
    assert!(!without.contains_key("A_SECRET_KEY") && !without.contains_key("ANOTHER_SECRET"), "{without:?}");
    assert_eq!(without["LC_ALL"], "C.UTF-8");
    assert_eq!(without["HOME"], sandbox.home().to_str().unwrap());
    assert!(without.contains_key("PATH"));
    sandbox.write("home/.bingo/settings.toml", "[supervisor.env]\nenv = ['A_SECRET_KEY']\n");
    let named = environment();
    assert_eq!(named["A_SECRET_KEY"], "s3cret");
    assert!(!named.contains_key("ANOTHER_SECRET"), "{named:?}");
    sandbox.write("home/.bingo/settings.toml", "[supervisor.env]\ninheritEnv = true\n");
    assert_eq!(environment()["ANOTHER_SECRET"], "too");
}
