//! A disk that fails at the n-th write or sync: nothing is lost that was said to be stored, and the epoch ends.

use super::disks::{Fate, Outrun};
use super::*;
use crate::journal::jsonl::disk::make_dir;

#[tokio::test]
async fn a_failed_create_leaves_no_session() {
    let mut operations = 0;
    loop {
        let disk = Failing::new(10);
        let data = Data::on(disk.clone());
        disk.0.fail_after(Some(operations));
        let created = data.journal.create(data.session.clone()).await;
        disk.0.fail_after(None);
        if created.is_ok() {
            break;
        }
        let none = data.claim().await;
        assert!(matches!(none, Err(JournalError::NotFound { .. })), "{operations}: {none:?}");
        let listed = data.journal.list().await.unwrap();
        assert!(listed.sessions.is_empty() && listed.problems.is_empty(), "{operations}: {listed:?}");
        data.stored().await;
        operations += 1;
    }
    assert!(
        operations >= 7,
        "home, data, sessions, the session, the header and its sync were each refused once"
    );
}

/// Appends batches until the disk fails, then claims: what was said to be stored is there, and nothing else. A fault that
/// `stays` may keep the rest of the failed batch from being cut: then whole lines of it may be there, and no other.
async fn check_failure(operations: u32, partial: usize, stays: bool) -> bool {
    let disk = Failing::new(partial);
    let data = Data::on(disk.clone());
    let frames = script(&data.session);
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    match stays {
        true => disk.0.fail_after(Some(operations)),
        false => disk.0.fail_once(None, operations),
    }
    let mut stored = 0usize;
    let mut failed = false;
    for batch in frames.chunks(4) {
        let last = stored.checked_sub(1).map_or(Seq(0), |index| frames[index].seq);
        match data.journal.append(epoch.clone(), last, shared(batch), true).await {
            Ok(()) => stored += batch.len(),
            Err(JournalError::Io { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::StorageFull);
                failed = true;
                break;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    let met = disk.0.heal();
    if failed {
        check_after_failure(&data, &epoch, &frames, stored, if stays { 4 } else { 0 }).await;
    }
    met
}

async fn check_after_failure(data: &Data, epoch: &Epoch, frames: &[Frame], stored: usize, more: usize) {
    let last = stored.checked_sub(1).map_or(Seq(0), |index| frames[index].seq);
    let dead = data.journal.append(epoch.clone(), last, vec![], true).await;
    assert!(matches!(dead, Err(JournalError::Fenced { .. })), "{dead:?}");
    let found = match data.elsewhere().claim(data.session.clone()).await {
        Ok(claim) => claim.frames,
        Err(JournalError::NotFound { .. }) => Vec::new(),
        Err(other) => panic!("the lock was not given back: {other:?}"),
    };
    assert!(
        (stored..=stored + more).contains(&found.len()),
        "{stored} were stored, {} are there",
        found.len()
    );
    assert_eq!(found, frames[..found.len()], "what was said to be stored is there, and nothing made up");
}

#[tokio::test]
async fn a_failed_append_ends_the_epoch_and_loses_nothing_stored() {
    for partial in [0, 1, 100, 700, usize::MAX] {
        for stays in [false, true] {
            let mut operations = 0;
            while check_failure(operations, partial, stays).await {
                operations += 1;
            }
            assert!(operations >= 12, "every write and every sync failed once: {operations}");
        }
    }
}

#[tokio::test]
async fn appends_sync_only_when_asked() {
    let disk = Failing::new(0);
    let data = Data::on(disk.clone());
    let frames = script(&data.session);
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    let append = |last: u64, frames: &[Frame], sync| {
        data.journal.append(epoch.clone(), Seq(last), shared(frames), sync)
    };
    disk.0.fail_once(Some(Op::Sync), 0);
    append(0, &frames[..5], false).await.expect("no sync was asked for");
    append(frames[4].seq.0, &[], false).await.unwrap();
    disk.0.fail_once(Some(Op::Sync), 1);
    append(frames[4].seq.0, &[], true).await.expect("an empty append syncs the ones before");
    append(frames[4].seq.0, &[], true).await.expect_err("that sync was the one allowed");
}

#[tokio::test]
async fn a_summary_that_cannot_be_written_fails_no_append() {
    let data = Data::new();
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    fs::create_dir(data.path("summary.json.tmp")).unwrap();
    let frames = script(&data.session);
    data.journal.append(epoch, Seq(0), shared(&frames), true).await.unwrap();
    assert!(!data.path("summary.json").exists());
    assert_eq!(data.journal.list().await.unwrap().sessions[0].title.as_deref(), Some("run 1"));
}

#[tokio::test]
async fn a_claim_that_cannot_write_the_summary_leaves_no_stale_one() {
    let data = Data::new();
    let frames = data.stored().await;
    let bytes = fs::read(data.path("journal.jsonl")).unwrap();
    // The last frames were lost to a power cut, their summary was not.
    let kept = bytes.windows(2).position(|pair| pair == b"\n{").unwrap() + 1;
    let first = bytes[kept..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    fs::write(data.path("journal.jsonl"), &bytes[..kept + first]).unwrap();
    fs::create_dir(data.path("summary.json.tmp")).unwrap();
    let claim = data.claim().await.unwrap();
    assert_eq!(claim.frames, frames[..1]);
    assert!(!data.path("summary.json").exists());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_device_is_told_with_its_path() {
    let data = Data::new();
    let last = data.stored().await.last().unwrap().seq;
    let epoch = data.claim().await.unwrap().epoch;
    data.journal.release(epoch).await;
    // The journal is read from the file and written to a device that is always full.
    struct Full;
    impl Fate for Full {
        fn step(&self, op: Op) -> io::Result<()> {
            match op {
                Op::Write => {
                    let mut full = fs::OpenOptions::new().write(true).open("/dev/full")?;
                    io::Write::write_all(&mut full, b"x")
                }
                _ => Ok(()),
            }
        }
    }
    let full = JsonlJournal::with_disk(data.dir.path().join("home/data"), Arc::new(Fated(Full)));
    let epoch = full.claim(data.session.clone()).await.unwrap().epoch;
    let next = shared(&[frame(&data.session, last.0 + 1, extension("next"))]);
    let error = full.append(epoch, last, next, true).await.unwrap_err().to_kernel();
    assert_eq!(error.code, bingo_plugin_sdk::event::ErrorCode::Storage);
    let path = data.path("journal.jsonl");
    assert_eq!(
        error.message,
        format!("cannot write {}: No space left on device (os error 28)", path.display())
    );
}

/// One life of a store: sessions begin, grow, are read, listed, taken over and removed. Returns which batches were said to
/// be stored; whatever fails, the rest is tried.
async fn live(data: &Data, frames: &[Frame]) -> usize {
    let mut stored = 0;
    let mut epoch = data.journal.create(data.session.clone()).await.ok();
    for batch in frames.chunks(3) {
        if epoch.is_none() {
            let claimed = data.journal.claim(data.session.clone()).await.ok();
            // Somebody else's batch, or one that failed and could not be cut, is never appended to unseen.
            epoch = claimed.filter(|claim| claim.frames.len() == stored).map(|claim| claim.epoch);
        }
        let Some(own) = epoch.clone() else { continue };
        let last = stored.checked_sub(1).map_or(Seq(0), |index| frames[index].seq);
        match data.journal.append(own, last, shared(batch), true).await {
            Ok(()) if frames[stored..].starts_with(batch) => stored += batch.len(),
            Ok(()) => panic!("a batch was stored behind a hole"),
            Err(_) => epoch = None,
        }
        if epoch.is_none() {
            break;
        }
    }
    drop(data.journal.list().await);
    drop(data.journal.read(data.session.clone(), Seq(0), Seq(u64::MAX)).await);
    if let Some(epoch) = epoch {
        data.journal.release(epoch).await;
    }
    let again = data.journal.claim(data.session.clone()).await;
    if let Ok(claim) = again {
        data.journal.release(claim.epoch).await;
    }
    let other = SessionId::from("ses_other");
    if let Ok(epoch) = data.journal.create(other.clone()).await {
        data.journal.release(epoch).await;
    }
    drop(data.journal.delete(other).await);
    stored
}

/// Mends 9.1.9.
#[tokio::test]
async fn whatever_fails_once_nothing_stored_is_lost_and_the_session_opens_again() {
    for op in OPS {
        for partial in [0, 100] {
            let mut after = 0;
            loop {
                let disk = Failing::new(partial);
                let data = Data::on(disk.clone());
                let frames = script(&data.session);
                disk.0.fail_once(Some(op), after);
                let stored = live(&data, &frames).await;
                if !disk.0.heal() {
                    break;
                }
                let found = match data.claim().await {
                    Ok(claim) => claim.frames,
                    Err(JournalError::NotFound { .. }) => Vec::new(),
                    Err(other) => panic!("{op:?} {after}: {other:?}"),
                };
                assert_eq!(found, frames[..stored], "{op:?} {after}");
                let listed = data.journal.list().await.unwrap();
                assert!(listed.problems.is_empty(), "{op:?} {after}: {listed:?}");
                after += 1;
            }
            assert!(after > 0, "{op:?} never failed");
        }
    }
}

/// Mends 9.1.2, 9.1.20.
#[tokio::test]
async fn wherever_the_power_fails_what_was_synced_is_there_and_nothing_made_up() {
    let mut operations = 0;
    loop {
        let disk = Arc::new(Fated(PowerCut::default()));
        let data = Data::on(disk.clone());
        let frames = script(&data.session);
        // The folder that was there before anything.
        disk.sync_all(&File::open(data.dir.path()).unwrap()).unwrap();
        disk.0.cut_after(operations);
        let stored = live(&data, &frames).await;
        let after = tempfile::tempdir().unwrap();
        disk.0.restore(data.dir.path(), after.path());
        let journal = JsonlJournal::new(after.path().join("home/data"));
        let found = match journal.claim(data.session.clone()).await {
            Ok(claim) => claim.frames,
            Err(JournalError::NotFound { .. }) => Vec::new(),
            Err(other) => panic!("{operations}: {other:?}"),
        };
        assert!(found.len() >= stored, "{operations}: {stored} were stored, {} are there", found.len());
        assert_eq!(found, frames[..found.len()], "{operations}");
        if stored == frames.len() {
            break;
        }
        operations += 1;
    }
    assert!(operations > 30, "the power failed at every step: {operations}");
}

#[test]
fn a_directory_that_another_process_makes_first_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    make_dir(&Fated(Outrun(path.clone())), &path).unwrap();
    let failing = Failing::new(0);
    failing.0.fail_once(Some(Op::CreateDir), 0);
    let error = make_dir(&*failing, &dir.path().join("b")).unwrap_err();
    assert!(matches!(error, JournalError::Io { act: "create", .. }), "{error}");
}
