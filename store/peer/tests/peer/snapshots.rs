//! Snapshots between two members: whole, cut, refused, replaced.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::fake::*;
use mainstay_peer::codec::encode_message_to_bytes;
use mainstay_proto::raftpb::MessageType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn pieces(count: usize, size: usize) -> Pieces {
    (0..count).map(|i| Bytes::from(vec![i as u8; size])).collect()
}

async fn outcome(node: &mut Node) -> bool {
    let id = node
        .next(|event| match event {
            Event::SnapshotSent { delivered, .. } => Some(delivered),
            _ => None,
        })
        .await;
    // One report for one snapshot.
    tokio::time::sleep(Duration::from_millis(50)).await;
    while let Ok(event) = node.events.try_recv() {
        assert!(!matches!(event, Event::SnapshotSent { .. }));
    }
    id
}

#[tokio::test]
async fn a_snapshot_arrives_whole() {
    let (mut a, mut b) = pair().await;
    let database = pieces(90, 64 << 10);
    let sent = snapshot_message(a.id, b.id, 900);
    a.peers.send_snapshot(sent.clone(), Arc::new(database.clone()));
    let (message, announced, bytes) = b
        .next(|event| match event {
            Event::Staged { message, announced, bytes } => Some((message, announced, bytes)),
            _ => None,
        })
        .await;
    assert_eq!(*message, sent);
    assert_eq!(announced, Some(90 << 16));
    assert!(bytes == database.concat());
    assert!(outcome(&mut a).await);
    let (sender, receiver) = (a.peers.metrics().of(b.id), b.peers.metrics().of(a.id));
    assert_eq!(sender.snapshots_sent.get(), 1);
    assert_eq!(sender.snapshot_send_seconds.count(), 1);
    assert_eq!(sender.snapshots_sending.get(), 0);
    assert_eq!(receiver.snapshots_received.get(), 1);
    assert!(receiver.received_bytes.get() >= 90 << 16);
}

#[tokio::test]
async fn an_empty_database_is_a_database() {
    let (mut a, mut b) = pair().await;
    a.peers.send_snapshot(snapshot_message(a.id, b.id, 1), Arc::new(pieces(0, 0)));
    assert!(outcome(&mut a).await);
    let bytes = b.next(|event| match event {
        Event::Staged { bytes, .. } => Some(bytes),
        _ => None,
    });
    assert!(bytes.await.is_empty());
}

#[tokio::test]
async fn a_database_of_another_length_than_announced_is_not_delivered() {
    let (mut a, mut b) = pair().await;
    for announced in [(9 << 10) - 1, (9 << 10) + 1] {
        a.host.script().announce = Some(announced);
        let database = Arc::new(pieces(9, 1 << 10));
        a.peers.send_snapshot(snapshot_message(a.id, b.id, 5), database);
        assert!(!outcome(&mut a).await, "announced {announced}");
    }
    assert_eq!(a.peers.metrics().of(b.id).snapshot_send_failures.get(), 2);
    // Only the next one, which is whole, gets as far as being staged.
    a.host.script().announce = None;
    a.peers.send_snapshot(snapshot_message(a.id, b.id, 6), Arc::new(pieces(9, 1 << 10)));
    assert!(outcome(&mut a).await);
    let staged = b.next(|event| match event {
        Event::Staged { message, .. } => Some(message.snapshot?.metadata?.index()),
        _ => None,
    });
    assert_eq!(staged.await, 6);
}

#[tokio::test]
async fn refusals_are_reported() {
    let (mut a, b) = pair().await;
    b.host.script().refuse_snapshots = true;
    a.peers.send_snapshot(snapshot_message(a.id, b.id, 5), Arc::new(pieces(3, 100)));
    assert!(!outcome(&mut a).await);
    assert_eq!(b.peers.metrics().of(a.id).snapshot_receive_failures.get(), 1);
    // A message that names no state is not even sent.
    let mut bare = snapshot_message(a.id, b.id, 5);
    bare.snapshot.as_mut().unwrap().metadata = None;
    a.peers.send_snapshot(bare, Arc::new(pieces(3, 100)));
    assert!(!outcome(&mut a).await);
    // Nor is one to a stranger.
    a.peers.send_snapshot(snapshot_message(a.id, 0x99, 5), Arc::new(pieces(3, 100)));
    assert!(!outcome(&mut a).await);
}

