//! A disk that fails at the n-th write or sync: nothing is lost that was said to be stored, and the epoch ends.

use std::sync::Mutex;

use super::*;

/// A file system that lets so many operations pass and then fails each one.
struct Failing {
    left: Mutex<Option<u32>>,
    /// How many bytes of the failing write still reach the file.
    partial: usize,
}

impl Failing {
    fn new(partial: usize) -> Arc<Self> {
        Arc::new(Self { left: Mutex::new(None), partial })
    }

    fn fail_after(&self, operations: Option<u32>) {
        *self.left.lock().unwrap() = operations;
    }

    fn step(&self) -> io::Result<()> {
        match &mut *self.left.lock().unwrap() {
            None => Ok(()),
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Disk for Failing {
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        self.step().or_else(|full| {
            FileSystem.write(file, &bytes[..self.partial.min(bytes.len())])?;
            Err(full)
        })?;
        FileSystem.write(file, bytes)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        self.step()?;
        FileSystem.sync_data(file)
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        self.step()?;
        FileSystem.sync_all(file)
    }
}

#[tokio::test]
async fn a_failed_create_leaves_no_session() {
    let mut operations = 0;
    loop {
        let disk = Failing::new(10);
        let data = Data::on(disk.clone());
        disk.fail_after(Some(operations));
        let created = data.journal.create(data.session.clone()).await;
        disk.fail_after(None);
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

/// Appends batches until the disk fails, then claims: what was said to be stored is there, and nothing else.
async fn check_failure(operations: u32, partial: usize) -> bool {
    let disk = Failing::new(partial);
    let data = Data::on(disk.clone());
    let frames = script(&data.session);
    let epoch = data.journal.create(data.session.clone()).await.unwrap();
    disk.fail_after(Some(operations));
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
    disk.fail_after(None);
    if failed {
        check_after_failure(&data, &epoch, &frames, stored).await;
    }
    failed
}

async fn check_after_failure(data: &Data, epoch: &Epoch, frames: &[Frame], stored: usize) {
    let last = stored.checked_sub(1).map_or(Seq(0), |index| frames[index].seq);
    let dead = data.journal.append(epoch.clone(), last, vec![], true).await;
    assert!(matches!(dead, Err(JournalError::Fenced { .. })), "{dead:?}");
    let found = match data.elsewhere().claim(data.session.clone()).await {
        Ok(claim) => claim.frames,
        Err(JournalError::NotFound { .. }) => Vec::new(),
        Err(other) => panic!("the lock was not given back: {other:?}"),
    };
    assert_eq!(found, frames[..stored], "what was said to be stored is there, and nothing of what failed");
}

#[tokio::test]
async fn a_failed_append_ends_the_epoch_and_loses_nothing_stored() {
    for partial in [0, 1, 100, 700, usize::MAX] {
        let mut operations = 0;
        while check_failure(operations, partial).await {
            operations += 1;
        }
        assert!(operations >= 12, "every write and every sync failed once: {operations}");
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
    // One write and no sync are allowed.
    disk.fail_after(Some(1));
    append(0, &frames[..5], false).await.unwrap();
    // Nothing to write, nothing to sync.
    append(frames[4].seq.0, &[], false).await.unwrap();
    disk.fail_after(Some(1));
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
    impl Disk for Full {
        fn write(&self, _: &mut File, bytes: &[u8]) -> io::Result<()> {
            FileSystem.write(&mut fs::OpenOptions::new().append(true).open("/dev/full")?, bytes)
        }
        fn sync_data(&self, _: &File) -> io::Result<()> {
            Ok(())
        }
        fn sync_all(&self, _: &File) -> io::Result<()> {
            Ok(())
        }
    }
    let full = JsonlJournal::with_disk(data.dir.path().join("home/data"), Arc::new(Full));
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
