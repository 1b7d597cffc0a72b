//! A store that is a list: the history that the tests publish, compact and compare with.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use mainstay_mvcc::{CatchUp, CatchUpLimits, Event, EventKind, Revision, RevisionEvents};
use mainstay_proto::{etcdserverpb::WatchResponse, mvccpb::KeyValue};
use mainstay_watch::{
    CreateRequest, Drained, Filters, Frame, History, HistoryError, Hub, HubConfig, KeyRange,
    Published, Reach, StreamId,
};

/// One write of a transaction.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Put(Bytes, Bytes),
    Delete(Bytes),
}

pub(crate) fn put(key: &str, value: &str) -> Write {
    Write::Put(Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()))
}

pub(crate) fn delete(key: &str) -> Write {
    Write::Delete(Bytes::copy_from_slice(key.as_bytes()))
}

#[derive(Default)]
struct Log {
    /// Revision 2 is the first.
    revisions: Vec<RevisionEvents>,
    /// All changes of a key: (place, pair or `None` for a tombstone).
    keys: BTreeMap<Bytes, Vec<(Revision, Option<KeyValue>)>>,
}

/// The growing store.
#[derive(Default)]
pub(crate) struct FakeStore {
    log: Arc<Mutex<Log>>,
    pub(crate) compacted: i64,
    /// Rows that all scans looked at.
    pub(crate) rows: Arc<Mutex<usize>>,
}

impl FakeStore {
    pub(crate) fn revision(&self) -> i64 {
        self.log.lock().unwrap().revisions.len() as i64 + 1
    }

    /// Applies a transaction; nothing happens if it changes nothing.
    pub(crate) fn write(&self, writes: &[Write]) -> Option<RevisionEvents> {
        let mut log = self.log.lock().unwrap();
        let main = log.revisions.len() as i64 + 2;
        let mut events = Vec::new();
        for write in writes {
            let at = Revision { main, sub: events.len() as i64 };
            let (Write::Put(key, _) | Write::Delete(key)) = write;
            let versions = log.keys.entry(key.clone()).or_default();
            let last = versions.last().cloned();
            let prev = last.as_ref().filter(|(_, kv)| kv.is_some()).map(|(at, _)| *at);
            let alive = last.and_then(|(_, kv)| kv);
            match write {
                Write::Put(key, value) => {
                    let kv = KeyValue {
                        key: key.clone(),
                        create_revision: alive.as_ref().map_or(main, |kv| kv.create_revision),
                        mod_revision: main,
                        version: alive.map_or(0, |kv| kv.version) + 1,
                        value: value.clone(),
                        lease: 0,
                    };
                    versions.push((at, Some(kv.clone())));
                    events.push(Event { kind: EventKind::Put, kv, prev });
                }
                Write::Delete(key) if alive.is_some() => {
                    let kv =
                        KeyValue { key: key.clone(), mod_revision: main, ..KeyValue::default() };
                    versions.push((at, None));
                    events.push(Event { kind: EventKind::Delete, kv, prev });
                }
                Write::Delete(_) => {}
            }
        }
        if events.is_empty() {
            return None;
        }
        let step = RevisionEvents { revision: main, events: events.into() };
        log.revisions.push(step.clone());
        Some(step)
    }

    pub(crate) fn view(&self) -> Arc<dyn History> {
        Arc::new(FakeView {
            log: self.log.clone(),
            revision: self.revision(),
            compacted: self.compacted,
            rows: self.rows.clone(),
        })
    }

    /// All revisions from `from` on.
    pub(crate) fn revisions_from(&self, from: i64) -> Vec<RevisionEvents> {
        let log = self.log.lock().unwrap();
        let first = usize::try_from((from - 2).max(0)).unwrap();
        log.revisions.get(first..).unwrap_or_default().to_vec()
    }

    /// The pair that a key had at a revision, compaction aside.
    pub(crate) fn pair_at(&self, key: &[u8], revision: i64) -> Option<KeyValue> {
        self.log.lock().unwrap().newest(key, revision).and_then(|(_, kv)| kv)
    }
}

impl Log {
    /// What was written at a place; it is gone if the key changed again at or before `compacted`.
    fn pair(&self, place: Revision, compacted: i64) -> Option<KeyValue> {
        let step = &self.revisions[(place.main - 2) as usize];
        let versions = &self.keys[&step.events[place.sub as usize].kv.key];
        let at = versions.iter().position(|(at, _)| *at == place).expect("a place that was told");
        let is_gone = versions.get(at + 1).is_some_and(|(after, _)| after.main <= compacted);
        versions[at].1.clone().filter(|_| !is_gone)
    }

    fn newest(&self, key: &[u8], revision: i64) -> Option<(Revision, Option<KeyValue>)> {
        let versions = self.keys.get(key)?;
        let after = versions.partition_point(|(at, _)| at.main <= revision);
        versions[..after].last().cloned()
    }
}

