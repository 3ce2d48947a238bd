//! Everything both ends of bingo's wires share: types, framing and the plugin author's serve loop.
//!
//! It spawns nothing, reads no settings and has no policy. [`calls`] is plugin protocol 5, [`rpc`] is the protocol of
//! frontends; [`state::SessionState`] folds a session's frames.

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
pub mod session;
pub mod state;
pub mod view;
