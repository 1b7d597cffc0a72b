//! One member in this process, without any socket.

use std::time::Duration;

use crate::common::{config, copy_dir, durable_engine, get, local, open, put, until, value};
use bytes::Bytes;
use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{
    Builder, Code, EngineKind, Error, InitialCluster, StartError, Store, StoreConfig,
};

async fn memory() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    (dir, store)
}

#[tokio::test]
async fn puts_and_gets_with_full_headers() {
    let (_dir, store) = memory().await;
    let core = store.core();
    let header = core.put(put("a", "1")).await.unwrap().header.unwrap();
    assert_eq!(header.revision, 2);
    assert_eq!(header.member_id, core.identity().member_id);
    assert_eq!(header.cluster_id, core.identity().cluster_id);
    assert!(header.raft_term >= 2);
    assert_eq!(value(core, "a").await.as_deref(), Some("1"));
    let error = core.put(put("", "1")).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert_eq!(error.text(), "etcdserver: key is not provided");
    let big = "x".repeat(2 << 20);
    assert_eq!(core.put(put("big", &big)).await.unwrap_err(), Error::RequestTooLarge);
    let status = core.status();
    assert_eq!(status.leader, header.member_id);
    assert_eq!(status.version, "3.7.3");
    let list = core.member_list(pb::MemberListRequest::default()).await.unwrap();
    assert_eq!(list.members[0].name, "default");
    assert_eq!(list.header.unwrap().revision, 0);
    store.shutdown().await;
}

#[tokio::test]
async fn the_cluster_version_is_set() {
    let (_dir, store) = memory().await;
    until("a cluster version", async || store.core().cluster_version().is_some()).await;
    assert_eq!(store.core().cluster_version().unwrap(), "3.7.0");
    assert_eq!(store.core().storage_version().unwrap(), "3.7.0");
    store.shutdown().await;
}

