//! Plugins that misbehave: each fault ends in a notice or a failed call that a person can act on; the turn goes on.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::common::{Ran, Sandbox, Started};

/// What makes the echo model call the stress plugin's tool that says its text back.
const CALL: &str = r#"@tool plugin__stress__echo {"text":"hello"}"#;

const CALLED: &str = "[tool] plugin__stress__echo {\"text\":\"hello\"}\n";
const SAID: &str = "[tool] plugin__stress__echo ok (…ms)\n  hello\n";
const ANSWERED: &str = "plugin__stress__echo returned: hello\n";

/// A run that permits everything, with this plugin, model and prompt.
fn args<'a>(plugin: &'a Path, model: &'a str, prompt: &'a str) -> [&'a str; 8] {
    let plugin = plugin.to_str().unwrap();
    ["--plugin", plugin, "--permission-mode", "bypassPermissions", "--model", model, "-p", prompt]
}

/// Runs a prompt to the echo model beside the stress plugin with these faults; the turn must complete.
#[track_caller]
fn run(sandbox: &Sandbox, faults: &str, prompt: &str) -> Ran {
    let ran = sandbox.run(args(&sandbox.stress(faults), "echo/echo", prompt)).expect(0);
    Ran { stderr: sandbox.steady(&ran.stderr), ..ran }
}

/// Asserts what a run of [`CALL`] prints when the tool answers well: the notices around it, and nothing else.
#[track_caller]
fn goes_well(faults: &str, before: &str, between: &str) {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, faults, CALL);
    assert_eq!(ran.stdout, ANSWERED);
    assert_eq!(ran.stderr, [before, CALLED, between, SAID].concat());
}

/// Asserts that the call does its work between these notices.
#[track_caller]
fn ends_well(faults: &str, before: &str, after: &str) {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, faults, CALL);
    assert_eq!(ran.stdout, ANSWERED);
    assert_eq!(ran.stderr, [before, CALLED, SAID, after].concat());
}

/// Asserts that the call fails with this text, after these notices.
#[track_caller]
fn call_fails(faults: &str, before: &str, between: &str, text: &str) {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, faults, CALL);
    assert_eq!(ran.stdout, format!("plugin__stress__echo failed: {text}\n"));
    let failed = format!("[tool] plugin__stress__echo error (…ms)\n  {text}\n");
    assert_eq!(ran.stderr, [before, CALLED, between, &failed].concat());
}

/// Asserts that the plugin is refused for this reason, and offers nothing.
#[track_caller]
fn is_refused(faults: &str, reason: &str) {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "[supervisor.stress.timeouts]\nhandshake = 1500\n");
    let ran = run(&sandbox, faults, CALL);
    let missing = "tool not found: plugin__stress__echo\n";
    assert_eq!(ran.stdout, format!("plugin__stress__echo failed: {missing}"));
    let notice = format!("[notice] PLUGIN_UNAVAILABLE stress is not available: {reason}\n");
    let failed = "[tool] plugin__stress__echo error (…ms)\n  ";
    assert_eq!(ran.stderr, [&notice, CALLED, failed, missing].concat());
}

#[test]
fn what_is_printed_on_stdout_is_told_once_and_harms_nothing() {
    let advice = "; print to stderr instead\n";
    let told = "[notice] PLUGIN_STRAY_OUTPUT stress: printed a line on stdout that is no JSON-RPC message: \"this line is no JSON\"";
    let sum = "[notice] PLUGIN_STRAY_OUTPUT stress: printed a line on stdout that is no JSON-RPC message (1 more)\n";
    ends_well("stray", &[told, advice].concat(), sum);
    let told = "[notice] PLUGIN_STRAY_OUTPUT stress: printed a line on stdout that is not UTF-8: \"\u{fffd}\u{fffd} bytes\"";
    let sum = "[notice] PLUGIN_STRAY_OUTPUT stress: printed a line on stdout that is not UTF-8 (1 more)\n";
    ends_well("not-utf8", &[told, advice].concat(), sum);
}

