//! `bingo -p`: one prompt, its turn on standard output, an exit code (kernel rules 6.2).
//!
//! `text` writes the answer to stdout and everything else to stderr; `json` writes one frame a line. Questions are
//! answered on a terminal, and refused without one.

mod questions;
mod text;

use std::io::{IsTerminal, Write};

use bingo_plugin_sdk::event::{ErrorCode, Event, Frame, Input, IntentOutcome, KernelError, TurnStatus};
use bingo_plugin_sdk::ids::{IntentId, InteractionId, SessionId, TurnId};
use bingo_plugin_sdk::interaction::Answer;
use bingo_plugin_sdk::item::{ItemBody, Origin};
use bingo_plugin_sdk::rpc::{Activation, ClientIdentity, InterruptScope, OpenOptions, SessionSelector};
use bingo_plugin_sdk::state::SessionState;
use bingo_plugin_sdk::view::View;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::kernel::{Attachment, GivenAnswer, Kernel, Published};
use crate::ports::Notice;
use questions::Asked;
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

/// Runs one prompt to its end; each message on `interrupts` is a person's Ctrl-C.
///
/// # Errors
/// When the session cannot be opened, or the output cannot be written.
pub async fn print(
    kernel: Kernel,
    request: PrintRequest,
    mut interrupts: mpsc::Receiver<()>,
) -> Result<Ending, PrintError> {
    let attachment = kernel.open(request.selector, OpenOptions::default()).await?;
    let mut run = Run::new(&kernel, request.format, &attachment);
    let mut stream = attachment.stream;
    run.writer.opened(&attachment.snapshot)?;
    let origin = Origin::surface("print");
    let input = Input::Text { text: request.prompt, attachments: Vec::new(), origin };
    kernel.submit(&run.session, run.intent.clone(), input).await?;
    loop {
        tokio::select! {
            biased;
            Some(()) = interrupts.recv() => {
                if !run.interrupt().await {
                    return Ok(Ending::Interrupted);
                }
            }
            answer = questions::answered(&mut run.question) => run.answer(answer).await?,
            published = stream.next() => {
                let Some(published) = published else { return run.lost() };
                if let Some(ending) = run.frame(&published).await? {
                    run.writer.finish()?;
                    return Ok(ending);
                }
            }
        }
    }
}

/// What a run knows.
struct Run<'a> {
    kernel: &'a Kernel,
    session: SessionId,
    intent: IntentId,
    turn: Option<TurnId>,
    interrupted: bool,
    /// What a person is asked now.
    question: Option<Asked>,
    writer: Writer,
}

enum Writer {
    Text(TextWriter),
    Json,
}

impl<'a> Run<'a> {
    fn new(kernel: &'a Kernel, format: OutputFormat, attachment: &Attachment) -> Self {
        let writer = match format {
            OutputFormat::Text => Writer::Text(TextWriter::default()),
            OutputFormat::Json => Writer::Json,
        };
        let (session, intent) = (attachment.session.clone(), IntentId::mint());
        Self { kernel, session, intent, turn: None, interrupted: false, question: None, writer }
    }

    /// Interrupts the turn; returns whether there is hope that it ends by itself.
    async fn interrupt(&mut self) -> bool {
        if std::mem::replace(&mut self.interrupted, true) {
            return false;
        }
        self.kernel.interrupt(&self.session, IntentId::mint(), InterruptScope::Head).await.is_ok()
    }

    /// Shows a frame; returns how the run ended, if it did.
    async fn frame(&mut self, published: &Published) -> Result<Option<Ending>, PrintError> {
        self.writer.frame(published)?;
        match &published.frame.event {
            Event::InteractionOpened { interaction } => self.question = Some(questions::ask(interaction)),
            Event::InteractionCancelled { .. } | Event::InteractionResolved { .. } => self.question = None,
            Event::IntentAck { intent, outcome } if *intent == self.intent => {
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

    fn lost(&self) -> Result<Ending, PrintError> {
        let code = ErrorCode::SessionClosed;
        let message = "the session ended before its answer did";
        Err(KernelError::new(code, message).into())
    }
}

fn ending(status: &TurnStatus) -> Ending {
    match status {
        TurnStatus::Completed => Ending::Done,
        TurnStatus::Failed { .. } => Ending::Failed,
        TurnStatus::Interrupted { .. } => Ending::Interrupted,
    }
}

impl Writer {
    /// Shows the remarks that were there when the session opened.
    fn opened(&self, snapshot: &SessionState) -> std::io::Result<()> {
        for item in &snapshot.items {
            if let ItemBody::Notice { code, text, .. } = &item.body {
                remark(&format!("note: {text}"), &format!("[notice] {code} {text}"))?;
            }
        }
        Ok(())
    }

    fn frame(&mut self, published: &Published) -> std::io::Result<()> {
        match self {
            Self::Json => {
                if let Event::IntentAck { outcome: IntentOutcome::Rejected { error }, .. } =
                    &published.frame.event
                {
                    failure(error)?;
                }
                let mut stdout = std::io::stdout().lock();
                writeln!(stdout, "{}", published.json())?;
                stdout.flush()
            }
            Self::Text(writer) => writer.frame(&published.frame),
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        match self {
            Self::Json => Ok(()),
            Self::Text(writer) => writer.finish(),
        }
    }
}

/// Writes a failure to stderr: a sentence for a person, a fixed form for a program (kernel rule 6.2.10).
fn failure(error: &KernelError) -> std::io::Result<()> {
    let message: String = error.message.replace('\n', " ").chars().take(200).collect();
    remark(&format!("error: {message}"), &format!("[error] code={} msg={message}", error.code))
}

/// Writes remarks that no session showed to stderr.
///
/// # Errors
/// When stderr cannot be written.
pub fn print_notices(notices: &[Notice]) -> std::io::Result<()> {
    notices.iter().try_for_each(|Notice { code, text, .. }| {
        remark(&format!("note: {text}"), &format!("[notice] {code} {text}"))
    })
}

/// Writes a line to stderr, worded for whoever reads it.
fn remark(person: &str, program: &str) -> std::io::Result<()> {
    let mut stderr = std::io::stderr().lock();
    let text = if stderr.is_terminal() { person } else { program };
    writeln!(stderr, "{text}")
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
