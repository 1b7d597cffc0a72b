//! Streams: watches, keep-alives, snapshots, ranges in pieces, and how they end.

use mainstay_formats::bbolt::Reader;
use mainstay_formats::snapshot;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::kv_client::KvClient;
use mainstay_proto::etcdserverpb::lease_client::LeaseClient;
use mainstay_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use mainstay_proto::etcdserverpb::watch_client::WatchClient;
use mainstay_proto::etcdserverpb::watch_request::RequestUnion;
use mainstay_proto::v3lockpb::LockRequest;
use mainstay_proto::v3lockpb::lock_client::LockClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::common::{PATIENCE, Served};

async fn put(channel: &Channel, key: &str, value: &[u8]) {
    let (key, value) = (key.to_owned().into(), value.to_vec().into());
    let request = pb::PutRequest { key, value, ..Default::default() };
    KvClient::new(channel.clone()).put(request).await.unwrap();
}

fn create(key: &str, range_end: &str) -> pb::WatchRequest {
    let create = pb::WatchCreateRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..Default::default()
    };
    pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_goes_on_after_its_last_request() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let requests = tokio_stream::once(create("a", ""));
    let stream = WatchClient::new(channel.clone()).watch(requests).await;
    let mut stream = stream.unwrap().into_inner();
    assert!(within(stream.message()).await.unwrap().unwrap().created);
    put(&channel, "a", b"1").await;
    let event = within(stream.message()).await.unwrap().unwrap();
    assert_eq!(event.events[0].kv.as_ref().unwrap().value, "1");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_small_and_some_large_events_come_whole_and_in_order() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let requests = tokio_stream::once(create("\0", "\0"));
    let mut watch = WatchClient::new(channel.clone()).max_decoding_message_size(64 << 20);
    let mut stream = watch.watch(requests).await.unwrap().into_inner();
    assert!(within(stream.message()).await.unwrap().unwrap().created);
    let sizes: Vec<usize> = (0..200).map(|i| if i % 50 == 7 { 1 << 20 } else { i }).collect();
    let writing = tokio::spawn({
        let (channel, sizes) = (channel.clone(), sizes.clone());
        async move {
            for size in sizes {
                put(&channel, &format!("k{size}"), &vec![7; size]).await;
            }
        }
    });
    let mut seen = Vec::new();
    while seen.len() < sizes.len() {
        let response = within(stream.message()).await.unwrap().unwrap();
        seen.extend(response.events.into_iter().map(|e| e.kv.unwrap().value.len()));
    }
    writing.await.unwrap();
    assert_eq!(seen, sizes);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_and_waiting_calls_end_when_the_member_is_drained() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let (watches, taken) = mpsc::channel(4);
    watches.send(create("a", "")).await.unwrap();
    let watch = WatchClient::new(channel.clone()).watch(ReceiverStream::new(taken)).await;
    let mut watch = watch.unwrap().into_inner();
    assert!(within(watch.message()).await.unwrap().unwrap().created);
    let (renewals, taken) = mpsc::channel(4);
    renewals.send(pb::LeaseKeepAliveRequest { id: 5 }).await.unwrap();
    let lease =
        LeaseClient::new(channel.clone()).lease_keep_alive(ReceiverStream::new(taken)).await;
    let mut lease = lease.unwrap().into_inner();
    assert_eq!(within(lease.message()).await.unwrap().unwrap().ttl, 0);
    let mut holder = LockClient::new(channel.clone());
    holder.lock(LockRequest { name: "l".into(), lease: 0 }).await.unwrap();
    let mut waiter = holder.clone();
    let request = LockRequest { name: "l".into(), lease: 0 };
    let waiting = tokio::spawn(async move { waiter.lock(request).await });
    let mut kv = KvClient::new(channel.clone());
    let prefix =
        pb::RangeRequest { key: "l/".into(), range_end: "l0".into(), ..Default::default() };
    while kv.range(prefix.clone()).await.unwrap().into_inner().count < 2 {
        tokio::task::yield_now().await;
    }
    let stopping = tokio::spawn(served.stop());
    let stopped = (Code::Unavailable, "etcdserver: server stopped");
    assert_eq!(told(&within(watch.message()).await.unwrap_err()), stopped);
    assert_eq!(told(&within(lease.message()).await.unwrap_err()), stopped);
    assert_eq!(told(&within(waiting).await.unwrap().unwrap_err()), stopped);
    within(stopping).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_a_database_and_its_hash() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    for key in 0..50 {
        put(&channel, &format!("key{key}"), &vec![key; 4000]).await;
    }
    let mut maintenance = MaintenanceClient::new(channel);
    let mut pieces = maintenance.snapshot(pb::SnapshotRequest {}).await.unwrap().into_inner();
    let (mut file, mut left) = (Vec::new(), Vec::new());
    while let Some(piece) = within(pieces.message()).await.unwrap() {
        assert!(piece.header.is_none());
        assert_eq!(piece.version, "3.7.0");
        file.extend_from_slice(&piece.blob);
        left.push((piece.remaining_bytes, piece.blob.len()));
    }
    let content = snapshot::verify(&file).unwrap();
    assert!(content > 200_000);
    assert_eq!(left.last(), Some(&(0, 32)));
    let (largest, first) = (left.iter().map(|(_, len)| *len).max(), left[0]);
    assert_eq!((largest, first), (Some(32 << 10), (content - (32 << 10), 32 << 10)));
    file.truncate(content as usize);
    let (status, _) = snapshot::status(&Reader::open(file).unwrap()).unwrap();
    assert_eq!((status.revision, status.total_key), (51, 50));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_in_pieces_is_the_same_range() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    for key in 0..100 {
        put(&channel, &format!("key{key:03}"), b"v").await;
    }
    let mut kv = KvClient::new(channel);
    let request = pb::RangeRequest {
        key: "key".into(),
        range_end: "kez".into(),
        limit: 60,
        ..Default::default()
    };
    let whole = kv.range(request.clone()).await.unwrap().into_inner();
    let mut stream = kv.range_stream(request.clone()).await.unwrap().into_inner();
    let mut pieces = Vec::new();
    while let Some(piece) = within(stream.message()).await.unwrap() {
        pieces.push(piece.range_response.unwrap());
    }
    assert!(pieces.len() > 2);
    let last = pieces.last().unwrap();
    assert_eq!((last.header, last.more, last.count), (whole.header, true, 100));
    assert!(pieces[..pieces.len() - 1].iter().all(|p| p.header.is_none() && p.count == 0));
    let kvs: Vec<_> = pieces.into_iter().flat_map(|piece| piece.kvs).collect();
    assert_eq!(kvs, whole.kvs);
    let sorted = pb::RangeRequest { sort_order: 2, ..request };
    let status = kv.range_stream(sorted).await.unwrap_err();
    let text = "RangeStream does not support custom sort orders";
    assert_eq!(told(&status), (Code::Unimplemented, text));
    served.stop().await;
}
