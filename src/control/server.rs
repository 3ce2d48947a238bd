//! The host's side of its control socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::jsonrpc::{Message, MessageError, RequestId, RpcError, code};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::place::Folder;
use super::{CONTROL, ControlPlace, Done, HostReport, Named, Order, PluginLine, READ};
use crate::ports::{Offers, PluginReport};
use crate::supervisor::discovery::PluginSource;
use crate::supervisor::{OrderError, Supervisor};
use crate::telemetry;

/// Clients at a time; further ones wait.
const CLIENTS: usize = 64;
/// The longest question, in bytes; a longer one is not JSON where it is cut.
const QUESTION: u64 = 64 * 1024;
/// How long a client may say nothing.
const SILENCE: Duration = Duration::from_secs(30);
/// How long a client may take to read an answer.
const WRITE: Duration = Duration::from_secs(5);
/// How long to wait when no client can be taken: the system has no descriptor left.
const RETRY: Duration = Duration::from_millis(200);

/// What a control socket controls.
pub struct ControlledHost {
    pub supervisor: Arc<Supervisor>,
    pub offers: Arc<dyn Offers>,
    pub cwd: PathBuf,
    pub config_dir: PathBuf,
    pub data_dir: PathBuf,
}

/// An open control socket. Dropping it closes and removes it.
pub struct ControlServer {
    folder: Folder,
    _task: AbortOnDropHandle<()>,
}

impl ControlServer {
    /// Opens the socket of this process. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the folder is not fit, or the socket cannot be made.
    pub fn open(place: &ControlPlace, host: ControlledHost) -> io::Result<Self> {
        let folder = place.make()?;
        let alone = folder.lock()?;
        folder.sweep()?;
        let address = folder.address(std::process::id());
        let listener = UnixListener::bind(&address)?;
        drop(alone);
        std::fs::set_permissions(&address, std::fs::Permissions::from_mode(0o600))?;
        let served = Arc::new(Served { host, started: telemetry::now() });
        let task = AbortOnDropHandle::new(tokio::spawn(listen(listener, served)));
        Ok(Self { folder, _task: task })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The folder may be gone already.
        let _ = std::fs::remove_file(self.folder.address(std::process::id()));
    }
}

struct Served {
    host: ControlledHost,
    started: String,
}

async fn listen(listener: UnixListener, served: Arc<Served>) {
    let room = Arc::new(Semaphore::new(CLIENTS));
    // They end with this task, which is when the socket is closed.
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) if is_own(&client) => {
                let served = Arc::clone(&served);
                clients.spawn(async move {
                    if let Err(error) = serve(client, &served).await {
                        tracing::debug!(%error, "a control client is gone");
                    }
                    drop(place);
                });
            }
            Ok(_) => tracing::warn!("a control client of another user was turned away"),
            Err(error) => {
                tracing::warn!(%error, "a control client cannot be taken");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// Says that a client runs as the same user, or as root. The folder lets nobody else in, but it may have been opened.
fn is_own(client: &UnixStream) -> bool {
    let allowed = [nix::unistd::geteuid().as_raw(), 0];
    client.peer_cred().is_ok_and(|peer| allowed.contains(&peer.uid()))
}

async fn serve(client: UnixStream, served: &Served) -> io::Result<()> {
    let (reader, mut writer) = client.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = Vec::new();
        let mut most = (&mut reader).take(QUESTION);
        // A client that says nothing for so long is done.
        let Ok(read) = tokio::time::timeout(SILENCE, most.read_until(b'\n', &mut line)).await else {
            return Ok(());
        };
        if read? == 0 {
            return Ok(());
        }
        let answered = tokio::select! {
            biased;
            answered = served.answer(&line) => answered,
            // What it ordered goes on; nobody hears of it.
            () = left(&mut reader) => return Ok(()),
        };
        if let Some((id, outcome)) = answered {
            let text = Message::Response { id, outcome }.to_line() + "\n";
            tokio::time::timeout(WRITE, writer.write_all(text.as_bytes())).await??;
        }
    }
}

/// Waits until a client is gone. One that asks again before it has its answer is heard then.
async fn left(reader: &mut BufReader<OwnedReadHalf>) {
    loop {
        match reader.fill_buf().await {
            Ok([]) | Err(_) => return,
            Ok(_) => std::future::pending().await,
        }
    }
}

impl Served {
    async fn answer(&self, line: &[u8]) -> Option<(RequestId, Result<Value, RpcError>)> {
        match Message::parse_bounded(line) {
            Ok(Message::Request { id, method, params }) => Some((id, self.run(&method, params).await)),
            Ok(Message::Notification { .. } | Message::Response { .. }) => None,
            Err(error) => {
                let refusal = RpcError::new(code::INVALID_REQUEST, error.to_string());
                let id = match error {
                    MessageError::NotMessage { id, .. } => id,
                    MessageError::NotJson { .. } => None,
                };
                Some((id.unwrap_or(RequestId::Number(0)), Err(refusal)))
            }
        }
    }

    async fn run(&self, method: &str, params: Value) -> Result<Value, RpcError> {
        if method == READ {
            return value(&self.report());
        }
        let order = Order::ALL.into_iter().find(|order| order.method() == method).ok_or_else(|| {
            let text = format!("there is no method `{method}`; this host speaks control {CONTROL}");
            RpcError::new(code::METHOD_NOT_FOUND, text)
        })?;
        let named: Named = serde_json::from_value(params)
            .map_err(|error| RpcError::new(code::INVALID_PARAMS, error.to_string()))?;
        value(&self.obey(order, &named.name).await.map_err(refused)?)
    }

    async fn obey(&self, order: Order, name: &str) -> Result<Done, OrderError> {
        let supervisor = &self.host.supervisor;
        let generation = match order {
            Order::Restart => Some(supervisor.restart(name).await?),
            Order::Enable => Some(supervisor.enable(name).await?),
            Order::Disable => {
                supervisor.disable(name).await?;
                None
            }
        };
        Ok(Done { generation: generation.map(|generation| generation.0) })
    }

    fn report(&self) -> HostReport {
        let (sources, snapshot) = (self.host.supervisor.sources(), self.host.offers.snapshot());
        let source = |name: &str| sources.iter().find(|source| source.name.as_str() == name);
        let plugins = snapshot.plugins.iter().filter_map(|report| Some(line(report, source(&report.name)?)));
        HostReport {
            control: CONTROL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            started: self.started.clone(),
            cwd: self.host.cwd.clone(),
            config_dir: self.host.config_dir.clone(),
            data_dir: self.host.data_dir.clone(),
            plugins: plugins.collect(),
        }
    }
}

fn line(report: &PluginReport, source: &PluginSource) -> PluginLine {
    PluginLine {
        name: report.name.clone(),
        version: report.version.clone(),
        state: report.state.to_owned(),
        enabled: report.enabled,
        origin: source.origin.name().to_owned(),
        root: source.root.clone(),
        restarts: report.restarts,
        reason: report.reason.clone(),
        figures: report.process.as_ref().map(|process| (process.figures)()).unwrap_or_default(),
    }
}

fn value(result: &impl Serialize) -> Result<Value, RpcError> {
    serde_json::to_value(result).map_err(|error| RpcError::new(code::INTERNAL_ERROR, error.to_string()))
}

fn refused(error: OrderError) -> RpcError {
    let code = match &error {
        OrderError::Unknown { .. } => code::INVALID_PARAMS,
        OrderError::Failed { .. } => code::INTERNAL_ERROR,
    };
    RpcError::new(code, error.to_string())
}
