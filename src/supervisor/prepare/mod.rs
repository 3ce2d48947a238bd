//! The manifest's `prepare` step: installs what a plugin needs into a folder outside the plugin's own, before its first
//! process, once for what the plugin is now.
//!
//! What it depends on is hashed: its words and the files that the manifest names, or all files. The plugin's folder stays
//! as it is, so neither that hash nor trust changes by the step.

mod place;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bingo_plugin_sdk::manifest::Prepare;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::place::Prepared;
use self::place::{Claim, Place, Turn};
use super::discovery::PluginSource;
use super::generation::StartError;
use super::guard::{self, Exit, Guarded, Manner};
use super::limits::words;
use super::log::{self, Log, Tail};
use super::process::{Places, Program};
use super::trust;
use super::{Owner, PluginSetup};
use crate::trust::{Builder, Fingerprint, FingerprintError};

/// How often it is told how far the step is.
const TOLD: Duration = Duration::from_secs(1);

/// Why a plugin could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error(
        "what its `prepare` step depends on cannot be told: {source}; name those files in `prepare.files`"
    )]
    Files {
        #[from]
        source: FingerprintError,
    },
    #[error("cannot use the folder {} of its `prepare` step: {source}", folder.display())]
    Folder {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("its `prepare` step failed: {reason}")]
    Failed { reason: String },
    #[error(
        "no file of the plugin fits `{pattern}` in its `prepare.files`; correct that pattern, or take it out"
    )]
    NoFile { pattern: String },
    #[error("another host runs its `prepare` step, and was not done after {}", words(*after))]
    Elsewhere { after: Duration },
    #[error("its `prepare` step was not done after {}{tail}", words(*after))]
    Late { after: Duration, tail: String },
}

/// What is to be done before a process is started.
pub(super) enum Preparation {
    /// The manifest names no step.
    Nothing,
    Done(Prepared),
    Wanted(Box<Step>),
}

/// A step that is to be run.
pub(super) struct Step {
    owner: Arc<Owner>,
    source: PluginSource,
    setup: PluginSetup,
    place: Place,
    program: Program,
    /// Its process, once it was started, with the right to run it.
    running: Option<(Guarded, Claim)>,
}

/// Finds out whether a plugin is to be prepared. A plugin that is not trusted is not.
pub(super) async fn look(
    owner: &Arc<Owner>,
    source: &PluginSource,
    setup: &PluginSetup,
) -> Result<Preparation, StartError> {
    let Some(prepare) = source.manifest.prepare.clone() else { return Ok(Preparation::Nothing) };
    let resolve = |prepared: Option<&Path>| {
        let places = Places { root: &source.root, prepared };
        Program::resolve(&prepare.program, "prepare", &places, &setup.passed())
    };
    let unplaced = trust::admit(&owner.config.data_dir, source, resolve(None)?).await?;
    // Of what nobody trusted, the schema is not compiled.
    setup.check_config(source)?;
    let (hashed, root) = (prepare.clone(), source.root.clone());
    // Up to as many bytes as a plugin may have are read here.
    let hash = tokio::task::spawn_blocking(move || fingerprint(&hashed, &unplaced, &root)).await;
    let failed =
        |error| FingerprintError::Io { path: source.root.clone(), source: std::io::Error::other(error) };
    let hash = hash.map_err(|error| PrepareError::from(failed(error))).and_then(|hash| hash)?.hash;
    let place = Place::new(&owner.config.data_dir, source.name.as_str(), &hash);
    if let Some(prepared) = place.prepared().map_err(folder(&place))? {
        return Ok(Preparation::Done(prepared));
    }
    let program = trust::steady(source, resolve(Some(&place.folder))?);
    let (owner, source, setup) = (Arc::clone(owner), source.clone(), setup.clone());
    Ok(Preparation::Wanted(Box::new(Step { owner, source, setup, place, program, running: None })))
}

/// Returns what stands for everything that the step depends on.
fn fingerprint(prepare: &Prepare, program: &Program, root: &Path) -> Result<Fingerprint, PrepareError> {
    let mut builder = Builder::new("prepare");
    // Programs that are installed often hold the path of what they belong to.
    builder.field(root.as_os_str().as_bytes());
    builder.field(program.path.as_os_str().as_bytes());
    builder.fields(program.args.iter().map(String::as_bytes));
    let variables = prepare.program.env.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    builder.fields(variables.collect::<Vec<_>>().into_iter());
    if prepare.files.is_empty() {
        builder.folder(root)?;
    } else {
        named(&prepare.files, root)?.iter().try_for_each(|path| builder.entry(root, path))?;
    }
    Ok(builder.finish())
}

/// Returns the files that globs name, as paths from the folder, in order. A glob that names none is a mistake: the step would
/// not be run again for the files that were meant.
fn named(globs: &[String], root: &Path) -> Result<BTreeSet<PathBuf>, PrepareError> {
    let folder = glob::Pattern::escape(&root.to_string_lossy());
    let mut files = BTreeSet::new();
    for pattern in globs {
        let found = glob::glob(&format!("{folder}/{pattern}")).into_iter().flatten().flatten();
        let own = found.filter(|path| path.is_file());
        let mut any = false;
        for path in own.filter_map(|path| Some(path.strip_prefix(root).ok()?.to_owned())) {
            any = true;
            files.insert(path);
        }
        if !any {
            return Err(PrepareError::NoFile { pattern: pattern.clone() });
        }
    }
    Ok(files)
}

