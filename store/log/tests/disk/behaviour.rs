//! What the log does when nothing is damaged: batches, cuts, marks, release, locks, failures.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::*;
use mainstay_log::{
    DumpEnd, DumpValue, Fault, Files as _, Finding, LogStore as _, Observer, OpenError, OsFiles,
    SimFiles, Wal, read_all,
};
use mainstay_proto::raftpb::HardState;
use mainstay_proto::walpb;

#[test]
fn a_new_log_recovers_as_empty() {
    let disk = SimFiles::new();
    create(&disk, 4096).close().unwrap();
    let (wal, found) = open(&disk, 4096).unwrap();
    assert_eq!(found.metadata, IDENTITY);
    assert_eq!(found.hard_state, state(0, 0, 0));
    assert_eq!(found.snapshot.index(), 0);
    assert_eq!(found.entries, []);
    assert_eq!(found.repair, None);
    assert_eq!(wal.last_index(), 0);
    assert_eq!(wal_names(&disk), ["0000000000000000-0000000000000000.wal"]);
}

#[test]
fn entries_come_back_across_segments() {
    let disk = filled(4096, 100, 200);
    assert!(wal_names(&disk).len() > 4, "{:?}", wal_names(&disk));
    let (mut wal, found) = open(&disk, 4096).unwrap();
    assert_eq!(found.entries, entries(1..=100, 1, 200));
    assert_eq!(found.hard_state, state(1, 0xabc, 99));
    wal.append(&[entry(101, 2, 200)], Some(&state(2, 1, 100)), true).unwrap();
    drop(wal);
    let (_, found) = open(&disk, 4096).unwrap();
    assert_eq!(found.entries.len(), 101);
    assert_eq!(found.hard_state, state(2, 1, 100));
}

#[test]
fn a_later_entry_replaces_all_from_its_index() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 1 << 16);
    wal.append(&entries(1..=10, 1, 8), Some(&state(1, 1, 4)), true).unwrap();
    wal.append(&entries(6..=7, 2, 8), Some(&state(2, 1, 5)), true).unwrap();
    drop(wal);
    let (_, found) = open(&disk, 1 << 16).unwrap();
    assert_eq!(found.entries, [entries(1..=5, 1, 8), entries(6..=7, 2, 8)].concat());
}

/// A snapshot of a leader with another log: what was here before it must never be applied.
#[test]
fn replay_from_before_a_received_snapshot_is_refused() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 1 << 16);
    wal.append(&entries(1..=9, 1, 8), Some(&state(1, 1, 4)), true).unwrap();
    wal.save_snapshot(&mark(7, 3)).unwrap();
    wal.append(&entries(8..=10, 3, 8), Some(&state(3, 0, 10)), true).unwrap();
    drop(wal);
    let (wal, found) = open(&disk, 1 << 16).unwrap();
    assert_eq!((found.snapshot, found.entries), (mark(7, 3), entries(8..=10, 3, 8)));
    drop(wal);
    let at_most = mainstay_log::Options { replay_from_at_most: Some(6), ..options(1 << 16) };
    let error = Wal::open(Arc::new(disk), &dir(), at_most).err().unwrap();
    let OpenError::Damaged(damage) = error else { panic!("{error}") };
    assert_eq!(damage.finding, Finding::Superseded { index: 7, term: 3, own: 1 });
}

