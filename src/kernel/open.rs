//! Opening sessions: new ones, live ones, stored ones (kernel rules 3.1).

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bingo_plugin_sdk::event::{ErrorCode, KernelError, Usage};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::provider::Effort;
use bingo_plugin_sdk::rpc::{GatewayEvent, OpenOptions, SessionFilter, SessionSelector, SessionSpec};
use bingo_plugin_sdk::session::SessionSummary;

use super::models::{ChosenModel, fallback_notice};
use super::outbox::Subscription;
use super::replay::Replaying;
use super::session::{Begin, SessionHandle, thinking_of};
use super::store::Store;
use super::{Attachment, Frames, Kernel, session};
use crate::ports::Epoch;
use crate::telemetry;

impl Kernel {
    /// Opens a session and attaches to it.
    ///
    /// # Errors
    /// `SESSION_NOT_FOUND`, `SESSION_LOCKED`, `INVALID_INPUT`, `PROVIDER_UNAVAILABLE` or `STORAGE`, in words.
    pub async fn open(
        &self,
        selector: SessionSelector,
        options: OpenOptions,
    ) -> Result<Attachment, KernelError> {
        self.parts.wait_for_plugins().await;
        let session = match selector {
            SessionSelector::Create { spec } => self.create(spec).await?,
            SessionSelector::ById { id } => self.live_or_stored(&id).await?,
            SessionSelector::ByKey { key } => {
                let all = self.list(SessionFilter::default()).await?;
                let named = all.into_iter().filter(|summary| summary.key.as_deref() == Some(&key));
                self.first_openable(named, &format!("no session has the key `{key}`")).await?
            }
            SessionSelector::Latest { cwd } => {
                let filter = SessionFilter { cwd: Some(cwd.clone()), ..SessionFilter::default() };
                let candidates = self.latest(self.list(filter).await?);
                self.first_openable(candidates.into_iter(), &format!("no session works in {cwd}")).await?
            }
        };
        let Subscription { snapshot, stream } = session.subscribe().await?;
        let id = session.id.clone();
        let stream = match options.children {
            true => Frames::Tree(self.grow(session, snapshot.seq, stream).await?),
            false => Frames::Session(stream),
        };
        Ok(Attachment { session: id, snapshot, stream })
    }

