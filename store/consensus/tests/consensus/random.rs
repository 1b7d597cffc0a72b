//! Random runs: several hundred clusters through losses, partitions, crashes, membership changes,
//! snapshots and transfers; then the world calms down and everybody must agree.
//!
//! `MAINSTAY_SEEDS=FROM..TO` runs other seeds.

use bytes::Bytes;
use mainstay_consensus::Config;
use mainstay_proto::raftpb::ConfChangeType::{
    ConfChangeAddLearnerNode, ConfChangeAddNode, ConfChangeRemoveNode, ConfChangeUpdateNode,
};
use rand::Rng;
use rand::seq::IteratorRandom;

use crate::cluster::{Cluster, Seen, World};
use crate::machine::{PROMOTE, change};
use crate::truth::Truth;

/// A short memory, so that laggards need snapshots.
fn forgetful(id: u64) -> Config {
    Config {
        catch_up_entries: 20,
        max_size_per_msg: 256,
        max_inflight: 8,
        max_committed_bytes: 512,
        initial_election_tick_advance: id.is_multiple_of(2),
        ..Config::new(id)
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("MAINSTAY_SEEDS") else { return 0..300 };
    let (from, to) = text.split_once("..").expect("MAINSTAY_SEEDS=FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

#[test]
fn whatever_happens_nothing_committed_is_lost() {
    let (mut runs, mut all) = (0, Seen::default());
    for seed in seeds() {
        let seen = run(seed);
        runs += 1;
        all.leaders += seen.leaders;
        all.snapshots += seen.snapshots;
        all.reads += seen.reads;
        all.crashes += seen.crashes;
        all.changes += seen.changes;
    }
    println!("{runs} runs: {all:?}");
    assert!(runs < 100 || all.leaders > runs && all.snapshots > runs && all.crashes > runs);
    assert!(runs < 100 || all.reads > 10 * runs && all.changes > 5 * runs);
}

fn run(seed: u64) -> Seen {
    let mut cluster = Cluster::with(seed, 1 + seed % 5, forgetful);
    let rng = &mut cluster.rng;
    cluster.world = World {
        loss: rng.random_range(0..100),
        duplication: rng.random_range(0..50),
        delay: rng.random_range(0..8),
        snapshot_delay: rng.random_range(0..50),
        apply_delay: rng.random_range(0..6),
        crash: if rng.random_ratio(1, 2) { 2 } else { 0 },
        batching: if rng.random_ratio(1, 2) { 500 } else { 0 },
    };
    let mut refused = Vec::new();
    let mut proposals = 0u64;
    let mut newest = cluster.members.len() as u64;
    for _ in 0..1_500 {
        cluster.run(1);
        let Some(id) = cluster.members.keys().copied().choose(&mut cluster.rng) else { continue };
        if cluster.truth.removed.contains(&id) {
            continue;
        }
        match cluster.rng.random_range(0..1_000) {
            0..300 if cluster.is_up(id) => {
                let count = cluster.rng.random_range(1..4);
                let data: Vec<Bytes> = (0..count)
                    .map(|_| {
                        proposals += 1;
                        let length = cluster.rng.random_range(0..100);
                        Bytes::from(format!("{proposals}{}", ".".repeat(length)))
                    })
                    .collect();
                if cluster.propose(id, &data).is_err() {
                    refused.extend(data);
                }
            }
            300..400 if cluster.is_up(id) => {
                // Refused without a leader; the check is in the answer.
                let _ = cluster.read(id);
            }
            400..430 if cluster.is_up(id) => membership(&mut cluster, id, &mut newest),
            430..440 if cluster.is_up(id) => {
                let to = cluster.members.keys().copied().choose(&mut cluster.rng).unwrap();
                // Refused unless the member leads and the other votes.
                let _ = cluster.transfer(id, to);
            }
            440..460 => cluster.take_snapshot(id),
            460..465 => cluster.crash(id),
            465..480 => cluster.start(id),
            480..485 => cluster.isolate(id),
            485..490 => {
                let other = cluster.members.keys().copied().choose(&mut cluster.rng).unwrap();
                cluster.cut.insert((id, other));
            }
            490..500 => cluster.cut.clear(),
            _ => {}
        }
    }
    calm_down(&mut cluster);
    for data in refused {
        assert!(!cluster.truth.has(&data), "seed {seed}: {data:?} was refused, then committed");
    }
    cluster.seen
}

fn membership(cluster: &mut Cluster, id: u64, newest: &mut u64) {
    let machine = cluster.members[&id].machine.clone();
    let small = machine.voters.len() + machine.learners.len() < 6;
    let change = match cluster.rng.random_range(0..8) {
        0 | 1 if small => {
            *newest += 1;
            cluster.join(*newest);
            let kind = if cluster.rng.random_ratio(1, 3) {
                ConfChangeAddNode
            } else {
                ConfChangeAddLearnerNode
            };
            change(kind, *newest, b"")
        }
        2..5 => {
            let Some(learner) = machine.learners.iter().copied().choose(&mut cluster.rng) else {
                return;
            };
            change(ConfChangeAddNode, learner, PROMOTE)
        }
        // Of two members, one that is cut off and removed takes its vote with it: the other one
        // may never learn that it is alone. So it is in etcd.
        5 if machine.voters.len() > 2 => {
            let all = machine.voters.union(&machine.learners).copied();
            let Some(gone) = all.choose(&mut cluster.rng) else { return };
            change(ConfChangeRemoveNode, gone, b"")
        }
        6 => change(ConfChangeUpdateNode, id, b"other urls"),
        // Refused when it is applied: it is there already.
        _ => change(ConfChangeAddLearnerNode, id, b""),
    };
    // Refused without a leader or while another change is pending.
    let _ = cluster.propose_change(id, &change);
}

fn calm_down(cluster: &mut Cluster) {
    let seed = cluster.seed;
    cluster.world = World::default();
    cluster.cut.clear();
    let ids: Vec<u64> = cluster.members.keys().copied().collect();
    for id in ids {
        if !cluster.truth.removed.contains(&id) {
            cluster.start(id);
        }
    }
    // A member that was asked for and never added knows nobody, and nobody knows it.
    let is_member = |cluster: &Cluster, id: u64| {
        let state = &cluster.members.values().map(|m| &m.machine).max_by_key(|m| m.applied);
        state.is_some_and(|state| state.voters.contains(&id) || state.learners.contains(&id))
    };
    let mut last: Option<Bytes> = None;
    cluster.run_until("agreement", |cluster| {
        let Some(leader) = cluster.leader() else { return false };
        if last.is_none() || cluster.now % 500 == 0 {
            // The one before was perhaps lost with its leader.
            let data = Bytes::from(format!("last at {}", cluster.now));
            last = cluster.propose(leader, std::slice::from_ref(&data)).is_ok().then_some(data);
        }
        let highest = cluster.truth.highest();
        last.as_ref().is_some_and(|data| cluster.truth.has(data))
            && cluster.members.iter().all(|(id, member)| {
                !is_member(cluster, *id)
                    || member.node.as_ref().is_some_and(|node| node.status().applied == highest)
            })
    });
    let leader = cluster.leader().unwrap();
    let state = cluster.members[&leader].machine.conf_state();
    let mut logs = Vec::new();
    for (id, member) in &cluster.members {
        if !is_member(cluster, *id) {
            continue;
        }
        let node = member.node.as_ref().unwrap();
        let mut conf = node.conf_state();
        conf.voters.sort_unstable();
        conf.learners.sort_unstable();
        assert_eq!(conf, state, "seed {seed}: raft's members on {id}");
        logs.push(member.disk.recover());
    }
    Truth::logs_match(&logs, seed);
}
