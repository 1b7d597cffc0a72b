//! The engine on disk: RocksDB with one column family per map.
//!
//! The store has its log already, so RocksDB keeps none: writes go to memory only, and all families
//! are flushed together (`atomic_flush`), which gives the engine's durability promise. What memory
//! it takes is set by two budgets, block cache and memtables, not by the number of keys.
//!
//! Flushes are started by this module, not by RocksDB, when half of the memtable budget is full:
//! so it knows what is on disk and what is not, and [`Engine::usage`] is right for a store of a few
//! kilobytes too, where RocksDB's own figures count whole arena blocks.

mod cursor;
mod options;
mod reclaim;
mod snapshot;

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rocksdb::checkpoint::Checkpoint;
use rocksdb::{
    Cache, ColumnFamily, DB, ErrorKind, FlushOptions, LiveFile, ReadOptions, WriteBatch,
    WriteBufferManager, WriteOptions, properties,
};

pub use self::options::RocksOptions;
use self::reclaim::Reclaim;
use crate::{Batch, Cursor, Engine, EngineError, Family, Op, Result, Scan, Usage, View};

/// How long figures about files are good for. Asking RocksDB takes its one big lock.
const FILES_FRESH: Duration = Duration::from_secs(1);

/// How often a flush looks whether it is done, once RocksDB says so.
const FLUSH_POLL: Duration = Duration::from_millis(1);

/// What an entry takes in a memtable beside its bytes: sequence number, lengths, skip-list links.
const ENTRY_OVERHEAD: u64 = 32;

/// What the engine, its snapshots and its background thread share. RocksDB is closed when the last
/// of them is dropped.
struct Shared {
    db: DB,
    path: PathBuf,
    cache: Cache,
    memtables: WriteBufferManager,
    memtable_bytes: u64,
    no_wal: WriteOptions,
    read_only: bool,
    closed: AtomicBool,
    /// The first failure. Once set, nothing is written any more.
    poison: OnceLock<EngineError>,
    /// Bytes that were written since the last flush was started.
    active: AtomicU64,
    size: Mutex<Size>,
}

/// What is known of the size beside `active`.
#[derive(Default)]
struct Size {
    /// `None` if they have to be looked at again.
    files: Option<Files>,
    /// Bytes of flushes that were started and are not known to be finished.
    flushing: u64,
    /// How often all flushes were found finished.
    settled: u64,
}

/// Figures about files, and when they were taken.
#[derive(Clone, Copy)]
struct Files {
    taken: Instant,
    total: u64,
    live: u64,
}

/// An engine in a directory.
pub struct RocksEngine {
    shared: Arc<Shared>,
    reclaim: Arc<Reclaim>,
    /// Options of reads outside of snapshots, made once.
    gets: ReadOptions,
}

impl RocksEngine {
    /// Opens the engine in `path`, which is created when it is not there.
    pub fn open(path: impl AsRef<Path>, options: &RocksOptions) -> Result<Self> {
        let path = path.as_ref();
        create(path).map_err(|error| directory(path, error))?;
        Self::open_as(path, options, false)
    }

    /// Opens an engine for reading only: for tools, on a directory that no process writes to.
    /// Creates and changes nothing.
    pub fn open_read_only(path: impl AsRef<Path>, options: &RocksOptions) -> Result<Self> {
        Self::open_as(path.as_ref(), options, true)
    }

    fn open_as(path: &Path, options: &RocksOptions, read_only: bool) -> Result<Self> {
        let cache = Cache::new_hyper_clock_cache(options.cache_bytes, 0);
        let memtables = WriteBufferManager::new_write_buffer_manager(options.memtable_bytes, false);
        let db_options = options::database(options, &memtables);
        let families = options::families(options, &cache);
        let db = if read_only {
            DB::open_cf_descriptors_read_only(&db_options, path, families, false)
        } else {
            DB::open_cf_descriptors(&db_options, path, families)
        };
        let db = db.map_err(|error| open_error(path, &error))?;
        let mut no_wal = WriteOptions::default();
        no_wal.disable_wal(true);
        let shared = Arc::new(Shared {
            db,
            path: path.to_owned(),
            cache,
            memtables,
            memtable_bytes: options.memtable_bytes as u64,
            no_wal,
            read_only,
            closed: AtomicBool::new(false),
            poison: OnceLock::new(),
            active: AtomicU64::new(0),
            size: Mutex::default(),
        });
        Ok(Self { shared, reclaim: Arc::default(), gets: ReadOptions::default() })
    }

