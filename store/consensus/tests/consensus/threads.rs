//! The raft thread with real time and real threads.

use std::collections::{BTreeMap, HashMap};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_consensus::{
    Config, Fatal, Handle, Pinned, Refused, Role, Sink, SoftState, Start, Transport, bootstrap,
    spawn,
};
use mainstay_proto::raftpb::{Entry, Message, Snapshot};
use mainstay_proto::walpb;

use crate::disk::DiskLog;
use crate::machine::{Machine, Published};

const PATIENCE: Duration = Duration::from_secs(30);

/// What a member's sink hears.
enum Event {
    Committed(Vec<Entry>),
    Install(Snapshot),
    Read(u64, u64),
    LostRead(u64),
    Soft(SoftState),
    Stopped(Option<Fatal>),
}

struct Events(Sender<Event>);

impl Events {
    fn send(&self, event: Event) {
        // A test that has ended listens no more.
        let _ = self.0.send(event);
    }
}

impl Sink for Events {
    fn committed(&self, entries: Vec<Entry>) {
        self.send(Event::Committed(entries));
    }
    fn install_snapshot(&self, snapshot: Snapshot) {
        self.send(Event::Install(snapshot));
    }
    fn read_state(&self, context: u64, index: u64) {
        self.send(Event::Read(context, index));
    }
    fn read_refused(&self, context: u64) {
        self.send(Event::LostRead(context));
    }
    fn soft_state(&self, state: SoftState) {
        self.send(Event::Soft(state));
    }
    fn stopped(&self, reason: Option<Fatal>) {
        self.send(Event::Stopped(reason));
    }
}

/// Carries messages by a call into the other member's handle.
#[derive(Clone, Default)]
struct Wire {
    handles: Arc<Mutex<BTreeMap<u64, Handle>>>,
    staged: Arc<Mutex<HashMap<u64, Machine>>>,
}

impl Transport for Wire {
    fn send(&self, messages: Vec<Message>) {
        let handles = self.handles.lock().unwrap();
        for message in messages {
            if let Some(handle) = handles.get(&message.to()) {
                // A full inbox loses the message, as a full stream would.
                let _ = handle.message(message);
            }
        }
    }

    fn send_snapshot(&self, message: Message, state: Pinned) {
        let handles = self.handles.lock().unwrap();
        let (to, from) = (message.to(), message.from());
        let machine = state.downcast_ref::<Machine>().unwrap().clone();
        let arrived = handles.get(&to).is_some_and(|handle| {
            self.staged.lock().unwrap().insert(to, machine);
            handle.message(message).is_ok()
        });
        handles[&from].report_snapshot(to, arrived);
    }
}

/// A member with an apply thread's work done by the test.
struct Member {
    id: u64,
    handle: Handle,
    disk: DiskLog,
    events: Receiver<Event>,
    wire: Wire,
    published: Published,
    machine: Machine,
    data: Vec<Bytes>,
    reads: Vec<(u64, u64)>,
    lost_reads: Vec<u64>,
    soft: SoftState,
    stopped: Option<Option<Fatal>>,
    installed: u64,
}

fn config(id: u64) -> Config {
    Config { tick: Duration::from_millis(20), catch_up_entries: 10, ..Config::new(id) }
}

impl Member {
    fn start(config: Config, founders: u64, wire: &Wire) -> Self {
        let ids: Vec<_> = (1..=founders).map(|id| (id, Bytes::new())).collect();
        let (entries, hard_state) = bootstrap(&ids);
        let disk = DiskLog::new(&entries, &hard_state);
        Self::start_with(config, disk, wire)
    }

    fn start_with(config: Config, disk: DiskLog, wire: &Wire) -> Self {
        let id = config.id;
        let (sender, events) = channel();
        let published = Published::default();
        let found = disk.recover();
        let start = Start {
            hard_state: found.state,
            snapshot: found.mark,
            entries: found.entries,
            ..Start::default()
        };
        let handle = spawn(
            config,
            start,
            Box::new(disk.clone()),
            Arc::new(wire.clone()),
            Arc::new(published.clone()),
            Box::new(Events(sender)),
        )
        .unwrap();
        wire.handles.lock().unwrap().insert(id, handle.clone());
        Self {
            id,
            handle,
            disk,
            events,
            wire: wire.clone(),
            published,
            machine: Machine::default(),
            data: Vec::new(),
            reads: Vec::new(),
            lost_reads: Vec::new(),
            soft: SoftState::default(),
            stopped: None,
            installed: 0,
        }
    }

