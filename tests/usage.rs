//! Wrong usage and wrong settings: exit 2, nothing on stdout, and on stderr what is wrong, why, and what to do.

use super::common::Sandbox;

/// Runs `bingo ARGS -p hi`, which must be refused; returns what stood on stderr.
#[track_caller]
fn refused(sandbox: &Sandbox, args: &[&str]) -> String {
    let ran = sandbox.run(args.iter().chain(&["-p", "hi"])).expect(2);
    assert_eq!(ran.stdout, "");
    assert!(!sandbox.data().exists(), "nothing was begun");
    sandbox.steady(&ran.stderr)
}

#[test]
fn a_rule_a_mode_or_a_flag_that_means_nothing_is_refused_with_what_would() {
    let sandbox = Sandbox::new();
    let help = "\n\nFor more information, try '--help'.\n";
    let rule = "error: invalid value 'Bash(git:*' for '--allowed-tools <RULE,…>': `Bash(git:*` is no rule: its parenthesis is not closed; rules are `TOOL`, `TOOL(words:*)`, `TOOL(src/**)` and `TOOL(domain:HOST)`";
    assert_eq!(refused(&sandbox, &["--allowed-tools", "Bash(git:*"]), [rule, help].concat());
    let mode = "error: invalid value 'yolo' for '--permission-mode <MODE>': `yolo` is no permission mode; the modes are default, acceptEdits, plan, bypassPermissions, dontAsk";
    assert_eq!(refused(&sandbox, &["--permission-mode", "yolo"]), [mode, help].concat());
    let format =
        "error: invalid value 'xml' for '--output-format <OUTPUT_FORMAT>'\n  [possible values: text, json]";
    assert_eq!(refused(&sandbox, &["--output-format", "xml"]), [format, help].concat());
    let flag = refused(&sandbox, &["--no-such-flag"]);
    assert!(flag.starts_with("error: unexpected argument '--no-such-flag' found\n"), "{flag}");
    assert!(flag.ends_with(help), "{flag}");
}

#[test]
fn a_settings_file_that_cannot_be_read_is_named() {
    let sandbox = Sandbox::new();
    let gone = "error: cannot read the settings file gone.toml\n  because: No such file or directory (os error 2)\nhint: `--settings` takes the path of a TOML file\n";
    assert_eq!(refused(&sandbox, &["--settings", "gone.toml"]), gone);
    sandbox.write("work/cut.toml", "model = [\n");
    let text = refused(&sandbox, &["--settings", "cut.toml"]);
    assert!(
        text.starts_with(
            "error: the settings file cut.toml is not TOML\n  because: TOML parse error at line 1"
        ),
        "{text}"
    );
    assert!(text.ends_with("\nhint: correct that file: the settings are TOML\n"), "{text}");
}

#[test]
fn a_setting_of_the_wrong_kind_is_named_with_its_file() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "maxTokens = 'many'\n");
    let expected = "error: the settings key `maxTokens` does not fit: invalid type: string \"many\", expected u32 ($SANDBOX/home/.bingo/settings.toml)\nhint: correct that key, or take it out; `bingo doctor` shows the file that it is from\n";
    assert_eq!(refused(&sandbox, &[]), expected);
    sandbox.write("home/.bingo/settings.toml", "[permissions]\ndefaultMode = 'yolo'\n");
    let expected = "error: the settings key `permissions.defaultMode` does not fit: `yolo` is no permission mode; the modes are default, acceptEdits, plan, bypassPermissions, dontAsk\nhint: correct that key, or take it out; `bingo doctor` shows the file that it is from\n";
    assert_eq!(refused(&sandbox, &[]), expected);
    sandbox.write("home/.bingo/settings.toml", "[permissions]\ndeny = ['t', 't(']\n");
    let text = refused(&sandbox, &[]);
    let start = "error: the settings key `permissions.deny` does not fit: `t(` is no rule: its parenthesis is not closed; ";
    assert!(text.starts_with(start), "{text}");
    sandbox.write("home/.bingo/settings.toml", "[supervisor.a.timeouts]\nhandshak = 1\n");
    let text = refused(&sandbox, &[]);
    let start = "error: the settings key `supervisor.a.timeouts.handshak` does not fit: unknown field `handshak`, expected one of `line`, ";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn a_limit_that_means_nothing_is_refused_with_its_key() {
    let sandbox = Sandbox::new();
    let hint = "hint: correct that key, or take it out; `bingo doctor` shows the file that it is from\n";
    for (line, key, reason) in [
        (
            "openFile = 5",
            "openFile",
            "unknown field `openFile`, expected one of `addressSpace`, `openFiles`, `fileSize`, `cpuSeconds`, `processes`, `memory`",
        ),
        (
            "openFiles = 'many'",
            "openFiles",
            "invalid type: string \"many\", expected u64 ($SANDBOX/home/.bingo/settings.toml)",
        ),
        ("memory = 0", "memory", "invalid value: integer `0`, expected a nonzero u64"),
    ] {
        sandbox.write("home/.bingo/settings.toml", format!("[supervisor.a.limits]\n{line}\n"));
        let expected =
            format!("error: the settings key `supervisor.a.limits.{key}` does not fit: {reason}\n{hint}");
        assert_eq!(refused(&sandbox, &[]), expected);
    }
}

