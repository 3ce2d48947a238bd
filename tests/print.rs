//! `bingo -p`: what it prints, and how it ends.

use std::io::Read;
use std::process::Stdio;

use serde_json::Value;

use super::common::{Ran, Sandbox, program, repository, spawn_with_stdout, wait_until};

const COUNT: &str = "plugin__wordcount__count";
const NO_PROVIDER: &str = "[notice] NO_PROVIDER no provider is configured, so the embedded echo model answers: it repeats what you say. Name a provider with `--model PROVIDER/MODEL` or `provider` in the settings\n";

/// Runs the program with the wordcount example and these further arguments.
fn wordcount(sandbox: &Sandbox, args: &[&str]) -> Ran {
    let plugin = repository("examples/plugins/wordcount");
    sandbox.run(["--plugin", plugin.to_str().unwrap()].iter().chain(args))
}

/// Lines, words, characters and bytes of a file, as the system's `wc` counts them.
fn wc(path: &std::path::Path) -> Vec<String> {
    let mut command = program("wc");
    let output = command.arg("-lwmc").arg(path).env("LC_ALL", "C.UTF-8").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().take(4).map(str::to_owned).collect()
}

/// A prompt that makes the echo model call the wordcount tool on a new file.
fn count_prompt(sandbox: &Sandbox) -> String {
    sandbox.write("work/text", "one two\nthree é\n");
    format!(r#"@tool {COUNT} {{"path":"text"}}"#)
}

/// The event types of frames that were printed one a line; items with kind and status, a run of deltas as one.
fn sequence(stdout: &str) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for line in stdout.lines() {
        let frame: Value = serde_json::from_str(line).unwrap();
        let event = &frame["event"];
        let mut kind = event["type"].as_str().unwrap().to_owned();
        if let (Some(body), Some(status)) =
            (event["item"]["body"]["kind"].as_str(), event["item"]["status"].as_str())
        {
            kind += &format!(" {body} {status}");
        }
        if kind != "itemDelta" || kinds.last().is_none_or(|last| *last != kind) {
            kinds.push(kind);
        }
    }
    kinds
}

#[test]
fn a_command_of_a_python_plugin_prints_the_numbers_of_wc() {
    let sandbox = Sandbox::new();
    let file = repository("README.md");
    let ran = wordcount(&sandbox, &["-p", &format!("/wordcount {}", file.display())]).expect(0);
    let lines: Vec<Vec<&str>> = ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["lines", "words", "characters", "bytes"], "{ran:#?}");
    assert_eq!(lines[1], wc(&file), "{ran:#?}");
    assert_eq!(lines.len(), 2, "{ran:#?}");
    assert_eq!(ran.stderr, NO_PROVIDER);
}

