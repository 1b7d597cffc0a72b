//! Where the engine lives: generations of it below `member/mainstay`, one of which is current.
//!
//! ```text
//! member/mainstay/LOCK                       held while a process uses the directory
//! member/mainstay/CURRENT                    the name of the current generation
//! member/mainstay/engine-%016x/              a generation; the number is the index of the snapshot
//!                                            that it was made from, 0 for the first one
//! member/mainstay/staged-%016x/              a generation that is being built
//! ```
//! A snapshot of another member becomes a generation beside the current one and replaces it by a
//! rewrite of `CURRENT`. Readers of the old generation go on; its directory is removed when the
//! last of them is gone, or at the next start.
//! **Invariant:** `engine-*` is complete and durable: it is built as `staged-*`, flushed, closed
//! and only then renamed. `CURRENT` changes by rename, so it is always whole.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use mainstay_engine::{Engine, EngineError, MemEngine};

use crate::config::EngineKind;

const CURRENT: &str = "CURRENT";
const LOCK: &str = "LOCK";
/// How often a lock that is taken is tried, and the pause between two tries.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
const GENERATION: &str = "engine-";
const STAGED: &str = "staged-";

/// Why the engine's directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another process has it.
    #[error("{}: in use by another process; stop the mainstay that runs on this data directory", .0.display())]
    Locked(PathBuf),
    /// `CURRENT` names something that is not there.
    #[error(
        "{}: names the generation {name:?}, which is not there; the engine was damaged from outside. \
         {}",
        .file.display(), remedy(.file.parent().unwrap_or(.file))
    )]
    Dangling {
        /// The file.
        file: PathBuf,
        /// What is in it.
        name: String,
    },
    /// The engine itself.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The files of the engine are not what it wrote.
    #[error("{source}. {}", remedy(.directory))]
    Damaged {
        /// The directory of all generations.
        directory: PathBuf,
        /// What the engine said.
        source: EngineError,
    },
    /// The disk.
    #[error("{}: {doing}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// What can be done about an engine that does not open.
fn remedy(directory: &Path) -> String {
    format!(
        "Move {} away and start again: the engine is made anew from the log where that reaches back \
         far enough, and otherwise the start says how to replace this member",
        directory.display()
    )
}

fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> HomeError {
    let path = path.to_owned();
    move |source| HomeError::Io { path, doing, source }
}

/// One generation that is open. Its directory goes when it is retired and the last user drops it.
pub(crate) struct Generation {
    engine: Arc<dyn Engine>,
    /// Published states that somebody still has.
    views: AtomicUsize,
    /// After the engine: files are unlinked when it has let go of them.
    directory: Option<Directory>,
}

struct Directory {
    path: PathBuf,
    retired: AtomicBool,
}

impl Generation {
    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub(crate) fn view_opened(&self) {
        self.views.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn view_closed(&self) {
        self.views.fetch_sub(1, Ordering::Relaxed);
    }

    /// Views of the engine that somebody still has.
    pub(crate) fn open_views(&self) -> usize {
        self.views.load(Ordering::Relaxed)
    }

    /// Another generation is current now: this one's directory is of no use any more.
    pub(crate) fn retire(&self) {
        if let Some(directory) = &self.directory {
            directory.retired.store(true, Ordering::SeqCst);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.engine.close();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !*self.retired.get_mut() {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "an old engine is left for the next start to remove");
        }
    }
}

/// The directory `member/mainstay`, locked.
pub(crate) struct EngineHome {
    kind: EngineKind,
    directory: PathBuf,
    /// Keeps the lock.
    _lock: Option<File>,
}

impl EngineHome {
    /// Takes the directory, which is made when it is not there.
    pub(crate) fn lock(kind: EngineKind, directory: PathBuf) -> Result<Self, HomeError> {
        if kind == EngineKind::Memory {
            return Ok(Self { kind, directory, _lock: None });
        }
        create_private_dir(&directory).map_err(io_error(&directory, "create"))?;
        let path = directory.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(io_error(&path, "open"))?;
        // A process that another thread just forked holds copies of all open files, and so the
        // lock of a store that was closed meanwhile, until its exec.
        for _ in 0..LOCK_TRIES {
            match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let home = Self { kind, directory, _lock: Some(lock) };
                    home.mend_current()?;
                    return Ok(home);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(error) => return Err(io_error(&path, "lock")(error.into())),
            }
        }
        Err(HomeError::Locked(path))
    }

