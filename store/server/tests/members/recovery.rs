//! Starts that are out of the ordinary: forced, interrupted, refused.

use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{Builder, ClusterState, EngineKind, InitialCluster, StartError};

use crate::common::{Cluster, bind, config, open, put, value};

#[tokio::test(flavor = "multi_thread")]
async fn one_member_of_a_lost_cluster_goes_on_alone() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    for i in 0..20 {
        cluster.core("m1").put(put(&format!("k{i}"), "v")).await.unwrap();
    }
    cluster.assert_equal().await;
    let before = cluster.core("m2").hash_kv(pb::HashKvRequest::default()).await.unwrap();
    for name in ["m1", "m2", "m3"] {
        cluster.stop(name).await;
    }
    let mut forced = cluster.config("m2", ClusterState::New);
    forced.force_new_cluster = true;
    let store = open(forced).await;
    assert_eq!(
        store.core().member_list(pb::MemberListRequest::default()).await.unwrap().members.len(),
        1
    );
    let after = store.core().hash_kv(pb::HashKvRequest::default()).await.unwrap();
    assert_eq!(after.hash, before.hash);
    store.core().put(put("alone", "1")).await.unwrap();
    store.shutdown().await;
    // And it stays so.
    let store = open(cluster.config("m2", ClusterState::New)).await;
    assert_eq!(value(store.core(), "alone").await.as_deref(), Some("1"));
    assert_eq!(store.core().status().leader, store.core().identity().member_id);
    store.shutdown().await;
}