#[test]
fn the_wordcount_example_counts_as_wc_does_whatever_the_bytes() {
    let script = repository("tests/fixtures/wordcount_check.py");
    let output = program("python3").arg(script).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_turn_with_a_permitted_tool_call_prints_the_answer_on_stdout_and_the_rest_on_stderr() {
    let sandbox = Sandbox::new();
    let prompt = count_prompt(&sandbox);
    let ran = wordcount(&sandbox, &["--permission-mode", "bypassPermissions", "-p", &prompt]).expect(0);
    let answer = "plugin__wordcount__count returned: text: 2 lines, 4 words, 16 characters, 17 bytes\n";
    assert_eq!(ran.stdout, answer);
    let told = "[tool] plugin__wordcount__count {\"path\":\"text\"}\n[tool] plugin__wordcount__count ok (…ms)\n  lines  words  characters  bytes\n  2      4      16          17\n";
    assert_eq!(sandbox.steady(&ran.stderr), [NO_PROVIDER, told].concat());
}

/// Rule 1.1.1.
#[test]
fn the_frames_of_a_permitted_tool_call_come_in_the_order_of_the_kernels_rules() {
    let sandbox = Sandbox::new();
    let prompt = count_prompt(&sandbox);
    let args = ["--permission-mode", "bypassPermissions", "--output-format", "json", "-p", &prompt];
    let ran = wordcount(&sandbox, &args).expect(0);
    let mut kinds = sequence(&ran.stdout);
    // Whether a tool shows progress is its own affair.
    if let Some(at) = kinds.iter().position(|kind| kind == "itemUpdated toolCall running")
        && kinds[at + 1] == "itemDelta"
    {
        kinds.remove(at + 1);
    }
    let expected = [
        "itemCompleted user completed",
        "sessionUpdated",
        "turnStarted",
        "intentAck",
        "itemStarted toolCall pending",
        "turnUsage",
        "itemUpdated toolCall running",
        "itemCompleted toolCall completed",
        "itemStarted assistant running",
        "itemDelta",
        "itemCompleted assistant completed",
        "turnUsage",
        "turnCompleted",
    ];
    assert_eq!(kinds, expected, "{ran:#?}");
}

#[test]
fn without_a_terminal_a_tool_call_that_needs_a_yes_is_refused_and_the_turn_goes_on() {
    let sandbox = Sandbox::new();
    let prompt = count_prompt(&sandbox);
    let ran = wordcount(&sandbox, &["-p", &prompt]).expect(0);
    let refusal = "Permission denied by the user: non-interactive, nobody could be asked (`--allowed-tools plugin__wordcount__count` allows it)\n";
    assert_eq!(ran.stdout, format!("plugin__wordcount__count failed: {refusal}"));
    let told = "[tool] plugin__wordcount__count {\"path\":\"text\"}\n[tool] plugin__wordcount__count error (…ms)\n  ";
    assert_eq!(sandbox.steady(&ran.stderr), [NO_PROVIDER, told, refusal].concat());

    let ran = wordcount(&sandbox, &["--output-format", "json", "-p", &prompt]).expect(0);
    let expected = [
        "itemCompleted user completed",
        "sessionUpdated",
        "turnStarted",
        "intentAck",
        "itemStarted toolCall pending",
        "turnUsage",
        "interactionOpened",
        "interactionResolved",
        "intentAck",
        "itemCompleted permissionReceipt completed",
        "itemCompleted toolCall failed",
        "itemStarted assistant running",
        "itemDelta",
        "itemCompleted assistant completed",
        "turnUsage",
        "turnCompleted",
    ];
    assert_eq!(sequence(&ran.stdout), expected, "{ran:#?}");
}

#[test]
fn an_allowed_tool_runs_without_a_question() {
    let sandbox = Sandbox::new();
    let prompt = count_prompt(&sandbox);
    let ran = wordcount(&sandbox, &["--allowed-tools", COUNT, "-p", &prompt]).expect(0);
    assert!(ran.stdout.contains("returned: text: 2 lines"), "{ran:#?}");
    let ran = wordcount(&sandbox, &["--allowed-tools", "plugin__wordcount__other", "-p", &prompt]).expect(0);
    assert!(ran.stdout.contains("non-interactive"), "{ran:#?}");
}

#[test]
fn a_prompt_may_come_on_standard_input() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_with_input(["-p"], "grüße\n".as_bytes()).expect(0);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("grüße\n", NO_PROVIDER));
}

#[test]
fn a_command_that_is_not_there_fails_by_its_name() {
    let ran = Sandbox::new().run(["-p", "/nope"]).expect(1);
    assert_eq!(ran.stdout, "");
    assert_eq!(ran.stderr, [NO_PROVIDER, "[error] code=INVALID_INPUT msg=unknown command: /nope\n"].concat());
}

#[test]
fn a_command_that_fails_says_which_plugin_failed_it() {
    let ran = wordcount(&Sandbox::new(), &["-p", "/wordcount nowhere"]).expect(1);
    let told = "[error] code=TOOL_FAILED msg=wordcount: cannot read nowhere: No such file or directory (code -32603)\n";
    assert_eq!((ran.stdout.as_str(), ran.stderr), ("", [NO_PROVIDER, told].concat()));
}

