//! Lines that are no request, or none that fits: each gets its error, and the server lives on (kernel rules 5.1, 5.5).

use serde_json::{Value, json};

use crate::common::{Client, Sandbox};

/// What an error response must say: its code, its id, and a word of its message.
#[track_caller]
fn expect(response: &Value, code: i64, id: &Value, word: &str) {
    assert_eq!(response["error"]["code"], code, "{response}");
    assert_eq!(response["id"], *id, "{response}");
    assert!(response["error"]["message"].as_str().unwrap().contains(word), "{response}");
}

/// The server still answers.
#[track_caller]
fn lives_on(client: &mut Client) {
    assert!(client.call("session/list", json!({}))["sessions"].is_array());
}

/// Rule 5.1.7, 5.5.22.
/// Mends 9.1.12.
#[test]
fn lines_that_are_no_message_get_an_error_with_what_could_be_read_of_their_id() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let null = Value::Null;
    for (line, code, id, word) in [
        ("this is no json", -32700, &null, "not JSON"),
        (r#"{"jsonrpc":"2.0","id":5,"method":"session/list""#, -32700, &null, "not JSON"),
        (r#"{"id":7,"method":"session/list"}"#, -32600, &json!(7), "jsonrpc"),
        (r#"{"jsonrpc":"1.0","id":"a","method":"session/list"}"#, -32600, &json!("a"), "jsonrpc"),
        (r#"{"jsonrpc":"2.0","id":8}"#, -32600, &json!(8), ""),
        (r#"{"jsonrpc":"2.0","id":9,"method":5}"#, -32600, &json!(9), "method"),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"session/list"}"#, -32600, &null, "id"),
        (r#"{"jsonrpc":"2.0","id":{},"method":"session/list"}"#, -32600, &null, "id"),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"session/list"}]"#, -32600, &null, "batch"),
        ("[]", -32600, &null, "batch"),
        ("7", -32600, &null, "object"),
    ] {
        expect(&client.line(line), code, id, word);
    }
    lives_on(&mut client);
    assert_eq!(client.finish(), Some(0));
}

/// Rule 5.1.4, 5.5.22.
#[test]
fn requests_that_do_not_fit_say_where() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let (session, _) = client.create(&sandbox.work());
    let request = |method: &str, params: Value| {
        json!({ "jsonrpc": "2.0", "id": "x", "method": method, "params": params }).to_string()
    };
    let id = json!("x");
    expect(&client.line(request("no/such", json!({}))), -32601, &id, "no/such");
    for (method, params, pointer) in [
        ("session/open", json!({ "selector": { "kind": "byId", "id": 5 } }), "/selector/id"),
        ("session/open", json!({ "selector": { "kind": "nobody" } }), "/selector/kind"),
        ("session/close", json!({ "session": ["a"] }), "/session"),
        ("catalog/read", json!({ "kind": "fish" }), "/kind"),
        ("session/history", json!({ "session": session, "page": { "limit": -1 } }), "/page/limit"),
        (
            "session/submit",
            json!({ "session": session, "intent": "i", "input": { "kind": "text", "text": "a", "origin": {} } }),
            "/input/origin",
        ),
    ] {
        let response = client.line(request(method, params));
        expect(&response, -32602, &id, pointer);
        let at = response["error"]["data"]["pointer"].as_str().unwrap();
        assert!(at.starts_with(pointer), "{response}");
    }
    expect(&client.line(request("session/close", json!({}))), -32602, &id, "session");
    expect(&client.line(request("session/close", json!([]))), -32602, &id, "");
    lives_on(&mut client);
}

/// Rule 5.2.8, 5.2.9.
/// Mends 9.1.12.
#[test]
fn the_handshake_comes_first_and_once() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve_raw([""; 0]);
    for method in ["session/list", "no/such", "shutdown"] {
        let line = json!({ "jsonrpc": "2.0", "id": 1, "method": method }).to_string();
        let response = client.line(line);
        expect(&response, -32000, &json!(1), "initialize");
        assert_eq!(response["error"]["data"]["code"], "NOT_INITIALIZED");
    }
    let identity = json!({ "name": "test", "surface": "test" });
    let error = client.fail("initialize", json!({ "client": identity, "protocol": 2 }));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("protocol 2") && message.contains('1'), "{message}");
    assert_eq!(error["code"], -32000);
    let answer = client.initialize();
    assert_eq!((&answer["protocol"], &answer["name"]), (&json!(1), &json!("bingo")));
    let methods = answer["capabilities"]["methods"].as_array().unwrap();
    assert!(methods.contains(&json!("session/open")), "{answer}");
    let again = client.fail("initialize", json!({ "client": identity, "protocol": 1 }));
    assert_eq!(again["code"], -32600, "{again}");
    lives_on(&mut client);
}

/// Rule 3.1.4, 3.2.20, 5.3.13.
#[test]
fn what_needs_an_open_session_is_refused_without_one() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let origin = json!({ "surface": "test" });
    let input = json!({ "kind": "text", "text": "x", "origin": origin });
    for (method, params) in [
        ("session/submit", json!({ "session": "ses_none", "intent": "i", "input": input })),
        ("session/interrupt", json!({ "session": "ses_none", "intent": "i", "scope": { "kind": "head" } })),
        ("session/history", json!({ "session": "ses_none" })),
        ("session/events", json!({ "session": "ses_none" })),
        ("session/close", json!({ "session": "ses_none" })),
        ("session/delete", json!({ "session": "../../etc" })),
        ("session/signal", json!({ "session": "ses_none", "plugin": "p", "kind": "k", "payload": 1 })),
        ("session/open", json!({ "selector": { "kind": "byKey", "key": "a/b" } })),
        ("session/open", json!({ "selector": { "kind": "latest", "cwd": "/" } })),
    ] {
        let error = client.fail(method, params);
        assert_eq!(error["data"]["code"], "SESSION_NOT_FOUND", "{method}: {error}");
        assert_eq!(error["code"], -32000, "{method}: {error}");
    }
}

/// Rule 5.1.3.
#[test]
fn ids_come_back_as_they_were_sent() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    for id in [json!("7"), json!(7), json!(""), json!("é\n"), json!(-1), json!(i64::MAX), json!(0)] {
        let line =
            json!({ "jsonrpc": "2.0", "id": id, "method": "session/list", "params": null }).to_string();
        let response = client.line(line);
        assert_eq!(response["id"], id);
        assert!(response["result"]["sessions"].is_array(), "{response}");
    }
}