    /// Returns what "continue" may mean, the best first: live sessions, the newest before older ones, then stored ones,
    /// the last updated first (kernel rules 3.1.4 to 6). A child is never meant while a root exists.
    fn latest(&self, mut all: Vec<SessionSummary>) -> Vec<SessionSummary> {
        if all.iter().any(|summary| summary.parent.is_none()) {
            all.retain(|summary| summary.parent.is_none());
        }
        let (mut live, stored): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|summary| self.parts.session(&summary.id).is_ok());
        live.sort_by(|one, other| other.created_at.cmp(&one.created_at).then_with(|| other.id.cmp(&one.id)));
        live.into_iter().chain(stored).collect()
    }

    /// Returns a live session, or opens the stored one; two callers at once open it once.
    pub(super) async fn live_or_stored(&self, id: &SessionId) -> Result<SessionHandle, KernelError> {
        let lock = self.opening(id);
        let _opening = lock.lock().await;
        if let Ok(session) = self.parts.session(id) {
            return Ok(session);
        }
        let replaying = Arc::new(Mutex::new(Replaying::default()));
        let claim = self.parts.journal.claim(id.clone(), replaying.clone()).await;
        let claim = claim.map_err(|error| error.to_kernel())?;
        let replay = replaying.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let Some(replay) = replay else {
            self.parts.journal.release(claim.epoch).await;
            return Err(KernelError::new(ErrorCode::Storage, format!("session {id} has no frames")));
        };
        let store = Store { last: claim.last, unsaved: claim.replayed, ..self.store(claim.epoch) };
        self.start(Begin::resumed(replay), store).await
    }

    /// Opens the first candidate that nobody holds (kernel rules 3.1.4 and 5).
    async fn first_openable(
        &self,
        candidates: impl Iterator<Item = SessionSummary>,
        none: &str,
    ) -> Result<SessionHandle, KernelError> {
        let mut error = KernelError::new(ErrorCode::SessionNotFound, none);
        for summary in candidates {
            match self.live_or_stored(&summary.id).await {
                Err(locked) if locked.code == ErrorCode::SessionLocked => error = locked,
                outcome => return outcome,
            }
        }
        Err(error)
    }

    async fn create(&self, spec: SessionSpec) -> Result<SessionHandle, KernelError> {
        let cwd = PathBuf::from(&spec.cwd);
        if !cwd.is_absolute() {
            return Err(invalid(format!("`cwd` must be an absolute path, got `{}`", spec.cwd)));
        }
        let cwd = real_path(spec.cwd.clone()).await;
        let is_folder = tokio::task::spawn_blocking(move || cwd.is_dir().then_some(cwd)).await;
        let cwd = is_folder.ok().flatten().ok_or_else(|| invalid(format!("{} is no folder", spec.cwd)))?;
        // A parent that is being deleted has no more children.
        let lock = spec.parent.as_ref().map(|parent| self.opening(&parent.session));
        let _having = match &lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        };
        let thinking = match &spec.parent {
            Some(parent) => self.thinking_of_parent(&parent.session).await?,
            None => self.parts.defaults.get().thinking,
        };
        let _key = self.reserve_key(spec.key.as_deref()).await?;
        let (provider, model) = (spec.provider.clone(), spec.model.clone());
        let chosen = self.parts.choose_model(spec.driver, provider, model)?;
        let summary = new_summary(spec, cwd, chosen.as_ref());
        let epoch = self.parts.journal.create(summary.id.clone()).await.map_err(|error| error.to_kernel())?;
        let mut begin = Begin::fresh(summary, thinking);
        begin.notices.extend(chosen.filter(|chosen| chosen.is_fallback).map(|_| fallback_notice()));
        self.start(begin, self.store(epoch)).await
    }

    /// Returns how much the model reasons in the parent of a new session, which begins with it (kernel rule 3.1.9).
    ///
    /// # Errors
    /// When the parent is not live, or is a child itself.
    async fn thinking_of_parent(&self, parent: &SessionId) -> Result<Option<Effort>, KernelError> {
        let parent = self.parts.session(parent)?;
        if parent.summary().parent.is_some() {
            return Err(invalid("a child session cannot have children"));
        }
        Ok(thinking_of(&parent.subscribe().await?.snapshot.config))
    }

    /// Takes a key that no session has or had; it is free again if creating fails.
    async fn reserve_key(&self, key: Option<&str>) -> Result<Option<KeyReservation>, KernelError> {
        let Some(key) = key else { return Ok(None) };
        let owned = key.split_once('/').is_some_and(|(owner, path)| !owner.is_empty() && !path.is_empty());
        if !owned {
            return Err(invalid(format!("a key is `owner/path`, got `{key}`")));
        }
        let taken = || {
            let message = format!("a session has the key `{key}` already; open it by its key");
            KernelError::new(ErrorCode::SessionLocked, message)
        };
        if !self.parts.lock().creating.insert(key.to_owned()) {
            return Err(taken());
        }
        let reservation = KeyReservation { kernel: self.clone(), key: key.to_owned() };
        let all = self.list(SessionFilter::default()).await?;
        if all.iter().any(|summary| summary.key.as_deref() == Some(key)) {
            return Err(taken());
        }
        Ok(Some(reservation))
    }

    /// Starts a session's actor; it is announced once its first frames are stored.
    async fn start(&self, mut begin: Begin, store: Store) -> Result<SessionHandle, KernelError> {
        begin.notices.extend(self.parts.board.take());
        let session = session::spawn(Arc::clone(&self.parts), begin, store);
        session.flush().await?;
        self.parts.lock().live.insert(session.id.clone(), session.clone());
        // Left on the board while the session was on its way.
        self.parts.board.take().into_iter().for_each(|notice| session.try_notice(notice));
        let summary = Box::new(session.summary());
        self.parts.feed.publish(&GatewayEvent::SessionCreated { summary });
        Ok(session)
    }

    /// Returns the store of a session that has no frames yet.
    fn store(&self, epoch: Epoch) -> Store {
        let (journal, sync) = (Arc::clone(&self.parts.journal), self.parts.settings.sync);
        Store { journal, epoch, last: Seq(0), sync, unsaved: 0, saved: 0, saving: None }
    }

    pub(super) fn opening(&self, id: &SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut registry = self.parts.lock();
        registry.opening.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = registry.opening.get(id).and_then(std::sync::Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        registry.opening.insert(id.clone(), Arc::downgrade(&lock));
        lock
    }
}

/// A key that is being given to a new session.
struct KeyReservation {
    kernel: Kernel,
    key: String,
}

impl Drop for KeyReservation {
    fn drop(&mut self) {
        self.kernel.parts.lock().creating.remove(&self.key);
    }
}

fn new_summary(spec: SessionSpec, cwd: PathBuf, chosen: Option<&ChosenModel>) -> SessionSummary {
    let now = telemetry::now();
    SessionSummary {
        id: SessionId::mint(),
        key: spec.key,
        title: spec.title,
        cwd: cwd.to_string_lossy().into_owned(),
        parent: spec.parent,
        driver: spec.driver,
        model: chosen.and_then(|chosen| chosen.model.clone()),
        system_extra: spec.system_extra,
        tools: spec.tools,
        provider: chosen.and_then(|chosen| chosen.provider.clone()),
        created_at: now.clone(),
        updated_at: now,
        usage: Usage::default(),
        busy: false,
        messages: Some(0),
    }
}

fn invalid(message: impl Into<String>) -> KernelError {
    KernelError::new(ErrorCode::InvalidInput, message)
}

/// Resolves links; a path that does not exist stays as it is.
pub(super) async fn real_path(path: String) -> PathBuf {
    let resolve = move || std::fs::canonicalize(&path).unwrap_or_else(|_| PathBuf::from(path));
    tokio::task::spawn_blocking(resolve).await.unwrap_or_default()
}