    /// Removes an engine and everything else in its directory. Fails when the engine is open.
    pub fn destroy(path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if !path.exists() {
            return Ok(());
        }
        // RocksDB takes its lock first; the plain removal below would pull the files from under a
        // running engine.
        DB::destroy(&rocksdb::Options::default(), path)
            .map_err(|error| open_error(path, &error))?;
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(directory(path, error))
            }
            _ => Ok(()),
        }
    }

    /// Makes a second engine at `target` that holds what this one holds now. Files are shared by
    /// hard links where the file system can. `target` must not exist.
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref();
        self.shared.check()?;
        if !self.shared.read_only {
            self.shared.flush(true)?;
        }
        Checkpoint::new(&self.shared.db)
            .and_then(|checkpoint| checkpoint.create_checkpoint(target))
            .map_err(|error| directory(target, error))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// RocksDB's own report on levels, stalls and compactions, for people.
    pub fn report(&self) -> String {
        let stats = Family::ALL.into_iter().filter_map(|family| {
            self.shared.db.property_value_cf(self.shared.handle(family), properties::STATS).ok()?
        });
        stats.collect::<Vec<_>>().join("\n")
    }
}

impl Shared {
    fn handle(&self, family: Family) -> &ColumnFamily {
        self.db.cf_handle(family.name()).expect("every family is opened with the database")
    }

    fn handles(&self) -> [&ColumnFamily; Family::ALL.len()] {
        Family::ALL.map(|family| self.handle(family))
    }

    /// Refuses work on an engine that failed or was closed.
    fn check(&self) -> Result<()> {
        match self.poison.get() {
            Some(error) => Err(error.clone()),
            None if self.closed.load(Ordering::Acquire) => Err(EngineError::Refused("closed")),
            None => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(EngineError::Refused("open for reading only"));
        }
        self.check()
    }

    /// Turns a failure into the engine's last word.
    fn fail(&self, doing: &str, error: &rocksdb::Error) -> EngineError {
        if error.kind() == ErrorKind::ShutdownInProgress {
            return EngineError::Refused("closed");
        }
        let error = match error.kind() {
            ErrorKind::Corruption => EngineError::Corrupt(format!("{doing}: {error}")),
            _ => EngineError::Poisoned(format!("{doing}: {error}")),
        };
        self.poison.get_or_init(|| error).clone()
    }

    fn int(&self, family: Family, property: &properties::PropName) -> u64 {
        let value = self.db.property_int_value_cf(self.handle(family), property);
        value.ok().flatten().unwrap_or(0)
    }

    fn write(&self, batch: &Batch) -> Result<()> {
        self.check_writable()?;
        let handles = self.handles();
        let overhead = batch.len() as u64 * ENTRY_OVERHEAD;
        let mut writes = WriteBatch::with_capacity_bytes(batch.bytes() + 16 * batch.len() + 16);
        for op in batch.ops() {
            match op {
                Op::Put(family, key, value) => writes.put_cf(handles[family.number()], key, value),
                Op::Delete(family, key) => writes.delete_cf(handles[family.number()], key),
                Op::DeleteRange(family, from, to) => {
                    writes.delete_range_cf(handles[family.number()], from, to);
                }
            }
        }
        self.db.write_opt(writes, &self.no_wal).map_err(|error| self.fail("write", &error))?;
        let bytes = batch.bytes() as u64 + overhead;
        let active = self.active.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if active >= self.memtable_bytes / 2 {
            self.flush(false)?;
        }
        Ok(())
    }

    /// Starts to write all families' memory to files, and waits for the end if asked to.
    fn flush(&self, wait: bool) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        // Taken as a whole, so that two flushes at one time do not count the same bytes twice.
        let (begun, settled) = {
            let mut size = self.size();
            size.flushing += self.active.swap(0, Ordering::Relaxed);
            (size.flushing, size.settled)
        };
        let flushed = self.db.flush_cfs_opt(&self.handles(), &options);
        flushed.map_err(|error| self.fail("flush", &error))?;
        if wait {
            self.wait_for_files()?;
            // From here on the files have what was counted as on its way to them.
            let mut size = self.size();
            size.files = None;
            if size.settled == settled {
                size.flushing = size.flushing.saturating_sub(begun);
            }
        }
        self.check_background()
    }

    /// Waits until each family had a moment without memory on its way to a file, which proves that
    /// what a flush found is there. RocksDB (11.8) waits for less: it compares a family's memory
    /// with another family's mark, so while an older flush runs it may return before its own began.
    fn wait_for_files(&self) -> Result<()> {
        for family in Family::ALL {
            while self.int(family, properties::NUM_IMMUTABLE_MEM_TABLE) > 0 {
                self.check_background()?;
                std::thread::sleep(FLUSH_POLL);
            }
        }
        Ok(())
    }

    /// RocksDB retries failed background work by itself. What failed once is not trusted here.
    fn check_background(&self) -> Result<()> {
        if self.int(Family::Key, properties::BACKGROUND_ERRORS) > 0 {
            let error = EngineError::Poisoned(format!(
                "a background job failed; see {}",
                self.path.join("LOG").display()
            ));
            self.poison.get_or_init(|| error);
        }
        self.check()
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        // Plain numbers: a panic while they were replaced cannot leave them half written.
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files, and bytes that are on their way to them.
    fn fresh_files(&self) -> (Files, u64) {
        let mut size = self.size();
        if let Some(files) = size.files
            && files.taken.elapsed() < FILES_FRESH
        {
            return (files, size.flushing);
        }
        let mut files = Files { taken: Instant::now(), total: 0, live: 0 };
        let mut waiting = 0;
        let list = self.db.live_files().unwrap_or_default();
        for family in Family::ALL {
            let own = list.iter().filter(|file| file.column_family_name == family.name());
            let Content { bytes, live, longest_run } = content(own);
            files.total += bytes;
            files.live += match family {
                // Nothing is overwritten there.
                Family::Key => live,
                // RocksDB's estimate knows of overwritten keys, ours of deleted ones. Its takes a
                // file above one that spans it for overwrites of it, however small that one is;
                // but keys in one sorted run are different ones.
                _ => {
                    live.min(self.int(family, properties::ESTIMATE_LIVE_DATA_SIZE).max(longest_run))
                }
            };
            waiting += self.int(family, properties::NUM_IMMUTABLE_MEM_TABLE);
        }
        if waiting == 0 {
            size.flushing = 0;
            size.settled += 1;
        }
        size.files = Some(files);
        (files, size.flushing)
    }
}