#[tokio::test]
async fn a_snapshot_to_a_removed_peer_ends() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut a = Node::start(0xa).await;
    a.peers.add_peer(0xb, &[format!("http://{}", silent.local_addr().unwrap())]).unwrap();
    a.peers.send_snapshot(snapshot_message(a.id, 0xb, 5), Arc::new(pieces(3, 100)));
    until("it is on its way", || a.peers.metrics().of(0xb).snapshots_sending.get() == 1).await;
    // A newer one takes its place.
    a.peers.send_snapshot(snapshot_message(a.id, 0xb, 6), Arc::new(pieces(3, 100)));
    assert!(!outcome(&mut a).await);
    a.peers.remove_peer(0xb);
    assert!(!outcome(&mut a).await);
    until("nothing is left", || a.peers.metrics().of(0xb).snapshots_sending.get() == 0).await;
}

#[tokio::test]
async fn a_snapshot_that_stands_still_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut timing = timing();
    timing.snapshot_stall = Duration::from_millis(200);
    timing.snapshot_answer = Duration::from_millis(300);
    let mut a = Node::start_with(0xa, CLUSTER, timing).await;
    a.peers.add_peer(0xb, &[format!("http://{}", silent.local_addr().unwrap())]).unwrap();
    // More than fits into the sockets' buffers, and little enough to be gone at once.
    for count in [1000, 1] {
        a.peers.send_snapshot(snapshot_message(a.id, 0xb, 5), Arc::new(pieces(count, 64 << 10)));
        assert!(!outcome(&mut a).await);
    }
}

/// POSTs to /raft/snapshot with an arbitrary body; gives the status and the text.
async fn post(node: &Node, body: &[u8], announced: usize) -> (u16, String) {
    let head = format!(
        "POST /raft/snapshot HTTP/1.1\r\nHost: x\r\nX-Server-Version: 3.7.3\r\n\
         X-Min-Cluster-Version: 3.0.0\r\nX-Etcd-Cluster-ID: {CLUSTER:x}\r\n\
         Connection: close\r\nContent-Length: {announced}\r\n\r\n",
    );
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let text = answer.split("\r\n\r\n").nth(1).unwrap_or_default().to_owned();
    (answer.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0), text)
}

#[tokio::test]
async fn bodies_that_are_no_snapshot_are_refused() {
    let b = Node::start(0xb).await;
    let (status, text) = post(&b, &[], 0).await;
    assert_eq!((status, text.as_str()), (400, "failed to decode raft message (EOF)\n"));
    let mut huge = BytesMut::new();
    huge.put_u64(1 << 40);
    let (status, text) = post(&b, &huge, 8).await;
    assert_eq!(status, 400);
    assert!(text.contains("exceeds the limit"), "{text}");
    let (status, _) = post(&b, &[0, 0, 0, 0, 0, 0, 0, 3, 255, 255, 255], 11).await;
    assert_eq!(status, 400);
    let other = encode_message_to_bytes(&message(MessageType::MsgApp, 0xa, b.id));
    let (status, text) = post(&b, &other, other.len()).await;
    assert_eq!((status, text.as_str()), (400, "wrong raft message type\n"));
    let stray = encode_message_to_bytes(&snapshot_message(0xa, 0x99, 5));
    let (status, text) = post(&b, &stray, stray.len()).await;
    assert_eq!(status, 500);
    assert!(text.starts_with("failed to process raft message"), "{text}");
    b.host.script().removed.insert(0xa);
    let removed = encode_message_to_bytes(&snapshot_message(0xa, b.id, 5));
    assert_eq!(post(&b, &removed, removed.len()).await.0, 500);
    assert_eq!(b.peers.metrics().of(0).snapshot_receive_failures.get(), 6);
}

#[tokio::test]
async fn a_database_that_breaks_off_is_not_staged() {
    let mut b = Node::start(0xb).await;
    let mut body = encode_message_to_bytes(&snapshot_message(0xa, b.id, 5)).to_vec();
    body.extend_from_slice(&[7; 1000]);
    post(&b, &body, body.len() + 1).await;
    b.next(|event| if event == Event::StageFailed { Some(()) } else { None }).await;
    // A sender that vanishes altogether leaves no staging behind that never ends.
    let head = format!(
        "POST /raft/snapshot HTTP/1.1\r\nHost: x\r\nX-Server-Version: 3.7.3\r\n\
         X-Etcd-Cluster-ID: {CLUSTER:x}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(b.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    until("it has begun", || b.peers.metrics().of(0).snapshots_receiving.get() > 0).await;
    drop(stream);
    b.next(|event| if event == Event::StageFailed { Some(()) } else { None }).await;
    assert_eq!(b.peers.metrics().of(0).snapshots_received.get(), 0);
}
