//! `bingo plugin trust` and `untrust`: what a person allows a project to bring along.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::{confirmed, say};
use crate::app::Places;
use crate::cli::{CliError, PlaceArgs};
use crate::settings::ProjectSettings;
use crate::supervisor::discovery::{self, Origin, PluginSource};
use crate::supervisor::trust::{Examined, examine};
use crate::trust::{Subject, TrustStore};

/// How much of a hash is shown.
const SHOWN: usize = 12;

#[derive(Debug, Args)]
pub(in crate::cli) struct Which {
    /// Plugins of the project [default: its settings and all its plugins]
    names: Vec<String>,
    #[command(flatten)]
    places: PlaceArgs,
}

/// What a project brings along.
struct Project {
    places: Places,
    /// Nothing when only plugins are meant, or there are none.
    settings: Option<ProjectSettings>,
    plugins: Vec<PluginSource>,
}

pub(super) fn trust(which: &Which, yes: bool) -> Result<ExitCode, CliError> {
    trust_project(&Project::find(which)?, yes)
}

pub(super) fn untrust(which: &Which) -> Result<ExitCode, CliError> {
    let places = which.places.find()?;
    let mut store = TrustStore::open(&places.data_dir);
    let mut roots = known_roots(&places, &store)?;
    let known: Vec<Cow<str>> = roots.iter().map(|root| folder_name(root)).collect();
    which.check_names(&places, &known)?;
    let mut was = false;
    if which.names.is_empty() {
        // Whether their files are still there or not: they may come back.
        was = store.untrust(&Subject::Settings { project: &places.cwd })?;
    } else {
        roots.retain(|root| which.names.iter().any(|name| *name == folder_name(root)));
    }
    for root in &roots {
        was |= store.untrust_folder(root)?;
    }
    say(if was {
        "not trusted any more; what runs goes on until it is started again"
    } else {
        "nothing was trusted"
    })
}

impl Which {
    /// Checks that each name is a known one.
    fn check_names(&self, places: &Places, known: &[impl AsRef<str>]) -> Result<(), CliError> {
        let is_known = |name: &String| known.iter().any(|known| known.as_ref() == name);
        let Some(name) = self.names.iter().find(|name| !is_known(name)) else { return Ok(()) };
        let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let reason =
            format!("the project in {} has no plugin `{name}`; it has {known}", places.cwd.display());
        Err(CliError::Usage { reason, hint: "only a project's own plugins need trust" })
    }
}

/// Returns the project's plugins that can be used.
fn project_plugins(places: &Places) -> Result<Vec<PluginSource>, CliError> {
    let (found, _) = places.plugins()?;
    Ok(found.into_iter().filter(|source| source.origin == Origin::Project).collect())
}

/// Returns the folders of the project's plugins that can be used, and of those that were trusted, whatever became of them.
fn known_roots(places: &Places, store: &TrustStore) -> Result<Vec<PathBuf>, CliError> {
    let folder = places.cwd.join(discovery::PROJECT).join(discovery::PLUGINS);
    // What was trusted stands there by its real path.
    let folder = folder.canonicalize().unwrap_or(folder);
    let mut roots: Vec<PathBuf> = project_plugins(places)?.into_iter().map(|plugin| plugin.root).collect();
    roots.extend(store.plugins_in(&folder));
    roots.sort();
    roots.dedup();
    Ok(roots)
}

fn folder_name(root: &Path) -> Cow<'_, str> {
    root.file_name().unwrap_or_default().to_string_lossy()
}

impl Project {
    fn find(which: &Which) -> Result<Self, CliError> {
        let places = which.places.find()?;
        let mut plugins = project_plugins(&places)?;
        let known: Vec<&str> = plugins.iter().map(|plugin| plugin.name.as_str()).collect();
        which.check_names(&places, &known)?;
        let names = &which.names;
        plugins.retain(|plugin| names.is_empty() || names.iter().any(|name| plugin.name.as_str() == name));
        let settings = ProjectSettings::read(&places.settings(None)).map_err(crate::app::AppError::from)?;
        let wanted = names.is_empty() && settings.paths().next().is_some();
        Ok(Self { places, settings: wanted.then_some(settings), plugins })
    }
}

fn trust_project(project: &Project, yes: bool) -> Result<ExitCode, CliError> {
    let mut lines = Vec::new();
    if let Some(settings) = &project.settings {
        let keys = settings.guarded_keys().map_err(crate::app::AppError::from)?;
        let paths: Vec<String> = settings.paths().map(|path| path.display().to_string()).collect();
        lines.push(format!("settings  {} (keys that count then: {})", paths.join(", "), keys.join(", ")));
    }
    let mut examined: Vec<(&PluginSource, Examined)> = Vec::new();
    for plugin in &project.plugins {
        let found = examine(plugin).map_err(|error| CliError::Failed {
            what: format!("{} cannot be trusted: {error}", plugin.name),
        })?;
        let (print, root) = (&found.fingerprint, plugin.root.display());
        let hash = print.hash.get(..SHOWN).unwrap_or(&print.hash);
        lines.push(format!("plugin    {} in {root}", plugin.name));
        lines.extend(found.prepare.iter().map(|prepare| format!("          first runs {prepare}")));
        lines.push(format!("          runs {}", found.command));
        lines.push(format!("          {} files, {} bytes, sha256 {hash}…", print.files, print.bytes));
        examined.push((plugin, found));
    }
    if lines.is_empty() {
        return say("the project brings nothing along that needs trust");
    }
    lines.iter().try_for_each(|line| say(line).map(drop))?;
    if !yes && !confirmed("trust this?")? {
        say("nothing is trusted")?;
        return Ok(ExitCode::FAILURE);
    }
    let mut store = TrustStore::open(&project.places.data_dir);
    if let Some(settings) = &project.settings {
        store.trust(&settings.subject(), &settings.fingerprint())?;
    }
    for (plugin, found) in &examined {
        store.trust(&found.subject(plugin), &found.fingerprint)?;
    }
    say("trusted, until something of it changes")
}
