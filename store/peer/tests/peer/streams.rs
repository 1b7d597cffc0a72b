//! Two members, and members that misbehave, on real sockets: order, reconnection, slowness,
//! silence, garbage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::fake::*;
use mainstay_proto::raftpb::MessageType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_arrive_in_order_beside_other_messages() {
    let (a, mut b) = pair().await;
    const COUNT: u64 = 3000;
    for index in 1..=COUNT {
        let data = Bytes::from(vec![index as u8; (index % 700) as usize]);
        a.peers.send(vec![
            append(a.id, b.id, index, data),
            message(MessageType::MsgHeartbeat, a.id, b.id),
        ]);
        if index % 500 == 0 {
            // Queues are bounded: a sender that is faster than its peer has to pause.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let (mut next, mut heartbeats) = (1, 0);
    while next <= COUNT || heartbeats < COUNT {
        let message = b.next_message().await;
        match message.r#type() {
            MessageType::MsgApp => {
                assert_eq!(message.entries.len(), 1);
                assert_eq!(message.entries[0].index(), next);
                assert_eq!(message.entries[0].data().len() as u64, next % 700);
                assert_eq!((message.from(), message.to()), (a.id, b.id));
                assert_eq!((message.index(), message.log_term()), (next - 1, 3));
                next += 1;
            }
            MessageType::MsgHeartbeat => heartbeats += 1,
            other => panic!("{other:?}"),
        }
    }
    let metrics = a.peers.metrics();
    assert!(metrics.of(b.id).sent_bytes.get() > COUNT * 300);
    assert_eq!(metrics.of(b.id).sent_failures.get(), 0);
    assert!(b.peers.metrics().of(a.id).received_bytes.get() > COUNT * 300);
}

#[tokio::test]
async fn a_large_entry_passes() {
    let (a, mut b) = pair().await;
    let data = Bytes::from(vec![7; 9 << 20]);
    a.peers.send(vec![append(a.id, b.id, 1, data.clone()), append(a.id, b.id, 2, data.clone())]);
    for index in [1, 2] {
        let message = b.next_message().await;
        assert_eq!(message.entries[0].index(), index);
        assert!(*message.entries[0].data() == data);
    }
}

#[tokio::test]
async fn idle_streams_stay_open() {
    let (a, b) = pair().await;
    let since = a.peers.active_since(b.id).unwrap();
    // Longer than the silence after which a stream is given up.
    tokio::time::sleep(timing().read * 2).await;
    assert_eq!(a.peers.active_since(b.id), Some(since));
    assert_eq!(a.peers.metrics().of(b.id).disconnected.get(), 0);
    assert_eq!(a.peers.active_peers(), 1);
    assert!(a.peers.metrics().of(b.id).round_trip_seconds.count() > 3);
}

#[tokio::test]
async fn lost_streams_are_opened_again() {
    let (mut a, mut b) = pair().await;
    b.stop_serving().await;
    until("a notices", || a.peers.active_since(b.id).is_none()).await;
    until("a's own port serves b still", || a.peers.is_streaming(b.id)).await;
    b.serve_again().await;
    connected(&a, &b).await;
    b.peers.send(vec![message(MessageType::MsgHeartbeat, b.id, a.id)]);
    assert_eq!(a.next_message().await.from(), b.id);
    a.peers.send(vec![message(MessageType::MsgHeartbeatResp, a.id, b.id)]);
    assert_eq!(b.next_message().await.from(), a.id);
}

#[tokio::test]
async fn a_member_that_moves_is_found_at_its_new_urls() {
    let (a, mut b) = pair().await;
    b.stop_serving().await;
    let dead = b.url();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    b.address = listener.local_addr().unwrap();
    drop(listener);
    b.serve_again().await;
    // One of the two works; whichever is tried first, the other follows.
    a.peers.update_peer(b.id, &[dead, b.url()]).unwrap();
    until("a reaches b", || a.peers.active_since(b.id).is_some() && b.peers.is_streaming(a.id))
        .await;
}

#[tokio::test]
async fn a_member_without_streams_is_reached_by_single_requests() {
    let (a, mut b) = (Node::start(0xa).await, Node::start(0xb).await);
    // b does not know a, so it opens no streams; it learns from requests where a is.
    a.knows(&b);
    a.peers.send(vec![message(MessageType::MsgHeartbeat, a.id, b.id)]);
    assert_eq!(b.next_message().await.r#type(), MessageType::MsgHeartbeat);
    let mut a = a;
    until("b can answer", || {
        b.peers.send(vec![message(MessageType::MsgHeartbeatResp, b.id, a.id)]);
        let answered = a.events.try_recv().ok();
        matches!(answered, Some(Event::Message(message)) if message.from() == b.id)
    })
    .await;
    assert!(!a.peers.is_streaming(b.id));
    assert_eq!(b.peers.active_peers(), 0, "a remote is no peer");
}

#[tokio::test]
async fn a_member_nobody_listens_for_is_unreachable() {
    let mut a = Node::start(0xa).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    a.peers.add_peer(0xb, &[url]).unwrap();
    a.peers.send(vec![message(MessageType::MsgHeartbeat, a.id, 0xb)]);
    let id = a
        .next(|event| match event {
            Event::Unreachable(id) => Some(id),
            _ => None,
        })
        .await;
    assert_eq!(id, 0xb);
    assert_eq!(a.peers.metrics().of(0xb).sent_failures.get(), 1);
    // Nobody, a stranger, and this member itself: dropped without a word.
    for to in [0, 0x77, a.id] {
        a.peers.send(vec![message(MessageType::MsgHeartbeat, a.id, to)]);
    }
    a.peers.add_peer(a.id, &[a.url()]).unwrap();
    assert!(a.events.try_recv().is_err());
}

#[tokio::test]
async fn a_removed_member_is_told_once() {
    let (mut a, b) = (Node::start(0xa).await, Node::start(0xb).await);
    b.host.script().removed.insert(a.id);
    a.knows(&b);
    b.knows(&a);
    let told_by = a
        .next(|event| match event {
            Event::Removed { told_by } => Some(told_by),
            _ => None,
        })
        .await;
    assert_eq!(told_by, b.id);
    tokio::time::sleep(timing().redial * 10).await;
    while let Ok(event) = a.events.try_recv() {
        assert!(!matches!(event, Event::Removed { .. }), "told twice");
    }
    assert!(!b.peers.is_streaming(a.id));
}

#[tokio::test]
async fn messages_of_removed_members_and_for_others_do_not_reach_raft() {
    let (a, mut b) = pair().await;
    b.host.script().removed.insert(0xdd);
    let send = |from, to| {
        // Straight to the port: a sender of ours would not let these out.
        let body = prost::Message::encode_to_vec(&message(MessageType::MsgHeartbeat, from, to));
        post_raft(&b, body)
    };
    assert_eq!(send(0xdd, b.id).await, 500);
    assert_eq!(send(a.id, 0x99).await, 500);
    assert_eq!(send(a.id, b.id).await, 204);
    assert_eq!(b.next_message().await.from(), a.id);
    b.host.script().busy = true;
    let body = prost::Message::encode_to_vec(&message(MessageType::MsgHeartbeat, a.id, b.id));
    assert_eq!(post_raft(&b, body).await, 500);
    let snapshot = prost::Message::encode_to_vec(&snapshot_message(a.id, b.id, 4));
    b.host.script().busy = false;
    assert_eq!(post_raft(&b, snapshot).await, 500);
    assert_eq!(post_raft(&b, b"\xff\xff\xff".to_vec()).await, 400);
    assert!(b.events.try_recv().is_err());
}

async fn post_raft(node: &Node, body: Vec<u8>) -> u16 {
    let mut request = format!(
        "POST /raft HTTP/1.1\r\nHost: x\r\nX-Server-Version: 3.7.3\r\n\
         X-Min-Cluster-Version: 3.0.0\r\nX-Etcd-Cluster-ID: {CLUSTER:x}\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend(body);
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer[9..12].parse().unwrap()
}

/// Asks for a stream as member `from` would.
async fn open_stream(node: &Node, kind: &str, from: u64) -> TcpStream {
    let request = format!(
        "GET /raft/stream/{kind}/{from:x} HTTP/1.1\r\nHost: x\r\nX-Server-From: {from:x}\r\n\
         X-Server-Version: 3.7.3\r\nX-Min-Cluster-Version: 3.0.0\r\n\
         X-Etcd-Cluster-ID: {CLUSTER:x}\r\nX-Raft-To: {:x}\r\n\r\n",
        node.id
    );
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    stream
}

#[tokio::test]
async fn a_new_stream_replaces_the_old_one() {
    let a = Node::start(0xa).await;
    a.peers.add_peer(0xb, &["http://127.0.0.1:1"]).unwrap();
    let mut first = open_stream(&a, "message", 0xb).await;
    let mut second = open_stream(&a, "message", 0xb).await;
    // In order, as the last chunk of a body.
    read_until(&mut first, b"0\r\n\r\n").await;
    a.peers.send(vec![message(MessageType::MsgVote, a.id, 0xb)]);
    read_until(&mut second, &[8, 5, 16, 0xb, 24, 0xa, 32, 3]).await;
}

async fn read_until(stream: &mut TcpStream, wanted: &[u8]) {
    let mut seen = Vec::new();
    while !seen.windows(wanted.len()).any(|window| window == wanted) {
        let mut piece = [0; 512];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut piece)).await.unwrap().unwrap();
        assert!(read > 0);
        seen.extend_from_slice(&piece[..read]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_reads_nothing_costs_a_bounded_queue_and_no_time() {
    let mut a = Node::start(0xa).await;
    a.peers.add_peer(0xb, &["http://127.0.0.1:1"]).unwrap();
    let _app = open_stream(&a, "msgapp", 0xb).await;
    let _other = open_stream(&a, "message", 0xb).await;
    until("streams are open", || a.peers.is_streaming(0xb)).await;
    let data = Bytes::from(vec![1; 16 << 10]);
    let started = Instant::now();
    for index in 1..=12_000 {
        a.peers.send(vec![append(a.id, 0xb, index, data.clone())]);
    }
    let took = started.elapsed();
    assert!(took < Duration::from_secs(10), "send took {took:?}");
    let lost = a.next(|event| if event == Event::Unreachable(0xb) { Some(()) } else { None });
    lost.await;
    let failures = a.peers.metrics().of(0xb).sent_failures.get();
    assert!(failures > 1000, "{failures} of 12000 dropped");
    until("the stalled stream is given up", || !a.peers.is_streaming(0xb)).await;
}

#[tokio::test]
async fn a_peer_that_never_answers_is_dialled_again() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let mut timing = timing();
    timing.read = Duration::from_millis(200);
    let a = Node::start_with(0xa, CLUSTER, timing).await;
    a.peers.add_peer(0xb, &[url]).unwrap();
    let mut kept = Vec::new();
    for _ in 0..6 {
        let (stream, _) = tokio::time::timeout(PATIENCE, silent.accept()).await.unwrap().unwrap();
        kept.push(stream);
    }
    assert_eq!(a.peers.active_since(0xb), None);
}

/// A member that answers each request for a stream with `body`, and then as `after` says.
async fn liar(body: &'static [u8], close: bool) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = Arc::new(AtomicUsize::new(0));
    let count = served.clone();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 2048];
            let read = stream.read(&mut request).await.unwrap_or(0);
            if !request[..read].starts_with(b"GET /raft/stream/") {
                continue;
            }
            let head = "HTTP/1.1 200 OK\r\nX-Server-Version: 3.7.3\r\n\
                        X-Etcd-Cluster-ID: c1\r\nTransfer-Encoding: chunked\r\n\r\n";
            let chunk = format!("{head}{:x}\r\n", body.len());
            let _ = stream.write_all(chunk.as_bytes()).await;
            let _ = stream.write_all(body).await;
            let _ = stream.write_all(b"\r\n").await;
            count.fetch_add(1, Ordering::Relaxed);
            if !close {
                kept.push(stream);
            }
        }
    });
    (url, served)
}

