//! The pure core: all streams and watchers of a member.
//!
//! Input: requests of streams, published revisions, results of reads, feedback about what was
//! sent, and the time. Output: frames per stream, in order, taken with [`Hub::take_outputs`], and
//! reads to be run, taken with [`Hub::next_job`].
//!
//! A watcher is *live* (told of each revision as it is published), *behind* (waiting for a read,
//! being read for, or parked because its stream is full) or *compacted* (it asked for history
//! that is gone; it keeps its id until the client cancels it).
//! **Invariant:** everything a stream is told goes through its one queue, so nothing overtakes.

mod catchup;
mod live;
mod streams;

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use mainstay_proto::etcdserverpb::ResponseHeader;

use self::{catchup::Lagging, streams::Streams};
pub use self::{
    catchup::Reach,
    streams::{Drained, Output},
};
use crate::{
    encode::Frame,
    history::{History, HistoryError},
    index::{Index, Place},
    limits::HubConfig,
    pool::Variant,
    request::{CreateRequest, KeyRange, MayWatch},
};

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
const NOT_PERMITTED: &str =
    "rpc error: code = PermissionDenied desc = etcdserver: permission denied";

/// The id in responses that are for no watcher or for all.
const NO_WATCHER: i64 = -1;

/// Names a stream; chosen by who opens it, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Watchers can no longer be served truthfully; the process must end.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The store could not be read.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// A view older than the last one was published.
    #[error("a view at revision {to} was published after one at {from}")]
    Backwards {
        /// The hub's revision.
        from: i64,
        /// The view's.
        to: i64,
    },
}

/// Numbers for the metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Open streams.
    pub streams: usize,
    /// Watchers on them.
    pub watchers: usize,
    /// Watchers that are behind.
    pub slow_watchers: usize,
    /// Events queued and not yet taken by their stream.
    pub pending_events: usize,
    /// Events queued since the start.
    pub events_total: u64,
    /// Bytes queued and not yet taken by their stream.
    pub queued_bytes: usize,
    /// Times that events did not fit in front of the hub, so that watchers read them instead.
    pub inbox_overflows: u64,
}

/// Where a watcher stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the index of live watchers.
    Live(Place),
    /// Behind, in the queue for reads.
    Waiting { turn: u64 },
    /// Behind, part of a job.
    Reading,
    /// Behind, until its stream has room.
    Parked { turn: u64 },
    /// Told that its revision is compacted.
    Compacted,
}

struct Watcher {
    serial: u64,
    stream: u32,
    id: i64,
    range: KeyRange,
    owner: Option<Arc<str>>,
    variant: Variant,
    fragment: bool,
    progress_notify: bool,
    /// Whether the interval so far passed without events.
    quiet: bool,
    start_revision: i64,
    /// No revision below this is told. While the watcher is behind it is exactly what comes next;
    /// while live, the published revision may be past it.
    next: i64,
    state: State,
}

/// A vector with reusable slots.
struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn insert(&mut self, item: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.items[slot as usize] = Some(item);
            return slot;
        }
        self.items.push(Some(item));
        u32::try_from(self.items.len() - 1).expect("fewer than 2^32 entries")
    }

    fn get(&self, slot: u32) -> Option<&T> {
        self.items[slot as usize].as_ref()
    }

    fn at(&self, slot: u32) -> &T {
        self.get(slot).expect("the slot is in use")
    }

    fn at_mut(&mut self, slot: u32) -> &mut T {
        self.items[slot as usize].as_mut().expect("the slot is in use")
    }

    fn remove(&mut self, slot: u32) -> T {
        self.free.push(slot);
        self.items[slot as usize].take().expect("the slot is in use")
    }

    fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

/// All streams and watchers.
pub struct Hub {
    config: HubConfig,
    view: Arc<dyn History>,
    revision: i64,
    term: u64,
    names: HashMap<StreamId, u32>,
    streams: Streams,
    watchers: Slab<Watcher>,
    live: Index,
    lagging: Lagging,
    /// When each stream thinks of progress next.
    due: BTreeSet<(Duration, u32)>,
    /// The last serial or turn that was given out.
    counter: u64,
    slow: usize,
    /// Who may watch what; everybody everything as long as there is none.
    may_watch: Option<MayWatch>,
}

