//! Contributors, compactors and hooks.

use bingo_plugin_sdk::calls::{
    CompactReason, Compaction, CompactorContext, ContextPiece, ContributeQuery, DecidePoint,
    HookDecideResult, HookOutcome, HookSite, ObservePoint, Phase,
};
use bingo_plugin_sdk::handshake::{HookPoint, HookSpec};

use super::*;
use crate::ports::{Compactor, Contributor, Hook};

fn query() -> ContributeQuery {
    serde_json::from_value(json!({
        "session": {"id": "s", "kind": "chat", "title": "", "createdAt": "", "updatedAt": "", "cwd": "/", "busy": false},
        "turn": "t", "round": 1, "items": [],
        "usage": {"used": 1, "window": 2, "trigger": 2},
        "capabilities": {"contextWindow": 2, "maxOutput": 1},
        "cwd": "/",
    }))
    .unwrap()
}

impl Plugin {
    fn contribute(
        &self,
        cancel: &CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<ContextPiece>, KernelError>> {
        let spec = serde_json::from_value(json!({"id": "c", "placement": {"kind": "roundStart"}})).unwrap();
        let contributor = super::super::context::PluginContributor::new(self.wire.connection.clone(), spec);
        assert_eq!(contributor.name(), "p:c");
        contributor.contribute(super::context(cancel), query())
    }

    fn compact(&self) -> BoxFuture<'static, Result<Compaction, KernelError>> {
        let compactor = compactor::PluginCompactor::new(self.wire.connection.clone(), "k".to_owned());
        let over: CompactorContext = serde_json::from_value(json!({
            "items": [], "usage": query().usage, "capabilities": query().capabilities,
            "model": "m", "failures": 0, "keepBudget": 5,
        }))
        .unwrap();
        compactor.compact(super::context(&CancellationToken::new()), over, CompactReason::Threshold)
    }

    fn hook(&self, points: &[HookPoint], tool: Option<&str>) -> hook::PluginHook {
        let spec = HookSpec { id: "h".to_owned(), points: points.to_vec(), tool: tool.map(str::to_owned) };
        hook::PluginHook::new(self.wire.connection.clone(), spec)
    }

    fn decide(&self) -> BoxFuture<'static, HookDecideResult> {
        let context = super::context(&CancellationToken::new());
        self.hook(&[], None).decide(context, site(), DecidePoint::Stop)
    }

    /// Answers the request that comes next.
    async fn answer(&mut self, result: Value) -> Value {
        let request = self.hear().await;
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
        request
    }

    async fn refuse(&mut self, message: &str) {
        let request = self.hear().await;
        let error = json!({"code": -32000, "message": message});
        self.say(json!({"jsonrpc": "2.0", "id": request["id"], "error": error})).await;
    }
}

fn site() -> HookSite {
    HookSite { session: "s".into(), turn: None, cwd: "/".to_owned(), model: None }
}

