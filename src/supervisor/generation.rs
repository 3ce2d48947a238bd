//! One process of a plugin from its start to its end: spawned, shaken hands with, watched, stopped.

use std::path::Path;
use std::sync::Arc;

use bingo_plugin_sdk::handshake::{InitializeParams, InitializeResult};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{Connection, Peer, Tasks};
use super::guard::{self, Exit, GuardError, Guarded, Manner, ResourceLimits};
use super::handshake::{self, HandshakeError};
use super::log::{self, Log, Tail};
use super::prepare::{PrepareError, Prepared};
use super::process::{Program, ProgramError};
use crate::trust::Untrusted;

/// Why a plugin did not become ready.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{reason}")]
    Config { reason: String },
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    #[error(transparent)]
    Guard(#[from] GuardError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error("{source}{tail}")]
    Handshake { source: HandshakeError, tail: String },
    #[error("{reason}")]
    Died { reason: Arc<str> },
    #[error("the host is stopping")]
    Stopping,
}

impl StartError {
    /// Says that the same program may well start the next time.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            // What the system does not have will not come by itself.
            Self::Guard(error) => !matches!(error, GuardError::Cgroup(_)),
            Self::Handshake { .. } | Self::Died { .. } => true,
            _ => false,
        }
    }
}

/// A running process with everything that belongs to it. Dropping it stops the process without waiting.
pub(super) struct Process {
    pub(super) connection: Connection,
    tasks: Tasks,
    /// Reads stderr for as long as this lives.
    _stderr: AbortOnDropHandle<()>,
    stderr_ended: CancellationToken,
    tail: Tail,
    guarded: Guarded,
    /// Kept for as long as the process may read it.
    _prepared: Option<Prepared>,
}

impl Process {
    /// Starts the process; nothing is said to it yet.
    pub(super) fn spawn(
        binary: &Path,
        program: &Program,
        peer: Peer,
        limits: &ResourceLimits,
        data_dir: &Path,
    ) -> Result<Self, GuardError> {
        let manner =
            Manner { plugin: peer.plugin.as_str(), grace: peer.limits.stop_term, limits, hold: None };
        let (guarded, streams) = guard::start(binary, program, &manner)?;
        let (tail, log) = (Tail::new(), Log::new(data_dir, &peer.plugin, peer.generation));
        let stderr_ended = CancellationToken::new();
        let (told, words) = (stderr_ended.clone().drop_guard(), tail.clone());
        let stderr = tokio::spawn(async move {
            log::read(streams.stderr, log, words).await;
            drop(told);
        });
        let (connection, tasks) = Connection::open(peer, streams.stdout, streams.stdin);
        connection.name_process(guarded.vitals());
        let stderr = AbortOnDropHandle::new(stderr);
        Ok(Self { connection, tasks, _stderr: stderr, stderr_ended, tail, guarded, _prepared: None })
    }

    /// Keeps what it needs.
    pub(super) fn holding(self, prepared: Option<Prepared>) -> Self {
        Self { _prepared: prepared, ..self }
    }

    /// Shakes hands. On any failure the process is to be stopped.
    pub(super) async fn shake(
        &mut self,
        params: &InitializeParams,
        stop: &CancellationToken,
    ) -> Result<InitializeResult, StartError> {
        let (connection, tail) = (self.connection.clone(), self.tail.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(StartError::Stopping),
            result = handshake::shake(&connection, params, &tail) => {
                result.map_err(|source| StartError::Handshake { source, tail: tail.words() })
            }
            reason = self.death() => Err(StartError::Died { reason }),
        }
    }

    /// Waits for the end of the process, its output or its input, whichever comes first, and a moment for the rest;
    /// returns why, in words. May be dropped and asked again until it has returned.
    pub(super) async fn death(&mut self) -> Arc<str> {
        let drain = self.connection.limits().drain;
        let mut exit = tokio::select! {
            exit = self.guarded.exit() => Some(exit),
            () = self.tasks.output_ended.cancelled() => None,
            () = self.tasks.input_failed.cancelled() => None,
        };
        let rest = async {
            exit = Some(self.guarded.exit().await);
            self.tasks.output_ended.cancelled().await;
            // Another process of the plugin may hold it open: then the time is what ends the wait.
            self.stderr_ended.cancelled().await;
        };
        let _ = tokio::time::timeout(drain, rest).await;
        let closed = if self.tasks.output_ended.is_cancelled() { "stdout" } else { "stdin" };
        let what = exit.as_ref().map_or(format!("it closed its {closed}"), Exit::to_string);
        let plugin = self.connection.plugin().as_str();
        let limit = exit.as_ref().and_then(|exit| self.guarded.passed_limit(plugin, exit));
        let limit = limit.map_or(String::new(), |limit| format!(": {limit}"));
        format!("{what}{limit}{}", self.tail.words()).into()
    }

    /// Stops a process that may still be well: closes its input, waits, then TERM, then KILL.
    pub(super) async fn stop(mut self, reason: &Arc<str>) {
        self.connection.close(reason);
        let grace = self.connection.limits().stop_close;
        let _ = tokio::time::timeout(grace, self.guarded.exit()).await;
        // It may not have read what was being written.
        self.tasks.hang_up();
        self.guarded.stop().await;
    }

    /// Stops what is left of a process that is of no use any more: TERM at once.
    pub(super) async fn destroy(self, reason: &Arc<str>) {
        self.connection.close(reason);
        self.tasks.hang_up();
        self.guarded.stop().await;
    }
}
