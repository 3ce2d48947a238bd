//! Everything both ends of bingo's wires share: types, framing and the plugin author's serve loop.
//!
//! It spawns nothing, reads no settings and has no policy. [`calls`] is plugin protocol 5, [`rpc`] is the protocol of
//! frontends; [`state::SessionState`] folds a session's frames; [`serve`] runs a plugin.
//!
//! # A whole plugin
//!
//! ```
//! use bingo_plugin_sdk::calls::ToolCallParams;
//! use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult, ToolSpec};
//! use bingo_plugin_sdk::item::ToolOutput;
//! use bingo_plugin_sdk::jsonrpc::RpcError;
//! use bingo_plugin_sdk::serve::{Plugin, ToolContext, serve};
//! use serde_json::json;
//! use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
//!
//! struct Shout;
//!
//! impl Plugin for Shout {
//!     async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
//!         let shout = ToolSpec {
//!             name: "shout".to_owned(),
//!             description: "Returns the text in capitals".to_owned(),
//!             input_schema: json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}),
//!             meta: Default::default(),
//!         };
//!         Ok(InitializeResult {
//!             name: "shout".to_owned(),
//!             version: "1.0.0".to_owned(),
//!             tools: vec![shout],
//!             ..Default::default()
//!         })
//!     }
//!
//!     async fn call_tool(&self, params: ToolCallParams, _: ToolContext) -> Result<ToolOutput, RpcError> {
//!         Ok(match params.input["text"].as_str() {
//!             Some(text) => ToolOutput::text(text.to_uppercase()),
//!             None => ToolOutput::error("`text` must be a string"),
//!         })
//!     }
//! }
//!
//! // A program would end here, with `serve_stdio(Shout).await`. This one plays the host, over a pair in memory.
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let (host, plugin) = tokio::io::duplex(4096);
//! let (reader, writer) = tokio::io::split(plugin);
//! let serving = tokio::spawn(serve(Shout, reader, writer));
//!
//! let (reader, mut writer) = tokio::io::split(host);
//! let mut lines = BufReader::new(reader).lines();
//! let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocol":5,"pluginRoot":"/p","env":{"home":"/h","configDir":"/c","dataDir":"/d"}}}"#;
//! writer.write_all(format!("{hello}\n").as_bytes()).await.unwrap();
//! assert!(lines.next_line().await.unwrap().unwrap().contains(r#""name":"shout""#));
//!
//! let call = r#"{"jsonrpc":"2.0","id":2,"method":"tool/call","params":{"callId":"c1","name":"shout","input":{"text":"hey"},"cwd":"/","session":"s","turn":"t"}}"#;
//! writer.write_all(format!("{call}\n").as_bytes()).await.unwrap();
//! let answer = lines.next_line().await.unwrap().unwrap();
//! assert!(answer.contains(r#"{"type":"text","text":"HEY"}"#), "{answer}");
//!
//! writer.shutdown().await.unwrap();
//! serving.await.unwrap().unwrap();
//! # }
//! ```

pub mod calls;
pub mod event;
pub mod handshake;
pub mod ids;
pub mod interaction;
pub mod item;
pub mod jsonrpc;
pub mod manifest;
pub mod ndjson;
pub mod provider;
pub mod rpc;
#[cfg(feature = "schema")]
pub mod schema;
pub mod serve;
pub mod session;
pub mod state;
pub mod view;
