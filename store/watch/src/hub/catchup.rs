//! Watchers that are behind: who is read for next, and what becomes of what was read.
//!
//! Input: watchers with a position (`next`), results of reads. Output: [`ReadJob`]s.
//! Reads are shared: a job begins at the watcher that has waited longest and takes along all that
//! are at most a read's length ahead of it. Whoever was served goes to the end of the queue, so
//! nobody is starved by watchers that are further behind or that have more to read.
//! **Invariant:** a watcher that is behind costs its position only; a full stream parks its
//! watchers, and they are not read for until it has room.
//! **Invariant:** a watcher becomes live only when it was told everything up to the hub's revision.

use std::collections::BTreeSet;

use mainstay_mvcc::CatchUpLimits;

use super::{Hub, State};
use crate::{
    encode::Frame,
    job::{JobResult, ReadJob},
};

/// Which watchers a job may be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only those that a short read makes live ([`crate::Limits::near_revisions`]).
    Near,
    /// Whoever has waited longest.
    Any,
}

/// The watchers in state `Waiting`, in the two orders that matter.
#[derive(Default)]
pub(super) struct Lagging {
    turns: BTreeSet<(u64, u32)>,
    positions: BTreeSet<(i64, u32)>,
}

impl Hub {
    /// Puts a watcher that is in no set where its `next` says: live, behind, or compacted.
    pub(super) fn place(&mut self, slot: u32) {
        let watcher = self.watchers.at_mut(slot);
        if watcher.next > self.revision {
            let place = self.live.insert(&watcher.range, slot, watcher.variant.prev_kv);
            watcher.state = State::Live(place);
        } else {
            self.wait(slot, None);
        }
    }

    /// Queues a watcher for a read, at the end or at the turn that it had; or tells it that its
    /// position is compacted.
    pub(super) fn wait(&mut self, slot: u32, turn: Option<u64>) {
        if self.watchers.at(slot).next < self.view.compacted() {
            return self.tell_compacted(slot);
        }
        let turn = turn.unwrap_or_else(|| self.next_number());
        let watcher = self.watchers.at_mut(slot);
        watcher.state = State::Waiting { turn };
        self.slow += 1;
        self.lagging.turns.insert((turn, slot));
        self.lagging.positions.insert((watcher.next, slot));
    }

    /// Sets a watcher aside until its stream has room.
    pub(super) fn park(&mut self, slot: u32) {
        let turn = self.next_number();
        let watcher = self.watchers.at_mut(slot);
        watcher.state = State::Parked { turn };
        self.slow += 1;
        self.streams.park(watcher.stream, turn, slot);
    }

    /// Takes a watcher out of whatever set it is in. Its state is void until it is placed anew.
    pub(super) fn detach(&mut self, slot: u32) {
        let watcher = self.watchers.at(slot);
        match watcher.state {
            State::Live(place) => {
                if let Some(moved) = self.live.remove(place, watcher.variant.prev_kv) {
                    self.watchers.at_mut(moved).state = State::Live(place);
                }
            }
            State::Waiting { turn } => {
                self.slow -= 1;
                self.lagging.turns.remove(&(turn, slot));
                self.lagging.positions.remove(&(watcher.next, slot));
            }
            State::Parked { turn } => {
                self.slow -= 1;
                self.streams.at_mut(watcher.stream).parked.remove(&(turn, slot));
            }
            State::Reading => self.slow -= 1,
            State::Compacted => {}
        }
    }

    fn tell_compacted(&mut self, slot: u32) {
        let mut frame = Frame::new(self.header(0), self.watchers.at(slot).id);
        frame.canceled = true;
        frame.compact_revision = self.view.compacted();
        let watcher = self.watchers.at_mut(slot);
        watcher.state = State::Compacted;
        self.streams.push(watcher.stream, frame);
    }

    /// Cancels the waiting watchers whose position is no longer there.
    pub(super) fn cancel_compacted(&mut self) {
        let compacted = self.view.compacted();
        while let Some(&(next, slot)) = self.lagging.positions.first()
            && next < compacted
        {
            self.detach(slot);
            self.tell_compacted(slot);
        }
    }

    /// Lets parked watchers of a stream go on as far as it has room for them. Each of them has
    /// something to say, so the stream will be drained, and this called, again.
    pub(super) fn unpark(&mut self, stream: u32) {
        for _ in 0..self.streams.room(stream) {
            let Some(&(_, slot)) = self.streams.at_mut(stream).parked.first() else { break };
            self.detach(slot);
            self.wait(slot, None);
        }
    }

    fn head(&self, reach: Reach) -> Option<u32> {
        match reach {
            Reach::Near => {
                let lowest = self.revision - self.config.limits.near_revisions + 1;
                self.lagging.positions.range((lowest, 0)..).next().map(|&(_, slot)| slot)
            }
            Reach::Any => self.lagging.turns.first().map(|&(_, slot)| slot),
        }
    }

    /// Whether watchers wait for such a read.
    pub fn has_work(&self, reach: Reach) -> bool {
        self.head(reach).is_some()
    }

    /// The next read, if anyone waits for one. Its watchers are set aside until
    /// [`Hub::finish`] is called with its result.
    pub fn next_job(&mut self, reach: Reach) -> Option<ReadJob> {
        let head = self.head(reach)?;
        let limits = &self.config.limits;
        let positions = &self.lagging.positions;
        let from = self.watchers.at(head).next;
        let rows = i64::try_from(limits.batch_rows).unwrap_or(i64::MAX);
        let ahead = positions.range((from, 0)..(from.saturating_add(rows), 0));
        let others = ahead.map(|&(_, slot)| slot).filter(|&slot| slot != head);
        let mut slots = vec![head];
        slots.extend(others.take(limits.batch_watchers.saturating_sub(1)));

        let limits = CatchUpLimits {
            max_revisions: limits.batch_revisions,
            max_bytes: limits.batch_bytes,
            max_rows: limits.batch_rows,
        };
        let mut job = ReadJob::new(self.view.clone(), from, limits);
        for slot in slots {
            let turn = match self.watchers.at(slot).state {
                State::Waiting { turn } => turn,
                state => unreachable!("{state:?} in the queue of those who wait"),
            };
            self.detach(slot);
            self.slow += 1;
            let watcher = self.watchers.at_mut(slot);
            watcher.state = State::Reading;
            let position = (watcher.next, turn);
            job.join((slot, watcher.serial), position, &watcher.range, watcher.variant);
        }
        Some(job)
    }

    /// Takes in what a job read: its watchers get their events and are live, or wait again.
    pub fn finish(&mut self, result: JobResult) {
        let JobResult { found, covered } = result;
        let header = self.header(covered);
        for (joined, events) in found {
            let slot = joined.slot;
            let Some(watcher) = self.watchers.get(slot) else { continue };
            // Cancelled meanwhile, or another watcher has the slot now.
            if watcher.serial != joined.serial {
                continue;
            }
            let stream = watcher.stream;
            self.detach(slot);
            if joined.next > covered {
                self.wait(slot, Some(joined.turn));
                continue;
            }
            if !events.is_empty() {
                if self.streams.is_full(stream) {
                    self.park(slot);
                    continue;
                }
                let watcher = self.watchers.at_mut(slot);
                watcher.quiet = false;
                let mut frame = Frame::new(header, watcher.id);
                frame.events = events;
                if watcher.fragment {
                    for part in frame.fragments(self.config.fragment_bytes) {
                        self.streams.push(stream, part);
                    }
                } else {
                    self.streams.push(stream, frame);
                }
            }
            self.watchers.at_mut(slot).next = covered + 1;
            self.place(slot);
        }
    }
}
