//! Where the logs of plugins are: the newest file of each, and those that were put aside.

use std::path::{Path, PathBuf};

use bingo_plugin_sdk::ids::PluginName;

/// How many files a plugin has, the one being written included.
const FILES: usize = 5;

/// Returns the folder of logs.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// Returns the files of a plugin's log, there or not, the newest first: `plugin-NAME.log`, then `….log.1` and so on.
pub fn files(data_dir: &Path, plugin: &PluginName) -> Vec<PathBuf> {
    rotation(&newest(data_dir, plugin))
}

/// Returns the file that is written.
pub(super) fn newest(data_dir: &Path, plugin: &PluginName) -> PathBuf {
    folder(data_dir).join(format!("plugin-{plugin}.log"))
}

/// Returns a newest file and those that it becomes one after the other.
pub(super) fn rotation(newest: &Path) -> Vec<PathBuf> {
    let older = (1..FILES).map(|number| newest.with_extension(format!("log.{number}")));
    std::iter::once(newest.to_owned()).chain(older).collect()
}
