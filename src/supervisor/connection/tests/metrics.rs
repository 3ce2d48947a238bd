//! Each way in which a call can end is counted once.

use super::*;
use crate::supervisor::connection::metrics::MethodMetrics;

const METHOD: &str = "command/complete";
const SECOND: Duration = Duration::from_secs(1);

/// What was counted of the one method that these tests call: calls, errors, cancelled, and whether one took its time.
#[track_caller]
fn assert_counted(connection: &Connection, calls: u64, errors: u64, cancelled: u64, timed: bool) {
    let metrics = connection.metrics();
    let method = metrics.calls.get(METHOD).cloned().unwrap_or_default();
    let seen = (method.calls, method.errors, method.cancelled, method.p50_us.is_some());
    assert_eq!(seen, (calls, errors, cancelled, timed), "{metrics:?}");
    assert_eq!(metrics.last_fault.is_some(), errors > 0, "{metrics:?}");
}

fn last_fault(connection: &Connection) -> String {
    connection.metrics().last_fault.unwrap().text
}

/// Gives this answer to the only call; its id is 1.
async fn ended(line: &str) -> Wire {
    let mut wire = wire(Limits::default());
    let mut pending = begin(&wire);
    assert_counted(&wire.connection, 0, 0, 0, false);
    wire.plugin.say(line).await;
    // The caller may be told of nothing that is not counted.
    let _ = pending.response().await;
    let before = wire.connection.metrics().calls;
    drop(pending);
    assert_eq!(wire.connection.metrics().calls, before, "dropping it is no second end");
    wire
}

