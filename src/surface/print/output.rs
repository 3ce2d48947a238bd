//! Where a run's words go: a thread of its own writes them, so that a reader that stalls holds up nothing else.

use std::io::{IsTerminal, Write};

use tokio::sync::{mpsc, oneshot};

/// Chunks that wait for the reader; past it the run waits with them, and can be interrupted.
const MAX_WAITING: usize = 256;

/// Something to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Chunk {
    /// To stdout, as it stands.
    Answer(String),
    /// A line to stderr: a sentence for a person on a terminal, a fixed form for a program.
    Remark { person: String, program: String },
}

impl Chunk {
    /// Returns a line to stderr that reads the same everywhere.
    pub(super) fn line(text: impl Into<String>) -> Self {
        let person = text.into();
        Self::Remark { program: person.clone(), person }
    }

    /// Returns a remark of the host.
    pub(super) fn notice(code: &str, text: &str) -> Self {
        Self::Remark { person: format!("note: {text}"), program: format!("[notice] {code} {text}") }
    }

    pub(super) fn write(&self) -> std::io::Result<()> {
        match self {
            Self::Answer(text) => {
                let mut stdout = std::io::stdout().lock();
                let text = if stdout.is_terminal() { &harmless(text) } else { text };
                stdout.write_all(text.as_bytes())?;
                stdout.flush()
            }
            Self::Remark { person, program } => {
                let mut stderr = std::io::stderr().lock();
                let text = if stderr.is_terminal() { &harmless(person) } else { program };
                writeln!(stderr, "{text}")
            }
        }
    }
}

/// Returns a text that a terminal only shows: plugins must not move its cursor or name its window.
fn harmless(text: &str) -> String {
    let shown = |letter: char| {
        let controls = letter.is_control() && !matches!(letter, '\n' | '\t');
        if controls { char::REPLACEMENT_CHARACTER } else { letter }
    };
    text.chars().map(shown).collect()
}

/// The way to the writing thread.
#[derive(Debug)]
pub(super) struct Output {
    chunks: mpsc::Sender<Chunk>,
    written: oneshot::Receiver<std::io::Result<()>>,
}

impl Output {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start() -> std::io::Result<Self> {
        let (chunks, mut waiting) = mpsc::channel::<Chunk>(MAX_WAITING);
        let (ended, written) = oneshot::channel();
        std::thread::Builder::new().name("output".to_owned()).spawn(move || {
            let mut outcome = Ok(());
            while let (Ok(()), Some(chunk)) = (&outcome, waiting.blocking_recv()) {
                outcome = chunk.write();
            }
            // A run that was interrupted does not wait for this.
            let _ = ended.send(outcome);
        })?;
        Ok(Self { chunks, written })
    }

    /// Hands chunks over, in order.
    ///
    /// # Errors
    /// When something before could not be written.
    pub(super) async fn write(&mut self, chunks: Vec<Chunk>) -> std::io::Result<()> {
        for chunk in chunks {
            if self.chunks.send(chunk).await.is_err() {
                return (&mut self.written).await.unwrap_or_else(|_| Err(gone()));
            }
        }
        Ok(())
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// When it could not be.
    pub(super) async fn finish(self) -> std::io::Result<()> {
        drop(self.chunks);
        self.written.await.unwrap_or_else(|_| Err(gone()))
    }
}

fn gone() -> std::io::Error {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(harmless("a\tb\n\u{1b}]0;x\u{7}\u{9b}é"), "a\tb\n\u{fffd}]0;x\u{fffd}\u{fffd}é");
    }
}
