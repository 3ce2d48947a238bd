//! Where a run's words go: a thread of its own writes them, so that a reader that stalls holds up nothing else.

use std::io::{IsTerminal, Write};

use tokio::sync::{mpsc, oneshot};

use crate::printable;

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
    /// Returns an entry on stderr that reads the same everywhere.
    pub(super) fn line(text: &str) -> Self {
        Self::remark(text, text)
    }

    /// Returns a remark of the host.
    pub(super) fn notice(code: &str, text: &str) -> Self {
        Self::remark(&format!("note: {text}"), &format!("[notice] {code} {text}"))
    }

    /// Returns an entry on stderr, for a person and for a program. What plugins and models said may be in it, so it is made
    /// harmless here, the one place where remarks are made.
    pub(super) fn remark(person: &str, program: &str) -> Self {
        Self::Remark { person: printable::entry(person), program: printable::entry(program) }
    }

    pub(super) fn write(&self) -> std::io::Result<()> {
        match self {
            Self::Answer(text) => {
                let mut stdout = std::io::stdout().lock();
                // A file or a program gets the answer to the byte.
                let text = if stdout.is_terminal() { printable::text(text) } else { text.into() };
                stdout.write_all(text.as_bytes())?;
                stdout.flush()
            }
            Self::Remark { person, program } => {
                let mut stderr = std::io::stderr().lock();
                let text = if stderr.is_terminal() { person } else { program };
                writeln!(stderr, "{text}")
            }
        }
    }
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
    fn a_remark_is_one_entry_and_moves_no_cursor() {
        let Chunk::Remark { person, program } = Chunk::notice("N", "a\u{1b}[2J\n[notice] N b\nerror: c")
        else {
            panic!("a notice is a remark");
        };
        assert_eq!(person, "note: a\\u{1b}[2J\n  [notice] N b\n  error: c");
        assert_eq!(program, "[notice] N a\\u{1b}[2J\n  [notice] N b\n  error: c");
    }
}