#[tokio::test]
async fn many_writers_at_once_get_their_own_answers() {
    let (_dir, store) = memory().await;
    let mut tasks = Vec::new();
    for writer in 0..32 {
        let core = store.core().clone();
        tasks.push(tokio::spawn(async move {
            let mut revisions = Vec::new();
            for i in 0..50 {
                let key = format!("w{writer}-{i}");
                let mut request = put(&key, &key);
                request.prev_kv = true;
                let response = core.put(request).await.unwrap();
                assert!(response.prev_kv.is_none());
                revisions.push(response.header.unwrap().revision);
                assert_eq!(value(&core, &key).await.as_deref(), Some(&*key));
            }
            revisions
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all.sort_unstable();
    assert_eq!(all, (2..1602).collect::<Vec<_>>());
    store.shutdown().await;
}

#[tokio::test]
async fn a_restart_has_everything_that_was_acknowledged() {
    for engine in [Some(EngineKind::Memory), durable_engine()].into_iter().flatten() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(config(dir.path(), engine.clone())).await;
        for i in 0..100 {
            store.core().put(put(&format!("k{i}"), "v")).await.unwrap();
        }
        let identity = store.core().identity();
        store.shutdown().await;
        let store = open(config(dir.path(), engine)).await;
        assert_eq!(store.core().identity(), identity);
        let all = pb::RangeRequest { range_end: "l".into(), ..get("k") };
        let response = store.core().range(all).await.unwrap();
        assert_eq!(response.count, 100);
        assert_eq!(response.header.unwrap().revision, 101);
        store.shutdown().await;
    }
}

#[tokio::test]
async fn a_transaction_as_deep_as_allowed_is_applied_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    let mut request = pb::request_op::Request::RequestPut(put("deep", "v"));
    let mut txn = pb::TxnRequest::default();
    for _ in 0..128 {
        txn = pb::TxnRequest {
            success: vec![pb::RequestOp { request: Some(request) }],
            ..Default::default()
        };
        request = pb::request_op::Request::RequestTxn(txn.clone());
    }
    store.core().txn(txn).await.unwrap();
    store.shutdown().await;
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    assert_eq!(store.core().range(get("deep")).await.unwrap().kvs.len(), 1);
    store.shutdown().await;
}

#[tokio::test]
async fn a_crash_loses_nothing_that_was_acknowledged() {
    for engine in [Some(EngineKind::Memory), durable_engine()].into_iter().flatten() {
        let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut configured = config(dir.path(), engine.clone());
        configured.snapshot_count = 100;
        let store = open(configured).await;
        for i in 0..350 {
            store.core().put(put(&format!("k{i}"), &"v".repeat(100))).await.unwrap();
        }
        let compact = pb::CompactionRequest { revision: 200, physical: false };
        store.core().compact(compact).await.unwrap();
        let before = store.core().hash_kv(pb::HashKvRequest::default()).await.unwrap();
        // What a killed process leaves: nothing is flushed or closed. (A copy that is made while
        // the engine writes files would be a mixture, which no crash leaves; so it waits.)
        tokio::time::sleep(Duration::from_millis(300)).await;
        copy_dir(dir.path(), crashed.path());
        let again = open(config(crashed.path(), engine)).await;
        let after = again.core().hash_kv(pb::HashKvRequest::default()).await.unwrap();
        assert_eq!(after.hash, before.hash);
        assert_eq!(value(again.core(), "k349").await.unwrap(), "v".repeat(100));
        again.shutdown().await;
        store.shutdown().await;
    }
}

#[tokio::test]
async fn hashes_are_those_of_real_servers() {
    let (_dir, store) = memory().await;
    let core = store.core();
    for (key, value) in [("k0", "v0"), ("k1", "v1"), ("k2", "v2"), ("k0", "v3"), ("k1", "v4")] {
        core.put(put(key, value)).await.unwrap();
    }
    let delete =
        |key: &'static str| pb::DeleteRangeRequest { key: key.into(), ..Default::default() };
    core.delete_range(delete("k1")).await.unwrap();
    core.put(put("a", "b")).await.unwrap();
    core.put(put("k1", "again")).await.unwrap();
    core.delete_range(delete("k2")).await.unwrap();
    core.put(put("z", "1")).await.unwrap();
    let hash = |revision| core.hash_kv(pb::HashKvRequest { revision });
    assert_eq!(hash(0).await.unwrap().hash, 4_234_103_437);
    core.compact(pb::CompactionRequest { revision: 7, physical: true }).await.unwrap();
    let compacted = hash(0).await.unwrap();
    assert_eq!((compacted.hash, compacted.compact_revision), (934_471_728, 7));
    assert_eq!(hash(6).await.unwrap_err(), Error::Compacted);
    store.shutdown().await;
}

#[tokio::test]
async fn the_hash_of_a_compaction_is_kept() {
    let (_dir, store) = memory().await;
    let core = store.core();
    let compact = |revision| pb::CompactionRequest { revision, physical: true };
    core.put(put("a", "1")).await.unwrap();
    core.compact(compact(2)).await.unwrap();
    core.put(put("a", "2")).await.unwrap();
    core.delete_range(pb::DeleteRangeRequest { key: "a".into(), ..Default::default() })
        .await
        .unwrap();
    core.compact(compact(4)).await.unwrap();
    let kept = core.hash_kv(pb::HashKvRequest { revision: 4 }).await.unwrap();
    assert_eq!((kept.hash, kept.compact_revision, kept.hash_revision), (573_317_793, 2, 4));
    store.shutdown().await;
}

#[tokio::test]
async fn leases_expire_not_early_and_take_their_keys() {
    let (_dir, store) = memory().await;
    let core = store.core();
    let grant = pb::LeaseGrantRequest { id: 0, ttl: 1 };
    let granted = core.lease_grant(grant).await.unwrap();
    // Raised to the shortest time, which is 1 s with these short elections.
    assert_eq!(granted.ttl, 1);
    let start = std::time::Instant::now();
    core.put(pb::PutRequest { lease: granted.id, ..put("leased", "v") }).await.unwrap();
    let ask = pb::LeaseTimeToLiveRequest { id: granted.id, keys: true };
    let left = core.lease_time_to_live(ask).await.unwrap();
    assert_eq!((left.granted_ttl, left.keys), (1, vec![Bytes::from("leased")]));
    let renewed =
        core.lease_keep_alive(pb::LeaseKeepAliveRequest { id: granted.id }).await.unwrap();
    assert_eq!(renewed.ttl, 1);
    until("the key goes", async || local(core, "leased").await.is_none()).await;
    assert!(start.elapsed() >= Duration::from_secs(1), "after {:?}", start.elapsed());
    let gone = core.lease_keep_alive(pb::LeaseKeepAliveRequest { id: granted.id }).await.unwrap();
    assert_eq!(gone.ttl, 0);
    assert_eq!(core.lease_time_to_live(ask).await.unwrap().ttl, -1);
    assert!(core.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().leases.is_empty());
    let unknown = core.lease_revoke(pb::LeaseRevokeRequest { id: 7 }).await.unwrap_err();
    assert_eq!(unknown, Error::LeaseNotFound);
    store.shutdown().await;
}

#[tokio::test]
async fn leases_survive_a_restart_with_their_whole_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    let grant = pb::LeaseGrantRequest { id: 77, ttl: 100 };
    store.core().lease_grant(grant).await.unwrap();
    store.shutdown().await;
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    let ask = pb::LeaseTimeToLiveRequest { id: 77, keys: false };
    let mut left = None;
    until("the new leader knows the lease", async || {
        left = store.core().lease_time_to_live(ask).await.ok();
        left.is_some()
    })
    .await;
    assert!(left.unwrap().ttl >= 99);
    store.shutdown().await;
}

fn watch(key: &str, start_revision: i64) -> mainstay_watch::CreateRequest {
    let key = key.to_owned().into();
    pb::WatchCreateRequest { key, start_revision, ..Default::default() }.into()
}

#[tokio::test]
async fn watches_see_the_past_and_then_live_events() {
    let (_dir, store) = memory().await;
    let core = store.core();
    core.put(put("a", "1")).await.unwrap();
    core.put(put("b", "1")).await.unwrap();
    let (mut requests, mut responses) = core.watch_stream();
    requests.create(watch("a", 2)).await.unwrap();
    let mut next = async || responses.recv().await.unwrap().to_message();
    let created = next().await;
    assert!(created.created);
    assert_eq!(created.header.unwrap().cluster_id, core.identity().cluster_id);
    let past = next().await;
    assert_eq!(past.events[0].kv.as_ref().unwrap().mod_revision, 2);
    let written = core.put(put("a", "2")).await.unwrap().header.unwrap().revision;
    let live = next().await;
    assert_eq!(live.events[0].kv.as_ref().unwrap().value, "2");
    assert_eq!(live.header.unwrap().revision, written);
    core.compact(pb::CompactionRequest { revision: 3, physical: false }).await.unwrap();
    requests.create(watch("a", 2)).await.unwrap();
    assert!(next().await.created);
    let canceled = next().await;
    assert_eq!((canceled.canceled, canceled.compact_revision), (true, 3));
    store.shutdown().await;
}

#[tokio::test]
async fn transactions_and_streams_of_ranges() {
    let (_dir, store) = memory().await;
    let core = store.core();
    for i in 0..200 {
        core.put(put(&format!("k{i:03}"), "v")).await.unwrap();
    }
    let range = pb::RangeRequest { range_end: "l".into(), ..get("k") };
    let mut stream = core.range_stream(range.clone()).await.unwrap();
    let (mut keys, mut last) = (0, None);
    while let Some(chunk) = stream.recv().await {
        let chunk = chunk.unwrap();
        keys += chunk.kvs.len();
        last = Some(chunk);
    }
    let last = last.unwrap();
    assert_eq!((keys, last.count, last.header.unwrap().revision), (200, 200, 201));
    let op = pb::RequestOp { request: Some(pb::request_op::Request::RequestRange(range)) };
    let txn = pb::TxnRequest { success: vec![op], ..Default::default() };
    let response = core.txn(txn).await.unwrap();
    assert!(response.succeeded);
    assert_eq!(response.header.unwrap().revision, 201);
    store.shutdown().await;
}

#[tokio::test]
async fn a_full_store_refuses_writes_until_it_is_disarmed() {
    let dir = tempfile::tempdir().unwrap();
    let mut configured = config(dir.path(), EngineKind::Memory);
    configured.quota_backend_bytes = 64 << 10;
    let store = open(configured).await;
    let core = store.core();
    let mut refused = None;
    for i in 0..200 {
        if let Err(error) = core.put(put(&format!("k{i}"), &"v".repeat(1024))).await {
            refused = Some(error);
            break;
        }
    }
    assert_eq!(refused, Some(Error::NoSpace));
    let alarms = core.alarms();
    assert_eq!(alarms[0].alarm, pb::AlarmType::Nospace as i32);
    assert_eq!(alarms[0].member_id, core.identity().member_id);
    let errors = core.status().errors;
    assert_eq!(errors, [format!("memberID:{} alarm:NOSPACE", core.identity().member_id)]);
    let delete = pb::DeleteRangeRequest { key: "k".into(), range_end: "l".into(), prev_kv: false };
    core.delete_range(delete).await.unwrap();
    store.shutdown().await;
}

#[tokio::test]
async fn snapshots_are_whole_databases_with_their_hash() {
    use mainstay_formats::bbolt::Reader;
    let (_dir, store) = memory().await;
    let core = store.core();
    for i in 0..500 {
        core.put(put(&format!("k{i}"), &"v".repeat(300))).await.unwrap();
    }
    let mut stream = core.snapshot().await.unwrap();
    let (mut file, mut left) = (Vec::new(), Vec::new());
    while let Some(message) = stream.recv().await {
        let message = message.unwrap();
        left.push(message.remaining_bytes);
        file.extend_from_slice(&message.blob);
    }
    assert!(left.is_sorted_by(|a, b| a >= b));
    assert_eq!(file.len() % 512, 32);
    mainstay_formats::snapshot::verify(&file).unwrap();
    let reader = Reader::open(Bytes::from(file)).unwrap();
    reader.check().unwrap();
    let keys = reader.bucket(b"key").unwrap().unwrap();
    let mut rows = 0;
    reader
        .for_each(&keys, |_, _| {
            rows += 1;
            Ok::<_, mainstay_formats::bbolt::ReadError>(())
        })
        .unwrap();
    assert_eq!(rows, 500);
    store.shutdown().await;
}

#[tokio::test]
async fn changes_of_members_are_checked() {
    let (_dir, store) = memory().await;
    let core = store.core();
    let own = core.identity().member_id;
    let remove = core.member_remove(pb::MemberRemoveRequest { id: own }).await.unwrap_err();
    assert_eq!(remove, Error::NotEnoughStartedMembers);
    assert_eq!(remove.code(), Code::Unknown);
    let bad = pb::MemberAddRequest { peer_ur_ls: vec!["localhost".into()], is_learner: false };
    assert_eq!(core.member_add(bad).await.unwrap_err(), Error::MemberBadUrls);
    let learner = |port| pb::MemberAddRequest {
        peer_ur_ls: vec![format!("http://127.0.0.1:{port}")],
        is_learner: true,
    };
    let added = core.member_add(learner(1)).await.unwrap();
    assert_eq!(added.members.len(), 2);
    assert_eq!(core.member_add(learner(2)).await.unwrap_err(), Error::TooManyLearners);
    let id = added.member.unwrap().id;
    let promote = core.member_promote(pb::MemberPromoteRequest { id }).await.unwrap_err();
    assert_eq!(promote, Error::LearnerNotReady);
    core.member_remove(pb::MemberRemoveRequest { id }).await.unwrap();
    let again = core.member_remove(pb::MemberRemoveRequest { id }).await.unwrap_err();
    assert_eq!(again, Error::MemberNotFound);
    let update = |id| pb::MemberUpdateRequest { id, peer_ur_ls: Vec::new() };
    assert_eq!(core.member_update(update(own)).await.unwrap_err(), Error::MemberBadUrls);
    assert_eq!(core.member_update(update(id)).await.unwrap_err(), Error::MemberNotFound);
    store.shutdown().await;
}

#[tokio::test]
async fn downgrades_are_checked_and_can_be_taken_back() {
    use pb::downgrade_request::DowngradeAction;
    let (_dir, store) = memory().await;
    let core = store.core();
    until("a cluster version", async || core.cluster_version().is_some()).await;
    let ask = async |action: DowngradeAction, version: &str| {
        let request = pb::DowngradeRequest { action: action as i32, version: version.into() };
        core.downgrade(request).await
    };
    let validated = ask(DowngradeAction::Validate, "3.6").await.unwrap();
    assert_eq!(validated.version, "3.7");
    let wrong = ask(DowngradeAction::Validate, "3.5").await.unwrap_err();
    assert_eq!(wrong, Error::InvalidDowngradeTargetVersion);
    let format = ask(DowngradeAction::Validate, "x").await.unwrap_err();
    assert_eq!(format, Error::WrongDowngradeVersionFormat);
    ask(DowngradeAction::Enable, "3.6.0").await.unwrap();
    assert!(core.status().downgrade_info.unwrap().enabled);
    let twice = ask(DowngradeAction::Enable, "3.6.0").await;
    assert!(twice.is_err(), "{twice:?}");
    ask(DowngradeAction::Cancel, "").await.unwrap();
    assert!(!core.status().downgrade_info.unwrap().enabled);
    store.shutdown().await;
}

#[tokio::test]
async fn a_stopped_store_answers_that_it_stopped() {
    let (_dir, store) = memory().await;
    let core = store.core().clone();
    store.shutdown().await;
    assert_eq!(core.put(put("a", "1")).await.unwrap_err(), Error::Stopped);
    assert_eq!(core.range(get("a")).await.unwrap_err(), Error::Stopped);
}

async fn refusal(config: StoreConfig) -> StartError {
    match Builder::new(config).open().await {
        Ok(_) => panic!("the member started"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let mut other_name = config(dir.path(), EngineKind::Memory);
    other_name.initial_cluster = InitialCluster::parse("a=http://localhost:2380").unwrap();
    let error = refusal(other_name).await.to_string();
    assert!(error.contains("couldn't find local name \"default\""), "{error}");

    let mut file_in_the_way = config(dir.path(), EngineKind::Memory);
    std::fs::write(dir.path().join("file"), "").unwrap();
    file_in_the_way.data_dir = dir.path().join("file");
    let error = refusal(file_in_the_way).await;
    assert!(matches!(error, StartError::NotADirectory { .. }), "{error}");
    for below in ["member", "member/wal", "member/mainstay", "member/snap"] {
        let data = dir.path().join(below.replace('/', "-"));
        let file = data.join(below);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "").unwrap();
        let error = refusal(config(&data, EngineKind::Memory)).await;
        let StartError::NotADirectory { in_the_way, .. } = error else { panic!("{error}") };
        assert_eq!(in_the_way, file);
    }
    let nowhere = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("nowhere"), &nowhere).unwrap();
    let error = refusal(config(&nowhere, EngineKind::Memory)).await.to_string();
    assert!(error.contains("a symbolic link that leads nowhere"), "{error}");

    let etcd = dir.path().join("etcd");
    std::fs::create_dir_all(etcd.join("member/snap")).unwrap();
    std::fs::write(etcd.join("member/snap/db"), "bbolt").unwrap();
    let error = refusal(config(&etcd, EngineKind::Memory)).await;
    assert!(error.to_string().contains("not built yet"), "{error}");
}

#[tokio::test]
async fn a_damaged_log_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    store.core().put(put("a", &"v".repeat(2000))).await.unwrap();
    store.core().put(put("b", "v")).await.unwrap();
    store.shutdown().await;
    let wal = dir.path().join("member/wal/0000000000000000-0000000000000000.wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    let at = bytes.windows(4).position(|window| window == b"vvvv").unwrap();
    bytes[at + 700] ^= 1;
    std::fs::write(&wal, bytes).unwrap();
    let error = refusal(config(dir.path(), EngineKind::Memory)).await;
    assert!(error.to_string().contains("checksum mismatch"), "{error}");
    assert!(error.to_string().contains("member remove"), "{error}");
}

#[cfg(feature = "rocks")]
mod on_disk {
    use super::*;

    #[tokio::test]
    async fn a_directory_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let engine = durable_engine().unwrap();
        let store = open(config(dir.path(), engine.clone())).await;
        let error = refusal(config(dir.path(), engine)).await.to_string();
        assert!(error.contains("in use by another process"), "{error}");
        store.shutdown().await;
    }

    #[tokio::test]
    async fn an_engine_without_its_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let engine = durable_engine().unwrap();
        let store = open(config(dir.path(), engine.clone())).await;
        store.core().put(put("a", "1")).await.unwrap();
        store.shutdown().await;
        std::fs::remove_dir_all(dir.path().join("member/wal")).unwrap();
        let error = refusal(config(dir.path(), engine)).await;
        assert!(matches!(error, StartError::LogLost { .. }), "{error}");
    }

    #[tokio::test]
    async fn the_log_is_cut_and_the_engine_carries_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut configured = config(dir.path(), durable_engine().unwrap());
        configured.snapshot_count = 50;
        let store = open(configured.clone()).await;
        for i in 0..300 {
            store.core().put(put(&format!("k{i}"), "v")).await.unwrap();
        }
        store.shutdown().await;
        // An engine that has lost what the log no longer holds cannot be continued.
        let store = open(configured.clone()).await;
        assert_eq!(value(store.core(), "k299").await.as_deref(), Some("v"));
        store.shutdown().await;
    }
}