#[test]
fn a_result_that_breaks_the_schema_names_plugin_method_place_expected_and_got() {
    let text = "stress: tool/call result at /output/parts/0/text: expected string, got nothing";
    call_fails("bad-result", "", "", text);
}

#[test]
fn progress_of_a_call_that_never_was_is_told_and_dropped() {
    let told = "[notice] PLUGIN_FAULTY_MESSAGE stress: sent a notification about a call that is not known: \"tool/progress params at /callId: \\\"no-such-call\\\" is no call of this plugin\"\n";
    goes_well("unknown-progress", "", told);
}

#[test]
fn a_request_that_the_host_does_not_know_is_answered() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, "unknown-method", CALL);
    assert_eq!(ran.stdout, ANSWERED);
    let log = std::fs::read_to_string(sandbox.data().join("logs/plugin-stress.log")).unwrap();
    let got = log.trim_end().split_once("bingo-stress: got ").unwrap_or_else(|| panic!("{log}")).1;
    let message = "a plugin may call `service/call` only, not `no/such`";
    let expected = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": -32601, "message": message } });
    assert_eq!(serde_json::from_str::<Value>(got).unwrap(), expected);
    let told =
        format!("[notice] PLUGIN_FAULTY_MESSAGE stress: sent a request that was refused: {message:?}\n");
    assert!(ran.stderr.contains(&told), "{ran:#?}");
}

#[test]
fn a_handshake_that_cannot_be_used_is_refused_with_its_reason() {
    is_refused("protocol=6", "it speaks plugin protocol 6, this host speaks 5; both must be the same");
    is_refused("bad-handshake", "initialize result at /tools/0/name: expected string, got 7");
    is_refused(
        "exit-in-handshake",
        "its process exited with code 3; its last words on stderr:\n  bingo-stress: leaving in the handshake, as asked",
    );
    is_refused("silent-handshake", "it did not answer `initialize` and wrote nothing to stderr for 1500 ms");
}

#[test]
fn a_death_in_a_call_fails_it_and_says_that_it_was_sent() {
    let died = "[notice] PLUGIN_DIED stress died: its process exited with code 3\n";
    let text = "stress: tool/call failed (sent, no answer): its process exited with code 3";
    call_fails("die-before-answer", "", died, text);
}

#[test]
fn half_an_answer_and_a_death_fail_the_call() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, "half-line", CALL);
    let text = "stress: tool/call failed (sent, no answer): its process exited with code 3";
    assert_eq!(ran.stdout, format!("plugin__stress__echo failed: {text}\n"));
    assert!(
        ran.stderr.contains("[notice] PLUGIN_DIED stress died: its process exited with code 3\n"),
        "{ran:#?}"
    );
}

#[test]
fn a_death_right_after_an_answer_loses_nothing() {
    let sandbox = Sandbox::new();
    let ran = run(&sandbox, "die-after-answer", CALL);
    assert_eq!(ran.stdout, ANSWERED);
    assert!(ran.stderr.contains(SAID), "{ran:#?}");
}

/// Holds its first call until the file `go` is there.
const HOLDING: &str = r#"
hello()
request = read()
while not os.path.exists("go"):
    time.sleep(0.01)
text(request, "released")
read()
"#;

#[test]
fn a_call_to_a_plugin_that_died_before_it_was_never_sent() {
    let sandbox = Sandbox::new();
    let first = sandbox.python("first", HOLDING);
    let second = sandbox.python("second", "hello()\nos.read(0, 1)\n");
    let mut words = args(&first, "echo/echo", "@tool plugin__first__t\n@tool plugin__second__t").to_vec();
    words.extend(["--plugin", second.to_str().unwrap()]);
    let run = sandbox.start(words);
    run.wait_for_stderr("[tool] plugin__second__t {}");
    super::common::signal(the_process(&sandbox, &second.join("main.py")), "KILL");
    run.wait_for_stderr("[notice] PLUGIN_DIED second died: its process was ended by signal 9 (SIGKILL)\n");
    sandbox.write("plugins/first/go", "");
    let ran = run.finish().expect(0);
    let expected = "plugin__first__t returned: released\nplugin__second__t failed: second: tool/call failed (never sent): its process was ended by signal 9 (SIGKILL)\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
}

