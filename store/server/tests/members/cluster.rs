//! Three members in one process, over loopback.

use crate::common::{Cluster, PATIENCE, durable_engine, get, local, put, until, value};
use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{EngineKind, Error, StopReason};

fn engine() -> EngineKind {
    durable_engine().unwrap_or(EngineKind::Memory)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_member_serves_and_all_agree() {
    let cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    for (name, store) in &cluster.members {
        store.core().put(put(name, name)).await.unwrap();
        for other in cluster.members.values() {
            assert_eq!(value(other.core(), name).await.as_deref(), Some(name.as_str()));
        }
    }
    let names: Vec<_> = cluster.members.keys().cloned().collect();
    let list = pb::MemberListRequest { linearizable: true };
    let members = cluster.core("m1").member_list(list).await.unwrap().members;
    let mut listed: Vec<_> = members.iter().map(|member| member.name.clone()).collect();
    listed.sort();
    assert_eq!(listed, names);
    until("a cluster version", async || {
        cluster.members.values().all(|m| m.core().cluster_version().as_deref() == Some("3.7.0"))
    })
    .await;
    cluster.assert_equal().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_without_one_member_which_then_catches_up() {
    let mut cluster = Cluster::start(3, engine(), |_| {}).await;
    let leader = cluster.leader().await;
    cluster.core(&leader).put(put("a", "1")).await.unwrap();
    // The leader hands over before it goes.
    cluster.stop(&leader).await;
    let next = cluster.leader().await;
    for i in 0..50 {
        cluster.core(&next).put(put(&format!("k{i}"), "v")).await.unwrap();
    }
    if engine() != EngineKind::Memory {
        cluster.restart(&leader).await;
        until("the restarted member catches up", async || {
            local(cluster.core(&leader), "k49").await.is_some()
        })
        .await;
        cluster.assert_equal().await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_member_gets_a_snapshot() {
    let adjust = |config: &mut mainstay_store::StoreConfig| {
        config.snapshot_catchup_entries = 10;
    };
    let mut cluster = Cluster::start(3, engine(), adjust).await;
    let lagging = cluster.follower().await;
    cluster.core(&lagging).put(put("before", "1")).await.unwrap();
    let dir = cluster.path(&lagging);
    cluster.stop(&lagging).await;
    let leader = cluster.leader().await;
    for i in 0..200 {
        cluster.core(&leader).put(put(&format!("k{i}"), &"v".repeat(500))).await.unwrap();
    }
    let lease = pb::LeaseGrantRequest { id: 5, ttl: 500 };
    cluster.core(&leader).lease_grant(lease).await.unwrap();
    cluster
        .core(&leader)
        .compact(pb::CompactionRequest { revision: 50, physical: true })
        .await
        .unwrap();
    assert!(dir.exists());
    cluster.restart(&lagging).await;
    until("the lagging member catches up", async || {
        local(cluster.core(&lagging), "k199").await.is_some()
    })
    .await;
    assert_eq!(
        cluster.core(&lagging).lease_leases(pb::LeaseLeasesRequest {}).await.unwrap().leases.len(),
        1
    );
    cluster.assert_equal().await;
    for (member, way, side, other) in
        [(&leader, "send", "To", &lagging), (&lagging, "receive", "From", &leader)]
    {
        let other = cluster.core(other).identity().member_id;
        let text = cluster.core(member).metrics_text();
        let labels = format!("{{{side}=\"{other:x}\"}}");
        for line in [
            format!("etcd_network_snapshot_{way}_success{labels} "),
            format!("etcd_network_snapshot_{way}_inflights_total{labels} 0\n"),
            format!("etcd_network_snapshot_{way}_total_duration_seconds_count{labels} "),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }
    // And goes on from it.
    cluster.core(&lagging).put(put("after", "1")).await.unwrap();
    cluster.assert_equal().await;
    if engine() != EngineKind::Memory {
        cluster.stop(&lagging).await;
        cluster.restart(&lagging).await;
        until("it restarts on the snapshot", async || {
            local(cluster.core(&lagging), "after").await.is_some()
        })
        .await;
        cluster.assert_equal().await;
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_are_promoted_and_go() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    for i in 0..20 {
        cluster.core("m1").put(put(&format!("k{i}"), "v")).await.unwrap();
    }

    let id = cluster.join("m4", true).await;
    until("the learner has the data", async || local(cluster.core("m4"), "k19").await.is_some())
        .await;
    assert!(cluster.core("m4").is_learner());
    assert!(cluster.core("m4").refuse_on_learner().is_err());
    // Promotion is asked of a follower, who passes it on to the leader.
    let follower = cluster.follower().await;
    until("the learner is promoted", async || {
        match cluster.core(&follower).member_promote(pb::MemberPromoteRequest { id }).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, Error::LearnerNotReady);
                false
            }
        }
    })
    .await;
    until("it knows", async || !cluster.core("m4").is_learner()).await;
    crate::common::ready(&cluster.members["m4"]).await;
    cluster.core("m4").put(put("by-m4", "1")).await.unwrap();
    cluster.assert_equal().await;

    let removed = cluster.follower().await;
    let id = cluster.core(&removed).identity().member_id;
    let leader = cluster.leader().await;
    cluster.core(&leader).member_remove(pb::MemberRemoveRequest { id }).await.unwrap();
    let stopped = cluster.members[&removed].stopped();
    let reason = tokio::time::timeout(PATIENCE, stopped).await.unwrap();
    assert_eq!(reason, StopReason::Removed);
    cluster.stop(&removed).await;
    cluster.assert_equal().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_moves_where_it_is_told_to() {
    let cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    for name in ["m1", "m2", "m3", "m1"] {
        let leader = cluster.leader().await;
        if leader == name {
            continue;
        }
        let target_id = cluster.core(name).identity().member_id;
        let request = pb::MoveLeaderRequest { target_id };
        cluster.core(&leader).move_leader(request).await.unwrap();
        let mut leadership = cluster.core(name).leadership();
        leadership.wait_for(|state| state.is_local).await.unwrap();
        cluster.core(&leader).put(put("by", name)).await.unwrap();
        let refused = cluster.core(&leader).move_leader(request).await.unwrap_err();
        assert_eq!(refused, Error::NotLeader);
    }
    cluster.assert_equal().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_kept_alive_through_followers_and_over_a_change_of_leaders() {
    let cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    let grant = pb::LeaseGrantRequest { id: 9, ttl: 2 };
    cluster.core(&follower).lease_grant(grant).await.unwrap();
    cluster.core(&follower).put(pb::PutRequest { lease: 9, ..put("leased", "v") }).await.unwrap();
    let start = std::time::Instant::now();
    let mut moved = false;
    while start.elapsed() < std::time::Duration::from_secs(4) {
        let renewed =
            cluster.core(&follower).lease_keep_alive(pb::LeaseKeepAliveRequest { id: 9 }).await;
        assert_eq!(renewed.unwrap().ttl, 2);
        if !moved && start.elapsed() > std::time::Duration::from_secs(1) {
            moved = true;
            let target_id = cluster.core(&follower).identity().member_id;
            cluster.core(&leader).move_leader(pb::MoveLeaderRequest { target_id }).await.unwrap();
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    assert!(local(cluster.core(&leader), "leased").await.is_some());
    let ask = pb::LeaseTimeToLiveRequest { id: 9, keys: true };
    let left = cluster.core(&leader).lease_time_to_live(ask).await.unwrap();
    assert_eq!(left.keys, ["leased"]);
    until("the key goes when nobody renews", async || {
        value(cluster.core(&leader), "leased").await.is_none()
    })
    .await;
    cluster.assert_equal().await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_acknowledged() {
    let adjust = |config: &mut mainstay_store::StoreConfig| {
        config.tick = std::time::Duration::from_millis(10);
    };
    let mut cluster = Cluster::start(3, EngineKind::Memory, adjust).await;
    let leader = cluster.leader().await;
    cluster.core(&leader).put(put("a", "1")).await.unwrap();
    let others: Vec<_> = cluster.members.keys().filter(|name| **name != leader).cloned().collect();
    for name in others {
        cluster.stop(&name).await;
    }
    let core = cluster.core(&leader);
    assert_eq!(local(core, "a").await.as_deref(), Some("1"));
    let (write, read) = tokio::join!(core.put(put("b", "1")), core.range(get("a")));
    assert!(write.is_err() && read.is_err(), "{write:?} {read:?}");
    until("the leader steps down", async || core.leader().is_none()).await;
    assert!(core.status().errors.contains(&"etcdserver: no leader".to_owned()));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_removed_goes_and_the_others_go_on() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    let leader = cluster.leader().await;
    let id = cluster.core(&leader).identity().member_id;
    let follower = cluster.follower().await;
    until("the cluster counts as healthy", async || {
        let request = pb::MemberRemoveRequest { id };
        match cluster.core(&follower).member_remove(request).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, Error::Unhealthy);
                false
            }
        }
    })
    .await;
    let stopped = cluster.members[&leader].stopped();
    assert_eq!(tokio::time::timeout(PATIENCE, stopped).await.unwrap(), StopReason::Removed);
    cluster.stop(&leader).await;
    let next = cluster.leader().await;
    cluster.core(&next).put(put("after", "1")).await.unwrap();
    cluster.assert_equal().await;
    // Its data is of no use any more.
    match cluster.try_restart(&leader).await {
        // What it has applied does not say so yet, but the others do.
        Ok(store) => {
            let stopped = tokio::time::timeout(PATIENCE, store.stopped()).await.unwrap();
            assert_eq!(stopped, StopReason::Removed);
            store.shutdown().await;
        }
        Err(error) => assert!(error.to_string().contains("permanently removed"), "{error}"),
    }
    cluster.shutdown().await;
}