#[tokio::test(start_paused = true)]
async fn a_contributor_has_three_seconds_and_its_failures_are_named() {
    let mut plugin = Plugin::new();
    let none = CancellationToken::new();
    let call = tokio::spawn(plugin.contribute(&none));
    let request = plugin.answer(json!({"pieces": [{"kind": "system", "text": "x"}]})).await;
    assert_eq!((&request["method"], &request["params"]["id"]), (&json!("context/contribute"), &json!("c")));
    assert_eq!(call.await.unwrap().unwrap().len(), 1);

    let call = tokio::spawn(plugin.contribute(&none));
    plugin.refuse("no").await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Internal, "p: no (code -32000)"));

    let call = tokio::spawn(plugin.contribute(&none));
    plugin.answer(json!({"pieces": [{"kind": "other"}]})).await;
    let error = call.await.unwrap().unwrap_err();
    let fault =
        r#"p: context/contribute result at /pieces/0/kind: expected one of "system", "user", got "other""#;
    assert_eq!(error.message, fault);

    let begun = tokio::time::Instant::now();
    let error = plugin.contribute(&none).await.unwrap_err();
    assert_eq!((error.code, begun.elapsed().as_secs()), (ErrorCode::Timeout, 3));
    assert_eq!(error.message, "p: context/contribute got no answer within 3 s (sent, no answer)");

    none.cancel();
    assert_eq!(plugin.contribute(&none).await.unwrap_err().message, "p: the call was cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_compactor_has_a_minute() {
    let mut plugin = Plugin::new();
    let call = tokio::spawn(plugin.compact());
    let request = plugin
        .answer(json!({"compaction": {"summary": "s", "boundary": "i", "before": 9, "after": 3}}))
        .await;
    assert_eq!(request["params"]["reason"], json!({"kind": "threshold"}));
    assert_eq!(call.await.unwrap().unwrap().after, 3);

    let begun = tokio::time::Instant::now();
    let error = plugin.compact().await.unwrap_err();
    assert_eq!((error.code, begun.elapsed().as_secs()), (ErrorCode::Timeout, 60));
    plugin.hear().await;

    let call = tokio::spawn(plugin.compact());
    plugin.answer(json!({"compaction": {}})).await;
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(error.message.starts_with("p: compactor/compact result at /compaction/"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_decides_or_it_goes_on_without_and_says_so() {
    let heard = Arc::new(Heard::default());
    let mut plugin = Plugin::named("p", Limits::default(), heard.clone());
    let call = tokio::spawn(plugin.decide());
    let value =
        json!({"kind": "input", "input": {"kind": "text", "text": "x", "origin": {"surface": "test"}}});
    let outcome = json!({"kind": "block", "reason": "more"});
    let request = plugin.answer(json!({"outcome": outcome, "value": value})).await;
    assert_eq!((&request["params"]["point"], request["params"].get("payload")), (&json!("stop"), None));
    let decided = call.await.unwrap();
    assert_eq!(decided.outcome, HookOutcome::Block { reason: "more".to_owned() });
    assert!(decided.value.is_some(), "what does not belong to the point is passed through");

    let goes_on = HookDecideResult { outcome: HookOutcome::Continue, value: None };
    let begun = tokio::time::Instant::now();
    assert_eq!(plugin.decide().await, goes_on);
    assert_eq!(begun.elapsed().as_secs(), 5);
    plugin.hear().await;
    let call = tokio::spawn(plugin.decide());
    plugin.refuse("broken").await;
    assert_eq!(call.await.unwrap(), goes_on);
    let call = tokio::spawn(plugin.decide());
    plugin.answer(json!({"outcome": {"kind": "allow"}})).await;
    assert_eq!(call.await.unwrap(), goes_on);
    let told = "the hook p:h did not decide at `stop`: ";
    assert_eq!(
        heard.texts(),
        [
            format!("{told}hook/decide got no answer within 5 s (sent, no answer); it goes on without"),
            format!("{told}broken (code -32000); it goes on without"),
            format!(
                r#"{told}hook/decide result at /outcome/kind: expected one of "continue", "deny", "ask", "block", "redirect", got "allow"; it goes on without"#
            ),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_must_be_heard_refuses_by_its_silence() {
    let heard = Arc::new(Heard::default());
    let plugin = Plugin { wire: testing::strict_wire("p", heard.clone()), ..Plugin::new() };
    let reason =
        "the hook `p:h` did not decide: hook/decide got no answer within 5 s (sent, no answer)".to_owned();
    assert_eq!(plugin.decide().await.outcome, HookOutcome::Deny { reason });
    assert!(heard.texts()[0].ends_with("; it is refused, as its setting `onHookTimeout` says"));
}

#[tokio::test]
async fn what_a_hook_does_not_want_is_known_without_asking() {
    let plugin = Plugin::new();
    let all = plugin.hook(&[], None);
    assert!(all.wants(HookPoint::Submit, None) && all.wants(HookPoint::AfterTool, Some("t")));
    let some = plugin.hook(&[HookPoint::Stop, HookPoint::BeforeTool], Some("plugin__p__*"));
    assert!(some.wants(HookPoint::BeforeTool, Some("plugin__p__t")));
    assert!(!some.wants(HookPoint::BeforeTool, Some("shell")));
    assert!(!some.wants(HookPoint::AfterTool, Some("plugin__p__t")));
    assert!(!some.wants(HookPoint::Stop, None), "a filter for tools needs a tool");
}

#[tokio::test]
async fn an_observation_is_a_notification() {
    let mut plugin = Plugin::new();
    plugin.hook(&[], None).observe(&site(), &ObservePoint::Compact { phase: Phase::End });
    let message = plugin.hear().await;
    let params = json!({"id": "h", "site": {"session": "s", "cwd": "/"}, "point": "compact", "payload": {"phase": "end"}});
    assert_eq!(message, json!({"jsonrpc": "2.0", "method": "hook/observe", "params": params}));
}