#[test]
fn replay_starts_at_the_newest_committed_mark() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 1 << 16);
    wal.append(&entries(1..=10, 1, 8), Some(&state(1, 1, 10)), true).unwrap();
    wal.save_snapshot(&mark(5, 1)).unwrap();
    wal.save_snapshot(&mark(8, 1)).unwrap();
    // Received from the leader, but its hard state was never written.
    wal.save_snapshot(&mark(50, 1)).unwrap();
    drop(wal);
    let (wal, found) = open(&disk, 1 << 16).unwrap();
    assert_eq!(found.snapshot, mark(8, 1));
    assert_eq!(found.entries, entries(9..=10, 1, 8));
    drop(wal);
    let at_most = mainstay_log::Options { replay_from_at_most: Some(7), ..options(1 << 16) };
    let (wal, found) = Wal::open(Arc::new(disk.clone()), &dir(), at_most).unwrap();
    assert_eq!(found.snapshot, mark(5, 1));
    assert_eq!(found.entries, entries(6..=10, 1, 8));
    drop(wal);

    let (mut wal, _) = open(&disk, 1 << 16).unwrap();
    wal.save_snapshot(&mark(50, 1)).unwrap();
    wal.append(&[], Some(&state(1, 1, 50)), true).unwrap();
    wal.append(&entries(51..=52, 1, 8), None, true).unwrap();
    drop(wal);
    let (_, found) = open(&disk, 1 << 16).unwrap();
    assert_eq!(found.snapshot, mark(50, 1));
    assert_eq!(found.entries, entries(51..=52, 1, 8));
}

#[test]
fn a_received_snapshot_replaces_a_log_that_differs() {
    for (term, left) in [(1, 5), (2, 0)] {
        let disk = SimFiles::new();
        let mut wal = create(&disk, 1 << 16);
        wal.append(&entries(1..=10, 1, 8), Some(&state(1, 1, 3)), true).unwrap();
        wal.save_snapshot(&mark(5, term)).unwrap();
        wal.append(&[], Some(&state(2, 0, 5)), true).unwrap();
        drop(wal);
        let (mut wal, found) = open(&disk, 1 << 16).unwrap();
        assert_eq!((found.snapshot.index(), found.entries.len()), (5, left));
        wal.append(&[entry(6, 2, 8)], None, true).unwrap();
        drop(wal);
        assert_eq!(open(&disk, 1 << 16).unwrap().1.entries, [entry(6, 2, 8)]);
    }
}

#[test]
fn release_keeps_the_segment_with_the_index_and_the_newest_files() {
    let disk = filled(4096, 200, 200);
    let before = wal_names(&disk);
    assert!(before.len() > 9, "{before:?}");
    let (mut wal, _) = open(&disk, 4096).unwrap();
    // Nothing below the mark yet: the first segment holds index 1.
    wal.release_before(1).unwrap();
    assert_eq!(wal_names(&disk), before);
    wal.save_snapshot(&mark(150, 1)).unwrap();
    wal.release_before(150).unwrap();
    let after = wal_names(&disk);
    assert!(before.ends_with(&after));
    let first = u64::from_str_radix(&after[0][17..33], 16).unwrap();
    let second = u64::from_str_radix(&after[1][17..33], 16).unwrap();
    assert!(first <= 150, "{after:?}");
    assert!(after.len() == 5 || second > 150, "{after:?}");
    wal.append(&[entry(201, 1, 10)], Some(&state(1, 0xabc, 200)), true).unwrap();
    drop(wal);
    let (mut wal, found) = open(&disk, 4096).unwrap();
    assert_eq!(found.snapshot, mark(150, 1));
    assert_eq!(found.entries.len(), 51);
    // Near the end no segment above may be deleted beyond the five newest.
    wal.release_before(201).unwrap();
    assert_eq!(wal_names(&disk).len(), 5.min(after.len()));
}

#[test]
fn zero_max_wals_deletes_nothing() {
    let disk = filled(4096, 200, 200);
    let before = wal_names(&disk);
    let keep = mainstay_log::Options { max_wals: 0, ..options(4096) };
    let (mut wal, _) = Wal::open(Arc::new(disk.clone()), &dir(), keep).unwrap();
    wal.save_snapshot(&mark(190, 1)).unwrap();
    wal.release_before(190).unwrap();
    assert_eq!(wal_names(&disk), before);
}

#[derive(Default)]
struct Count {
    syncs: AtomicUsize,
    writes: Mutex<Vec<usize>>,
}

