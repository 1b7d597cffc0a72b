//! Live delivery: a published revision goes to every live watcher whose keys it touches.
//!
//! Input: a [`Published`] step. Output: frames on the streams. A watcher whose stream is full
//! leaves the live ones and stays behind at this revision.
//! **Invariant:** matching work depends on the events and on who wants them, not on how many
//! watchers there are; each event is encoded at most once with and once without previous pair.

use mainstay_mvcc::RevisionEvents;

use super::{Fatal, Hub, State};
use crate::{
    encode::{EventFields, Frame},
    history::Published,
    pool::{EventPool, Variant},
};

impl Hub {
    /// Takes a step of the store in. Revisions that are already known are skipped; if some are
    /// missing, the watchers that they may concern read them from the view.
    pub fn publish(&mut self, step: Published) -> Result<(), Fatal> {
        let Published { view, revisions } = step;
        let (from, to) = (self.revision, view.revision());
        if to < from {
            return Err(Fatal::Backwards { from, to });
        }
        self.view = view;

        let known = revisions.partition_point(|step| step.revision <= from);
        let fresh = &revisions[known..];
        let is_complete = fresh.iter().map(|step| step.revision).eq(from + 1..=to);
        if is_complete {
            for step in fresh {
                self.deliver(step)?;
                self.revision = step.revision;
            }
        } else {
            self.leave_behind(to);
            self.revision = to;
        }
        self.cancel_compacted();
        Ok(())
    }

    fn deliver(&mut self, step: &RevisionEvents) -> Result<(), Fatal> {
        let header = self.header(step.revision);
        let mut pool = EventPool::default();
        let mut touched: Vec<u32> = Vec::new();
        let mut with_prev: Vec<u32> = Vec::new();
        let mut matched: Vec<u32> = Vec::new();
        for event in step.events.iter() {
            matched.clear();
            self.live.lists_of(&event.kv.key, |list| matched.push(list));
            if matched.is_empty() {
                continue;
            }
            let number = pool.push(step.revision, event);
            let mut wanted = false;
            for &at in &matched {
                let list = &mut self.live.lists[at as usize];
                if list.hits.is_empty() {
                    touched.push(at);
                }
                list.hits.push(number);
                wanted |= list.with_prev > 0;
            }
            if wanted {
                with_prev.push(number);
            }
        }
        pool.fetch_previous(&*self.view, &with_prev)?;

        let mut overflown: Vec<u32> = Vec::new();
        for at in touched {
            let list = &mut self.live.lists[at as usize];
            let mut fields: [Option<EventFields>; Variant::COUNT] = Default::default();
            for &slot in &list.members {
                let watcher = self.watchers.at_mut(slot);
                if watcher.next > step.revision {
                    continue;
                }
                let variant = watcher.variant;
                let events = fields[variant.number()]
                    .get_or_insert_with(|| pool.fields(&list.hits, variant));
                if events.is_empty() {
                    continue;
                }
                if self.streams.is_full(watcher.stream) {
                    watcher.next = step.revision;
                    overflown.push(slot);
                    continue;
                }
                watcher.quiet = false;
                let mut frame = Frame::new(header, watcher.id);
                frame.events = events.clone();
                if watcher.fragment {
                    for part in frame.fragments(self.config.fragment_bytes) {
                        self.streams.push(watcher.stream, part);
                    }
                } else {
                    self.streams.push(watcher.stream, frame);
                }
            }
            list.hits.clear();
        }
        for slot in overflown {
            self.detach(slot);
            self.park(slot);
        }
        Ok(())
    }

    /// Moves every live watcher that revisions after the hub's and up to `to` may concern to the
    /// ones that are behind.
    fn leave_behind(&mut self, to: i64) {
        for slot in 0..self.watchers.items.len() {
            let slot = u32::try_from(slot).expect("slots are u32");
            let Some(watcher) = self.watchers.get(slot) else { continue };
            let next = watcher.next.max(self.revision + 1);
            if matches!(watcher.state, State::Live(_)) && next <= to {
                self.detach(slot);
                self.watchers.at_mut(slot).next = next;
                self.wait(slot, None);
            }
        }
    }
}
