//! Linearizable reads: rounds of read-index requests that many readers share.
//!
//! Input: readers that arrive, read states from the raft thread, changes of the leader, time.
//! Output: for each reader an index; a state applied up to it is current enough.
//! A reader joins the open round; a round is sent at once while fewer than [`MAX_ROUNDS`] are
//! under way, and otherwise when one of them ends. So a lone reader waits for one round trip, and
//! under load one round serves everybody who came meanwhile.
//! **Invariant:** a reader is answered only by a round that was sent after it had joined.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// Rounds under way at one time.
const MAX_ROUNDS: usize = 4;
/// A round that was not answered is sent again after this time, under a new number: requests are
/// dropped without notice when there is no leader or when it is new.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Where read-index requests go.
pub(crate) trait ReadIndexSource: Send + Sync {
    /// Asks for the commit index under the number `context`. Must not block.
    fn request(&self, context: u64) -> Result<()>;
}

type Reader = oneshot::Sender<Result<u64>>;

struct Round {
    contexts: Vec<u64>,
    started: Instant,
    sent: Instant,
    /// The last request is known to be lost.
    lost: bool,
    readers: Vec<Reader>,
}

#[derive(Default)]
struct State {
    open: Vec<Reader>,
    rounds: Vec<Round>,
    stopped: bool,
}

/// The rounds of one member.
pub(crate) struct ReadRounds<S> {
    source: S,
    next_context: Box<dyn Fn() -> u64 + Send + Sync>,
    timeout: Duration,
    state: Mutex<State>,
    slow: AtomicU64,
    failed: AtomicU64,
}

impl<S: ReadIndexSource> ReadRounds<S> {
    /// `next_context` gives numbers that no round of any member has used.
    pub(crate) fn new(
        source: S,
        next_context: impl Fn() -> u64 + Send + Sync + 'static,
        timeout: Duration,
    ) -> Self {
        let next_context = Box::new(next_context);
        Self {
            source,
            next_context,
            timeout,
            state: Mutex::default(),
            slow: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Answers that came when nobody waited for them any more, and rounds that got none in time.
    pub(crate) fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }

    /// Rounds that could not be asked, or were lost with their leader.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a commit that is not older than this call.
    pub(crate) async fn read_index(&self) -> Result<u64> {
        let receiver = {
            let (sender, receiver) = oneshot::channel();
            let mut state = self.state();
            if state.stopped {
                return Err(Error::Stopped);
            }
            state.open.push(sender);
            self.start_round(&mut state, Instant::now());
            receiver
        };
        receiver.await.unwrap_or(Err(Error::Stopped))
    }

    fn start_round(&self, state: &mut State, now: Instant) {
        if state.open.is_empty() || state.rounds.len() >= MAX_ROUNDS {
            return;
        }
        let context = (self.next_context)();
        let readers = std::mem::take(&mut state.open);
        match self.source.request(context) {
            Ok(()) => {
                let contexts = vec![context];
                state.rounds.push(Round {
                    contexts,
                    started: now,
                    sent: now,
                    lost: false,
                    readers,
                });
            }
            Err(error) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                answer(readers, &Err(error));
            }
        }
    }

