//! Locks and elections.

use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::kv_client::KvClient;
use mainstay_proto::etcdserverpb::lease_client::LeaseClient;
use mainstay_proto::v3electionpb::election_client::ElectionClient;
use mainstay_proto::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use mainstay_proto::v3lockpb::lock_client::LockClient;
use mainstay_proto::v3lockpb::{LockRequest, UnlockRequest};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::common::{PATIENCE, Served};

fn lock(lease: i64) -> LockRequest {
    LockRequest { name: "jobs".into(), lease }
}

async fn grant(channel: &Channel, id: i64) {
    let request = pb::LeaseGrantRequest { ttl: 600, id };
    LeaseClient::new(channel.clone()).lease_grant(request).await.unwrap();
}

async fn revoke(channel: &Channel, id: i64) {
    LeaseClient::new(channel.clone()).lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap();
}

/// The keys under `jobs/`, once there are so many.
async fn keys(channel: &Channel, count: usize) -> Vec<String> {
    let mut kv = KvClient::new(channel.clone());
    let request = pb::RangeRequest {
        key: "jobs/".into(),
        range_end: "jobs0".into(),
        keys_only: true,
        ..Default::default()
    };
    let counted = async {
        loop {
            let found = kv.range(request.clone()).await.unwrap().into_inner().kvs;
            if found.len() == count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, counted).await.expect("so many keys in time");
    found.into_iter().map(|kv| String::from_utf8(kv.key.to_vec()).unwrap()).collect()
}

fn told(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_given_in_the_order_of_asking() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    for id in [1, 2, 3] {
        grant(&channel, id).await;
    }
    let mut first = LockClient::new(channel.clone());
    let held = first.lock(lock(1)).await.unwrap().into_inner();
    assert_eq!(held.key, "jobs/1");
    assert!(held.header.unwrap().revision > 1);
    // Asking again as the holder is no wait.
    assert_eq!(first.lock(lock(1)).await.unwrap().into_inner().key, "jobs/1");
    let waiter = |lease| {
        let mut client = LockClient::new(channel.clone());
        tokio::spawn(async move { client.lock(lock(lease)).await })
    };
    let second = waiter(2);
    keys(&channel, 2).await;
    let third = waiter(3);
    keys(&channel, 3).await;
    first.unlock(UnlockRequest { key: held.key }).await.unwrap();
    let held = second.await.unwrap().unwrap().into_inner();
    assert_eq!(held.key, "jobs/2");
    assert!(!third.is_finished());
    // The holder's lease ends: the next one has it.
    revoke(&channel, 2).await;
    assert_eq!(third.await.unwrap().unwrap().into_inner().key, "jobs/3");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_waiting_leaves_no_key() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let mut client = LockClient::new(channel.clone());
    client.lock(lock(0)).await.unwrap();
    let mut request = Request::new(lock(0));
    request.set_timeout(Duration::from_millis(100));
    let status = client.lock(request).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    keys(&channel, 1).await;
    // The same for a client that is gone.
    let mut waiting = LockClient::new(served.channel().await);
    let waiting = tokio::spawn(async move { waiting.lock(lock(0)).await });
    keys(&channel, 2).await;
    waiting.abort();
    keys(&channel, 1).await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_lease_ended_does_not_get_the_lock() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    grant(&channel, 7).await;
    let mut client = LockClient::new(channel.clone());
    let held = client.lock(lock(0)).await.unwrap().into_inner();
    let mut other = LockClient::new(channel.clone());
    let waiting = tokio::spawn(async move { other.lock(lock(7)).await });
    keys(&channel, 2).await;
    revoke(&channel, 7).await;
    client.unlock(UnlockRequest { key: held.key }).await.unwrap();
    let status = waiting.await.unwrap().unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "mutex: session is expired"));
    let status = client.lock(lock(99)).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "etcdserver: requested lease not found"));
    let status = client.unlock(UnlockRequest::default()).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "etcdserver: key is not provided"));
    served.stop().await;
}

fn candidate(lease: i64, value: &'static str) -> CampaignRequest {
    CampaignRequest { name: "jobs".into(), lease, value: value.into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_proclaims_resigns_and_is_followed() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let mut election = ElectionClient::new(channel.clone());
    let name = || LeaderRequest { name: "jobs".into() };
    let status = election.leader(name()).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "election: no leader"));
    for id in [1, 2] {
        grant(&channel, id).await;
    }
    let mut seen = election.observe(name()).await.unwrap().into_inner();
    let won = election.campaign(candidate(1, "a")).await.unwrap().into_inner();
    let leader = won.leader.unwrap();
    assert_eq!((&leader.key[..], leader.lease), (&b"jobs/1"[..], 1));
    // Campaigning again with another value is proclaiming.
    election.campaign(candidate(1, "a2")).await.unwrap();
    let proclaim = |leader: &LeaderKey, value: &'static str| ProclaimRequest {
        leader: Some(leader.clone()),
        value: value.into(),
    };
    election.proclaim(proclaim(&leader, "a3")).await.unwrap();
    let now = election.leader(name()).await.unwrap().into_inner();
    assert_eq!(now.kv.unwrap().value, "a3");
    let mut other = ElectionClient::new(channel.clone());
    let second = tokio::spawn(async move { other.campaign(candidate(2, "b")).await });
    keys(&channel, 2).await;
    election.resign(ResignRequest { leader: Some(leader.clone()) }).await.unwrap();
    let second = second.await.unwrap().unwrap().into_inner().leader.unwrap();
    assert_eq!(second.key, "jobs/2");
    let mut values = Vec::new();
    while values.last().is_none_or(|value| value != "b") {
        let next = tokio::time::timeout(PATIENCE, seen.message()).await.unwrap();
        values.push(next.unwrap().unwrap().kv.unwrap().value);
    }
    assert_eq!(values, ["a", "a2", "a3", "b"]);
    // Who has lost can only notice.
    let status = election.proclaim(proclaim(&leader, "x")).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "election: not leader"));
    election.resign(ResignRequest { leader: Some(leader) }).await.unwrap();
    let status = election.resign(ResignRequest { leader: None }).await.unwrap_err();
    assert_eq!(told(&status), (Code::Unknown, "\"leader\" field must be provided"));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_that_goes_away_is_none_any_more() {
    let served = Served::start_with(|_| {}, |_| {}).await;
    let channel = served.channel().await;
    let mut election = ElectionClient::new(channel.clone());
    election.campaign(candidate(0, "a")).await.unwrap();
    let mut other = ElectionClient::new(served.channel().await);
    let waiting = tokio::spawn(async move { other.campaign(candidate(0, "b")).await });
    keys(&channel, 2).await;
    waiting.abort();
    keys(&channel, 1).await;
    served.stop().await;
}
