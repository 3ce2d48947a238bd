//! `bingo doctor`: what counts here, from which file, and what is wrong with it.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::tell::{remark, table};
use super::{CliError, PlaceArgs};
use crate::app::{self, AppError, Places};
use crate::ports::Notice;
use crate::printable;
use crate::settings::{self, Entry, Explained, Sources};
use crate::trust::TrustStore;

/// The table whose values are for plugins: they may be secrets, so only their keys are shown.
const OF_PLUGINS: &str = "plugins";
/// What stands in the place of a value that is not shown.
const NOT_SHOWN: &str = "(not shown)";

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// One more settings file, above the others
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Shows it; fails when something is wrong, after all was shown.
pub(super) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let places = args.places.find()?;
    let sources = places.settings(args.settings.clone());
    let store = TrustStore::open(&places.data_dir);
    let Explained { entries, notices } = settings::explain(&sources, &store).map_err(AppError::from)?;
    let problems: Vec<Notice> = store.notice().into_iter().chain(notices).collect();
    let text = if args.json {
        let problems: Vec<Value> =
            problems.iter().map(|problem| json!({ "code": problem.code, "text": problem.text })).collect();
        let settings: Vec<Value> = entries.iter().map(line).collect();
        let (places, files) = (shown(&places), files(&sources));
        format!(
            "{}\n",
            json!({ "places": places, "files": files, "settings": settings, "problems": problems })
        )
    } else {
        for problem in &problems {
            remark(&format!("{}: {}", problem.code, problem.text));
        }
        for_people(&places, &sources, &entries)
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(CliError::Output)?;
    app::check_settings(&places, args.settings.clone())?;
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn shown(places: &Places) -> Value {
    json!({ "configDir": places.config_dir, "dataDir": places.data_dir, "cwd": places.cwd })
}

/// Returns the files that settings may come from, the lowest first, and whether they are there.
fn files(sources: &Sources) -> Vec<Value> {
    let files = sources.files().into_iter();
    files.map(|path| json!({ "path": path, "exists": path.exists() })).collect()
}

fn line(entry: &Entry) -> Value {
    let mut line = json!({ "key": entry.key(), "from": entry.from });
    if !is_secret(entry) {
        line["value"] = json!(entry.value);
    }
    line
}

fn is_secret(entry: &Entry) -> bool {
    entry.keys.first().is_some_and(|key| key == OF_PLUGINS)
}

fn for_people(places: &Places, sources: &Sources, entries: &[Entry]) -> String {
    let named =
        [("config", &places.config_dir), ("data", &places.data_dir), ("folder", &places.cwd)].into_iter();
    let mut text: String = named
        .map(|(name, path)| format!("{name:8}{}\n", printable::line(&path.display().to_string())))
        .collect();
    for path in sources.files() {
        let there = if path.exists() { "" } else { " (not there)" };
        text += &format!("settings {}{there}\n", printable::line(&path.display().to_string()));
    }
    if entries.is_empty() {
        return text + "no file sets anything\n";
    }
    let rows = entries.iter().map(|entry| {
        let value = if is_secret(entry) { NOT_SHOWN.to_owned() } else { entry.shown() };
        let from = entry.from.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        [entry.key(), value, from.join(", ")]
    });
    text + "\n" + &table(["KEY", "VALUE", "FROM"], rows.collect())
}