impl Hub {
    /// A hub without streams at the revision of `view`.
    pub fn new(config: HubConfig, view: Arc<dyn History>) -> Self {
        let revision = view.revision();
        Self {
            streams: Streams::new(&config.limits),
            config,
            view,
            revision,
            term: 0,
            names: HashMap::new(),
            watchers: Slab::default(),
            live: Index::default(),
            lagging: Lagging::default(),
            due: BTreeSet::new(),
            counter: 0,
            slow: 0,
            may_watch: None,
        }
    }

    /// The revision up to which live watchers have been told.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The raft term for the headers from now on.
    pub fn set_term(&mut self, term: u64) {
        self.term = term;
    }

    /// Opens a stream. `jitter` is added to its progress interval, so that streams that were
    /// opened together don't all speak at once.
    pub fn open(&mut self, id: StreamId, now: Duration, jitter: Duration) {
        let interval = self.config.progress_interval + jitter;
        let slot = self.streams.open(id, now + interval, interval);
        self.names.insert(id, slot);
        self.due.insert((now + interval, slot));
    }

    /// Closes a stream and drops its watchers. What it has not taken yet is forgotten.
    pub fn close(&mut self, id: StreamId) {
        let Some(slot) = self.names.remove(&id) else { return };
        for watcher in self.streams.watchers(slot) {
            self.detach(watcher);
            self.watchers.remove(watcher);
        }
        let due = self.streams.close(slot);
        self.due.remove(&(due, slot));
    }

    fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.config.cluster_id,
            member_id: self.config.member_id,
            revision,
            raft_term: self.term,
        }
    }

    fn next_number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Creates a watcher. The request is always answered on the stream, with an id or a reason.
    pub fn create(&mut self, stream: StreamId, request: CreateRequest) {
        let Some(&slot) = self.names.get(&stream) else { return };
        if request.start_revision < 0 {
            return self.refuse(stream, COMPACTED);
        }
        if request.range.is_empty() {
            return self.refuse(stream, EMPTY_RANGE);
        }
        // Who asks has looked too, but the rules may have changed since.
        if !self.is_permitted(&request.owner, &request.range) {
            return self.refuse(stream, NOT_PERMITTED);
        }
        let Some(id) = self.streams.at_mut(slot).claim(request.watch_id) else {
            return self.refuse(stream, DUPLICATE_ID);
        };

        let mut frame = Frame::new(self.header(self.revision), id);
        (frame.created, frame.answer) = (true, true);
        self.streams.push(slot, frame);

        let start = request.start_revision;
        let serial = self.next_number();
        let watcher = self.watchers.insert(Watcher {
            serial,
            stream: slot,
            id,
            range: request.range,
            owner: request.owner,
            variant: Variant { prev_kv: request.prev_kv, filters: request.filters },
            fragment: request.fragment,
            progress_notify: request.progress_notify,
            quiet: true,
            start_revision: start,
            next: if start == 0 { self.revision + 1 } else { start },
            state: State::Compacted,
        });
        self.streams.at_mut(slot).ids.insert(id, watcher);
        self.place(watcher);
    }

    /// Answers a create request that the server refuses, for example for want of permission.
    pub fn refuse(&mut self, stream: StreamId, reason: &str) {
        let Some(&slot) = self.names.get(&stream) else { return };
        let mut frame = Frame::new(self.header(self.revision), NO_WATCHER);
        (frame.created, frame.canceled, frame.answer) = (true, true, true);
        frame.cancel_reason = Some(reason.into());
        self.streams.push(slot, frame);
    }

    /// Sets who may watch what from now on. Watchers that may not go on are ended, with the reason;
    /// what they were told before stays in their queues.
    pub fn set_rules(&mut self, may_watch: MayWatch) {
        self.may_watch = Some(may_watch);
        for slot in 0..self.watchers.items.len() {
            let slot = u32::try_from(slot).expect("slots are u32");
            let Some(watcher) = self.watchers.get(slot) else { continue };
            // One that was told of a compaction has ended as far as the client knows.
            let ended = watcher.state == State::Compacted;
            if ended || self.is_permitted(&watcher.owner, &watcher.range) {
                continue;
            }
            let (stream, id) = (watcher.stream, watcher.id);
            self.streams.at_mut(stream).ids.remove(&id);
            self.detach(slot);
            self.watchers.remove(slot);
            let mut frame = Frame::new(self.header(self.revision), id);
            frame.canceled = true;
            frame.cancel_reason = Some(NOT_PERMITTED.into());
            self.streams.push(stream, frame);
        }
    }

    fn is_permitted(&self, owner: &Option<Arc<str>>, range: &KeyRange) -> bool {
        let (Some(may_watch), Some(owner)) = (&self.may_watch, owner) else { return true };
        let (key, range_end) = range.to_wire();
        may_watch(owner, key, range_end)
    }

    /// Cancels a watcher. Gives whether there was one, which is when there is an answer.
    pub fn cancel(&mut self, stream: StreamId, watch_id: i64) -> bool {
        let Some(&slot) = self.names.get(&stream) else { return false };
        let Some(watcher) = self.streams.at_mut(slot).ids.remove(&watch_id) else { return false };
        self.detach(watcher);
        self.watchers.remove(watcher);
        let mut frame = Frame::new(self.header(self.revision), watch_id);
        (frame.canceled, frame.answer) = (true, true);
        self.streams.push(slot, frame);
        true
    }

    /// Asks up to which revision the stream has been told everything. Gives whether there is an
    /// answer: only if the stream has watchers and all of them are live and past their start.
    pub fn progress(&mut self, stream: StreamId) -> bool {
        let Some(&slot) = self.names.get(&stream) else { return false };
        let ids = &self.streams.at(slot).ids;
        if ids.is_empty() || !ids.values().all(|&watcher| self.is_synced(watcher)) {
            return false;
        }
        let mut frame = Frame::new(self.header(self.revision), NO_WATCHER);
        frame.answer = true;
        self.streams.push(slot, frame);
        true
    }

    fn is_synced(&self, watcher: u32) -> bool {
        let watcher = self.watchers.at(watcher);
        matches!(watcher.state, State::Live(_)) && self.revision >= watcher.start_revision
    }

    /// Tells idle watchers that asked for it the current revision, where the time has come.
    pub fn tick(&mut self, now: Duration) {
        while let Some(&(due, slot)) = self.due.first()
            && due <= now
        {
            self.due.pop_first();
            let next = self.streams.at_mut(slot).reschedule(now);
            self.due.insert((next, slot));
            // In the order of creation, whatever the map's.
            let mut watchers = self.streams.watchers(slot);
            watchers.sort_unstable_by_key(|&watcher| self.watchers.at(watcher).serial);
            for slot in watchers {
                let synced = self.is_synced(slot);
                let header = self.header(self.revision);
                let watcher = self.watchers.at_mut(slot);
                if !watcher.progress_notify {
                    continue;
                }
                let quiet = std::mem::replace(&mut watcher.quiet, true);
                // A full stream has other things to read; the next interval will do.
                if quiet && synced && !self.streams.is_full(watcher.stream) {
                    self.streams.push(watcher.stream, Frame::new(header, watcher.id));
                }
            }
        }
    }

    /// When [`Hub::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A stream took responses out of its queue.
    pub fn drained(&mut self, stream: StreamId, drained: Drained) {
        if let Some(&slot) = self.names.get(&stream) {
            self.streams.drained(slot, drained);
            self.unpark(slot);
        }
    }

    /// What is to be appended to the queues of streams since the last call.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        self.streams.take_outputs()
    }

    /// Where the hub stands.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            streams: self.names.len(),
            watchers: self.watchers.len(),
            slow_watchers: self.slow,
            pending_events: self.streams.pending_events,
            events_total: self.streams.events_total,
            queued_bytes: self.streams.total_bytes,
            inbox_overflows: 0,
        }
    }
}
