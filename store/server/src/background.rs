//! Slow work that must not hold up the apply thread: flushing the engine, looking for what a
//! compaction deletes, hashing what it leaves.
//!
//! Input: jobs with the state that they are about. Output: marks for the log, slices of deletions
//! for the apply thread, hashes. A thread each, because none must wait for another.
//! **Invariant:** a mark says less than what is durable: the engine is flushed after the state that
//! the mark names was written to it.
//! **Invariant:** nothing here writes to the engine.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstay_mvcc::{AcceptedCompaction, CompactPass, HashKv, compaction_hash};
use mainstay_proto::walpb;

use crate::apply_loop::Work;
use crate::core::{Core, Published};

/// What is to be done later. The threads end when it is dropped.
pub(crate) struct Background {
    marks: Sender<Arc<Published>>,
    passes: Sender<(Arc<Published>, CompactPass)>,
    hashes: Sender<(Arc<Published>, AcceptedCompaction)>,
}

// A thread that is gone has said why, and the member stops.
impl Background {
    /// Starts the threads.
    pub(crate) fn spawn(
        core: &Arc<Core>,
        work: Sender<Work>,
    ) -> io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (marks, marker) = worker(core, "flush", |core, published: Arc<Published>| {
            mark(core, &published);
        })?;
        let pause = core.config.compaction_sleep_interval;
        let mut free = Instant::now();
        let (passes, finder) = worker(core, "compact", move |core, (published, pass)| {
            std::thread::sleep(free.saturating_duration_since(Instant::now()));
            find_slice(core, &work, &published, pass);
            free = Instant::now() + pause;
        })?;
        let (hashes, hasher) =
            worker(core, "hash", |core, (published, compaction): (Arc<Published>, _)| {
                lower_priority();
                hash_compaction(core, &published, compaction);
            })?;
        Ok((Self { marks, passes, hashes }, vec![marker, finder, hasher]))
    }

    /// Flush the engine, then let the log mark this state.
    pub(crate) fn mark(&self, published: Arc<Published>) {
        let _ = self.marks.send(published);
    }

    /// Look for the next slice of a compaction, and hand it to the apply thread.
    pub(crate) fn find_slice(&self, published: Arc<Published>, pass: CompactPass) {
        let _ = self.passes.send((published, pass));
    }

    /// Hash what a compaction leaves, from the state right after it was accepted.
    pub(crate) fn hash(&self, published: Arc<Published>, compaction: AcceptedCompaction) {
        let _ = self.hashes.send((published, compaction));
    }
}

/// A thread that does one thing after the other until nobody can ask for more.
fn worker<T: Send + 'static>(
    core: &Arc<Core>,
    name: &str,
    mut run: impl FnMut(&Core, T) + Send + 'static,
) -> io::Result<(Sender<T>, JoinHandle<()>)> {
    let (sender, jobs) = mpsc::channel();
    let core = core.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        while let Ok(job) = jobs.recv() {
            run(&core, job);
        }
    })?;
    Ok((sender, thread))
}

fn mark(core: &Core, published: &Published) {
    let started = Instant::now();
    if let Err(error) = published.generation.engine().flush() {
        core.stop.fatal(format!("flushing the engine failed: {error}"));
        return;
    }
    core.metrics.own.engine_flush.observe(started.elapsed().as_secs_f64());
    let applied = published.state.applied;
    if let Ok(raft) = core.raft.get() {
        raft.snapshot_taken(walpb::Snapshot {
            index: Some(applied.index),
            term: Some(applied.term),
            conf_state: Some((*published.state.conf_state).clone()),
        });
    }
}

fn find_slice(core: &Core, work: &Sender<Work>, published: &Arc<Published>, pass: CompactPass) {
    match pass.slice(&*published.view, core.config.compaction_batch_limit) {
        Ok(found) => {
            let generation = published.generation.clone();
            // The apply thread ends before this one only when the member stops.
            let _ = work.send(Work::Slice { found, generation });
        }
        Err(fatal) => core.stop.fatal(format!("looking for what to compact failed: {fatal}")),
    }
}

fn hash_compaction(core: &Core, published: &Published, compaction: AcceptedCompaction) {
    let AcceptedCompaction { previous, revision, .. } = compaction;
    if !core.hashes.is_wanted(revision) {
        return;
    }
    // It reads all that there is. Half of the time it leaves processor and disk to others.
    let started = Instant::now();
    let mut resumed = started;
    let mut go_on = || {
        std::thread::sleep(resumed.elapsed().min(LONGEST_REST));
        resumed = Instant::now();
        !core.stop.is_stopped()
    };
    match compaction_hash(&*published.view, previous, revision, &mut go_on) {
        Ok(None) => {}
        Ok(Some(hash)) => {
            core.metrics.own.compaction_hash.observe(started.elapsed().as_secs_f64());
            core.hashes.keep(HashKv { hash, compact_revision: previous, hash_revision: revision })
        }
        Err(fatal) => core.stop.fatal(format!("hashing a compaction failed: {fatal}")),
    }
}

/// A pass that was held up must not hold itself up for as long again.
const LONGEST_REST: Duration = Duration::from_millis(100);

/// Lets this thread run when nobody else wants to.
fn lower_priority() {
    // Only the order of work changes, so a refusal is of no importance.
    let _ = rustix::process::nice(19);
}
