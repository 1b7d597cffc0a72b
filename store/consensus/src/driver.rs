//! The raft thread: turns what waits in the inbox into one step of the node and one log write.
//!
//! Input: the [`Inbox`], and time. Output: messages to the [`Transport`], decisions to the
//! [`Sink`], records to the log, a published [`crate::Status`].
//!
//! One pass: take everything that waits (while the last write ran, the queue has filled: the write
//! is what makes batches), step the node, send what a leader may send at once, hand out what is
//! committed, write the log with at most one sync, send what the write makes true, hand out what
//! it commits.
//!
//! **Invariant:** nothing in the loop blocks but the log and the wait for the inbox.
//! **Invariant:** after a failed log write nothing is sent, handed out or written any more.
//! **Invariant:** time that the thread lost is lost: however long a pass took, one tick fires
//! after it, and what peers sent meanwhile is taken in before it. A stalled member does not start
//! elections on account of its own stall.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use mainstay_log::LogStore;
use mainstay_proto::raftpb::Message;
use mainstay_proto::walpb;

use crate::config::{Config, Start};
use crate::error::{Fatal, Refused, StepError};
use crate::handle::{Handle, Shared};
use crate::inbox::{Command, Inbox, OnRefused, Payload, Proposal};
use crate::node::{Input, Node, Ready};
use crate::outbox::Outbox;
use crate::seam::{Sink, SnapshotSource, Transport};
use crate::status::Counters;

/// Bytes of proposals taken in one pass. More would make the other members' writes as long as ours,
/// one after the other.
const PASS_BYTES: usize = 8 << 20;

const MSG_HEARTBEAT: Option<i32> = Some(8);

/// Starts the raft thread of a member. What was committed and not yet applied is handed to `sink`
/// at once. Ends by [`Handle::stop`] or when it cannot go on; either way through
/// [`Sink::stopped`].
pub fn spawn(
    config: Config,
    start: Start,
    log: Box<dyn LogStore>,
    transport: Arc<dyn Transport>,
    snapshots: Arc<dyn SnapshotSource>,
    sink: Box<dyn Sink>,
) -> Result<Handle, Fatal> {
    let marked = start.mark().0;
    let node = Node::new(config.clone(), start, snapshots)?;
    let shared = Arc::new(Shared {
        inbox: Inbox::new(config.inbox),
        status: ArcSwap::from_pointee(node.status()),
        counters: Counters::default(),
        thread: Mutex::default(),
    });
    let driver = Driver {
        node,
        log,
        transport,
        sink,
        shared: Arc::clone(&shared),
        ticker: Ticker::new(config.tick, Instant::now()),
        heartbeats: Heartbeats {
            interval: config.tick * config.heartbeat_ticks as u32,
            last: HashMap::new(),
        },
        config,
        leader: raft::INVALID_ID,
        marked,
        transfers: Vec::new(),
    };
    let thread = std::thread::Builder::new()
        .name("raft".to_owned())
        .spawn(move || driver.run())
        .map_err(Fatal::Thread)?;
    let handle = Handle { shared };
    *handle.shared.thread.lock().expect("nobody else has the handle yet") = Some(thread);
    Ok(handle)
}

struct Driver {
    config: Config,
    node: Node,
    log: Box<dyn LogStore>,
    transport: Arc<dyn Transport>,
    sink: Box<dyn Sink>,
    shared: Arc<Shared>,
    ticker: Ticker,
    heartbeats: Heartbeats,
    /// The last leader that was there.
    leader: u64,
    /// The index of the newest snapshot mark in the log.
    marked: u64,
    /// Transfers of leadership under way, and whom to tell when raft gives up.
    transfers: Vec<(u64, OnRefused)>,
}

