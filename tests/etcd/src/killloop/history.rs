//! What really happened: all events of a store in order, and what each key held when.
//!
//! Input: the events of a watch from revision 1. Output: lookups, and everything in which the
//! events contradict each other.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use mainstay_proto::mvccpb;

use super::operation::Version;

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Event {
    /// Its revision.
    pub(super) revision: i64,
    /// The key.
    pub(super) key: Bytes,
    /// The value; `None` for a delete.
    pub(super) value: Option<Bytes>,
    /// The revision that created the key.
    pub(super) created: i64,
    /// How often the key was put since.
    pub(super) version: i64,
}

impl Event {
    /// From the wire. A copy: the bytes of an answer would keep the whole buffer that it came in.
    pub(super) fn new(event: &mvccpb::Event) -> Self {
        let kv = event.kv.clone().unwrap_or_default();
        let is_put = event.r#type() == mvccpb::event::EventType::Put;
        Event {
            revision: kv.mod_revision,
            key: Bytes::copy_from_slice(&kv.key),
            value: is_put.then(|| Bytes::copy_from_slice(&kv.value)),
            created: kv.create_revision,
            version: kv.version,
        }
    }
}

/// A number that stands for an event with what came before it.
pub(super) fn digest(event: &Event, previous: Option<&Version>) -> u64 {
    let mut hasher = DefaultHasher::new();
    event.hash(&mut hasher);
    previous.map(|previous| (previous.revision, &previous.value)).hash(&mut hasher);
    hasher.finish()
}

/// All events, checked.
#[derive(Debug, Default)]
pub(super) struct History {
    events: Vec<Event>,
    /// Where the events of each revision start; a revision before the first event has none.
    starts: BTreeMap<i64, usize>,
    keys: BTreeMap<Bytes, Vec<(i64, Option<Version>)>>,
    /// What is wrong in the events themselves.
    pub(super) problems: Vec<String>,
}

impl History {
    /// Replays events.
    pub(super) fn new(events: Vec<Event>) -> Self {
        let mut history = History::default();
        let mut lives: BTreeMap<Bytes, (i64, i64)> = BTreeMap::new();
        let mut last = 1;
        for (at, event) in events.iter().enumerate() {
            if event.revision != last {
                // Every write takes the next revision, and nothing is compacted.
                if event.revision != last + 1 {
                    history.problems.push(format!("revision {last} is followed by {event:?}"));
                }
                last = event.revision;
                history.starts.insert(last, at);
            }
            let key = history.keys.entry(event.key.clone()).or_default();
            if key.last().is_some_and(|(revision, _)| *revision >= event.revision) {
                history.problems.push(format!("a key changes twice in a revision: {event:?}"));
            }
            match &event.value {
                Some(value) => {
                    let life = lives.entry(event.key.clone()).or_insert((event.revision, 0));
                    life.1 += 1;
                    if *life != (event.created, event.version) {
                        history
                            .problems
                            .push(format!("expected created, version {life:?}: {event:?}"));
                    }
                    let version = Version { revision: event.revision, value: value.clone() };
                    key.push((event.revision, Some(version)));
                }
                None => {
                    if lives.remove(&event.key).is_none() {
                        history.problems.push(format!("a key is deleted that is not: {event:?}"));
                    }
                    key.push((event.revision, None));
                }
            }
        }
        history.events = events;
        history
    }

    /// The newest revision.
    pub(super) fn revision(&self) -> i64 {
        self.events.last().map_or(1, |event| event.revision)
    }

    /// All events.
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Revisions and their events.
    pub(super) fn revisions(&self) -> impl Iterator<Item = (i64, &[Event])> {
        let ends = self.starts.values().skip(1).copied().chain([self.events.len()]);
        self.starts.iter().zip(ends).map(|((revision, start), end)| {
            (*revision, self.events.get(*start..end).unwrap_or_default())
        })
    }

    /// The events of one revision.
    pub(super) fn at(&self, revision: i64) -> &[Event] {
        let Some(start) = self.starts.get(&revision) else { return &[] };
        let end =
            self.starts.range(revision + 1..).next().map_or(self.events.len(), |next| *next.1);
        self.events.get(*start..end).unwrap_or_default()
    }

    /// What a key held when the store was at a revision.
    pub(super) fn held(&self, key: &[u8], revision: i64) -> Option<&Version> {
        let changes = self.keys.get(key)?;
        let after = changes.partition_point(|(changed, _)| *changed <= revision);
        changes.get(after.checked_sub(1)?)?.1.as_ref()
    }

    /// All keys with a start that lived at a revision.
    pub(super) fn live(&self, prefix: &[u8], revision: i64) -> Vec<(Bytes, Version)> {
        self.keys
            .range(Bytes::copy_from_slice(prefix)..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter_map(|(key, _)| Some((key.clone(), self.held(key, revision)?.clone())))
            .collect()
    }

    /// The digest of an event as a watcher with or without prev_kv sees it.
    pub(super) fn digest(&self, event: &Event, with_previous: bool) -> u64 {
        let previous = self.held(&event.key, event.revision - 1);
        digest(event, previous.filter(|_| with_previous))
    }
}
