//! `bingo -p`: what it prints, and how it ends.

use super::common::{Sandbox, repository};

#[test]
fn a_command_of_a_python_plugin_prints_the_numbers_of_wc() {
    let sandbox = Sandbox::new();
    let plugin = repository("examples/plugins/wordcount");
    let file = sandbox.write("work/text", "one two\nthree é\n");
    let args = ["--plugin", plugin.to_str().unwrap(), "-p", &format!("/wordcount {}", file.display())];
    let ran = sandbox.run(args).expect(0);
    let numbers: Vec<&str> = ran.stdout.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(numbers, ["2", "4", "16", "17"], "{ran:#?}");
}
