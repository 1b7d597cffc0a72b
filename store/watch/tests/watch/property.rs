//! Random histories, watchers, slow readers and compactions; every response of every watcher is
//! checked against what the history says.
//!
//! A response whose header says R must complete exactly the wanted events up to R. That one rule
//! holds order, uniqueness, completeness, atomicity, filters, previous values and bookmarks.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use mainstay_mvcc::EventKind;
use mainstay_proto::{
    etcdserverpb::WatchResponse,
    mvccpb::{self, event::EventType},
};
use mainstay_watch::{
    CreateRequest, Filters, HubConfig, KeyRange, Limits, Published, RangeEnd, Reach, ReadJob,
    StreamId,
};
use proptest::prelude::*;

use crate::support::{FakeStore, Rig, Write, config};

const STREAMS: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Publish { steps: Vec<Vec<Write>>, forget: bool },
    Create { stream: u64, request: CreateRequest },
    Cancel { stream: u64, pick: usize },
    Progress { stream: u64 },
    Read { stream: u64, count: usize },
    StartJob { near: bool },
    FinishJob { pick: usize },
    Compact { share: u8 },
    Tick,
    Reopen { stream: u64 },
}

fn key() -> impl Strategy<Value = Bytes> {
    prop_oneof![Just("a"), Just("b"), Just("ba"), Just("bb"), Just("c")].prop_map(Bytes::from)
}

fn write() -> impl Strategy<Value = Write> {
    let value = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        3 => (key(), value).prop_map(|(key, value)| Write::Put(key, value)),
        2 => key().prop_map(Write::Delete),
    ]
}

/// A transaction writes each key once.
fn transaction() -> impl Strategy<Value = Vec<Write>> {
    proptest::collection::vec(write(), 1..5).prop_map(|writes| {
        let mut seen = Vec::new();
        let key = |write: &Write| match write {
            Write::Put(key, _) | Write::Delete(key) => key.clone(),
        };
        let fresh = |write: &Write| {
            let known = seen.contains(&key(write));
            seen.push(key(write));
            !known
        };
        writes.into_iter().filter(fresh).collect()
    })
}

fn range() -> impl Strategy<Value = KeyRange> {
    prop_oneof![
        3 => key().prop_map(KeyRange::Point),
        3 => (key(), key()).prop_map(|(a, b)| KeyRange::Span(a, RangeEnd::Before(b))),
        2 => key().prop_map(|key| KeyRange::Span(key, RangeEnd::Open)),
    ]
}