impl Driver {
    fn run(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.work()));
        let reason = match result {
            Ok(Ok(())) => None,
            Ok(Err(fatal)) => Some(fatal),
            Err(panic) => Some(Fatal::Raft(panic_text(panic.as_ref()))),
        };
        let (commands, proposals) = self.shared.inbox.close();
        for proposal in proposals {
            self.refuse(proposal.refused, Refused::Stopped);
        }
        for command in commands {
            match command {
                Command::ReadIndex(context) => self.sink.read_refused(context),
                Command::Transfer { refused, .. } => refused(Refused::Stopped),
                _ => {}
            }
        }
        let Self { sink, log, .. } = self;
        drop(log);
        if let Some(fatal) = &reason {
            tracing::error!("{fatal}");
        }
        sink.stopped(reason);
    }

    fn work(&mut self) -> Result<(), Fatal> {
        self.drain()?;
        let mut commands = VecDeque::new();
        let mut proposals = Vec::new();
        loop {
            let into = self.node.may_propose().is_ok().then_some(&mut proposals);
            self.shared.inbox.take(self.ticker.next, &mut commands, into, PASS_BYTES);
            let mut stop = false;
            for command in commands.drain(..) {
                stop |= matches!(command, Command::Stop);
                self.command(command)?;
            }
            self.tick()?;
            self.propose(&mut proposals)?;
            self.drain()?;
            self.end_transfers();
            self.publish();
            if stop {
                // The commit index alone is not worth a sync, except at the end.
                let state = self.node.hard_state();
                self.log.append(&[], Some(&state), true).map_err(Fatal::Log)?;
                return self.log.close().map_err(Fatal::Log);
            }
        }
    }

    /// Steps the node, and lets it have its write at once when it asks for it.
    fn step(&mut self, input: Input) -> Result<Result<(), Refused>, Fatal> {
        let result = match self.node.step(input) {
            Ok(()) => Ok(()),
            Err(StepError::Refused(refused)) => Err(refused),
            Err(StepError::BadMessage(bad)) => {
                tracing::debug!("dropped a message: {bad}");
                Counters::add(&self.shared.counters.messages_refused, 1);
                Ok(())
            }
            Err(StepError::Fatal(fatal)) => return Err(fatal),
        };
        if self.node.needs_ready() {
            self.drain()?;
        }
        Ok(result)
    }

    fn command(&mut self, command: Command) -> Result<(), Fatal> {
        let input = match command {
            Command::ReadIndex(context) => {
                if self.step(Input::ReadIndex(context))?.is_err() {
                    self.refuse_read(context);
                }
                return Ok(());
            }
            Command::Transfer { to, refused } => {
                match self.step(Input::Transfer(to))? {
                    Ok(()) => self.transfers.push((to, refused)),
                    Err(reason) => refused(reason),
                }
                return Ok(());
            }
            Command::AdvanceTicks(ticks) => {
                for _ in 0..ticks.min(self.config.election_ticks) {
                    // Ticks are never refused.
                    let _ = self.step(Input::Tick)?;
                }
                return Ok(());
            }
            Command::SnapshotTaken(snapshot) => return self.snapshot_taken(&snapshot),
            Command::Stop => return Ok(()),
            Command::Message(message) => Input::Message(message),
            Command::Campaign => Input::Campaign,
            Command::Unreachable(id) => Input::Unreachable(id),
            Command::SnapshotReport { id, ok } => Input::SnapshotReport { id, ok },
            Command::Applied { index, conf_changes } => Input::Applied { index, conf_changes },
        };
        // None of these is ever refused; a bad message is counted.
        let _ = self.step(input)?;
        Ok(())
    }

    /// Who asked for a transfer that raft has given up need not wait until the time is over.
    fn end_transfers(&mut self) {
        let (leads, to) = self.node.transferee();
        for (asked, refused) in self.transfers.extract_if(.., |(asked, _)| *asked != to) {
            // When leadership has gone, the soft state has told where to.
            if leads && asked != self.config.id {
                refused(Refused::TransferFailed);
            }
        }
    }

    fn tick(&mut self) -> Result<(), Fatal> {
        let now = Instant::now();
        let Some(missed) = self.ticker.fire(now) else { return Ok(()) };
        Counters::add(&self.shared.counters.ticks_missed, missed);
        // Ticks are never refused.
        let _ = self.step(Input::Tick)?;
        if let Err(reason) = self.node.may_propose() {
            for proposal in self.shared.inbox.expired(now) {
                self.refuse(proposal.refused, reason);
            }
        }
        Ok(())
    }

    /// Proposes in as few messages as their size allows.
    fn propose(&mut self, proposals: &mut Vec<Proposal>) -> Result<(), Fatal> {
        if proposals.is_empty() {
            return Ok(());
        }
        match self.node.may_propose() {
            Ok(()) => {}
            // Leadership was lost since they were taken: they wait on.
            Err(Refused::NoLeader | Refused::Transferring) => {
                self.shared.inbox.put_back(proposals);
                return Ok(());
            }
            Err(reason) => {
                for proposal in proposals.drain(..) {
                    self.refuse(proposal.refused, reason);
                }
                return Ok(());
            }
        }
        let limit = self.config.max_size_per_msg as usize;
        let (mut batch, mut callbacks, mut bytes) = (Vec::new(), Vec::new(), 0);
        for Proposal { payload, own_term, refused, .. } in proposals.drain(..) {
            if own_term.is_some_and(|term| !self.node.leads_in(term)) {
                self.refuse(refused, Refused::NotLeader);
                continue;
            }
            match payload {
                Payload::Data(data) => {
                    if !batch.is_empty() && bytes + data.len() > limit {
                        self.propose_batch(&mut batch, &mut callbacks)?;
                        bytes = 0;
                    }
                    bytes += data.len();
                    batch.push(data);
                    callbacks.push(refused);
                }
                Payload::Change(change) => {
                    if let Err(reason) = self.step(Input::ProposeConfChange(change))? {
                        self.refuse(refused, reason);
                    }
                }
            }
        }
        self.propose_batch(&mut batch, &mut callbacks)
    }

    fn propose_batch(
        &mut self,
        batch: &mut Vec<bytes::Bytes>,
        callbacks: &mut Vec<OnRefused>,
    ) -> Result<(), Fatal> {
        if batch.is_empty() {
            return Ok(());
        }
        if let Err(reason) = self.step(Input::Propose(std::mem::take(batch)))? {
            for callback in callbacks.drain(..) {
                self.refuse(callback, reason);
            }
        }
        callbacks.clear();
        Ok(())
    }

    fn refuse(&self, callback: OnRefused, reason: Refused) {
        Counters::add(&self.shared.counters.proposals_failed, 1);
        if reason == Refused::Uncommitted {
            Counters::add(&self.shared.counters.proposals_uncommitted, 1);
        }
        callback(reason);
    }

    fn refuse_read(&self, context: u64) {
        Counters::add(&self.shared.counters.reads_refused, 1);
        self.sink.read_refused(context);
    }

    /// Does what the node wants done, until it wants nothing.
    fn drain(&mut self) -> Result<(), Fatal> {
        while let Some(ready) = self.node.ready() {
            self.process(ready)?;
        }
        Ok(())
    }

    fn process(&mut self, ready: Ready) -> Result<(), Fatal> {
        if let Some(soft) = ready.soft {
            if soft.leader != raft::INVALID_ID && soft.leader != self.leader {
                self.leader = soft.leader;
                Counters::add(&self.shared.counters.leader_changes, 1);
            }
            self.heartbeats.last.clear();
            self.publish();
            self.sink.soft_state(soft);
        }
        self.send(ready.outbox);
        if !ready.committed.is_empty() {
            self.sink.committed(ready.committed);
        }
        for (context, index) in ready.read_states {
            self.sink.read_state(context, index);
        }
        for context in ready.refused_reads {
            self.refuse_read(context);
        }

        if let Some(metadata) = ready.snapshot.as_ref().and_then(|s| s.metadata.as_ref()) {
            let mark = walpb::Snapshot {
                index: metadata.index,
                term: metadata.term,
                conf_state: metadata.conf_state.clone(),
            };
            self.log.save_snapshot(&mark).map_err(Fatal::Log)?;
            self.marked = mark.index();
        }
        if !ready.entries.is_empty() || ready.hard_state.is_some() {
            self.log
                .append(&ready.entries, ready.hard_state.as_ref(), ready.must_sync)
                .map_err(Fatal::Log)?;
        }
        if !ready.entries.is_empty() {
            Counters::add(&self.shared.counters.log_batches, 1);
            Counters::add(&self.shared.counters.log_entries, ready.entries.len() as u64);
        }
        self.send(ready.persisted);
        if let Some(snapshot) = ready.snapshot {
            self.sink.install_snapshot(snapshot);
        }
        let advanced = self.node.advance()?;
        self.send(advanced.outbox);
        if !advanced.committed.is_empty() {
            self.sink.committed(advanced.committed);
        }
        Ok(())
    }

    fn send(&mut self, outbox: Outbox) {
        if !outbox.messages.is_empty() {
            let late = self.heartbeats.late(&outbox.messages);
            Counters::add(&self.shared.counters.heartbeat_send_failures, late);
            self.transport.send(outbox.messages);
        }
        for (message, state) in outbox.snapshots {
            Counters::add(&self.shared.counters.snapshots_sent, 1);
            self.transport.send_snapshot(message, state);
        }
    }

    fn snapshot_taken(&mut self, snapshot: &walpb::Snapshot) -> Result<(), Fatal> {
        let state = self.node.hard_state();
        let (index, committed) = (snapshot.index(), state.commit());
        if index > committed {
            return Err(Fatal::AppliedAhead { applied: index, committed });
        }
        // Older than one that came from the leader meanwhile.
        if index <= self.marked {
            return Ok(());
        }
        // Replay starts at a mark only if the log says that it was committed.
        self.log.append(&[], Some(&state), false).map_err(Fatal::Log)?;
        self.log.save_snapshot(snapshot).map_err(Fatal::Log)?;
        self.marked = index;
        self.log.release_before(index.min(self.node.first_index())).map_err(Fatal::Log)
    }

    fn publish(&self) {
        self.shared.status.store(Arc::new(self.node.status()));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "panic without a message".to_owned(),
    }
}