    /// Takes in one event; false when none came in time.
    fn hear(&mut self, wait: Duration) -> bool {
        let Ok(event) = self.events.recv_timeout(wait) else { return false };
        match event {
            Event::Committed(entries) => {
                let mut changes = Vec::new();
                for entry in &entries {
                    match self.machine.apply(entry) {
                        Some(change) => changes.push((entry.index(), change)),
                        None => self.data.extend(entry.data.clone()),
                    }
                }
                self.published.publish(&self.machine);
                self.handle.applied(self.machine.applied, changes);
            }
            Event::Install(snapshot) => {
                let machine = self.wire.staged.lock().unwrap().remove(&self.id).unwrap();
                assert_eq!(machine.applied, snapshot.metadata.unwrap().index());
                self.machine = machine;
                self.published.publish(&self.machine);
                self.installed += 1;
            }
            Event::Read(context, index) => self.reads.push((context, index)),
            Event::LostRead(context) => self.lost_reads.push(context),
            Event::Soft(state) => self.soft = state,
            Event::Stopped(reason) => self.stopped = Some(reason),
        }
        true
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            self.hear(Duration::from_millis(10));
            assert!(Instant::now() < end, "never: {what}");
        }
    }

    fn propose(&self, data: &'static [u8]) {
        let later = Instant::now() + PATIENCE;
        self.handle
            .propose(Bytes::from_static(data), later, |reason| panic!("refused: {reason}"))
            .unwrap();
    }
}

/// Lets all of them hear until `done`.
fn until(members: &mut [Member], what: &str, mut done: impl FnMut(&mut [Member]) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done(members) {
        for member in members.iter_mut() {
            while member.hear(Duration::from_millis(1)) {}
        }
        assert!(Instant::now() < end, "never: {what}");
    }
}

fn three() -> Vec<Member> {
    let wire = Wire::default();
    let mut members: Vec<_> = (1..=3).map(|id| Member::start(config(id), 3, &wire)).collect();
    until(&mut members, "a leader", |members| {
        members.iter().all(|m| m.soft.leader != 0 && m.machine.applied > 3)
    });
    members
}

#[test]
fn a_member_alone_commits_with_one_sync() {
    let mut member = Member::start(config(1), 1, &Wire::default());
    member.until("leader", |m| m.soft.role == Role::Leader && m.machine.applied == 2);
    let before = member.disk.syncs();
    member.propose(b"x");
    member.until("commit", |m| m.data == [&b"x"[..]]);
    assert_eq!(member.disk.syncs(), before + 1);
    member.until("applied", |m| m.handle.status().applied == 3);
    let status = member.handle.status();
    assert_eq!((status.leader, status.commit, status.last), (1, 3, 3));
    assert_eq!(status.progress.len(), 1);
    member.handle.read_index(1).unwrap();
    member.until("read", |m| m.reads == [(1, 3)]);

    member.handle.stop();
    member.until("stop", |m| m.stopped.is_some());
    assert!(matches!(member.stopped, Some(None)));
    assert!(member.disk.is_closed());
    member.handle.join();
    // The commit index that was not worth a sync of its own is in the log at the end.
    assert_eq!(member.disk.recover().state.commit(), 3);
    let put = member.handle.propose(Bytes::from_static(b"y"), Instant::now(), |_| {});
    assert_eq!(put, Err(Refused::Stopped));
}

#[test]
fn what_comes_during_a_write_becomes_one_batch() {
    use std::sync::atomic::Ordering::Relaxed;

    let mut member = Member::start(config(1), 1, &Wire::default());
    member.until("leader", |m| m.machine.applied == 2);
    let gate = member.disk.gate();
    let closed = gate.lock().unwrap();
    member.propose(b"first");
    let end = Instant::now() + PATIENCE;
    while member.handle.proposals_waiting() > 0 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    let before = member.handle.counters().log_batches.load(Relaxed);
    for _ in 0..100 {
        member.propose(b"later");
    }
    drop(closed);
    member.until("commit", |m| m.data.len() == 101);
    // The one that was being written, and one for all the others.
    assert_eq!(member.handle.counters().log_batches.load(Relaxed), before + 2);
}

