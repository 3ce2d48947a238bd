//! A program that runs beside the test: its output so far, signals, and its end within the limit.

use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Ran, program, wait_until};

pub struct Started {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

/// What came out of a pipe so far.
struct Collected {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Collected {
    fn read(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 64 * 1024];
            while let Ok(length @ 1..) = pipe.read(&mut piece) {
                kept.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

impl Started {
    /// Starts the program with this standard input, which then ends.
    pub fn spawn(mut command: Command, input: &[u8]) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        // A program that does not read its input must not hold up the test.
        std::thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = Collected::read(child.stdout.take().unwrap());
        let stderr = Collected::read(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until stdout holds this.
    #[track_caller]
    pub fn wait_for_stdout(&self, wanted: &str) {
        wait_until(&format!("stdout holds {wanted:?}"), || self.holds(wanted, &self.stdout()));
    }

    /// Waits until stderr holds this.
    #[track_caller]
    pub fn wait_for_stderr(&self, wanted: &str) {
        wait_until(&format!("stderr holds {wanted:?}"), || self.holds(wanted, &self.stderr()));
    }

    fn holds(&self, wanted: &str, text: &str) -> Result<(), String> {
        text.contains(wanted).then_some(()).ok_or_else(|| self.story())
    }

    fn story(&self) -> String {
        let last =
            |text: String| text.chars().rev().take(4000).collect::<Vec<_>>().into_iter().rev().collect();
        let (stdout, stderr): (String, String) = (last(self.stdout()), last(self.stderr()));
        format!("stdout:\n{stdout}\nstderr:\n{stderr}")
    }

    /// Sends it a signal by name, such as `INT`.
    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Waits until it ended; ends it, and fails, past the limit.
    #[track_caller]
    pub fn finish(mut self) -> Ran {
        let id = self.id();
        let story = self.story();
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until("the program ended", || match self.child.try_wait().unwrap() {
                Some(status) => Ok(status),
                None => Err(story.clone()),
            })
        }));
        let Ok(status) = waited else {
            self.child.kill().unwrap();
            panic!("the program {id} does not end\n{}", self.story());
        };
        // Its pipes end with it: nothing that it started holds them.
        let (stdout, stderr) = (self.stdout.text, self.stderr.text);
        for reader in [self.stdout.reader, self.stderr.reader] {
            wait_until("its output ended", || reader.is_finished().then_some(()).ok_or_else(String::new));
        }
        let text = |bytes: Arc<Mutex<Vec<u8>>>| String::from_utf8_lossy(&bytes.lock().unwrap()).into_owned();
        Ran { stdout: text(stdout), stderr: text(stderr), code: status.code() }
    }
}

/// Starts a program whose stdout the test reads by itself; stderr is thrown away.
pub fn spawn_with_stdout(mut command: Command) -> (Child, ChildStdout) {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    (child, stdout)
}

/// Sends a signal by name to a process that a test started.
pub fn signal(id: u32, name: &str) {
    let status = program("kill").arg(format!("-{name}")).arg(id.to_string()).status().unwrap();
    assert!(status.success(), "kill -{name} {id}");
}
