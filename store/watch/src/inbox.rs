//! The way into the hub's thread.
//!
//! Input: published steps from the apply thread, requests and feedback of streams, results of
//! reads. Output: batches of messages in the order in which they came.
//! **Invariant:** nobody who puts something in is ever blocked for longer than it takes to append
//! to a list. Events beyond the limit are left out, never the fact that the revision advanced.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    history::{HistoryError, Published, weight},
    hub::{Drained, Metrics, StreamId},
    job::JobResult,
    limits::Limits,
    request::{CreateRequest, MayWatch},
    stream::{Queue, WatchRequests, WatchResponses},
};

pub(crate) enum Message {
    Publish(Published),
    Open(StreamId, Arc<Queue>),
    Create(StreamId, CreateRequest),
    Refuse(StreamId, String),
    Cancel(StreamId, i64),
    Progress(StreamId),
    Rules(MayWatch),
    Close(StreamId),
    Drained(StreamId, Drained),
    Read(Result<JobResult, HistoryError>),
}

#[derive(Default)]
struct Waiting {
    messages: Vec<Message>,
    events: usize,
    bytes: usize,
    asleep: bool,
    stopped: bool,
    overflows: u64,
}

pub(crate) struct Inbox {
    waiting: Mutex<Waiting>,
    filled: Condvar,
    max_events: usize,
    max_bytes: usize,
    pub(crate) open_requests: usize,
    term: AtomicU64,
    last_stream: AtomicU64,
    metrics: Mutex<Metrics>,
}

/// Locks a mutex. Its data stays usable if a holder panicked: every change under these locks is
/// a single append or swap.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            waiting: Mutex::default(),
            filled: Condvar::new(),
            max_events: limits.inbox_events,
            max_bytes: limits.inbox_bytes,
            open_requests: limits.open_requests,
            term: AtomicU64::new(0),
            last_stream: AtomicU64::new(0),
            metrics: Mutex::default(),
        }
    }

    /// Appends a message. Gives it back if the thread has stopped.
    pub(crate) fn push(&self, message: Message) -> Result<(), Message> {
        let mut waiting = lock(&self.waiting);
        if waiting.stopped {
            return Err(message);
        }
        waiting.messages.push(message);
        self.wake(waiting);
        Ok(())
    }

    /// Appends a message that can wait until the thread is awake for another reason. Only for
    /// messages of which the thread itself causes no more than a few per stream and turn.
    pub(crate) fn push_later(&self, message: Message) {
        let mut waiting = lock(&self.waiting);
        if !waiting.stopped {
            waiting.messages.push(message);
        }
    }

    fn wake(&self, mut waiting: MutexGuard<'_, Waiting>) {
        // One wake per batch: while the thread is awake it will look again by itself.
        if std::mem::take(&mut waiting.asleep) {
            drop(waiting);
            self.filled.notify_one();
        }
    }

    fn publish(&self, mut step: Published) {
        let events: usize = step.revisions.iter().map(|step| step.events.len()).sum();
        let all = step.revisions.iter().flat_map(|step| step.events.iter());
        let bytes: usize = all.map(weight).sum();
        let mut waiting = lock(&self.waiting);
        if waiting.stopped {
            return;
        }
        if waiting.events + events > self.max_events || waiting.bytes + bytes > self.max_bytes {
            // Watchers will read these from the view.
            waiting.overflows += 1;
            step.revisions.clear();
        } else {
            waiting.events += events;
            waiting.bytes += bytes;
        }
        match waiting.messages.last_mut() {
            // The later view has all that the earlier one has, previous values included, as long
            // as nothing was compacted between them.
            Some(Message::Publish(last)) if last.view.compacted() == step.view.compacted() => {
                last.view = step.view;
                last.revisions.append(&mut step.revisions);
            }
            _ => waiting.messages.push(Message::Publish(step)),
        }
        self.wake(waiting);
    }

    /// Waits for messages, but not past the timeout, and not at all if it is zero. `None` when
    /// the thread is to stop.
    pub(crate) fn take(&self, timeout: Option<Duration>) -> Option<Vec<Message>> {
        let mut waiting = lock(&self.waiting);
        if waiting.messages.is_empty() && !waiting.stopped && timeout != Some(Duration::ZERO) {
            waiting.asleep = true;
            // Waking early is harmless: the caller comes back.
            waiting = match timeout {
                None => self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    let woken = self.filled.wait_timeout(waiting, timeout);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            waiting.asleep = false;
        }
        if waiting.stopped {
            return None;
        }
        (waiting.events, waiting.bytes) = (0, 0);
        Some(std::mem::take(&mut waiting.messages))
    }

    /// Lets nothing in any more and gives what is left.
    pub(crate) fn stop(&self) -> Vec<Message> {
        let mut waiting = lock(&self.waiting);
        waiting.stopped = true;
        let rest = std::mem::take(&mut waiting.messages);
        self.wake(waiting);
        rest
    }

    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub(crate) fn set_metrics(&self, metrics: Metrics) {
        *lock(&self.metrics) = metrics;
    }
}

