//! Streams: their watch ids and the accounts of their queues.
//!
//! Input: frames in order, feedback about frames that were taken. Output: per stream the frames
//! since the last collection.
//! **Invariant:** `responses`, `bytes` and `events` of a stream count exactly what was pushed and
//! not yet reported as drained.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use super::{Slab, StreamId};
use crate::{encode::Frame, limits::Limits};

/// What a stream took out of its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Responses.
    pub responses: usize,
    /// Their cost.
    pub bytes: usize,
    /// Events in them.
    pub events: usize,
}

impl Drained {
    /// Counts a frame.
    pub fn add(&mut self, frame: &Frame) {
        self.responses += 1;
        self.bytes += frame.cost;
        self.events += frame.event_count();
    }

    /// Counts what another one counted.
    pub(crate) fn merge(&mut self, other: Drained) {
        self.responses += other.responses;
        self.bytes += other.bytes;
        self.events += other.events;
    }

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.responses == 0
    }
}

/// New frames of one stream.
#[derive(Debug)]
pub struct Output {
    /// The stream.
    pub stream: StreamId,
    /// To be appended to its queue. May be empty when only the next field changed.
    pub frames: Vec<Frame>,
    /// Watchers are parked: [`super::Hub::drained`] must be called soon after something is taken,
    /// not only with the next output.
    pub waits_for_room: bool,
}

pub(super) struct Stream {
    name: StreamId,
    /// The watchers by their ids.
    pub(super) ids: HashMap<i64, u32>,
    next_id: i64,
    /// Watchers that wait for room, first come first.
    pub(super) parked: BTreeSet<(u64, u32)>,
    out: Vec<Frame>,
    dirty: bool,
    queued: Drained,
    /// Which shared bytes the last frame has.
    last_events: Option<(usize, usize)>,
    due: Duration,
    interval: Duration,
}

impl Stream {
    /// The id for a new watcher: the wanted one if it is free, or the counter's next free one.
    pub(super) fn claim(&mut self, wanted: i64) -> Option<i64> {
        if wanted != 0 {
            return (!self.ids.contains_key(&wanted)).then_some(wanted);
        }
        while self.ids.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Some(self.next_id - 1)
    }

    /// Sets the next time to think of progress, an interval from now.
    pub(super) fn reschedule(&mut self, now: Duration) -> Duration {
        self.due = now + self.interval;
        self.due
    }
}

pub(super) struct Streams {
    slots: Slab<Stream>,
    dirty: Vec<u32>,
    max_responses: usize,
    max_bytes: usize,
    pub(super) total_bytes: usize,
    max_total_bytes: usize,
    pressed_bytes: usize,
    pub(super) pending_events: usize,
    pub(super) events_total: u64,
}

impl Streams {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            slots: Slab::default(),
            dirty: Vec::new(),
            max_responses: limits.queue_responses,
            max_bytes: limits.queue_bytes,
            total_bytes: 0,
            max_total_bytes: limits.total_bytes,
            pressed_bytes: limits.pressed_bytes.min(limits.queue_bytes),
            pending_events: 0,
            events_total: 0,
        }
    }

    pub(super) fn open(&mut self, name: StreamId, due: Duration, interval: Duration) -> u32 {
        self.slots.insert(Stream {
            name,
            ids: HashMap::new(),
            next_id: 0,
            parked: BTreeSet::new(),
            out: Vec::new(),
            dirty: false,
            queued: Drained::default(),
            last_events: None,
            due,
            interval,
        })
    }

    /// Forgets a stream; gives its due time.
    pub(super) fn close(&mut self, slot: u32) -> Duration {
        let stream = self.slots.remove(slot);
        self.pending_events -= stream.queued.events;
        self.total_bytes -= stream.queued.bytes;
        // The slot may be reused before the outputs are collected.
        self.dirty.retain(|&dirty| dirty != slot);
        stream.due
    }

    pub(super) fn at(&self, slot: u32) -> &Stream {
        self.slots.at(slot)
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> &mut Stream {
        self.slots.at_mut(slot)
    }

    pub(super) fn watchers(&self, slot: u32) -> Vec<u32> {
        self.slots.at(slot).ids.values().copied().collect()
    }

    fn mark(&mut self, slot: u32) -> &mut Stream {
        let stream = self.slots.at_mut(slot);
        if !stream.dirty {
            stream.dirty = true;
            self.dirty.push(slot);
        }
        stream
    }

    /// Appends to the queue of a stream.
    pub(super) fn push(&mut self, slot: u32, mut frame: Frame) {
        let events = frame.event_count();
        self.pending_events += events;
        self.events_total += events as u64;
        let stream = self.mark(slot);
        // The last frame is the last to leave, so if anything is queued its bytes are held.
        let before = if stream.queued.is_empty() { None } else { stream.last_events };
        stream.last_events = frame.charge(before).or(stream.last_events);
        stream.queued.add(&frame);
        let cost = frame.cost;
        stream.out.push(frame);
        self.total_bytes += cost;
    }

    /// Remembers that a watcher waits for room.
    pub(super) fn park(&mut self, slot: u32, turn: u64, watcher: u32) {
        self.mark(slot).parked.insert((turn, watcher));
    }

    /// What a stream may hold now.
    fn allowed_bytes(&self) -> usize {
        let is_pressed = self.total_bytes >= self.max_total_bytes;
        if is_pressed { self.pressed_bytes } else { self.max_bytes }
    }

    /// Whether watchers have to wait. Each watcher may always have one response queued, or a
    /// stream with thousands of them on one key could never be live.
    pub(super) fn is_full(&self, slot: u32) -> bool {
        let stream = self.slots.at(slot);
        stream.queued.responses >= self.max_responses + stream.ids.len()
            || stream.queued.bytes >= self.allowed_bytes()
    }

    /// How many parked watchers may go on: none until half of the queue was taken, so that
    /// they don't come back for one response at a time.
    pub(super) fn room(&self, slot: u32) -> usize {
        let stream = self.slots.at(slot);
        let max = self.max_responses + stream.ids.len();
        if stream.queued.responses > max / 2 || stream.queued.bytes > self.allowed_bytes() / 2 {
            return 0;
        }
        max - stream.queued.responses
    }

    pub(super) fn drained(&mut self, slot: u32, drained: Drained) {
        let queued = &mut self.slots.at_mut(slot).queued;
        queued.responses -= drained.responses;
        queued.bytes -= drained.bytes;
        queued.events -= drained.events;
        self.pending_events -= drained.events;
        self.total_bytes -= drained.bytes;
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        let slots = std::mem::take(&mut self.dirty);
        let collect = |slot| {
            let stream = self.slots.at_mut(slot);
            stream.dirty = false;
            Output {
                stream: stream.name,
                frames: std::mem::take(&mut stream.out),
                waits_for_room: !stream.parked.is_empty(),
            }
        };
        slots.into_iter().map(collect).collect()
    }
}