fn create() -> impl Strategy<Value = CreateRequest> {
    // An id of -1 is allowed but looks like an answer for all, so it is left out here.
    let id = prop_oneof![3 => Just(0i64), 1 => prop_oneof![Just(-3i64), 1i64..6]];
    let start = prop_oneof![2 => Just(0i64), 5 => -1i64..60];
    (range(), start, any::<[bool; 5]>(), id).prop_map(|(range, start_revision, flags, watch_id)| {
        let [progress_notify, prev_kv, fragment, no_put, no_delete] = flags;
        // Both filters at once say little; leave only one.
        let filters = Filters { no_put: no_put && !no_delete, no_delete: no_delete && fragment };
        let filters = if progress_notify { Filters::default() } else { filters };
        CreateRequest {
            range,
            start_revision,
            progress_notify,
            filters,
            prev_kv,
            fragment,
            watch_id,
            owner: None,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..STREAMS;
    let steps = proptest::collection::vec(transaction(), 1..4);
    prop_oneof![
        8 => (steps, prop::bool::weighted(0.1))
            .prop_map(|(steps, forget)| Step::Publish { steps, forget }),
        5 => (stream.clone(), create())
            .prop_map(|(stream, request)| Step::Create { stream, request }),
        1 => (stream.clone(), any::<usize>())
            .prop_map(|(stream, pick)| Step::Cancel { stream, pick }),
        2 => stream.clone().prop_map(|stream| Step::Progress { stream }),
        5 => (stream.clone(), 1usize..8).prop_map(|(stream, count)| Step::Read { stream, count }),
        3 => any::<bool>().prop_map(|near| Step::StartJob { near }),
        3 => any::<usize>().prop_map(|pick| Step::FinishJob { pick }),
        1 => any::<u8>().prop_map(|share| Step::Compact { share }),
        1 => Just(Step::Tick),
        1 => stream.prop_map(|stream| Step::Reopen { stream }),
    ]
}

/// A watcher as its client knows it.
struct Client {
    request: CreateRequest,
    /// The first revision that it may be told.
    first: i64,
    received: Vec<mvccpb::Event>,
    /// Header revision of the last whole response.
    bookmark: i64,
    in_fragments: bool,
    compacted: bool,
}

#[derive(Default)]
struct Clients {
    /// Requests whose answer has not been read, per stream.
    asked: HashMap<StreamId, VecDeque<CreateRequest>>,
    watchers: HashMap<(StreamId, i64), Client>,
}

fn wire(store: &FakeStore, client: &Client, up_to: i64) -> Vec<mvccpb::Event> {
    let CreateRequest { range, filters, prev_kv, .. } = &client.request;
    let mut events = Vec::new();
    for step in store.revisions_from(client.first) {
        for event in step.events.iter().filter(|_| step.revision <= up_to) {
            let (kind, dropped) = match event.kind {
                EventKind::Put => (EventType::Put, filters.no_put),
                EventKind::Delete => (EventType::Delete, filters.no_delete),
            };
            if dropped || !range.contains(&event.kv.key) {
                continue;
            }
            let before = prev_kv.then(|| store.pair_at(&event.kv.key, step.revision - 1)).flatten();
            events.push(mvccpb::Event {
                r#type: kind as i32,
                kv: Some(event.kv.clone()),
                prev_kv: before,
            });
        }
    }
    events
}

/// A previous value may be missing if it was compacted.
fn is_same(store: &FakeStore, got: &mvccpb::Event, want: &mvccpb::Event) -> bool {
    let gone = want.kv.as_ref().is_some_and(|kv| kv.mod_revision <= store.compacted);
    got == want
        || gone && got.prev_kv.is_none() && mvccpb::Event { prev_kv: None, ..want.clone() } == *got
}

impl Clients {
    fn check_complete(
        &self,
        store: &FakeStore,
        key: (StreamId, i64),
        up_to: i64,
    ) -> Result<(), TestCaseError> {
        let client = &self.watchers[&key];
        let want = wire(store, client, up_to);
        let got = &client.received;
        let same = got.len() == want.len()
            && got.iter().zip(&want).all(|(got, want)| is_same(store, got, want));
        prop_assert!(same, "{key:?} up to {up_to}: got {got:#?}, want {want:#?}");
        Ok(())
    }

    fn hear(
        &mut self,
        store: &FakeStore,
        stream: StreamId,
        response: &WatchResponse,
    ) -> Result<(), TestCaseError> {
        let revision = response.header.as_ref().expect("a header").revision;
        let key = (stream, response.watch_id);
        if response.created {
            let asked = self.asked.get_mut(&stream).and_then(VecDeque::pop_front);
            let request = asked.expect("an answer to a question");
            if response.canceled {
                prop_assert_eq!(response.watch_id, -1);
                let bad = request.start_revision < 0 || request.range.is_empty();
                prop_assert!(bad || response.cancel_reason.contains("duplicate"));
                return Ok(());
            }
            prop_assert!(!self.watchers.contains_key(&key));
            let start = request.start_revision;
            let first = if start == 0 { revision + 1 } else { start };
            let received = Vec::new();
            let client = Client {
                request,
                first,
                received,
                bookmark: 0,
                in_fragments: false,
                compacted: false,
            };
            self.watchers.insert(key, client);
            return Ok(());
        }
        if response.canceled && response.compact_revision == 0 {
            prop_assert!(self.watchers.remove(&key).is_some());
            return Ok(());
        }
        if response.canceled {
            prop_assert_eq!(revision, 0);
            prop_assert!(response.compact_revision <= store.compacted);
            let client = self.watchers.get_mut(&key).expect("a known watcher");
            prop_assert!(!client.compacted);
            prop_assert!(client.bookmark.max(client.first - 1) + 1 < response.compact_revision);
            client.compacted = true;
            return Ok(());
        }
        if response.events.is_empty()
            && response.watch_id == -1
            && !self.watchers.contains_key(&key)
        {
            let mine: Vec<_> =
                self.watchers.keys().filter(|(of, _)| *of == stream).copied().collect();
            prop_assert!(!mine.is_empty());
            for key in mine {
                prop_assert!(!self.watchers[&key].compacted);
                prop_assert!(self.watchers[&key].request.start_revision <= revision);
                self.check_complete(store, key, revision)?;
                self.watchers.get_mut(&key).expect("just seen").bookmark = revision;
            }
            return Ok(());
        }
        let client = self.watchers.get_mut(&key).expect("a known watcher");
        prop_assert!(!client.compacted);
        prop_assert!(revision >= client.bookmark);
        if response.events.is_empty() {
            prop_assert!(client.request.progress_notify);
            prop_assert!(client.request.start_revision <= revision);
        } else {
            prop_assert!(client.request.fragment || !response.fragment);
            let first = response.events[0].kv.as_ref().expect("a pair").mod_revision;
            prop_assert!(first > client.bookmark);
        }
        client.received.extend(response.events.iter().cloned());
        client.in_fragments = response.fragment;
        if !response.fragment {
            client.bookmark = revision;
            self.check_complete(store, key, revision)?;
        }
        Ok(())
    }
}

struct Run {
    rig: Rig,
    clients: Clients,
    jobs: Vec<ReadJob>,
    limits: Limits,
    names: Vec<StreamId>,
    opened: u64,
    /// Watchers that were ever asked for.
    creates: usize,
}

impl Run {
    fn new() -> Self {
        let limits = Limits {
            queue_responses: 4,
            queue_bytes: 4000,
            batch_revisions: 5,
            batch_bytes: 200,
            batch_rows: 8,
            batch_watchers: 3,
            near_revisions: 4,
            ..Limits::default()
        };
        let config = HubConfig {
            progress_interval: Duration::from_secs(1),
            fragment_bytes: 120,
            limits: limits.clone(),
            ..config()
        };
        let mut run = Self {
            rig: Rig::new(config),
            clients: Clients::default(),
            jobs: Vec::new(),
            limits,
            names: Vec::new(),
            opened: STREAMS,
            creates: 0,
        };
        run.names = (0..STREAMS).map(|id| run.rig.open(id)).collect();
        run
    }

    fn read(&mut self, stream: StreamId, count: usize) -> Result<usize, TestCaseError> {
        let frames = self.rig.read(stream, count);
        for frame in &frames {
            self.clients.hear(&self.rig.store, stream, &frame.to_message())?;
        }
        Ok(frames.len())
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Publish { steps, forget } => {
                let mut revisions: Vec<_> =
                    steps.iter().filter_map(|writes| self.rig.store.write(writes)).collect();
                if forget {
                    revisions.pop();
                }
                let view = self.rig.store.view();
                self.rig.hub.publish(Published { view, revisions }).expect("views go forward");
            }
            Step::Create { stream, request } => {
                let stream = self.names[stream as usize];
                self.clients.asked.entry(stream).or_default().push_back(request.clone());
                self.rig.hub.create(stream, request);
                self.creates += 1;
            }
            Step::Cancel { stream, pick } => {
                let stream = self.names[stream as usize];
                let mut ids: Vec<i64> = self.clients.watchers.keys().map(|(_, id)| *id).collect();
                ids.sort_unstable();
                if !ids.is_empty() {
                    self.rig.hub.cancel(stream, ids[pick % ids.len()]);
                }
            }
            Step::Progress { stream } => {
                self.rig.hub.progress(self.names[stream as usize]);
            }
            Step::Read { stream, count } => {
                self.read(self.names[stream as usize], count)?;
            }
            Step::StartJob { near } => {
                let reach = if near { Reach::Near } else { Reach::Any };
                self.jobs.extend(self.rig.hub.next_job(reach));
            }
            Step::FinishJob { pick } => {
                if !self.jobs.is_empty() {
                    let job = self.jobs.swap_remove(pick % self.jobs.len());
                    prop_assert!(job.watchers() <= self.limits.batch_watchers);
                    self.rig.hub.finish(job.run().expect("the fake store reads"));
                }
            }
            Step::Compact { share } => {
                let revision = self.rig.store.revision() * i64::from(share) / 255;
                if revision > self.rig.store.compacted {
                    self.rig.compact(revision);
                }
            }
            Step::Tick => {
                self.rig.now += Duration::from_secs(1);
                self.rig.hub.tick(self.rig.now);
            }
            Step::Reopen { stream } => {
                let old = self.names[stream as usize];
                self.rig.hub.close(old);
                self.rig.queues.remove(&old);
                self.clients.watchers.retain(|(of, _), _| *of != old);
                self.names[stream as usize] = self.rig.open(self.opened);
                self.opened += 1;
            }
        }
        self.rig.flush();
        self.check_bounds()
    }

    /// Beside answers and cancels, a stream holds no more than its limit and one response for
    /// each watcher; fragments of one response count once.
    fn check_bounds(&self) -> Result<(), TestCaseError> {
        for queue in self.rig.queues.values() {
            let mut runs = 0;
            let mut in_fragments = false;
            for frame in queue {
                let message = frame.to_message();
                let counts = !message.created && !message.canceled && message.watch_id != -1;
                if counts && !in_fragments {
                    runs += 1;
                }
                in_fragments = message.fragment;
            }
            prop_assert!(runs <= self.limits.queue_responses + self.creates, "{runs} queued");
        }
        Ok(())
    }

    /// Everybody reads to the end: then every watcher has been told everything.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for job in std::mem::take(&mut self.jobs) {
            self.rig.hub.finish(job.run().expect("the fake store reads"));
        }
        loop {
            self.rig.catch_up();
            let mut read = 0;
            for stream in self.names.clone() {
                read += self.read(stream, usize::MAX)?;
            }
            if read == 0 && !self.rig.hub.has_work(Reach::Any) {
                break;
            }
        }
        let metrics = self.rig.hub.metrics();
        prop_assert_eq!(metrics.slow_watchers, 0);
        prop_assert_eq!(metrics.pending_events, 0);
        prop_assert_eq!(metrics.watchers, self.clients.watchers.len());
        let revision = self.rig.store.revision();
        for (&key, client) in &self.clients.watchers {
            prop_assert!(!client.in_fragments);
            if !client.compacted {
                self.clients.check_complete(&self.rig.store, key, revision)?;
            }
        }
        for stream in self.names.clone() {
            let mut mine = self.clients.watchers.iter().filter(|((of, _), _)| *of == stream);
            let synced =
                |client: &Client| !client.compacted && client.request.start_revision <= revision;
            let any = mine.clone().next().is_some();
            let all = any && mine.all(|(_, client)| synced(client));
            prop_assert_eq!(self.rig.hub.progress(stream), all);
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn every_watcher_is_told_exactly_what_happened(
        steps in proptest::collection::vec(step(), 1..120)
    ) {
        let mut run = Run::new();
        for step in steps {
            run.apply(step)?;
        }
        run.settle()?;
    }
}
