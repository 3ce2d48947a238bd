//! `bingo.host`, the host's own service for plugins: `ask` and `notice`.
//!
//! Who calls is decided by the connection, never by the params. A question belongs to a tool call that the caller runs
//! now, waits without a deadline of its own, and ends with that call.

use bingo_plugin_sdk::calls::{AskParams, AskResult, HOST_SERVICE, NoticeParams, NoticeResult};
use bingo_plugin_sdk::interaction::InteractionKind;
use bingo_plugin_sdk::jsonrpc::{RpcError, code};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::schema::{self, Part};
use crate::supervisor::limits::clip;
use crate::supervisor::{Connection, MAX_ASKS, Served};

/// Serves a call of the plugin at the other end of `caller`.
pub(super) fn serve(caller: &Connection, method: &str, params: Value) -> Served {
    match method {
        "ask" => ask(caller, params).unwrap_or_else(|error| Served::Now(Err(error))),
        "notice" => Served::Now(notice(caller, params)),
        _ => {
            let text = format!("`{HOST_SERVICE}` has no method `{method}`; it has ask, notice");
            Served::Now(Err(refused(text)))
        }
    }
}

fn notice(caller: &Connection, params: Value) -> Result<Value, RpcError> {
    let NoticeParams { level, message } = typed("notice", params)?;
    caller.tell(level, &message);
    Ok(to_value(&NoticeResult {}))
}

fn ask(caller: &Connection, params: Value) -> Result<Served, RpcError> {
    // Before the shape: whoever asks for another kind hears that, whatever else is wrong.
    if let Some(kind) = params["question"]["kind"].as_str()
        && kind != "question"
    {
        return Err(refused(format!("a plugin may ask a `question` only, not `{kind}`")));
    }
    let AskParams { call, question } = typed("ask", params)?;
    debug_assert!(
        matches!(question, InteractionKind::Question { .. }),
        "the schema has one kind of this name"
    );
    let Some(tool) = caller.running_tool(&call) else {
        let text =
            format!("`call` must be the callId of a tool call that this plugin runs now; `{call}` is none");
        return Err(refused(text));
    };
    let Some(asker) = tool.asker() else {
        return Err(refused("there is nobody who could be asked in this call".to_owned()));
    };
    let Some(open) = tool.open_ask() else {
        return Err(refused(format!("a call may ask {MAX_ASKS} questions; `{call}` has asked them")));
    };
    let ended = tool.ended();
    Ok(Served::Later(Box::pin(async move {
        let answer = tokio::select! {
            biased;
            answer = asker.ask(clipped(question)) => answer,
            () = ended.cancelled() => {
                return Err(refused(format!("the call `{call}` ended before its question was answered")));
            }
        };
        drop(open);
        let answer = answer.map_err(|error| refused(error.message))?;
        Ok(to_value(&AskResult { answer }))
    })))
}

/// Returns a question with texts as long as a person may have to read. The ids of options stay: they are what is answered.
fn clipped(mut kind: InteractionKind) -> InteractionKind {
    if let InteractionKind::Question { question, header, options, .. } = &mut kind {
        let details = options
            .iter_mut()
            .flat_map(|option| std::iter::once(&mut option.label).chain(option.description.as_mut()));
        for text in std::iter::once(question).chain(header.as_mut()).chain(details) {
            *text = clip(std::mem::take(text));
        }
    }
    kind
}

fn typed<P: DeserializeOwned>(method: &str, params: Value) -> Result<P, RpcError> {
    schema::plugin().check_host(method, Part::Params, &params).map_err(|fault| refused(fault.to_string()))?;
    serde_json::from_value(params).map_err(|error| refused(error.to_string()))
}

fn refused(text: String) -> RpcError {
    RpcError::new(code::INTERNAL_ERROR, text)
}

fn to_value(result: &impl Serialize) -> Value {
    serde_json::to_value(result).unwrap_or_default()
}
