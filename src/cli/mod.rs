//! The command line: what it accepts, and one file a subcommand.

mod doctor;
mod plugin;
mod print;
mod report;
mod schema;
mod serve;
mod session;
mod tell;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::app::{AppError, AppOptions, Places};
use crate::kernel::{PermissionMode, Rule};
use crate::telemetry;
pub use report::CliError;

/// A plugin host: plugins in any language behind one session kernel
#[derive(Debug, Parser)]
#[command(name = "bingo", version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Subcommands>,
    #[command(flatten)]
    print: print::PrintArgs,
    #[command(flatten)]
    host: HostArgs,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// Serve frontends over JSON-RPC
    Serve(serve::ServeArgs),
    /// See and steer plugins: what there is, what runs, what a project may bring along
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// See, check, copy and clear away what is stored of sessions
    #[command(subcommand)]
    Session(session::SessionCommand),
    /// Show what is configured, from which file, and what is wrong with it
    Doctor(doctor::DoctorArgs),
    /// Print the JSON Schema of a wire
    Schema {
        /// Which wire: of plugins, or of frontends
        #[arg(value_enum)]
        which: schema::Which,
    },
}

/// Where everything is
#[derive(Debug, Clone, Args)]
struct PlaceArgs {
    /// Where settings and plugins are [default: ~/.bingo]
    #[arg(long, value_name = "DIR")]
    config_dir: Option<PathBuf>,
    /// Where sessions and logs are [default: ~/.bingo/data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The directory to work in [default: the current one]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
}

impl PlaceArgs {
    fn options(&self) -> AppOptions {
        AppOptions {
            config_dir: self.config_dir.clone(),
            data_dir: self.data_dir.clone(),
            cwd: self.cwd.clone(),
            ..AppOptions::default()
        }
    }

    fn find(&self) -> Result<Places, AppError> {
        Places::find(&self.options())
    }
}

/// What every command that starts plugins accepts
#[derive(Debug, Clone, Args)]
struct HostArgs {
    /// Load the plugin in this directory too (repeatable); it is trusted because it was named
    #[arg(long = "plugin", value_name = "DIR")]
    plugins: Vec<PathBuf>,
    #[command(flatten)]
    places: PlaceArgs,
    /// One more settings file, above the others
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The model of new sessions
    #[arg(long, value_name = "PROVIDER/MODEL")]
    model: Option<String>,
    /// How much runs without asking: default, acceptEdits, plan, bypassPermissions or dontAsk
    #[arg(long, value_name = "MODE")]
    permission_mode: Option<PermissionMode>,
    /// Rules whose calls run without asking: `TOOL`, `TOOL(words:*)`, `TOOL(src/**)`, `TOOL(domain:HOST)`
    #[arg(long, value_name = "RULE,…", value_delimiter = ',')]
    allowed_tools: Vec<Rule>,
    /// Log more to stderr; repeat for more
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
}

impl HostArgs {
    fn options(&self) -> AppOptions {
        AppOptions {
            plugins: self.plugins.clone(),
            settings: self.settings.clone(),
            model: self.model.clone(),
            mode: self.permission_mode,
            allowed: self.allowed_tools.clone(),
            ..self.places.options()
        }
    }
}

/// How a run prints
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Format {
    /// The answer on stdout as it streams, everything else on stderr
    #[default]
    Text,
    /// One frame a line on stdout
    Json,
}

/// Runs the command that `args` ask for; returns its exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return report::usage(&error),
    };
    let outcome = match cli.command {
        Some(Subcommands::Serve(args)) => {
            telemetry::init(args.host.verbose);
            serve::run(&args)
        }
        Some(Subcommands::Plugin(command)) => plugin::run(&command),
        Some(Subcommands::Session(command)) => session::run(command),
        Some(Subcommands::Doctor(args)) => doctor::run(&args),
        Some(Subcommands::Schema { which }) => schema::run(which),
        None => {
            telemetry::init(cli.host.verbose);
            print::run(&cli.print, &cli.host)
        }
    };
    outcome.unwrap_or_else(|error| report::report(&error))
}
