//! `bingo -p`: one prompt, its turn on standard output, an exit code (kernel rules 6.2).
//!
//! `text` writes the answer to stdout and everything else to stderr; `json` writes one frame a line. Questions are
//! answered on a terminal, and refused without one.

mod output;
mod questions;
mod text;

use std::sync::OnceLock;

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, Input, IntentOutcome, KernelError, TurnStatus};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, Seq, SessionId, TurnId};
use bingo_plugin_sdk::interaction::Answer;
use bingo_plugin_sdk::item::{ItemBody, Origin};
use bingo_plugin_sdk::rpc::{Activation, ClientIdentity, InterruptScope, OpenOptions, SessionSelector};
use bingo_plugin_sdk::state::SessionState;
use bingo_plugin_sdk::view::View;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::kernel::{Attachment, Frames, GivenAnswer, Kernel, Published};
use crate::ports::Notice;
use output::{Chunk, Output};
use questions::Questions;
use text::TextWriter;

/// What is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OutputFormat {
    #[default]
    Text,
    Json,
}

/// One run.
#[derive(Debug)]
pub struct PrintRequest {
    pub prompt: String,
    pub format: OutputFormat,
    pub selector: SessionSelector,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    Done,
    /// The turn or the submission failed; it was told on stderr.
    Failed,
    Interrupted,
}

/// Why a run could not go on.
#[derive(Debug, thiserror::Error)]
pub enum PrintError {
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Runs one prompt to its end; each message on `interrupts` is a person's Ctrl-C: the first one interrupts the turn, the
/// next one ends the run, and so does the first while there is no session yet.
///
/// # Errors
/// When the session cannot be opened, or the output cannot be written.
pub async fn print(
    kernel: Kernel,
    request: PrintRequest,
    interrupts: mpsc::Receiver<()>,
) -> Result<Ending, PrintError> {
    let session = OnceLock::new();
    tokio::select! {
        biased;
        () = interrupted(&kernel, &session, interrupts) => Ok(Ending::Interrupted),
        ending = run(&kernel, &session, request) => ending,
    }
}

/// Passes the first interrupt on to the turn; ends at the next.
async fn interrupted(kernel: &Kernel, session: &OnceLock<SessionId>, mut interrupts: mpsc::Receiver<()>) {
    let mut passed_on = false;
    loop {
        if interrupts.recv().await.is_none() {
            return std::future::pending().await;
        }
        let Some(session) = session.get().filter(|_| !passed_on) else { return };
        passed_on = true;
        if kernel.interrupt(session, IntentId::mint(), InterruptScope::Head).await.is_err() {
            return;
        }
    }
}

async fn run(
    kernel: &Kernel,
    session: &OnceLock<SessionId>,
    request: PrintRequest,
) -> Result<Ending, PrintError> {
    let Attachment { session: id, snapshot, stream } =
        kernel.open(request.selector, OpenOptions::default()).await?;
    // Set once: this is the only run.
    let _ = session.set(id.clone());
    let mut run = Run::new(kernel, request.format, id)?;
    run.output.write(opened(&snapshot)).await?;
    let origin = Origin::surface("print");
    let input = Input::Text { text: request.prompt, attachments: Vec::new(), origin };
    kernel.submit(&run.session, run.intent.clone(), input).await?;
    let ending = run.follow(snapshot.seq, stream).await?;
    run.finish().await?;
    Ok(ending)
}

/// What a run knows.
struct Run<'a> {
    kernel: &'a Kernel,
    session: SessionId,
    intent: IntentId,
    turn: Option<TurnId>,
    questions: Questions,
    writer: Writer,
    output: Output,
}

enum Writer {
    Text(TextWriter),
    Json,
}

impl<'a> Run<'a> {
    fn new(kernel: &'a Kernel, format: OutputFormat, session: SessionId) -> std::io::Result<Self> {
        let writer = match format {
            OutputFormat::Text => Writer::Text(TextWriter::default()),
            OutputFormat::Json => Writer::Json,
        };
        let (intent, output) = (IntentId::mint(), Output::start()?);
        Ok(Self { kernel, session, intent, turn: None, questions: Questions::default(), writer, output })
    }

    /// Follows the session until the run ended. Frames that were missed are read again (kernel rule 6.2.7).
    async fn follow(&mut self, mut seq: Seq, mut stream: Frames) -> Result<Ending, PrintError> {
        loop {
            tokio::select! {
                biased;
                answer = self.questions.answered() => self.answer(answer).await?,
                published = stream.next() => {
                    let published = published.ok_or_else(lost)?;
                    if !matches!(published.frame.event, Event::Lagged { .. }) {
                        seq = published.frame.seq;
                        if let Some(ending) = self.frame(&published).await? {
                            return Ok(ending);
                        }
                        continue;
                    }
                    let resumption = self.kernel.resume_events(&self.session, seq).await?;
                    stream = resumption.stream;
                    for missed in resumption.frames {
                        seq = missed.frame.seq;
                        if let Some(ending) = self.frame(&missed).await? {
                            return Ok(ending);
                        }
                    }
                }
            }
        }
    }

