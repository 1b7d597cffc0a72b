//! The node: one member's raft, without clock, threads, files or sockets.
//!
//! Input: [`Input`]s, one at a time. Output: [`Ready`], what has to be sent, written and handed
//! out now; then [`Node::advance`] says that it is written and gives what follows from that.
//!
//! **Invariant:** between `ready` and `advance` there is no `step`.
//! **Invariant:** a membership change is applied at most once, and not at all when a snapshot that
//! contains it was installed meanwhile.

mod leave;
mod ready;
mod requests;
mod view;

use std::sync::Arc;

use bytes::Bytes;
use mainstay_proto::raftpb::{ConfChange, Message};
use raft::eraftpb;
use raft::{RawNode, SnapshotStatus, StateRole};

use self::leave::Leaving;
use self::ready::Pending;

use crate::change;
use crate::config::{Config, Start};
use crate::convert;
use crate::error::{Fatal, StepError};
use crate::hold::Holds;
use crate::logger::raft_logger;
use crate::reads::Reads;
use crate::seam::SnapshotSource;
use crate::status::SoftState;
use crate::storage::Window;

pub use self::ready::{Advanced, Ready};

/// What a node is told.
#[derive(Debug)]
pub enum Input {
    /// One tick of time has passed.
    Tick,
    /// Append these entries; on a follower, ask the leader to.
    Propose(Vec<Bytes>),
    /// Append this membership change; on a follower, ask the leader to.
    ProposeConfChange(ConfChange),
    /// A message from a peer.
    Message(Box<Message>),
    /// Ask for a read index under a context that was never used since the start.
    ReadIndex(u64),
    /// Hand leadership to this member.
    Transfer(u64),
    /// Start an election.
    Campaign,
    /// A message to this member could not be delivered.
    Unreachable(u64),
    /// A snapshot to this member arrived, or did not.
    SnapshotReport {
        /// The member.
        id: u64,
        /// Whether it arrived.
        ok: bool,
    },
    /// The state machine has applied entries.
    Applied {
        /// The last one.
        index: u64,
        /// The membership changes among them with their indexes; `None` for a refused one.
        conf_changes: Vec<(u64, Option<ConfChange>)>,
    },
}

/// What must be on disk before the node takes more inputs once it has changed: raft-rs assumes
/// that a vote is out before its answers come in.
type Standing = (u64, u64, StateRole);

/// See the module.
pub struct Node {
    config: Config,
    raw: RawNode<Window>,
    pending: Option<Pending>,
    written: eraftpb::HardState,
    soft: SoftState,
    standing: Standing,
    reads: Reads,
    holds: Holds,
    leaving: Option<Leaving>,
}

impl Node {
    /// Starts a node from what was recovered.
    pub fn new(
        config: Config,
        start: Start,
        source: Arc<dyn SnapshotSource>,
    ) -> Result<Self, Fatal> {
        let commit = start.commit()?;
        let mark = start.mark();
        let written = convert::hard_state_in(&start.hard_state);
        let mut hard_state = written.clone();
        hard_state.commit = commit;
        let entries: Result<Vec<_>, _> = start.entries.into_iter().map(convert::entry_in).collect();
        let entries = entries.map_err(|error| Fatal::Start(error.to_string()))?;
        let conf_state = convert::conf_state_in(start.conf_state);
        let window = Window::new(mark, entries, hard_state, conf_state, source);
        let raw = RawNode::new(&raft_config(&config, start.applied), window, &raft_logger())
            .map_err(|error| Fatal::Start(error.to_string()))?;
        let incarnation = match config.seed {
            Some(seed) => mix(seed),
            None => rand::random(),
        };
        let mut node = Self {
            pending: None,
            written,
            soft: SoftState::default(),
            standing: (raw.raft.term, raw.raft.vote, raw.raft.state),
            reads: Reads::new(config.id, incarnation),
            holds: Holds::new(config.tick),
            leaving: None,
            raw,
            config,
        };
        node.campaign_alone()?;
        Ok(node)
    }