#[test]
fn what_only_a_leader_may_decide_goes_nowhere_else() {
    let mut members = three();
    let leader = members[0].soft.leader;
    let term = members[0].soft.term;
    let refusals = Arc::new(Mutex::new(Vec::new()));
    for member in &members {
        for term in [term - 1, term] {
            let (id, refusals) = (member.id, refusals.clone());
            let later = Instant::now() + PATIENCE;
            let data = Bytes::copy_from_slice(&[id as u8, term as u8]);
            let refused = move |reason| refusals.lock().unwrap().push((id, term, reason));
            member.handle.propose_as_leader(data, term, later, refused).unwrap();
        }
    }
    let own = Bytes::copy_from_slice(&[leader as u8, term as u8]);
    until(&mut members, "the leader's own", |members| {
        members.iter().all(|m| m.data == [own.clone()]) && refusals.lock().unwrap().len() == 5
    });
    let refusals = refusals.lock().unwrap();
    assert!(refusals.iter().all(|(id, at, reason)| {
        *reason == Refused::NotLeader && (*id != leader || *at != term)
    }));
}

#[test]
fn a_failed_write_ends_everything() {
    let mut member = Member::start(config(1), 1, &Wire::default());
    member.until("leader", |m| m.machine.applied == 2);
    member.disk.fail();
    member.propose(b"x");
    member.until("end", |m| m.stopped.is_some());
    assert!(matches!(member.stopped, Some(Some(Fatal::Log(_)))));
    assert!(member.data.is_empty());
    assert_eq!(member.handle.read_index(1), Err(Refused::Stopped));
    member.handle.join();
}

#[test]
fn a_member_that_lost_its_log_ends() {
    let mut member = Member::start(config(1), 3, &Wire::default());
    member.until("founded", |m| m.handle.status().applied == 3);
    let heartbeat = Message {
        r#type: Some(8),
        to: Some(1),
        from: Some(2),
        term: Some(5),
        commit: Some(9),
        ..Message::default()
    };
    member.handle.message(heartbeat).unwrap();
    member.until("end", |m| m.stopped.is_some());
    assert!(matches!(member.stopped, Some(Some(Fatal::LostLog { commit: 9, last: 3, .. }))));
}

#[test]
fn a_panic_on_the_raft_thread_is_reported() {
    struct Broken;

    impl Transport for Broken {
        fn send(&self, _: Vec<Message>) {
            panic!("out of order");
        }
        fn send_snapshot(&self, _: Message, _: Pinned) {}
    }

    let (sender, events) = channel();
    let (entries, hard_state) = bootstrap(&[(1, Bytes::new()), (2, Bytes::new())]);
    let start = Start { entries, hard_state, ..Start::default() };
    let log = Box::new(DiskLog::new(&start.entries, &start.hard_state));
    let source = Arc::new(Published::default());
    let sink = Box::new(Events(sender));
    let handle = spawn(config(1), start, log, Arc::new(Broken), source, sink).unwrap();
    // A vote request makes it answer.
    let request = Message {
        r#type: Some(5),
        to: Some(1),
        from: Some(2),
        term: Some(5),
        log_term: Some(1),
        index: Some(2),
        ..Message::default()
    };
    handle.message(request).unwrap();
    let reason = events.iter().find_map(|event| match event {
        Event::Stopped(reason) => reason,
        _ => None,
    });
    assert!(matches!(reason, Some(Fatal::Raft(text)) if text == "out of order"));
    handle.join();
}

#[test]
fn proposals_wait_for_a_leader_until_their_deadline() {
    let wire = Wire::default();
    let mut first = Member::start(config(1), 3, &wire);
    first.until("founded", |m| m.handle.status().applied == 3);
    let refused = Arc::new(OnceLock::new());
    let told = Arc::clone(&refused);
    first
        .handle
        .propose(Bytes::from_static(b"x"), Instant::now(), move |reason| {
            told.set(reason).unwrap();
        })
        .unwrap();
    first.until("refusal", |_| refused.get().is_some());
    assert_eq!(refused.get(), Some(&Refused::NoLeader));
    assert_eq!(first.handle.read_index(1), Ok(()));
    first.until("refusal", |m| m.lost_reads == [1]);

    first.propose(b"y");
    let second = Member::start(config(2), 3, &wire);
    let mut both = [first, second];
    until(&mut both, "commit", |members| members.iter().all(|m| m.data == [&b"y"[..]]));
}