#[test]
fn a_model_that_refuses_fails_the_run_with_its_reason() {
    let ran = Sandbox::new().run(["-p", "@fail auth"]).expect(1);
    let told = "[error] code=AUTH_REQUIRED msg=`@fail auth` was asked for\n";
    assert_eq!((ran.stdout.as_str(), ran.stderr), ("", [NO_PROVIDER, told].concat()));
}

#[test]
fn an_interrupt_ends_the_turn_and_says_so() {
    let sandbox = Sandbox::new();
    let run = sandbox.start(["-p", "before\n@wait 60000\nafter"]);
    run.wait_for_stdout("before");
    run.signal("INT");
    let ran = run.finish().expect(130);
    assert_eq!(ran.stdout, "before\n");
    assert_eq!(ran.stderr, [NO_PROVIDER, "[Request interrupted by user]\n"].concat());
}

#[test]
fn a_request_to_end_is_an_interrupt_too() {
    let sandbox = Sandbox::new();
    let run = sandbox.start(["--output-format", "json", "-p", "before\n@wait 60000"]);
    run.wait_for_stdout("itemDelta");
    run.signal("TERM");
    let ran = run.finish().expect(130);
    let kinds = sequence(&ran.stdout);
    let end = ["intentAck", "itemCompleted assistant interrupted", "itemCompleted interruption completed"];
    assert_eq!(kinds[kinds.len() - 4..kinds.len() - 1], end, "{ran:#?}");
    assert_eq!(kinds.last().unwrap(), "turnCompleted");
}

#[test]
fn a_reader_that_leaves_early_ends_the_run() {
    let sandbox = Sandbox::new();
    let plugin = sandbox.stress("flood-deltas=100000");
    for format in ["text", "json"] {
        let args = ["--model", "stress/stress", "--output-format", format, "-p", "hello"];
        let mut command = sandbox.command(["--plugin", plugin.to_str().unwrap()]);
        command.args(args);
        let (mut child, mut stdout) = spawn_with_stdout(command);
        stdout.read_exact(&mut [0]).unwrap();
        drop(stdout);
        let status = wait_until("the run ended", || {
            child.try_wait().unwrap().ok_or_else(|| format!("{:?}", sandbox.processes()))
        });
        assert_eq!(status.code(), Some(141), "with format {format}");
    }
    let mut command = sandbox.command(["schema", "rpc"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.stdout(Stdio::from(writer)).status().unwrap();
    assert_eq!(status.code(), Some(141));
}

#[test]
fn the_schemas_are_printed_as_they_are_committed() {
    let sandbox = Sandbox::new();
    for wire in ["plugin", "rpc"] {
        let ran = sandbox.run(["schema", wire]).expect(0);
        let committed = std::fs::read_to_string(repository(&format!("schema/{wire}.json"))).unwrap();
        assert!(ran.stdout == committed, "`bingo schema {wire}` differs from schema/{wire}.json");
        assert_eq!(ran.stderr, "");
    }
}

#[test]
fn on_a_terminal_an_answer_and_a_tools_words_only_show() {
    let sandbox = Sandbox::new();
    let stress = sandbox.stress("");
    let prompt = "@tool plugin__stress__echo {\"text\":\"\\u001b[2Jone\\n[notice] two\"}";
    let plugin = stress.to_str().unwrap();
    let args =
        ["--plugin", plugin, "--model", "echo/echo", "--permission-mode", "bypassPermissions", "-p", prompt];
    let ran = sandbox.run_on_terminal(args, "").expect(0);
    assert!(!ran.stdout.contains('\u{1b}'), "{ran:#?}");
    assert!(ran.stdout.contains("\r\n  \\u{1b}[2Jone\r\n  [notice] two\r\n"), "{ran:#?}");
}
