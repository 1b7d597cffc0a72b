//! The same requests to a real member's peer port and to ours must give the same answers.

use std::collections::HashSet;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use mainstay_peer::codec::encode_message_to_bytes;
use mainstay_peer::{AppliedVersions, Client, HashKv, PromoteError};
use mainstay_proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseTimeToLiveRequest};
use mainstay_proto::leasepb::LeaseInternalRequest;
use mainstay_proto::raftpb::MessageType;
use prost::Message as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::etcd::*;
use crate::fake::*;

/// The headers that peers look at.
const COMPARED: [&str; 5] =
    ["allow", "content-type", "x-content-type-options", "x-etcd-cluster-id", "x-server-version"];

/// A real member, and one of ours that was told the same ids and members.
struct Twins {
    real: Etcd,
    ours: Node,
    cluster: u64,
    /// A learner that both know; nobody serves its URL.
    learner: u64,
    learner_url: String,
    /// A member that both know to be removed.
    removed: u64,
}

impl Twins {
    async fn start() -> Twins {
        let real = Etcd::start(&[]).await;
        let add = |url: String| {
            real.call("/v3/cluster/member/add", json!({ "peerURLs": [url], "isLearner": true }))
        };
        let id = |answer: &Value| answer["member"]["ID"].as_str().unwrap().parse().unwrap();
        let gone = add(format!("http://{}", free_address().await)).await;
        let removed: u64 = id(&gone);
        real.call("/v3/cluster/member/remove", json!({ "ID": removed.to_string() })).await;
        let learner_url = format!("http://{}", free_address().await);
        let learner = id(&add(learner_url.clone()).await);
        real.call("/v3/lease/grant", json!({ "ID": "77", "TTL": "500" })).await;
        real.put(3).await;

        let client = Client::new(
            std::sync::Arc::new(mainstay_peer::PlainDialer),
            tokio::runtime::Handle::current(),
        );
        let seen = client.fetch_members(&[real.peer_url()]).await.unwrap();
        let own = seen.members.iter().find(|member| member.id != learner).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = Node::start_on(listener, own.id, seen.cluster, timing());
        ours.peers.add_peer(learner, &[&learner_url]).unwrap();
        until("the cluster version is decided", || {
            real.log().contains("set initial cluster version")
        })
        .await;
        let versions = client.fetch_versions(&[real.peer_url()]).await.unwrap();
        {
            let mut script = ours.host.script();
            script.removed = HashSet::from([removed]);
            script.members = seen.members.clone();
            script.versions = AppliedVersions {
                cluster: Some(versions.cluster),
                storage: Some(versions.storage),
            };
        }
        Twins { cluster: seen.cluster, real, ours, learner, learner_url, removed }
    }

    async fn both(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> (Reply, Reply) {
        let real = ask(self.real.peer, method, path, headers, body).await;
        let ours = ask(self.ours.address, method, path, headers, body).await;
        (trim(real), trim(ours))
    }

    /// Asks both the same; gives the one answer.
    async fn same(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Reply {
        let (real, ours) = self.both(method, path, headers, body).await;
        assert_eq!(real, ours, "{method} {path} {headers:?}");
        real
    }

    /// What the learner would send.
    fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("X-Server-From", format!("{:x}", self.learner)),
            ("X-Server-Version", "3.7.3".to_owned()),
            ("X-Min-Cluster-Version", "3.0.0".to_owned()),
            ("X-Etcd-Cluster-ID", format!("{:x}", self.cluster)),
            ("X-PeerURLs", self.learner_url.clone()),
            ("X-Raft-To", format!("{:x}", self.ours.id)),
        ]
    }

    /// The same with one header changed or left out.
    fn with(&self, name: &str, value: Option<&str>) -> Vec<(&'static str, String)> {
        let mut headers = self.headers();
        headers.retain(|(other, _)| *other != name || value.is_some());
        for (other, text) in &mut headers {
            if *other == name {
                *text = value.unwrap().to_owned();
            }
        }
        headers
    }
}

