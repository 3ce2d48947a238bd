//! The JSON-RPC 2.0 envelope: one message a line, the one table of error codes, and the typed method tables.
//!
//! Reads leniently where the peer can still be answered (a readable id is kept), writes strictly.

mod bounded;
mod cut;

use std::fmt;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ndjson::Outline;
use bounded::Refusal;

/// Error codes, each with one meaning (JSON-RPC 2.0, section 5.1; -32000 is ours).
pub mod code {
    /// The line is not JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// The line is JSON, but no JSON-RPC 2.0 message; or a second `initialize`.
    pub const INVALID_REQUEST: i64 = -32600;
    /// No such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The params do not fit the method.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The method failed inside.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// A kernel error; `data.code` has its stable name.
    pub const KERNEL_ERROR: i64 = -32000;
}

/// A request's id. `7` and `"7"` are different ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RequestId {
    Number(i64),
    Text(String),
}

impl RequestId {
    /// Returns the id that a JSON value is, if it is one; a text of more than [`MAX_NAME`] bytes is none.
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => number.as_i64().map(Self::Number),
            Value::String(text) if text.len() <= MAX_NAME => Some(Self::Text(text.clone())),
            _ => None,
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Text(text) => write!(formatter, "{text:?}"),
        }
    }
}

/// An error response's `error` member.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl RpcError {
    /// Returns an error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    fn from_value(value: Value) -> Result<Self, String> {
        let Value::Object(mut members) = value else {
            return Err(format!("it must be an object, got {}", shown(&value)));
        };
        let mut member = |key| members.remove(key).ok_or_else(|| format!("missing field `{key}`"));
        let (code, message) = (member("code")?, member("message")?);
        let code = code.as_i64().ok_or_else(|| format!("`code` must be an integer, got {}", shown(&code)))?;
        let Value::String(message) = message else {
            return Err(format!("`message` must be a string, got {}", shown(&message)));
        };
        let data = members.remove("data").filter(|data| !data.is_null());
        Ok(Self { code, message, data })
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} (code {})", self.message, self.code)
    }
}

impl std::error::Error for RpcError {}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Request { id: RequestId, method: String, params: Value },
    Notification { method: String, params: Value },
    Response { id: RequestId, outcome: Result<Value, RpcError> },
}

/// The deepest nesting a host takes from a peer. What it takes it puts a few levels deeper into frames and requests, and
/// whoever reads those may stop at 128.
pub const MAX_DEPTH: usize = 64;

/// The longest id or name of a method, in bytes: both are repeated in answers and complaints.
pub const MAX_NAME: usize = 1024;

/// Returns whether a value nests deeper than this; `{}` and `[]` have depth 1.
pub fn is_deeper_than(value: &Value, depth: usize) -> bool {
    let inside = |value| depth == 0 || is_deeper_than(value, depth - 1);
    match value {
        Value::Array(elements) => depth == 0 || elements.iter().any(inside),
        Value::Object(members) => depth == 0 || members.values().any(inside),
        _ => false,
    }
}

/// Why a line is no message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MessageError {
    /// The line is not JSON; `cut` says that it only lacks its end.
    #[error("the line is not JSON: {reason}")]
    NotJson { reason: String, cut: bool },
    /// The line is JSON, but no message; `id` is what could be read of its id.
    #[error("the line is not a JSON-RPC 2.0 message: {reason}")]
    NotMessage { id: Option<RequestId>, reason: String },
}

