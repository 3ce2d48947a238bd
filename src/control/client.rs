//! The command line's side of the control sockets. It blocks: a command has nothing else to do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bingo_plugin_sdk::jsonrpc::{Message, RequestId, RpcError, code};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{CONTROL, ControlPlace, Done, HostReport, Named, Order, READ};

/// How long a host may take to say what it is.
const READ_DEADLINE: Duration = Duration::from_secs(5);
/// How long an order may take: a plugin may have to be prepared first. The host has a deadline for each step of it.
const ORDER_DEADLINE: Duration = Duration::from_secs(15 * 60);
/// The longest answer, in bytes.
const ANSWER: u64 = 64 * 1024 * 1024;

/// Why a host did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("cannot look for running hosts")]
    Place(#[source] io::Error),
    #[error("the host {pid} does not answer on its control socket")]
    Silent {
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error(
        "the host {pid} is a bingo {version} that speaks control {theirs}, this one speaks {CONTROL}; use that one"
    )]
    Version { pid: u32, version: String, theirs: u64 },
    #[error("the host {pid} has no such plugin: {reason}")]
    Unknown { pid: u32, reason: String },
    /// The plugin is what failed.
    #[error("{reason}")]
    Plugin { reason: String },
    #[error("the host {pid} refused: {reason}")]
    Refused { pid: u32, reason: String },
}

/// A host that runs and said what it is.
#[derive(Debug)]
pub struct RunningHost {
    pub report: HostReport,
    connection: Connection,
}

/// Returns the hosts that run at a place, and why some that are there could not be asked. None when there is no place.
///
/// # Errors
/// When the place cannot be looked at.
pub fn running(place: &ControlPlace) -> Result<(Vec<RunningHost>, Vec<ControlError>), ControlError> {
    let folder = match place.open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
        folder => folder.map_err(ControlError::Place)?,
    };
    let (mut hosts, mut problems) = (Vec::new(), Vec::new());
    for pid in folder.pids().map_err(ControlError::Place)? {
        match folder.connect(pid) {
            Ok(stream) => match RunningHost::ask(pid, stream) {
                Ok(host) => hosts.push(host),
                Err(problem) => problems.push(problem),
            },
            // It was killed, or ended since the folder was listed.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {}
            Err(source) => problems.push(ControlError::Silent { pid, source }),
        }
    }
    Ok((hosts, problems))
}

impl RunningHost {
    fn ask(pid: u32, stream: UnixStream) -> Result<Self, ControlError> {
        let mut connection = Connection { pid, asked: 0, stream: BufReader::new(stream) };
        let report: Value = connection.call(READ, &json!({}), READ_DEADLINE)?;
        let theirs = report["control"].as_u64().unwrap_or(0);
        if theirs != u64::from(CONTROL) {
            let version = report["version"].as_str().unwrap_or("of an unknown version").to_owned();
            return Err(ControlError::Version { pid, version, theirs });
        }
        let report = serde_json::from_value(report)
            .map_err(|error| ControlError::Silent { pid, source: error.into() })?;
        Ok(Self { report, connection })
    }

    /// Gives an order about a plugin, and waits for what it comes to.
    ///
    /// # Errors
    /// When the host has no such plugin, the plugin fails, or the host does not answer.
    pub fn order(&mut self, order: Order, plugin: &str) -> Result<Done, ControlError> {
        self.connection.call(order.method(), &Named { name: plugin.to_owned() }, ORDER_DEADLINE)
    }
}

#[derive(Debug)]
struct Connection {
    pid: u32,
    asked: i64,
    stream: BufReader<UnixStream>,
}

impl Connection {
    fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        params: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, ControlError> {
        let (pid, result) = (self.pid, self.exchange(method, params, deadline));
        let silent = |source| ControlError::Silent { pid, source };
        let value = result.map_err(silent)?.map_err(|error| match error.code {
            code::INVALID_PARAMS => ControlError::Unknown { pid, reason: error.message },
            code::INTERNAL_ERROR => ControlError::Plugin { reason: error.message },
            _ => ControlError::Refused { pid, reason: error.message },
        })?;
        serde_json::from_value(value).map_err(|error| silent(error.into()))
    }

    fn exchange(
        &mut self,
        method: &str,
        params: &impl Serialize,
        deadline: Duration,
    ) -> io::Result<Result<Value, RpcError>> {
        self.asked += 1;
        let (id, params) = (RequestId::Number(self.asked), serde_json::to_value(params)?);
        let line = Message::Request { id: id.clone(), method: method.to_owned(), params }.to_line() + "\n";
        self.stream.get_ref().set_read_timeout(Some(deadline))?;
        self.stream.get_ref().set_write_timeout(Some(READ_DEADLINE))?;
        self.stream.get_mut().write_all(line.as_bytes())?;
        let mut answer = Vec::new();
        (&mut self.stream).take(ANSWER).read_until(b'\n', &mut answer)?;
        if answer.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it answered"));
        }
        match Message::parse(&answer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            Message::Response { id: theirs, outcome } if theirs == id => Ok(outcome),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it answered something else")),
        }
    }
}
