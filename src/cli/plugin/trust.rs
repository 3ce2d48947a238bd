//! `bingo plugin trust` and `untrust`: what a person allows a project to bring along.

use std::path::PathBuf;
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
    /// No plugin was named.
    all: bool,
}

pub(super) fn trust(which: &Which, yes: bool) -> Result<ExitCode, CliError> {
    trust_project(&Project::find(which)?, yes)
}

pub(super) fn untrust(which: &Which) -> Result<ExitCode, CliError> {
    untrust_project(&Project::find(which)?)
}

impl Project {
    fn find(which: &Which) -> Result<Self, CliError> {
        let places = which.places.find()?;
        let (found, _) = places.plugins()?;
        let mut plugins: Vec<PluginSource> =
            found.into_iter().filter(|source| source.origin == Origin::Project).collect();
        let names = &which.names;
        if let Some(name) =
            names.iter().find(|name| plugins.iter().all(|plugin| plugin.name.as_str() != *name))
        {
            let known: Vec<&str> = plugins.iter().map(|plugin| plugin.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let reason =
                format!("the project in {} has no plugin `{name}`; it has {known}", places.cwd.display());
            return Err(CliError::Usage { reason, hint: "only a project's own plugins need trust" });
        }
        plugins.retain(|plugin| names.is_empty() || names.iter().any(|name| plugin.name.as_str() == name));
        let settings = ProjectSettings::read(&places.settings(None)).map_err(crate::app::AppError::from)?;
        let wanted = names.is_empty() && settings.paths().next().is_some();
        Ok(Self { places, settings: wanted.then_some(settings), plugins, all: names.is_empty() })
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
        return say("nothing is trusted");
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

fn untrust_project(project: &Project) -> Result<ExitCode, CliError> {
    let mut store = TrustStore::open(&project.places.data_dir);
    let mut was = match &project.settings {
        Some(settings) => store.untrust(&settings.subject())?,
        None => false,
    };
    let mut roots: Vec<PathBuf> = project.plugins.iter().map(|plugin| plugin.root.clone()).collect();
    if project.all {
        // Those too whose folder is gone, and may come back.
        roots.extend(store.plugins_in(&project.places.cwd.join(discovery::PROJECT).join(discovery::PLUGINS)));
    }
    for root in &roots {
        was |= store.untrust(&Subject::Plugin { name: "", root, command: "" })?;
    }
    say(if was {
        "not trusted any more; what runs goes on until it is started again"
    } else {
        "nothing was trusted"
    })
}