impl Message {
    /// Returns the message that a line holds.
    ///
    /// # Errors
    /// When the line is not JSON, or is JSON but no JSON-RPC 2.0 message.
    pub fn parse(line: &[u8]) -> Result<Self, MessageError> {
        // Some runtimes begin their output with a byte-order mark, which means nothing here.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let value: Value = serde_json::from_slice(line).map_err(|error| MessageError::NotJson {
            reason: error.to_string(),
            cut: error.is_eof() && line.trim_ascii_start().starts_with(b"{"),
        })?;
        Self::from_value(value)
    }

    /// Returns the message that a line holds, unless it nests too deep to be passed on or takes too much memory.
    ///
    /// # Errors
    /// As `parse`, when it nests deeper than [`MAX_DEPTH`], and when line and value take more than 28 MiB together.
    pub fn parse_bounded(line: &[u8]) -> Result<Self, MessageError> {
        Self::from_bounded(line, bounded::value(line))
    }

    /// Does what `parse_bounded` does, and uses the line's memory: long strings of a long line move into the message.
    /// Returns the line too, where `"…"` stands for those.
    pub fn parse_owned(line: String) -> (String, Result<Self, MessageError>) {
        let (rest, value) = bounded::owned_value(line, bounded::MAX_WEIGHT);
        let message = Self::from_bounded(rest.as_bytes(), value);
        (rest, message)
    }

    /// Does what `parse` does, and uses the line's memory as `parse_owned` does. For a peer that may send anything.
    pub(crate) fn parse_trusted(line: String) -> (String, Result<Self, MessageError>) {
        let (rest, value) = bounded::owned_value(line, usize::MAX);
        let message =
            value.map_err(|refusal| Self::refused(rest.as_bytes(), refusal)).and_then(Self::from_value);
        (rest, message)
    }

    fn from_bounded(line: &[u8], value: Result<Value, Refusal>) -> Result<Self, MessageError> {
        let value = value.map_err(|refusal| Self::refused(line, refusal))?;
        let message = Self::from_value(value)?;
        message.check_depth()?;
        Ok(message)
    }

    fn refused(line: &[u8], refusal: Refusal) -> MessageError {
        match refusal {
            Refusal::NotJson { reason, cut } => MessageError::NotJson { reason, cut },
            Refusal::TooHeavy(reason) => {
                let stands_for_another = |id: &RequestId| *id == RequestId::Text(cut::PLACEHOLDER.to_owned());
                let id = Outline::of(line).id.filter(|id| !stands_for_another(id));
                MessageError::NotMessage { id, reason }
            }
        }
    }

    fn check_depth(&self) -> Result<(), MessageError> {
        let (id, value) = match self {
            Self::Request { id, params, .. } => (Some(id), params),
            Self::Notification { params, .. } => (None, params),
            Self::Response { id, outcome: Ok(result) } => (Some(id), result),
            Self::Response { outcome: Err(_), .. } => return Ok(()),
        };
        if is_deeper_than(value, MAX_DEPTH) {
            let reason = format!("it nests deeper than {MAX_DEPTH} levels");
            return Err(MessageError::NotMessage { id: id.cloned(), reason });
        }
        Ok(())
    }

    /// Returns the message that a JSON value is.
    ///
    /// # Errors
    /// When it is no JSON-RPC 2.0 message.
    pub fn from_value(value: Value) -> Result<Self, MessageError> {
        let Value::Object(mut members) = value else {
            let what = if value.is_array() { "batches are not understood" } else { "it is no object" };
            return Err(MessageError::NotMessage { id: None, reason: what.to_owned() });
        };
        let id = members.get("id").and_then(RequestId::from_value);
        Self::from_members(&mut members).map_err(|reason| MessageError::NotMessage { id, reason })
    }

    fn from_members(members: &mut Map<String, Value>) -> Result<Self, String> {
        match members.get("jsonrpc") {
            Some(Value::String(version)) if version == "2.0" => {}
            Some(other) => return Err(format!("`jsonrpc` must be \"2.0\", got {}", shown(other))),
            None => return Err("`jsonrpc` is missing".to_owned()),
        }
        let id = match members.remove("id") {
            None => None,
            Some(Value::Null) if members.contains_key("method") => {
                return Err("`id` must not be null".to_owned());
            }
            Some(Value::Null) => return Err("a response with `id` null answers nothing".to_owned()),
            Some(value) => Some(
                RequestId::from_value(&value)
                    .ok_or_else(|| format!("`id` must be an integer or a string, got {}", shown(&value)))?,
            ),
        };
        match members.remove("method") {
            Some(Value::String(method)) if method.len() <= MAX_NAME => {
                let params = members.remove("params").unwrap_or(Value::Null);
                Ok(match id {
                    Some(id) => Self::Request { id, method, params },
                    None => Self::Notification { method, params },
                })
            }
            Some(other) => Err(format!("`method` must be a string, got {}", shown(&other))),
            None => Self::response(id, members),
        }
    }

    fn response(id: Option<RequestId>, members: &mut Map<String, Value>) -> Result<Self, String> {
        let id = id.ok_or("neither `method` nor `id` is there")?;
        match (members.remove("result"), members.remove("error")) {
            (Some(result), None) => Ok(Self::Response { id, outcome: Ok(result) }),
            (None | Some(Value::Null), Some(error)) => {
                let error = RpcError::from_value(error)
                    .map_err(|reason| format!("`error` does not fit: {reason}"))?;
                Ok(Self::Response { id, outcome: Err(error) })
            }
            (Some(_), Some(_)) => Err("`result` and `error` are both there".to_owned()),
            (None, None) => Err("neither `method`, `result` nor `error` is there".to_owned()),
        }
    }

    /// Returns the message as one line without its newline.
    pub fn to_line(&self) -> String {
        match self {
            Self::Request { id, method, params } => to_line(&Out::<_, Value>::request(id, method, params)),
            Self::Notification { method, params } => notification_line(method, params),
            Self::Response { id, outcome: Ok(result) } => result_line(id, result),
            Self::Response { id, outcome: Err(error) } => error_line(id, error),
        }
    }
}

