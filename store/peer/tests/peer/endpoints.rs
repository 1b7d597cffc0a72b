//! The small endpoints, asked by our own client: what a joining member and a follower learn.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_peer::{
    AppliedVersions, Client, ClientError, HashKv, LeaseError, MemberInfo, PlainDialer,
    PromoteError, RequestError, Versions,
};
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::fake::*;

fn client() -> Client {
    Client::new(Arc::new(PlainDialer), Handle::current())
}

fn member(id: u64) -> MemberInfo {
    MemberInfo {
        id,
        peer_urls: vec![format!("http://10.0.0.{id}:2380")],
        is_learner: id == 2,
        name: if id == 2 { String::new() } else { format!("m{id}") },
        client_urls: vec![],
    }
}

#[tokio::test]
async fn a_joining_member_learns_the_cluster() {
    let node = Node::start(0xa).await;
    let url = [node.url()];
    node.host.script().members = vec![member(1), member(2)];
    let cluster = client().fetch_members(&url).await.unwrap();
    assert_eq!(cluster.cluster, CLUSTER);
    assert_eq!(cluster.members, [member(1), member(2)]);

    let versions = |server: &str, cluster: &str, storage: &str| Versions {
        server: server.to_owned(),
        cluster: cluster.to_owned(),
        storage: storage.to_owned(),
    };
    let found = client().fetch_versions(&url).await.unwrap();
    assert_eq!(found, versions("3.7.3", "not_decided", "unknown"));
    node.host.script().versions =
        AppliedVersions { cluster: Some("3.7.0".to_owned()), storage: Some("3.7.0".to_owned()) };
    let found = client().fetch_versions(&url).await.unwrap();
    assert_eq!(found, versions("3.7.3", "3.7.0", "3.7.0"));

    assert!(!client().downgrade_enabled(&url).await.unwrap());
    node.host.script().downgrade = Some(Ok(true));
    assert!(client().downgrade_enabled(&url).await.unwrap());
    node.host.script().downgrade = Some(Err("etcdserver: request timed out".to_owned()));
    let error = client().downgrade_enabled(&url).await.unwrap_err();
    assert!(error.to_string().contains("failed linearized read: etcdserver: request timed out"));
}

#[tokio::test]
async fn members_that_do_not_answer_are_passed_over() {
    let node = Node::start(0xa).await;
    node.host.script().members = vec![member(1)];
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let urls = [&silent, &closed].map(|l| format!("http://{}", l.local_addr().unwrap()));
    drop(closed);
    let client = client().within(Duration::from_millis(300));
    let mut all = urls.to_vec();
    all.push(node.url());
    assert_eq!(client.fetch_members(&all).await.unwrap().cluster, CLUSTER);
    assert!(matches!(
        client.fetch_members(&urls).await.unwrap_err(),
        ClientError::Request(RequestError::Timeout { .. } | RequestError::Dial { .. })
    ));
    assert!(matches!(client.fetch_members::<&str>(&[]).await, Err(ClientError::Url(_))));
    node.host.script().members.clear();
    let error = client.fetch_members(&[node.url()]).await.unwrap_err();
    assert!(error.to_string().contains("no members"), "{error}");
    let error = client.fetch_members(&["https://127.0.0.1:1"]).await.unwrap_err();
    assert!(error.to_string().contains("needs TLS"), "{error}");
}

#[tokio::test]
async fn leases_are_renewed_and_looked_up_at_the_leader() {
    let node = Node::start(0xa).await;
    let url = [node.url()];
    let lease = |error: ClientError| match error {
        ClientError::Lease(error) => error,
        other => panic!("{other}"),
    };
    let error = client().renew_lease(&url, 7).await.unwrap_err();
    assert_eq!(lease(error), LeaseError::NotFound);
    let error = client().lease_time_to_live(&url, 7, true).await.unwrap_err();
    assert_eq!(lease(error), LeaseError::NotFound);

    node.host.script().lease = Some(Ok(30));
    node.host.script().lease_keys = vec![Bytes::from_static(b"a"), Bytes::from_static(b"\xff")];
    assert_eq!(client().renew_lease(&url, -7).await.unwrap(), 30);
    let found = client().lease_time_to_live(&url, -7, true).await.unwrap();
    assert_eq!((found.ttl, found.granted_ttl), (30, 31));
    assert_eq!(found.keys, [&b"a"[..], b"\xff"]);
    let found = client().lease_time_to_live(&url, 7, false).await.unwrap();
    assert!(found.keys.is_empty());

    // A member that is no leader any more must not be taken for one that knows of no lease.
    node.host.script().lease = Some(Err(LeaseError::NotPrimary));
    for error in [
        client().renew_lease(&url, 7).await.unwrap_err(),
        client().lease_time_to_live(&url, 7, true).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("not a primary lessor"), "{error}");
    }
    node.host.script().never_applied = true;
    let error = client().renew_lease(&url, 7).await.unwrap_err();
    assert_eq!(lease(error), LeaseError::ApplyTimeout);
}

#[tokio::test]
async fn learners_are_promoted_at_the_leader() {
    let node = Node::start(0xa).await;
    let url = [node.url()];
    node.host.script().members = vec![member(1)];
    let members = client().promote(&url, 1, Some("token.7")).await.unwrap();
    assert_eq!(members, [member(1)]);
    assert_eq!(node.host.script().token.as_deref(), Some("token.7"));
    client().promote(&url, 1, None).await.unwrap();
    assert_eq!(node.host.script().token, None);
    for expected in [PromoteError::NotFound, PromoteError::NotLearner, PromoteError::NotReady] {
        node.host.script().promote = Some(expected.clone());
        match client().promote(&url, 1, None).await.unwrap_err() {
            ClientError::Promote(error) => assert_eq!(error, expected),
            other => panic!("{other}"),
        }
    }
    node.host.script().promote = Some(PromoteError::Other("secret".to_owned()));
    let error = client().promote(&url, 1, None).await.unwrap_err().to_string();
    assert!(error.contains("500") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn hashes_are_compared_within_one_cluster() {
    let node = Node::start(0xa).await;
    let url = [node.url()];
    let hash = HashKv { revision: 9, hash: u32::MAX, compact_revision: -1, hash_revision: 7 };
    node.host.script().hash = Some(Ok(hash));
    assert_eq!(client().hash_kv(&url, CLUSTER, 7).await.unwrap(), hash);
    node.host.script().hash = Some(Ok(HashKv::default()));
    assert_eq!(client().hash_kv(&url, CLUSTER, 0).await.unwrap(), HashKv::default());
    let error = client().hash_kv(&url, 0x99, 7).await.unwrap_err();
    assert!(error.to_string().contains("412") && error.to_string().contains("mismatch"), "{error}");
    let text = "mvcc: required revision has been compacted";
    node.host.script().hash = Some(Err(text.to_owned()));
    let error = client().hash_kv(&url, CLUSTER, 7).await.unwrap_err();
    assert!(error.to_string().contains(text), "{error}");
}

#[tokio::test]
async fn connections_are_used_again_until_the_member_closes_them() {
    let mut node = Node::start(0xa).await;
    node.host.script().lease = Some(Ok(30));
    let client = client();
    for _ in 0..3 {
        for _ in 0..20 {
            assert_eq!(client.renew_lease(&[node.url()], 7).await.unwrap(), 30);
        }
        node.stop_serving().await;
        node.serve_again().await;
    }
}

#[tokio::test]
async fn a_stopped_member_says_so() {
    let node = Node::start(0xa).await;
    node.peers.stop();
    let error = client().fetch_versions(&[node.url()]).await.unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
}
