//! The index up to which this member has applied its log, and those who wait for it.
//!
//! Input: the apply thread's progress. Output: wake-ups of readers whose index is reached.
//! **Invariant:** the index only grows, and it is raised only after the state that belongs to it
//! was published, so whoever sees index `n` here reads a state of at least `n`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// Applied index with a list of waiters.
#[derive(Default)]
pub(crate) struct AppliedIndex {
    index: AtomicU64,
    waiting: AtomicUsize,
    list: Mutex<BTreeMap<u64, Vec<oneshot::Sender<()>>>>,
}

impl AppliedIndex {
    pub(crate) fn new(index: u64) -> Self {
        Self { index: AtomicU64::new(index), ..Self::default() }
    }

    pub(crate) fn get(&self) -> u64 {
        self.index.load(Ordering::SeqCst)
    }

    /// Raises the index and wakes who waited for it. Only the apply thread calls this.
    pub(crate) fn advance(&self, to: u64) {
        self.index.fetch_max(to, Ordering::SeqCst);
        // A waiter announces itself before it looks at the index for the last time, so either it
        // sees the new index or its announcement is seen here.
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let later = list.split_off(&(to + 1));
        let reached = std::mem::replace(&mut *list, later);
        self.waiting.store(list.len(), Ordering::SeqCst);
        drop(list);
        for waiter in reached.into_values().flatten() {
            let _ = waiter.send(());
        }
    }

    /// Resolves when `index` is applied; `false` when the member stopped before.
    pub(crate) async fn wait(&self, index: u64) -> bool {
        if self.get() >= index {
            return true;
        }
        let mut waiter = {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            let (sender, receiver) = oneshot::channel();
            list.entry(index).or_default().push(sender);
            self.waiting.store(list.len(), Ordering::SeqCst);
            Waiting { applied: self, index, receiver }
        };
        if self.get() >= index {
            return true;
        }
        (&mut waiter.receiver).await.is_ok()
    }

    /// Lets every waiter know that the index will not grow any more.
    pub(crate) fn abandon_all(&self) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// One who waits. Clients can name indexes that will never be reached, so who gives up must leave
/// nothing behind.
struct Waiting<'a> {
    applied: &'a AppliedIndex,
    index: u64,
    receiver: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.receiver.close();
        let mut list = self.applied.list.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiters) = list.get_mut(&self.index) {
            waiters.retain(|waiter| !waiter.is_closed());
            if waiters.is_empty() {
                list.remove(&self.index);
            }
            self.applied.waiting.store(list.len(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn waiters_wake_at_their_index_and_not_before() {
        let applied = Arc::new(AppliedIndex::new(3));
        assert!(applied.wait(3).await);
        let waiter = tokio::spawn({
            let applied = applied.clone();
            async move { applied.wait(5).await }
        });
        applied.advance(4);
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        applied.advance(6);
        assert!(waiter.await.unwrap());
        assert_eq!(applied.waiting.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nothing_behind() {
        let applied = AppliedIndex::new(0);
        {
            let (far, near) = (applied.wait(u64::MAX), applied.wait(1));
            tokio::pin!(far, near);
            assert!(futures_util::poll!(&mut far).is_pending());
            assert!(futures_util::poll!(&mut near).is_pending());
            applied.advance(1);
            assert!(near.await);
        }
        assert!(applied.list.lock().unwrap().is_empty());
        assert_eq!(applied.waiting.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait() {
        let applied = Arc::new(AppliedIndex::new(0));
        let waiting = applied.wait(1);
        tokio::pin!(waiting);
        assert!(futures_util::poll!(&mut waiting).is_pending());
        applied.abandon_all();
        assert!(!waiting.await);
    }
}