/// A message as it goes out, borrowed: what it carries may be large. The members stand in the order of their names.
#[derive(Serialize)]
struct Out<'a, P, R> {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RequestId>,
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a P>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a R>,
}

impl<'a, P, R> Out<'a, P, R> {
    fn empty() -> Self {
        Self { error: None, id: None, jsonrpc: "2.0", method: None, params: None, result: None }
    }

    fn request(id: &'a RequestId, method: &'a str, params: &'a P) -> Self {
        Self { id: Some(id), method: Some(method), params: Some(params), ..Self::empty() }
    }
}

impl<'a, R> Out<'a, Value, R> {
    fn answer(id: &'a RequestId) -> Self {
        Self { id: Some(id), ..Self::empty() }
    }
}

fn to_line(message: &impl Serialize) -> String {
    serde_json::to_string(message).expect("the wire's types have string keys and no serializer that fails")
}

/// Returns the line of a notification whose params are not a JSON value yet.
pub(crate) fn notification_line(method: &str, params: &impl Serialize) -> String {
    to_line(&Out::<_, Value> { method: Some(method), params: Some(params), ..Out::empty() })
}

/// Returns the line of a response whose result is not a JSON value yet.
pub(crate) fn result_line(id: &RequestId, result: &impl Serialize) -> String {
    to_line(&Out { result: Some(result), ..Out::answer(id) })
}

/// Returns the line of a response that is an error.
pub(crate) fn error_line(id: &RequestId, error: &RpcError) -> String {
    to_line(&Out::<_, Value> { error: Some(error), ..Out::answer(id) })
}

/// Returns a value for a complaint, which shall not be as long as the message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.len() > MAX_NAME => format!("a string of {} bytes", text.len()),
        Value::Array(elements) => format!("an array of {} elements", elements.len()),
        Value::Object(members) => format!("an object of {} members", members.len()),
        other => other.to_string(),
    }
}

/// A request method with its types, so that a call cannot mix them up.
pub trait Method {
    /// The name on the wire.
    const NAME: &'static str;
    /// What is sent.
    type Params: Serialize + DeserializeOwned + JsonSchema;
    /// What comes back.
    type Result: Serialize + DeserializeOwned + JsonSchema;
}

/// A notification with the type of its params.
pub trait Notice {
    /// The name on the wire.
    const NAME: &'static str;
    /// What is sent.
    type Params: Serialize + DeserializeOwned + JsonSchema;
}