fn trim(mut reply: Reply) -> Reply {
    reply.headers.retain(|name, _| COMPARED.contains(&name.as_str()));
    reply
}

fn text(reply: &Reply) -> &str {
    std::str::from_utf8(&reply.body).unwrap().trim_end()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_of_raft() {
    let mut twins = Twins::start().await;
    let all = twins.headers();

    // Streams: version, cluster, path, sender, addressee, in this order.
    for kind in ["msgapp", "message"] {
        let path = format!("/raft/stream/{kind}/{:x}", twins.learner);
        let reply = twins.same("GET", &path, &all, b"").await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.headers["x-server-version"], "3.7.3");
        let refused = [
            ("X-Server-Version", None, "incompatible version"),
            ("X-Server-Version", Some("2.3.0"), "incompatible version"),
            ("X-Min-Cluster-Version", Some("3.8.0"), "incompatible version"),
            ("X-Etcd-Cluster-ID", Some("77"), "cluster ID mismatch"),
            ("X-Etcd-Cluster-ID", None, "cluster ID mismatch"),
            ("X-Raft-To", Some("77"), "to field mismatch"),
            ("X-Raft-To", None, "to field mismatch"),
        ];
        for (name, value, expected) in refused {
            let reply = twins.same("GET", &path, &twins.with(name, value), b"").await;
            assert_eq!((reply.status, text(&reply)), (412, expected), "{name} {value:?}");
        }
        for version in ["3.0.0", "3.5.17", "3.8.0", "4.9.0", "3.7.0-rc.1"] {
            let headers = twins.with("X-Server-Version", Some(version));
            assert_eq!(twins.same("GET", &path, &headers, b"").await.status, 200, "{version}");
        }
        let removed = format!("/raft/stream/{kind}/{:x}", twins.removed);
        let reply = twins.same("GET", &removed, &all, b"").await;
        assert_eq!((reply.status, text(&reply)), (410, "removed member"));
        let bare = twins.with("X-PeerURLs", None);
        let unknown = format!("/raft/stream/{kind}/77");
        let reply = twins.same("GET", &unknown, &bare, b"").await;
        assert_eq!((reply.status, text(&reply)), (404, "error sender not found"));
        assert_eq!(twins.same("POST", &path, &all, b"").await.status, 405);
    }
    let path = "/raft/stream/other/1";
    assert_eq!(text(&twins.same("GET", path, &all, b"").await), "invalid path");
    let path = "/raft/stream/msgapp/xyz";
    assert_eq!(text(&twins.same("GET", path, &all, b"").await), "invalid from");
    // The cluster is looked at before the path.
    let stray = twins.with("X-Etcd-Cluster-ID", Some("77"));
    assert_eq!(twins.same("GET", path, &stray, b"").await.status, 412);
    // A version that is none: etcd drops the connection, we say why.
    let garbage = twins.with("X-Server-Version", Some("3.7"));
    let path = format!("/raft/stream/message/{:x}", twins.learner);
    let (real, ours) = twins.both("GET", &path, &garbage, b"").await;
    assert_eq!((real.status, ours.status), (0, 412));

    // Messages.
    let heartbeat = |to| message(MessageType::MsgHeartbeatResp, twins.learner, to).encode_to_vec();
    let mine = heartbeat(twins.ours.id);
    assert_eq!(twins.same("POST", "/raft", &all, &mine).await.status, 204);
    assert_eq!(twins.same("GET", "/raft", &all, b"").await.status, 405);
    let reply = twins.same("POST", "/raft", &all, b"\xff\xff").await;
    assert_eq!((reply.status, text(&reply)), (400, "error unmarshalling raft message"));
    assert_eq!(twins.same("POST", "/raft", &stray, &mine).await.status, 412);
    assert_eq!(twins.same("POST", "/raft", &[], &mine).await.status, 412);
    let from_removed =
        message(MessageType::MsgHeartbeat, twins.removed, twins.ours.id).encode_to_vec();
    for refused in [heartbeat(0x77), from_removed] {
        let reply = twins.same("POST", "/raft", &all, &refused).await;
        assert_eq!((reply.status, text(&reply)), (500, "error processing raft message"));
    }

    // Snapshots.
    let path = "/raft/snapshot";
    assert_eq!(twins.same("GET", path, &all, b"").await.status, 405);
    assert_eq!(twins.same("POST", path, &[], b"").await.status, 412);
    assert_eq!(twins.same("POST", path, &stray, b"").await.status, 412);
    let reply = twins.same("POST", path, &all, b"").await;
    assert_eq!(text(&reply), "failed to decode raft message (EOF)");
    let reply = twins.same("POST", path, &all, &[0, 0, 0]).await;
    assert_eq!(text(&reply), "failed to decode raft message (unexpected EOF)");
    let other = encode_message_to_bytes(&message(MessageType::MsgApp, twins.learner, 1));
    let reply = twins.same("POST", path, &all, &other).await;
    assert_eq!((reply.status, text(&reply)), (400, "wrong raft message type"));
    let mut huge = BytesMut::new();
    huge.put_u64(1 << 40);
    let (real, ours) = twins.both("POST", path, &all, &huge).await;
    assert_eq!((real.status, ours.status), (400, 400));

    // Probes.
    let (real, ours) = twins.both("GET", "/raft/probing", &[], b"").await;
    assert_eq!((real.status, &real.headers), (ours.status, &ours.headers));
    for reply in [real, ours] {
        let health: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(health["OK"], true);
        assert!(health["Now"].as_str().unwrap().starts_with("20"));
    }
    for path in ["/raft/other", "/raft/snapshot/x", "/", "/other"] {
        assert_eq!(twins.same("GET", path, &all, b"").await.status, 404);
    }
    twins.real.assert_alive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_of_the_member() {
    let mut twins = Twins::start().await;

    assert_eq!(twins.same("GET", "/members", &[], b"").await.status, 200);
    assert_eq!(twins.same("POST", "/members", &[], b"").await.status, 405);
    assert_eq!(twins.same("GET", "/members/other", &[], b"").await.status, 404);
    assert_eq!(twins.same("GET", "/version", &[], b"").await.status, 200);
    assert_eq!(twins.same("PUT", "/version", &[], b"").await.status, 405);
    assert_eq!(text(&twins.same("GET", "/downgrade/enabled", &[], b"").await), "false");
    assert_eq!(twins.same("POST", "/downgrade/enabled", &[], b"").await.status, 405);

    // Promotion.
    for path in ["/members/promote/xyz", "/members/promote/", "/members/promote/+1"] {
        assert_eq!(twins.same("POST", path, &[], b"").await.status, 404, "{path}");
    }
    let promote = |id: u64| format!("/members/promote/{id}");
    assert_eq!(twins.same("GET", &promote(5), &[], b"").await.status, 405);
    for (id, expected, status) in [
        (5, PromoteError::NotFound, 404),
        (twins.ours.id, PromoteError::NotLearner, 412),
        (twins.learner, PromoteError::NotReady, 412),
    ] {
        twins.ours.host.script().promote = Some(expected);
        assert_eq!(twins.same("POST", &promote(id), &[], b"").await.status, status);
    }

    // Leases.
    for path in ["/leases", "/leases/internal"] {
        assert_eq!(twins.same("GET", path, &[], b"").await.status, 405);
        assert_eq!(twins.same("POST", path, &[], b"\xff\xff").await.status, 400);
        assert_eq!(twins.same("POST", path, &[], &[10; 100 << 10]).await.status, 413);
    }
    let renew = |id| LeaseKeepAliveRequest { id }.encode_to_vec();
    let look_up = |id| {
        let inner = LeaseTimeToLiveRequest { id, keys: false };
        LeaseInternalRequest { lease_time_to_live_request: Some(inner) }.encode_to_vec()
    };
    let reply = twins.same("POST", "/leases", &[], &renew(5)).await;
    assert_eq!((reply.status, text(&reply)), (404, "lease not found"));
    let reply = twins.same("POST", "/leases/internal", &[], &look_up(5)).await;
    assert_eq!((reply.status, text(&reply)), (404, "lease not found"));
    twins.ours.host.script().lease = Some(Ok(500));
    assert_eq!(twins.same("POST", "/leases", &[], &renew(77)).await.status, 200);
    // The remaining time runs; its form is compared by reading both with our client, elsewhere.
    let (real, ours) = twins.both("POST", "/leases/internal", &[], &look_up(77)).await;
    assert_eq!((real.status, real.headers), (ours.status, ours.headers));

    // Hashes.
    let path = "/members/hashkv";
    assert_eq!(twins.same("POST", path, &[], b"{}").await.status, 405);
    assert_eq!(twins.same("GET", path, &[], b"").await.status, 400);
    let stray = [("X-Etcd-Cluster-ID", "77".to_owned())];
    assert_eq!(twins.same("GET", path, &stray, b"{}").await.status, 412);
    let future = "mvcc: required revision is a future revision";
    twins.ours.host.script().hash = Some(Err(future.to_owned()));
    let reply = twins.same("GET", path, &[], br#"{"revision":999}"#).await;
    assert_eq!((reply.status, text(&reply)), (400, future));
    let client = twins.ours.peers.client();
    let real_url = [twins.real.peer_url()];
    let hash = client.hash_kv(&real_url, twins.cluster, 0).await.unwrap();
    assert_eq!((hash.revision, hash.hash_revision, hash.compact_revision), (4, 4, -1));
    twins.ours.host.script().hash = Some(Ok(hash));
    assert_eq!(twins.same("GET", path, &[], b"{}").await.status, 200);
    twins.ours.host.script().hash = Some(Ok(HashKv { hash_revision: 3, ..hash }));
    let (real, ours) = twins.both("GET", path, &[], br#"{"revision":3}"#).await;
    assert_eq!((real.status, real.headers), (ours.status, ours.headers));
    twins.real.assert_alive();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_client_reads_a_real_member() {
    let real = Etcd::start(&[]).await;
    let url = [real.peer_url()];
    let client = Client::new(
        std::sync::Arc::new(mainstay_peer::PlainDialer),
        tokio::runtime::Handle::current(),
    )
    .within(Duration::from_secs(20));
    real.put(1).await;
    let cluster = client.fetch_members(&url).await.unwrap();
    assert_eq!(cluster.members.len(), 1);
    assert_eq!(cluster.members[0].name, "real");
    assert_eq!(client.fetch_versions(&url).await.unwrap().server, "3.7.3");
    assert!(!client.downgrade_enabled(&url).await.unwrap());

    real.call("/v3/lease/grant", json!({ "ID": "77", "TTL": "500" })).await;
    let put = json!({ "key": "aw==", "value": "dg==", "lease": "77" });
    real.call("/v3/kv/put", put).await;
    assert_eq!(client.renew_lease(&url, 77).await.unwrap(), 500);
    let found = client.lease_time_to_live(&url, 77, true).await.unwrap();
    assert_eq!(found.granted_ttl, 500);
    assert!((1..=500).contains(&found.ttl));
    assert_eq!(found.keys, [&b"k"[..]]);
    assert!(client.renew_lease(&url, 78).await.is_err());

    let error = client.promote(&url, cluster.members[0].id, None).await.unwrap_err();
    assert_eq!(error.to_string(), PromoteError::NotLearner.to_string());
    let error = client.hash_kv(&url, cluster.cluster, 99).await.unwrap_err();
    assert!(error.to_string().contains("future revision"), "{error}");
}
