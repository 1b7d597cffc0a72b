//! One member in this process, without any socket: requests, restart, replay.

use std::path::Path;
use std::time::Duration;

use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{Code, EngineKind, Error, Store, StoreConfig};

fn config(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.engine = EngineKind::Memory;
    config.tick = Duration::from_millis(10);
    config
}

async fn open(dir: &Path) -> Store {
    let store = Store::open(config(dir)).await.unwrap();
    let mut ready = store.core().ready();
    let waiting = ready.wait_for(|ready| *ready);
    tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    store
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    }
}

fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

#[tokio::test]
async fn puts_and_gets_with_full_headers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let core = store.core();
    let response = core.put(put("a", "1")).await.unwrap();
    let header = response.header.unwrap();
    assert_eq!(header.revision, 2);
    assert_eq!(header.member_id, core.identity().member_id);
    assert_eq!(header.cluster_id, core.identity().cluster_id);
    assert!(header.raft_term >= 2);
    let response = core.range(get("a")).await.unwrap();
    assert_eq!(response.kvs[0].value, "1");
    assert_eq!(response.count, 1);
    let error = core.put(put("", "1")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.text().as_ref()),
        (Code::InvalidArgument, "etcdserver: key is not provided")
    );
    let big = "x".repeat(2 << 20);
    assert_eq!(core.put(put("big", &big)).await.unwrap_err(), Error::RequestTooLarge);
    let status = core.status();
    assert_eq!(status.leader, header.member_id);
    assert_eq!(status.version, "3.7.3");
    store.shutdown().await;
}

#[tokio::test]
async fn a_restart_has_everything_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    for i in 0..100 {
        store.core().put(put(&format!("k{i}"), "v")).await.unwrap();
    }
    let identity = store.core().identity();
    store.shutdown().await;
    let store = open(dir.path()).await;
    assert_eq!(store.core().identity(), identity);
    let all = pb::RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
    let response = store.core().range(all).await.unwrap();
    assert_eq!(response.count, 100);
    assert_eq!(response.header.unwrap().revision, 101);
    store.shutdown().await;
}