    /// Shows a frame; returns how the run ended, if it did.
    async fn frame(&mut self, published: &Published) -> Result<Option<Ending>, PrintError> {
        let chunks = self.writer.frame(published);
        self.output.write(chunks).await?;
        match &published.frame.event {
            Event::InteractionOpened { interaction } => self.questions.open(interaction),
            Event::InteractionCancelled { id, .. } | Event::InteractionResolved { id, .. } => {
                self.questions.close(id);
            }
            Event::IntentAck { intent, outcome, .. } if *intent == self.intent => {
                return Ok(self.acknowledged(outcome));
            }
            Event::TurnCompleted { turn, status, .. } if self.turn.as_ref() == Some(turn) => {
                return Ok(Some(ending(status)));
            }
            Event::SessionClosed { .. } => return Ok(Some(Ending::Failed)),
            _ => {}
        }
        Ok(None)
    }

    async fn finish(mut self) -> std::io::Result<()> {
        if let Writer::Text(writer) = &mut self.writer {
            self.output.write(writer.end_line()).await?;
        }
        self.output.finish().await
    }

    async fn answer(&mut self, (interaction, answer): (InteractionId, Answer)) -> Result<(), PrintError> {
        let client = ClientIdentity { name: "bingo".to_owned(), surface: "print".to_owned() };
        let (intent, activation) = (IntentId::mint(), Activation::Programmatic);
        let given = GivenAnswer { intent, interaction, answer, activation, client };
        Ok(self.kernel.answer(&self.session, given).await?)
    }

    fn acknowledged(&mut self, outcome: &IntentOutcome) -> Option<Ending> {
        match outcome {
            IntentOutcome::TurnStarted { turn } => {
                self.turn = Some(turn.clone());
                None
            }
            IntentOutcome::Queued { .. } => None,
            IntentOutcome::Applied { .. } => Some(Ending::Done),
            IntentOutcome::Rejected { .. } => Some(Ending::Failed),
        }
    }
}

fn lost() -> PrintError {
    KernelError::new(ErrorCode::SessionClosed, "the session ended before its answer did").into()
}

fn ending(status: &TurnStatus) -> Ending {
    match status {
        TurnStatus::Completed => Ending::Done,
        TurnStatus::Failed { .. } => Ending::Failed,
        TurnStatus::Interrupted { .. } => Ending::Interrupted,
    }
}

impl Writer {
    fn frame(&mut self, published: &Published) -> Vec<Chunk> {
        match self {
            Self::Text(writer) => writer.frame(&published.frame),
            Self::Json => {
                let line = Chunk::Answer(format!("{}\n", published.json()));
                match &published.frame.event {
                    Event::IntentAck { outcome: IntentOutcome::Rejected { error }, .. } => {
                        vec![failure(error), line]
                    }
                    _ => vec![line],
                }
            }
        }
    }
}

/// Returns the remarks that were there when the session opened.
fn opened(snapshot: &SessionState) -> Vec<Chunk> {
    let remarks = snapshot.items.iter().filter_map(|item| match &item.body {
        ItemBody::Notice { code, text, .. } => Some(Chunk::notice(code, text)),
        _ => None,
    });
    remarks.collect()
}

/// Returns a failure: a sentence for a person, a fixed form for a program (kernel rule 6.2.10).
fn failure(error: &KernelError) -> Chunk {
    let message: String = error.message.replace('\n', " ").chars().take(200).collect();
    let program = format!("[error] code={} msg={message}", error.code);
    Chunk::remark(&format!("error: {message}"), &program)
}

/// Writes remarks that no session showed to stderr.
///
/// # Errors
/// When stderr cannot be written.
pub fn print_notices(notices: &[Notice]) -> std::io::Result<()> {
    notices.iter().try_for_each(|Notice { code, text, .. }| Chunk::notice(code, text).write())
}

/// Returns the view of a command's acknowledgement.
fn acknowledged_view(result: &Value) -> Option<View> {
    serde_json::from_value(result.get("view")?.clone()).ok()
}

/// Returns whether a frame belongs to the failure path of a turn.
fn failed_status(frame: &Frame) -> Option<&KernelError> {
    match &frame.event {
        Event::TurnCompleted { status: TurnStatus::Failed { error }, .. } => Some(error),
        Event::IntentAck { outcome: IntentOutcome::Rejected { error }, .. } => Some(error),
        _ => None,
    }
}
