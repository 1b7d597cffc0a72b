//! The node: one member's raft, without clock, threads, files or sockets.
//!
//! Input: [`Input`]s, one at a time. Output: [`Ready`], what has to be sent, written and handed
//! out now; then [`Node::advance`] says that it is written and gives what follows from that.
//!
//! **Invariant:** between `ready` and `advance` there is no `step`.
//! **Invariant:** a membership change is applied at most once, and not at all when a snapshot that
//! contains it was installed meanwhile.
//! **Invariant:** a leader that is removed stops leading before it can count anything again:
//! raft-rs would panic.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_proto::raftpb::{self, ConfChange, Message};
use raft::eraftpb::{self, MessageType};
use raft::{RawNode, SnapshotStatus, StateRole};

use crate::change;
use crate::config::{Config, Start};
use crate::convert;
use crate::error::{BadMessage, Fatal, Refused, StepError};
use crate::hold::Holds;
use crate::logger::raft_logger;
use crate::outbox::{Outbox, coalesce};
use crate::reads::{MAX_READS, Reads};
use crate::seam::SnapshotSource;
use crate::status::{PeerProgress, Replication, Role, SoftState, Status};
use crate::storage::Window;

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

/// What a node wants done. In this order: send `outbox`; hand out `committed`, `read_states`,
/// `refused_reads` and `soft`; write `snapshot` as a mark, then `entries` and `hard_state`; send
/// `persisted`; call [`Node::advance`]; install `snapshot`.
#[derive(Default)]
pub struct Ready {
    /// Send at once, before anything is written (a leader's messages).
    pub outbox: Outbox,
    /// Send when everything here is durable.
    pub persisted: Outbox,
    /// Committed entries, which are durable here.
    pub committed: Vec<raftpb::Entry>,
    /// Answers to read requests: context and index.
    pub read_states: Vec<(u64, u64)>,
    /// Read requests that are lost.
    pub refused_reads: Vec<u64>,
    /// Leadership, when it changed.
    pub soft: Option<SoftState>,
    /// A snapshot that replaces the state and the log up to its index.
    pub snapshot: Option<raftpb::Snapshot>,
    /// Entries to append to the log. They replace what stands there from their first index on.
    pub entries: Vec<raftpb::Entry>,
    /// Term, vote and commit index, when one of them changed.
    pub hard_state: Option<raftpb::HardState>,
    /// Whether the write must be durable before going on.
    pub must_sync: bool,
}

/// What follows from a [`Ready`] that has been written.
#[derive(Default)]
pub struct Advanced {
    /// Messages to send.
    pub outbox: Outbox,
    /// Committed entries.
    pub committed: Vec<raftpb::Entry>,
}

struct Pending {
    ready: raft::Ready,
    entries: Vec<eraftpb::Entry>,
    snapshot: Option<(u64, u64)>,
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

    /// Whether a proposal would be taken now.
    pub fn may_propose(&self) -> Result<(), Refused> {
        let raft = &self.raw.raft;
        match raft.state {
            StateRole::Leader if raft.prs().get(raft.id).is_none() => Err(Refused::Removed),
            StateRole::Leader if raft.lead_transferee.is_some() => Err(Refused::Transferring),
            StateRole::Leader => Ok(()),
            StateRole::Follower if raft.leader_id != raft::INVALID_ID => Ok(()),
            _ => Err(Refused::NoLeader),
        }
    }

    fn propose(&mut self, data: Vec<Bytes>) -> Result<(), StepError> {
        self.may_propose()?;
        if data.is_empty() || data.iter().any(Bytes::is_empty) {
            return Err(Refused::Malformed.into());
        }
        let entries = data
            .into_iter()
            .map(|data| eraftpb::Entry { data, ..eraftpb::Entry::default() })
            .collect();
        self.append(self.config.id, entries)
    }

    fn propose_conf_change(&mut self, change: &ConfChange) -> Result<(), StepError> {
        self.may_propose()?;
        let mut entries = vec![change::entry(change)];
        if change.node_id() == raft::INVALID_ID || change::check(&entries).is_err() {
            return Err(Refused::Malformed.into());
        }
        if self.is_leader() {
            if self.raw.raft.has_pending_conf() {
                return Err(Refused::ConfChangePending.into());
            }
            change::prepare(&mut entries, false);
        }
        self.append(self.config.id, entries)
    }

    fn append(&mut self, from: u64, entries: Vec<eraftpb::Entry>) -> Result<(), StepError> {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = from;
        message.set_entries(entries.into());
        match self.raw.raft.step(message) {
            Ok(()) => Ok(()),
            // `may_propose` has excluded the other reasons.
            Err(raft::Error::ProposalDropped) => Err(Refused::Uncommitted.into()),
            Err(error) => Err(Fatal::Raft(error.to_string()).into()),
        }
    }