#[tokio::test]
async fn an_answer_is_counted_with_its_time() {
    let wire = ended(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    assert_counted(&wire.connection, 1, 0, 0, true);
}

#[tokio::test]
async fn an_error_a_bad_result_and_an_unusable_answer_are_errors() {
    for (line, fault) in [
        (r#"{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}"#, "command/complete: no (code -5)"),
        (r#"{"jsonrpc":"2.0","id":1,"result":[]}"#, "command/complete result: expected object, got []"),
        (
            r#"{"jsonrpc":"2.0","id":"1","result":{}}"#,
            "the response to command/complete cannot be used: its id came back as the string \"1\", it was \
             sent as the number 1",
        ),
        (
            r#"{"jsonrpc":"2.0","id":1}"#,
            "the response to command/complete cannot be used: neither `method`, `result` nor `error` is there",
        ),
    ] {
        let wire = ended(line).await;
        assert_counted(&wire.connection, 1, 1, 0, true);
        assert_eq!(last_fault(&wire.connection), fault);
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_an_error_that_took_all_of_it_also_when_the_answer_comes_later() {
    let mut wire = wire(Limits::default());
    wire.connection.call::<CompleteCommand>(&complete(""), SECOND).await.unwrap_err();
    wire.plugin.hear().await;
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    wire.plugin.settle().await;
    assert_counted(&wire.connection, 1, 1, 0, true);
    let took = wire.connection.metrics().calls[METHOD].p99_us.unwrap();
    assert!(took.abs_diff(1_000_000) <= 62_500, "{took}");
}

#[tokio::test]
async fn a_death_is_an_error_of_what_waits_and_of_what_comes_after() {
    let mut wire = wire(Limits::default());
    let mut pending = begin(&wire);
    wire.plugin.hear().await;
    wire.connection.close(&"it is gone".into());
    pending.response().await.unwrap_err();
    drop(pending);
    assert_counted(&wire.connection, 1, 1, 0, false);
    assert!(wire.connection.begin::<CompleteCommand>(&complete("")).is_err());
    assert_counted(&wire.connection, 2, 2, 0, false);
    assert_eq!(last_fault(&wire.connection), "command/complete failed (never sent): it is gone");
}

#[tokio::test]
async fn what_nobody_waits_for_any_more_is_cancelled_and_no_error() {
    let mut wire = wire(Limits::default());
    let pending = begin(&wire);
    wire.plugin.hear().await;
    assert!(pending.withdraw());
    drop(begin(&wire));
    assert_counted(&wire.connection, 2, 0, 2, false);
}

#[tokio::test]
async fn an_answer_that_nobody_took_was_an_answer() {
    let mut wire = wire(Limits::default());
    let pending = begin(&wire);
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    wire.plugin.settle().await;
    drop(pending);
    assert_counted(&wire.connection, 1, 0, 0, true);
}

#[tokio::test]
async fn what_is_never_sent_is_an_error_without_a_time() {
    let wire = wire(Limits { queued: 5000, ..Limits::default() });
    let stuck = wire.connection.begin::<CompleteCommand>(&complete(&"x".repeat(9000))).unwrap();
    assert!(wire.connection.begin::<CompleteCommand>(&complete("")).is_err());
    assert_counted(&wire.connection, 1, 1, 0, false);
    assert!(last_fault(&wire.connection).contains("is busy: 90"));
    drop(stuck);
    assert_counted(&wire.connection, 2, 1, 1, false);
}

#[tokio::test]
async fn params_of_the_host_that_break_the_schema_are_an_error() {
    struct Wide;
    impl Method for Wide {
        const NAME: &'static str = METHOD;
        type Params = Value;
        type Result = Value;
    }
    let wire = wire(Limits::default());
    assert!(wire.connection.begin::<Wide>(&json!(1)).is_err());
    assert_counted(&wire.connection, 1, 1, 0, false);
}

#[tokio::test(start_paused = true)]
async fn what_is_spoilt_from_outside_its_answer_is_one_error() {
    let wire = wire(Limits::default());
    let pending = begin(&wire);
    pending.spoilt("its stream broke".to_owned());
    pending.late(SECOND);
    assert!(pending.withdraw(), "it was sent");
    assert_counted(&wire.connection, 1, 1, 0, true);
}

#[tokio::test]
async fn calls_of_the_plugin_are_counted_apart() {
    let mut wire = wire(Limits { serving: 2, ..Limits::default() });
    let server: Arc<dyn Incoming> = Arc::new(Server);
    wire.connection.serve_by(&server);
    wire.plugin.say(&service_call(1, "now", json!([1]))).await;
    wire.plugin.hear().await;
    for id in 2..=4 {
        wire.plugin.say(&service_call(id, "never", Value::Null)).await;
    }
    // The third finds no room.
    assert_eq!(wire.plugin.hear().await["id"], 4);
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":5,"method":"service/call","params":{}}"#).await;
    wire.plugin.hear().await;
    let served = |wire: &Wire| wire.connection.metrics().received["service/call"].clone();
    let MethodMetrics { calls, errors, cancelled, p50_us, .. } = served(&wire);
    assert_eq!((calls, errors, cancelled, p50_us.is_some()), (3, 2, 0, true));
    assert!(wire.connection.metrics().calls.is_empty());
    wire.connection.close(&"it is gone".into());
    while served(&wire).calls < 5 {
        tokio::task::yield_now().await;
    }
    assert_eq!(served(&wire).cancelled, 2, "nobody is there to be answered");
}

#[tokio::test]
async fn what_it_tells_is_counted_good_and_faulty() {
    let mut wire = wire(Limits::default());
    let delta = |event: Value| json!({"jsonrpc": "2.0", "method": "provider/delta", "params": {"call": "c", "event": event}});
    let lines = [
        delta(json!({"type": "textStart", "id": "b"})),
        delta(json!({"type": "textDelta", "id": "b", "delta": "x"})),
        delta(json!({"type": "textDelta", "id": "b"})),
        json!({"jsonrpc": "2.0", "method": "tool/progress", "params": {"callId": "c", "tail": "x"}}),
        json!({"jsonrpc": "2.0", "method": "tool/progress", "params": {}}),
    ];
    for line in &lines {
        wire.plugin.say(&line.to_string()).await;
    }
    wire.plugin.say("a banner").await;
    let answer = wire.plugin.settle().await.to_string();
    let metrics = wire.connection.metrics();
    let counted = |name: &str| (metrics.received[name].calls, metrics.received[name].errors);
    assert_eq!((counted("provider/delta"), counted("tool/progress")), ((3, 1), (2, 1)));
    // With the request that the test ends with.
    assert_eq!((metrics.messages_in, metrics.messages_out), (6, 1));
    assert_eq!((metrics.bytes_out, metrics.queued_bytes), (answer.len() as u64 + 1, 0));
    let told: usize = lines.iter().map(|line| line.to_string().len() + 1).sum();
    assert!(metrics.bytes_in > told as u64, "{metrics:?}");
    // Two have no shape, three are about no call, one is a line that was printed.
    assert_eq!(metrics.strays, 6);
    let fault = "it printed a line on stdout that is no JSON-RPC message: \"a banner\"";
    assert_eq!(metrics.last_fault.unwrap().text, fault);
}

#[tokio::test]
async fn a_value_has_the_names_that_the_catalog_shows() {
    let mut wire = wire(Limits::default());
    let mut pending = begin(&wire);
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}"#).await;
    pending.response().await.unwrap_err();
    let mut value = serde_json::to_value(wire.connection.metrics()).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value["calls"][METHOD]), ["calls", "cancelled", "errors", "p50Us", "p99Us"]);
    assert_eq!(keys(&value["lastFault"]), ["at", "text"]);
    value.as_object_mut().unwrap().retain(|_, value| value.is_number());
    let names = "bytesIn bytesOut droppedObservations generation messagesIn messagesOut queuedBytes strays";
    assert_eq!(keys(&value).join(" "), names);
}