/// Fires at a fixed phase, at most once each time it is asked.
struct Ticker {
    tick: Duration,
    next: Instant,
}

impl Ticker {
    fn new(tick: Duration, now: Instant) -> Self {
        Self { tick, next: now + tick }
    }

    /// If a tick is due: how many more were missed.
    fn fire(&mut self, now: Instant) -> Option<u64> {
        let late = now.checked_duration_since(self.next)?;
        let missed = late.as_nanos() / self.tick.as_nanos().max(1);
        self.next += self.tick * (missed as u32 + 1);
        Some(missed as u64)
    }
}

/// Watches whether heartbeats leave in time.
struct Heartbeats {
    interval: Duration,
    last: HashMap<u64, Instant>,
}

impl Heartbeats {
    /// How many heartbeats among `messages` leave more than twice their interval after the last
    /// one to the same member.
    fn late(&mut self, messages: &[Message]) -> u64 {
        let mut late = 0;
        for message in messages.iter().filter(|message| message.r#type == MSG_HEARTBEAT) {
            let now = Instant::now();
            if let Some(last) = self.last.insert(message.to(), now) {
                let took = now - last;
                if took > self.interval * 2 {
                    late += 1;
                    tracing::warn!(
                        "the heartbeat to member {:x} left {took:?} after the one before instead \
                         of {:?}: the disk is slow or the machine overloaded",
                        message.to(),
                        self.interval,
                    );
                }
            }
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_costs_its_ticks_and_keeps_the_phase() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut ticker = Ticker::new(Duration::from_millis(100), start);
        assert_eq!(ticker.fire(at(99)), None);
        assert_eq!(ticker.fire(at(104)), Some(0));
        assert_eq!(ticker.fire(at(110)), None);
        assert_eq!(ticker.fire(at(1_250)), Some(10));
        assert_eq!(ticker.fire(at(1_299)), None);
        assert_eq!(ticker.fire(at(1_300)), Some(0));
    }

    #[test]
    fn late_heartbeats_are_counted_for_each_member() {
        let beat = |to| Message { r#type: MSG_HEARTBEAT, to: Some(to), ..Default::default() };
        let mut heartbeats = Heartbeats { interval: Duration::ZERO, last: HashMap::new() };
        assert_eq!(heartbeats.late(&[beat(2), beat(3)]), 0);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(heartbeats.late(&[beat(2), Message::default()]), 1);
        heartbeats.interval = Duration::from_secs(60);
        assert_eq!(heartbeats.late(&[beat(2), beat(3)]), 0);
    }
}
