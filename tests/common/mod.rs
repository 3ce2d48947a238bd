//! What every black-box test works with: a sandbox with a home of its own, runs of the program, and a client.
//!
//! A sandbox is known by its HOME, which every process started in it inherits. When it is dropped, none of them may be
//! left alive.

mod client;
mod shape;
mod started;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use client::{Client, fold};
pub use shape::{is, shapes};
pub use started::{Started, signal, spawn_with_stdout};

/// The longest that a test waits for anything.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs a program on a terminal: what was typed, then the program and its arguments.
const TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
os.write(terminal, sys.argv[1].encode())
while True:
    try:
        heard = os.read(terminal, 65536)
    except OSError:
        break
    if not heard:
        break
    sys.stdout.buffer.write(heard)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// A home, a config and a data folder, and a working directory of a test's own.
pub struct Sandbox {
    folder: tempfile::TempDir,
}

/// What a run of the program printed, and how it ended.
#[derive(Debug)]
#[must_use]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

impl Sandbox {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "work"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    /// The directory that runs work in.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The config folder, `~/.bingo`.
    pub fn config(&self) -> PathBuf {
        self.home().join(".bingo")
    }

    /// The data folder, `~/.bingo/data`.
    pub fn data(&self) -> PathBuf {
        self.config().join("data")
    }

    /// Writes a file under the sandbox's folder, with the folders it needs.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A plugin folder whose program is `bingo-stress` with these faults; give it as `--plugin`. The processes that it
    /// starts write their ids to the file `pids` there.
    pub fn stress(&self, faults: &str) -> PathBuf {
        let env = serde_json::json!({ "BINGO_STRESS": faults, "BINGO_STRESS_PIDS": "${PLUGIN_ROOT}/pids" });
        let manifest = serde_json::json!({
            "name": "stress",
            "version": "1.0.0",
            "entry": { "command": env!("CARGO_BIN_EXE_bingo-stress"), "env": env },
        });
        let path = self.write("plugins/stress/plugin.json", manifest.to_string());
        path.parent().unwrap().to_owned()
    }

    /// A plugin folder of this name whose program is this Python script behind `prelude.py`.
    pub fn python(&self, name: &str, script: &str) -> PathBuf {
        let entry = serde_json::json!({ "command": "python3", "args": ["-B", "${PLUGIN_ROOT}/main.py"] });
        let manifest = serde_json::json!({ "name": name, "version": "1", "entry": entry });
        let root = format!("plugins/{name}");
        self.write(format!("{root}/main.py"), [include_str!("prelude.py"), script].concat());
        let path = self.write(format!("{root}/plugin.json"), manifest.to_string());
        path.parent().unwrap().to_owned()
    }

    /// A text with the sandbox's folder as `$SANDBOX` and each `(12ms)` as `(…ms)`, to be compared as a whole.
    pub fn steady(&self, text: &str) -> String {
        let text = text.replace(self.folder.path().to_str().unwrap(), "$SANDBOX");
        let mut steady = String::new();
        for piece in text.split_inclusive("ms)") {
            match piece.strip_suffix("ms)").and_then(|head| head.rsplit_once('(')) {
                Some((head, digits)) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                    steady += &format!("{head}(…ms)");
                }
                _ => steady += piece,
            }
        }
        steady
    }

    /// The journal file of a session.
    pub fn journal(&self, session: &str) -> PathBuf {
        self.data().join("sessions").join(session).join("journal.jsonl")
    }

    /// The stored frames of a session.
    pub fn stored(&self, session: &str) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.journal(session)).unwrap();
        let mut frames: Vec<serde_json::Value> =
            text.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect();
        for frame in &mut frames {
            frame.as_object_mut().unwrap().remove("sum");
        }
        frames
    }

    /// A command of the program, in this sandbox.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = program(env!("CARGO_BIN_EXE_bingo"));
        // Hosts of other tests, and those of whoever runs them, have their sockets elsewhere.
        command.args(args).env("HOME", self.home()).env_remove("XDG_RUNTIME_DIR").current_dir(self.work());
        command
    }

    /// Runs the program to its end without input.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.run_with_input(args, b"")
    }

    /// Runs the program to its end with this standard input.
    pub fn run_with_input<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Ran {
        Started::spawn(self.command(args), input).finish()
    }

    /// Runs the program to its end on a terminal of its own, where `typed` is typed; what the terminal got is in `stdout`.
    pub fn run_on_terminal<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, typed: &str) -> Ran {
        let mut command = program("python3");
        command.args(["-c", TERMINAL, typed, env!("CARGO_BIN_EXE_bingo")]).args(args);
        command.env("HOME", self.home()).current_dir(self.work());
        Started::spawn(command, b"").finish()
    }

    /// Starts the program beside the test, without input.
    pub fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Started {
        Started::spawn(self.command(args), b"")
    }

    /// Starts `bingo serve --stdio` with these further arguments, and says who the client is.
    pub fn serve<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Client {
        let mut client = self.serve_raw(args);
        client.initialize();
        client
    }

    /// Starts `bingo serve --stdio` without the handshake.
    pub fn serve_raw<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Client {
        let mut command = self.command(["serve", "--stdio"]);
        command.args(args);
        Client::spawn(command)
    }

    /// Every living process that was started in this sandbox, as its id and command line.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let mark = [b"HOME=", self.home().as_os_str().as_encoded_bytes(), b"\0"].concat();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(id) = entry.file_name().to_string_lossy().parse() else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.windows(mark.len()).any(|window| window == mark) {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test's own words matter more; but nothing is left behind.
            self.processes().iter().for_each(|(id, _)| end(*id));
            return;
        }
        wait_until("every process of the test is gone", || {
            let left = self.processes();
            left.is_empty().then_some(()).ok_or_else(|| format!("{left:?}"))
        });
    }
}

/// The resident memory of a living process in bytes.
pub fn memory(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Ends one process that a test started.
pub fn end(id: u32) {
    drop(program("kill").arg("-KILL").arg(id.to_string()).stderr(Stdio::null()).status());
}

impl Ran {
    /// Asserts the exit code, showing everything when it is another.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}

/// Waits until `check` is fulfilled; fails with what it saw last.
#[track_caller]
pub fn wait_until<T>(what: &str, mut check: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        match check() {
            Ok(value) => return value,
            Err(seen) => assert!(Instant::now() < until, "waited in vain until {what}; saw {seen}"),
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A file or folder of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[expect(clippy::disallowed_methods, reason = "the one place where tests start processes")]
pub fn program(name: impl AsRef<OsStr>) -> Command {
    Command::new(name)
}
