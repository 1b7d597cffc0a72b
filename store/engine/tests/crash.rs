//! The engine on disk in trouble: killed, copied while it runs, locked, damaged, closed.
//!
//! The state that a crash leaves is checked with batches that write one number to every family:
//! whatever comes back, all families must show the same number, and none below the last flush.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a failure is the finding")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use mainstay_engine::{Batch, Engine, EngineError, Family, RocksEngine, RocksOptions, Scan, View};

const DIRECTORY: &str = "ENGINE_CRASH_TEST_DIRECTORY";

fn small() -> RocksOptions {
    RocksOptions { cache_bytes: 1 << 20, memtable_bytes: 64 << 10, ..RocksOptions::default() }
}

fn number(at: u64) -> Bytes {
    at.to_be_bytes().to_vec().into()
}

/// Writes `at` to every family: as the newest value of one key, and as a key of its own.
fn numbered(at: u64) -> Batch {
    let mut batch = Batch::new();
    for family in Family::ALL {
        batch.put(family, "newest", number(at));
        batch.put(family, number(at), vec![at as u8; 64 * (1 + family.number())]);
        if at > 100 {
            batch.delete(family, number(at - 100));
        }
    }
    batch
}

/// The number that all families agree on.
fn newest(view: &dyn View) -> u64 {
    let all = Family::ALL.map(|family| {
        let value = view.get(family, b"newest").unwrap();
        let at = value.map_or(0, |value| u64::from_be_bytes(value[..].try_into().unwrap()));
        let mut cursor =
            view.cursor(family, Scan { upper: Some("n".into()), ..Scan::all() }).unwrap();
        cursor.seek_to_last();
        let last = cursor.valid().then(|| u64::from_be_bytes(cursor.key().try_into().unwrap()));
        assert_eq!(last.unwrap_or(0), at, "within {}", family.name());
        let mut count = 0;
        while cursor.valid() {
            count += 1;
            cursor.prev();
        }
        cursor.status().unwrap();
        assert_eq!(count, at.min(100), "keys in {}", family.name());
        at
    });
    assert!(all.iter().all(|at| *at == all[0]), "families differ: {all:?}");
    all[0]
}

/// Not a test by itself: the process that [`a_killed_engine_comes_back_at_one_point`] kills.
#[test]
fn child_writes_until_killed() {
    let Some(path) = std::env::var_os(DIRECTORY) else { return };
    let path = Path::new(&path);
    let engine = RocksEngine::open(path.join("engine"), &small()).unwrap();
    let first = newest(&engine) + 1;
    for at in first.. {
        engine.write(numbered(at)).unwrap();
        if at % 97 == 0 {
            engine.flush().unwrap();
            std::fs::write(path.join("flushed.new"), at.to_string()).unwrap();
            std::fs::rename(path.join("flushed.new"), path.join("flushed")).unwrap();
        }
    }
}

#[test]
fn a_killed_engine_comes_back_at_one_point() {
    let folder = tempfile::tempdir().unwrap();
    let mut before = 0;
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_writes_until_killed", "--nocapture"])
            .env(DIRECTORY, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // How far it gets is left to chance; that it got somewhere new is what is waited for.
        let flushed = loop {
            assert_eq!(child.try_wait().unwrap(), None, "the child ended by itself");
            let flushed = std::fs::read_to_string(folder.path().join("flushed"));
            let flushed = flushed.map_or(0, |text| text.parse().unwrap());
            if flushed > before {
                break flushed;
            }
            std::thread::sleep(Duration::from_millis(7 * round + 1));
        };
        child.kill().unwrap();
        child.wait().unwrap();
        let engine = RocksEngine::open(folder.path().join("engine"), &small()).unwrap();
        before = newest(&engine);
        assert!(before >= flushed, "flushed up to {flushed}, but {before} came back");
        engine.close();
    }
}

#[test]
fn a_copy_of_a_running_engine_is_at_one_point() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("engine");
    // Large memory: nothing moves on disk while the files are copied.
    let options = RocksOptions::default();
    let engine = RocksEngine::open(&from, &options).unwrap();
    for round in 0..3_u64 {
        for at in 1..=50 {
            engine.write(numbered(round * 100 + at)).unwrap();
        }
        engine.flush().unwrap();
        for at in 51..=100 {
            engine.write(numbered(round * 100 + at)).unwrap();
        }
        let to = folder.path().join(format!("copy{round}"));
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        let copy = RocksEngine::open(&to, &options).unwrap();
        assert_eq!(newest(&copy), round * 100 + 50);
    }
}

