//! A host around one plugin written in a few lines of Python, for the tests that run real processes.

#![allow(dead_code, reason = "each test binary uses its part")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests fail by panicking, as tests do")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bingo::bridge::PluginOffers;
use bingo::ports::{CallContext, Notice, Notices, Offers, Snapshot};
use bingo::supervisor::discovery::{self, Origin, PluginSource};
use bingo::supervisor::guard::ResourceLimits;
use bingo::supervisor::limits::Limits;
use bingo::supervisor::restart::RestartPolicy;
use bingo::supervisor::{PluginOptions, PluginSetup, Supervisor, SupervisorConfig};
use bingo_plugin_sdk::event::KernelError;
use bingo_plugin_sdk::ids::{SessionId, TurnId};
use bingo_plugin_sdk::item::{ContentPart, ToolOutput};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// What every plugin of these tests begins with.
const PRELUDE: &str = r#"
import json, os, signal, subprocess, sys, time
def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
def read():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)
def reply(message, result):
    send({"jsonrpc": "2.0", "id": message["id"], "result": result})
def text(message, text):
    reply(message, {"output": {"parts": [{"type": "text", "text": text}]}})
def hello(**declared):
    message = read()
    reply(message, {"protocol": 5, "name": "p", "version": "1.2", **declared})
    return message
def note_pid(name, pid):
    with open(name + ".tmp", "w") as file:
        file.write(str(pid))
    os.rename(name + ".tmp", name)
TOOL = [{"name": "t", "description": "d", "inputSchema": {}, "meta": {"own": 1}}]
"#;

/// How long anything here may take before the test fails.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Heard(pub(crate) Mutex<Vec<Notice>>);

impl Notices for Heard {
    fn post(&self, notice: Notice) {
        self.0.lock().unwrap().push(notice);
    }
}

impl Heard {
    /// Waits for a notice of this code and returns its text.
    pub(crate) async fn wait(&self, code: &str) -> String {
        let found = || self.0.lock().unwrap().iter().find(|notice| notice.code == code).cloned();
        wait_for(&format!("notice {code}, heard {:?}", self.0.lock().unwrap()), || found().is_some()).await;
        found().unwrap().text
    }
}