    /// Whether what the engine has flushed is there after a restart.
    pub(crate) fn is_durable(&self) -> bool {
        self.kind != EngineKind::Memory
    }

    /// Whether the current generation is there.
    pub(crate) fn has_engine(&self) -> bool {
        let named = fs::read_to_string(self.directory.join(CURRENT)).unwrap_or_default();
        let name = named.trim();
        name.starts_with(GENERATION) && self.directory.join(name).is_dir()
    }

    /// What an engine has left here, whole or not: the names of it. A member has its log before it
    /// has any of them, so next to no log they mean that the log is lost.
    pub(crate) fn traces(&self) -> Result<Vec<String>, HomeError> {
        if self.kind == EngineKind::Memory {
            return Ok(Vec::new());
        }
        let listing = || io_error(&self.directory, "list");
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(listing())? {
            let name = entry.map_err(listing())?.file_name().to_string_lossy().into_owned();
            if name == CURRENT || name.starts_with(GENERATION) || name.starts_with(STAGED) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Forgets a generation that is named and not there, so that the next `open` makes a new one.
    pub(crate) fn forget_current(&self) -> Result<(), HomeError> {
        let current = self.directory.join(CURRENT);
        match fs::remove_file(&current) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(io_error(&current, "remove")(error))
            }
            _ => Ok(()),
        }
    }

    /// Where `CURRENT` was lost or overwritten, and only one generation is there, it is the one that
    /// was named. Whether it fits the log is looked at later, as always.
    fn mend_current(&self) -> Result<(), HomeError> {
        if self.has_engine() {
            return Ok(());
        }
        let mut names = self.traces()?;
        names.retain(|name| name.starts_with(GENERATION));
        if let [name] = &names[..] {
            let file = self.directory.join(CURRENT);
            tracing::warn!(file = %file.display(), engine = %name, "named the only engine anew");
            self.set_current(name)?;
        }
        Ok(())
    }

