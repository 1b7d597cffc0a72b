//! The workloads.
//!
//! Each runs closed loops of clients for a fixed time: a client sends its next request when the
//! former was answered. Keys have 8 bytes and values 256, as in etcd's own published figures.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::ValueEnum;
use mainstay_etcd_tests::client::Client;
use mainstay_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
    compare, request_op, watch_request,
};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use crate::stats::Outcome;

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// One client puts.
    Put1,
    /// 64 clients put.
    Put64,
    /// 1,000 clients put over 100 connections.
    Put1000,
    /// 64 clients read one key with a quorum.
    GetLinearizable,
    /// 64 clients read one key from the member's own state.
    GetSerializable,
    /// 64 clients update objects as a Kubernetes API server does: a transaction guarded by the
    /// modification revision.
    ApiTxn,
    /// 500 watchers of one prefix on 10 streams, 8 clients put: counts delivered events.
    WatchFanout,
}

impl Workload {
    /// All of them, in the order of a report.
    pub const ALL: [Workload; 7] = [
        Workload::Put1,
        Workload::Put64,
        Workload::Put1000,
        Workload::GetLinearizable,
        Workload::GetSerializable,
        Workload::ApiTxn,
        Workload::WatchFanout,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Put1 => "put, 1 client",
            Workload::Put64 => "put, 64 clients",
            Workload::Put1000 => "put, 1000 clients",
            Workload::GetLinearizable => "get linearizable, 64 clients",
            Workload::GetSerializable => "get serializable, 64 clients",
            Workload::ApiTxn => "API server txn, 64 clients",
            Workload::WatchFanout => "watch fan-out, 500 watchers",
        }
    }
}

const VALUE_BYTES: usize = 256;
/// Distinct keys that writers go through.
const KEY_SPACE: u64 = 100_000;
const WATCHERS: usize = 500;
const WATCH_STREAMS: usize = 10;

fn key(number: u64) -> Bytes {
    Bytes::from(format!("k{:07}", number % KEY_SPACE))
}

fn value() -> Bytes {
    Bytes::from(vec![b'v'; VALUE_BYTES])
}

fn put(key: Bytes) -> PutRequest {
    PutRequest { key, value: value(), ..Default::default() }
}

/// Runs all workloads against endpoints and prints a line for each.
pub(crate) async fn run(endpoints: &[String], workloads: &[Workload], seconds: u64) -> Result<()> {
    for workload in workloads {
        let outcome = measure(endpoints, *workload, Duration::from_secs(seconds)).await?;
        println!(
            "{:<30} {:>10.0}/s   p50 {:>8.3} ms   p99 {:>8.3} ms",
            workload.name(),
            outcome.rate,
            outcome.p50.as_secs_f64() * 1e3,
            outcome.p99.as_secs_f64() * 1e3
        );
    }
    Ok(())
}

/// One workload for the given time, after a short warm-up.
pub(crate) async fn measure(
    endpoints: &[String],
    workload: Workload,
    time: Duration,
) -> Result<Outcome> {
    let (clients, connections) = match workload {
        Workload::Put1 => (1, 1),
        Workload::Put1000 => (1000, 100),
        Workload::WatchFanout => (8, 8),
        _ => (64, 16),
    };
    let connections = connect(endpoints, connections).await?;
    if workload == Workload::WatchFanout {
        return watch_fanout(connections, clients, time).await;
    }
    if matches!(workload, Workload::GetLinearizable | Workload::GetSerializable) {
        let mut client = connections.first().context("there is a connection")?.clone();
        for number in 0..1000 {
            client.kv.put(put(key(number))).await?;
        }
    }
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let warm_up = time / 10;
    let start = Instant::now() + warm_up;
    let end = start + time;
    for at in 0..clients {
        let client =
            connections.get(at % connections.len()).context("there is a connection")?.clone();
        tasks.spawn(client_loop(client, workload, at as u64, counter.clone(), start, end));
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    Ok(Outcome::of(latencies, time))
}

async fn connect(endpoints: &[String], connections: usize) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    for endpoint in endpoints.iter().cycle().take(connections) {
        let client = Client::connect(endpoint)
            .await
            .with_context(|| format!("cannot connect to {endpoint}: is the server running?"))?;
        clients.push(client);
    }
    Ok(clients)
}

