//! Sessions with children: attached to as one, deleted with their root.

use std::collections::BTreeMap;

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Event, Frame};
use bingo_plugin_sdk::ids::{Seq, SessionId};
use bingo_plugin_sdk::rpc::{GatewayEvent, OpenOptions, SessionFilter, SessionSelector, SessionSpec};
use bingo_plugin_sdk::session::ParentLink;
use bingo_plugin_sdk::state::SessionState;
use serde_json::json;

use crate::kernel::testing::{Host, seen, settle};
use crate::kernel::{Attachment, Frames};
use crate::settings::SyncMode;

fn host() -> Host {
    let host = Host::start(SyncMode::Turn, Vec::new());
    host.model.answer_always();
    host
}

async fn tree(host: &Host, root: &SessionId) -> Attachment {
    let selector = SessionSelector::ById { id: root.clone() };
    host.kernel.open(selector, OpenOptions { children: true }).await.unwrap()
}

fn child_spec(parent: &SessionId) -> SessionSpec {
    let parent = Some(ParentLink { session: parent.clone(), item: None });
    SessionSpec { parent, title: Some("child".to_owned()), cwd: "/".to_owned(), ..SessionSpec::default() }
}

async fn child(host: &Host, parent: &SessionId) -> SessionId {
    let selector = SessionSelector::Create { spec: child_spec(parent) };
    host.kernel.open(selector, OpenOptions::default()).await.unwrap().session
}

/// Publishes stored frames of no weight.
async fn flood(host: &Host, session: &SessionId, kind: &str, frames: usize) {
    for number in 0..frames {
        host.kernel.extend(session, "p".to_owned(), kind.to_owned(), json!(number)).await.unwrap();
    }
}

fn by_session(frames: Vec<Frame>) -> BTreeMap<SessionId, Vec<Frame>> {
    let mut all: BTreeMap<SessionId, Vec<Frame>> = BTreeMap::new();
    frames.into_iter().for_each(|frame| all.entry(frame.session.clone()).or_default().push(frame));
    all
}

/// Asserts that these are the stored frames of a session behind `since`, each once and in order; ephemeral ones may be
/// among them.
#[track_caller]
fn assert_whole(host: &Host, session: &SessionId, since: Seq, frames: &[Frame]) {
    assert!(frames.is_sorted_by(|one, other| one.seq < other.seq), "in order, and once");
    assert!(!frames.iter().any(|frame| matches!(frame.event, Event::Lagged { .. })), "nobody lagged");
    let mut stored = host.journal.frames(session);
    stored.retain(|frame| frame.seq > since);
    let durable: Vec<_> = frames.iter().filter(|frame| frame.event.is_durable()).cloned().collect();
    let differs = durable.iter().zip(&stored).position(|(one, other)| one != other);
    assert_eq!((differs, durable.len()), (None, stored.len()));
}

fn fold(summary: &Frame, frames: &[Frame]) -> SessionState {
    let Event::SessionUpdated { summary } = &summary.event else { panic!("{summary:?} is no beginning") };
    let mut state = SessionState::new((**summary).clone());
    frames.iter().for_each(|frame| state.apply(frame));
    state
}

/// Rule 3.2.18, 3.1.11, 1.1.6.
#[tokio::test(start_paused = true)]
async fn a_tree_carries_the_frames_of_children_from_their_first() {
    let host = host();
    let root = host.create().await.session;
    let before = child(&host, &root).await;
    host.submit(&before, "1", "hello").await;
    settle().await;
    let stranger = host.create().await.session;
    let mut at = tree(&host, &root).await;
    assert!(at.stream.is_tree());
    let after = child(&host, &root).await;
    for (session, intent) in [(&after, "2"), (&root, "3"), (&before, "4"), (&stranger, "5")] {
        host.submit(session, intent, "words").await;
    }
    settle().await;
    let frames = by_session(seen(&mut at).await);
    assert_eq!(frames.keys().collect::<std::collections::BTreeSet<_>>(), [&root, &before, &after].into());
    assert_whole(&host, &root, at.snapshot.seq, &frames[&root]);
    for id in [&before, &after] {
        assert_whole(&host, id, Seq(0), &frames[id]);
        let theirs = host.reopen(id).await.snapshot;
        assert_eq!(fold(&frames[id][0], &frames[id]), theirs);
        assert_eq!(theirs.summary.parent.map(|link| link.session), Some(root.clone()));
    }
    // The parent's own stream has none of them.
    let mut alone = host.reopen(&root).await;
    host.submit(&after, "6", "words").await;
    settle().await;
    assert!(seen(&mut alone).await.is_empty());
    assert!(seen(&mut at).await.iter().all(|frame| frame.session == after));
}

