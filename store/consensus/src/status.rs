//! What others may know about a running node, without asking the raft thread.
//!
//! Input: the raft thread publishes after each pass. Output: [`Status`] snapshots and [`Counters`].
//! **Invariant:** reading never waits for the raft thread and never makes it wait.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a member does in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    #[default]
    Follower,
    /// Asks whether an election would succeed.
    PreCandidate,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
}

/// Leadership as this member sees it. Not durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftState {
    /// The leader's id, 0 for none.
    pub leader: u64,
    /// This member's role.
    pub role: Role,
    /// The current term.
    pub term: u64,
}

/// How the leader sends to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// Looking for the point where the logs agree.
    Probe,
    /// Streaming entries.
    Replicate,
    /// Waiting for a snapshot to arrive.
    Snapshot,
}

/// What the leader knows of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProgress {
    /// The member.
    pub id: u64,
    /// The last entry that it is known to have.
    pub matched: u64,
    /// The next entry to send.
    pub next: u64,
    /// Whether it does not vote.
    pub is_learner: bool,
    /// Whether it was heard of since the last quorum check.
    pub recent_active: bool,
    /// How it is served.
    pub replication: Replication,
}

/// One moment of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// This member.
    pub id: u64,
    /// The current term.
    pub term: u64,
    /// Whom this member voted for in the term, 0 for nobody.
    pub vote: u64,
    /// The leader, 0 for none.
    pub leader: u64,
    /// This member's role.
    pub role: Role,
    /// Whether this member does not vote.
    pub is_learner: bool,
    /// The last committed entry.
    pub commit: u64,
    /// The last entry that the state machine has reported as applied.
    pub applied: u64,
    /// The first entry still in memory.
    pub first: u64,
    /// The last entry.
    pub last: u64,
    /// The member that leadership is being handed to, 0 for none.
    pub transferee: u64,
    /// All members, this one included, in order of id. Empty unless this member leads.
    pub progress: Vec<PeerProgress>,
}

impl Status {
    /// Whether the learner `id` has at least 90 % of the leader's log, which is when it may be
    /// promoted. `None` when this member does not lead or does not know `id`.
    pub fn is_ready_to_vote(&self, id: u64) -> Option<bool> {
        let of = |id| self.progress.iter().find(|peer| peer.id == id).map(|peer| peer.matched);
        let (own, learner) = (of(self.id)?, of(id)?);
        Some(learner as f64 >= own as f64 * READY_TO_VOTE)
    }
}

/// etcd's threshold for promoting a learner.
const READY_TO_VOTE: f64 = 0.9;

/// What waits for the raft thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Proposals.
    pub proposals: usize,
    /// Their bytes.
    pub proposal_bytes: usize,
    /// Messages of peers.
    pub messages: usize,
    /// Their bytes.
    pub message_bytes: usize,
    /// Read requests and other requests.
    pub requests: usize,
}

/// Counts since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Leaders seen, the first one included.
    pub leader_changes: AtomicU64,
    /// Proposals of ours that were refused after they had been queued.
    pub proposals_failed: AtomicU64,
    /// Heartbeats that left more than twice their interval after the one before.
    pub heartbeat_send_failures: AtomicU64,
    /// Read requests that were reported as lost.
    pub reads_refused: AtomicU64,
    /// Proposals that were refused because too many waited.
    pub proposals_full: AtomicU64,
    /// Proposals that were refused because too many bytes were not committed yet.
    pub proposals_uncommitted: AtomicU64,
    /// Read requests and other requests that were refused because too many waited.
    pub requests_full: AtomicU64,
    /// Messages from peers that were dropped because the inbox was full.
    pub messages_dropped: AtomicU64,
    /// Messages from peers that were refused as malformed or useless.
    pub messages_refused: AtomicU64,
    /// Snapshots handed to the transport.
    pub snapshots_sent: AtomicU64,
    /// Ticks that did not fire because the raft thread was busy.
    pub ticks_missed: AtomicU64,
    /// Passes of the raft thread's loop that wrote to the log.
    pub log_batches: AtomicU64,
    /// Entries that these passes wrote.
    pub log_entries: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}