/// The id of the one process of the sandbox, no guard, that runs this script.
#[track_caller]
fn the_process(sandbox: &Sandbox, script: &Path) -> u32 {
    let found = sandbox.processes();
    let script = script.to_str().unwrap();
    let mut fitting =
        found.iter().filter(|(_, line)| line.starts_with("python3") || line.contains("/python3"));
    let own = fitting.find(|(_, line)| line.contains(script) && !line.contains("__guard"));
    own.unwrap_or_else(|| panic!("{script} is not running: {found:?}")).0
}

#[test]
fn a_line_over_the_limit_fails_its_call_at_once() {
    let text = "stress: the response to tool/call cannot be used: its line has 17825874 bytes, the limit is 16777216";
    call_fails("huge=17825792", "", "", text);
}

#[test]
fn an_id_that_comes_back_as_a_string_fails_its_call() {
    let text = "stress: the response to tool/call cannot be used: its id came back as the string \"2\", it was sent as the number 2";
    call_fails("string-id", "", "", text);
}

#[test]
fn of_two_answers_the_first_counts() {
    goes_well("answer-twice", "", "");
}

#[test]
fn an_error_answer_fails_its_call_with_the_plugins_words() {
    call_fails("error-answer", "", "", "stress: failed, as asked (code -32000)");
}

#[test]
fn a_late_answer_is_dropped_and_the_next_call_is_well() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "[supervisor.late.timeouts]\ntoolIdle = 2000\n");
    // The first answer is written when its call was given up: after the cancel, and before the second answer.
    let plugin = sandbox.python(
        "late",
        "hello()\nfirst = read()\nassert read()['method'] == 'tool/cancel'\ntext(first, 'too late')\ntext(read(), 'in time')\nread()\n",
    );
    let prompt = "@tool plugin__late__t {\"n\":1}\n@tool plugin__late__t {\"n\":2}";
    let ran = sandbox.run(args(&plugin, "echo/echo", prompt)).expect(0);
    let expected = "plugin__late__t failed: late: the tool neither answered nor showed progress for 2 s\nplugin__late__t returned: in time\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    assert!(!ran.stderr.contains("[notice]"), "{}", ran.stderr);
}

#[test]
fn a_flood_on_stderr_is_kept_in_five_files_of_a_mebibyte() {
    let sandbox = Sandbox::new();
    // 4 MiB each in the handshake, for the command of the person, and for the call.
    let ran = run(&sandbox, "flood-stderr", &[CALL, "\n", CALL].concat());
    assert_eq!(ran.stdout, [ANSWERED, ANSWERED].concat());
    let mut files: Vec<(String, u64)> = std::fs::read_dir(sandbox.data().join("logs"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("plugin-stress"))
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len()))
        .collect();
    files.sort();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["", ".1", ".2", ".3", ".4"].map(|end| format!("plugin-stress.log{end}")));
    assert!(files.iter().all(|(_, size)| *size <= 1024 * 1024), "{files:?}");
    assert!(files[1..].iter().all(|(_, size)| *size > 1000 * 1024), "{files:?}");
}

#[test]
fn a_flood_of_deltas_comes_out_whole_and_in_order() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.stress("flood-deltas=20000");
    let ran = sandbox.run(args(&plugin, "stress/stress", "hello")).expect(0);
    let expected: String = (0..20_000).map(|number| format!("{number} ")).collect();
    assert!(ran.stdout == expected + "\n", "{} bytes came: {}", ran.stdout.len(), ran.stderr);
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_delta_that_does_not_fit_fails_the_turn_at_once_with_the_field() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(args(&sandbox.stress("bad-delta"), "stress/stress", "3")).expect(1);
    let told = "[error] code=INVALID_INPUT msg=stress: provider/delta params at /event/delta: expected string, got nothing\n";
    assert!(ran.stderr.contains(told) && !ran.stderr.contains("[retry]"), "{ran:#?}");
}