    /// Opens the current generation; makes the first one when there is none.
    pub(crate) fn open(&self) -> Result<Generation, HomeError> {
        if self.kind == EngineKind::Memory {
            return self.open_generation(PathBuf::new());
        }
        let current = self.directory.join(CURRENT);
        let name = match fs::read_to_string(&current) {
            Ok(name) => name.trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let name = generation_name(0);
                let path = self.directory.join(&name);
                create_private_dir(&path).map_err(io_error(&path, "create"))?;
                // Makes the name of the directory durable too.
                self.set_current(&name)?;
                name
            }
            Err(error) => return Err(io_error(&current, "read")(error)),
        };
        let path = self.directory.join(&name);
        if !name.starts_with(GENERATION) || !path.is_dir() {
            return Err(HomeError::Dangling { file: current, name });
        }
        self.open_generation(path)
    }

    fn open_generation(&self, path: PathBuf) -> Result<Generation, HomeError> {
        let (engine, directory): (Arc<dyn Engine>, _) = match &self.kind {
            EngineKind::Memory => (Arc::new(MemEngine::new()), None),
            EngineKind::Rocks { cache_bytes, memtable_bytes } => {
                let opened = open_rocks(&path, *cache_bytes, *memtable_bytes);
                (opened.map_err(|error| self.open_error(error))?, Some(path))
            }
        };
        let directory = directory.map(|path| Directory { path, retired: false.into() });
        Ok(Generation { engine, views: AtomicUsize::new(0), directory })
    }

    fn open_error(&self, source: EngineError) -> HomeError {
        let damaged = match &source {
            EngineError::Corrupt(_) => true,
            EngineError::Directory { reason, .. } => reason.contains("No such file"),
            _ => false,
        };
        let directory = self.directory.clone();
        if damaged { HomeError::Damaged { directory, source } } else { source.into() }
    }

    /// Starts a new generation for the snapshot at `index`. An unfinished one is thrown away.
    pub(crate) fn stage(&self, index: u64) -> Result<Staging<'_>, HomeError> {
        let path = self.directory.join(format!("{STAGED}{index:016x}"));
        if self.kind != EngineKind::Memory {
            remove_dir(&path)?;
        }
        let generation = self.open_generation(path)?;
        Ok(Staging { home: self, index, generation })
    }

    /// Whether a complete generation for the snapshot at `index` waits.
    pub(crate) fn has_staged(&self, index: u64) -> bool {
        self.kind != EngineKind::Memory && self.directory.join(generation_name(index)).is_dir()
    }

    /// Makes the generation of the snapshot at `index` current and opens it.
    pub(crate) fn switch_to(&self, index: u64) -> Result<Generation, HomeError> {
        let name = generation_name(index);
        let generation = self.open_generation(self.directory.join(&name))?;
        self.set_current(&name)?;
        Ok(generation)
    }

    /// Removes every generation but the current one.
    pub(crate) fn clean(&self) -> Result<(), HomeError> {
        if self.kind == EngineKind::Memory {
            return Ok(());
        }
        let current = fs::read_to_string(self.directory.join(CURRENT)).unwrap_or_default();
        let entries = fs::read_dir(&self.directory).map_err(io_error(&self.directory, "list"))?;
        for entry in entries {
            let entry = entry.map_err(io_error(&self.directory, "list"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let ours = name.starts_with(GENERATION) || name.starts_with(STAGED);
            if ours && name != current.trim() {
                remove_dir(&entry.path())?;
            }
        }
        Ok(())
    }

    fn set_current(&self, name: &str) -> Result<(), HomeError> {
        let (path, new) = (self.directory.join(CURRENT), self.directory.join("CURRENT.tmp"));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(name.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            sync_dir(&self.directory)
        };
        write().map_err(io_error(&path, "write"))
    }
}

#[cfg(feature = "rocks")]
fn open_rocks(
    path: &Path,
    cache_bytes: usize,
    memtable_bytes: usize,
) -> Result<Arc<dyn Engine>, EngineError> {
    let options = mainstay_engine::RocksOptions {
        cache_bytes,
        memtable_bytes,
        ..mainstay_engine::RocksOptions::default()
    };
    Ok(Arc::new(mainstay_engine::RocksEngine::open(path, &options)?))
}

#[cfg(not(feature = "rocks"))]
fn open_rocks(path: &Path, _: usize, _: usize) -> Result<Arc<dyn Engine>, EngineError> {
    let reason = "this build has no engine on disk (feature `rocks`)".to_owned();
    Err(EngineError::Directory { path: path.to_owned(), reason })
}

/// A generation that is being filled.
pub(crate) struct Staging<'a> {
    home: &'a EngineHome,
    index: u64,
    generation: Generation,
}

/// A generation that is filled and waits for its snapshot to be installed.
pub(crate) struct Staged {
    pub(crate) index: u64,
    /// Kept open only by the engine in memory, which has no directory to be opened from.
    in_memory: Option<Generation>,
}

impl Staging<'_> {
    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        self.generation.engine()
    }

    /// Makes the generation durable and complete.
    pub(crate) fn finish(self) -> Result<Staged, HomeError> {
        self.generation.engine.flush()?;
        let directory = self.generation.directory.as_ref();
        let Some(staged) = directory.map(|directory| directory.path.clone()) else {
            return Ok(Staged { index: self.index, in_memory: Some(self.generation) });
        };
        drop(self.generation);
        let complete = self.home.directory.join(generation_name(self.index));
        remove_dir(&complete)?;
        fs::rename(&staged, &complete).map_err(io_error(&complete, "rename"))?;
        sync_dir(&self.home.directory).map_err(io_error(&self.home.directory, "sync"))?;
        Ok(Staged { index: self.index, in_memory: None })
    }
}

impl Staged {
    /// Throws the generation away.
    pub(crate) fn discard(self, home: &EngineHome) -> Result<(), HomeError> {
        match self.in_memory {
            Some(_) => Ok(()),
            None => remove_dir(&home.directory.join(generation_name(self.index))),
        }
    }

    /// Makes the generation current.
    pub(crate) fn install(self, home: &EngineHome) -> Result<Generation, HomeError> {
        match self.in_memory {
            Some(generation) => Ok(generation),
            None => home.switch_to(self.index),
        }
    }
}

