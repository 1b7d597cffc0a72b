//! Single behaviours, each in a cluster of its own.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_consensus::{Config, Fatal, Input, Node, Refused, Role, Start, bootstrap};
use mainstay_proto::raftpb::ConfChangeType::{
    ConfChangeAddLearnerNode, ConfChangeAddNode, ConfChangeRemoveNode, ConfChangeUpdateNode,
};
use mainstay_proto::raftpb::{ConfState, Entry, EntryType, HardState, Message, MessageType};
use prost::Message as _;

use crate::asks::fatal;
use crate::cluster::{Cluster, TICK, World};
use crate::disk::DiskLog;
use crate::machine::{PROMOTE, Published, change};

fn follower(cluster: &Cluster, leader: u64) -> u64 {
    *cluster.members.keys().find(|id| **id != leader).unwrap()
}

/// The log entry at the index that was committed last.
fn last_entry(cluster: &Cluster, id: u64) -> Entry {
    let highest = cluster.truth.highest();
    let found = cluster.members[&id].disk.recover();
    found.entries.into_iter().find(|entry| entry.index() == highest).unwrap()
}

#[test]
fn a_learner_joins_through_a_follower_and_gets_a_vote() {
    let mut cluster = Cluster::new(1, 3);
    let leader = cluster.settle();
    let follower = follower(&cluster, leader);
    cluster.join(4);
    // Type 3 is what raft-rs cannot read; here it comes to the leader as a forwarded proposal.
    let add = change(ConfChangeAddLearnerNode, 4, b"{\"id\":4,\"isLearner\":true}");
    cluster.propose_change(follower, &add).unwrap();
    cluster.run_until("learner", |c| c.members[&4].machine.learners.contains(&4));
    cluster.level();
    for id in 1..=4 {
        let entry = last_entry(&cluster, id);
        assert_eq!(entry.r#type(), EntryType::EntryConfChange);
        assert_eq!(entry.data.unwrap(), add.encode_to_vec(), "on member {id}");
    }
    let status = cluster.node(leader).status();
    assert_eq!(status.is_ready_to_vote(4), Some(true));
    assert!(cluster.node(4).status().is_learner);

    cluster.propose_change(follower, &change(ConfChangeAddNode, 4, PROMOTE)).unwrap();
    cluster.run_until("voter", |c| c.members[&4].machine.voters.contains(&4));
    cluster.level();
    assert_eq!(cluster.node(leader).conf_state().learners, []);
    // It counts: two of four are no quorum.
    cluster.isolate(1);
    cluster.isolate(2);
    cluster.run(100 * TICK);
    assert_eq!(cluster.leader().filter(|id| *id > 2), None);
    cluster.cut.clear();
    let leader = cluster.settle();
    cluster.commit(leader, b"after");
}

#[test]
fn a_refused_change_has_no_effect_and_blocks_nothing() {
    let mut cluster = Cluster::new(2, 3);
    let leader = cluster.settle();
    let before = cluster.node(leader).conf_state();
    // It is a voter already; the machine refuses it when it is applied.
    cluster.propose_change(leader, &change(ConfChangeAddLearnerNode, 2, b"")).unwrap();
    // Not applied yet, so no other one.
    let update = change(ConfChangeUpdateNode, 2, b"urls");
    assert_eq!(cluster.propose_change(leader, &update), Err(Refused::ConfChangePending));
    let index = cluster.truth.highest();
    cluster.run_until("commit", |c| c.truth.highest() > index);
    cluster.level();
    assert_eq!(cluster.node(leader).conf_state(), before);
    cluster.commit_change(leader, &update);
    assert_eq!(cluster.node(leader).conf_state(), before);
    let gone = follower(&cluster, leader);
    cluster.propose_change(leader, &change(ConfChangeRemoveNode, gone, b"")).unwrap();
    cluster.run_until("removal", |c| !c.node(leader).conf_state().voters.contains(&gone));
}

#[test]
fn a_change_forwarded_too_early_becomes_the_entry_that_etcd_writes() {
    let mut cluster = Cluster::new(3, 3);
    let leader = cluster.settle();
    cluster.commit(leader, b"x");
    let follower = follower(&cluster, leader);
    let update = change(ConfChangeUpdateNode, 2, b"urls");
    cluster.propose_change(follower, &update).unwrap();
    cluster.propose_change(follower, &update).unwrap();
    let before = cluster.truth.highest();
    cluster.run_until("both", |c| c.truth.highest() == before + 2);
    cluster.level();
    let mut last = last_entry(&cluster, leader);
    last.term = None;
    last.index = None;
    // Type 0 written out, nothing else.
    assert_eq!(last.encode_to_vec(), [8, 0]);
}

#[test]
fn leadership_goes_where_it_is_sent() {
    let mut cluster = Cluster::new(4, 3);
    let leader = cluster.settle();
    cluster.level();
    let to = follower(&cluster, leader);
    assert_eq!(cluster.transfer(to, leader), Err(Refused::NotLeader));
    assert_eq!(cluster.transfer(leader, 9), Err(Refused::NotVoter(9)));
    cluster.transfer(leader, to).unwrap();
    assert_eq!(cluster.node(leader).status().transferee, to);
    let took = cluster.run_until("transfer", |c| c.leader() == Some(to));
    assert!(took < 2 * TICK, "{took}");
    cluster.commit(to, b"by the new leader");
}

#[test]
fn a_transfer_to_the_dead_ends_after_an_election_timeout() {
    let mut cluster = Cluster::new(5, 3);
    let leader = cluster.settle();
    cluster.level();
    let dead = follower(&cluster, leader);
    cluster.crash(dead);
    cluster.transfer(leader, dead).unwrap();
    let put = [Bytes::from_static(b"x")];
    assert_eq!(cluster.propose(leader, &put), Err(Refused::Transferring));
    let took = cluster.run_until("abort", |c| c.node(leader).may_propose().is_ok());
    assert!(took <= 11 * TICK, "{took}");
    assert_eq!(cluster.leader(), Some(leader));
    cluster.commit(leader, b"y");
}

fn forgetful(id: u64) -> Config {
    Config { catch_up_entries: 10, initial_election_tick_advance: false, ..Config::new(id) }
}

#[test]
fn a_laggard_gets_a_snapshot_and_then_entries() {
    let mut cluster = Cluster::with(6, 3, forgetful);
    let leader = cluster.settle();
    let laggard = follower(&cluster, leader);
    cluster.isolate(laggard);
    for n in 0..30 {
        cluster.propose(leader, &[Bytes::from(format!("put {n}"))]).unwrap();
        cluster.run(5);
    }
    assert!(cluster.node(leader).first_index() > 10);
    assert_eq!(cluster.seen.snapshots, 0);
    cluster.cut.clear();
    cluster.level();
    assert_eq!(cluster.seen.snapshots, 1);
    cluster.commit(leader, b"after");
    // The mark is where it starts from next time.
    let found = cluster.members[&laggard].disk.recover();
    assert!(found.mark.index() > 20);
    cluster.crash(laggard);
    cluster.start(laggard);
    cluster.level();
    assert_eq!(cluster.seen.snapshots, 1);
}

#[test]
fn entries_behind_a_snapshot_under_way_stay() {
    let mut cluster = Cluster::with(6, 3, forgetful);
    let leader = cluster.settle();
    let laggard = follower(&cluster, leader);
    cluster.isolate(laggard);
    let write = |cluster: &mut Cluster, from: u64| {
        for n in from..from + 30 {
            cluster.propose(leader, &[Bytes::from(format!("put {n}"))]).unwrap();
            cluster.run(5);
        }
    };
    write(&mut cluster, 0);
    cluster.cut.clear();
    cluster.world.snapshot_delay = 400;
    cluster.run_until("snapshot", |c| c.seen.sent_snapshots == 1);
    write(&mut cluster, 100);
    assert_eq!(cluster.seen.snapshots, 0);
    cluster.level();
    assert_eq!((cluster.seen.sent_snapshots, cluster.seen.snapshots), (1, 1));
    // And go some time later.
    write(&mut cluster, 200);
    let held = cluster.node(leader).first_index();
    cluster.run(310 * TICK);
    write(&mut cluster, 300);
    assert!(cluster.node(leader).first_index() > held + 60);
}

#[test]
fn reads_come_through_any_member_and_see_what_was_acknowledged() {
    let mut cluster = Cluster::new(7, 3);
    let leader = cluster.settle();
    let follower = follower(&cluster, leader);
    cluster.commit(leader, b"x");
    for id in [leader, follower] {
        let context = cluster.read(id).unwrap();
        let took = cluster.run_until("read", |c| c.members[&id].answers.contains(&context));
        assert!(took < TICK, "{took}");
    }
}

#[test]
fn a_leader_cut_off_answers_no_read() {
    let mut cluster = Cluster::new(8, 3);
    let old = cluster.settle();
    cluster.commit(old, b"x");
    cluster.isolate(old);
    let context = cluster.read(old).unwrap();
    // It steps down when its quorum stays silent, and says that the read is lost.
    cluster.run_until("step down", |c| c.members[&old].lost_reads.contains(&context));
    assert_eq!(cluster.members[&old].answers, []);
    assert_ne!(cluster.node(old).status().role, Role::Leader);
    assert_eq!(cluster.read(old), Err(Refused::NoLeader));
    assert_eq!(cluster.propose(old, &[Bytes::from_static(b"y")]), Err(Refused::NoLeader));
}

#[test]
fn a_read_on_a_new_leader_waits_for_its_first_commit() {
    let mut cluster = Cluster::new(9, 3);
    let old = cluster.settle();
    cluster.commit(old, b"x");
    cluster.crash(old);
    cluster.run_until("another leader", |c| c.leader().is_some_and(|id| id != old));
    let new = cluster.leader().unwrap();
    let other = *cluster.members.keys().find(|id| ![old, new].contains(id)).unwrap();
    // It leads, but nothing of its term is committed yet.
    let status = cluster.node(new).status();
    assert!(status.commit < status.last);
    let own = cluster.read(new).unwrap();
    assert_eq!(cluster.members[&new].answers, []);
    cluster.run_until("read", |c| c.members[&new].answers.contains(&own));
    let forwarded = cluster.read(other).unwrap();
    cluster.run_until("read", |c| c.members[&other].answers.contains(&forwarded));
}

#[test]
fn a_member_that_never_leads_still_votes() {
    let mut cluster = Cluster::new(10, 3);
    for id in [1, 2] {
        cluster.crash(id);
        cluster.member(id).never_lead = true;
        cluster.start(id);
    }
    assert_eq!(cluster.settle(), 3);
    cluster.level();
    cluster.transfer(3, 1).unwrap();
    cluster.run(11 * TICK);
    assert_eq!(cluster.leader(), Some(3));
    cluster.input(1, Input::Campaign);
    cluster.crash(3);
    cluster.run(200 * TICK);
    assert_eq!(cluster.leader(), None);
    assert_eq!(cluster.node(1).status().role, Role::Follower);
    cluster.start(3);
    let leader = cluster.settle();
    assert_eq!(leader, 3);
    cluster.commit(3, b"with the votes of the others");
}

#[test]
fn the_other_one_of_two_goes_on_when_its_leader_is_removed() {
    for seed in 0..50 {
        let mut cluster = Cluster::new(seed, 2);
        let leader = cluster.settle();
        let other = follower(&cluster, leader);
        cluster.propose_change(leader, &change(ConfChangeRemoveNode, leader, b"")).unwrap();
        // The news that it is committed gets lost at first.
        cluster.run(2);
        cluster.world = World { loss: 1_000, ..World::default() };
        cluster.run(3 * TICK);
        cluster.world = World::default();
        assert!(cluster.members[&leader].machine.removed.contains(&leader));
        let put = [Bytes::from_static(b"x")];
        assert_eq!(cluster.propose(leader, &put), Err(Refused::Removed));
        cluster.run_until("the other leads", |c| c.leader() == Some(other));
        cluster.commit(other, b"alone");
    }
}

#[test]
fn an_only_voter_leads_at_once_and_commits_in_one_pass() {
    let (entries, hard_state) = bootstrap(&[(7, Bytes::new())]);
    let start = Start { entries, hard_state, ..Start::default() };
    let mut node = Node::new(Config::new(7), start, Arc::new(Published::default())).unwrap();
    // The founding entry is committed; applying it makes this a voter.
    let ready = node.ready().unwrap();
    assert_eq!(ready.committed.len(), 1);
    node.advance().unwrap();
    let found = change(ConfChangeAddNode, 7, b"");
    node.step(Input::Applied { index: 1, conf_changes: vec![(1, Some(found))] }).unwrap();
    assert_eq!(node.status().role, Role::Leader);
    let ready = node.ready().unwrap();
    assert_eq!((ready.entries.len(), ready.must_sync), (1, true));
    assert_eq!(node.advance().unwrap().committed.len(), 1);
    assert!(node.ready().is_none());

    let data = ["a", "b", "c"].map(Bytes::from);
    node.step(Input::Propose(data.to_vec())).unwrap();
    let ready = node.ready().unwrap();
    assert_eq!((ready.entries.len(), ready.committed.len()), (3, 0));
    let committed = node.advance().unwrap().committed;
    assert_eq!(committed.iter().map(|e| e.data.clone().unwrap()).collect::<Vec<_>>(), data);
    node.step(Input::ReadIndex(1)).unwrap();
    assert_eq!(node.ready().unwrap().read_states, [(1, 5)]);
}

#[test]
fn what_was_applied_raises_a_commit_index_that_was_not_synced() {
    let entries: Vec<Entry> = (1..=4)
        .map(|index| Entry { term: Some(1), index: Some(index), ..Entry::default() })
        .collect();
    let start = Start {
        applied: 3,
        hard_state: HardState { term: Some(1), vote: Some(0), commit: Some(2) },
        entries,
        ..Start::default()
    };
    let source = Arc::new(Published::default());
    let node = Node::new(Config::new(1), start.clone(), source.clone()).unwrap();
    assert_eq!((node.status().commit, node.status().applied), (3, 3));
    // A log that ends before what was applied has lost acknowledged data.
    let lost = Start { applied: 5, ..start.clone() };
    assert!(matches!(Node::new(Config::new(1), lost, source.clone()), Err(Fatal::Start(_))));
    let mut gap = start;
    gap.entries.remove(1);
    assert!(matches!(Node::new(Config::new(1), gap, source), Err(Fatal::Start(_))));
}

fn blank(id: u64) -> Node {
    Node::new(Config::new(id), Start::default(), Arc::new(Published::default())).unwrap()
}

#[test]
fn a_member_that_lost_its_log_ends() {
    let heartbeat = Message {
        r#type: Some(MessageType::MsgHeartbeat as i32),
        to: Some(2),
        from: Some(1),
        term: Some(3),
        commit: Some(19),
        ..Message::default()
    };
    let result = blank(2).step(Input::Message(Box::new(heartbeat)));
    assert!(matches!(fatal(result), Fatal::LostLog { id: 2, commit: 19, last: 0 }));
}

#[test]
fn nothing_is_applied_before_it_is_committed() {
    let result = blank(2).step(Input::Applied { index: 1, conf_changes: Vec::new() });
    assert!(matches!(fatal(result), Fatal::AppliedAhead { applied: 1, committed: 0 }));
}

/// Member 1, the only voter of a configuration that member 2 is a leader of all the same.
fn sole_voter() -> Node {
    let start = Start {
        applied: 1,
        conf_state: ConfState { voters: vec![1], ..ConfState::default() },
        hard_state: HardState { term: Some(1), vote: Some(0), commit: Some(1) },
        entries: vec![Entry { term: Some(1), index: Some(1), ..Entry::default() }],
        ..Start::default()
    };
    let config = Config { initial_election_tick_advance: false, ..Config::new(1) };
    Node::new(config, start, Arc::new(Published::default())).unwrap()
}

fn to_sole_voter(kind: MessageType, term: u64) -> Message {
    Message {
        r#type: Some(kind as i32),
        to: Some(1),
        from: Some(2),
        term: Some(term),
        log_term: Some(1),
        index: Some(1),
        ..Message::default()
    }
}

#[test]
fn nobody_elects_itself_on_top_of_entries_that_are_not_written() {
    let mut node = sole_voter();
    let entry = Entry { term: Some(5), index: Some(2), ..Entry::default() };
    let append = Message { entries: vec![entry], ..to_sole_voter(MessageType::MsgApp, 5) };
    node.step(Input::Message(Box::new(append))).unwrap();
    for _ in 0..30 {
        node.step(Input::Tick).unwrap();
    }
    node.step(Input::Campaign).unwrap();
    let timeout = Message { index: None, ..to_sole_voter(MessageType::MsgTimeoutNow, 5) };
    node.step(Input::Message(Box::new(timeout))).unwrap();
    assert_eq!(node.status().role, Role::Follower);
    assert_eq!(node.ready().unwrap().entries.len(), 1);
    node.advance().unwrap();
    node.step(Input::Campaign).unwrap();
    assert_eq!(node.status().role, Role::Leader);
}

#[test]
fn a_vote_is_written_before_anything_else_is_taken_in() {
    let mut node = sole_voter();
    node.step(Input::Tick).unwrap();
    assert!(!node.needs_ready());
    let request = to_sole_voter(MessageType::MsgVote, 6);
    node.step(Input::Message(Box::new(request))).unwrap();
    assert!(node.needs_ready());
    let ready = node.ready().unwrap();
    assert!(ready.must_sync && ready.outbox.is_empty());
    assert_eq!(ready.hard_state.unwrap().vote(), 2);
    assert_eq!(ready.persisted.messages[0].r#type(), MessageType::MsgVoteResp);
    node.advance().unwrap();
    assert!(!node.needs_ready());
}

#[test]
fn changes_below_the_applied_index_are_old_news() {
    let start = Start {
        applied: 2,
        conf_state: ConfState { voters: vec![1, 2, 3], ..ConfState::default() },
        hard_state: HardState { term: Some(1), vote: Some(0), commit: Some(3) },
        entries: (1..=3)
            .map(|index| Entry { term: Some(1), index: Some(index), ..Entry::default() })
            .collect(),
        ..Start::default()
    };
    let mut node = Node::new(Config::new(1), start, Arc::new(Published::default())).unwrap();
    node.ready().unwrap();
    node.advance().unwrap();
    let gone = Some(change(ConfChangeRemoveNode, 3, b""));
    node.step(Input::Applied { index: 2, conf_changes: vec![(2, gone.clone())] }).unwrap();
    node.step(Input::Applied { index: 3, conf_changes: vec![(2, gone)] }).unwrap();
    assert_eq!(node.conf_state().voters.len(), 3);
}

#[test]
fn a_blank_member_learns_everything_from_the_log() {
    let mut cluster = Cluster::new(11, 2);
    // The third founder was not there when the cluster began, and has nothing.
    let leader = cluster.settle();
    cluster.commit(leader, b"x");
    cluster.join(3);
    assert_eq!(cluster.members[&3].disk.recover().entries, []);
    cluster.commit_change(leader, &change(ConfChangeAddNode, 3, b""));
    assert!(cluster.members[&3].machine.voters.contains(&3));
    cluster.crash(3);
    cluster.start(3);
    cluster.level();
    assert_eq!(cluster.seen.snapshots, 0);
}

#[test]
fn unsynced_commit_indexes_may_vanish_and_nothing_else() {
    let mut cluster = Cluster::new(12, 3);
    let leader = cluster.settle();
    for n in 0..10 {
        cluster.propose(leader, &[Bytes::from(format!("put {n}"))]).unwrap();
        cluster.run(3);
    }
    cluster.level();
    let highest = cluster.truth.highest();
    for id in 1..=3 {
        cluster.crash(id);
        let found = cluster.members[&id].disk.recover();
        assert_eq!(found.entries.last().unwrap().index(), highest);
    }
    for id in 1..=3 {
        cluster.start(id);
    }
    let leader = cluster.settle();
    cluster.commit(leader, b"after");
}

#[test]
fn too_many_uncommitted_bytes_are_refused() {
    fn tight(id: u64) -> Config {
        Config {
            max_size_per_msg: 100,
            max_uncommitted_bytes: 100,
            initial_election_tick_advance: false,
            ..Config::new(id)
        }
    }
    let mut cluster = Cluster::with(13, 3, tight);
    let leader = cluster.settle();
    cluster.level();
    cluster.isolate(leader);
    let put = [Bytes::from(vec![1; 60])];
    cluster.propose(leader, &put).unwrap();
    assert_eq!(cluster.propose(leader, &put), Err(Refused::Uncommitted));
    cluster.cut.clear();
    cluster.run_until("room", |c| c.propose(leader, &[Bytes::from(vec![2; 60])]).is_ok());
}

#[test]
fn the_simulated_disk_replays_as_the_log_does() {
    use mainstay_log::LogStore;
    use mainstay_proto::walpb;

    let entry = |index, term| Entry { term: Some(term), index: Some(index), ..Entry::default() };
    let state = |term, commit| HardState { term: Some(term), vote: Some(0), commit: Some(commit) };
    let mark = |index| walpb::Snapshot { index: Some(index), term: Some(1), conf_state: None };
    let mut log = DiskLog::new(&[entry(1, 1), entry(2, 1), entry(3, 1)], &state(1, 1));
    log.append(&[entry(2, 2)], Some(&state(2, 1)), true).unwrap();
    let found = log.recover();
    assert_eq!(found.entries, [entry(1, 1), entry(2, 2)]);
    // A mark counts once the commit index has come that far.
    log.save_snapshot(&mark(2)).unwrap();
    assert_eq!(log.recover().mark.index(), 0);
    log.append(&[], Some(&state(2, 2)), false).unwrap();
    assert_eq!(log.recover().mark.index(), 2);
    assert_eq!(log.recover().entries, []);
    log.crash(|_| 0);
    assert_eq!(log.recover().state, state(2, 1));
    assert_eq!(log.recover().mark.index(), 0);
}
