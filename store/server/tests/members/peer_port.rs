//! The peer port of a whole member: others that are slow, streams when it stops, what is counted.

use std::time::{Duration, Instant};

use mainstay_store::EngineKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::common::{Cluster, PATIENCE, until};

async fn dial(url: &str) -> TcpStream {
    TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_takes_no_answers_is_cut_off() {
    let cluster = Cluster::start(1, EngineKind::Memory, |_| {}).await;
    let mut stream = dial(cluster.url("m1")).await;
    let requests = b"GET /members HTTP/1.1\r\nHost: x\r\n\r\n".repeat(1000);
    let asking = async {
        // No answer is read: at some time nothing more is taken either.
        while stream.write_all(&requests).await.is_ok() {}
    };
    let cut = tokio::time::timeout(PATIENCE, asking).await;
    assert!(cut.is_ok(), "the connection is there after {PATIENCE:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_stops_ends_its_streams_in_order_and_at_once() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    let (own, third) = (cluster.core("m1").identity(), cluster.core("m3").identity().member_id);
    let url = cluster.url("m1").to_owned();
    cluster.stop("m3").await;
    cluster.leader().await;
    // In place of the third member, which is gone.
    let mut stream = dial(&url).await;
    let request = format!(
        "GET /raft/stream/message/{third:x} HTTP/1.1\r\nHost: x\r\nX-Server-From: {third:x}\r\n\
         X-Server-Version: 3.7.3\r\nX-Min-Cluster-Version: 3.0.0\r\n\
         X-Etcd-Cluster-ID: {:x}\r\nX-Raft-To: {:x}\r\n\r\n",
        own.cluster_id, own.member_id
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");

    let started = Instant::now();
    cluster.stop("m1").await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.ends_with(b"0\r\n\r\n"), "the stream was cut, not ended");
    assert!(TcpStream::connect(url.strip_prefix("http://").unwrap()).await.is_err());
    cluster.shutdown().await;
}

/// The series are those of etcd 3.7.3 in a cluster of three, before and after one has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_between_members_is_counted_as_in_etcd() {
    let mut cluster = Cluster::start(3, EngineKind::Memory, |_| {}).await;
    // Two followers may have nothing to say to each other.
    let leader = cluster.leader().await;
    let mut names = vec!["m1", "m2", "m3"];
    names.retain(|name| *name != leader);
    let id = |name: &str| format!("{:x}", cluster.core(name).identity().member_id);
    let (own, second, third) = (id(&leader), id(names[0]), id(names[1]));
    let text = |cluster: &Cluster| cluster.core(&leader).metrics_text();
    for to in [&second, &third] {
        let seen = format!("etcd_network_peer_round_trip_time_seconds_count{{To=\"{to}\"}} ");
        let active = format!("etcd_network_active_peers{{Local=\"{own}\",Remote=\"{to}\"}} 1\n");
        until("a round trip", async || {
            let text = text(&cluster);
            text.contains(&seen) && text.contains(&active)
        })
        .await;
    }
    let before = text(&cluster);
    for to in [&second, &third] {
        for line in [
            format!("etcd_network_known_peers{{Local=\"{own}\",Remote=\"{to}\"}} 1\n"),
            format!("etcd_network_peer_sent_bytes_total{{To=\"{to}\"}} "),
            format!("etcd_network_peer_received_bytes_total{{From=\"{to}\"}} "),
            format!(
                "etcd_network_peer_round_trip_time_seconds_bucket{{To=\"{to}\",le=\"0.0001\"}}"
            ),
            format!(
                "etcd_network_peer_round_trip_time_seconds_bucket{{To=\"{to}\",le=\"3.2768\"}}"
            ),
            format!("etcd_network_peer_round_trip_time_seconds_bucket{{To=\"{to}\",le=\"+Inf\"}}"),
            format!("etcd_network_peer_round_trip_time_seconds_sum{{To=\"{to}\"}} "),
        ] {
            assert!(before.contains(&line), "{line}\n{before}");
        }
    }
    assert!(!before.contains("snapshot_send"), "nothing was sent yet\n{before}");

    cluster.stop(names[1]).await;
    let third_is =
        |name: &str| format!("etcd_network_{name}{{Local=\"{own}\",Remote=\"{third}\"}} ");
    let (lost, gone) = (third_is("disconnected_peers_total"), third_is("active_peers") + "0\n");
    let failed = format!("etcd_network_peer_sent_failures_total{{To=\"{third}\"}} ");
    let mut after = String::new();
    // A stream may be up once more before the port of the third member is closed.
    until("the third member is missed", async || {
        after = text(&cluster);
        [&lost, &gone, &failed].iter().all(|line| after.contains(*line))
    })
    .await;
    for (name, kind) in [
        ("active_peers", "gauge"),
        ("known_peers", "gauge"),
        ("disconnected_peers_total", "counter"),
        ("peer_received_bytes_total", "counter"),
        ("peer_sent_bytes_total", "counter"),
        ("peer_sent_failures_total", "counter"),
        ("peer_round_trip_time_seconds", "histogram"),
    ] {
        let line = format!("# TYPE etcd_network_{name} {kind}\n");
        assert_eq!(after.matches(&line).count(), 1, "{line}{after}");
    }
    cluster.shutdown().await;
}