fn generation_name(index: u64) -> String {
    format!("{GENERATION}{index:016x}")
}

fn remove_dir(path: &Path) -> Result<(), HomeError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error(path, "remove")(error))
        }
        _ => Ok(()),
    }
}

/// Makes a directory and its parents that belong to this user alone.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
#[cfg(feature = "rocks")]
mod tests {
    use super::*;
    use mainstay_engine::{Batch, Family};

    fn home(path: &Path) -> EngineHome {
        let kind = EngineKind::Rocks { cache_bytes: 1 << 20, memtable_bytes: 1 << 20 };
        EngineHome::lock(kind, path.join("mainstay")).unwrap()
    }

    fn put(engine: &Arc<dyn Engine>, value: &'static [u8]) {
        let mut batch = Batch::new();
        batch.put(Family::System, &b"k"[..], value);
        engine.write(batch).unwrap();
    }

    #[test]
    fn a_second_process_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let _first = home(dir.path());
        let kind = EngineKind::default();
        let second = EngineHome::lock(kind, dir.path().join("mainstay"));
        assert!(matches!(second, Err(HomeError::Locked(_))));
    }

    #[test]
    fn a_staged_generation_replaces_the_current_one_and_readers_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(dir.path());
        let first = home.open().unwrap();
        put(first.engine(), b"old");
        first.engine().flush().unwrap();
        let staging = home.stage(7).unwrap();
        put(staging.engine(), b"new");
        let staged = staging.finish().unwrap();
        assert!(home.has_staged(7));
        let second = staged.install(&home).unwrap();
        first.retire();
        assert_eq!(first.engine().get(Family::System, b"k").unwrap().unwrap(), "old");
        assert_eq!(second.engine().get(Family::System, b"k").unwrap().unwrap(), "new");
        drop(first);
        assert!(!dir.path().join("mainstay/engine-0000000000000000").exists());
        drop(second);
        let again = home.open().unwrap();
        assert_eq!(again.engine().get(Family::System, b"k").unwrap().unwrap(), "new");
    }

    #[test]
    fn leftovers_of_a_crash_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(dir.path());
        drop(home.open().unwrap());
        fs::create_dir(dir.path().join("mainstay/staged-0000000000000009")).unwrap();
        fs::create_dir(dir.path().join("mainstay/engine-0000000000000009")).unwrap();
        home.clean().unwrap();
        assert!(!home.has_staged(9));
        assert!(dir.path().join("mainstay/engine-0000000000000000").exists());
    }

    #[test]
    fn the_only_generation_is_found_without_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let current = dir.path().join("mainstay/CURRENT");
        let first = home(dir.path());
        let generation = first.open().unwrap();
        put(generation.engine(), b"kept");
        generation.engine().flush().unwrap();
        drop((generation, first));
        for found in [None, Some(""), Some("engine-00000000000000ff")] {
            match found {
                None => fs::remove_file(&current).unwrap(),
                Some(text) => fs::write(&current, text).unwrap(),
            }
            let generation = home(dir.path()).open().unwrap();
            assert_eq!(generation.engine().get(Family::System, b"k").unwrap().unwrap(), "kept");
        }
        // Of two, nobody knows which.
        fs::create_dir(dir.path().join("mainstay/engine-0000000000000009")).unwrap();
        fs::write(&current, "").unwrap();
        assert!(matches!(home(dir.path()).open(), Err(HomeError::Dangling { .. })));
    }

    #[test]
    fn damage_comes_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        drop(home(dir.path()).open().unwrap());
        let path = dir.path().join("mainstay/engine-0000000000000000/CURRENT");
        for found in [&b"garbage"[..], b""] {
            fs::write(&path, found).unwrap();
            let error = home(dir.path()).open().err().unwrap().to_string();
            let advice = format!("Move {} away", dir.path().join("mainstay").display());
            assert!(error.contains(&advice), "{error}");
        }
    }

    #[test]
    fn a_missing_generation_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let home = home(dir.path());
        drop(home.open().unwrap());
        fs::remove_dir_all(dir.path().join("mainstay/engine-0000000000000000")).unwrap();
        assert!(matches!(home.open(), Err(HomeError::Dangling { .. })));
    }
}
