//! Events: what a watcher is told about a revision, live and from the past.
//!
//! Live events come out of `apply`. Past ones are read back from the Key family, which is the log
//! of all changes. Both have the same form, and neither carries the previous pair: whoever needs it
//! reads it with [`crate::kv_at`] at [`Event::prev`].

use std::sync::Arc;

use mainstay_engine::{Cursor, Family, Scan, View};
use mainstay_proto::mvccpb::KeyValue;

use bytes::{Bytes, BytesMut};

use crate::keys::{RowKey, revision_bytes};
use crate::range::newest_in_history;
use crate::{Error, Fatal, ReadAt, Revision, kv};

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted; the event's pair has the key and the revision alone.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The pair after the change.
    pub kv: KeyValue,
    /// Where the pair before this main revision is, if there was one and it is still kept.
    pub prev: Option<Revision>,
}

impl Event {
    /// Whether the change created the key.
    pub fn is_create(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision == self.kv.mod_revision
    }
}

/// All changes of one main revision, in the order of their subs.
///
/// **Invariant:** never empty, and never only a part of what the revision changed (before filters).
#[derive(Clone, Debug, PartialEq)]
pub struct RevisionEvents {
    /// The main revision.
    pub revision: i64,
    /// Its events.
    pub events: Arc<[Event]>,
}

/// How much of the past is read in one go. Cuts are made between revisions only, and at least one
/// revision is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatchUpLimits {
    /// Revisions with at least one wanted event.
    pub max_revisions: usize,
    /// Bytes of the rows of wanted events.
    pub max_bytes: usize,
    /// Rows that are looked at, wanted or not.
    pub max_rows: usize,
}

impl Default for CatchUpLimits {
    fn default() -> Self {
        Self { max_revisions: 1000, max_bytes: 4 << 20, max_rows: 100_000 }
    }
}

/// A piece of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct CatchUp {
    /// Revisions with wanted events, oldest first.
    pub revisions: Vec<RevisionEvents>,
    /// First revision that was not looked at; above the asked `to` when all was read.
    pub next: i64,
}

/// Reads the events of the revisions `from..=to` whose keys `wanted` accepts.
///
/// `to` must not be above `at.revision`. `from` below the compacted revision is an error.
/// With `prevs` the place of each previous pair is looked up, which costs a seek per event.
pub fn events_between(
    view: &dyn View,
    at: ReadAt,
    from: i64,
    to: i64,
    limits: CatchUpLimits,
    prevs: bool,
    wanted: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<CatchUp, Error> {
    if from < at.compacted {
        return Err(Error::Compacted);
    }
    let to = to.min(at.revision);
    let mut reader = Reader { view, at, prevs, history: None, buffer: BytesMut::new() };
    let mut rows = view.cursor(Family::Key, revision_scan(from, to))?;
    let mut out = CatchUp { revisions: Vec::new(), next: to.saturating_add(1).max(from) };
    let (mut current, mut events) = (0, Vec::new());
    let (mut bytes, mut looked) = (0, 0);
    rows.seek_to_first();
    while rows.valid() {
        let row = kv::row_key(rows.key())?;
        if row.revision.main != current {
            close(&mut out, current, &mut events);
            let full = out.revisions.len() >= limits.max_revisions
                || bytes >= limits.max_bytes
                || looked >= limits.max_rows;
            if full && current != 0 {
                out.next = row.revision.main;
                return Ok(out);
            }
            current = row.revision.main;
        }
        looked += 1;
        if wanted(kv::user_key(rows.key(), rows.value())?) {
            bytes += rows.value().len();
            let event = reader.event(row, rows.key(), rows.value(), &events)?;
            events.push(event);
        }
        rows.next();
    }
    rows.status()?;
    close(&mut out, current, &mut events);
    Ok(out)
}

fn close(out: &mut CatchUp, revision: i64, events: &mut Vec<Event>) {
    if !events.is_empty() {
        let events = std::mem::take(events).into();
        out.revisions.push(RevisionEvents { revision, events });
    }
}

/// Rows of the Key family with main revisions `from..=to`.
pub(crate) fn revision_scan(from: i64, to: i64) -> Scan {
    let bound = |main: i64| Bytes::copy_from_slice(&revision_bytes(Revision::first(main.max(0))));
    Scan { lower: Some(bound(from)), upper: to.checked_add(1).map(bound), fill_cache: true }
}

struct Reader<'v> {
    view: &'v dyn View,
    at: ReadAt,
    prevs: bool,
    history: Option<Box<dyn Cursor + 'v>>,
    buffer: BytesMut,
}

impl Reader<'_> {
    /// `earlier` are the events of the same revision so far.
    fn event(
        &mut self,
        row: RowKey,
        row_bytes: &[u8],
        value: &[u8],
        earlier: &[Event],
    ) -> Result<Event, Fatal> {
        let mut pair = kv::decode(row_bytes, Bytes::copy_from_slice(value))?;
        let kind = if row.tombstone { EventKind::Delete } else { EventKind::Put };
        if row.tombstone {
            pair.mod_revision = row.revision.main;
        }
        let mut event = Event { kind, kv: pair, prev: None };
        if self.prevs && !event.is_create() {
            event.prev = match earlier.iter().find(|other| other.kv.key == event.kv.key) {
                Some(first) => first.prev,
                None => self.prev(&event.kv.key, row.revision.main)?,
            };
        }
        Ok(event)
    }

    fn prev(&mut self, key: &[u8], main: i64) -> Result<Option<Revision>, Fatal> {
        // What is before the compacted revision must not be seen, whether or not it is still there.
        if main - 1 < self.at.compacted {
            return Ok(None);
        }
        let history = match &mut self.history {
            Some(history) => history,
            none => none.insert(self.view.cursor(Family::History, Scan::all())?),
        };
        let last = Revision::last(main - 1);
        let newest = newest_in_history(&mut **history, key, last, &mut self.buffer)?;
        Ok(newest.and_then(|(revision, tombstone)| (!tombstone).then_some(revision)))
    }
}