#[tokio::test]
async fn garbage_ends_its_own_stream_only() {
    let (mut a, b) = pair().await;
    let (url, served) = liar(&[0xff; 300], false).await;
    a.peers.add_peer(0xe, &[url]).unwrap();
    until("garbage was tried again", || served.load(Ordering::Relaxed) > 6).await;
    assert!(a.peers.metrics().of(0xe).received_failures.get() > 0);
    assert!(a.peers.is_streaming(b.id));
    assert_eq!(a.peers.metrics().of(b.id).disconnected.get(), 0);
    b.peers.send(vec![message(MessageType::MsgHeartbeat, b.id, a.id)]);
    assert_eq!(a.next_message().await.from(), b.id);
}

#[tokio::test]
async fn a_stream_that_falls_silent_or_breaks_is_dialled_again() {
    let mut timing = timing();
    timing.read = Duration::from_millis(300);
    let a = Node::start_with(0xa, CLUSTER, timing).await;
    // A frame that claims more than it brings, then silence; and the same, then the end.
    const HALF: &[u8] = &[0, 0, 0, 0, 0, 0, 1, 0, 8];
    for (id, close) in [(0xe, false), (0xf, true)] {
        let (url, served) = liar(HALF, close).await;
        a.peers.add_peer(id, &[url]).unwrap();
        until("dialled again", || served.load(Ordering::Relaxed) > 4).await;
    }
    assert_eq!(a.peers.active_since(0xe), None);
}

