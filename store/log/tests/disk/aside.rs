//! What is done beside the log: a disk that is slow to delete, or fails to, or stops meanwhile.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use crate::common::*;
use mainstay_log::{
    Access, DumpEnd, Fault, File, Files, LogStore as _, Options, SimFiles, Wal, read_all,
};

const SEGMENT: u64 = 4096;

#[derive(Debug, PartialEq)]
enum Done {
    Made,
    Deleted(String),
    Synced,
}

/// A disk that deletes a segment only when it is told to, and tells who did what.
struct Slow {
    disk: SimFiles,
    /// What the next deletion has to come to.
    orders: Mutex<Receiver<io::Result<()>>>,
    log: Mutex<Sender<(ThreadId, Done)>>,
}

impl Slow {
    fn done(&self, what: Done) {
        // The test may be over.
        let _ = self.log.lock().unwrap().send((std::thread::current().id(), what));
    }
}

/// A disk that tells how files shrink: by the name they were opened by and the length. Also told are
/// new names, and removals as the length 0.
struct Shrinking {
    disk: SimFiles,
    seen: Arc<Mutex<Vec<(String, u64)>>>,
}

struct ShrinkingFile {
    file: Box<dyn File>,
    name: String,
    seen: Arc<Mutex<Vec<(String, u64)>>>,
}

impl File for ShrinkingFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn preallocate(&self, size: u64) -> io::Result<()> {
        self.file.preallocate(size)
    }
    fn truncate(&self, size: u64) -> io::Result<()> {
        self.file.truncate(size)?;
        self.seen.lock().unwrap().push((self.name.clone(), size));
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

impl Files for Shrinking {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let file = self.disk.open(path, access)?;
        Ok(Box::new(ShrinkingFile { file, name, seen: self.seen.clone() }))
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)?;
        let name = to.file_name().unwrap().to_str().unwrap().to_owned();
        self.seen.lock().unwrap().push((name, u64::MAX));
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        self.disk.remove(path)?;
        self.seen.lock().unwrap().push((name, 0));
        Ok(())
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }
}

impl Files for Slow {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn File>> {
        let file = self.disk.open(path, access)?;
        if access == Access::Create {
            self.done(Done::Made);
        }
        Ok(file)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.disk.exists(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".wal") {
            let order = self.orders.lock().unwrap().recv();
            order.unwrap_or(Ok(()))?;
        }
        self.disk.remove(path)?;
        self.done(Done::Deleted(name));
        Ok(())
    }
    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir_all(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)?;
        self.done(Done::Synced);
        Ok(())
    }
}

struct Bench {
    disk: SimFiles,
    wal: Wal,
    orders: Sender<io::Result<()>>,
    log: Receiver<(ThreadId, Done)>,
    last: u64,
}

impl Bench {
    /// A log of many segments on a slow disk, with a mark near its end.
    fn new() -> Self {
        let disk = filled(SEGMENT, 200, 200);
        let (orders, its_orders) = channel();
        let (its_log, log) = channel();
        let slow =
            Slow { disk: disk.clone(), orders: Mutex::new(its_orders), log: Mutex::new(its_log) };
        let (mut wal, _) = Wal::open(Arc::new(slow), &dir(), aside()).unwrap();
        wal.save_snapshot(&mark(190, 1)).unwrap();
        Bench { disk, wal, orders, log, last: 200 }
    }

    fn append(&mut self) -> io::Result<()> {
        self.last += 1;
        let state = state(1, 0xabc, self.last - 1);
        self.wal.append(&[entry(self.last, 1, 200)], Some(&state), true)
    }

    /// Appends until the next segment has begun.
    fn cut(&mut self) -> io::Result<()> {
        let newest = wal_names(&self.disk).pop();
        while wal_names(&self.disk).pop() == newest {
            self.append()?;
        }
        Ok(())
    }

    /// What others than this thread do next.
    fn next(&self) -> Done {
        loop {
            let (thread, done) = self.log.recv().unwrap();
            if thread != std::thread::current().id() {
                return done;
            }
            assert_eq!(done, Done::Synced, "only a cut touches the directory from here");
        }
    }
}

fn aside() -> Options {
    Options { prepare_ahead: true, ..options(SEGMENT) }
}

#[test]
fn the_log_goes_on_while_old_segments_are_deleted() {
    let mut bench = Bench::new();
    let before = wal_names(&bench.disk);
    let surplus = before.len() - 5;
    assert!(surplus > 5, "{before:?}");
    assert_eq!(bench.next(), Done::Made);

    // No deletion comes to its end before the first order, and yet all this returns.
    bench.wal.release_before(190).unwrap();
    for _ in 0..3 {
        bench.append().unwrap();
    }
    bench.cut().unwrap();
    bench.wal.release_before(190).unwrap();
    bench.append().unwrap();
    assert!(wal_names(&bench.disk).starts_with(&before), "nothing is deleted yet");

    // The segment that the cut has used up is replaced before the second deletion.
    bench.orders.send(Ok(())).unwrap();
    assert_eq!(bench.next(), Done::Deleted(before[0].clone()));
    assert_eq!(bench.next(), Done::Made);
    // One more is surplus since the cut.
    for name in &before[1..=surplus] {
        bench.orders.send(Ok(())).unwrap();
        assert_eq!(bench.next(), Done::Deleted(name.clone()));
    }
    assert_eq!(bench.next(), Done::Synced, "once for all");
    assert_eq!(wal_names(&bench.disk).len(), 5);
    bench.wal.close().unwrap();
    let (wal, found) = open(&bench.disk, SEGMENT).unwrap();
    assert_eq!(found.snapshot, mark(190, 1));
    assert_eq!(wal.last_index(), bench.last);
}