/// What one family's files hold.
#[derive(Default)]
struct Content {
    bytes: u64,
    /// Estimate of the bytes that deletions leave alive: each is taken to hide one put.
    live: u64,
    /// Bytes of the longest sequence of files in which no key is twice.
    longest_run: u64,
}

fn content<'a>(files: impl Iterator<Item = &'a LiveFile>) -> Content {
    let (mut entries, mut deletions) = (0, 0);
    let mut content = Content::default();
    let mut levels = BTreeMap::new();
    for file in files {
        let size = file.size as u64;
        content.bytes += size;
        entries += file.num_entries;
        deletions += file.num_deletions;
        // On level 0 every file is a run of its own, below it every level.
        let run = levels.entry(file.level).or_insert(0);
        *run = if file.level == 0 { size.max(*run) } else { *run + size };
        content.longest_run = content.longest_run.max(*run);
    }
    let puts = entries.saturating_sub(deletions);
    content.live = match u128::from(puts) {
        0 if deletions == 0 => content.bytes,
        0 => 0,
        all => {
            let live = u128::from(puts.saturating_sub(deletions));
            (u128::from(content.bytes) * live / all) as u64
        }
    };
    content
}

impl View for RocksEngine {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        snapshot::get(&self.shared, &self.gets, family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        snapshot::multi_get(&self.shared, &self.gets, family, keys)
    }

    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>> {
        Ok(cursor::open(&self.shared, ReadOptions::default(), family, scan))
    }
}

impl Engine for RocksEngine {
    fn snapshot(&self) -> Arc<dyn View> {
        Arc::new(snapshot::Pinned::new(&self.shared))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.shared.write(&batch)
    }

    fn flush(&self) -> Result<()> {
        self.shared.check_writable()?;
        self.shared.flush(true)
    }

    fn usage(&self) -> Usage {
        let (files, flushing) = self.shared.fresh_files();
        let memory_bytes = self.shared.active.load(Ordering::Relaxed) + flushing;
        let total_bytes = files.total + memory_bytes;
        Usage {
            total_bytes,
            in_use_bytes: total_bytes.min(files.live + memory_bytes),
            file_bytes: files.total,
            memory_bytes,
            memtable_bytes: self.shared.memtables.get_usage() as u64,
            cache_bytes: self.shared.cache.get_usage() as u64,
        }
    }

    fn health(&self) -> Result<()> {
        self.shared.check_background()
    }

    fn reclaim(&self) -> Result<()> {
        self.shared.check_writable()?;
        self.reclaim.start(&self.shared)
    }

    fn wait_reclaimed(&self, at_most: Duration) -> bool {
        self.reclaim.wait(at_most)
    }

    fn close(&self) {
        if self.shared.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        // Also ends a manual compaction in its middle, and flushes what is in memory: not needed
        // for safety, but the next start then has less of the log to replay.
        self.shared.db.cancel_all_background_work(true);
        self.reclaim.join();
    }
}

impl Drop for RocksEngine {
    fn drop(&mut self) {
        self.close();
    }
}

/// Creates a directory, for its owner alone, so that it is there after a power failure. What is in
/// it RocksDB syncs itself.
fn create(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create(parent)?;
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::File::open(parent)?.sync_all()
}

fn directory(path: &Path, reason: impl std::fmt::Display) -> EngineError {
    EngineError::Directory { path: path.to_owned(), reason: reason.to_string() }
}

fn open_error(path: &Path, error: &rocksdb::Error) -> EngineError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Corruption => EngineError::Corrupt(format!("{}: {text}", path.display())),
        // RocksDB has no error kind of its own for this; both texts come from its file layer.
        ErrorKind::IOError if text.contains("lock hold by") || text.contains("lock file") => {
            EngineError::Locked { path: path.to_owned() }
        }
        _ => directory(path, text),
    }
}