#[test]
fn a_model_whose_process_dies_fails_the_turn_at_once_with_its_status() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.stress("die-before-answer");
    let ran = sandbox.run(args(&plugin, "stress/stress", "3")).expect(1);
    let told = "[error] code=OFFLINE msg=stress: provider/stream failed (sent, no answer): its process exited with code 3\n";
    assert!(ran.stderr.contains(told), "{ran:#?}");
    let died = "[notice] PLUGIN_DIED stress died: its process exited with code 3\n";
    assert!(ran.stderr.contains(died), "{ran:#?}");
}

#[test]
fn a_plugin_that_never_reads_fails_its_calls_and_is_ended() {
    let sandbox = Sandbox::new();
    let settings = "[supervisor.stress.timeouts]\ntoolIdle = 1000\nqueued = 1000\n";
    sandbox.write("home/.bingo/settings.toml", settings);
    // More than a pipe holds, so that the first call is stuck half written.
    let text = "x".repeat(200_000);
    let call = format!("@tool plugin__stress__echo {{\"text\":\"{text}\"}}\n");
    let plugin = sandbox.stress("never-read");
    let words = args(&plugin, "echo/echo", "");
    let ran = sandbox
        .run_with_input(&words[..words.len() - 1], [call.as_str(), &call].concat().as_bytes())
        .expect(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    let idle = "plugin__stress__echo failed: stress: the tool neither answered nor showed progress for 1 s";
    assert_eq!(lines[0], idle);
    let busy = "plugin__stress__echo failed: stress: tool/call was not sent, the plugin is busy: ";
    assert!(lines[1].starts_with(busy) && lines[1].ends_with(" bytes wait for it to read"), "{:?}", lines[1]);
}

#[test]
fn a_tool_that_hears_no_cancel_does_not_hold_up_an_interrupt() {
    for faults in ["ignore-cancel", ""] {
        let sandbox = Sandbox::new();
        let prompt = r#"@tool plugin__stress__slow {"ms":600000}"#;
        let mut words = args(&sandbox.stress(faults), "echo/echo", prompt).map(str::to_owned).to_vec();
        words.extend(["--output-format", "json"].map(str::to_owned));
        let run: Started = sandbox.start(words);
        run.wait_for_stdout("step 0 of 10");
        run.signal("INT");
        let ran = run.finish().expect(130);
        let frames = ran.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events: Vec<Value> = frames.map(|frame| frame["event"].clone()).collect();
        let [.., tool, interruption, end] = events.as_slice() else { panic!("{ran:#?}") };
        assert_eq!(tool["item"]["status"], "interrupted", "{tool}");
        let text = &tool["item"]["body"]["output"]["parts"][0]["text"];
        assert_eq!(text, "[Request interrupted by user for tool use]", "{tool}");
        assert_eq!(interruption["item"]["body"]["kind"], "interruption");
        assert_eq!(end["status"]["kind"], "interrupted", "{end}");
    }
}

#[test]
fn a_command_that_is_not_found_is_told_with_the_path() {
    let sandbox = Sandbox::new();
    let manifest = r#"{"name": "gone", "version": "1", "entry": {"command": "no-such-program", "env": {"PATH": "/nowhere"}}}"#;
    let plugin: PathBuf = sandbox.write("plugins/gone/plugin.json", manifest).parent().unwrap().to_owned();
    let ran = sandbox.run(args(&plugin, "echo/echo", "hi")).expect(0);
    assert_eq!(ran.stdout, "hi\n");
    let told = "[notice] PLUGIN_UNAVAILABLE gone is not available: the command `no-such-program` was not found on the PATH (/nowhere); install it or write its full path in `entry.command`\n";
    assert_eq!(ran.stderr, told);
}
