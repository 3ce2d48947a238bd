//! One conversation from the handshake to the end.

use crate::common::Sandbox;

#[test]
fn a_turn_of_plain_text() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let (session, _) = client.create(&sandbox.work());
    let frames = client.turn(&session, "req_1", "hello there");
    let kinds: Vec<&str> = frames.iter().map(|frame| frame["event"]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.first(), Some(&"itemCompleted"), "{}", client.story());
    assert_eq!(client.finish(), Some(0));
}
