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
        let home = dir.path().join("member/mainstay");
        std::fs::remove_dir_all(&home).unwrap();
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        assert_eq!(value(store.core(), "a").await.as_deref(), Some("1"));
        store.shutdown().await;
        // Or its files alone.
        std::fs::remove_dir_all(home.join("engine-0000000000000000")).unwrap();
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        assert_eq!(value(store.core(), "a").await.as_deref(), Some("1"));
        store.shutdown().await;
        std::fs::remove_file(home.join("CURRENT")).unwrap();
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        assert_eq!(value(store.core(), "a").await.as_deref(), Some("1"));
        store.shutdown().await;
    }

    /// A member that was killed before its engine was flushed for the first time: the engine alone
    /// does not tell it from one that was never born.
    #[tokio::test]
    async fn a_member_that_crashed_and_lost_its_log_is_not_born_again() {
        let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        store.core().put(put("a", "1")).await.unwrap();
        copy_dir(dir.path(), crashed.path());
        store.shutdown().await;
        let log = crashed.path().join("member/wal");
        std::fs::remove_dir_all(&log).unwrap();
        for state in [ClusterState::New, ClusterState::Existing, ClusterState::New] {
            let mut again = config(crashed.path(), durable_engine().unwrap());
            again.initial_cluster_state = state;
            let Err(error) = Builder::new(again).open().await else { panic!("it started") };
            assert!(matches!(error, StartError::LogLost { .. }), "{error}");
            let text = error.to_string();
            for part in [
                log.display().to_string(),
                crashed.path().join("member/mainstay").display().to_string(),
                "CURRENT, engine-0000000000000000".to_owned(),
                "etcdctl member remove".to_owned(),
                format!("empty the whole data directory {}", crashed.path().display()),
            ] {
                assert!(text.contains(&part), "{part} is missing in: {text}");
            }
            assert!(!log.exists());
        }
    }

    /// The same with the segment there and nothing of a member's life in it.
    #[tokio::test]
    async fn a_log_cut_to_its_head_is_no_birth_that_was_interrupted() {
        let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let store = open(config(dir.path(), durable_engine().unwrap())).await;
        store.core().put(put("a", "1")).await.unwrap();
        copy_dir(dir.path(), crashed.path());
        store.shutdown().await;
        let segment = "member/wal/0000000000000000-0000000000000000.wal";
        for dir in [&dir, &crashed] {
            let segment = dir.path().join(segment);
            std::fs::File::options().write(true).open(&segment).unwrap().set_len(100).unwrap();
            let configured = config(dir.path(), durable_engine().unwrap());
            let Err(error) = Builder::new(configured).open().await else { panic!("it started") };
            assert!(matches!(error, StartError::LogEndLost { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains(&segment.display().to_string()), "{text}");
            assert!(text.contains("etcdctl member remove"), "{text}");
        }
    }

    /// What a process leaves that is killed at each step of its first start.
    #[tokio::test]
    async fn a_birth_may_end_at_every_step() {
        let whole = tempfile::tempdir().unwrap();
        let store = open(config(whole.path(), durable_engine().unwrap())).await;
        let identity = store.core().identity();
        store.shutdown().await;
        // The log has its first entries, each engine is not there yet or has just been made.
        let steps: [fn(&Path); 5] = [
            |member| std::fs::create_dir_all(member.join("mainstay")).unwrap(),
            |member| {
                std::fs::create_dir_all(member.join("mainstay")).unwrap();
                std::fs::write(member.join("mainstay/LOCK"), "").unwrap();
                std::fs::create_dir_all(member.join("wal.tmp")).unwrap();
                std::fs::write(member.join("wal.tmp/0000000000000000-0000000000000000.wal"), "")
                    .unwrap();
            },
            first_entries,
            |member| {
                first_entries(member);
                std::fs::create_dir_all(member.join("mainstay/engine-0000000000000000")).unwrap();
            },
            |member| {
                first_entries(member);
                let home = member.join("mainstay");
                std::fs::create_dir_all(home.join("engine-0000000000000000")).unwrap();
                std::fs::write(home.join("CURRENT"), "engine-0000000000000000").unwrap();
            },
        ];
        for (number, step) in steps.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            step(&dir.path().join("member"));
            let store = open(config(dir.path(), durable_engine().unwrap())).await;
            assert_eq!(store.core().identity(), identity, "step {number}");
            store.core().put(put("a", "1")).await.unwrap();
            store.shutdown().await;
        }
    }

    /// Makes a log as a birth does.
    fn first_entries(member: &Path) {
        use mainstay_log::{LogStore as _, Metadata, Options, OsFiles, Wal};
        use mainstay_mvcc::membership::{Member, cluster_id, json, member_id};
        use mainstay_proto::raftpb::{ConfChange, ConfChangeType, Entry, EntryType, HardState};
        use prost::Message as _;
        let configured = config(member, EngineKind::Memory);
        let urls = configured.advertise_peer_urls.clone();
        let id = member_id(&urls, &configured.initial_cluster_token, None);
        let change = ConfChange {
            id: None,
            r#type: Some(ConfChangeType::ConfChangeAddNode as i32),
            node_id: Some(id),
            context: Some(json::member(&Member::new(id, &configured.name, urls, false)).into()),
        };
        let entry = Entry {
            r#type: Some(EntryType::EntryConfChange as i32),
            term: Some(1),
            index: Some(1),
            data: Some(change.encode_to_vec().into()),
        };
        let state = HardState { term: Some(1), vote: Some(0), commit: Some(1) };
        std::fs::create_dir_all(member).unwrap();
        let metadata = Metadata { node_id: id, cluster_id: cluster_id(&[id]) };
        let files = std::sync::Arc::new(OsFiles);
        let mut wal =
            Wal::create(files, &member.join("wal"), metadata, Options::default()).unwrap();
        wal.append(&[entry], Some(&state), true).unwrap();
        wal.close().unwrap();
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
        let home = dir.path().join("member/mainstay");
        let engine = home.join("engine-0000000000000000");
        // With its files gone, then with all of it gone; a refusal makes nothing.
        for gone in [&engine, &home] {
            std::fs::remove_dir_all(gone).unwrap();
            for _ in 0..2 {
                let Err(error) = Builder::new(configured.clone()).open().await else {
                    panic!("it started")
                };
                assert!(matches!(error, StartError::EngineLost { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains("its oldest segment begins at entry"), "{text}");
                assert!(text.contains(&home.display().to_string()), "{text}");
            }
        }
        std::fs::create_dir_all(&engine).unwrap();
        std::fs::write(home.join("CURRENT"), "engine-0000000000000000").unwrap();
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
        // What came as a snapshot cannot be made again from the log.
        std::fs::remove_dir_all(&home).unwrap();
        let mut config = cluster.config(&lagging, ClusterState::New);
        config.data_dir = crashed.path().to_owned();
        let Err(error) = Builder::new(config).open().await else { panic!("it started") };
        assert!(matches!(error, StartError::EngineLost { .. }), "{error}");
        assert!(error.to_string().contains("entries from "), "{error}");
        cluster.shutdown().await;
    }
}