fn folder(place: &Place) -> impl FnOnce(std::io::Error) -> PrepareError {
    let folder = place.folder.clone();
    move |source| PrepareError::Folder { folder, source }
}

impl Step {
    /// Returns the command as a person reads it.
    pub(super) fn command(&self) -> String {
        trust::command_line(&self.program)
    }

    pub(super) fn deadline(&self) -> Duration {
        self.setup.options.timeouts.prepare
    }

    /// Runs the step to the end of its process, unless another host has. `tell` hears its last line now and then.
    ///
    /// When it is dropped or fails, the step is to be given up.
    pub(super) async fn run(
        &mut self,
        tell: impl Fn(&str),
        stop: &CancellationToken,
    ) -> Result<(), StartError> {
        let after = self.deadline();
        let (tail, all) = (Tail::new(), Tail::new());
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(StartError::Stopping),
            outcome = async {
                let claim = match self.turn().await? {
                    Turn::Done(_) => return Ok(()),
                    Turn::Ours(claim) => claim,
                };
                // Not from before: the time of another host's try is not this one's.
                let installed = tokio::time::timeout(after, self.install(claim, &tell, (tail.clone(), all.clone())));
                installed.await.unwrap_or_else(|_| {
                    Err(PrepareError::Late { after, tail: last_words(&tail, &all) }.into())
                })
            } => outcome,
        }
    }

    /// Waits for the right to run the step, as long as another host may take with it.
    async fn turn(&self) -> Result<Turn, PrepareError> {
        let after = self.deadline();
        let turn = tokio::time::timeout(after, self.place.turn()).await;
        turn.map_err(|_| PrepareError::Elsewhere { after })?.map_err(folder(&self.place))
    }

    async fn install(
        &mut self,
        mut claim: Claim,
        tell: &impl Fn(&str),
        tails: (Tail, Tail),
    ) -> Result<(), StartError> {
        claim.clear().map_err(folder(&self.place))?;
        let options = &self.setup.options;
        let grace = options.timeouts.stop_term;
        let (plugin, limits) = (self.source.name.as_str(), &options.limits);
        // Should the host be killed, the next one waits until nothing of this step is left.
        let manner = Manner { plugin, grace, limits, hold: Some(&claim.lock) };
        let (guarded, streams) = guard::start(&self.owner.config.binary, &self.program, &manner)?;
        let (guarded, _) = self.running.insert((guarded, claim));
        // It has nobody to ask.
        drop(streams.stdin);
        let log = Log::of_prepare(&self.owner.config.data_dir, &self.source.name);
        let reading = log::read_both(streams.stdout, streams.stderr, log, tails.clone());
        let mut reading = AbortOnDropHandle::new(tokio::spawn(reading));
        let exit = told(guarded, &tails.1, tell).await;
        // Something that it left behind may hold its outputs open: then the time is what ends the wait.
        let _ = tokio::time::timeout(options.timeouts.drain, &mut reading).await;
        if exit == Exit::Code(0) {
            return Ok(());
        }
        let limit = guarded.passed_limit(self.source.name.as_str(), &exit);
        let limit = limit.map_or(String::new(), |limit| format!(": {limit}"));
        let reason = format!("{exit}{limit}{}", last_words(&tails.0, &tails.1));
        Err(PrepareError::Failed { reason }.into())
    }

    /// Ends what the step left running and returns what it made.
    pub(super) async fn finish(mut self) -> Result<Prepared, StartError> {
        if let Some((guarded, claim)) = self.running.take() {
            guarded.stop().await;
            let done = tokio::task::spawn_blocking(move || {
                claim.clean();
                claim.done()
            });
            done.await
                .unwrap_or_else(|error| Err(std::io::Error::other(error)))
                .map_err(folder(&self.place))?;
        }
        match self.turn().await? {
            Turn::Done(prepared) => Ok(prepared),
            Turn::Ours(_) => Err(folder(&self.place)(std::io::Error::other("it was removed")).into()),
        }
    }

    /// Ends the step; what it made counts for nothing.
    pub(super) async fn give_up(mut self) {
        if let Some((guarded, _claim)) = self.running.take() {
            guarded.stop().await;
        }
    }
}

/// Waits for the end of the process and tells what it says meanwhile.
async fn told(guarded: &mut Guarded, all: &Tail, tell: &impl Fn(&str)) -> Exit {
    let mut tick = tokio::time::interval_at(Instant::now() + TOLD, TOLD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        tokio::select! {
            exit = guarded.exit() => return exit,
            _ = tick.tick() => {}
        }
        let last = all.last();
        if last != said {
            last.iter().for_each(|line| tell(line));
            said = last;
        }
    }
}

fn last_words(tail: &Tail, all: &Tail) -> String {
    let words = tail.words();
    if words.is_empty() { all.words_on("stdout") } else { words }
}
