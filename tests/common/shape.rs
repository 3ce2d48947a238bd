//! Frames as short words, so that a test can say an order of frames as a list.

use serde_json::Value;

/// Returns each frame in words, without what the kernel stores for itself; neighbouring deltas of one kind are one, since
/// readers may get them merged.
pub fn shapes(frames: &[Value]) -> Vec<String> {
    let shown = frames.iter().filter(|frame| frame["event"]["plugin"] != "_kernel");
    let mut shapes: Vec<String> = shown.map(shape).collect();
    shapes.dedup_by(|a, b| a == b && a.starts_with("itemDelta"));
    shapes
}

/// Returns one frame in words: its type, what tells its kind, and the intent it answers in brackets.
fn shape(frame: &Value) -> String {
    let event = &frame["event"];
    let kind = text(&event["type"]);
    let detail = match kind {
        "itemStarted" | "itemUpdated" | "itemCompleted" => item(&event["item"]),
        "itemDelta" => text(&event["kind"]).to_owned(),
        "turnStarted" => {
            format!("{} {}", text(&event["origin"]), event["inputs"].as_array().map_or(0, Vec::len))
        }
        "turnCompleted" => turn_status(&event["status"]),
        "turnRetrying" => {
            let dropped = event["dropped"].as_array().map_or(0, Vec::len);
            format!("{}/{} {} {dropped}", event["attempt"], event["max"], event["delayMs"])
        }
        "intentAck" => format!("{} {}", text(&event["intent"]), outcome(&event["outcome"])),
        "queueChanged" => event["entries"].as_array().map_or(0, Vec::len).to_string(),
        "interactionOpened" => text(&event["interaction"]["kind"]["kind"]).to_owned(),
        "interactionResolved" => text(&event["answer"]["kind"]).to_owned(),
        "interactionCancelled" => text(&event["reason"]).to_owned(),
        "sessionClosed" => text(&event["reason"]["kind"]).to_owned(),
        "extension" | "signal" => format!("{}.{}", text(&event["plugin"]), text(&event["kind"])),
        _ => String::new(),
    };
    let cause = frame["cause"].as_str().map(|intent| format!(" [{intent}]")).unwrap_or_default();
    format!("{kind} {detail}").trim_end().to_owned() + &cause
}

/// Returns the kind of event that a frame has.
pub fn is(frame: &Value, kind: &str) -> bool {
    frame["event"]["type"] == kind
}

fn item(item: &Value) -> String {
    let detail = match text(&item["body"]["kind"]) {
        "permissionReceipt" => format!("permissionReceipt {}", text(&item["body"]["decision"])),
        "user" => return "user".to_owned(),
        kind => kind.to_owned(),
    };
    format!("{detail} {}", text(&item["status"]))
}

fn turn_status(status: &Value) -> String {
    let why = status["error"]["code"].as_str().or_else(|| status["reason"].as_str()).unwrap_or_default();
    format!("{} {why}", text(&status["kind"])).trim_end().to_owned()
}

fn outcome(outcome: &Value) -> String {
    match text(&outcome["kind"]) {
        "queued" => format!("queued {}", outcome["position"]),
        "rejected" => format!("rejected {}", text(&outcome["error"]["code"])),
        kind => kind.to_owned(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
