//! Who leads, as far as this member knows.
//!
//! Input: the raft thread's soft state. Output: the current answer without a lock, and a channel
//! for those who act on changes (leases, version monitor, reads under way, watch streams that
//! require a leader).
//! **Invariant:** the raft thread records a change here before any message leaves that could let
//! somebody else act on it; so while this says that the member leads, no other member was helped
//! by it to lead a later term.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// One state of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The leader's id; `None` while there is no leader.
    pub leader: Option<u64>,
    /// Whether that is this member.
    pub is_local: bool,
    /// The raft term of this state.
    pub term: u64,
    /// Since when there is no leader.
    pub lost_since: Option<Instant>,
    /// How many times a new leader appeared.
    pub changes: u64,
    /// When the current or last leader appeared.
    pub elected_at: Option<Instant>,
}

/// The record of leadership.
pub(crate) struct LeadershipCell {
    member: u64,
    leader: AtomicU64,
    term: AtomicU64,
    last_leader: Mutex<u64>,
    /// The term, and when it was asked whether this member leads in it; a quorum said yes.
    confirmed: Mutex<Option<(u64, Instant)>>,
    state: watch::Sender<Leadership>,
}

impl LeadershipCell {
    pub(crate) fn new(member: u64, term: u64, now: Instant) -> Self {
        let state = Leadership {
            leader: None,
            is_local: false,
            term,
            lost_since: Some(now),
            changes: 0,
            elected_at: None,
        };
        Self {
            member,
            leader: AtomicU64::new(0),
            term: AtomicU64::new(term),
            last_leader: Mutex::new(0),
            confirmed: Mutex::new(None),
            state: watch::Sender::new(state),
        }
    }

    /// Records what the raft thread sees; returns whether a new leader appeared.
    pub(crate) fn record(&self, leader: u64, is_local: bool, term: u64, now: Instant) -> bool {
        self.leader.store(if is_local { self.member } else { leader }, Ordering::SeqCst);
        self.term.store(term, Ordering::SeqCst);
        let mut last = self.last_leader.lock().unwrap_or_else(PoisonError::into_inner);
        let appeared = leader != 0 && *last != leader;
        *last = leader;
        drop(last);
        self.state.send_modify(|state| {
            state.leader = (leader != 0).then_some(leader);
            state.is_local = is_local;
            state.term = term;
            state.lost_since = match leader {
                0 => state.lost_since.or(Some(now)),
                _ => None,
            };
            if appeared {
                state.changes += 1;
                state.elected_at = Some(now);
            }
        });
        appeared
    }

    /// The leader's id, 0 for none.
    pub(crate) fn leader(&self) -> u64 {
        self.leader.load(Ordering::SeqCst)
    }

    pub(crate) fn is_local(&self) -> bool {
        self.leader() == self.member
    }

    pub(crate) fn term(&self) -> u64 {
        self.term.load(Ordering::SeqCst)
    }

    /// A quorum has confirmed leadership in `term`, after it was asked at `asked`.
    pub(crate) fn confirm(&self, term: u64, asked: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = (term, asked);
        if confirmed.is_none_or(|old| old < newer) {
            *confirmed = Some(newer);
        }
    }

    /// Whether leadership in the current term was confirmed after a question within `time`.
    pub(crate) fn confirmed_within(&self, time: Duration) -> bool {
        let confirmed = *self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        confirmed.is_some_and(|(term, asked)| term == self.term() && asked.elapsed() < time)
    }

    pub(crate) fn now(&self) -> Leadership {
        *self.state.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.state.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_new_leaders_and_remembers_the_loss() {
        let now = Instant::now();
        let cell = LeadershipCell::new(1, 4, now);
        assert_eq!(cell.now().lost_since, Some(now));
        assert!(cell.record(2, false, 5, now));
        assert!(!cell.record(2, false, 5, now));
        assert_eq!((cell.leader(), cell.is_local(), cell.now().changes), (2, false, 1));
        assert!(!cell.record(0, false, 6, now));
        assert_eq!(cell.now().lost_since, Some(now));
        assert!(cell.record(1, true, 6, now));
        assert!(cell.is_local());
        assert_eq!(cell.now().lost_since, None);
    }
}
