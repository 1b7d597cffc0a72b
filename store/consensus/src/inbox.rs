//! The queue in front of the raft thread.
//!
//! Input: requests, messages and reports from any thread. Output: everything that waits, taken at
//! once by the raft thread. Proposals wait in a queue of their own, so that they stay here while
//! nobody leads and leave as one batch when somebody does.
//!
//! **Invariant:** every kind is bounded by [`InboxLimits`]; what does not fit is refused to the
//! caller at once. Only the apply thread's reports and a stop are always taken.
//! **Invariant:** nobody holds the lock while doing anything but moving items.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use mainstay_proto::raftpb::{ConfChange, Message};
use mainstay_proto::walpb;
use prost::Message as _;

use crate::config::InboxLimits;
use crate::error::Refused;
use crate::status::Waiting;

/// Tells the proposer that his proposal is not in the log. Called at most once, on the raft
/// thread, so it must not block.
pub type OnRefused = Box<dyn FnOnce(Refused) + Send>;

/// What is proposed.
pub(crate) enum Payload {
    Data(Bytes),
    Change(ConfChange),
}

impl Payload {
    fn bytes(&self) -> usize {
        match self {
            Payload::Data(data) => data.len(),
            Payload::Change(change) => change.encoded_len(),
        }
    }
}

/// A proposal that waits for a leader until its deadline.
pub(crate) struct Proposal {
    pub(crate) payload: Payload,
    /// Goes into the log only if this member leads, and in this term.
    pub(crate) own_term: Option<u64>,
    pub(crate) deadline: Instant,
    pub(crate) refused: OnRefused,
}

/// Everything else that the raft thread is told.
pub(crate) enum Command {
    Message(Box<Message>),
    ReadIndex(u64),
    Transfer { to: u64, refused: OnRefused },
    Campaign,
    AdvanceTicks(usize),
    Unreachable(u64),
    SnapshotReport { id: u64, ok: bool },
    Applied { index: u64, conf_changes: Vec<(u64, Option<ConfChange>)> },
    SnapshotTaken(walpb::Snapshot),
    Stop,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Message,
    Request,
    Report,
}

impl Command {
    fn class(&self) -> Class {
        match self {
            Command::Message(_) | Command::Unreachable(_) => Class::Message,
            Command::ReadIndex(_)
            | Command::Transfer { .. }
            | Command::Campaign
            | Command::AdvanceTicks(_) => Class::Request,
            Command::SnapshotReport { .. }
            | Command::Applied { .. }
            | Command::SnapshotTaken(_)
            | Command::Stop => Class::Report,
        }
    }
}

#[derive(Default)]
struct Queues {
    proposals: VecDeque<Proposal>,
    proposal_bytes: usize,
    commands: VecDeque<Command>,
    messages: usize,
    message_bytes: usize,
    requests: usize,
    /// The raft thread sleeps, and `proposals_wake` says whether a proposal is worth waking it.
    sleeping: bool,
    proposals_wake: bool,
    closed: bool,
}

/// See the module.
pub(crate) struct Inbox {
    limits: InboxLimits,
    queues: Mutex<Queues>,
    arrived: Condvar,
}