struct FakeView {
    log: Arc<Mutex<Log>>,
    revision: i64,
    compacted: i64,
    rows: Arc<Mutex<usize>>,
}

impl History for FakeView {
    fn revision(&self) -> i64 {
        self.revision
    }

    fn compacted(&self) -> i64 {
        self.compacted
    }

    fn scan(
        &self,
        from: i64,
        limits: CatchUpLimits,
        prevs: bool,
        wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<CatchUp, HistoryError> {
        assert!(from >= self.compacted, "read below the compacted revision");
        assert!(from <= self.revision, "read above the current revision");
        let log = self.log.lock().unwrap();
        let mut revisions = Vec::new();
        let (mut bytes, mut rows) = (0, 0);
        let mut next = from.max(2);
        while next <= self.revision
            && revisions.len() < limits.max_revisions
            && bytes < limits.max_bytes
            && rows < limits.max_rows
        {
            let step = &log.revisions[(next - 2) as usize];
            // Places are told only on demand, and not those that compaction has freed.
            let place = |event: &Event| event.prev.filter(|_| prevs && next > self.compacted);
            let events: Vec<Event> = step
                .events
                .iter()
                .filter(|event| wanted(&event.kv.key))
                .map(|event| Event { prev: place(event), ..event.clone() })
                .collect();
            rows += step.events.len();
            bytes += events.iter().map(|event| event.kv.value.len()).sum::<usize>();
            if !events.is_empty() {
                revisions.push(RevisionEvents { revision: next, events: events.into() });
            }
            next += 1;
        }
        *self.rows.lock().unwrap() += rows;
        Ok(CatchUp { revisions, next })
    }

    fn pairs(&self, places: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError> {
        let log = self.log.lock().unwrap();
        Ok(places.iter().map(|place| log.pair(*place, self.compacted)).collect())
    }
}

/// A hub with its store and clients that read when they are told to.
pub(crate) struct Rig {
    pub(crate) store: FakeStore,
    pub(crate) hub: Hub,
    pub(crate) now: Duration,
    pub(crate) queues: HashMap<StreamId, VecDeque<Frame>>,
}

pub(crate) fn config() -> HubConfig {
    HubConfig::new(77, 5)
}

impl Rig {
    pub(crate) fn new(config: HubConfig) -> Self {
        let store = FakeStore::default();
        let hub = Hub::new(config, store.view());
        Self { store, hub, now: Duration::ZERO, queues: HashMap::new() }
    }

    pub(crate) fn open(&mut self, id: u64) -> StreamId {
        let stream = StreamId(id);
        self.hub.open(stream, self.now, Duration::ZERO);
        self.queues.insert(stream, VecDeque::new());
        stream
    }

    /// Writes and publishes at once.
    pub(crate) fn write(&mut self, writes: &[Write]) -> i64 {
        let revisions = self.store.write(writes).into_iter().collect();
        self.hub.publish(Published { view: self.store.view(), revisions }).unwrap();
        self.store.revision()
    }

    pub(crate) fn compact(&mut self, revision: i64) {
        self.store.compacted = revision;
        let step = Published { view: self.store.view(), revisions: Vec::new() };
        self.hub.publish(step).unwrap();
    }

    /// Moves new frames to the queues of the clients.
    pub(crate) fn flush(&mut self) {
        for output in self.hub.take_outputs() {
            self.queues.get_mut(&output.stream).expect("a known stream").extend(output.frames);
        }
    }

    /// The client reads up to `count` frames.
    pub(crate) fn read(&mut self, stream: StreamId, count: usize) -> Vec<Frame> {
        self.flush();
        let queue = self.queues.get_mut(&stream).expect("a known stream");
        let frames: Vec<Frame> = queue.drain(..count.min(queue.len())).collect();
        let mut drained = Drained::default();
        frames.iter().for_each(|frame| drained.add(frame));
        self.hub.drained(stream, drained);
        frames
    }

    /// Runs all reads that are due.
    pub(crate) fn catch_up(&mut self) -> usize {
        let mut jobs = 0;
        while let Some(job) = self.hub.next_job(Reach::Any) {
            self.hub.finish(job.run().unwrap());
            jobs += 1;
        }
        jobs
    }

    /// All that the client gets without further input, reads included.
    pub(crate) fn receive(&mut self, stream: StreamId) -> Vec<WatchResponse> {
        let mut all = Vec::new();
        loop {
            self.catch_up();
            let frames = self.read(stream, usize::MAX);
            if frames.is_empty() && !self.hub.has_work(Reach::Any) {
                return all;
            }
            all.extend(frames.iter().map(Frame::to_message));
        }
    }
}

/// A create request for a range in wire form.
pub(crate) fn request(key: &str, range_end: &str) -> CreateRequest {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    CreateRequest {
        range: KeyRange::from_wire(bytes(key), bytes(range_end)),
        start_revision: 0,
        progress_notify: false,
        filters: Filters::default(),
        prev_kv: false,
        fragment: false,
        watch_id: 0,
        owner: None,
    }
}