impl Observer for Count {
    fn fsync(&self, _took: Duration) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }
    fn write(&self, bytes: usize, _took: Duration) {
        self.writes.lock().unwrap().push(bytes);
    }
}

#[test]
fn a_batch_is_one_write_and_one_sync_and_a_commit_alone_is_neither() {
    let disk = SimFiles::new();
    disk.create_dir(Path::new("/member")).unwrap();
    let count = Arc::new(Count::default());
    let watched = mainstay_log::Options { observer: count.clone(), ..options(1 << 16) };
    let mut wal = Wal::create(Arc::new(disk.clone()), &dir(), IDENTITY, watched).unwrap();
    let counts = || (count.writes.lock().unwrap().len(), count.syncs.load(Ordering::Relaxed));
    wal.append(&entries(1..=50, 1, 100), Some(&state(1, 1, 0)), true).unwrap();
    assert_eq!(counts(), (1, 1));
    wal.append(&[], Some(&state(1, 1, 50)), false).unwrap();
    wal.append(&[], None, false).unwrap();
    wal.append(&[], Some(&HardState::default()), false).unwrap();
    assert_eq!(counts(), (1, 1));
    wal.append(&[], Some(&state(2, 1, 50)), false).unwrap();
    assert_eq!(counts(), (2, 2), "a new term is synced without being asked for");
    wal.append(&[], Some(&state(2, 3, 50)), false).unwrap();
    wal.append(&entries(51..=51, 2, 1), None, false).unwrap();
    assert_eq!(counts(), (4, 4), "and so are a vote and entries");
    wal.append(&[], None, true).unwrap();
    assert_eq!(counts(), (4, 4), "nothing new, nothing to sync");
    wal.append(&[], Some(&state(2, 3, 51)), false).unwrap();
    wal.append(&[], None, true).unwrap();
    assert_eq!(counts(), (5, 5));
    drop(wal);
    let (records, end) = read_all(&disk, &dir()).unwrap();
    assert!(matches!(end, DumpEnd::Clean), "{end:?}");
    let states = records.iter().filter(|record| matches!(record.value, DumpValue::State(_)));
    assert_eq!(states.count(), 5);
}

#[test]
fn close_writes_what_was_buffered() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 1 << 16);
    wal.append(&entries(1..=2, 1, 1), Some(&state(1, 1, 0)), true).unwrap();
    wal.append(&[], Some(&state(1, 1, 2)), false).unwrap();
    wal.close().unwrap();
    assert!(wal.append(&[], Some(&state(1, 1, 2)), true).is_err());
    assert!(wal.close().is_err());
    let disk = disk.crash(&mut |_| 0);
    assert_eq!(open(&disk, 1 << 16).unwrap().1.hard_state, state(1, 1, 2));
}

#[test]
fn a_failure_ends_the_log() {
    for fault in [Fault::Write, Fault::Sync] {
        let disk = SimFiles::new();
        let mut wal = create(&disk, 1 << 16);
        wal.append(&entries(1..=2, 1, 100), Some(&state(1, 1, 0)), true).unwrap();
        disk.inject(fault, 0);
        let error = wal.append(&entries(3..=3, 1, 100), None, true).unwrap_err();
        assert!(error.to_string().contains(".wal"), "{error}");
        let changes = disk.changes();
        for error in [
            wal.append(&entries(3..=3, 1, 100), None, true).unwrap_err(),
            wal.save_snapshot(&mark(1, 1)).unwrap_err(),
            wal.release_before(1).unwrap_err(),
            wal.close().unwrap_err(),
        ] {
            assert!(error.to_string().contains("failed before"), "{error}");
        }
        assert_eq!(disk.changes(), changes, "the disk was not touched again");
        drop(wal);
        let disk = disk.crash(&mut |_| 0);
        assert_eq!(open(&disk, 1 << 16).unwrap().1.entries, entries(1..=2, 1, 100));
    }
}