/// Declares the methods of a protocol: a marker type each, and the list of their names.
macro_rules! method_table {
    ($(#[$meta:meta])* pub const $table:ident; $($marker:ident: $name:literal, $params:ident => $result:ident;)*) => {
        $(#[$meta])*
        pub const $table: &[&str] = &[$($name),*];

        /// Marker types of the methods, each tying a name to its params and result.
        pub mod methods {
            $(
                #[doc = concat!("The method `", $name, "`.")]
                #[derive(Debug, Clone, Copy)]
                pub struct $marker;
                impl $crate::jsonrpc::Method for $marker {
                    const NAME: &'static str = $name;
                    type Params = super::$params;
                    type Result = super::$result;
                }
            )*

            /// Calls `visit` once for each method of the table.
            #[cfg(feature = "schema")]
            pub(crate) fn visit(visitor: &mut impl $crate::schema::Visitor) {
                $(visitor.method::<$marker>();)*
            }
        }
    };
}
pub(crate) use method_table;

/// Declares the notifications of a protocol, as `method_table` does its methods.
macro_rules! notification_table {
    ($(#[$meta:meta])* pub const $table:ident; $($marker:ident: $name:literal, $params:ident;)*) => {
        $(#[$meta])*
        pub const $table: &[&str] = &[$($name),*];

        /// Marker types of the notifications, each tying a name to its params.
        pub mod notifications {
            $(
                #[doc = concat!("The notification `", $name, "`.")]
                #[derive(Debug, Clone, Copy)]
                pub struct $marker;
                impl $crate::jsonrpc::Notice for $marker {
                    const NAME: &'static str = $name;
                    type Params = super::$params;
                }
            )*

            /// Calls `visit` once for each notification of the table.
            #[cfg(feature = "schema")]
            pub(crate) fn visit(visitor: &mut impl $crate::schema::Visitor) {
                $(visitor.notification::<$marker>();)*
            }
        }
    };
}
pub(crate) use notification_table;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(line: &str) -> Result<Message, MessageError> {
        Message::parse(line.as_bytes())
    }

    #[test]
    fn every_kind_of_message_survives_the_line() {
        for line in [
            r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":[1]}}"#,
            r#"{"jsonrpc":"2.0","id":"1","method":"a","params":null}"#,
            r#"{"jsonrpc":"2.0","method":"a","params":{}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":{"k":1}}}"#,
        ] {
            let message = parse(line).unwrap();
            assert_eq!(parse(&message.to_line()).unwrap(), message, "{line}");
            assert_eq!(
                parse(&format!("\u{feff}{line}")).unwrap(),
                message,
                "a byte-order mark means nothing"
            );
            assert!(!message.to_line().contains('\n'));
        }
    }

    #[test]
    fn depth_is_counted_by_brackets() {
        let nested = |depth: usize| -> Value {
            serde_json::from_str(&format!("{}{}", "[".repeat(depth), "]".repeat(depth))).unwrap()
        };
        assert!(!is_deeper_than(&json!(1), 0));
        assert!(!is_deeper_than(&nested(5), 5) && is_deeper_than(&nested(6), 5));
        let line = |depth| json!({"jsonrpc": "2.0", "id": 7, "result": nested(depth)}).to_string();
        assert!(Message::parse_bounded(line(MAX_DEPTH).as_bytes()).is_ok());
        let Err(MessageError::NotMessage { id, .. }) = Message::parse_bounded(line(MAX_DEPTH + 1).as_bytes())
        else {
            panic!("too deep a message was taken")
        };
        assert_eq!(id, Some(RequestId::Number(7)));
    }

    #[test]
    fn a_bad_message_keeps_its_readable_id() {
        let cases = [
            (r#"{"id":7,"method":"a"}"#, Some(RequestId::Number(7))),
            (r#"{"jsonrpc":"1.0","id":"x","method":"a"}"#, Some(RequestId::Text("x".to_owned()))),
            (r#"{"jsonrpc":"2.0","id":7,"method":3}"#, Some(RequestId::Number(7))),
            (r#"{"jsonrpc":"2.0","id":7}"#, Some(RequestId::Number(7))),
            (
                r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1,"message":""}}"#,
                Some(RequestId::Number(7)),
            ),
            (r#"{"jsonrpc":"2.0","id":7,"error":{"message":"no code"}}"#, Some(RequestId::Number(7))),
            (r#"{"jsonrpc":"2.0","id":1.5,"method":"a"}"#, None),
            (r#"{"jsonrpc":"2.0","id":null,"result":1}"#, None),
            (r#"[1]"#, None),
            (r#""x""#, None),
        ];
        for (line, expected) in cases {
            let Err(MessageError::NotMessage { id, .. }) = parse(line) else { panic!("{line} is a message") };
            assert_eq!(id, expected, "{line}");
        }
        for (line, expected) in
            [("{", true), (r#" {"id": 1"#, true), ("", false), ("[", false), ("hello", false)]
        {
            assert!(
                matches!(parse(line), Err(MessageError::NotJson { cut, .. }) if cut == expected),
                "{line}"
            );
        }
    }
}
