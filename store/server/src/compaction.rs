//! Hashes of compactions: members compare them to find out that one of them is wrong.
//!
//! Input: each accepted compaction with the view right after it. Output: the hash of what it
//! leaves, computed by one thread of low priority that reads the pinned view.
//! **Invariant:** one pass at a time; a pass that has not begun when the next compaction comes is
//! dropped. The newest [`KEPT`] hashes are kept.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_mvcc::HashKv;
use tokio::sync::watch;

/// Hashes that are kept, as etcd does.
const KEPT: usize = 10;
/// How long a question for a hash that is being computed waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// No pass is wanted. Zero is a revision: a store that was never written to can be compacted to it.
const NONE: i64 = i64::MIN;

struct State {
    kept: VecDeque<HashKv>,
}

/// The hashes of recent compactions.
pub(crate) struct CompactionHashes {
    state: Mutex<State>,
    /// The revision whose pass is wanted, or [`NONE`].
    wanted: Arc<AtomicI64>,
    /// Counts results, so that who waits looks again.
    done: watch::Sender<u64>,
}

impl Default for CompactionHashes {
    fn default() -> Self {
        Self {
            state: Mutex::new(State { kept: VecDeque::new() }),
            wanted: Arc::new(AtomicI64::new(NONE)),
            done: watch::Sender::new(0),
        }
    }
}

impl CompactionHashes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A compaction to `revision` was accepted: passes for older ones are given up.
    pub(crate) fn expect(&self, revision: i64) {
        self.wanted.store(revision, Ordering::SeqCst);
    }

    /// Whether the pass for `revision` is still worth its work.
    pub(crate) fn is_wanted(&self, revision: i64) -> bool {
        self.wanted.load(Ordering::SeqCst) == revision
    }

    /// Keeps a result.
    pub(crate) fn keep(&self, hash: HashKv) {
        let revision = hash.hash_revision;
        let mut state = self.state();
        if state.kept.len() == KEPT {
            state.kept.pop_front();
        }
        state.kept.push_back(hash);
        drop(state);
        let _ = self.wanted.compare_exchange(revision, NONE, Ordering::SeqCst, Ordering::SeqCst);
        self.done.send_modify(|count| *count += 1);
    }

    /// All hashes that are kept.
    pub(crate) fn all(&self) -> Vec<HashKv> {
        self.state().kept.iter().copied().collect()
    }

    /// There will be no hash for `revision`.
    pub(crate) fn give_up(&self, revision: i64) {
        let _ = self.wanted.compare_exchange(revision, NONE, Ordering::SeqCst, Ordering::SeqCst);
        self.done.send_modify(|count| *count += 1);
    }

    /// Forgets everything: the state was replaced by that of another member.
    pub(crate) fn clear(&self) {
        self.wanted.store(NONE, Ordering::SeqCst);
        self.state().kept.clear();
    }

    /// The kept hash of `revision`. Waits a while for one that is being computed, because a hash
    /// made another way could differ from what other members have kept.
    pub(crate) async fn of(&self, revision: i64) -> Option<HashKv> {
        let mut done = self.done.subscribe();
        if self.is_wanted(revision) {
            let finished = done.wait_for(|_| !self.is_wanted(revision));
            // When it takes too long the question is answered in the other way.
            let _ = tokio::time::timeout(PATIENCE, finished).await;
        }
        self.state().kept.iter().find(|hash| hash.hash_revision == revision).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(revision: i64) -> HashKv {
        HashKv { hash: revision as u32, compact_revision: revision - 1, hash_revision: revision }
    }

    #[tokio::test]
    async fn keeps_the_newest_and_drops_overtaken_passes() {
        let hashes = CompactionHashes::default();
        for revision in 1..=12 {
            hashes.expect(revision);
            hashes.keep(hash(revision));
        }
        assert_eq!(hashes.of(2).await, None);
        assert_eq!(hashes.of(12).await, Some(hash(12)));
        hashes.expect(20);
        hashes.expect(21);
        assert!(!hashes.is_wanted(20));
        hashes.clear();
        assert_eq!(hashes.of(12).await, None);
    }

    #[tokio::test]
    async fn a_question_waits_for_the_pass() {
        let hashes = Arc::new(CompactionHashes::default());
        hashes.expect(5);
        let asked = tokio::spawn({
            let hashes = hashes.clone();
            async move { hashes.of(5).await }
        });
        tokio::task::yield_now().await;
        hashes.keep(hash(5));
        assert_eq!(asked.await.unwrap(), Some(hash(5)));
    }
}