#[tokio::test]
async fn a_birth_that_was_interrupted_is_finished() {
    use mainstay_log::{Metadata, Options, OsFiles, Wal};
    let dir = tempfile::tempdir().unwrap();
    let store = open(config(dir.path(), EngineKind::Memory)).await;
    let identity = store.core().identity();
    store.shutdown().await;
    let interrupted = tempfile::tempdir().unwrap();
    let metadata = Metadata { node_id: identity.member_id, cluster_id: identity.cluster_id };
    let wal = interrupted.path().join("member/wal");
    std::fs::create_dir_all(interrupted.path().join("member")).unwrap();
    drop(Wal::create(std::sync::Arc::new(OsFiles), &wal, metadata, Options::default()).unwrap());
    let store = open(config(interrupted.path(), EngineKind::Memory)).await;
    assert_eq!(store.core().identity(), identity);
    store.core().put(put("a", "1")).await.unwrap();
    store.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lost_its_disk_is_not_born_again() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    let lost = cluster.follower().await;
    let id = cluster.core(&lost).identity().member_id;
    cluster.stop(&lost).await;
    std::fs::remove_dir_all(cluster.path(&lost)).unwrap();
    for state in [ClusterState::New, ClusterState::Existing] {
        let Err(error) = Builder::new(cluster.config(&lost, state)).open().await else {
            panic!("it started")
        };
        assert!(
            matches!(error, StartError::AlreadyBootstrapped { member } if member == id),
            "{error}"
        );
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_joins_must_have_been_added_and_must_reach_somebody() {
    let cluster = Cluster::start(1, EngineKind::Memory, |_| {}).await;
    let member = cluster.config("m1", ClusterState::Existing);
    let dir = tempfile::tempdir().unwrap();
    let mut stranger = config(dir.path(), EngineKind::Memory);
    let url = bind("http://127.0.0.1:0").0;
    stranger.name = "m2".into();
    stranger.advertise_peer_urls = vec![url.clone()];
    stranger.initial_cluster_state = ClusterState::Existing;
    let list = format!("m1={},m2={url}", member.advertise_peer_urls[0]);
    stranger.initial_cluster = InitialCluster::parse(&list).unwrap();
    let Err(error) = Builder::new(stranger.clone()).open().await else { panic!("it started") };
    assert!(matches!(error, StartError::ClusterDiffers { .. }), "{error}");
    cluster.shutdown().await;
    let Err(error) = Builder::new(stranger).open().await else { panic!("it started") };
    assert!(matches!(error, StartError::NoMembersAnswer(_)), "{error}");
}

#[tokio::test]
async fn the_log_may_live_elsewhere() {
    let (dir, log) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut elsewhere = config(dir.path(), EngineKind::Memory);
    elsewhere.wal_dir = Some(log.path().join("wal"));
    let store = open(elsewhere.clone()).await;
    store.core().put(put("a", "1")).await.unwrap();
    store.shutdown().await;
    assert!(!dir.path().join("member/wal").exists());
    let store = open(elsewhere).await;
    assert_eq!(value(store.core(), "a").await.as_deref(), Some("1"));
    store.shutdown().await;
}

#[cfg(feature = "rocks")]
mod on_disk {
    use std::path::Path;

    use super::*;
    use crate::common::{copy_dir, durable_engine, local, until};

    fn segments(dir: &Path) -> usize {
        std::fs::read_dir(dir.join("member/wal"))
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "wal"))
            .count()
    }

    #[tokio::test]
    async fn an_engine_that_is_gone_is_made_again_from_a_whole_log() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        store.core().put(put("a", "1")).await.unwrap();
        store.shutdown().await;
        std::fs::remove_dir_all(dir.path().join("member/mainstay")).unwrap();
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        assert_eq!(value(store.core(), "a").await.as_deref(), Some("1"));
        store.shutdown().await;
    }

    /// A member that is alone answers reads without asking anybody, but not before it has replayed
    /// what it had acknowledged in its former life.
    #[tokio::test]
    async fn reads_wait_for_the_replay() {
        let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        store.core().put(put("flushed", "1")).await.unwrap();
        store.shutdown().await;
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        for i in 0..500 {
            store.core().put(put("counter", &i.to_string())).await.unwrap();
        }
        copy_dir(dir.path(), crashed.path());
        store.shutdown().await;
        let restarted = config(crashed.path(), durable_engine().unwrap());
        let store = Builder::new(restarted).open().await.unwrap();
        assert_eq!(value(store.core(), "counter").await.as_deref(), Some("499"));
        store.shutdown().await;
    }

    #[tokio::test]
    async fn an_engine_behind_the_beginning_of_the_log_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut configured = config(dir.path(), durable_engine().unwrap());
        configured.snapshot_count = 20;
        configured.snapshot_catchup_entries = 5;
        configured.max_wals = 1;
        configured.quota_backend_bytes = -1;
        let store = open(configured.clone()).await;
        // More than two segments of 64 MB, so that the first ones go.
        let value = "v".repeat(1 << 20);
        until("segments were released", async || {
            for i in 0..16 {
                store.core().put(put(&format!("k{i}"), &value)).await.unwrap();
            }
            let first = dir.path().join("member/wal/0000000000000000-0000000000000000.wal");
            !first.exists()
        })
        .await;
        assert!(segments(dir.path()) <= 3);
        store.shutdown().await;
        std::fs::remove_dir_all(dir.path().join("member/mainstay")).unwrap();
        let Err(error) = Builder::new(configured).open().await else { panic!("it started") };
        assert!(matches!(error, StartError::EngineBehind { applied: 0, .. }), "{error}");
    }

    /// A crash after the log took over the leader's snapshot, before the engine was switched.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_installation_that_was_interrupted_is_finished() {
        let adjust = |config: &mut mainstay_store::StoreConfig| {
            config.snapshot_catchup_entries = 10;
        };
        let mut cluster = Cluster::start(3, durable_engine().unwrap(), adjust).await;
        let lagging = cluster.follower().await;
        cluster.core(&lagging).put(put("before", "1")).await.unwrap();
        cluster.stop(&lagging).await;
        let leader = cluster.leader().await;
        for i in 0..100 {
            cluster.core(&leader).put(put(&format!("k{i}"), "v")).await.unwrap();
        }
        cluster.restart(&lagging).await;
        until("it catches up", async || local(cluster.core(&lagging), "k99").await.is_some()).await;
        let home = cluster.path(&lagging).join("member/mainstay");
        let current = std::fs::read_to_string(home.join("CURRENT")).unwrap();
        assert_ne!(current, "engine-0000000000000000");
        cluster.stop(&lagging).await;
        // As it was before the switch: the old engine is current, the new one is there.
        let crashed = tempfile::tempdir().unwrap();
        copy_dir(&cluster.path(&lagging), crashed.path());
        let home = crashed.path().join("member/mainstay");
        std::fs::create_dir_all(home.join("engine-0000000000000000")).unwrap();
        std::fs::write(home.join("CURRENT"), "engine-0000000000000000").unwrap();
        let mut config = cluster.config(&lagging, ClusterState::New);
        config.data_dir = crashed.path().to_owned();
        let store = Builder::new(config).open().await.unwrap();
        assert_eq!(std::fs::read_to_string(home.join("CURRENT")).unwrap(), current);
        assert!(!home.join("engine-0000000000000000").exists());
        until("it is as it was", async || local(store.core(), "k99").await.is_some()).await;
        store.shutdown().await;
        cluster.shutdown().await;
    }
}
