//! Settings: what counts and from which file (`bingo doctor`), and what commands of a session write back.

use std::fs;

use serde_json::{Value, json};

use super::common::{Client, Sandbox};

fn doctor(sandbox: &Sandbox, code: i32) -> Value {
    let ran = sandbox.run(["doctor", "--json"]).expect(code);
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stdout))
}

/// Submits a command and returns its last acknowledgement.
#[track_caller]
fn command(client: &mut Client, session: &str, line: &str) -> Value {
    let intent = client.intent();
    client.submit(session, &intent, line);
    client.until_ack(&intent).pop().unwrap()["event"]["outcome"].clone()
}

/// Rule 8.4.17, 8.4.22.
#[test]
fn each_value_is_shown_with_the_file_that_it_is_from() {
    let sandbox = Sandbox::new();
    let none = doctor(&sandbox, 0);
    assert_eq!((&none["settings"], &none["problems"]), (&json!([]), &json!([])));
    assert!(none["files"].as_array().unwrap().iter().all(|file| file["exists"] == false), "{none}");
    let user = sandbox.write(
        "home/.bingo/settings.toml",
        "model = 'echo/echo'\nthinking = 'low'\n[plugins.p]\ntoken = 'secret'\n",
    );
    let project = sandbox.write("work/.bingo/settings.toml", "model = 'echo/other'\nprovider = 'x'\n");
    let found = doctor(&sandbox, 1);
    let from = |key: &str| {
        let line = found["settings"].as_array().unwrap().iter().find(|line| line["key"] == key);
        line.unwrap_or_else(|| panic!("no `{key}` in {found}")).clone()
    };
    assert_eq!(from("model"), json!({ "key": "model", "value": "echo/other", "from": [project] }));
    assert_eq!(from("thinking"), json!({ "key": "thinking", "value": "low", "from": [user] }));
    assert_eq!(
        from("plugins.p.token"),
        json!({ "key": "plugins.p.token", "from": [user] }),
        "it may be secret"
    );
    assert_eq!(found["problems"][0]["code"], "PROJECT_UNTRUSTED");
    assert!(!found["settings"].to_string().contains("provider"), "a project that is not trusted: {found}");
    let ran = sandbox.run(["doctor"]).expect(1);
    let line = ran.stdout.lines().find(|line| line.starts_with("thinking ")).unwrap();
    let cells: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(cells, ["thinking", "\"low\"", user.to_str().unwrap()]);
    assert!(ran.stderr.starts_with("note: PROJECT_UNTRUSTED: "), "{}", ran.stderr);
    assert!(!ran.stdout.contains("secret"), "{}", ran.stdout);
}

#[test]
fn a_value_that_does_not_fit_is_shown_and_then_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "[permissions]\ndefaultMode = 'yolo'\n");
    let ran = sandbox.run(["doctor"]).expect(2);
    assert!(ran.stdout.contains("permissions.defaultMode"), "{}", ran.stdout);
    assert!(ran.stderr.starts_with("error: the settings key `permissions.defaultMode`"), "{}", ran.stderr);
}

/// Rule 8.2.9, 8.4.23.
#[test]
fn what_is_chosen_in_a_session_is_written_to_the_persons_file_with_its_comments() {
    let sandbox = Sandbox::new();
    let text = "# mine\nmodel = 'echo/echo' # the best\n\n[journal]\nsync = 'off' # fast\n";
    let user = sandbox.write("home/.bingo/settings.toml", text);
    let mut client = sandbox.serve([""; 0]);
    let (session, _) = client.create(&sandbox.work());
    let outcome = command(&mut client, &session, "/model echo/loud");
    assert_eq!(outcome, json!({ "kind": "applied", "result": { "message": "model: echo/loud" } }));
    let expected = text.replace("'echo/echo'", "\"echo/loud\"");
    assert_eq!(fs::read_to_string(&user).unwrap(), expected);
    assert_eq!(command(&mut client, &session, "/think high")["result"]["message"], "thinking: high");
    let with = fs::read_to_string(&user).unwrap();
    assert!(with.contains("thinking = \"high\""), "{with}");
    assert_eq!(command(&mut client, &session, "/think off")["result"]["message"], "thinking: off");
    assert_eq!(fs::read_to_string(&user).unwrap(), expected, "the key is gone again");
    let (other, snapshot) = client.create(&sandbox.work());
    assert_ne!(other, session);
    assert_eq!(snapshot["summary"]["model"], "loud", "a later session begins with it");
    // What another file says is not changed, and said.
    let project = sandbox.write("work/.bingo/settings.toml", "model = 'echo/echo'\n");
    let outcome = command(&mut client, &session, "/model echo/quiet");
    let expected = format!("model: echo/quiet; {} says otherwise here", project.display());
    assert_eq!(outcome["result"]["message"], expected);
    assert_eq!(client.open(&session)["summary"]["model"], "quiet");
    assert_eq!(client.finish(), Some(0));
}

/// Rule 8.2.9.
#[test]
fn a_file_that_cannot_be_written_is_said_and_the_session_keeps_the_choice() {
    let sandbox = Sandbox::new();
    // A folder stands where the file would.
    fs::create_dir_all(sandbox.config()).unwrap();
    let mut client = sandbox.serve(["--model", "echo/echo"]);
    let (session, _) = client.create(&sandbox.work());
    sandbox.write("home/.bingo/settings.toml", "not = [ toml\n");
    let outcome = command(&mut client, &session, "/think high");
    let said = outcome["result"]["message"].as_str().unwrap();
    assert!(said.starts_with("thinking: high; later hosts do not know of it: "), "{said}");
    assert!(said.contains("settings.toml is not TOML"), "{said}");
    assert_eq!(client.open(&session)["config"]["kernel"]["thinking"], "high");
    assert_eq!(client.finish(), Some(0));
}

/// Rule 8.2.8.
#[test]
fn a_plugin_is_switched_from_a_session_at_once() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve(["--model", "echo/echo"]);
    let (session, _) = client.create(&sandbox.work());
    let outcome = command(&mut client, &session, "/plugins");
    let rows = &outcome["result"]["view"]["rows"];
    assert_eq!(rows[0][0], "echo", "{outcome}");
    assert_eq!(rows[0][4], "bundled", "{outcome}");
    let refused = command(&mut client, &session, "/plugins disable nobody");
    assert_eq!(refused["error"]["code"], "INVALID_INPUT");
    let outcome = command(&mut client, &session, "/plugins disable echo");
    assert!(outcome["result"]["message"].as_str().unwrap().starts_with("echo is off: "), "{outcome}");
    super::common::wait_until("the plugin to be off", || {
        let outcome = command(&mut client, &session, "/plugins");
        let state = &outcome["result"]["view"]["rows"][0][2];
        if state == "disabled" { Ok(()) } else { Err(format!("it is {state}")) }
    });
    assert_eq!(client.finish(), Some(0));
}
