//! `bingo session`: what is stored of sessions, for people and scripts. One file a subcommand, or a few that are alike.
//!
//! Those that only read take no lock, and work beside a host that runs.

mod change;
mod export;
mod gc;
mod list;
mod markdown;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use bingo_plugin_sdk::ids::SessionId;
use clap::{Args, Subcommand, ValueEnum};

use super::{CliError, PlaceArgs};
use crate::app::{self, Places};
use crate::journal::{JsonlJournal, Keep, MIB};
use crate::ports::JournalError;

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// Show the stored sessions, the newest first
    List {
        #[command(flatten)]
        places: PlaceArgs,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of one session
    Show {
        #[command(flatten)]
        which: IdAndPlaces,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Look journals through and name every fault
    Verify {
        /// The session; without it, all
        id: Option<String>,
        #[command(flatten)]
        places: PlaceArgs,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Write a session's transcript
    Export {
        #[command(flatten)]
        which: IdAndPlaces,
        #[arg(long, value_enum, default_value_t)]
        format: ExportFormat,
        /// A file that does not exist yet [default: standard output]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Give a session that nobody has open another title
    Rename {
        id: String,
        title: String,
        #[command(flatten)]
        places: PlaceArgs,
    },
    /// Delete a session that nobody has open, and its child sessions
    Delete {
        #[command(flatten)]
        which: IdAndPlaces,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Clear away what is left of sessions that were never begun, and the oldest sessions where you say how many
    Gc(GcArgs),
}

/// One session
#[derive(Debug, Args)]
pub(super) struct IdAndPlaces {
    id: String,
    #[command(flatten)]
    places: PlaceArgs,
}

/// What shall go; a session goes with all its child sessions, and not while one of them is open
#[derive(Debug, Args)]
pub(super) struct GcArgs {
    /// Delete sessions that were last written longer ago
    #[arg(long, value_name = "DAYS")]
    older_than: Option<u32>,
    /// Keep that many sessions, child sessions not counted, and delete older ones
    #[arg(long, value_name = "COUNT")]
    keep: Option<u32>,
    /// Keep the newest sessions that take no more together, and delete older ones
    #[arg(long, value_name = "MIB")]
    size: Option<u32>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    places: PlaceArgs,
}

/// How a transcript is written
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
pub(super) enum ExportFormat {
    /// Markdown
    #[default]
    Md,
    /// One object: summary and items
    Json,
}

impl std::fmt::Display for ExportFormat {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Md => "md",
            Self::Json => "json",
        })
    }
}

pub(super) fn run(command: SessionCommand) -> Result<ExitCode, CliError> {
    match command {
        SessionCommand::List { places, json } => list::list(&places.find()?, json),
        SessionCommand::Show { which, json } => list::show(&which.places.find()?, &which.id(), json),
        SessionCommand::Verify { id, places, json } => {
            verify::verify(&places.find()?, id.map(SessionId::from), json)
        }
        SessionCommand::Export { which, format, output } => {
            export::export(&which.places.find()?, &which.id(), format, output.as_deref())
        }
        SessionCommand::Rename { id, title, places } => {
            change::rename(&places.find()?, &SessionId::from(id), &title)
        }
        SessionCommand::Delete { which, yes } => change::delete(&which.places.find()?, &which.id(), yes),
        SessionCommand::Gc(args) => gc::gc(&args.places.find()?, args.keep(), args.dry_run),
    }
}

impl GcArgs {
    fn keep(&self) -> Keep {
        let bytes = self.size.map(|size| u64::from(size) * MIB);
        Keep { days: self.older_than, sessions: self.keep, bytes }
    }
}

impl IdAndPlaces {
    fn id(&self) -> SessionId {
        SessionId::from(self.id.as_str())
    }
}

/// Does something with the journal of these places.
fn with_journal<T, F>(places: &Places, work: impl FnOnce(JsonlJournal) -> F) -> Result<T, CliError>
where
    F: Future<Output = Result<T, JournalError>>,
{
    app::raise_open_files();
    let journal = JsonlJournal::new(places.data_dir.clone());
    Ok(app::block_on(app::Workers::Few, work(journal))??)
}

/// Returns what follows the name of a session that goes with so many below it.
fn and_children(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " and its child session".to_owned(),
        count => format!(" and its {count} child sessions"),
    }
}
