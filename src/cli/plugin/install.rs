//! `bingo plugin add` and `remove`: what stands in the person's folder of plugins. Hosts that run see it by themselves.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::unpack::{self, UnpackError};
use super::{NameAndPlaces, confirmed, plugin_name, remark, say};
use crate::app::AppError;
use crate::cli::{CliError, PlaceArgs};
use crate::supervisor::discovery::{self, DiscoveryError, Origin};

pub(super) fn add(path: &Path, replace: bool, places: &PlaceArgs) -> Result<ExitCode, CliError> {
    let plugins = places.find()?.config_dir.join(discovery::PLUGINS);
    let staging = Staging::make(&plugins).map_err(|source| failed("make a folder in", &plugins, source))?;
    let folder = unpack::unpack(path, &staging.0)?;
    // Only now it is known what it calls itself, which has to be its folder's name.
    let name = plugin_name(&manifest(&folder)?)?;
    let staged = staging.0.join(name.as_str());
    fs::rename(&folder, &staged).map_err(|source| failed("rename", &folder, source))?;
    let source = discovery::load(&staged, Origin::User).map_err(AppError::from)?;
    let target = plugins.join(name.as_str());
    let there = target.symlink_metadata().is_ok();
    if there && !replace {
        let reason = format!("there is a plugin {name} already, in {}", target.display());
        return Err(CliError::Usage { reason, hint: "`--replace` puts this one in its place" });
    }
    let moved = if there { exchange(&staged, &target) } else { fs::rename(&staged, &target) };
    moved.map_err(|source| failed("put the plugin to", &target, source))?;
    let (version, verb) = (&source.manifest.version, if there { "replaced" } else { "added" });
    say(&format!("{name} {version} is {verb} in {}", target.display()))
}

pub(super) fn remove(which: &NameAndPlaces, yes: bool) -> Result<ExitCode, CliError> {
    let name = plugin_name(&which.name)?;
    let plugins = which.places.find()?.config_dir.join(discovery::PLUGINS);
    let target = plugins.join(name.as_str());
    let about = match target.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = format!("there is no plugin {name} in {}", plugins.display());
            return Err(CliError::Usage {
                reason,
                hint: "only those there are removed; delete others yourself",
            });
        }
        about => about.map_err(|source| failed("look at", &target, source))?,
    };
    let what = if about.is_symlink() { "the link" } else { "all of" };
    if !yes && !confirmed(&format!("delete {what} {}?", target.display()))? {
        return Err(CliError::Failed { what: "nothing is deleted".to_owned() });
    }
    // Out of sight in one step: no host shall start what is half gone.
    let staging = Staging::make(&plugins).map_err(|source| failed("make a folder in", &plugins, source))?;
    let moved = fs::rename(&target, staging.0.join(name.as_str()));
    moved.map_err(|source| failed("move", &target, source))?;
    staging.clear().map_err(|source| failed("delete", &target, source))?;
    remark("its settings and logs stay");
    say(&format!("{name} is removed from {}", plugins.display()))
}

fn manifest(folder: &Path) -> Result<String, CliError> {
    match discovery::manifest(folder) {
        Err(DiscoveryError::NoManifest { .. }) => Err(UnpackError::NoManifest.into()),
        manifest => Ok(manifest.map_err(AppError::from)?.name),
    }
}

/// Puts two folders in each other's place at once.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    Ok(renameat2(AT_FDCWD.as_fd(), one, AT_FDCWD.as_fd(), other, RenameFlags::RENAME_EXCHANGE)?)
}

fn failed(act: &str, path: &Path, source: io::Error) -> CliError {
    CliError::Failed { what: format!("cannot {act} {}: {source}", path.display()) }
}

/// What its name begins with; the number of the process follows.
const UNFINISHED: &str = ".unfinished-";

/// A folder among the plugins that is none, for what is not finished. Dropping it deletes it.
struct Staging(PathBuf);

impl Staging {
    fn make(plugins: &Path) -> io::Result<Self> {
        fs::create_dir_all(plugins)?;
        let own = std::process::id();
        sweep(plugins, own)?;
        let path = plugins.join(format!("{UNFINISHED}{own}"));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn clear(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.0)
    }
}

/// Deletes what commands left that were killed.
fn sweep(plugins: &Path, own: u32) -> io::Result<()> {
    for entry in fs::read_dir(plugins)? {
        let entry = entry?;
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(UNFINISHED)?.parse::<u32>().ok());
        let dead = |pid: u32| pid == own || !Path::new(&format!("/proc/{pid}")).exists();
        if pid.is_some_and(dead) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

impl Drop for Staging {
    fn drop(&mut self) {
        // What cannot be deleted is no plugin, and harms nobody.
        let _ = self.clear();
    }
}