#[test]
fn a_closed_engine_keeps_what_it_had_and_frees_its_directory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    let engine = RocksEngine::open(&path, &small()).unwrap();
    engine.write(numbered(1)).unwrap();
    let view = engine.snapshot();
    let second = RocksEngine::open(&path, &small());
    assert!(matches!(second.err(), Some(EngineError::Locked { .. })));
    assert!(matches!(RocksEngine::destroy(&path).err(), Some(EngineError::Locked { .. })));
    engine.close();
    assert!(matches!(engine.write(numbered(2)).err(), Some(EngineError::Refused(_))));
    assert!(engine.flush().is_err());
    assert_eq!(newest(&*view), 1);
    drop(engine);
    assert_eq!(newest(&*view), 1);
    drop(view);
    let engine = RocksEngine::open(&path, &small()).unwrap();
    assert_eq!(newest(&engine), 1);
    drop(engine);
    RocksEngine::destroy(&path).unwrap();
    assert!(!path.exists());
    RocksEngine::destroy(&path).unwrap();
}

#[test]
fn missing_directories_are_made_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one/two");
    drop(RocksEngine::open(&path, &small()).unwrap());
    for made in [path.as_path(), path.parent().unwrap()] {
        assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
    }
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = RocksEngine::open(file.join("engine"), &small()).err().unwrap();
    assert!(error.to_string().contains("file/engine"), "{error}");
}

#[test]
fn a_view_outlives_the_engine_and_can_be_read_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let engine = RocksEngine::open(folder.path().join("engine"), &small()).unwrap();
    let views: Vec<_> = (1..=20)
        .map(|at| {
            engine.write(numbered(at)).unwrap();
            engine.snapshot()
        })
        .collect();
    for at in 21..600 {
        engine.write(numbered(at)).unwrap();
    }
    let readers: Vec<_> = views
        .into_iter()
        .zip(1..)
        .map(|(view, at)| std::thread::spawn(move || assert_eq!(newest(&*view), at)))
        .collect();
    drop(engine);
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn a_failed_flush_poisons() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    let engine = RocksEngine::open(&path, &small()).unwrap();
    engine.write(numbered(1)).unwrap();
    std::fs::rename(&path, folder.path().join("elsewhere")).unwrap();
    assert!(matches!(engine.flush().err(), Some(EngineError::Poisoned(_))));
    assert!(matches!(engine.write(numbered(2)).err(), Some(EngineError::Poisoned(_))));
    assert!(matches!(engine.health().err(), Some(EngineError::Poisoned(_))));
    assert_eq!(newest(&engine), 1);
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    let engine = RocksEngine::open(&path, &small()).unwrap();
    for at in 1..=200 {
        engine.write(numbered(at)).unwrap();
    }
    engine.flush().unwrap();
    drop(engine);
    for entry in std::fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "sst") {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[20] ^= 1;
            std::fs::write(&file, bytes).unwrap();
        }
    }
    let engine = RocksEngine::open(&path, &small()).unwrap();
    let mut cursor = engine.cursor(Family::Key, Scan::all()).unwrap();
    cursor.seek_to_first();
    while cursor.valid() {
        cursor.next();
    }
    assert!(matches!(cursor.status().err(), Some(EngineError::Corrupt(_))));
}

#[test]
fn tools_read_without_changing_anything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    assert!(RocksEngine::open_read_only(&path, &small()).is_err());
    let engine = RocksEngine::open(&path, &small()).unwrap();
    for at in 1..=300 {
        engine.write(numbered(at)).unwrap();
    }
    engine.checkpoint(folder.path().join("checkpoint")).unwrap();
    engine.write(numbered(301)).unwrap();
    let checkpoint =
        RocksEngine::open_read_only(folder.path().join("checkpoint"), &small()).unwrap();
    assert_eq!(newest(&checkpoint), 300);
    assert_eq!(newest(&*checkpoint.snapshot()), 300);
    assert!(matches!(checkpoint.write(numbered(302)).err(), Some(EngineError::Refused(_))));
    assert!(matches!(checkpoint.flush().err(), Some(EngineError::Refused(_))));
    assert!(matches!(checkpoint.reclaim().err(), Some(EngineError::Refused(_))));
}

