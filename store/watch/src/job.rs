//! One bounded read of history for watchers that are behind.
//!
//! Input: a pinned view and watchers of similar position. Output: for each of them the encoded
//! events up to one common revision. A job owns all it needs, so it may run on any thread while
//! the hub goes on.
//! **Invariant:** what a job covers ends between two revisions.

use std::{collections::HashMap, sync::Arc};

use mainstay_mvcc::CatchUpLimits;

use crate::{
    encode::EventFields,
    history::{self, History, HistoryError},
    index::{Index, Place},
    pool::{EventPool, Variant},
    request::KeyRange,
};

/// A watcher that takes part in a read.
#[derive(Clone, Debug)]
pub(crate) struct Joined {
    pub(crate) slot: u32,
    /// Tells whether the slot still belongs to the same watcher when the job is done.
    pub(crate) serial: u64,
    pub(crate) next: i64,
    pub(crate) turn: u64,
    variant: Variant,
    place: Place,
}

/// Work for [`Hub::finish`](crate::Hub::finish): read, match and encode.
pub struct ReadJob {
    view: Arc<dyn History>,
    from: i64,
    limits: CatchUpLimits,
    index: Index,
    joined: Vec<Joined>,
}

/// What a [`ReadJob`] found.
pub struct JobResult {
    /// Each watcher with its events from its position up to `covered`.
    pub(crate) found: Vec<(Joined, EventFields)>,
    /// The last revision that was looked at.
    pub(crate) covered: i64,
}

impl ReadJob {
    pub(crate) fn new(view: Arc<dyn History>, from: i64, limits: CatchUpLimits) -> Self {
        Self { view, from, limits, index: Index::default(), joined: Vec::new() }
    }

    /// Adds a watcher whose next revision is not below the job's first.
    pub(crate) fn join(
        &mut self,
        (slot, serial): (u32, u64),
        (next, turn): (i64, u64),
        range: &KeyRange,
        variant: Variant,
    ) {
        let member = u32::try_from(self.joined.len()).expect("fewer than 2^32 watchers");
        let place = self.index.insert(range, member, variant.prev_kv);
        self.joined.push(Joined { slot, serial, next, turn, variant, place });
    }

    /// How many watchers take part.
    pub fn watchers(&self) -> usize {
        self.joined.len()
    }

    /// How many revisions are between the job's start and the end of its view.
    pub fn span(&self) -> i64 {
        self.view.revision() - self.from + 1
    }

    /// Reads. Blocks on the store; the work is bounded by the limits of the hub.
    pub fn run(self) -> Result<JobResult, HistoryError> {
        let Self { view, from, limits, mut index, joined } = self;
        let prevs = joined.iter().any(|watcher| watcher.variant.prev_kv);
        let scanned = view.scan(from, limits, prevs, &mut |key| index.contains(key))?;
        if scanned.next <= from || scanned.next > view.revision() + 1 {
            return Err(HistoryError(
                format!("a scan from revision {from} ended at {}", scanned.next).into(),
            ));
        }

        let mut covered = scanned.next - 1;
        let mut pool = EventPool::default();
        let mut bytes = 0;
        let mut matched = Vec::new();
        for (done, step) in scanned.revisions.iter().enumerate() {
            let mut with_prev = Vec::new();
            for event in step.events.iter() {
                let number = pool.push(step.revision, event);
                matched.clear();
                index.lists_of(&event.kv.key, |list| matched.push(list));
                let mut wanted = false;
                for &list in &matched {
                    let list = &mut index.lists[list as usize];
                    list.hits.push(number);
                    wanted |= list.with_prev > 0;
                }
                if wanted {
                    with_prev.push(number);
                }
                bytes += history::weight(event);
            }
            bytes += pool.fetch_previous(&*view, &with_prev)?;
            // Previous values can be far larger than the events, so they count as well.
            if bytes >= limits.max_bytes && done + 1 < scanned.revisions.len() {
                covered = step.revision;
                break;
            }
        }

        // Watchers of the same keys, kind and position share the bytes.
        let mut shared: HashMap<(u32, usize, usize), EventFields> = HashMap::new();
        let mut found = Vec::with_capacity(joined.len());
        for watcher in joined {
            let hits = &index.lists[watcher.place.list as usize].hits;
            let first = hits.partition_point(|&number| pool.revision(number) < watcher.next);
            let fields = if first == hits.len() {
                EventFields::None
            } else {
                shared
                    .entry((watcher.place.list, watcher.variant.number(), first))
                    .or_insert_with(|| pool.fields(&hits[first..], watcher.variant))
                    .clone()
            };
            found.push((watcher, fields));
        }
        Ok(JobResult { found, covered })
    }
}
