//! Requests of this member that wait for their entry to be applied.
//!
//! Input: ids registered before the proposal, answers from the apply thread. Output: one answer
//! for each id that is still waited for. An answer without a waiter is dropped: the entry came
//! from another member, or its client has gone.
//! **Invariant:** an id is in the table exactly while its [`Waiter`] lives and was not answered, so
//! the table is bounded by the number of requests in flight.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

const SHARDS: usize = 16;

/// Ids are numbered one after the other: they spread well as they are.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }
    fn write_u64(&mut self, id: u64) {
        // The table takes its buckets from the low bits and its tags from the top seven.
        self.0 = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Shard<T> = HashMap<u64, oneshot::Sender<T>, BuildHasherDefault<IdHasher>>;

/// The table of waiting requests.
pub(crate) struct Waiters<T> {
    shards: [Mutex<Shard<T>>; SHARDS],
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()) }
    }
}

impl<T> Waiters<T> {
    fn shard(&self, id: u64) -> MutexGuard<'_, Shard<T>> {
        let shard = &self.shards[id as usize % SHARDS];
        // The map is whole after any panic: each change is one insert or remove.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to wait for `id`. Must come before the proposal, or the answer may be missed.
    pub(crate) fn register(&self, id: u64) -> Waiter<'_, T> {
        let (sender, receiver) = oneshot::channel();
        self.shard(id).insert(id, sender);
        Waiter { waiters: self, id, receiver }
    }

    /// Whether somebody waits for `id`.
    pub(crate) fn is_waiting(&self, id: u64) -> bool {
        self.shard(id).contains_key(&id)
    }

    /// Takes the way to answer `id` later.
    pub(crate) fn take(&self, id: u64) -> Option<oneshot::Sender<T>> {
        self.shard(id).remove(&id)
    }

    /// Answers `id`, if somebody waits for it.
    pub(crate) fn answer(&self, id: u64, answer: T) {
        if let Some(sender) = self.take(id) {
            // The receiver may have gone in this moment.
            let _ = sender.send(answer);
        }
    }

    /// Lets every waiter know that no answer will come.
    pub(crate) fn abandon_all(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

/// A claim to the answer for one id. Dropping it gives the claim up.
pub(crate) struct Waiter<'a, T> {
    waiters: &'a Waiters<T>,
    id: u64,
    receiver: oneshot::Receiver<T>,
}

impl<T> Waiter<'_, T> {
    /// The answer; `None` when the member stopped before there was one.
    pub(crate) async fn wait(&mut self) -> Option<T> {
        (&mut self.receiver).await.ok()
    }
}

impl<T> Drop for Waiter<'_, T> {
    fn drop(&mut self) {
        self.waiters.shard(self.id).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_find_their_waiter_once() {
        let waiters = Waiters::default();
        let mut a = waiters.register(1);
        let mut b = waiters.register(17);
        waiters.answer(17, "b");
        waiters.answer(1, "a");
        waiters.answer(1, "again");
        assert_eq!(a.wait().await, Some("a"));
        assert_eq!(b.wait().await, Some("b"));
    }

    #[tokio::test]
    async fn a_dropped_waiter_leaves_no_trace() {
        let waiters = Waiters::<()>::default();
        drop(waiters.register(5));
        assert!(!waiters.is_waiting(5));
        let mut left = waiters.register(6);
        waiters.abandon_all();
        assert_eq!(left.wait().await, None);
    }
}