    /// The raft thread got the answer to the request `context`.
    pub(crate) fn answered(&self, context: u64, index: u64) {
        let mut state = self.state();
        let Some(at) = state.rounds.iter().position(|r| r.contexts.contains(&context)) else {
            self.slow.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let round = state.rounds.swap_remove(at);
        self.start_round(&mut state, Instant::now());
        drop(state);
        answer(round.readers, &Ok(index));
    }

    /// The raft thread dropped the request `context`: it is sent again at the next tick.
    pub(crate) fn refused(&self, context: u64) {
        let mut state = self.state();
        if let Some(round) = state.rounds.iter_mut().find(|r| r.contexts.last() == Some(&context)) {
            round.lost = true;
        }
    }

    /// The first leader appeared since the start: what was asked before reached nobody, and is sent
    /// again at the next tick.
    pub(crate) fn leader_found(&self) {
        for round in &mut self.state().rounds {
            round.lost = true;
        }
    }

    /// Another leader appeared: what was asked of the old one has no answer.
    pub(crate) fn leader_changed(&self) {
        self.fail_all(Error::LeaderChanged);
    }

    /// The member stops: nobody is answered any more.
    pub(crate) fn stop(&self) {
        self.state().stopped = true;
        self.fail_all(Error::Stopped);
    }

    fn fail_all(&self, error: Error) {
        let mut state = self.state();
        let rounds = std::mem::take(&mut state.rounds);
        self.failed.fetch_add(rounds.len() as u64, Ordering::Relaxed);
        // Who is in the open round was not sent anywhere yet, but a full set of rounds had kept it
        // waiting; the next round is free now.
        if state.stopped {
            let open = std::mem::take(&mut state.open);
            answer(open, &Err(error.clone()));
        } else {
            self.start_round(&mut state, Instant::now());
        }
        drop(state);
        for round in rounds {
            answer(round.readers, &Err(error.clone()));
        }
    }

    /// Sends rounds again that got no answer, and ends those that had their time. To be called a
    /// few times in [`RETRY_AFTER`].
    pub(crate) fn tick(&self, now: Instant) {
        let mut ended = Vec::new();
        let mut state = self.state();
        let mut at = 0;
        while at < state.rounds.len() {
            let round = &mut state.rounds[at];
            if now.duration_since(round.started) >= self.timeout {
                self.slow.fetch_add(1, Ordering::Relaxed);
                ended.push((state.rounds.swap_remove(at).readers, Error::Timeout));
                continue;
            }
            if std::mem::take(&mut round.lost) || now.duration_since(round.sent) >= RETRY_AFTER {
                let context = (self.next_context)();
                match self.source.request(context) {
                    Ok(()) => {
                        round.contexts.push(context);
                        round.sent = now;
                    }
                    Err(error) => {
                        self.failed.fetch_add(1, Ordering::Relaxed);
                        ended.push((state.rounds.swap_remove(at).readers, error));
                        continue;
                    }
                }
            }
            at += 1;
        }
        self.start_round(&mut state, now);
        drop(state);
        for (readers, error) in ended {
            answer(readers, &Err(error));
        }
    }
}

fn answer(readers: Vec<Reader>, result: &Result<u64>) {
    for reader in readers {
        let _ = reader.send(result.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Asked(Arc<Mutex<Vec<u64>>>);

    impl ReadIndexSource for Asked {
        fn request(&self, context: u64) -> Result<()> {
            self.0.lock().unwrap().push(context);
            Ok(())
        }
    }

    fn rounds() -> (Arc<ReadRounds<Asked>>, Asked) {
        let asked = Asked::default();
        let counter = AtomicU64::new(0);
        let next = move || counter.fetch_add(1, Ordering::Relaxed) + 1;
        let timeout = Duration::from_secs(7);
        (Arc::new(ReadRounds::new(asked.clone(), next, timeout)), asked)
    }

    async fn reader(rounds: &Arc<ReadRounds<Asked>>) -> tokio::task::JoinHandle<Result<u64>> {
        let rounds = rounds.clone();
        let task = tokio::spawn(async move { rounds.read_index().await });
        tokio::task::yield_now().await;
        task
    }

    #[tokio::test]
    async fn a_round_serves_only_those_who_came_before_it_was_sent() {
        let (rounds, asked) = rounds();
        let mut early = Vec::new();
        for _ in 0..MAX_ROUNDS {
            early.push(reader(&rounds).await);
        }
        let late_a = reader(&rounds).await;
        let late_b = reader(&rounds).await;
        assert_eq!(asked.0.lock().unwrap().len(), MAX_ROUNDS);
        rounds.answered(1, 10);
        assert_eq!(early.remove(0).await.unwrap(), Ok(10));
        tokio::task::yield_now().await;
        assert!(!late_a.is_finished() && !late_b.is_finished());
        // Both late readers share the round that was sent when the first one ended.
        assert_eq!(asked.0.lock().unwrap().len(), MAX_ROUNDS + 1);
        rounds.answered(MAX_ROUNDS as u64 + 1, 12);
        assert_eq!(late_a.await.unwrap(), Ok(12));
        assert_eq!(late_b.await.unwrap(), Ok(12));
    }

    #[tokio::test]
    async fn a_lost_request_is_repeated_and_either_answer_counts() {
        let (rounds, asked) = rounds();
        let task = reader(&rounds).await;
        let start = Instant::now();
        rounds.tick(start + Duration::from_millis(100));
        assert_eq!(*asked.0.lock().unwrap(), [1]);
        rounds.tick(start + Duration::from_millis(600));
        assert_eq!(*asked.0.lock().unwrap(), [1, 2]);
        rounds.answered(1, 5);
        assert_eq!(task.await.unwrap(), Ok(5));
        assert_eq!((rounds.slow(), rounds.failed()), (0, 0));
        rounds.answered(2, 6);
        assert_eq!((rounds.slow(), rounds.failed()), (1, 0));
    }

    #[tokio::test]
    async fn a_refused_request_is_repeated_at_once() {
        let (rounds, asked) = rounds();
        let task = reader(&rounds).await;
        rounds.refused(1);
        rounds.tick(Instant::now());
        assert_eq!(*asked.0.lock().unwrap(), [1, 2]);
        rounds.answered(2, 5);
        assert_eq!(task.await.unwrap(), Ok(5));
    }

    #[tokio::test]
    async fn who_asked_before_there_was_a_leader_is_answered_by_the_first_one() {
        let (rounds, asked) = rounds();
        let task = reader(&rounds).await;
        rounds.leader_found();
        rounds.tick(Instant::now());
        assert_eq!(*asked.0.lock().unwrap(), [1, 2]);
        rounds.answered(2, 5);
        assert_eq!(task.await.unwrap().unwrap(), 5);
    }

    #[tokio::test]
    async fn ends_by_leader_change_timeout_and_stop() {
        let (rounds, _) = rounds();
        let task = reader(&rounds).await;
        rounds.leader_changed();
        assert_eq!(task.await.unwrap(), Err(Error::LeaderChanged));
        let task = reader(&rounds).await;
        rounds.tick(Instant::now() + Duration::from_secs(8));
        assert_eq!(task.await.unwrap(), Err(Error::Timeout));
        let task = reader(&rounds).await;
        rounds.stop();
        assert_eq!(task.await.unwrap(), Err(Error::Stopped));
        assert_eq!(rounds.read_index().await, Err(Error::Stopped));
    }
}
