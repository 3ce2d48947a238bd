//! Plugins whose files change while the host runs, and plugins that come and go.

use std::path::Path;

use serde_json::Value;

use super::{echo_server, items, notices, plugin, titled};
use crate::common::{Client, Sandbox, wait_until};

const BYPASS: [&str; 2] = ["--permission-mode", "bypassPermissions"];

/// A tool that says this word.
fn says(word: &str) -> String {
    format!("serve({{'tools': [TOOL]}}, tool_call=lambda params: words({word}))\n")
}

/// Writes the program of a plugin anew, as editors do: another file takes the place of the old one.
fn edit(plugin: &Path, file: &str, edit: impl Fn(&str) -> String) {
    let path = plugin.join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let fresh = plugin.join(".fresh");
    std::fs::write(&fresh, edit(&text)).unwrap();
    std::fs::rename(fresh, path).unwrap();
}

fn said(frames: &[Value]) -> String {
    items(frames, "toolCall")[0]["body"]["output"]["parts"][0]["text"].as_str().unwrap().to_owned()
}

fn call(client: &mut Client, session: &str, name: &str) -> String {
    said(&client.turn(session, &client.intent(), &format!("@tool plugin__{name}__t {{}}")))
}

/// Calls the tool of a plugin until it says this.
#[track_caller]
fn wait_for_word(client: &mut Client, session: &str, name: &str, expected: &str) {
    wait_until(&format!("{name} says {expected}"), || {
        let said = call(client, session, name);
        if said == expected { Ok(()) } else { Err(said) }
    });
}

#[test]
fn a_changed_program_takes_over_and_a_broken_one_does_not() {
    let sandbox = Sandbox::new();
    let plugin = plugin(&sandbox, "p", &says("'one'"));
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    assert_eq!(call(&mut client, &session, "p"), "one");
    edit(&plugin, "main.py", |text| text.replace("'one'", "'two'"));
    wait_for_word(&mut client, &session, "p", "two");
    for (file, broken) in [("main.py", "sys.exit(7)\n"), ("plugin.json", "{")] {
        let well = std::fs::read_to_string(plugin.join(file)).unwrap();
        edit(&plugin, file, |_| broken.to_owned());
        let told = wait_until("the notice", || {
            let told = notices(&client.turn(&session, &client.intent(), "on"), "PLUGIN_SWAP_FAILED");
            told.first().cloned().ok_or_else(|| "nothing".to_owned())
        });
        assert!(told.contains("serves on: "), "{told}");
        assert_eq!(call(&mut client, &session, "p"), "two");
        let word = format!("after {file}");
        edit(&plugin, file, |_| well.clone());
        edit(&plugin, "main.py", |text| text.replace("words('two')", &format!("words({word:?})")));
        wait_for_word(&mut client, &session, "p", &word);
        edit(&plugin, "main.py", |text| text.replace(&format!("words({word:?})"), "words('two')"));
        wait_for_word(&mut client, &session, "p", "two");
    }
    assert_eq!(client.finish(), Some(0));
}

#[test]
fn what_the_manifest_watches_counts_and_other_files_do_not() {
    let sandbox = Sandbox::new();
    let script = "import sys\nsys.path.insert(0, '.')\nfrom lib.deep import helper\n".to_owned()
        + &says("helper.WORD + ' ' + str(os.getpid())");
    let plugin = plugin(&sandbox, "p", &script);
    std::fs::create_dir_all(plugin.join("lib/deep")).unwrap();
    std::fs::write(plugin.join("lib/deep/helper.py"), "WORD = 'one'\n").unwrap();
    edit(&plugin, "plugin.json", |text| text.replacen('{', r#"{"watch": ["lib/**/*.py"],"#, 1));
    let mut client = echo_server(&sandbox, &[&plugin], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let first = call(&mut client, &session, "p");
    assert!(first.starts_with("one "), "{first}");
    std::fs::write(plugin.join("lib/deep/notes.txt"), "x").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert_eq!(call(&mut client, &session, "p"), first, "the same process");
    edit(&plugin.join("lib/deep"), "helper.py", |_| "WORD = 'two'\n".to_owned());
    wait_until("the new word", || {
        let said = call(&mut client, &session, "p");
        if said.starts_with("two ") { Ok(()) } else { Err(said) }
    });
}

#[test]
fn a_plugin_comes_and_goes_with_its_folder() {
    let sandbox = Sandbox::new();
    let made = plugin(&sandbox, "p", &says("'here'"));
    let mut client = echo_server(&sandbox, &[], &BYPASS);
    let session = titled(&mut client, &sandbox);
    let place = sandbox.config().join("plugins");
    for _ in 0..2 {
        std::fs::create_dir_all(place.join("p")).unwrap();
        for file in ["main.py", "plugin.json"] {
            std::fs::copy(made.join(file), place.join("p").join(file)).unwrap();
        }
        wait_for_word(&mut client, &session, "p", "here");
        std::fs::remove_dir_all(place.join("p")).unwrap();
        wait_until("it is gone", || {
            let frames = client.turn(&session, &client.intent(), "@tool plugin__p__t {}");
            let said = said(&frames);
            if said == "tool not found: plugin__p__t" { Ok(()) } else { Err(said) }
        });
    }
    assert_eq!(client.finish(), Some(0));
}