async fn client_loop(
    mut client: Client,
    workload: Workload,
    number: u64,
    counter: Arc<AtomicU64>,
    start: Instant,
    end: Instant,
) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    let mut revision = 0;
    let own_key = Bytes::from(format!("/registry/pods/default/pod-{number}"));
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(latencies);
        }
        match workload {
            Workload::Put1 | Workload::Put64 | Workload::Put1000 | Workload::WatchFanout => {
                let next = counter.fetch_add(1, Ordering::Relaxed);
                client.kv.put(put(key(next))).await?;
            }
            Workload::GetLinearizable | Workload::GetSerializable => {
                let next = counter.fetch_add(1, Ordering::Relaxed) % 1000;
                let request = RangeRequest {
                    key: key(next),
                    serializable: workload == Workload::GetSerializable,
                    ..Default::default()
                };
                client.kv.range(request).await?;
            }
            Workload::ApiTxn => {
                let answer = client.kv.txn(update(&own_key, revision)).await?.into_inner();
                anyhow::ensure!(
                    answer.succeeded,
                    "the object of this client was changed by others"
                );
                revision = answer.header.map_or(0, |header| header.revision);
            }
        }
        let done = Instant::now();
        if sent >= start && done <= end {
            latencies.push(done - sent);
        }
    }
}

/// If nobody changed the object since `revision`, write it; else read it.
fn update(key: &Bytes, revision: i64) -> TxnRequest {
    let op = |request| RequestOp { request: Some(request) };
    TxnRequest {
        // The first update of a run may meet an object of a former one.
        compare: if revision == 0 {
            Vec::new()
        } else {
            vec![Compare {
                result: compare::CompareResult::Equal.into(),
                target: compare::CompareTarget::Mod.into(),
                key: key.clone(),
                target_union: Some(compare::TargetUnion::ModRevision(revision)),
                range_end: Bytes::new(),
            }]
        },
        success: vec![op(request_op::Request::RequestPut(PutRequest {
            key: key.clone(),
            value: Bytes::from(vec![b'o'; 1024]),
            ..Default::default()
        }))],
        failure: vec![op(request_op::Request::RequestRange(RangeRequest {
            key: key.clone(),
            ..Default::default()
        }))],
    }
}

async fn watch_fanout(connections: Vec<Client>, writers: usize, time: Duration) -> Result<Outcome> {
    let start = Instant::now() + time / 10;
    let end = start + time;
    let events = Arc::new(AtomicU64::new(0));
    let mut watching = JoinSet::new();
    for at in 0..WATCH_STREAMS {
        let mut client =
            connections.get(at % connections.len()).context("there is a connection")?.clone();
        let requests: Vec<WatchRequest> = (0..WATCHERS / WATCH_STREAMS)
            .map(|_| WatchRequest {
                request_union: Some(watch_request::RequestUnion::CreateRequest(
                    WatchCreateRequest {
                        key: Bytes::from_static(b"k"),
                        range_end: Bytes::from_static(b"l"),
                        ..Default::default()
                    },
                )),
            })
            .collect();
        // The stream must stay open on our side: it ends with this pending item.
        let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
        let mut answers = client.watch.watch(requests).await?.into_inner();
        let mut created = 0;
        while created < WATCHERS / WATCH_STREAMS {
            let answer = answers.message().await?.context("the watch stream ended")?;
            created += usize::from(answer.created);
        }
        let events = events.clone();
        watching.spawn(async move {
            while let Ok(Some(answer)) = answers.message().await {
                let now = Instant::now();
                if now > end {
                    break;
                }
                if now >= start {
                    events.fetch_add(answer.events.len() as u64, Ordering::Relaxed);
                }
            }
        });
    }
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..writers {
        let client =
            connections.get(at % connections.len()).context("there is a connection")?.clone();
        tasks.spawn(client_loop(
            client,
            Workload::WatchFanout,
            at as u64,
            counter.clone(),
            start,
            end,
        ));
    }
    let mut latencies = Vec::new();
    while let Some(done) = tasks.join_next().await {
        latencies.extend(done??);
    }
    watching.shutdown().await;
    let mut outcome = Outcome::of(latencies, time);
    outcome.rate = events.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    Ok(outcome)
}
