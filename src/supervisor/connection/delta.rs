//! Plain deltas, by far the most frequent messages, read in one pass.
//!
//! A delta of three strings that the types take fits the schema: there is nothing else to check. Whatever is not exactly
//! that goes the way of every message, which also finds the fault.

use bingo_plugin_sdk::provider::{ModelEvent, ProviderDeltaParams};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// How far into a line its method is looked for.
const HEAD: usize = 64;
const METHOD: &[u8] = b"provider/delta";

#[derive(Deserialize)]
struct Envelope<'a> {
    jsonrpc: &'a str,
    method: &'a str,
    /// A message with an id, even null, is no notification.
    #[serde(default, deserialize_with = "present")]
    id: bool,
    #[serde(borrow)]
    params: Params<'a>,
}

#[derive(Deserialize)]
struct Params<'a> {
    call: String,
    #[serde(borrow)]
    event: Event<'a>,
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: String,
    delta: String,
}

/// Returns the plain delta that a line is, if it is one.
pub(super) fn plain(line: &str) -> Option<ProviderDeltaParams> {
    let head = &line.as_bytes()[..line.len().min(HEAD)];
    if !head.windows(METHOD.len()).any(|window| window == METHOD) {
        return None;
    }
    let envelope: Envelope<'_> = serde_json::from_str(line).ok()?;
    let fits = envelope.jsonrpc == "2.0" && envelope.method.as_bytes() == METHOD && !envelope.id;
    let Params { call, event: Event { kind, id, delta } } = envelope.params;
    let event = match kind {
        "textDelta" => ModelEvent::TextDelta { id, delta },
        "reasoningDelta" => ModelEvent::ReasoningDelta { id, delta },
        "toolInputDelta" => ModelEvent::ToolInputDelta { id, delta },
        _ => return None,
    };
    fits.then_some(ProviderDeltaParams { call, event })
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

#[cfg(test)]
mod tests {
    use bingo_plugin_sdk::jsonrpc::Message;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::schema::{self, Part};

    fn line(kind: &str, event: &Value) -> String {
        let mut event = event.clone();
        event["type"] = json!(kind);
        let params = json!({ "call": "call-1", "event": event });
        Message::Notification { method: "provider/delta".to_owned(), params }.to_line()
    }

    /// What every message goes through.
    fn checked(line: &str) -> Option<ProviderDeltaParams> {
        let Ok(Message::Notification { method, params }) = Message::parse_bounded(line.as_bytes()) else {
            return None;
        };
        schema::plugin().check(&method, Part::Params, &params).ok()?;
        serde_json::from_value(params).ok()
    }

    #[test]
    fn what_is_not_exactly_a_plain_delta_goes_the_long_way() {
        let event = json!({ "id": "b", "delta": "x" });
        let good = line("textDelta", &event);
        assert!(plain(&good).is_some());
        for other in [
            line("textStart", &event),
            line("nope", &event),
            line("textDelta", &json!({ "id": "b" })),
            line("textDelta", &json!({ "id": 1, "delta": "x" })),
            good.replacen("2.0", "1.0", 1),
            good.replacen('{', r#"{"id":1,"#, 1),
            good.replacen('{', r#"{"id":null,"#, 1),
            good.replacen("provider/delta", "tool/progress", 1),
            good[..good.len() - 1].to_owned(),
        ] {
            assert_eq!(plain(&other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn both_ways_read_the_same(kind in 0usize..3, id: String, delta: String, extra: Option<i64>) {
            let kind = ["textDelta", "reasoningDelta", "toolInputDelta"][kind];
            let mut event = json!({ "id": id, "delta": delta });
            if let Some(extra) = extra {
                event["more"] = json!({ "x": [extra] });
            }
            let line = line(kind, &event);
            prop_assert!(plain(&line).is_some());
            prop_assert_eq!(plain(&line), checked(&line));
        }
    }
}