#[test]
fn three_members_serve_through_any_of_them_and_hand_over() {
    let mut members = three();
    for member in &members {
        member.propose(b"x");
    }
    until(&mut members, "commits", |members| members.iter().all(|m| m.data.len() == 3));
    for member in &members {
        member.handle.read_index(1).unwrap();
    }
    until(&mut members, "reads", |members| {
        members.iter().all(|m| m.reads.iter().any(|(_, index)| *index >= m.machine.applied))
    });

    let leader = members[0].soft.leader;
    let to = 1 + leader % 3;
    let of = |id: u64| id as usize - 1;
    let wrong = Arc::new(OnceLock::new());
    let told = Arc::clone(&wrong);
    members[of(to)].handle.transfer(leader, move |reason| told.set(reason).unwrap()).unwrap();
    until(&mut members, "refusal", |_| wrong.get() == Some(&Refused::NotLeader));
    members[of(leader)].handle.transfer(to, |reason| panic!("{reason}")).unwrap();
    until(&mut members, "transfer", |members| members.iter().all(|m| m.soft.leader == to));
    members[of(leader)].propose(b"y");
    until(&mut members, "commit", |members| members.iter().all(|m| m.data.len() == 4));
    until(&mut members, "progress", |members| {
        let status = members[of(to)].handle.status();
        status.progress.len() == 3 && status.progress.iter().all(|p| p.matched == status.last)
    });
}

#[test]
fn who_asked_for_a_transfer_hears_that_it_failed() {
    let mut members = three();
    let leader = members[0].soft.leader;
    let gone = 1 + leader % 3;
    members[0].wire.handles.lock().unwrap().remove(&gone).unwrap();
    let failed = Arc::new(OnceLock::new());
    let told = Arc::clone(&failed);
    let at = leader as usize - 1;
    members[at].handle.transfer(gone, move |reason| told.set(reason).unwrap()).unwrap();
    until(&mut members, "the answer", |_| failed.get() == Some(&Refused::TransferFailed));
    assert_eq!(members[at].soft.leader, leader);
    members[at].propose(b"x");
    let data = |members: &[Member]| members[at].data.len() == 1;
    until(&mut members, "commit", |members| data(members));
}

#[test]
fn a_laggard_gets_a_snapshot_through_the_transport() {
    let mut members = three();
    let leader = members[0].soft.leader;
    let laggard = 1 + leader % 3;
    let wire = members[0].wire.clone();
    let away = wire.handles.lock().unwrap().remove(&laggard).unwrap();
    let at = leader as usize - 1;
    for n in 1..=30 {
        members[at].propose(b"x");
        until(&mut members, "commit", |members| members[at].data.len() == n);
    }
    wire.handles.lock().unwrap().insert(laggard, away);
    let behind = laggard as usize - 1;
    until(&mut members, "snapshot", |members| members[behind].installed == 1);
    members[at].propose(b"y");
    until(&mut members, "entries", |members| {
        members.iter().all(|m| m.data.last().is_some_and(|data| data == "y"))
    });
    assert_eq!(members[behind].machine, members[at].machine);
}

#[test]
fn a_snapshot_taken_is_marked_and_lets_the_log_shrink() {
    let mut member = Member::start(config(1), 1, &Wire::default());
    member.until("leader", |m| m.machine.applied == 2);
    for n in 1..=30 {
        member.propose(b"x");
        member.until("commit", |m| m.data.len() == n);
    }
    let mark = walpb::Snapshot {
        index: Some(member.machine.applied),
        term: Some(member.machine.term),
        conf_state: Some(member.machine.conf_state()),
    };
    member.handle.snapshot_taken(mark.clone());
    member.until("mark", |m| m.disk.recover().mark == mark);
    // The catch-up entries stay.
    member.until("release", |m| m.disk.released() == 23);
    // An older one changes nothing.
    member.handle.snapshot_taken(walpb::Snapshot { index: Some(5), ..mark.clone() });
    member.propose(b"y");
    member.until("commit", |m| m.data.len() == 31);
    assert_eq!(member.disk.recover().mark, mark);
    // One from the future is a broken invariant.
    member.handle.snapshot_taken(walpb::Snapshot { index: Some(500), ..mark });
    member.until("end", |m| m.stopped.is_some());
    assert!(matches!(member.stopped, Some(Some(Fatal::AppliedAhead { .. }))));
}
