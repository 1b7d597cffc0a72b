//! A cluster in virtual time: nodes, their disks and machines, and a network that delays, loses,
//! reorders and cuts.
//!
//! Input: a seed and what a test asks for. Output: panics with the seed when something that must
//! hold does not.
//! **Invariant:** the same seed gives the same run.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use mainstay_consensus::{
    Config, Input, Node, Outbox, Pinned, Ready, Role, Start, StepError, bootstrap,
};
use mainstay_log::LogStore;
use mainstay_proto::raftpb::{Entry, Message, MessageType};
use mainstay_proto::walpb;
use prost::Message as _;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::disk::DiskLog;
use crate::machine::{Machine, Published};
use crate::truth::Truth;

/// Time units between two ticks of a node.
pub(crate) const TICK: u64 = 10;

pub(crate) struct Member {
    pub(crate) node: Option<Node>,
    pub(crate) disk: DiskLog,
    /// What survives a crash, and what is there now.
    durable: Machine,
    pub(crate) machine: Machine,
    staged: Option<Machine>,
    published: Published,
    inputs: VecDeque<(u64, Input)>,
    to_apply: VecDeque<Entry>,
    next_tick: u64,
    lives: u64,
    marked: u64,
    pub(crate) reads: BTreeMap<u64, u64>,
    pub(crate) answers: Vec<u64>,
    pub(crate) lost_reads: Vec<u64>,
    pub(crate) never_lead: bool,
    stops_at: Option<u64>,
    pub(crate) next_read: u64,
}

struct Flight {
    at: u64,
    message: Vec<u8>,
    state: Option<Pinned>,
}

/// How unkind the world is. Chances are per thousand.
#[derive(Clone, Copy, Default)]
pub(crate) struct World {
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) delay: u64,
    pub(crate) snapshot_delay: u64,
    pub(crate) apply_delay: u64,
    /// Chance to crash between two steps of handling a Ready.
    pub(crate) crash: u32,
    /// Chance to step the next input before looking for a Ready.
    pub(crate) batching: u32,
}

/// What happened in a run, so that a test can tell that it was not an idle one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) leaders: u64,
    pub(crate) snapshots: u64,
    pub(crate) sent_snapshots: u64,
    pub(crate) reads: u64,
    pub(crate) crashes: u64,
    pub(crate) changes: u64,
}

pub(crate) struct Cluster {
    pub(crate) seed: u64,
    pub(crate) rng: StdRng,
    pub(crate) now: u64,
    pub(crate) world: World,
    pub(crate) members: BTreeMap<u64, Member>,
    pub(crate) truth: Truth,
    pub(crate) cut: HashSet<(u64, u64)>,
    pub(crate) config: fn(u64) -> Config,
    pub(crate) seen: Seen,
    network: Vec<Flight>,
}

fn default_config(id: u64) -> Config {
    Config { initial_election_tick_advance: false, ..Config::new(id) }
}

impl Cluster {
    pub(crate) fn new(seed: u64, founders: u64) -> Self {
        Self::with(seed, founders, default_config)
    }

    pub(crate) fn with(seed: u64, founders: u64, config: fn(u64) -> Config) -> Self {
        let mut cluster = Self {
            seed,
            rng: StdRng::seed_from_u64(seed),
            now: 0,
            world: World::default(),
            members: BTreeMap::new(),
            truth: Truth::default(),
            cut: HashSet::new(),
            config,
            seen: Seen::default(),
            network: Vec::new(),
        };
        let members: Vec<_> = (1..=founders).map(|id| (id, Bytes::new())).collect();
        let (entries, state) = bootstrap(&members);
        for id in 1..=founders {
            cluster.add(id, DiskLog::new(&entries, &state));
        }
        cluster
    }

    /// A blank member that knows nobody.
    pub(crate) fn join(&mut self, id: u64) {
        self.add(id, DiskLog::new(&[], &Default::default()));
    }

    fn add(&mut self, id: u64, disk: DiskLog) {
        let member = Member {
            node: None,
            disk,
            durable: Machine::default(),
            machine: Machine::default(),
            staged: None,
            published: Published::default(),
            inputs: VecDeque::new(),
            to_apply: VecDeque::new(),
            next_tick: 0,
            lives: 0,
            marked: 0,
            reads: BTreeMap::new(),
            answers: Vec::new(),
            lost_reads: Vec::new(),
            never_lead: false,
            stops_at: None,
            next_read: 0,
        };
        self.members.insert(id, member);
        self.start(id);
    }