pub(crate) async fn wait_for(what: &str, mut state: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !state() {
        assert!(Instant::now() < deadline, "still waiting for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) struct Host {
    pub(crate) folder: Arc<tempfile::TempDir>,
    pub(crate) limits: Limits,
    pub(crate) config: Value,
    pub(crate) deny_unanswered: bool,
    pub(crate) restart: RestartPolicy,
    pub(crate) resources: ResourceLimits,
}

pub(crate) struct Running {
    pub(crate) supervisor: Arc<Supervisor>,
    pub(crate) offers: PluginOffers,
    pub(crate) heard: Arc<Heard>,
    pub(crate) root: PathBuf,
    pub(crate) data_dir: PathBuf,
    /// Kept until the plugin is gone.
    _folder: Arc<tempfile::TempDir>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let limits = Limits {
            stop_close: Duration::from_millis(200),
            stop_term: Duration::from_millis(300),
            ..Limits::default()
        };
        Self {
            folder: Arc::new(tempfile::tempdir().unwrap()),
            limits,
            config: Value::Null,
            deny_unanswered: false,
            // Longer than any test: what dies stays away unless a test says otherwise.
            restart: RestartPolicy { delay: Duration::from_secs(1000), ..RestartPolicy::default() },
            resources: ResourceLimits::default(),
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("p")
    }

    pub(crate) fn source(&self, script: &str) -> PluginSource {
        self.named_source("p", script, &[])
    }

    /// A plugin in Python that requires these.
    pub(crate) fn named_source(&self, name: &str, script: &str, requires: &[&str]) -> PluginSource {
        let root = self.folder.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("main.py"), format!("{PRELUDE}\n{script}")).unwrap();
        let manifest = json!({
            "name": name, "version": "1", "requires": requires,
            "entry": {"command": "python3", "args": ["${PLUGIN_ROOT}/main.py"], "env": {"ROOT": "${PLUGIN_ROOT}"}},
        });
        std::fs::write(root.join("plugin.json"), manifest.to_string()).unwrap();
        discovery::load(&root, Origin::Named).unwrap()
    }

    /// The stress plugin with these faults, under a name of its own.
    pub(crate) fn stress(&self, name: &str, faults: &str, requires: &[&str]) -> PluginSource {
        let root = self.folder.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        let manifest = json!({
            "name": name, "version": "1", "requires": requires,
            "entry": {"command": env!("CARGO_BIN_EXE_bingo-stress"), "env": {"BINGO_STRESS": faults}},
        });
        std::fs::write(root.join("plugin.json"), manifest.to_string()).unwrap();
        discovery::load(&root, Origin::Named).unwrap()
    }

    /// A plugin in a folder of its own that is this program.
    pub(crate) fn program(&self, name: &str, command: &str) -> PluginSource {
        let root = self.folder.path().join(name);
        std::fs::create_dir_all(&root).unwrap();
        let manifest = json!({"name": name, "version": "1", "entry": {"command": command}});
        std::fs::write(root.join("plugin.json"), manifest.to_string()).unwrap();
        discovery::load(&root, discovery::Origin::Named).unwrap()
    }

    /// Starts several plugins and waits until each is ready or refused.
    pub(crate) async fn start_all(&self, sources: Vec<PluginSource>) -> Running {
        let running = self.start_many(sources);
        tokio::time::timeout(LIMIT, running.offers.settled()).await.expect("each start has a deadline");
        running
    }

    /// Starts one plugin and waits until it is ready or refused.
    pub(crate) async fn start(&self, script: &str) -> Running {
        let running = self.start_unsettled(self.source(script));
        tokio::time::timeout(LIMIT, running.offers.settled()).await.expect("the start has a deadline");
        running
    }

    pub(crate) fn start_unsettled(&self, source: PluginSource) -> Running {
        self.start_many(vec![source])
    }

    /// What the settings say of a plugin: only `p` has a config.
    pub(crate) fn setup(&self, name: &str) -> PluginSetup {
        let options = PluginOptions {
            timeouts: self.limits.clone(),
            deny_unanswered: self.deny_unanswered,
            restart: self.restart.clone(),
            limits: self.resources.clone(),
            ..PluginOptions::default()
        };
        PluginSetup { config: if name == "p" { self.config.clone() } else { Value::Null }, options }
    }

    pub(crate) fn start_many(&self, sources: Vec<PluginSource>) -> Running {
        let heard = Arc::new(Heard::default());
        let setup = |source: &PluginSource| (source.name.to_string(), self.setup(source.name.as_str()));
        let setups = sources.iter().map(setup).collect();
        let data_dir = self.folder.path().join("data");
        let root = sources[0].root.clone();
        let supervisor = Arc::new(Supervisor::start(SupervisorConfig {
            binary: env!("CARGO_BIN_EXE_bingo").into(),
            home: "/home/someone".into(),
            config_dir: self.folder.path().into(),
            data_dir: data_dir.clone(),
            sources,
            setups,
            notices: heard.clone(),
        }));
        let offers = PluginOffers::new(Arc::clone(&supervisor), heard.clone());
        Running { supervisor, offers, heard, root, data_dir, _folder: Arc::clone(&self.folder) }
    }
}

impl Running {
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.offers.snapshot()
    }

    /// Calls the plugin's one tool.
    pub(crate) async fn call(&self, input: Value) -> Result<ToolOutput, KernelError> {
        let snapshot = self.snapshot();
        let tool = Arc::clone(snapshot.tools.first().expect("a ready plugin offers its tool"));
        let context = context(snapshot);
        tokio::time::timeout(LIMIT, tool.call(context, "c1".to_owned(), input, Arc::new(|_| {})))
            .await
            .expect("nothing hangs")
    }

    /// Calls a tool by its whole name.
    pub(crate) async fn tool(&self, name: &str, input: Value) -> Result<ToolOutput, KernelError> {
        let snapshot = self.snapshot();
        self.tool_in(name, input, context(snapshot)).await
    }

    /// Calls a tool by its whole name in a context of one's own.
    pub(crate) async fn tool_in(
        &self,
        name: &str,
        input: Value,
        context: CallContext,
    ) -> Result<ToolOutput, KernelError> {
        let tools = &context.snapshot.tools;
        let tool = tools.iter().find(|tool| tool.spec().name == name).expect("the tool is offered");
        let call = Arc::clone(tool).call(context.clone(), "c1".to_owned(), input, Arc::new(|_| {}));
        tokio::time::timeout(LIMIT, call).await.expect("nothing hangs")
    }

    pub(crate) async fn pid(&self, name: &str) -> i32 {
        let path = self.root.join(name);
        wait_for(&format!("{}", path.display()), || path.exists()).await;
        std::fs::read_to_string(path).unwrap().parse().unwrap()
    }
}

pub(crate) fn context(snapshot: Arc<Snapshot>) -> CallContext {
    CallContext {
        snapshot,
        session: SessionId::mint(),
        turn: Some(TurnId::mint()),
        cwd: "/tmp".into(),
        cancel: CancellationToken::new(),
        asker: None,
    }
}

pub(crate) fn only_text(output: ToolOutput) -> String {
    match &output.parts[..] {
        [ContentPart::Text { text }] => text.clone(),
        other => panic!("one text was expected, got {other:?}"),
    }
}

/// Says whether a process is there and not only waits to be reaped.
pub(crate) fn lives(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}
