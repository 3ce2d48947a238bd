//! `bingo -p`: runs one prompt.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use bingo_plugin_sdk::ids::PluginName;
use bingo_plugin_sdk::item::Level;
use bingo_plugin_sdk::rpc::{SessionSelector, SessionSpec};
use clap::Args;

use super::report::INTERRUPTED;
use super::{CliError, Format, HostArgs};
use crate::app;
use crate::ports::Notice;
use crate::surface::{self, Ending, OutputFormat, PrintRequest};

/// The most bytes of a prompt on standard input.
const MAX_PROMPT: u64 = 16 * 1024 * 1024;

/// Run one prompt and print its answer
#[derive(Debug, Args)]
pub(super) struct PrintArgs {
    /// What to say; without it, standard input is read
    prompt: Option<String>,
    /// Run this prompt, print its answer, and end
    #[arg(short, long, required = true)]
    print: bool,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    output_format: Format,
}

impl std::fmt::Display for Format {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

pub(super) fn run(args: &PrintArgs, host: &HostArgs) -> Result<ExitCode, CliError> {
    let prompt = prompt(args)?;
    let format = match args.output_format {
        Format::Text => OutputFormat::Text,
        Format::Json => OutputFormat::Json,
    };
    let options = host.options();
    app::block_on(app::Workers::Few, async move {
        let app = app::App::start(options)?;
        let spec = SessionSpec { cwd: app.cwd().to_string_lossy().into_owned(), ..SessionSpec::default() };
        let request = PrintRequest { prompt, format, selector: SessionSelector::Create { spec } };
        let mut interrupts = app::interrupts();
        let ending = tokio::select! {
            biased;
            _ = interrupts.recv() => Ok(Ending::Interrupted),
            // Whoever asks once wants the plugins; and a run that ended first would give the installation up.
            () = app.prepared(show_progress) => surface::print(app.kernel(), request, interrupts).await,
        };
        surface::print_notices(&app.shutdown().await).map_err(CliError::Output)?;
        Ok(match ending? {
            Ending::Done => ExitCode::SUCCESS,
            Ending::Failed => ExitCode::FAILURE,
            Ending::Interrupted => ExitCode::from(INTERRUPTED),
        })
    })?
}

/// Shows what a plugin that is being prepared says, where a person watches.
fn show_progress(plugin: &PluginName, progress: &str) {
    if std::io::stderr().is_terminal() {
        let text = format!("{plugin}: {progress}");
        // A terminal that is gone ends the run elsewhere.
        let _ = surface::print_notices(&[Notice { level: Level::Info, code: "PLUGIN_PREPARING", text }]);
    }
}

fn prompt(args: &PrintArgs) -> Result<String, CliError> {
    if let Some(prompt) = &args.prompt {
        return not_empty(prompt.clone());
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MAX_PROMPT + 1).read_to_end(&mut bytes);
    read.map_err(|source| CliError::Prompt { reason: format!("cannot read standard input: {source}") })?;
    if bytes.len() as u64 > MAX_PROMPT {
        return Err(CliError::Prompt { reason: format!("it is larger than {} MiB", MAX_PROMPT >> 20) });
    }
    let text = String::from_utf8(bytes);
    not_empty(text.map_err(|_| CliError::Prompt { reason: "it is not UTF-8".to_owned() })?)
}

fn not_empty(prompt: String) -> Result<String, CliError> {
    if prompt.trim().is_empty() {
        return Err(CliError::Prompt { reason: "it is empty".to_owned() });
    }
    Ok(prompt)
}