    pub(crate) fn member(&mut self, id: u64) -> &mut Member {
        self.members.get_mut(&id).unwrap()
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.member(id).node.as_mut().expect("the member runs")
    }

    pub(crate) fn is_up(&self, id: u64) -> bool {
        self.members[&id].node.is_some()
    }

    pub(crate) fn crash(&mut self, id: u64) {
        let keep = self.rng.random_range(0..4);
        let member = self.member(id);
        member.node = None;
        member.disk.crash(|unsynced| unsynced * keep / 3);
        member.machine = member.durable.clone();
        member.inputs.clear();
        member.to_apply.clear();
        member.reads.clear();
        member.next_read = 0;
    }

    pub(crate) fn start(&mut self, id: u64) {
        let stopped = self.members[&id].stops_at.is_some_and(|at| at <= self.now);
        if self.is_up(id) || stopped {
            return;
        }
        let (seed, now, config) = (self.seed, self.now, self.config);
        let member = self.member(id);
        member.lives += 1;
        let found = member.disk.recover();
        if found.mark.index() > member.durable.applied {
            let staged = member.staged.take().expect("a marked snapshot is staged");
            assert_eq!(staged.applied, found.mark.index(), "seed {seed}");
            member.durable = staged;
        }
        member.staged = None;
        member.marked = found.mark.index();
        member.machine = member.durable.clone();
        member.published.publish(&member.machine);
        let start = Start {
            applied: member.machine.applied,
            conf_state: member.machine.conf_state(),
            hard_state: found.state,
            snapshot: found.mark,
            entries: found.entries,
        };
        let config = Config {
            seed: Some(seed * 1_000 + member.lives),
            never_lead: member.never_lead,
            ..config(id)
        };
        let source = Arc::new(member.published.clone());
        member.node = Some(Node::new(config, start, source).unwrap());
        let phase = self.rng.random_range(1..=TICK);
        self.member(id).next_tick = now + phase;
        self.truth.restarted(id, self.members[&id].machine.applied);
        self.drain(id);
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, units: u64) {
        for _ in 0..units {
            self.unit();
        }
    }

