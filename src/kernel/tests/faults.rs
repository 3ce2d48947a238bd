//! A disk that fails at any of its operations, seen by the clients of a session and of its neighbour.

use bingo_plugin_sdk::event::{CloseReason, ErrorCode, Event, Frame, KernelError};
use bingo_plugin_sdk::rpc::{OpenOptions, SessionSelector, SessionSpec};

use crate::kernel::Attachment;
use crate::kernel::testing::{Host, seen, settle, words};
use crate::settings::SyncMode;

/// What the clients of two sessions saw while one operation failed.
struct Seen {
    frames: Vec<Frame>,
    errors: Vec<KernelError>,
}

async fn submit(host: &Host, client: &Attachment, intent: &str, seen: &mut Seen) {
    let sent = host.kernel.submit(&client.session, intent.into(), words("words")).await;
    seen.errors.extend(sent.err());
}

/// A session's life: it begins, two turns run, the second one behind a line that waits.
async fn live(host: &Host) -> (Option<Attachment>, Seen) {
    let mut told = Seen { frames: Vec::new(), errors: Vec::new() };
    let spec = SessionSpec { title: Some("t".to_owned()), cwd: "/".to_owned(), ..SessionSpec::default() };
    let opened = host.kernel.open(SessionSelector::Create { spec }, OpenOptions::default()).await;
    let mut client = match opened {
        Ok(client) => client,
        Err(error) => {
            told.errors.push(error);
            return (None, told);
        }
    };
    submit(host, &client, "one", &mut told).await;
    settle().await;
    submit(host, &client, "two", &mut told).await;
    settle().await;
    host.model.answer_once();
    settle().await;
    host.model.answer_once();
    told.frames.extend(seen(&mut client).await);
    (Some(client), told)
}

fn is_closed_for_storage(frame: &Frame) -> bool {
    matches!(&frame.event, Event::SessionClosed { reason: CloseReason::Error { .. } })
}

/// Mends 9.1.9.
/// Rule 7.13.
#[tokio::test(start_paused = true)]
async fn whichever_operation_fails_the_session_closes_in_words_and_opens_again_and_others_go_on() {
    let mut operations = 0;
    loop {
        let host = Host::start(SyncMode::Frame, Vec::new());
        let mut neighbour = host.create().await;
        settle().await;
        host.journal.fail_after(operations);
        let (client, told) = live(&host).await;
        if !host.journal.heal() {
            assert!(told.errors.is_empty() && !told.frames.iter().any(is_closed_for_storage));
            break;
        }
        let storage = told.errors.iter().any(|error| error.code == ErrorCode::Storage);
        match client {
            None => assert!(storage, "{operations}: {:?}", told.errors),
            Some(client) => {
                assert!(
                    told.frames.last().is_some_and(is_closed_for_storage),
                    "{operations}: {:#?}",
                    told.frames
                );
                let stored = host.journal.frames(&client.session);
                // The end itself cannot be stored: a turn that ran, the notice, the close.
                let ends =
                    told.frames.iter().rev().take_while(|frame| frame.seq > stored.last().unwrap().seq);
                let unstored: Vec<_> = ends.filter(|frame| frame.event.is_durable()).collect();
                assert!(unstored.len() <= 2, "{operations}: {unstored:#?}");
                let again = host.reopen(&client.session).await;
                host.model.answer_always();
                host.submit(&again.session, "three", "words").await;
                settle().await;
                assert!(again.snapshot.seq > stored.last().unwrap().seq);
                host.model.hold_back();
            }
        }
        host.model.answer_always();
        host.submit(&neighbour.session, "n", "words").await;
        let frames = seen(&mut neighbour).await;
        let done = frames.iter().any(|frame| matches!(frame.event, Event::TurnCompleted { .. }));
        assert!(done, "{operations}: a neighbour goes on");
        operations += 1;
    }
    assert!(operations >= 8, "each of them failed once: {operations}");
}
