//! Slow work that must not hold up the apply thread: flushing the engine, hashing compactions.
//!
//! Input: jobs with the state that they are about. Output: marks for the log, hashes. Two threads,
//! because a flush must not wait for a hash of everything.
//! **Invariant:** a mark says less than what is durable: the engine is flushed after the state that
//! the mark names was written to it.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use mainstay_mvcc::{AcceptedCompaction, HashKv, compaction_hash};
use mainstay_proto::walpb;

use crate::core::{Core, Published};

/// Something to do later.
pub(crate) enum Job {
    /// Flush the engine, then let the log mark this state.
    Mark(Arc<Published>),
    /// Hash what a compaction leaves.
    HashCompaction {
        /// The state right after it was accepted.
        published: Arc<Published>,
        /// The compaction.
        compaction: AcceptedCompaction,
    },
}

/// Runs jobs until every sender is gone.
pub(crate) fn spawn(
    core: Arc<Core>,
    jobs: Receiver<Job>,
) -> std::io::Result<Vec<std::thread::JoinHandle<()>>> {
    let (hash, hashes): (Sender<_>, Receiver<_>) = mpsc::channel();
    let hasher = {
        let core = core.clone();
        std::thread::Builder::new().name("hash".into()).spawn(move || {
            lower_priority();
            while let Ok((published, compaction)) = hashes.recv() {
                hash_compaction(&core, published, compaction);
            }
        })?
    };
    let flusher = std::thread::Builder::new().name("flush".into()).spawn(move || {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Mark(published) => mark(&core, &published),
                Job::HashCompaction { published, compaction } => {
                    // The thread ends after this one.
                    let _ = hash.send((published, compaction));
                }
            }
        }
    })?;
    Ok(vec![flusher, hasher])
}

fn mark(core: &Core, published: &Published) {
    let started = Instant::now();
    if let Err(error) = published.generation.engine().flush() {
        core.stop.fatal(format!("flushing the engine failed: {error}"));
        return;
    }
    core.metrics.engine_flush.observe(started.elapsed().as_secs_f64());
    let applied = published.state.applied;
    if let Ok(raft) = core.raft.get() {
        raft.snapshot_taken(walpb::Snapshot {
            index: Some(applied.index),
            term: Some(applied.term),
            conf_state: Some((*published.state.conf_state).clone()),
        });
    }
}

fn hash_compaction(core: &Core, published: Arc<Published>, compaction: AcceptedCompaction) {
    let AcceptedCompaction { previous, revision, .. } = compaction;
    if !core.hashes.is_wanted(revision) {
        return;
    }
    match compaction_hash(&*published.view, previous, revision) {
        Ok(hash) => {
            core.hashes.keep(HashKv { hash, compact_revision: previous, hash_revision: revision })
        }
        Err(fatal) => core.stop.fatal(format!("hashing a compaction failed: {fatal}")),
    }
}

/// Lets this thread run when nobody else wants to.
fn lower_priority() {
    // Only the order of work changes, so a refusal is of no importance.
    let _ = rustix::process::nice(19);
}