#[test]
fn a_setting_that_means_nothing_is_told_and_the_run_goes_on() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "maxTokns = 5\n");
    let ran = sandbox.run(["--model", "echo/echo", "-p", "hi"]).expect(0);
    assert_eq!(ran.stdout, "hi\n");
    let told = "[notice] UNKNOWN_SETTING the settings key `maxTokns` means nothing; the keys are provider, model, thinking, maxTokens, maxRounds, models, permissions, journal, retention, plugins, supervisor\n";
    assert_eq!(ran.stderr, told);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let expected = "error: cannot use the directory /no/such/place\n  because: No such file or directory (os error 2)\nhint: `--cwd` takes a directory that exists\n";
    assert_eq!(refused(&Sandbox::new(), &["--cwd", "/no/such/place"]), expected);
}

#[test]
fn a_named_directory_that_is_no_plugin_is_refused() {
    let sandbox = Sandbox::new();
    let folder = sandbox.work();
    let expected = "error: cannot load a plugin that was named\n  because: $SANDBOX/work is not a plugin: it has no plugin.json\nhint: `--plugin` takes the directory that `plugin.json` stands in\n";
    assert_eq!(refused(&sandbox, &["--plugin", folder.to_str().unwrap()]), expected);
}

#[test]
fn a_broken_manifest_is_named_with_the_place_in_it() {
    let sandbox = Sandbox::new();
    let hint = "hint: correct the manifest; `bingo schema plugin` has its shape under `Manifest`\n";
    let manifest =
        sandbox.write("work/broken/plugin.json", r#"{"name": "broken", "version": "1", "entry": {}}"#);
    let folder = manifest.parent().unwrap().to_str().unwrap();
    let unfit = "error: cannot load a plugin that was named\n  because: $SANDBOX/work/broken: plugin.json at /entry/command: expected string, got nothing\n";
    assert_eq!(refused(&sandbox, &["--plugin", folder]), [unfit, hint].concat());
    sandbox.write("work/broken/plugin.json", r#"{"name": "broken", "#);
    let cut = "error: cannot load a plugin that was named\n  because: $SANDBOX/work/broken/plugin.json is not JSON: EOF while parsing a value at line 1 column 19\n";
    assert_eq!(refused(&sandbox, &["--plugin", folder]), [cut, hint].concat());
    sandbox.write(
        "work/broken/plugin.json",
        r#"{"name": "other", "version": "1", "entry": {"command": "true"}}"#,
    );
    let misnamed = "error: cannot load a plugin that was named\n  because: $SANDBOX/work/broken/plugin.json calls itself `other`, its directory is `broken`; make both the same\n";
    assert_eq!(refused(&sandbox, &["--plugin", folder]), misnamed);
}

#[test]
fn an_empty_prompt_is_refused() {
    let sandbox = Sandbox::new();
    let expected = "error: cannot use the prompt: it is empty\nhint: give it as an argument, `bingo -p 'say hello'`, or on standard input\n";
    for (args, input) in [(vec!["-p"], ""), (vec!["-p"], " \n"), (vec!["-p", ""], "")] {
        let ran = sandbox.run_with_input(args, input.as_bytes()).expect(2);
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", expected));
    }
    let ran = sandbox.run_with_input(["-p"], b"\xff\xfe").expect(2);
    assert!(ran.stderr.starts_with("error: cannot use the prompt: it is not UTF-8\nhint: "), "{ran:#?}");
}

#[test]
fn the_program_alone_says_how_it_is_used() {
    let ran = Sandbox::new().run([""; 0]).expect(2);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("--print") && ran.stderr.contains("Usage: bingo"), "{ran:#?}");
}

#[test]
fn the_help_names_what_is_built_and_no_more() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(["--help"]).expect(0);
    assert_eq!(ran.stderr, "");
    let commands = ran.stdout.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let named: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(named, ["serve", "plugin", "session", "doctor", "schema", "help"], "{ran:#?}");
    let help = [ran.stdout, sandbox.run(["serve", "--help"]).expect(0).stdout].concat();
    for later in ["stream-json", "websocket", "listen", "transcript", "gateway", "linco", "quick-chat", "__"]
    {
        assert!(!help.to_lowercase().contains(later), "the help speaks of {later}:\n{help}");
    }
}