/// The hub as the rest of the server sees it. Cheap to clone.
#[derive(Clone)]
pub struct WatchHandle {
    pub(crate) inbox: Arc<Inbox>,
}

impl WatchHandle {
    /// Tells watchers about applied revisions. Called by the apply thread, in order, and before
    /// the writes are answered, so that a watch that is opened after an answer sees its revision.
    /// Also called without revisions when something was compacted or a snapshot was installed.
    /// Never blocks.
    pub fn publish(&self, step: Published) {
        self.inbox.publish(step);
    }

    /// Sets who may watch what. Steps that are published afterwards are told to nobody who may not
    /// see them any more.
    pub fn set_rules(&self, may_watch: MayWatch) {
        // If the hub has stopped, nobody watches any more.
        let _ = self.inbox.push(Message::Rules(may_watch));
    }

    /// The raft term that response headers carry from now on.
    pub fn set_term(&self, term: u64) {
        self.inbox.term.store(term, Ordering::Relaxed);
    }

    /// Opens a stream. It ends when the responses are dropped.
    pub fn open(&self) -> (WatchRequests, WatchResponses) {
        let id = StreamId(self.inbox.last_stream.fetch_add(1, Ordering::Relaxed) + 1);
        let queue = Arc::new(Queue::default());
        if self.inbox.push(Message::Open(id, queue.clone())).is_err() {
            queue.close();
        }
        let requests = WatchRequests::new(id, self.inbox.clone(), queue.clone());
        (requests, WatchResponses::new(id, self.inbox.clone(), queue))
    }

    /// Numbers for the metrics page, as of the last time that something happened.
    pub fn metrics(&self) -> Metrics {
        let waiting = lock(&self.inbox.waiting);
        let inbox_overflows = waiting.overflows;
        // What streams took since then is counted by the next call.
        self.inbox.wake(waiting);
        Metrics { inbox_overflows, ..*lock(&self.inbox.metrics) }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_mvcc::{CatchUp, CatchUpLimits, Event, EventKind, Revision, RevisionEvents};
    use mainstay_proto::mvccpb::KeyValue;

    use super::*;
    use crate::history::History;

    struct At {
        revision: i64,
        compacted: i64,
    }

    impl History for At {
        fn revision(&self) -> i64 {
            self.revision
        }

        fn compacted(&self) -> i64 {
            self.compacted
        }

        fn scan(
            &self,
            _: i64,
            _: CatchUpLimits,
            _: bool,
            _: &mut dyn FnMut(&[u8]) -> bool,
        ) -> Result<CatchUp, HistoryError> {
            Err(HistoryError("nothing is read here".into()))
        }

        fn pairs(&self, _: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError> {
            Err(HistoryError("nothing is read here".into()))
        }
    }

    fn step(revision: i64, compacted: i64, value: usize) -> Published {
        let kv = KeyValue { value: vec![0; value].into(), ..Default::default() };
        let events = Arc::from([Event { kind: EventKind::Put, kv, prev: None }]);
        let view = Arc::new(At { revision, compacted });
        Published { view, revisions: vec![RevisionEvents { revision, events }] }
    }

    /// Per message the view's revision and those that come with it.
    fn taken(inbox: &Inbox) -> Vec<(i64, Vec<i64>)> {
        let messages = inbox.take(Some(Duration::ZERO)).expect("not stopped");
        let published = messages.into_iter().filter_map(|message| match message {
            Message::Publish(Published { view, revisions }) => {
                Some((view.revision(), revisions.iter().map(|step| step.revision).collect()))
            }
            _ => None,
        });
        published.collect()
    }

    #[test]
    fn steps_are_joined_unless_a_compaction_or_a_request_is_between_them() {
        let inbox = Inbox::new(&Limits::default());
        inbox.publish(step(2, 0, 1));
        inbox.publish(step(3, 0, 1));
        inbox.publish(step(4, 3, 1));
        assert!(inbox.push(Message::Progress(StreamId(1))).is_ok());
        inbox.publish(step(5, 3, 1));
        assert_eq!(taken(&inbox), [(3, vec![2, 3]), (4, vec![4]), (5, vec![5])]);
    }

    #[test]
    fn beyond_the_limit_only_the_view_goes_on() {
        let by_count = Limits { inbox_events: 2, ..Limits::default() };
        let by_bytes = Limits { inbox_bytes: 3000, ..Limits::default() };
        for limits in [by_count, by_bytes] {
            let inbox = Inbox::new(&limits);
            for revision in 2..10 {
                inbox.publish(step(revision, 0, 1000));
            }
            assert_eq!(taken(&inbox), [(9, vec![2, 3])]);
            assert_eq!(lock(&inbox.waiting).overflows, 6);
            inbox.publish(step(10, 0, 1000));
            assert_eq!(taken(&inbox), [(10, vec![10])]);
        }
    }
}