#[test]
fn usage_grows_by_what_is_written_and_reclaim_gives_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let engine = RocksEngine::open(folder.path().join("engine"), &RocksOptions::default()).unwrap();
    assert!(engine.usage().total_bytes < 4096, "{:?}", engine.usage());
    let mut wanted = 0;
    for at in 0..500_u64 {
        let mut batch = Batch::new();
        // Without any pattern, so that compression gains nothing.
        let mut state = at + 1;
        let value: Vec<u8> = (0..2000)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            })
            .collect();
        batch.put(Family::Key, number(at), value);
        wanted += batch.bytes() as u64;
        engine.write(batch).unwrap();
        assert!(engine.usage().total_bytes >= wanted);
    }
    assert!(engine.usage().total_bytes < wanted * 11 / 10);
    engine.flush().unwrap();
    let full = engine.usage();
    assert!(full.total_bytes >= wanted && full.memory_bytes == 0, "{full:?}");
    let mut batch = Batch::new();
    for at in 0..490_u64 {
        batch.delete(Family::Key, number(at));
    }
    engine.write(batch).unwrap();
    engine.flush().unwrap();
    let doomed = engine.usage();
    assert!(doomed.in_use_bytes < full.total_bytes / 5, "{full:?} -> {doomed:?}");
    engine.reclaim().unwrap();
    engine.reclaim().unwrap();
    assert!(engine.wait_reclaimed(Duration::from_secs(60)));
    let after = engine.usage();
    assert!(after.total_bytes < full.total_bytes / 10, "{full:?} -> {after:?}");
    assert!(after.in_use_bytes <= after.total_bytes);
    engine.health().unwrap();
}

#[test]
fn a_flush_waits_for_its_own_data_behind_older_flushes() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine");
        // So small that each write starts a flush of what the one before it wrote.
        let options = RocksOptions { memtable_bytes: 512, ..small() };
        let engine = RocksEngine::open(&path, &options).unwrap();
        // Families with different numbers of memtables, which is what RocksDB mixes up.
        for (at, families) in [
            &[Family::Index, Family::LeaseKey][..],
            &[Family::Index, Family::History, Family::System],
            &[Family::LeaseKey],
            &[Family::Index],
        ]
        .iter()
        .enumerate()
        {
            let mut batch = Batch::new();
            for family in *families {
                batch.put(*family, number(at as u64), "value");
            }
            engine.write(batch).unwrap();
        }
        engine.flush().unwrap();
        engine.close();
        drop(engine);
        let engine = RocksEngine::open(&path, &options).unwrap();
        assert_eq!(engine.get(Family::Index, &number(3)).unwrap(), Some("value".into()));
    }
}

#[test]
fn flushes_at_one_time_count_bytes_once() {
    let dir = tempfile::tempdir().unwrap();
    let engine = RocksEngine::open(dir.path(), &small()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..30).for_each(|_| engine.flush().unwrap()));
        }
        for at in 0..2_000 {
            let mut batch = Batch::new();
            batch.put(Family::Key, number(at), vec![7; 1_000]);
            engine.write(batch).unwrap();
        }
    });
    engine.flush().unwrap();
    assert!(engine.usage().memory_bytes < 10_000_000, "{:?}", engine.usage());
}

#[test]
fn reclaim_is_cancelled_by_close() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine");
    let engine = RocksEngine::open(&path, &small()).unwrap();
    for at in 1..=600 {
        engine.write(numbered(at)).unwrap();
    }
    engine.reclaim().unwrap();
    engine.close();
    drop(engine);
    assert_eq!(newest(&RocksEngine::open(&path, &small()).unwrap()), 600);
}

#[test]
fn a_small_old_file_does_not_hide_a_large_new_one_from_the_use() {
    let folder = tempfile::tempdir().unwrap();
    let engine = RocksEngine::open(folder.path().join("engine"), &RocksOptions::default()).unwrap();
    for family in [Family::Key, Family::Index] {
        let mut batch = Batch::new();
        batch.put(family, number(0), "first");
        batch.put(family, number(1000), "last");
        engine.write(batch).unwrap();
    }
    engine.reclaim().unwrap();
    assert!(engine.wait_reclaimed(Duration::from_secs(60)));
    for family in [Family::Key, Family::Index] {
        let mut batch = Batch::new();
        for at in 1..1000_u64 {
            let random = (0..250)
                .flat_map(|i| (at << 16 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            batch.put(family, number(at), random.collect::<Vec<u8>>());
        }
        engine.write(batch).unwrap();
    }
    engine.flush().unwrap();
    let usage = engine.usage();
    assert!(usage.in_use_bytes > usage.total_bytes * 9 / 10, "{usage:?}");
}
