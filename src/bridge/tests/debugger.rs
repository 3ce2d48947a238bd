//! Every kind of call to a plugin whose process a debugger holds.

use bingo_plugin_sdk::calls::methods::CompleteCommand;

use super::*;
use crate::supervisor::testing::Debuggee;

/// Longer than any deadline.
const LONG: Duration = Duration::from_secs(5000);

#[tokio::test(start_paused = true)]
async fn no_deadline_passes_while_a_debugger_holds_the_plugin() {
    let heard = Arc::new(Heard::default());
    let mut plugin = Plugin::named("p", Limits::default(), heard.clone());
    let (connection, cancel) = (plugin.wire.connection.clone(), CancellationToken::new());
    let debuggee = Debuggee::of(&connection);
    debuggee.attach();
    let tool = tokio::spawn(plugin.call_tool());
    let mut stream = plugin.stream(&cancel);
    let stream = tokio::spawn(async move { end(&mut stream).await });
    let spec = serde_json::from_value(json!({"methods": {"m": {}}})).unwrap();
    let service = service::PluginService::new(connection.clone(), "p.key", &spec, &Arc::default());
    let service =
        tokio::spawn(async move { service.ask(None, "m".to_owned(), Value::Null).await.map_err(drop) });
    let limit = connection.limits().command_complete;
    let complete = tokio::spawn(async move {
        let params = json!({"name": "c", "partial": "", "cwd": "/"});
        let params = serde_json::from_value(params).unwrap();
        connection.call::<CompleteCommand>(&params, limit).await
    });
    let mut ids = BTreeMap::new();
    for _ in 0..4 {
        let request = plugin.hear().await;
        ids.insert(request["method"].as_str().unwrap().to_owned(), request["id"].clone());
    }
    tokio::time::sleep(LONG).await;
    debuggee.detach();
    for (method, result) in [
        ("tool/call", json!({"output": {"parts": []}})),
        ("provider/stream", json!({})),
        ("service/call", json!({"result": 1})),
        ("command/complete", json!({"completions": []})),
    ] {
        plugin.say(json!({"jsonrpc": "2.0", "id": ids[method], "result": result})).await;
    }
    tool.await.unwrap().unwrap();
    assert_eq!(stream.await.unwrap(), None);
    assert_eq!(service.await.unwrap(), Ok(json!(1)));
    assert!(complete.await.unwrap().unwrap().completions.is_empty());
    let told = heard.texts();
    assert!(told[0].contains("stand still") && told[1].contains("run again") && told.len() == 2, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_hangs_without_its_debugger_is_late_all_the_same() {
    let plugin = Plugin::new();
    let debuggee = Debuggee::of(&plugin.wire.connection);
    debuggee.attach();
    let call = tokio::spawn(plugin.call_tool());
    tokio::time::sleep(LONG).await;
    debuggee.detach();
    let begun = tokio::time::Instant::now();
    assert_eq!(call.await.unwrap().unwrap_err().code, ErrorCode::Timeout);
    assert!((599..=601).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
}