#[test]
fn what_no_reader_would_accept_is_not_written() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 1 << 16);
    wal.append(&entries(1..=2, 1, 1), None, true).unwrap();
    let error = wal.append(&entries(4..=4, 1, 1), None, true).unwrap_err();
    assert!(error.to_string().contains("entry 4 cannot follow entry 2"), "{error}");
    drop(wal);
    let (mut wal, found) = open(&disk, 1 << 16).unwrap();
    assert_eq!(found.entries.len(), 2);
    let bare = walpb::Snapshot { index: Some(2), term: Some(1), conf_state: None };
    assert!(wal.save_snapshot(&bare).is_err());
}

#[test]
fn reads_in_small_pieces_give_the_same() {
    let disk = filled(4096, 60, 150);
    disk.limit_reads(7);
    assert_eq!(open(&disk, 4096).unwrap().1.entries, entries(1..=60, 1, 150));
}

#[test]
fn a_failed_read_is_an_error_of_the_disk() {
    let disk = filled(4096, 60, 150);
    disk.inject(Fault::Read, 3);
    let Err(error) = open(&disk, 4096) else { panic!("opened") };
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn a_log_in_use_is_refused() {
    let disk = SimFiles::new();
    let wal = create(&disk, 4096);
    let Err(error) = open(&disk, 4096) else { panic!("opened twice") };
    assert!(matches!(&error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("-0000000000000000.wal: another process"), "{error}");
    drop(wal);
    assert!(open(&disk, 4096).is_ok());
}

#[test]
fn create_refuses_what_is_there() {
    let disk = SimFiles::new();
    drop(create(&disk, 4096));
    let again = || Wal::create(Arc::new(disk.clone()), &dir(), IDENTITY, options(4096)).err();
    assert!(matches!(again(), Some(OpenError::Exists { .. })));
    disk.remove(&dir().join(&wal_names(&disk)[0])).unwrap();
    disk.open(&dir().join("notes"), mainstay_log::Access::Create).unwrap();
    let error = again().unwrap();
    assert!(matches!(error, OpenError::NotEmpty { .. }), "{error}");
    disk.remove(&dir().join("notes")).unwrap();
    disk.open(&dir().join("0.tmp"), mainstay_log::Access::Create).unwrap();
    assert!(again().is_none(), "a leftover of the segment maker is no obstacle");
    let Err(error) = Wal::open(Arc::new(disk), Path::new("/member"), options(4096)) else {
        panic!("opened a directory without segments")
    };
    assert!(matches!(error, OpenError::NotFound { .. }), "{error}");
}

#[test]
fn the_real_disk_behaves_alike() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("member/wal");
    let files: Arc<OsFiles> = Arc::new(OsFiles);
    let small =
        mainstay_log::Options { segment_bytes: 1 << 16, ..mainstay_log::Options::default() };
    let mut wal = Wal::create(files.clone(), &dir, IDENTITY, small.clone()).unwrap();
    for index in 1..=300 {
        wal.append(&[entry(index, 1, 1000)], Some(&state(1, 1, index)), true).unwrap();
    }
    wal.save_snapshot(&mark(290, 1)).unwrap();
    let Err(error) = Wal::open(files.clone(), &dir, small.clone()) else { panic!("opened twice") };
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    wal.close().unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let names = files.list(&dir).unwrap();
    assert!(names.len() > 4, "{names:?}");
    assert!(names.iter().all(|name| name.ends_with(".wal")), "{names:?}");
    assert!(names.iter().all(|name| mode(&dir.join(name)) == 0o600));
    let last = dir.join(names.last().unwrap());
    assert_eq!(std::fs::metadata(last).unwrap().len(), 1 << 16);
    let (mut wal, found) = Wal::open(files.clone(), &dir, small).unwrap();
    assert_eq!(found.entries, entries(291..=300, 1, 1000));
    wal.release_before(290).unwrap();
    wal.append(&[entry(301, 1, 1000)], None, true).unwrap();
    wal.close().unwrap();
    assert!(files.list(&dir).unwrap().iter().all(|name| !name.ends_with(".tmp")));
}
