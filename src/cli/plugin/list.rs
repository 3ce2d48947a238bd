//! `bingo plugin list`: what the plugins of the running hosts do; where none runs, what would be started.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};

use super::{HostChoice, hosts, remark};
use crate::app::Places;
use crate::cli::CliError;
use crate::cli::tell::table;
use crate::control::{HostReport, PluginLine};
use crate::printable;
use crate::settings;
use crate::supervisor::discovery::{Origin, PluginSource};
use crate::supervisor::trust;
use crate::trust::TrustStore;

/// A plugin that would be started.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    name: String,
    version: String,
    origin: &'static str,
    root: std::path::PathBuf,
    enabled: bool,
    /// Absent where it needs no trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    trusted: Option<bool>,
}

pub(super) fn list(choice: &HostChoice, as_json: bool) -> Result<ExitCode, CliError> {
    let places = choice.places.find()?;
    let running = hosts::chosen(choice, &places)?;
    running.tell_problems();
    let (sources, unusable) = places.plugins()?;
    unusable.iter().for_each(|problem| remark(&problem.to_string()));
    let reports: Vec<&HostReport> = running.found.iter().map(|host| &host.report).collect();
    let mut out = std::io::stdout().lock();
    let written = if as_json {
        let found = found(&places, &sources)?;
        writeln!(out, "{}", json!({ "hosts": reports, "found": found }))
    } else if reports.is_empty() {
        remark(&format!("no host runs that uses {}", places.data_dir.display()));
        out.write_all(found_table(&found(&places, &sources)?).as_bytes())
    } else {
        reports.iter().try_for_each(|report| out.write_all(host_table(report).as_bytes()))
    };
    written.map_err(CliError::Output)?;
    Ok(ExitCode::SUCCESS)
}

fn found(places: &Places, sources: &[PluginSource]) -> Result<Vec<Found>, CliError> {
    let store = TrustStore::open(&places.data_dir);
    let loaded = settings::load(&places.settings(None), &store).map_err(crate::app::AppError::from)?;
    let enabled = |name: &str| loaded.0.supervisor.get(name).and_then(|own| own.enabled).unwrap_or(true);
    let line = |source: &PluginSource| Found {
        name: source.name.to_string(),
        version: source.manifest.version.clone(),
        origin: source.origin.name(),
        root: source.root.clone(),
        enabled: enabled(source.name.as_str()),
        trusted: (source.origin == Origin::Project).then(|| is_trusted(&store, source)),
    };
    Ok(sources.iter().map(line).collect())
}

fn is_trusted(store: &TrustStore, source: &PluginSource) -> bool {
    trust::examine(source)
        .is_ok_and(|examined| store.check(&examined.subject(source), &examined.fingerprint).is_ok())
}

fn found_table(found: &[Found]) -> String {
    let state = |plugin: &Found| match (plugin.enabled, plugin.trusted) {
        (false, _) => "disabled",
        (true, Some(false)) => "untrusted",
        (true, _) => "-",
    };
    let rows = found.iter().map(|plugin| {
        let root = plugin.root.display().to_string();
        [plugin.name.clone(), plugin.version.clone(), state(plugin).into(), plugin.origin.into(), root]
    });
    table(["NAME", "VERSION", "STATE", "ORIGIN", "FOLDER"], rows.collect())
}

fn host_table(report: &HostReport) -> String {
    let cwd = report.cwd.display();
    let mut text = format!("host {} since {}, in {cwd}\n", report.pid, report.started);
    let rows = report.plugins.iter().map(row).collect();
    text += &table(
        ["NAME", "VERSION", "STATE", "ORIGIN", "PID", "UPTIME", "RESTARTS", "CALLS", "ERRORS", "MIB"],
        rows,
    );
    for plugin in &report.plugins {
        let fault = plugin.figures.get("lastFault").and_then(|fault| fault["text"].as_str());
        for words in plugin.reason.as_deref().into_iter().chain(fault) {
            text += &format!("  {}: {}\n", plugin.name, printable::line(words));
        }
    }
    text
}

fn row(plugin: &PluginLine) -> [String; 10] {
    let figure = |key: &str| plugin.figures.get(key).and_then(Value::as_u64);
    let shown = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let methods = plugin.figures.get("calls").and_then(Value::as_object);
    let sum = |key: &str| methods.map(|all| all.values().filter_map(|one| one[key].as_u64()).sum::<u64>());
    let uptime = figure("uptimeMs").map_or_else(|| "-".to_owned(), |millis| ago(millis / 1000));
    let memory = figure("rssKib").map_or_else(|| "-".to_owned(), |kib| format!("{:.1}", kib as f64 / 1024.0));
    [
        plugin.name.clone(),
        plugin.version.clone(),
        plugin.state.clone(),
        plugin.origin.clone(),
        shown(figure("pid")),
        uptime,
        plugin.restarts.to_string(),
        shown(sum("calls")),
        shown(sum("errors")),
        memory,
    ]
}

/// Says a number of seconds as people do: `5s`, `3m`, `2h`, `4d`.
fn ago(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_their_largest_unit() {
        let said = [0, 59, 60, 3599, 3600, 86_399, 86_400].map(ago);
        assert_eq!(said, ["0s", "59s", "1m", "59m", "1h", "23h", "1d"]);
    }
}