/// Rule 5.1.7.
#[test]
fn notifications_and_stray_responses_are_not_answered() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    client.write(
        b"{\"jsonrpc\":\"2.0\",\"method\":\"session/list\"}\n{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n",
    );
    let response = client.line(r#"{"jsonrpc":"2.0","id":"next","method":"session/list"}"#);
    assert_eq!(response["id"], "next");
}

/// Rule 5.1.2.
#[test]
fn a_line_that_is_too_long_is_passed_over_and_its_id_answered() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let text = "x".repeat(17 * 1024 * 1024);
    let line = format!(r#"{{"jsonrpc":"2.0","id":"big","method":"session/list","params":{{"x":"{text}"}}}}"#);
    expect(&client.line(line), -32700, &json!("big"), "too long");
    let line = format!(r#"{{"jsonrpc":"2.0","method":"session/list","params":{{"x":"{text}"}},"id":12}}"#);
    expect(&client.line(line), -32700, &json!(12), "too long");
    lives_on(&mut client);
}

#[test]
fn bytes_that_are_not_utf8_spoil_their_line_only() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    expect(&client.line(b"\xff\xfe\x00"), -32700, &Value::Null, "UTF-8");
    let line = b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"session/list\",\"params\":{\"x\":\"\xff\"}}";
    expect(&client.line(line), -32700, &json!(4), "UTF-8");
    lives_on(&mut client);
}

#[test]
fn ten_thousand_bad_lines_get_ten_thousand_errors_in_order() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    let lines: String = (0..10_000).map(|id| format!("{{\"id\":{id},\"method\":\"x\"}}\n")).collect();
    client.write(lines.as_bytes());
    for id in 0..10_000 {
        expect(&client.any_response(), -32600, &json!(id), "");
    }
    lives_on(&mut client);
    assert_eq!(client.finish(), Some(0));
}

/// Rule 5.2.11.
#[test]
fn a_last_line_without_its_newline_is_answered_before_the_end() {
    let sandbox = Sandbox::new();
    for (line, ok) in
        [(r#"{"jsonrpc":"2.0","id":"last","method":"session/list"}"#, true), (r#"{"jsonrpc":"#, false)]
    {
        let mut client = sandbox.serve([""; 0]);
        client.write(line.as_bytes());
        assert_eq!(client.finish(), Some(0));
        let response = client.any_response();
        assert_eq!(response.get("result").is_some(), ok, "{response}");
        assert_eq!(response["error"]["code"] == -32700, !ok, "{response}");
    }
}

/// Rule 5.1.1.
#[test]
fn a_flag_that_does_not_exist_is_told_on_stderr_alone() {
    let ran = Sandbox::new().run(["serve", "--stdio", "--no-such-flag"]).expect(2);
    assert!(ran.stderr.contains("--no-such-flag"), "{ran:#?}");
    assert_eq!(ran.stdout, "");
}

/// Rule 5.2.11.
#[test]
fn a_shutdown_is_answered_and_then_the_server_ends() {
    let sandbox = Sandbox::new();
    let mut client = sandbox.serve([""; 0]);
    assert_eq!(client.call("shutdown", json!({})), json!({}));
    assert_eq!(client.exit_code(), Some(0));
    let (words, stderr) = ("panicked", client.stderr());
    assert!(!stderr.contains(words), "{stderr}");
}