    /// Takes one input.
    ///
    /// When [`Node::needs_ready`] says so afterwards, the next call must be [`Node::ready`].
    pub fn step(&mut self, input: Input) -> Result<(), StepError> {
        assert!(self.pending.is_none(), "step between ready and advance");
        let result = match input {
            Input::Tick => self.tick(),
            Input::Propose(data) => self.propose(data),
            Input::ProposeConfChange(change) => self.propose_conf_change(&change),
            Input::Message(message) => self.message(*message),
            Input::ReadIndex(context) => self.read_index(context),
            Input::Transfer(to) => self.transfer(to),
            Input::Campaign => self.campaign().map_err(StepError::from),
            Input::Unreachable(id) => {
                self.raw.report_unreachable(id);
                Ok(())
            }
            Input::SnapshotReport { id, ok } => {
                self.holds.report(id, ok);
                let status = if ok { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.raw.report_snapshot(id, status);
                Ok(())
            }
            Input::Applied { index, conf_changes } => {
                self.applied(index, conf_changes).map_err(StepError::from)
            }
        };
        self.leave()?;
        self.reads.note_leadership(self.raw.raft.term, self.raw.raft.leader_id);
        result
    }

    fn tick(&mut self) -> Result<(), StepError> {
        self.holds.tick();
        // Entries that are not written yet came from a leader just now, so no time is lost; and
        // an only voter must not elect itself on top of them.
        if self.is_leader() || self.is_quiet() {
            self.raw.tick();
        }
        self.tick_leaving()?;
        self.campaign_alone()?;
        Ok(())
    }

    /// Whether everything in raft's log has been given out for writing.
    fn is_quiet(&self) -> bool {
        self.raw.raft.raft_log.unstable_entries().is_empty()
    }

    fn is_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    fn campaign(&mut self) -> Result<(), Fatal> {
        if !self.config.never_lead && self.raw.raft.promotable() && self.is_quiet() {
            self.raw.campaign().map_err(|error| Fatal::Raft(error.to_string()))?;
        }
        Ok(())
    }

    /// An only voter has nobody to wait for.
    fn campaign_alone(&mut self) -> Result<(), Fatal> {
        let raft = &self.raw.raft;
        let alone = raft.prs().is_singleton()
            && raft.state == StateRole::Follower
            && raft.leader_id == raft::INVALID_ID;
        if self.config.initial_election_tick_advance && alone { self.campaign() } else { Ok(()) }
    }

    fn applied(
        &mut self,
        index: u64,
        conf_changes: Vec<(u64, Option<ConfChange>)>,
    ) -> Result<(), Fatal> {
        let log = &self.raw.raft.raft_log;
        let before = log.applied;
        let committed = log.committed.min(log.persisted);
        // A report from before a snapshot was installed.
        if index <= before {
            return Ok(());
        }
        if index > committed {
            return Err(Fatal::AppliedAhead { applied: index, committed });
        }
        for (at, change) in conf_changes {
            let change = change.as_ref().and_then(change::to_apply);
            if let (true, Some(change)) = (at > before, change) {
                self.apply_conf_change(at, change)?;
            }
        }
        self.raw.advance_apply_to(index);
        let keep = self.config.catch_up_entries;
        let max_bytes = self.config.max_log_bytes;
        let hold = self.holds.lowest();
        self.raw.mut_store().compact(index, keep, max_bytes, hold);
        self.campaign_alone()
    }
}

fn raft_config(config: &Config, applied: u64) -> raft::Config {
    let election = config.election_ticks;
    // raft-rs draws timeouts from a generator that cannot be seeded, from this half-open range.
    let (min, max) = match config.seed {
        _ if config.never_lead => (NEVER, NEVER + 1),
        Some(seed) => {
            let timeout = election + mix(seed ^ config.id) as usize % election.max(1);
            (timeout, timeout + 1)
        }
        None => (election, 2 * election),
    };
    raft::Config {
        id: config.id,
        election_tick: election,
        heartbeat_tick: config.heartbeat_ticks,
        applied,
        max_size_per_msg: config.max_size_per_msg,
        max_inflight_msgs: config.max_inflight,
        check_quorum: true,
        pre_vote: config.pre_vote,
        min_election_tick: min,
        max_election_tick: max,
        max_uncommitted_size: config.max_uncommitted_bytes,
        max_committed_size_per_ready: config.max_committed_bytes,
        ..raft::Config::default()
    }
}

/// An election timeout that does not come. `election_tick` stays as it is: raft refuses votes for
/// that long after it heard of a leader.
const NEVER: usize = 1 << 30;

/// SplitMix64: spreads seeds that differ little.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