/// Rule 3.2.18.
#[tokio::test(start_paused = true)]
async fn a_stored_child_is_replayed_and_followed_once_it_is_live_again() {
    let host = host();
    let root = host.create().await.session;
    let stored = child(&host, &root).await;
    host.submit(&stored, "1", "hello").await;
    settle().await;
    let host = host.crash();
    host.model.answer_always();
    let mut at = tree(&host, &root).await;
    let first = by_session(seen(&mut at).await);
    assert_whole(&host, &stored, Seq(0), &first[&stored]);
    assert!(host.kernel.require_live(&stored).is_err(), "looking does not open it");
    // It is opened, closed with its host's storage, and opened again: each run follows the one before.
    let mut all = first[&stored].clone();
    host.reopen(&stored).await;
    host.submit(&stored, "2", "again").await;
    settle().await;
    host.journal.fail_after(0);
    host.submit(&stored, "3", "lost").await;
    settle().await;
    assert!(host.journal.heal());
    let closed = seen(&mut at).await;
    let is_end = |frame: &Frame| {
        frame.session == stored
            && matches!(frame.event, Event::SessionClosed { reason: CloseReason::Error { .. } })
    };
    assert!(closed.iter().any(is_end), "its end is told: {closed:?}");
    all.extend(by_session(closed).remove(&stored).unwrap());
    host.reopen(&stored).await;
    host.submit(&stored, "4", "more").await;
    settle().await;
    all.extend(by_session(seen(&mut at).await).remove(&stored).unwrap());
    // What it said of its failure could not be stored.
    let end = all.iter().position(is_end).unwrap();
    all.remove(end);
    all.retain(|frame| frame.event.is_durable());
    let lost = all.iter().position(|frame| {
        matches!(&frame.event, Event::TurnCompleted { status, .. } if format!("{status:?}").contains("Storage"))
    });
    lost.map(|at| all.remove(at));
    assert_whole(&host, &stored, Seq(0), &all);
}

/// Rule 3.2.16, 3.2.18.
#[tokio::test(start_paused = true)]
async fn a_client_of_a_tree_that_is_slow_misses_nothing_that_is_stored() {
    let host = host();
    let root = host.create().await.session;
    let (one, other) = (child(&host, &root).await, child(&host, &root).await);
    let mut at = tree(&host, &root).await;
    let mut alone = host.reopen(&root).await;
    settle().await;
    // More than any queue takes, while nobody reads; and a child that comes meanwhile.
    flood(&host, &root, "root", 5000).await;
    flood(&host, &one, "one", 5000).await;
    flood(&host, &other, "other", 10).await;
    let late = child(&host, &root).await;
    flood(&host, &late, "late", 4200).await;
    let first = by_session(seen(&mut at).await);
    assert_whole(&host, &root, at.snapshot.seq, &first[&root]);
    for id in [&one, &other, &late] {
        assert_whole(&host, id, Seq(0), &first[id]);
    }
    // It goes on.
    flood(&host, &one, "one", 3).await;
    assert_eq!(seen(&mut at).await.len(), 3);
    let told = seen(&mut alone).await;
    assert!(matches!(told.last().unwrap().event, Event::Lagged { .. }), "one session alone does lag");
}

/// Rule 3.2.17, 5.4.19, 5.4.21. Mends 9.1.13.
#[tokio::test(start_paused = true)]
async fn a_tree_that_is_asked_for_again_is_still_a_tree() {
    let host = host();
    let root = host.create().await.session;
    let (live, stored) = (child(&host, &root).await, child(&host, &root).await);
    host.submit(&stored, "1", "hello").await;
    settle().await;
    let host = host.crash();
    host.model.answer_always();
    drop(tree(&host, &root).await);
    host.reopen(&live).await;
    host.submit(&root, "2", "hello").await;
    settle().await;
    // While frames flow, and the reader lags behind them.
    let flooding = async {
        flood(&host, &root, "root", 4500).await;
        flood(&host, &live, "live", 4500).await;
    };
    let resuming = async {
        settle().await;
        let resumed = host.kernel.resume_tree(&root, Seq(1)).await.unwrap();
        assert!(matches!(resumed.stream, Frames::Tree(_)));
        resumed
    };
    let ((), resumed) = tokio::join!(flooding, resuming);
    let mut frames: Vec<Frame> = resumed.frames.iter().map(|published| published.frame.clone()).collect();
    let snapshot = host.reopen(&root).await.snapshot;
    let mut at = Attachment { session: root.clone(), snapshot, stream: resumed.stream };
    frames.extend(seen(&mut at).await);
    let frames = by_session(frames);
    assert_whole(&host, &root, Seq(1), &frames[&root]);
    for id in [&live, &stored] {
        assert_whole(&host, id, Seq(0), &frames[id]);
    }
}