    fn message(&mut self, message: Message) -> Result<(), StepError> {
        let mut message = convert::message_in(message, self.config.id)?;
        let raft = &self.raw.raft;
        match message.get_msg_type() {
            MessageType::MsgPropose => {
                change::check(message.get_entries())?;
                self.may_propose().map_err(BadMessage::Dropped)?;
                if self.is_leader() {
                    let pending = raft.has_pending_conf();
                    change::prepare(message.mut_entries(), pending);
                }
            }
            MessageType::MsgTimeoutNow if self.config.never_lead => {
                return Err(BadMessage::NeverLead.into());
            }
            // The leader sends it only to a member that has acknowledged everything.
            MessageType::MsgTimeoutNow if !self.is_quiet() => return Ok(()),
            MessageType::MsgHeartbeat if message.term >= raft.term => {
                let last = raft.raft_log.last_index();
                if message.commit > last {
                    let id = self.config.id;
                    return Err(Fatal::LostLog { id, commit: message.commit, last }.into());
                }
            }
            MessageType::MsgReadIndex if self.is_leader() => {
                if !raft.commit_to_current_term() {
                    self.reads.postpone(message);
                    return Ok(());
                }
                if raft.pending_read_count() >= MAX_READS {
                    return Err(BadMessage::Dropped(Refused::Full).into());
                }
            }
            _ => {}
        }
        let from = message.from;
        match self.raw.step(message) {
            Ok(()) => Ok(()),
            Err(raft::Error::ProposalDropped) => {
                Err(BadMessage::Dropped(Refused::Uncommitted).into())
            }
            Err(raft::Error::StepPeerNotFound) => Err(BadMessage::UnknownPeer(from).into()),
            Err(error) => Err(Fatal::Raft(error.to_string()).into()),
        }
    }

