//! The work beside the log: the next segment, made before it is needed, so that a cut does not
//! wait for the disk to set aside 64 MB; and the deletion of old segments, so that nothing waits
//! for the disk to free them.
//!
//! Input: a directory and a size; names of files to delete. Output: an empty, locked, preallocated
//! file under a temporary name that the log renames. Names alternate between `0.tmp` and `1.tmp`,
//! so the file being made never has the name of the one just handed out.
//!
//! Making goes before deleting: between any two deletions a segment that is wanted is made.
//!
//! A segment is given back in steps, with pauses: where the file system passes on at once what is
//! freed (mount option `discard`), a whole segment holds up the syncs of the log for 10 ms and more,
//! and a load leaves dozens of segments. It loses its name first, so that the log never has a
//! segment that is cut short.
//!
//! **Invariant:** files are deleted one by one in the order given, so that what a crash leaves has
//! no gap: file systems lose unsynced changes of a directory from the last one backwards. The
//! directory is synced once for all.
//! **Invariant:** after a failure nothing more is made or deleted, and the next call reports it.
//! **Invariant:** after drop the thread has ended and has taken its file away. Files that were to
//! be deleted may be left.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::files::{Access, File, Files};

/// Bytes that are given back at a time.
const STEP: u64 = 4 << 20;
/// The disk's time for others between two steps.
const PAUSE: Duration = Duration::from_millis(10);

/// A segment in the making.
pub(crate) struct Prepared {
    pub(crate) file: Box<dyn File>,
    pub(crate) path: PathBuf,
}

/// Makes and deletes segments, on a thread of its own or on demand.
pub(crate) enum Pipeline {
    OnDemand(Hands),
    Aside(Aside),
}

/// What touches the disk.
pub(crate) struct Hands {
    files: Arc<dyn Files>,
    dir: PathBuf,
    size: u64,
    /// Whether directories are synced.
    sync: bool,
    count: u64,
}

/// The thread and what it shares with the log.
pub(crate) struct Aside {
    desk: Arc<Desk>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: Option<Prepared>,
    doomed: VecDeque<PathBuf>,
    /// Why the thread has ended.
    failure: Option<(io::ErrorKind, String)>,
    closed: bool,
}

impl Pipeline {
    pub(crate) fn new(
        files: Arc<dyn Files>,
        dir: &Path,
        size: u64,
        sync: bool,
        aside: bool,
    ) -> io::Result<Pipeline> {
        let hands = Hands { files, dir: dir.to_owned(), size, sync, count: 0 };
        if !aside {
            return Ok(Pipeline::OnDemand(hands));
        }
        let desk = Arc::new(Desk::default());
        let its = desk.clone();
        let thread = std::thread::Builder::new()
            .name("log-segments".to_owned())
            .spawn(move || its.work(hands))?;
        Ok(Pipeline::Aside(Aside { desk, thread: Some(thread) }))
    }

    /// The next file. Rename it before the next call.
    pub(crate) fn take(&mut self) -> io::Result<Prepared> {
        let desk = match self {
            Pipeline::OnDemand(hands) => return hands.make(),
            Pipeline::Aside(aside) => &aside.desk,
        };
        let mut state = desk.lock();
        loop {
            state.check()?;
            if let Some(prepared) = state.ready.take() {
                desk.changed.notify_all();
                return Ok(prepared);
            }
            state = desk.wait(state);
        }
    }

    /// Deletes files, the first first; beside the log they are only noted here.
    pub(crate) fn delete(&mut self, files: Vec<PathBuf>) -> io::Result<()> {
        match self {
            Pipeline::OnDemand(hands) => {
                for path in &files {
                    hands.delete(path)?;
                }
                if files.is_empty() { Ok(()) } else { hands.settle() }
            }
            Pipeline::Aside(Aside { desk, .. }) => {
                let mut state = desk.lock();
                state.check()?;
                state.doomed.extend(files);
                desk.changed.notify_all();
                Ok(())
            }
        }
    }

    /// Deletes nothing more.
    pub(crate) fn spare(&self) {
        if let Pipeline::Aside(aside) = self {
            aside.desk.lock().doomed.clear();
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.desk.lock().closed = true;
        self.desk.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that prepares log segments panicked");
        }
    }
}

impl State {
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some((kind, message)) => Err(io::Error::new(*kind, message.clone())),
        }
    }
}

/// Notes that the thread is gone, even by a panic, so that nobody waits for it.
struct Gone<'a>(&'a Desk);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        let ended = || (io::ErrorKind::Other, "the thread that prepares segments ended".to_owned());
        self.0.lock().failure.get_or_insert_with(ended);
        self.0.changed.notify_all();
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the lock")
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("no code panics while it holds the lock")
    }

    /// What the thread does.
    fn work(&self, mut hands: Hands) {
        let _gone = Gone(self);
        let mut unsynced = false;
        let mut state = self.lock();
        let failure = loop {
            let result = if state.closed {
                let unwanted = state.ready.take();
                drop(state);
                if let Some(prepared) = unwanted {
                    // Nobody depends on it; a leftover is emptied at the next start.
                    let _ = hands.files.remove(&prepared.path);
                }
                return;
            } else if state.ready.is_none() {
                drop(state);
                hands.make().map(Some)
            } else if let Some(path) = state.doomed.pop_front() {
                drop(state);
                unsynced = true;
                hands.delete(&path).map(|()| None)
            } else if unsynced {
                drop(state);
                unsynced = false;
                hands.settle().map(|()| None)
            } else {
                state = self.wait(state);
                continue;
            };
            state = self.lock();
            match result {
                Ok(None) => {}
                Ok(made) => {
                    state.ready = made;
                    self.changed.notify_all();
                }
                Err(error) => break error,
            }
        };
        state.failure = Some((failure.kind(), failure.to_string()));
    }
}

impl Hands {
    fn make(&mut self) -> io::Result<Prepared> {
        let path = self.dir.join(format!("{}.tmp", self.count % 2));
        let file = self.files.open(&path, Access::Create)?;
        if !file.try_lock()? {
            return Err(io::Error::other(format!(
                "{}: another process uses this file",
                path.display()
            )));
        }
        file.preallocate(self.size)?;
        self.count += 1;
        Ok(Prepared { file, path })
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        self.give_back(path).map_err(|error| {
            io::Error::new(error.kind(), format!("deleting {}: {error}", path.display()))
        })?;
        tracing::info!(path = %path.display(), "deleted a log segment");
        Ok(())
    }

    fn give_back(&self, path: &Path) -> io::Result<()> {
        let file = self.files.open(path, Access::Write)?;
        let mut size = file.size()?;
        if size <= STEP {
            return self.files.remove(path);
        }
        // One that a crash left is replaced.
        let nameless = self.dir.join("deleted.tmp");
        self.files.rename(path, &nameless)?;
        while size > STEP {
            size -= STEP;
            file.truncate(size)?;
            std::thread::sleep(PAUSE);
        }
        self.files.remove(&nameless)
    }

    fn settle(&self) -> io::Result<()> {
        if self.sync { self.files.sync_dir(&self.dir) } else { Ok(()) }
    }
}