/// Rule 3.2.18, 3.2.21. Mends 9.1.17.
#[tokio::test(start_paused = true)]
async fn deleting_a_root_ends_its_children_first_and_waits_for_their_turns() {
    let host = host();
    let root = host.create().await.session;
    let stored = child(&host, &root).await;
    let host = host.crash();
    let mut at = tree(&host, &root).await;
    let live = child(&host, &root).await;
    for session in [&root, &live] {
        host.submit(session, "1", "think").await;
    }
    settle().await;
    drop(seen(&mut at).await);
    let mut feed = host.kernel.subscribe_gateway();
    host.kernel.delete(&root).await.unwrap();
    let mut removed = Vec::new();
    while removed.len() < 3 {
        match feed.next().await {
            GatewayEvent::SessionRemoved { session } => removed.push(session),
            // Catalogs are told when the host has just started.
            GatewayEvent::CatalogChanged { .. } => {}
            GatewayEvent::SessionCreated { summary } => panic!("{summary:?} is created"),
        }
    }
    assert_eq!(removed.pop(), Some(root.clone()), "the root goes last");
    removed.sort();
    let mut children = [live.clone(), stored.clone()];
    children.sort();
    assert_eq!(removed, children);
    let mut told: BTreeMap<SessionId, Vec<String>> = BTreeMap::new();
    while let Some(published) = at.stream.next().await {
        let event = match &published.frame.event {
            Event::TurnCompleted { status, .. } => format!("{status:?}"),
            Event::SessionClosed { reason } => format!("{reason:?}"),
            _ => continue,
        };
        told.entry(published.frame.session.clone()).or_default().push(event);
    }
    let expected = ["Interrupted { reason: Shutdown }", "Deleted"].map(str::to_owned).to_vec();
    assert_eq!(told, BTreeMap::from([(root.clone(), expected.clone()), (live, expected)]));
    assert!(host.kernel.list(SessionFilter::default()).await.unwrap().is_empty());
    assert!(host.journal.frames(&root).is_empty());
    let unknown = host.kernel.delete(&root).await.unwrap_err();
    assert_eq!(unknown.code, ErrorCode::SessionNotFound);
}

/// Rule 3.2.15.
#[tokio::test(start_paused = true)]
async fn all_who_are_attached_get_the_same_frames() {
    let host = host();
    let mut first = host.create().await;
    let root = first.session.clone();
    let mut others = [host.reopen(&root).await, tree(&host, &root).await];
    settle().await;
    let since = others[0].snapshot.seq;
    host.submit(&root, "1", "hello").await;
    settle().await;
    let mut expected = seen(&mut first).await;
    expected.retain(|frame| frame.seq > since);
    assert!(expected.iter().any(|frame| matches!(frame.event, Event::ItemDelta { .. })), "{expected:?}");
    for other in &mut others {
        assert_eq!(seen(other).await, expected);
    }
}

/// Rule 3.1.10.
#[tokio::test(start_paused = true)]
async fn only_a_live_root_has_children_and_none_while_it_is_deleted() {
    let host = host();
    let root = host.create().await.session;
    let first = child(&host, &root).await;
    let create = |parent: &SessionId| {
        let selector = SessionSelector::Create { spec: child_spec(parent) };
        host.kernel.open(selector, OpenOptions::default())
    };
    let refused = create(&first).await.map(|at| at.session).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput, "{refused:?}");
    host.model.hold_back();
    host.submit(&root, "1", "think").await;
    settle().await;
    let (deleted, refused) = tokio::join!(host.kernel.delete(&root), create(&root));
    deleted.unwrap();
    assert_eq!(refused.map(|at| at.session).unwrap_err().code, ErrorCode::SessionNotFound);
    assert!(host.kernel.list(SessionFilter::default()).await.unwrap().is_empty(), "none is left behind");
    // A root that is only stored is not live.
    let root = host.create().await.session;
    let host = host.crash();
    let selector = SessionSelector::Create { spec: child_spec(&root) };
    let refused = host.kernel.open(selector, OpenOptions::default()).await.map(|at| at.session);
    assert_eq!(refused.unwrap_err().code, ErrorCode::SessionNotFound);
}
