//! Clusters seen from outside, in about a minute: three members of ours, ours beside real etcd,
//! and a snapshot that real etcd serves.
//!
//! `MAINSTAY_TEST_PROGRAM=etcd` runs the same on real etcd, which shows that the tests are fair.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use bytes::Bytes;
use mainstay_etcd_tests::client::Client;
use mainstay_etcd_tests::member::{Cluster, Member, Program, kill_all, peers_dir};
use mainstay_etcd_tests::ops::{
    PATIENCE, connect, equal_hashes, hash_kv, leader, member_id, move_leader, retry, settle, status,
};
use mainstay_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, Member as Listed, MemberAddRequest,
    MemberListRequest, MemberPromoteRequest, MemberRemoveRequest, PutRequest, RangeRequest,
    WatchCreateRequest, WatchRequest, WatchResponse, watch_request::RequestUnion,
};
use mainstay_proto::mvccpb::KeyValue;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

fn tested() -> Program {
    match std::env::var("MAINSTAY_TEST_PROGRAM").as_deref() {
        Ok("etcd") => Program::Etcd,
        _ => Program::Mainstay,
    }
}

async fn put(member: &Member, key: &str, value: &str) -> Result<i64> {
    let put = PutRequest {
        key: key.to_string().into(),
        value: value.to_string().into(),
        ..Default::default()
    };
    let answer = connect(&member.client_url).await?.kv.put(put).await?.into_inner();
    Ok(answer.header.context("no header")?.revision)
}

async fn get(member: &Member, key: &str) -> Result<Option<Bytes>> {
    let range = RangeRequest { key: key.to_string().into(), ..Default::default() };
    let answer = connect(&member.client_url).await?.kv.range(range).await?.into_inner();
    Ok(answer.kvs.into_iter().next().map(|kv| kv.value))
}

async fn everything(member: &Member) -> Result<Vec<KeyValue>> {
    let all = Bytes::from_static(b"\0");
    let range = RangeRequest { key: all.clone(), range_end: all, ..Default::default() };
    Ok(connect(&member.client_url).await?.kv.range(range).await?.into_inner().kvs)
}