    fn read_index(&mut self, context: u64) -> Result<(), StepError> {
        let raft = &self.raw.raft;
        let leads = self.is_leader();
        match raft.state {
            StateRole::Leader => {}
            StateRole::Follower if raft.leader_id != raft::INVALID_ID => {}
            _ => return Err(Refused::NoLeader.into()),
        }
        let ready = !leads || raft.commit_to_current_term();
        let bytes = self.reads.ask(context)?;
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgReadIndex);
        let entry = eraftpb::Entry { data: bytes.into(), ..eraftpb::Entry::default() };
        message.set_entries(vec![entry].into());
        if ready {
            self.raw.raft.step(message).map_err(|error| Fatal::Raft(error.to_string()))?;
        } else {
            self.reads.postpone(message);
        }
        Ok(())
    }

    fn transfer(&mut self, to: u64) -> Result<(), StepError> {
        if !self.is_leader() {
            return Err(Refused::NotLeader.into());
        }
        let prs = self.raw.raft.prs();
        if prs.get(to).is_none() || prs.conf().learners().contains(&to) {
            return Err(Refused::NotVoter(to).into());
        }
        self.raw.transfer_leader(to);
        Ok(())
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
                self.apply_conf_change(at, &change)?;
            }
        }
        self.raw.advance_apply_to(index);
        let keep = self.config.catch_up_entries;
        let max_bytes = self.config.max_log_bytes;
        let hold = self.holds.lowest();
        self.raw.mut_store().compact(index, keep, max_bytes, hold);
        self.campaign_alone()
    }

    fn apply_conf_change(&mut self, index: u64, change: &eraftpb::ConfChange) -> Result<(), Fatal> {
        self.raw
            .apply_conf_change(change)
            .map_err(|error| Fatal::ConfChange { index, reason: error.to_string() })?;
        if self.is_leader() && !self.raw.raft.promotable() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
        Ok(())
    }

    /// Whether [`Node::ready`] must come before the next input.
    pub fn needs_ready(&self) -> bool {
        self.standing != self.standing_now()
    }

    fn standing_now(&self) -> Standing {
        let raft = &self.raw.raft;
        (raft.term, raft.vote, raft.state)
    }

    /// What has to be done now, if anything.
    pub fn ready(&mut self) -> Option<Ready> {
        assert!(self.pending.is_none(), "ready twice without advance");
        self.standing = self.standing_now();
        if !self.raw.has_ready() && !self.reads.has_refused() {
            return None;
        }
        let mut ready = self.raw.ready();
        let mut entries = ready.take_entries();
        entries.iter_mut().for_each(convert::unwrap_stand_in);
        let hard_state = self.raw.raft.hard_state();
        let soft = self.soft_now();
        let snapshot = Some(ready.snapshot()).filter(|snapshot| !snapshot.is_empty()).cloned();
        let read_states = ready
            .take_read_states()
            .into_iter()
            .filter_map(|state| Some((self.reads.answered(&state.request_ctx)?, state.index)))
            .collect();
        let out = Ready {
            outbox: self.outbox(ready.take_messages()),
            persisted: self.outbox(ready.take_persisted_messages()),
            committed: convert::entries_out(ready.take_committed_entries()),
            read_states,
            refused_reads: self.reads.take_refused(),
            soft: (soft != self.soft).then_some(soft),
            entries: convert::entries_out(entries.iter().cloned()),
            hard_state: (hard_state != self.written).then(|| convert::hard_state_out(&hard_state)),
            must_sync: ready.must_sync(),
            snapshot: snapshot.clone().map(convert::snapshot_out),
        };
        self.soft = soft;
        self.written = hard_state;
        let snapshot = snapshot.map(|snapshot| {
            let metadata = snapshot.get_metadata();
            (metadata.index, metadata.term)
        });
        self.pending = Some(Pending { ready, entries, snapshot });
        Some(out)
    }

    /// Everything in the last [`Ready`] is written, durably if it had to be.
    pub fn advance(&mut self) -> Result<Advanced, Fatal> {
        let pending = self.pending.take().expect("advance follows ready");
        let store = self.raw.mut_store();
        if let Some((index, term)) = pending.snapshot {
            store.restore(index, term);
        }
        store.append(&pending.entries);
        let mut light = self.raw.advance_append(pending.ready);
        if let Some((index, _)) = pending.snapshot {
            // raft looks for unapplied changes behind the applied index, where nothing is left.
            self.raw.advance_apply_to(index);
        }
        let advanced = Advanced {
            outbox: self.outbox(light.take_messages()),
            committed: convert::entries_out(light.take_committed_entries()),
        };
        if self.is_leader() && self.raw.raft.commit_to_current_term() {
            for read in self.reads.take_postponed() {
                self.raw.raft.step(read).map_err(|error| Fatal::Raft(error.to_string()))?;
            }
        }
        Ok(advanced)
    }

    fn outbox(&mut self, messages: Vec<eraftpb::Message>) -> Outbox {
        let mut out = Outbox::default();
        for message in messages {
            if message.get_msg_type() != MessageType::MsgSnapshot {
                out.messages.push(convert::message_out(message));
                continue;
            }
            let index = message.get_snapshot().get_metadata().index;
            let pinned = self.raw.store().take_pinned(index);
            let pinned = pinned.expect("raft sends only snapshots that the window gave it");
            self.holds.sent(message.to, index);
            out.snapshots.push((convert::message_out(message), pinned));
        }
        coalesce(&mut out.messages);
        out
    }

    fn soft_now(&self) -> SoftState {
        let raft = &self.raw.raft;
        SoftState { leader: raft.leader_id, role: role(raft.state), term: raft.term }
    }

    /// Term, vote and commit index as they are now, for the end of the log.
    pub fn hard_state(&self) -> raftpb::HardState {
        convert::hard_state_out(&self.raw.raft.hard_state())
    }

    /// The first entry in memory.
    pub fn first_index(&self) -> u64 {
        self.raw.store().first()
    }

    /// The members as raft sees them now.
    pub fn conf_state(&self) -> raftpb::ConfState {
        convert::conf_state_out(self.raw.raft.prs().conf().to_conf_state())
    }

    /// The node as others may see it.
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let learners = raft.prs().conf().learners();
        let mut progress = Vec::new();
        if self.is_leader() {
            progress.extend(raft.prs().iter().map(|(id, peer)| PeerProgress {
                id: *id,
                matched: peer.matched,
                next: peer.next_idx,
                is_learner: learners.contains(id),
                recent_active: *id == raft.id || peer.recent_active,
                replication: match peer.state {
                    raft::ProgressState::Probe => Replication::Probe,
                    raft::ProgressState::Replicate => Replication::Replicate,
                    raft::ProgressState::Snapshot => Replication::Snapshot,
                },
            }));
            progress.sort_by_key(|peer| peer.id);
        }
        Status {
            id: raft.id,
            term: raft.term,
            vote: raft.vote,
            leader: raft.leader_id,
            role: role(raft.state),
            is_learner: learners.contains(&raft.id),
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied,
            first: self.first_index(),
            last: raft.raft_log.last_index(),
            transferee: raft.lead_transferee.unwrap_or(raft::INVALID_ID),
            progress,
        }
    }
}

fn role(state: StateRole) -> Role {
    match state {
        StateRole::Follower => Role::Follower,
        StateRole::PreCandidate => Role::PreCandidate,
        StateRole::Candidate => Role::Candidate,
        StateRole::Leader => Role::Leader,
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