#[tokio::test]
async fn a_paused_peer_hears_and_says_nothing() {
    let (mut a, mut b) = pair().await;
    a.peers.pause(b.id);
    a.peers.send(vec![message(MessageType::MsgHeartbeat, a.id, b.id)]);
    b.peers.send(vec![message(MessageType::MsgHeartbeat, b.id, a.id)]);
    let received = a.peers.metrics().of(b.id);
    until("the message came and was dropped", || received.received_bytes.get() > 0).await;
    a.peers.resume(b.id);
    a.peers.send(vec![message(MessageType::MsgVote, a.id, b.id)]);
    b.peers.send(vec![message(MessageType::MsgVote, b.id, a.id)]);
    assert_eq!(b.next_message().await.r#type(), MessageType::MsgVote);
    assert_eq!(a.next_message().await.r#type(), MessageType::MsgVote);
}

#[tokio::test]
async fn unfit_messages_are_not_sent() {
    let (mut a, mut b) = pair().await;
    a.peers.send(vec![
        message(MessageType::MsgHup, a.id, b.id),
        message(MessageType::MsgProp, a.id, b.id),
        message(MessageType::MsgStorageAppend, a.id, b.id),
        snapshot_message(a.id, b.id, 7),
        message(MessageType::MsgTimeoutNow, a.id, b.id),
    ]);
    assert_eq!(b.next_message().await.r#type(), MessageType::MsgTimeoutNow);
    let report = a.next(|event| match event {
        Event::SnapshotSent { to, delivered } => Some((to, delivered)),
        _ => None,
    });
    assert_eq!(report.await, (b.id, false));
}

#[tokio::test]
async fn removed_peers_are_gone_and_stopped_peers_silent() {
    let (a, b) = pair().await;
    a.peers.remove_peer(b.id);
    assert_eq!(a.peers.active_since(b.id), None);
    assert_eq!(a.peers.metrics().of(b.id).active.get(), 0);
    until("b's streams to a end", || !b.peers.is_streaming(a.id)).await;
    a.peers.add_peer(b.id, &[b.url()]).unwrap();
    connected(&a, &b).await;
    a.peers.remove_all_peers();
    assert_eq!(a.peers.active_peers(), 0);
    a.peers.add_peer(b.id, &[b.url()]).unwrap();
    connected(&a, &b).await;
    a.peers.stop();
    until("b notices", || !b.peers.is_streaming(a.id)).await;
    a.peers.add_peer(b.id, &[b.url()]).unwrap();
    a.peers.send(vec![message(MessageType::MsgHeartbeat, a.id, b.id)]);
    assert_eq!(a.peers.active_peers(), 0);
    until("stopped peers hold no member", || Arc::strong_count(&a.host) == 1).await;
}
