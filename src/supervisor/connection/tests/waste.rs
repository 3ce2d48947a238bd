//! What counts as no use, so that a flood of it is read slowly.

use bingo_plugin_sdk::calls::ServiceCallParams;
use bingo_plugin_sdk::jsonrpc::RpcError;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant};

use super::*;

impl Wire {
    /// How many messages were no use, and how many of them were faults.
    fn useless(&self) -> (u64, u64) {
        (self.connection.shared.strays.useless(), self.connection.metrics().strays)
    }
}

#[tokio::test]
async fn useless_words_are_waste_and_no_strays() {
    let mut wire = wire(Limits::default());
    for _ in 0..3 {
        wire.plugin.say(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    }
    wire.plugin.settle().await;
    assert_eq!(wire.useless(), (4, 0), "with the refused call that the test ends with");
}

/// Serves each call until the test sends its outcome.
struct Slow(Mutex<mpsc::Receiver<oneshot::Receiver<Result<Value, RpcError>>>>);

impl Incoming for Slow {
    fn serve(&self, _: &Connection, _: ServiceCallParams) -> Served {
        let outcome = self.0.lock().unwrap().try_recv().unwrap();
        Served::Later(Box::pin(async { outcome.await.unwrap() }))
    }
}

#[tokio::test]
async fn a_call_that_fails_in_the_end_is_waste_and_so_is_one_past_the_number_that_is_served() {
    let mut wire = wire(Limits { serving: 2, ..Limits::default() });
    let (calls, served) = mpsc::channel(3);
    let slow: Arc<dyn Incoming> = Arc::new(Slow(Mutex::new(served)));
    wire.connection.serve_by(&slow);
    let mut outcomes = Vec::new();
    for id in 1..=3 {
        let (outcome, ended) = oneshot::channel();
        calls.try_send(ended).unwrap();
        outcomes.push(outcome);
        let params = json!({"key": "k", "method": "m"});
        let call = json!({"jsonrpc": "2.0", "id": id, "method": "service/call", "params": params});
        wire.plugin.say(&call.to_string()).await;
    }
    let busy = wire.plugin.hear().await;
    assert_eq!(busy["id"], 3);
    assert!(busy["error"]["message"].as_str().unwrap().contains("the host is busy"), "{busy}");
    assert_eq!(wire.useless(), (1, 0));
    for (id, outcome, useless) in [(1, Ok(json!(1)), 1), (2, Err(RpcError::new(-32603, "no".to_owned())), 2)]
    {
        outcomes.remove(0).send(outcome).unwrap();
        assert_eq!(wire.plugin.hear().await["id"], id);
        assert_eq!(wire.useless(), (useless, 0));
    }
    wire.plugin.say(r#"{"jsonrpc":"2.0","id":4,"method":"no/such","params":{}}"#).await;
    wire.plugin.hear().await;
    assert_eq!(wire.useless(), (3, 1), "a fault is counted once");
}

#[tokio::test(start_paused = true)]
async fn live_lines_that_nobody_could_have_seen_are_waste() {
    let mut wire = wire(Limits::default());
    let tails = Arc::new(Mutex::new(0));
    let sink = Arc::clone(&tails);
    let _route = wire.connection.watch_tool("c", Arc::new(move |_| *sink.lock().unwrap() += 1), None);
    for pause in [10, 500, 9, 0, 0, 10] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        wire.plugin.say(&progress("x")).await;
        wire.plugin.settle_unheard().await;
    }
    assert_eq!(wire.useless(), (3, 0));
    assert_eq!(*tails.lock().unwrap(), 6, "all of them reach the call");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_live_lines_is_read_slowly() {
    let mut wire = wire(Limits::default());
    let _route = wire.connection.watch_tool("c", Arc::new(|_| {}), None);
    let begun = Instant::now();
    let lines = 15_000;
    for _ in 0..lines {
        wire.plugin.say(&progress("x")).await;
    }
    wire.plugin.settle().await;
    // 24 MiB at once, and the rest at 25 KiB in a millisecond.
    let bytes = lines * (2560 + progress("x").len() as u64);
    let expected = (bytes - 24 * 1024 * 1024) / (25 * 1024);
    let took = begun.elapsed().as_millis() as u64;
    assert!(took > expected - 10 && took < expected + 100, "{took} ms, expected {expected}");
}
