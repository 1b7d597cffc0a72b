//! Giving back space without stopping anybody: manual compaction by stretches of keys, on a thread
//! of its own, one stretch at a time.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rocksdb::{BottommostLevelCompaction, CompactOptions, LiveFile};

use super::{Shared, directory};
use crate::{Family, Result};

/// Bytes of files in one stretch. Flushes and automatic compactions get their turn between two
/// stretches, so this bounds how long they wait.
const STRETCH_BYTES: u64 = 8 << 20;

/// After a stretch the disk is left alone for this many times as long as the stretch took: the log
/// is synced to the same disk, and a pass is in no hurry.
const REST: u32 = 3;

/// The longest rest, so that closing does not wait for longer.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// The reclaim thread's state.
#[derive(Default)]
pub(super) struct Reclaim {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    /// Asked for while a pass ran: what became garbage meanwhile needs another one.
    again: bool,
    thread: Option<JoinHandle<()>>,
}

impl Reclaim {
    /// Starts a pass, or notes that another one is wanted.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>) -> Result<()> {
        let mut state = self.state();
        if state.running {
            state.again = true;
            return Ok(());
        }
        let (this, shared) = (Arc::clone(self), Arc::clone(shared));
        let path = shared.path.clone();
        let thread = std::thread::Builder::new()
            .name("engine-reclaim".to_owned())
            .spawn(move || this.run(&shared))
            .map_err(|error| directory(&path, error))?;
        state.running = true;
        state.thread = Some(thread);
        Ok(())
    }

    /// Waits until no pass runs. `false`: one still does.
    pub(super) fn wait(&self, at_most: Duration) -> bool {
        let waited = self.done.wait_timeout_while(self.state(), at_most, |state| state.running);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.running
    }

    /// Waits for the thread's end. The engine is closing, so this does not take long.
    pub(super) fn join(&self) {
        let thread = self.state().thread.take();
        if let Some(thread) = thread {
            // A panic there was printed by the thread itself, and its pass changed no data.
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Three flags: a panic cannot leave them inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, shared: &Shared) {
        loop {
            pass(shared);
            let mut state = self.state();
            if state.again && shared.check().is_ok() {
                state.again = false;
                continue;
            }
            state.running = false;
            shared.size().files = None;
            self.done.notify_all();
            return;
        }
    }
}

/// One pass over everything. A failure shows in the engine's poison, not here.
fn pass(shared: &Shared) {
    // The figures of `usage` count flushes by this path only; a manual compaction would start one
    // behind its back.
    if shared.flush(true).is_err() {
        return;
    }
    let Ok(files) = shared.db.live_files() else { return };
    for family in Family::ALL {
        let own = files.iter().filter(|file| file.column_family_name == family.name());
        for stretch in stretches(own) {
            if shared.closed.load(Ordering::Acquire) || shared.poison.get().is_some() {
                return;
            }
            let started = Instant::now();
            let mut options = CompactOptions::default();
            options.set_exclusive_manual_compaction(false);
            if stretch.deletions {
                // The last level is only rewritten where deletions got stuck in it.
                options.set_bottommost_level_compaction(BottommostLevelCompaction::ForceOptimized);
            }
            shared.db.compact_range_cf_opt(
                shared.handle(family),
                stretch.from.as_deref(),
                stretch.to.as_deref(),
                &options,
            );
            std::thread::sleep((started.elapsed() * REST).min(LONGEST_REST));
        }
    }
}

/// A part of a family's keys.
#[derive(Debug, PartialEq, Eq)]
struct Stretch {
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    deletions: bool,
}

/// Cuts a family into stretches at the beginnings of files, about [`STRETCH_BYTES`] each. Together
/// they cover all keys; no files, no stretches.
fn stretches<'a>(files: impl Iterator<Item = &'a LiveFile>) -> Vec<Stretch> {
    let mut files: Vec<_> = files.collect();
    files.sort_by(|one, other| one.start_key.cmp(&other.start_key));
    let mut all: Vec<Stretch> = Vec::new();
    let mut bytes = 0;
    for file in files {
        let deletions = file.num_deletions > 0;
        match all.last_mut() {
            Some(last) if bytes < STRETCH_BYTES => last.deletions |= deletions,
            last => {
                let from = last.map(|last| {
                    last.to.clone_from(&file.start_key);
                    file.start_key.clone().unwrap_or_default()
                });
                all.push(Stretch { from, to: None, deletions });
                bytes = 0;
            }
        }
        bytes += file.size as u64;
    }
    all
}