impl Inbox {
    pub(crate) fn new(limits: InboxLimits) -> Self {
        Self { limits, queues: Mutex::new(Queues::default()), arrived: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // A holder only moves items, so a poisoned lock still guards whole queues.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a proposal, or gives the reason why not.
    pub(crate) fn propose(&self, proposal: Proposal) -> Result<(), Refused> {
        let bytes = proposal.payload.bytes();
        let mut queues = self.lock();
        if queues.closed {
            return Err(Refused::Stopped);
        }
        let full = queues.proposals.len() >= self.limits.proposals
            || (!queues.proposals.is_empty()
                && queues.proposal_bytes + bytes > self.limits.proposal_bytes);
        if full {
            return Err(Refused::Full);
        }
        queues.proposal_bytes += bytes;
        queues.proposals.push_back(proposal);
        let wake = queues.sleeping && queues.proposals_wake;
        self.wake(queues, wake);
        Ok(())
    }

    /// Queues anything else, or gives the reason why not.
    pub(crate) fn push(&self, command: Command) -> Result<(), Refused> {
        let bytes = match &command {
            Command::Message(message) => message_bytes(message),
            _ => 0,
        };
        let mut queues = self.lock();
        if queues.closed {
            return Err(Refused::Stopped);
        }
        match command.class() {
            Class::Message => {
                let full = queues.messages >= self.limits.messages
                    || (queues.messages > 0
                        && queues.message_bytes + bytes > self.limits.message_bytes);
                if full {
                    return Err(Refused::Full);
                }
                queues.messages += 1;
                queues.message_bytes += bytes;
            }
            Class::Request => {
                if queues.requests >= self.limits.requests {
                    return Err(Refused::Full);
                }
                queues.requests += 1;
            }
            Class::Report => {}
        }
        queues.commands.push_back(command);
        let wake = queues.sleeping;
        self.wake(queues, wake);
        Ok(())
    }

    fn wake(&self, queues: MutexGuard<'_, Queues>, wake: bool) {
        drop(queues);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Waits until something can be taken or `until` has come, and moves all waiting commands into
    /// `commands`. With `proposals`, also moves proposals there, up to `max_bytes` of them (at
    /// least one); without, they stay.
    pub(crate) fn take(
        &self,
        until: Instant,
        commands: &mut VecDeque<Command>,
        mut proposals: Option<&mut Vec<Proposal>>,
        max_bytes: usize,
    ) {
        let mut queues = self.lock();
        loop {
            let waiting = !queues.commands.is_empty()
                || (proposals.is_some() && !queues.proposals.is_empty());
            if waiting || queues.closed {
                break;
            }
            let now = Instant::now();
            if now >= until {
                break;
            }
            queues.sleeping = true;
            queues.proposals_wake = proposals.is_some();
            queues = match self.arrived.wait_timeout(queues, until - now) {
                Ok((queues, _)) => queues,
                Err(poisoned) => poisoned.into_inner().0,
            };
            queues.sleeping = false;
        }
        std::mem::swap(&mut queues.commands, commands);
        queues.messages = 0;
        queues.message_bytes = 0;
        queues.requests = 0;
        if let Some(into) = proposals.as_mut() {
            let mut taken = 0;
            while let Some(next) = queues.proposals.front() {
                let bytes = next.payload.bytes();
                if taken > 0 && taken + bytes > max_bytes {
                    break;
                }
                taken += bytes;
                into.extend(queues.proposals.pop_front());
            }
            queues.proposal_bytes -= taken;
        }
    }

    /// Puts proposals back that were taken and could not go, in front of the others.
    pub(crate) fn put_back(&self, proposals: &mut Vec<Proposal>) {
        let mut queues = self.lock();
        for proposal in proposals.drain(..).rev() {
            queues.proposal_bytes += proposal.payload.bytes();
            queues.proposals.push_front(proposal);
        }
    }

    /// Takes out the proposals whose deadline has passed.
    pub(crate) fn expired(&self, now: Instant) -> Vec<Proposal> {
        let mut queues = self.lock();
        let mut out = Vec::new();
        if queues.proposals.iter().all(|proposal| proposal.deadline > now) {
            return out;
        }
        for proposal in std::mem::take(&mut queues.proposals) {
            if proposal.deadline <= now {
                queues.proposal_bytes -= proposal.payload.bytes();
                out.push(proposal);
            } else {
                queues.proposals.push_back(proposal);
            }
        }
        out
    }

    /// How many proposals wait here.
    pub(crate) fn proposals(&self) -> usize {
        self.lock().proposals.len()
    }

    /// How much of each kind waits here.
    pub(crate) fn waiting(&self) -> Waiting {
        let queues = self.lock();
        Waiting {
            proposals: queues.proposals.len(),
            proposal_bytes: queues.proposal_bytes,
            messages: queues.messages,
            message_bytes: queues.message_bytes,
            requests: queues.requests,
        }
    }

    /// Takes nothing more, and gives back what has not been taken.
    pub(crate) fn close(&self) -> (VecDeque<Command>, VecDeque<Proposal>) {
        let mut queues = self.lock();
        queues.closed = true;
        queues.proposal_bytes = 0;
        (std::mem::take(&mut queues.commands), std::mem::take(&mut queues.proposals))
    }
}

fn message_bytes(message: &Message) -> usize {
    // Entries and snapshots are all that can be large; the exact encoding does not matter here.
    let entries: usize = message
        .entries
        .iter()
        .map(|entry| entry.data.as_ref().map_or(0, Bytes::len) + ENTRY_OVERHEAD)
        .sum();
    let snapshot =
        message.snapshot.as_ref().and_then(|snapshot| snapshot.data.as_ref()).map_or(0, Bytes::len);
    entries + snapshot
}

/// What an entry takes in memory besides its data, roughly.
pub(crate) const ENTRY_OVERHEAD: usize = 128;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn proposal(bytes: usize, deadline: Instant) -> Proposal {
        Proposal {
            payload: Payload::Data(Bytes::from(vec![0; bytes])),
            own_term: None,
            deadline,
            refused: Box::new(|_| {}),
        }
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn each_kind_has_its_own_limit() {
        let inbox = Inbox::new(InboxLimits {
            proposals: 2,
            proposal_bytes: 100,
            messages: 1,
            message_bytes: 10,
            requests: 1,
        });
        // One proposal above the byte limit is taken, a second one is not.
        inbox.propose(proposal(1_000, far())).unwrap();
        assert_eq!(inbox.propose(proposal(1, far())), Err(Refused::Full));
        inbox.push(Command::Message(Box::default())).unwrap();
        assert_eq!(inbox.push(Command::Unreachable(2)), Err(Refused::Full));
        inbox.push(Command::ReadIndex(1)).unwrap();
        assert_eq!(inbox.push(Command::ReadIndex(2)), Err(Refused::Full));
        let waiting = inbox.waiting();
        assert_eq!((waiting.proposals, waiting.proposal_bytes), (1, 1_000));
        assert_eq!((waiting.messages, waiting.requests), (1, 1));
        for index in 0..100 {
            inbox.push(Command::Applied { index, conf_changes: Vec::new() }).unwrap();
        }
        let (mut commands, mut proposals) = (VecDeque::new(), Vec::new());
        inbox.take(Instant::now(), &mut commands, Some(&mut proposals), 10);
        assert_eq!((commands.len(), proposals.len()), (102, 1));
        // All limits are free again.
        inbox.propose(proposal(60, far())).unwrap();
        inbox.propose(proposal(40, far())).unwrap();
        assert_eq!(inbox.propose(proposal(0, far())), Err(Refused::Full));
        inbox.push(Command::ReadIndex(3)).unwrap();
    }

    #[test]
    fn proposals_stay_until_they_may_go_or_expire() {
        let inbox = Inbox::new(InboxLimits::default());
        let now = Instant::now();
        inbox.propose(proposal(10, now)).unwrap();
        inbox.propose(proposal(10, far())).unwrap();
        inbox.propose(proposal(10, far())).unwrap();
        let mut commands = VecDeque::new();
        inbox.take(now, &mut commands, None, 100);
        assert_eq!(inbox.proposals(), 3);
        assert_eq!(inbox.expired(now).len(), 1);
        assert!(inbox.expired(now).is_empty());
        let mut proposals = Vec::new();
        inbox.take(now, &mut commands, Some(&mut proposals), 15);
        assert_eq!((proposals.len(), inbox.proposals()), (1, 1));
        inbox.put_back(&mut proposals);
        assert_eq!(inbox.proposals(), 2);
        inbox.take(now, &mut commands, Some(&mut proposals), 10);
        assert_eq!((proposals.len(), inbox.proposals()), (1, 1));
        let (_, left) = inbox.close();
        assert_eq!(left.len(), 1);
        assert_eq!(inbox.propose(proposal(1, far())), Err(Refused::Stopped));
    }

    #[test]
    fn a_sleeping_taker_is_woken() {
        let inbox = Arc::new(Inbox::new(InboxLimits::default()));
        let taker = Arc::clone(&inbox);
        let thread = std::thread::spawn(move || {
            let (mut commands, mut proposals) = (VecDeque::new(), Vec::new());
            taker.take(far(), &mut commands, Some(&mut proposals), 100);
            proposals.len()
        });
        inbox.propose(proposal(1, far())).unwrap();
        assert_eq!(thread.join().unwrap(), 1);
    }
}