    /// Lets time pass until `done`, and says after how long; panics if it does not come.
    pub(crate) fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) -> u64 {
        let start = self.now;
        while !done(self) {
            assert!(
                self.now < start + 20_000,
                "seed {}: never: {what}\n{}",
                self.seed,
                self.describe()
            );
            self.unit();
        }
        self.now - start
    }

    fn describe(&self) -> String {
        let mut out = String::new();
        for (id, member) in &self.members {
            let status = member.node.as_ref().map(Node::status);
            let _ = writeln!(out, "{id}: {status:?}\n   {:?}", member.machine);
        }
        out
    }

    fn unit(&mut self) {
        self.now += 1;
        let now = self.now;
        let mut arrived: Vec<Flight> = self.network.extract_if(.., |f| f.at <= now).collect();
        // Reordering: what arrives together arrives in any order.
        if self.world.delay > 0 {
            for i in (1..arrived.len()).rev() {
                arrived.swap(i, self.rng.random_range(0..=i));
            }
        }
        for flight in arrived {
            self.deliver(flight);
        }
        let ids: Vec<u64> = self.members.keys().copied().collect();
        for id in ids {
            if self.members[&id].stops_at.is_some_and(|at| at <= now) {
                self.member(id).node = None;
            }
            if !self.is_up(id) {
                continue;
            }
            if self.members[&id].next_tick <= now {
                // Clocks differ a little, or two of one timeout would stand for ever.
                let tick = self.rng.random_range(TICK - 1..=TICK + 1);
                self.member(id).next_tick += tick;
                self.input(id, Input::Tick);
            }
            loop {
                let member = self.member(id);
                if member.inputs.front().is_none_or(|(due, _)| *due > now) {
                    break;
                }
                let Some((_, input)) = member.inputs.pop_front() else { break };
                self.input(id, input);
            }
            if self.is_up(id) {
                self.drain(id);
            }
            if self.is_up(id) {
                self.apply_some(id);
            }
        }
    }

    fn deliver(&mut self, flight: Flight) {
        let message = Message::decode(&flight.message[..]).unwrap();
        let (to, from) = (message.to(), message.from());
        let removed = |by: u64, id: u64| self.members[&by].machine.removed.contains(&id);
        let reachable = self.members.contains_key(&to)
            && self.is_up(to)
            && !self.cut.contains(&(from, to))
            && !removed(from, to)
            && !removed(to, from);
        if let Some(state) = flight.state {
            let member = self.members.get_mut(&to).filter(|_| reachable);
            if let Some(member) = member {
                let state = state.downcast_ref::<Machine>().unwrap().clone();
                let metadata = message.snapshot.as_ref().unwrap().metadata.as_ref().unwrap();
                assert_eq!(metadata.index(), state.applied);
                assert_eq!(metadata.conf_state, Some(state.conf_state()));
                // Staged before raft hears of it; one at a time.
                member.staged = Some(state);
            }
            let report = Input::SnapshotReport { id: to, ok: reachable };
            let now = self.now;
            if let Some(sender) = self.members.get_mut(&from).filter(|m| m.node.is_some()) {
                sender.inputs.push_back((now + 1, report));
            }
        }
        if reachable {
            self.input(to, Input::Message(Box::new(message)));
        } else if self.rng.random_ratio(1, 4)
            && self.members.contains_key(&from)
            && self.is_up(from)
        {
            self.input(from, Input::Unreachable(to));
        }
    }

    /// Steps a node and does what it wants done.
    pub(crate) fn input(&mut self, id: u64, input: Input) {
        if !self.is_up(id) {
            return;
        }
        match self.node(id).step(input) {
            Ok(()) | Err(StepError::Refused(_) | StepError::BadMessage(_)) => {}
            Err(StepError::Fatal(fatal)) => panic!("seed {}: {fatal}", self.seed),
        }
        let batching = self.rng.random_ratio(self.world.batching, 1_000);
        if !batching || self.node(id).needs_ready() {
            self.drain(id);
        }
    }

    fn crashes(&mut self, id: u64) -> bool {
        let crash = self.rng.random_ratio(self.world.crash, 1_000);
        if crash {
            self.seen.crashes += 1;
            self.crash(id);
        }
        crash
    }

    pub(crate) fn drain(&mut self, id: u64) {
        while let Some(ready) = self.node(id).ready() {
            if self.process(id, ready).is_none() {
                return;
            }
        }
    }

    /// Handles a Ready in the order of the driver. `None` when the member crashed in between.
    fn process(&mut self, id: u64, ready: Ready) -> Option<()> {
        if let Some(soft) = ready.soft
            && soft.role == Role::Leader
        {
            let found = self.members[&id].disk.recover();
            self.truth.leads(id, soft.term, &found, self.seed);
            self.seen.leaders += 1;
        }
        self.send(ready.outbox);
        let term = self.node(id).status().term;
        self.committed(id, term, ready.committed);
        for (context, index) in ready.read_states {
            let member = self.member(id);
            let floor = member.reads.remove(&context).expect("each read is answered once");
            member.answers.push(context);
            assert!(index >= floor, "seed {}: a read at {index} missed {floor}", self.seed);
            self.seen.reads += 1;
        }
        for context in ready.refused_reads {
            let member = self.member(id);
            member.reads.remove(&context).expect("each read is answered once");
            member.lost_reads.push(context);
        }
        if self.crashes(id) {
            return None;
        }
        let seed = self.seed;
        let member = self.member(id);
        if let Some(snapshot) = &ready.snapshot {
            let metadata = snapshot.metadata.as_ref().unwrap();
            let mark = walpb::Snapshot {
                index: metadata.index,
                term: metadata.term,
                conf_state: metadata.conf_state.clone(),
            };
            member.disk.save_snapshot(&mark).unwrap();
            member.marked = mark.index();
            if self.crashes(id) {
                return None;
            }
        }
        let member = self.member(id);
        if !ready.entries.is_empty() || ready.hard_state.is_some() {
            let state = ready.hard_state.as_ref();
            member.disk.append(&ready.entries, state, ready.must_sync).unwrap();
        }
        if self.crashes(id) {
            return None;
        }
        self.send(ready.persisted);
        if let Some(snapshot) = &ready.snapshot {
            let index = snapshot.metadata.as_ref().unwrap().index();
            let member = self.member(id);
            let staged = member.staged.take().expect("staged before raft heard of it");
            // A later snapshot may have been staged over it; then this one's message was the
            // older one and raft ignored it.
            assert_eq!(staged.applied, index, "seed {seed}");
            member.durable = staged.clone();
            member.machine = staged;
            member.published.publish(&member.machine);
            member.to_apply.clear();
            self.truth.restarted(id, index);
            self.seen.snapshots += 1;
        }
        let advanced = self.node(id).advance().unwrap();
        self.send(advanced.outbox);
        let term = self.node(id).status().term;
        self.committed(id, term, advanced.committed);
        if self.crashes(id) {
            return None;
        }
        Some(())
    }

    fn committed(&mut self, id: u64, term: u64, entries: Vec<Entry>) {
        for entry in &entries {
            self.truth.committed(id, term, entry, self.seed);
        }
        self.member(id).to_apply.extend(entries);
    }

    fn send(&mut self, outbox: Outbox) {
        let messages = outbox.messages.into_iter().map(|message| (message, None));
        let snapshots = outbox.snapshots.into_iter().map(|(message, pin)| (message, Some(pin)));
        for (message, state) in messages.chain(snapshots) {
            let kind = message.r#type();
            // These keep their first sender when they are passed on, and may come back to it.
            let forwarded = matches!(kind, MessageType::MsgProp | MessageType::MsgReadIndex);
            assert!(forwarded || message.to() != message.from());
            assert_eq!(state.is_some(), kind == MessageType::MsgSnap);
            self.seen.sent_snapshots += u64::from(state.is_some());
            // Snapshots do not get lost without a word.
            let lost = state.is_none() && self.rng.random_ratio(self.world.loss, 1_000);
            if lost {
                continue;
            }
            // Streams do not repeat what they carry, so proposals come at most once.
            let once = state.is_some() || kind == MessageType::MsgProp;
            let twice = !once && self.rng.random_ratio(self.world.duplication, 1_000);
            let bytes = message.encode_to_vec();
            for _ in 0..1 + u32::from(twice) {
                let extra = if state.is_some() { self.world.snapshot_delay } else { 0 };
                let at = self.now + 1 + extra + self.rng.random_range(0..=self.world.delay);
                self.network.push(Flight { at, message: bytes.clone(), state: state.clone() });
            }
        }
    }

    fn apply_some(&mut self, id: u64) {
        let delay = self.world.apply_delay;
        if delay > 0 && !self.rng.random_ratio(1, delay as u32) {
            return;
        }
        let now = self.now;
        let report = self.rng.random_range(0..=delay);
        let member = self.member(id);
        let count = member.to_apply.len();
        if count == 0 {
            return;
        }
        let mut conf_changes = Vec::new();
        let mut removed = Vec::new();
        let mut changes = 0;
        for entry in member.to_apply.drain(..) {
            if let Some(change) = member.machine.apply(&entry) {
                changes += u64::from(change.is_some());
                conf_changes.push((entry.index(), change));
            }
        }
        removed.extend(member.machine.removed.iter().copied());
        member.published.publish(&member.machine);
        let index = member.machine.applied;
        // In order: one report never overtakes another.
        let due = member.inputs.back().map_or(0, |(due, _)| *due).max(now + report);
        member.inputs.push_back((due, Input::Applied { index, conf_changes }));
        self.truth.applied(id, &self.members[&id].machine, self.seed);
        self.truth.removed.extend(removed.iter().copied());
        self.seen.changes += changes;
        // A removed member stops after a second, as etcd does.
        if removed.contains(&id) && self.members[&id].stops_at.is_none() {
            self.member(id).stops_at = Some(now + 12 * TICK);
        }
    }

    /// Makes the machine durable and marks it in the log, as the driver does.
    pub(crate) fn take_snapshot(&mut self, id: u64) {
        if !self.is_up(id) {
            return;
        }
        let member = self.member(id);
        let state = member.node.as_ref().unwrap().hard_state();
        member.durable = member.machine.clone();
        let index = member.machine.applied;
        if index <= member.marked || index > state.commit() {
            return;
        }
        member.disk.append(&[], Some(&state), false).unwrap();
        let mark = walpb::Snapshot {
            index: Some(index),
            term: Some(member.machine.term),
            conf_state: Some(member.machine.conf_state()),
        };
        member.disk.save_snapshot(&mark).unwrap();
        member.marked = index;
    }
}
