//! The five rude plugins of `fixtures/rude`: what is read of each, word for word, and that `docs/plugin-authors.md`
//! says the same.

use super::common::{Sandbox, repository};

/// Calls the one tool of a rude plugin; the turn must complete. Standard error holds the notices around the call and
/// how the tool ended, and the model says what it was given: each word for word.
#[track_caller]
fn reads(name: &str, before: &str, between: &str, status: &str, said: &str) {
    let sandbox = Sandbox::new();
    sandbox.write("home/.bingo/settings.toml", "[supervisor.silent.timeouts]\nhandshake = 1500\n");
    let plugin = repository("tests/fixtures/rude").join(name);
    let tool = format!("plugin__{name}__t");
    let prompt = format!("@tool {tool} {{}}");
    let permitted = ["--plugin", plugin.to_str().unwrap(), "--permission-mode", "bypassPermissions"];
    let asked = ["--model", "echo/echo", "-p", prompt.as_str()];
    let ran = sandbox.run(permitted.into_iter().chain(asked)).expect(0);
    let verb = if status == "ok" { "returned" } else { "failed" };
    assert_eq!(ran.stdout, format!("{tool} {verb}: {said}\n"));
    let shown = said.replace('\n', "\n  ");
    let ended = format!("[tool] {tool} {status} (…ms)\n  {shown}\n");
    assert_eq!(sandbox.steady(&ran.stderr), format!("{before}[tool] {tool} {{}}\n{between}{ended}"));
}

/// Asserts that the row of a fault on the page for authors quotes this as what bingo says.
#[track_caller]
fn page_says(fault: &str, text: &str) {
    let page = std::fs::read_to_string(repository("docs/plugin-authors.md")).unwrap();
    let section = page.split("\n## Five rude plugins\n").nth(1).unwrap().split("\n## ").next().unwrap();
    // A cell is one line, followed by how long it took; the silent one is given less time here than by default.
    let cell = text.replace('\n', "<br>").replace("1500 ms", "10 s");
    let row = format!("(`{fault}`) | {cell} (");
    assert!(section.contains(&row), "the page does not say: {row}");
}

#[test]
fn of_a_death_in_a_call_status_and_last_words_are_read() {
    let words = "its process exited with code 3; its last words on stderr:\nabout to fail: disk full";
    let told = format!("dies: tool/call failed (sent, no answer): {words}");
    let notice = format!("[notice] PLUGIN_DIED dies died: {}\n", words.replace('\n', "\n  "));
    reads("dies", "", &notice, "error", &told);
    page_says("dies", &told);
}

#[test]
fn of_a_banner_on_stdout_the_line_and_the_remedy_are_read() {
    let told = r#"banner: printed a line on stdout that is no JSON-RPC message: "banner: starting up"; print to stderr instead"#;
    reads("banner", &format!("[notice] PLUGIN_STRAY_OUTPUT {told}\n"), "", "ok", "all is well");
    page_says("banner", told);
}

#[test]
fn of_a_wrong_shape_place_expected_and_got_are_read() {
    let told = r#"shape: tool/call result at /output/parts: expected array, got "not a list""#;
    reads("shape", "", "", "error", told);
    page_says("shape", told);
}

#[test]
fn of_silence_at_the_handshake_what_was_waited_for_is_read() {
    let told =
        "silent is not available: it did not answer `initialize` and wrote nothing to stderr for 1500 ms";
    let notice = format!("[notice] PLUGIN_UNAVAILABLE {told}\n");
    reads("silent", &notice, "", "error", "tool not found: plugin__silent__t");
    page_says("silent", told);
}

#[test]
fn of_an_answer_of_17_mebibytes_its_size_and_the_limit_are_read() {
    let told =
        "huge: the response to tool/call cannot be used: its line has 17825884 bytes, the limit is 16777216";
    reads("huge", "", "", "error", told);
    page_says("huge", told);
}
