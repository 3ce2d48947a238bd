//! How long an interrupt takes while a provider streams as fast as it can: until `provider/cancel` is there, and until the
//! client has the acknowledgement. The provider is this program; both sides read the same clock.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult, ModelInfo, ProviderSpec};
use bingo_plugin_sdk::jsonrpc::RpcError;
use bingo_plugin_sdk::provider::{ModelEvent, ProviderError, ProviderStreamParams};
use bingo_plugin_sdk::serve::{Plugin, StreamContext, serve_stdio};
use serde_json::json;

use crate::Figures;
use crate::server::Server;

/// The argument under which this program is the provider; the next one is the file of its times.
pub(crate) const PROVIDER: &str = "--provider";

const INTERRUPTS: usize = 200;
/// Frames that a client has read before it interrupts.
const FLOWING: usize = 20;
/// Milliseconds within which the cancel shall be written.
const CANCEL: f64 = 5.0;

pub(crate) fn run() -> Figures {
    let folder = tempfile::tempdir().unwrap();
    let times = folder.path().join("times");
    let plugin = plugin(folder.path(), &times);
    let args = ["--plugin", plugin.to_str().unwrap(), "--model", "flood/m"];
    let mut server = Server::start(folder.path(), &args);
    let session = server.create(folder.path());
    let (mut begun, mut acknowledged) = (Vec::new(), Vec::new());
    for number in 0..INTERRUPTS {
        server.submit(&session, &format!("req_s{number}"), "go");
        for _ in 0..FLOWING {
            server.until("\"itemDelta\"");
        }
        let intent = format!("req_i{number}");
        begun.push(now());
        server.interrupt(&session, &intent);
        server.until(&format!("\"intent\":\"{intent}\""));
        acknowledged.push(now() - begun[number]);
        server.until("\"turnCompleted\"");
    }
    server.end();
    let text = std::fs::read_to_string(times).unwrap();
    let cancelled: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(cancelled.len(), INTERRUPTS, "each was told");
    let cancels = cancelled.iter().zip(&begun).map(|(cancelled, begun)| cancelled - begun).collect();
    let (cancel, sync) = (p99(cancels), syncs(folder.path()));
    let acknowledged = p99(acknowledged);
    vec![
        ("interrupt: provider/cancel, p99 ms".to_owned(), cancel),
        ("interrupt: acknowledged, p99 ms".to_owned(), acknowledged),
        ("fdatasync, p99 ms".to_owned(), sync),
        ("interrupt: acknowledged / its bound".to_owned(), acknowledged / (CANCEL + 2.0 * sync)),
    ]
}

/// Milliseconds since some moment, the same for all processes.
fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as f64 / 1e6
}

fn p99(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) * 99 / 100]
}

/// How long `fdatasync` takes here behind a write of one line.
fn syncs(folder: &Path) -> f64 {
    let mut file = File::create(folder.join("syncs")).unwrap();
    let times = (0..INTERRUPTS * 2).map(|_| {
        file.write_all(&[b'x'; 400]).unwrap();
        let begun = Instant::now();
        file.sync_data().unwrap();
        begun.elapsed().as_secs_f64() * 1e3
    });
    p99(times.collect())
}

fn plugin(folder: &Path, times: &Path) -> PathBuf {
    let root = folder.join("flood");
    std::fs::create_dir_all(&root).unwrap();
    let manifest = json!({
        "name": "flood", "version": "1",
        "entry": { "command": std::env::current_exe().unwrap(), "args": [PROVIDER, times] },
    });
    std::fs::write(root.join("plugin.json"), manifest.to_string()).unwrap();
    root
}

/// Is the provider, until stdin is closed.
pub(crate) fn provide(times: &Path) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(serve_stdio(Flood { times: times.to_owned() })).unwrap();
    ExitCode::SUCCESS
}

/// Says words without end, and notes when it was told to stop.
struct Flood {
    times: PathBuf,
}

impl Plugin for Flood {
    async fn initialize(&self, _: InitializeParams) -> Result<InitializeResult, RpcError> {
        let models = vec![ModelInfo { id: "m".to_owned(), display: None }];
        let id = "flood".to_owned();
        let provider = ProviderSpec { id: id.clone(), family: None, models, endpoint: Default::default() };
        Ok(InitializeResult {
            name: id,
            version: "1".to_owned(),
            providers: vec![provider],
            ..Default::default()
        })
    }

    async fn stream_provider(
        &self,
        _: ProviderStreamParams,
        context: StreamContext,
    ) -> Result<(), ProviderError> {
        let watching = context.clone();
        let times = self.times.clone();
        let watcher = tokio::spawn(async move {
            watching.cancelled().await;
            let told = now();
            let mut file = File::options().append(true).create(true).open(times).unwrap();
            writeln!(file, "{told}").unwrap();
        });
        context.send(ModelEvent::StreamStart { warnings: Vec::new() }).await?;
        let id = "b".to_owned();
        context.send(ModelEvent::TextStart { id: id.clone() }).await?;
        let delta = "words ".repeat(8);
        while context.send(ModelEvent::TextDelta { id: id.clone(), delta: delta.clone() }).await.is_ok() {}
        watcher.await.unwrap();
        Ok(())
    }
}
