//! The control socket: how the command line talks to hosts that run.
//!
//! Each long-lived host listens on `<pid>.sock` in a folder that only its person can enter (`place`). A client asks, the
//! host answers: JSON-RPC 2.0, one message a line, no notifications. It is a protocol of this program with itself and no
//! part of the two wires; [`CONTROL`] says its version.

mod client;
mod place;
mod server;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use client::{ControlError, RunningHost, running};
pub use place::ControlPlace;
pub use server::{ControlServer, ControlledHost};

/// The version of this protocol. A client refuses a host of another one, in words.
pub const CONTROL: u32 = 1;

/// Returns what the host is and what its plugins do: no params, a [`HostReport`].
const READ: &str = "host/read";

/// What a host can be told about one plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Start another process, from its files as they are now, and let it follow when it is well.
    Restart,
    Enable,
    Disable,
}

impl Order {
    const ALL: [Self; 3] = [Self::Restart, Self::Enable, Self::Disable];

    /// Returns the method that gives it: params [`Named`], result [`Done`].
    fn method(self) -> &'static str {
        match self {
            Self::Restart => "plugin/restart",
            Self::Enable => "plugin/enable",
            Self::Disable => "plugin/disable",
        }
    }
}

/// The plugin that an order is about.
#[derive(Debug, Serialize, Deserialize)]
struct Named {
    name: String,
}

/// What an order came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The process that serves now; absent where none shall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// What a host says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostReport {
    pub control: u32,
    pub version: String,
    pub pid: u32,
    /// RFC 3339.
    pub started: String,
    pub cwd: PathBuf,
    pub config_dir: PathBuf,
    pub data_dir: PathBuf,
    pub plugins: Vec<PluginLine>,
}

/// What a host says of one of its plugins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginLine {
    pub name: String,
    pub version: String,
    pub state: String,
    pub enabled: bool,
    /// Who chose it: `bundled`, `named`, `user` or `project`.
    pub origin: String,
    pub root: PathBuf,
    pub restarts: u32,
    /// Why it offers nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The figures of its process, as in the plugin catalog; empty while none is ready.
    #[serde(flatten)]
    pub figures: Map<String, Value>,
}
