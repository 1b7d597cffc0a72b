//! What a node needs to know before it starts: its settings and the state it starts from.
//!
//! **Invariant:** every queue and buffer of this crate has its limit here, by name.

use std::time::Duration;

use mainstay_proto::raftpb::{ConfState, Entry, HardState};
use mainstay_proto::walpb;

use crate::error::Fatal;

/// Settings of one member. The defaults are etcd's where etcd has the setting.
#[derive(Clone, Debug)]
pub struct Config {
    /// The member's id; not 0.
    pub id: u64,
    /// Ticks without a word from the leader before an election (jittered up to twice this).
    pub election_ticks: usize,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// How long a tick is. Only the driver looks at it.
    pub tick: Duration,
    /// Ask before disturbing a leader with an election.
    pub pre_vote: bool,
    /// Append messages on their way to one follower at a time.
    pub max_inflight: usize,
    /// Bytes of entries in one append message.
    pub max_size_per_msg: u64,
    /// Never campaign and never accept leadership; vote and replicate as usual.
    pub never_lead: bool,
    /// A member that is the only voter elects itself at once instead of waiting for a timeout.
    pub initial_election_tick_advance: bool,
    /// Fixes the election timeout and all ids drawn here, so that a simulation repeats. Give a
    /// restarted node another seed.
    pub seed: Option<u64>,
    /// Entries kept in memory behind the applied index, for followers that lag
    /// (`--snapshot-catchup-entries`).
    pub catch_up_entries: u64,
    /// Bytes that these entries may take. Applied entries above the limit are dropped early, and a
    /// follower that lags behind them gets a snapshot. Twice as much while a snapshot is on its
    /// way to a follower that will need the entries behind it.
    pub max_log_bytes: usize,
    /// Bytes proposed here and not yet committed; above it proposals are refused.
    pub max_uncommitted_bytes: u64,
    /// Bytes of committed entries handed out at once.
    pub max_committed_bytes: u64,
    /// Limits of the driver's inbox.
    pub inbox: InboxLimits,
}

/// What may wait for the raft thread. Reports of the apply thread are never refused: they are few,
/// and the log could not shrink without them.
#[derive(Clone, Copy, Debug)]
pub struct InboxLimits {
    /// Proposals; beyond, callers are refused.
    pub proposals: usize,
    /// Bytes of proposals; one proposal is always taken.
    pub proposal_bytes: usize,
    /// Messages from peers; beyond, they are dropped, which raft bears.
    pub messages: usize,
    /// Bytes of messages from peers; one message is always taken.
    pub message_bytes: usize,
    /// Read requests and other requests of ours.
    pub requests: usize,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self {
            proposals: 16_384,
            proposal_bytes: 64 << 20,
            messages: 8_192,
            message_bytes: 128 << 20,
            requests: 4_096,
        }
    }
}

impl Config {
    /// etcd's defaults for a member.
    pub fn new(id: u64) -> Self {
        Self {
            id,
            election_ticks: 10,
            heartbeat_ticks: 1,
            tick: Duration::from_millis(100),
            pre_vote: true,
            max_inflight: 512,
            max_size_per_msg: 1 << 20,
            never_lead: false,
            initial_election_tick_advance: true,
            seed: None,
            catch_up_entries: 5_000,
            max_log_bytes: 128 << 20,
            max_uncommitted_bytes: 128 << 20,
            max_committed_bytes: 4 << 20,
            inbox: InboxLimits::default(),
        }
    }
}

/// The state that a node starts from: what the log recovered and what the state machine has.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The index that the state machine has applied. Entries up to it are not handed out again.
    pub applied: u64,
    /// The members as of `applied`, from the state machine. Empty for a new or joining member,
    /// which learns them from the log or from a snapshot.
    pub conf_state: ConfState,
    /// The last hard state in the log.
    pub hard_state: HardState,
    /// The mark in the log from which `entries` go on; index 0 at the beginning of a log.
    pub snapshot: walpb::Snapshot,
    /// Everything in the log after the mark.
    pub entries: Vec<Entry>,
}

impl Start {
    /// The mark's index and term.
    pub(crate) fn mark(&self) -> (u64, u64) {
        (self.snapshot.index.unwrap_or(0), self.snapshot.term.unwrap_or(0))
    }

    /// Checks that log and state machine fit together, and returns the commit index to start from.
    ///
    /// The commit index on disk may be older than what was applied: it is not synced on its own.
    /// What was applied had been committed, so the applied index raises it.
    pub(crate) fn commit(&self) -> Result<u64, Fatal> {
        let (mark, _) = self.mark();
        let mut last = mark;
        for entry in &self.entries {
            let index = entry.index.unwrap_or(0);
            if index != last + 1 {
                return Err(Fatal::Start(format!("log entry {index} follows entry {last}")));
            }
            last = index;
        }
        if self.applied > last {
            return Err(Fatal::Start(format!(
                "the state machine has applied entry {}, but the log ends at {last}: the log has \
                 lost its end",
                self.applied
            )));
        }
        if self.applied < mark {
            return Err(Fatal::Start(format!(
                "the log starts after entry {mark}, but the state machine has applied only up to \
                 entry {}: the entries between them are gone",
                self.applied
            )));
        }
        let commit = self.hard_state.commit.unwrap_or(0).max(self.applied);
        if commit > last {
            return Err(Fatal::Start(format!(
                "entries up to {commit} were committed, but the log ends at {last}"
            )));
        }
        Ok(commit)
    }
}
