//! A person's settings file, for choices that are made while the host runs.

use std::path::PathBuf;
use std::sync::Arc;

use bingo_plugin_sdk::event::{ErrorCode, KernelError};
use serde_json::json;

use super::Places;
use crate::ports::{BoxFuture, Preference, Preferences};
use crate::settings::{self, edit};
use crate::telemetry;
use crate::trust::TrustStore;

/// Writes the person's own file, which is the lowest layer.
pub(super) struct UserFile {
    pub(super) places: Arc<Places>,
    /// A settings file that the command line names.
    pub(super) named: Option<PathBuf>,
}

impl Preferences for UserFile {
    fn save(&self, choice: Preference) -> BoxFuture<'static, Result<Option<String>, KernelError>> {
        let (places, named) = (Arc::clone(&self.places), self.named.clone());
        let written = tokio::task::spawn_blocking(move || write(&places, named, choice));
        Box::pin(async move {
            written.await.unwrap_or_else(|error| Err(unwritten(format!("writing it panicked: {error}"))))
        })
    }
}

fn write(places: &Places, named: Option<PathBuf>, choice: Preference) -> Result<Option<String>, KernelError> {
    let file = settings::user_file(&places.config_dir);
    let keys = keys(&choice);
    let changed = match &choice {
        Preference::Model(name) => edit::set(&file, &keys, name.as_str()),
        Preference::Thinking(Some(level)) => {
            edit::set(&file, &keys, json!(level).as_str().unwrap_or_default())
        }
        Preference::Thinking(None) => edit::remove(&file, &keys),
        Preference::Plugin { on, .. } => edit::set(&file, &keys, *on),
    };
    changed.map_err(|error| unwritten(telemetry::words(&error)))?;
    let store = TrustStore::open(&places.data_dir);
    // What cannot be read was told at the start, or stops the next one.
    let Ok(explained) = settings::explain(&places.settings(named), &store) else { return Ok(None) };
    let set = explained.entries.into_iter().find(|entry| entry.keys == keys);
    let above = set.and_then(|entry| entry.from.into_iter().find(|from| *from != file));
    Ok(above.map(|from| format!("{} says otherwise here", from.display())))
}

/// Returns the path of keys to a choice.
fn keys(choice: &Preference) -> Vec<&str> {
    match choice {
        Preference::Model(_) => vec!["model"],
        Preference::Thinking(_) => vec!["thinking"],
        Preference::Plugin { name, .. } => vec!["supervisor", name, "enabled"],
    }
}

fn unwritten(message: String) -> KernelError {
    KernelError::new(ErrorCode::Storage, message)
}