#[test]
fn closing_leaves_a_log_without_a_gap_and_the_rest_to_the_next_run() {
    let mut bench = Bench::new();
    let before = wal_names(&bench.disk);
    bench.wal.release_before(190).unwrap();
    bench.orders.send(Ok(())).unwrap();
    assert_eq!(bench.next(), Done::Made);
    assert_eq!(bench.next(), Done::Deleted(before[0].clone()));
    // From here on the disk is quick.
    let Bench { disk, mut wal, orders, .. } = bench;
    drop(orders);
    wal.close().unwrap();
    let left = wal_names(&disk);
    assert!(before.ends_with(&left) && left.len() >= 5, "{left:?}");
    let (mut wal, _) = open(&disk, SEGMENT).unwrap();
    wal.release_before(190).unwrap();
    assert_eq!(wal_names(&disk).len(), 5);
}

#[test]
fn a_failed_deletion_ends_the_log_at_the_next_cut_or_release() {
    let mut bench = Bench::new();
    let before = wal_names(&bench.disk);
    bench.wal.release_before(190).unwrap();
    bench.orders.send(Err(io::Error::other("the disk is bad"))).unwrap();
    // One segment is ready; the second cut needs another one.
    let error = bench.cut().and_then(|()| bench.cut()).unwrap_err().to_string();
    assert!(error.contains(&before[0]) && error.contains("the disk is bad"), "{error}");
    let error = bench.wal.release_before(195).unwrap_err().to_string();
    assert!(error.contains("failed before"), "{error}");
    assert!(wal_names(&bench.disk).starts_with(&before), "nothing was deleted");
}

/// Wherever the machine stops and however much of what was not synced is lost: no gap.
#[test]
fn a_stop_while_segments_are_deleted_leaves_a_log_without_a_gap() {
    let base = filled(SEGMENT, 200, 200);
    let mut shortened = 0;
    for prepare_ahead in [false, true] {
        for stop in 0..30 {
            for lost in 0..6 {
                let disk = base.crash(&mut |_| 0);
                let options = Options { prepare_ahead, ..options(SEGMENT) };
                let (mut wal, _) = Wal::open(Arc::new(disk.clone()), &dir(), options).unwrap();
                wal.save_snapshot(&mark(190, 1)).unwrap();
                disk.inject(Fault::PowerOff, stop);
                // Beside the log it fails later, or when this is over.
                let _ = wal.release_before(190);
                let _ = wal.append(&[entry(201, 1, 2000)], Some(&state(1, 0xabc, 200)), true);
                let _ = wal.append(&[entry(202, 1, 2000)], Some(&state(1, 0xabc, 200)), true);
                drop(wal);
                let disk = disk.crash(&mut |below| (below - 1).saturating_sub(lost));
                let (wal, found) = open(&disk, SEGMENT).unwrap();
                assert_eq!(found.snapshot, mark(190, 1));
                assert!(found.entries.len() >= 10);
                drop(wal);
                let (_, end) = read_all(&disk, &dir()).unwrap();
                assert!(matches!(end, DumpEnd::Clean), "{end:?}");
                shortened += usize::from(wal_names(&disk).len() < wal_names(&base).len());
            }
        }
    }
    assert!(shortened > 60, "{shortened}");
}

#[test]
fn a_large_segment_loses_its_name_and_then_its_bytes_step_by_step() {
    const LARGE: u64 = 10 << 20;
    let disk = SimFiles::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let files = Shrinking { disk: disk.clone(), seen: seen.clone() };
    let mut wal = Wal::create(Arc::new(files), &dir(), IDENTITY, options(LARGE)).unwrap();
    for index in 1..=70 {
        let state = state(1, 0xabc, index);
        wal.append(&[entry(index, 1, 1 << 20)], Some(&state), true).unwrap();
    }
    let before = wal_names(&disk);
    assert!(before.len() > 5, "{before:?}");
    wal.save_snapshot(&mark(70, 1)).unwrap();
    seen.lock().unwrap().clear();
    wal.release_before(70).unwrap();

    let gone = before.len() - wal_names(&disk).len();
    assert!(gone > 0, "{before:?}");
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    for (steps, name) in seen.chunks(seen.len() / gone).zip(&before) {
        let nameless = "deleted.tmp".to_owned();
        let [first, cuts @ .., last] = steps else { panic!("{steps:?}") };
        assert_eq!(*first, (nameless.clone(), u64::MAX));
        assert_eq!(*last, (nameless, 0));
        let mut length = LARGE + (1 << 20);
        for (of, left) in cuts {
            assert_eq!(of, name);
            assert!(length - left <= 5 << 20, "a step from {length} to {left}");
            length = *left;
        }
        assert!(length <= 5 << 20, "{steps:?}");
    }
    wal.close().unwrap();
    let (wal, found) = open(&disk, LARGE).unwrap();
    assert_eq!(found.snapshot, mark(70, 1));
    assert_eq!(wal.last_index(), 70);
}