/// The next answer of a watch that fits.
async fn watched(
    responses: &mut tonic::Streaming<WatchResponse>,
    fits: impl Fn(&WatchResponse) -> bool,
) -> Result<WatchResponse> {
    let next = async {
        loop {
            let response = responses.message().await?.context("the stream ended")?;
            if fits(&response) {
                return anyhow::Ok(response);
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), next).await.context("no event in 10 s")?
}

async fn watch(member: &Member, key: &str, from: i64) -> Result<tonic::Streaming<WatchResponse>> {
    let create = WatchCreateRequest {
        key: key.to_string().into(),
        start_revision: from,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let (requests, receiver) = mpsc::channel(1);
    requests.send(request).await?;
    let mut client = Client::connect(&member.client_url).await?;
    let stream = client.watch.watch(ReceiverStream::new(receiver)).await?.into_inner();
    // The request side stays open as long as the test runs.
    tokio::spawn(async move {
        tokio::time::sleep(PATIENCE).await;
        drop(requests);
    });
    Ok(stream)
}

fn all(cluster: &Cluster) -> Vec<&Member> {
    cluster.members.iter().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_are_one_store() {
    let mut cluster = Cluster::start(&[tested(); 3], &[]).await.unwrap();
    settle(&cluster.members).await.unwrap();
    let [one, two, three] = &cluster.members[..] else { panic!("three members") };
    // What one member acknowledged, every other one reads, and a watch on it sees.
    let revision = put(one, "key", "1").await.unwrap();
    for member in [two, three] {
        assert_eq!(get(member, "key").await.unwrap().unwrap(), "1", "{}", member.name);
        let mut events = watch(member, "key", revision).await.unwrap();
        let seen = watched(&mut events, |response| !response.events.is_empty()).await.unwrap();
        assert_eq!(seen.events[0].kv.as_ref().unwrap().mod_revision, revision);
    }
    let mut events = watch(three, "key", 0).await.unwrap();
    watched(&mut events, |response| response.created).await.unwrap();
    let revision = put(two, "key", "2").await.unwrap();
    let seen = watched(&mut events, |response| !response.events.is_empty()).await.unwrap();
    assert_eq!(seen.events[0].kv.as_ref().unwrap().mod_revision, revision);

    // The leader dies: the others go on, and it catches up.
    let leader = leader(&all(&cluster)).await.unwrap();
    cluster.members[leader].kill();
    let others: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let up: Vec<&Member> = others.iter().map(|at| &cluster.members[*at]).collect();
    settle(up.iter().copied()).await.unwrap();
    for (number, member) in up.iter().enumerate() {
        put(member, &format!("without/{number}"), "x").await.unwrap();
    }
    cluster.members[leader].start().await.unwrap();
    settle(&cluster.members).await.unwrap();
    assert!(get(&cluster.members[leader], "without/1").await.unwrap().is_some());

    // All die at once.
    let last = put(&cluster.members[0], "last", "acknowledged").await.unwrap();
    kill_all(&mut cluster.members);
    for member in &mut cluster.members {
        member.spawn().unwrap();
    }
    settle(&cluster.members).await.unwrap();
    for member in &cluster.members {
        assert_eq!(get(member, "last").await.unwrap().unwrap(), "acknowledged");
        let mut events = watch(member, "last", last).await.unwrap();
        watched(&mut events, |response| !response.events.is_empty()).await.unwrap();
    }
    equal_hashes(&all(&cluster), 0, PATIENCE).await.unwrap();
    for member in &mut cluster.members {
        member.stop().unwrap();
    }
}

async fn list(member: &Member) -> Result<Vec<Listed>> {
    let mut client = connect(&member.client_url).await?;
    let request = MemberListRequest { linearizable: true };
    let mut members = client.cluster.member_list(request).await?.into_inner().members;
    members.sort_by_key(|member| member.id);
    Ok(members)
}

/// A change of members; refused until all members were connected for five seconds.
async fn once_healthy<T>(
    mut change: impl AsyncFnMut() -> Result<tonic::Response<T>, tonic::Status>,
) -> T {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match change().await {
            Ok(answer) => return answer.into_inner(),
            Err(status) if status.message() == "etcdserver: unhealthy cluster" => {
                assert!(tokio::time::Instant::now() < deadline, "{status}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(status) => panic!("{status}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go() {
    let mut cluster = Cluster::start(&[tested(); 3], &[]).await.unwrap();
    settle(&cluster.members).await.unwrap();
    put(&cluster.members[0], "before", "x").await.unwrap();
    let lead = leader(&all(&cluster)).await.unwrap();
    let follower = (lead + 1) % 3;

    // A learner, added through a follower.
    let mut joiner = Member::new(tested(), "m3", cluster.dir.path()).unwrap();
    let url = cluster.members[follower].client_url.clone();
    let add = MemberAddRequest { peer_ur_ls: vec![joiner.peer_url.clone()], is_learner: true };
    let added = once_healthy(async || {
        let mut client = Client::connect(&url).await.unwrap();
        client.cluster.member_add(add.clone()).await
    });
    let id = added.await.member.unwrap().id;
    let known = cluster.members.iter().chain([&joiner]);
    let known: Vec<String> =
        known.map(|member| format!("{}={}", member.name, member.peer_url)).collect();
    joiner.set_arguments(vec![
        format!("--initial-cluster={}", known.join(",")),
        "--initial-cluster-state=existing".to_string(),
    ]);
    joiner.start().await.unwrap();
    assert!(status(&joiner.client_url).await.unwrap().is_learner);
    let put_there = PutRequest { key: "key".into(), ..Default::default() };
    let refusal =
        Client::connect(&joiner.client_url).await.unwrap().kv.put(put_there).await.unwrap_err();
    assert_eq!(refusal.code(), Code::FailedPrecondition);
    assert_eq!(refusal.message(), "etcdserver: rpc not supported for learner");

    // It catches up and votes.
    let urls = cluster.client_urls();
    retry("the promotion", PATIENCE, async || {
        let mut client = connect(&urls[follower]).await?;
        match client.cluster.member_promote(MemberPromoteRequest { id }).await {
            Ok(_) => Ok(()),
            Err(status) if status.message().contains("in sync with leader") => {
                Err(anyhow!("{status}"))
            }
            Err(status) => panic!("{status}"),
        }
    })
    .await
    .unwrap();
    cluster.members.push(joiner);
    settle(&cluster.members).await.unwrap();
    assert_eq!(get(&cluster.members[3], "before").await.unwrap().unwrap(), "x");
    put(&cluster.members[3], "after", "y").await.unwrap();
    let expected = list(&cluster.members[0]).await.unwrap();
    assert_eq!(expected.len(), 4);
    assert!(expected.iter().all(|member| !member.is_learner && !member.name.is_empty()));
    for member in &cluster.members {
        assert_eq!(list(member).await.unwrap(), expected, "{}", member.name);
    }

    // A member is removed, and ends by itself.
    let removed = member_id(&cluster.members[follower].client_url).await.unwrap();
    let url = cluster.members[lead].client_url.clone();
    once_healthy(async || {
        let mut client = Client::connect(&url).await.unwrap();
        client.cluster.member_remove(MemberRemoveRequest { id: removed }).await
    })
    .await;
    let mut gone = cluster.members.remove(follower);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while gone.is_running() {
        assert!(tokio::time::Instant::now() < deadline, "still runs:\n{}", gone.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    settle(&cluster.members).await.unwrap();
    for member in &cluster.members {
        assert_eq!(list(member).await.unwrap().len(), 3);
        put(member, &member.name, "z").await.unwrap();
    }
    // It may not come back.
    let again = gone.start().await.unwrap_err().to_string();
    assert!(again.contains("ended with"), "{again}");
    equal_hashes(&all(&cluster), 0, PATIENCE).await.unwrap();
}

/// All members are killed after the last answers; at least one of them must go on alone with all
/// that was acknowledged, though nothing came after it that could have told the log so.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_cluster_keeps_what_was_acknowledged() {
    let mut cluster = Cluster::start(&[tested(); 3], &[]).await.unwrap();
    settle(&cluster.members).await.unwrap();
    let acknowledged = Arc::new(AtomicI64::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..8 {
        let mut client = connect(&cluster.members[number % 3].client_url).await.unwrap();
        let acknowledged = acknowledged.clone();
        writers.spawn(async move {
            let put = PutRequest { key: format!("key/{number}").into(), ..Default::default() };
            for _ in 0..20 {
                let answer = client.kv.put(put.clone()).await.unwrap();
                let revision = answer.into_inner().header.unwrap().revision;
                acknowledged.fetch_max(revision, Ordering::SeqCst);
            }
        });
    }
    writers.join_all().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    kill_all(&mut cluster.members);
    let revision = acknowledged.load(Ordering::SeqCst);
    let mut kept = Vec::new();
    for member in &mut cluster.members {
        let flags = [member.arguments(), &["--force-new-cluster".to_string()]].concat();
        member.set_arguments(flags);
        member.start().await.unwrap();
        kept.push(mainstay_etcd_tests::ops::revision(&member.client_url).await.unwrap());
        assert_eq!(list(member).await.unwrap().len(), 1);
        member.kill();
    }
    assert!(
        kept.iter().any(|kept| *kept >= revision),
        "acknowledged up to {revision}, kept {kept:?}"
    );
}

async fn mixed(programs: &[Program]) -> Result<()> {
    let cluster = Cluster::start(programs, &[]).await?;
    let members = all(&cluster);
    settle(members.iter().copied()).await?;
    for to in 0..members.len() {
        move_leader(&members, to).await?;
        for (at, member) in members.iter().enumerate() {
            let mut client = Client::connect(&member.client_url).await?;
            let id = (100 * to + at + 1) as i64;
            client.lease.lease_grant(LeaseGrantRequest { id, ttl: 1000 }).await?;
            let key = Bytes::from(format!("{to}/{at}"));
            let put = PutRequest { key: key.clone(), lease: id, ..Default::default() };
            client.kv.put(put.clone()).await?;
            client.kv.put(PutRequest { key: "many".into(), ..put }).await?;
            let delete = DeleteRangeRequest { key, ..Default::default() };
            let answer = client.kv.delete_range(delete).await?.into_inner();
            ensure!(answer.deleted == 1, "{}: {answer:?}", member.name);
        }
        let revision = put(members[to], "last", "x").await?;
        let compaction = CompactionRequest { revision: revision - 3, physical: true };
        connect(&members[to].client_url).await?.kv.compact(compaction).await?;
        equal_hashes(&members, revision - 3, PATIENCE).await?;
        equal_hashes(&members, 0, PATIENCE).await?;
    }
    let expected = everything(members[0]).await?;
    for member in &members {
        ensure!(everything(member).await? == expected, "{} differs", member.name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_ours_beside_two_of_etcd() {
    mixed(&[tested(), Program::Etcd, Program::Etcd]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_of_ours_beside_one_of_etcd() {
    mixed(&[tested(), tested(), Program::Etcd]).await.unwrap();
}

fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(peers_dir()?.join(name)).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{name} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_serves_in_real_etcd() {
    let cluster = Cluster::start(&[tested()], &[]).await.unwrap();
    let ours = &cluster.members[0];
    let mut client = Client::connect(&ours.client_url).await.unwrap();
    client.lease.lease_grant(LeaseGrantRequest { id: 7, ttl: 1000 }).await.unwrap();
    for number in 0..500 {
        put(ours, &format!("key/{}", number % 120), &format!("value {number}")).await.unwrap();
    }
    let leased = PutRequest { key: "leased".into(), lease: 7, ..Default::default() };
    client.kv.put(leased).await.unwrap();
    let delete =
        DeleteRangeRequest { key: "key/1".into(), range_end: "key/2".into(), prev_kv: false };
    client.kv.delete_range(delete).await.unwrap();
    client.kv.compact(CompactionRequest { revision: 300, physical: true }).await.unwrap();
    let last = put(ours, "last", "x").await.unwrap();

    let file = cluster.dir.path().join("saved.db").display().to_string();
    tool("etcdctl", &["--endpoints", &ours.client_url, "snapshot", "save", &file]).unwrap();
    let described = tool("etcdutl", &["snapshot", "status", "-w", "fields", &file]).unwrap();
    assert!(described.contains(&format!("\"Revision\" : {last}")), "{described}");
    let mut restored = Member::new(Program::Etcd, "restored", cluster.dir.path()).unwrap();
    let list = format!("restored={}", restored.peer_url);
    let data = restored.data_dir.display().to_string();
    let restore = ["snapshot", "restore", &file, "--name=restored", "--data-dir", &data];
    let cluster_flags =
        ["--initial-cluster", &list, "--initial-advertise-peer-urls", &restored.peer_url];
    tool("etcdutl", &[&restore[..], &cluster_flags[..]].concat()).unwrap();
    restored.set_arguments(vec![format!("--initial-cluster={list}")]);
    restored.start().await.unwrap();
    assert_eq!(everything(&restored).await.unwrap(), everything(ours).await.unwrap());
    let theirs = hash_kv(&restored.client_url, 0).await.unwrap();
    let ours = hash_kv(&ours.client_url, 0).await.unwrap();
    assert_eq!((theirs.hash, theirs.compact_revision), (ours.hash, ours.compact_revision));
    let mut client = Client::connect(&restored.client_url).await.unwrap();
    let request = mainstay_proto::etcdserverpb::LeaseTimeToLiveRequest { id: 7, keys: true };
    let lease = client.lease.lease_time_to_live(request).await.unwrap().into_inner();
    assert_eq!((lease.granted_ttl, lease.keys), (1000, vec![Bytes::from("leased")]));
}
