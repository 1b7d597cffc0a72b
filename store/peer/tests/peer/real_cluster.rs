//! A member of ours without a store, in one cluster with a real one: votes, log, snapshots.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use mainstay_peer::{Client, PlainDialer, RemoteCluster};
use mainstay_proto::raftpb::{Message, MessageType};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::etcd::*;
use crate::fake::*;

/// As much of a raft follower as a leader needs to go on.
struct Follower {
    node: Node,
    last: u64,
    seen: Vec<MessageType>,
    entries: u64,
}

impl Follower {
    fn new(node: Node) -> Self {
        Follower { node, last: 0, seen: Vec::new(), entries: 0 }
    }

    /// Answers what comes, until `done`.
    async fn follow(&mut self, mut done: impl FnMut(&Follower) -> bool) {
        let started = Instant::now();
        while !done(self) {
            assert!(started.elapsed() < PATIENCE * 2, "seen so far: {:?}", self.seen);
            let event = self.node.next(Some).await;
            match event {
                Event::Message(message) => self.answer(&message),
                Event::Staged { message, bytes, .. } => self.install(&message, &bytes),
                Event::Unreachable(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn answer(&mut self, message: &Message) {
        let kind = message.r#type();
        self.seen.push(kind);
        let answer_kind = match kind {
            MessageType::MsgPreVote => MessageType::MsgPreVoteResp,
            MessageType::MsgVote => MessageType::MsgVoteResp,
            MessageType::MsgHeartbeat => MessageType::MsgHeartbeatResp,
            MessageType::MsgApp => MessageType::MsgAppResp,
            _ => return,
        };
        let mut answer = Message {
            term: message.term,
            context: message.context.clone(),
            ..crate::fake::message(answer_kind, self.node.id, message.from())
        };
        if kind == MessageType::MsgApp {
            answer.context = None;
            answer.index = message.index;
            if message.index() > self.last {
                answer.reject = Some(true);
                answer.reject_hint = Some(self.last);
            } else {
                for (entry, index) in message.entries.iter().zip(message.index() + 1..) {
                    assert_eq!(entry.index(), index);
                }
                self.entries += message.entries.len() as u64;
                let last = message.index() + message.entries.len() as u64;
                self.last = self.last.max(last);
                answer.index = Some(last);
            }
        }
        self.node.peers.send(vec![answer]);
    }

    fn install(&mut self, message: &Message, database: &Bytes) {
        self.seen.push(message.r#type());
        let metadata = message.snapshot.as_ref().unwrap().metadata.as_ref().unwrap();
        self.last = metadata.index();
        // The first page of a bbolt file carries its magic number.
        assert_eq!(database[16..20], 0xED0C_DAED_u32.to_le_bytes());
        assert_eq!(database.len() % 4096, 0);
        let answer = Message {
            term: message.term,
            index: Some(self.last),
            ..crate::fake::message(MessageType::MsgAppResp, self.node.id, message.from())
        };
        self.node.peers.send(vec![answer]);
    }

    fn has_seen(&self, kind: MessageType) -> bool {
        self.seen.contains(&kind)
    }
}

async fn cluster_of(real: &Etcd) -> RemoteCluster {
    let client = Client::new(Arc::new(PlainDialer), Handle::current());
    client.fetch_members(&[real.peer_url()]).await.unwrap()
}

/// Our member at `listener`, which the real one already knows by its URL.
async fn join(real: &Etcd, listener: TcpListener) -> Follower {
    let cluster = cluster_of(real).await;
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (own, others): (Vec<_>, Vec<_>) =
        cluster.members.into_iter().partition(|member| member.peer_urls.contains(&url));
    let node = Node::start_on(listener, own[0].id, cluster.cluster, timing());
    for other in others {
        node.peers.add_peer(other.id, &other.peer_urls).unwrap();
    }
    Follower::new(node)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_candidate_gets_our_vote_and_leads_us() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut real = Etcd::start(&[listener.local_addr().unwrap()]).await;
    let mut ours = join(&real, listener).await;
    let leader =
        cluster_of(&real).await.members.iter().map(|m| m.id).find(|id| *id != ours.node.id);
    ours.follow(|ours| ours.has_seen(MessageType::MsgPreVote)).await;
    ours.follow(|ours| ours.has_seen(MessageType::MsgVote)).await;
    ours.follow(|ours| ours.has_seen(MessageType::MsgHeartbeat)).await;
    // The real member can write with our acknowledgement only.
    {
        let writing = real.put(50);
        tokio::pin!(writing);
        let following = ours.follow(|_| false);
        tokio::select! {
            () = &mut writing => {}
            () = following => unreachable!("follows for ever"),
        }
    }
    assert!(ours.entries > 50);
    let leader = leader.unwrap();
    assert!(ours.node.peers.is_streaming(leader), "the real member has both streams open to us");
    assert!(ours.node.peers.active_since(leader).is_some());
    let metrics = ours.node.peers.metrics();
    until("the real member answers probes", || metrics.of(leader).round_trip_seconds.count() > 0)
        .await;
    assert_eq!(metrics.of(leader).received_failures.get(), 0);
    real.assert_alive();
    let log = real.log();
    for bad in ["panic", "incompatible version", "failed to decode", "unhandled"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_leader_sends_its_snapshot_and_takes_ours() {
    let mut real = Etcd::start(&[]).await;
    // Enough entries that the first is gone from the leader's memory.
    real.put(250).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    real.call("/v3/cluster/member/add", json!({ "peerURLs": [url], "isLearner": true })).await;
    let mut ours = join(&real, listener).await;
    let leader =
        cluster_of(&real).await.members.iter().map(|m| m.id).find(|id| *id != ours.node.id);
    let leader = leader.unwrap();
    ours.follow(|ours| ours.has_seen(MessageType::MsgSnap)).await;
    let installed = ours.last;
    assert!(installed > 250);
    let metrics = ours.node.peers.metrics();
    until("the snapshot is counted", || metrics.of(leader).snapshots_received.get() == 1).await;
    {
        let writing = real.put(20);
        tokio::pin!(writing);
        let following = ours.follow(|_| false);
        tokio::select! {
            () = &mut writing => {}
            () = following => unreachable!("follows for ever"),
        }
    }
    ours.follow(|ours| ours.last >= installed + 20).await;
    assert!(ours.entries >= 20 && ours.entries < 60, "only what follows the snapshot");

    // Frames of ours, read by the real member: appends of a leader from a past term, whole and
    // short and large. It answers each, to tell us the term.
    let me = ours.node.id;
    until("both streams are open", || ours.node.peers.is_streaming(leader)).await;
    let answers =
        |ours: &Follower| ours.seen.iter().filter(|kind| **kind == MessageType::MsgAppResp).count();
    const COUNT: u64 = 20;
    for index in 1..=COUNT {
        let size = if index == COUNT { 5 << 20 } else { 10 * index as usize };
        let stale = Message {
            term: Some(1),
            log_term: Some(1),
            ..append(me, leader, index, Bytes::from(vec![1; size]))
        };
        // One by one: of several answers at once it sends the last only.
        let before = answers(&ours);
        ours.node.peers.send(vec![stale]);
        ours.follow(|ours| answers(ours) > before).await;
    }

    // A snapshot of ours: the real member stores the database, and leaves it at that because the
    // term is past.
    let database: Pieces = (0..40).map(|i| Bytes::from(vec![i; 4096])).collect();
    let stale = Message { term: Some(1), ..snapshot_message(me, leader, 3) };
    ours.node.peers.send_snapshot(stale, Arc::new(database.clone()));
    let delivered = ours.node.next(|event| match event {
        Event::SnapshotSent { delivered, .. } => Some(delivered),
        _ => None,
    });
    assert!(delivered.await);
    let stored = real.data().join("member/snap/0000000000000003.snap.db");
    assert!(std::fs::read(stored).unwrap() == database.concat());
    real.put(1).await;
    real.assert_alive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_cluster_tells_us_that_we_are_removed() {
    let real = Etcd::start(&[]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    real.call("/v3/cluster/member/add", json!({ "peerURLs": [url], "isLearner": true })).await;
    let mut ours = join(&real, listener).await;
    ours.follow(|ours| ours.has_seen(MessageType::MsgHeartbeat)).await;
    let id = ours.node.id.to_string();
    real.call("/v3/cluster/member/remove", json!({ "ID": id })).await;
    let told_by = ours.node.next(|event| match event {
        Event::Removed { told_by } => Some(told_by),
        _ => None,
    });
    let leader = cluster_of(&real).await.members[0].id;
    assert_eq!(told_by.await, leader);
}
