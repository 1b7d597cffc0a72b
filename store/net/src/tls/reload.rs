//! What is built from files, and built again when they change.
//!
//! Input: paths and a way to build. Output: the newest result that could be built. Files are looked
//! at whenever the result is asked for, so nothing runs in between.
//!
//! **Invariants:** a result that could not be built never replaces one that could, and is warned
//! of once for each state of the files; whoever asks never waits for another's reading.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

use super::error::TlsError;
use super::files::Content;

/// A file that changed less than this ago may change again without looking different. The seconds
/// are whole, and file systems' clocks tick slowly.
const SETTLES_AFTER: Duration = Duration::from_secs(2);

/// Files as they were read.
pub(super) struct Contents(Vec<(PathBuf, io::Result<Vec<u8>>)>);

impl Contents {
    pub(super) fn read(paths: &[PathBuf]) -> Self {
        Contents(paths.iter().map(|path| (path.clone(), std::fs::read(path))).collect())
    }

    /// One of the files.
    pub(super) fn of<'a>(&'a self, path: &Path) -> Content<'a> {
        let (path, read) = self
            .0
            .iter()
            .find(|(known, _)| known == path)
            .expect("a builder asks only for the files that it named");
        (path, read)
    }

    fn hash(&self, with: &RandomState) -> u64 {
        let bytes: Vec<_> = self.0.iter().map(|(_, read)| read.as_ref().ok()).collect();
        with.hash_one(bytes)
    }
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    /// Whether the last change is so long ago that the next one will have another time.
    fn is_settled(&self, now: SystemTime) -> bool {
        let (seconds, _) = self.changed.max(self.modified);
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.max(0) as u64);
        now.duration_since(changed).is_ok_and(|age| age > SETTLES_AFTER)
    }
}

/// The state of the files that was last looked at.
struct Seen {
    stamps: Vec<Option<Stamp>>,
    settled: bool,
    hash: u64,
}

type Build<T> = Box<dyn Fn(&Contents) -> Result<T, TlsError> + Send + Sync>;

/// Something built from files.
pub(super) struct Reloading<T> {
    paths: Vec<PathBuf>,
    build: Build<T>,
    current: ArcSwap<T>,
    hasher: RandomState,
    seen: Mutex<Seen>,
}

impl<T> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("paths", &self.paths).finish_non_exhaustive()
    }
}

fn look(paths: &[PathBuf]) -> (Vec<Option<Stamp>>, bool) {
    let now = SystemTime::now();
    let stamps: Vec<_> = paths.iter().map(|path| Stamp::of(path)).collect();
    // A file that is not there has another stamp as soon as it is.
    let settled = stamps.iter().flatten().all(|stamp| stamp.is_settled(now));
    (stamps, settled)
}

impl<T> Reloading<T> {
    /// Builds for the first time; an error is the caller's.
    pub(super) fn new(
        paths: Vec<PathBuf>,
        build: impl Fn(&Contents) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let (stamps, settled) = look(&paths);
        let contents = Contents::read(&paths);
        let current = ArcSwap::from_pointee(build(&contents)?);
        let hasher = RandomState::new();
        let hash = contents.hash(&hasher);
        let seen = Mutex::new(Seen { stamps, settled, hash });
        Ok(Reloading { paths, build: Box::new(build), current, hasher, seen })
    }

    /// The newest that could be built. Looks at the files; reads them only if they changed.
    pub(super) fn current(&self) -> Arc<T> {
        // Whoever finds another one looking takes what there is.
        if let Ok(mut seen) = self.seen.try_lock() {
            self.refresh(&mut seen);
        }
        self.current.load_full()
    }

    fn refresh(&self, seen: &mut Seen) {
        let (stamps, settled) = look(&self.paths);
        if stamps == seen.stamps && seen.settled {
            return;
        }
        let contents = Contents::read(&self.paths);
        let hash = contents.hash(&self.hasher);
        let same = hash == seen.hash;
        *seen = Seen { stamps, settled, hash };
        if same {
            return;
        }
        match (self.build)(&contents) {
            Ok(built) => {
                self.current.store(Arc::new(built));
                tracing::info!(files = ?self.paths, "TLS files changed and are in use");
            }
            Err(error) => tracing::warn!(
                %error,
                "TLS files changed and cannot be used; what was read before stays in use"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn text(contents: &Contents, path: &Path) -> Result<String, TlsError> {
        match contents.of(path).1 {
            Ok(bytes) if bytes != b"bad" => Ok(String::from_utf8_lossy(bytes).into_owned()),
            _ => Err(TlsError::file(path, "bad", "write it again")),
        }
    }

    #[test]
    fn what_cannot_be_built_replaces_nothing_and_is_tried_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "one").unwrap();
        let built = Arc::new(AtomicUsize::new(0));
        let (count, file) = (built.clone(), path.clone());
        let reloading = Reloading::new(vec![path.clone()], move |contents| {
            count.fetch_add(1, Ordering::Relaxed);
            text(contents, &file)
        })
        .unwrap();
        let now = || reloading.current().to_string();
        assert_eq!(now(), "one");
        // The same length within the same tick of the clock.
        std::fs::write(&path, "two").unwrap();
        assert_eq!(now(), "two");
        std::fs::write(&path, "bad").unwrap();
        let before = built.load(Ordering::Relaxed);
        for _ in 0..5 {
            assert_eq!(now(), "two");
        }
        std::fs::remove_file(&path).unwrap();
        for _ in 0..5 {
            assert_eq!(now(), "two");
        }
        assert_eq!(built.load(Ordering::Relaxed), before + 2);
        let next = dir.path().join("g");
        std::fs::write(&next, "new").unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert_eq!(now(), "new");
    }
}
