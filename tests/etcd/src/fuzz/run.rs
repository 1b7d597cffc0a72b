//! One seed against a pair of members.

use std::fmt;

use anyhow::{Context, Result};
use mainstay_proto::etcdserverpb::{RangeResponse, ResponseHeader, TxnResponse, response_op};
use tokio_stream::StreamExt;
use tonic::Status;

use super::generate::{Generator, Step};
use super::watch::WatchPair;
use crate::client::Client;

/// The reference and the member under test, with equal histories.
#[derive(Debug)]
pub struct Pair {
    /// Real etcd.
    pub reference: Client,
    /// The member under test.
    pub tested: Client,
}

/// Where the two answered differently.
#[derive(Debug)]
pub struct Difference {
    /// The seed.
    pub seed: u64,
    /// Number of the step.
    pub at: usize,
    /// The request.
    pub step: String,
    /// What real etcd answered.
    pub reference: String,
    /// What the member under test answered.
    pub tested: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {} step {}: {}", self.seed, self.at, self.step)?;
        writeln!(f, "  etcd:     {}", self.reference)?;
        write!(f, "  mainstay: {}", self.tested)
    }
}

/// Ids and terms of the two members differ by nature; revisions must not.
fn strip(header: &mut Option<ResponseHeader>) {
    if let Some(header) = header {
        header.cluster_id = 0;
        header.member_id = 0;
        header.raft_term = 0;
    }
}

fn strip_nested(txn: &mut TxnResponse) {
    strip(&mut txn.header);
    for response in &mut txn.responses {
        match &mut response.response {
            Some(response_op::Response::ResponseRange(inner)) => strip(&mut inner.header),
            Some(response_op::Response::ResponsePut(inner)) => strip(&mut inner.header),
            Some(response_op::Response::ResponseDeleteRange(inner)) => strip(&mut inner.header),
            Some(response_op::Response::ResponseTxn(inner)) => strip_nested(inner),
            None => {}
        }
    }
}

fn refusal(status: &Status) -> String {
    format!("refused {:?}: {}", status.code(), status.message())
}

macro_rules! unary {
    ($client:expr, $call:ident, $request:expr, $fix:expr) => {
        match $client.$call($request.clone()).await {
            Ok(response) => {
                let mut response = response.into_inner();
                strip(&mut response.header);
                #[allow(clippy::redundant_closure_call)]
                ($fix)(&mut response);
                (format!("{response:?}"), response.header.as_ref().map_or(0, |h| h.revision))
            }
            Err(status) => (refusal(&status), 0),
        }
    };
}

/// Sends one step to one member; answers the comparable text and the revision of the answer.
async fn execute(client: &mut Client, step: &Step) -> (String, i64) {
    match step {
        Step::Range(request) => unary!(client.kv, range, request, |_: &mut _| {}),
        Step::RangeStream(request) => range_stream(client, request).await,
        Step::Put(request) => unary!(client.kv, put, request, |_: &mut _| {}),
        Step::DeleteRange(request) => unary!(client.kv, delete_range, request, |_: &mut _| {}),
        Step::Txn(request) => unary!(client.kv, txn, request, strip_nested),
        Step::Compact(request) => unary!(client.kv, compact, request, |_: &mut _| {}),
        Step::Grant(request) => unary!(client.lease, lease_grant, request, |_: &mut _| {}),
        Step::Revoke(request) => unary!(client.lease, lease_revoke, request, |_: &mut _| {}),
        Step::KeepAlive(request) => {
            let requests = tokio_stream::once(*request);
            match client.lease.lease_keep_alive(requests).await {
                Ok(stream) => {
                    let answers: Vec<_> = stream
                        .into_inner()
                        .map(|answer| match answer {
                            Ok(mut answer) => {
                                strip(&mut answer.header);
                                format!("{answer:?}")
                            }
                            Err(status) => refusal(&status),
                        })
                        .collect()
                        .await;
                    (answers.join(" "), 0)
                }
                Err(status) => (refusal(&status), 0),
            }
        }
        Step::TimeToLive(request) => {
            unary!(
                client.lease,
                lease_time_to_live,
                request,
                |r: &mut mainstay_proto::etcdserverpb::LeaseTimeToLiveResponse| {
                    // etcd keeps the keys of a lease unordered.
                    r.keys.sort();
                    // The two are asked a moment apart.
                    if r.ttl > 0 && r.granted_ttl - r.ttl < 300 {
                        r.ttl = r.granted_ttl;
                    }
                }
            )
        }
        Step::Leases(request) => {
            unary!(
                client.lease,
                lease_leases,
                request,
                |r: &mut mainstay_proto::etcdserverpb::LeaseLeasesResponse| {
                    // Equal TTLs are ordered by the nanosecond of their grant.
                    r.leases.sort_by_key(|lease| lease.id);
                }
            )
        }
        Step::HashKv(request) => unary!(client.maintenance, hash_kv, request, |_: &mut _| {}),
        Step::Watch(_) | Step::CancelWatch(_) => {
            unreachable!("steps of watchers go to the watch stream")
        }
    }
}

async fn range_stream(
    client: &mut Client,
    request: &mainstay_proto::etcdserverpb::RangeRequest,
) -> (String, i64) {
    let mut merged = RangeResponse::default();
    let mut stream = match client.kv.range_stream(request.clone()).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return (refusal(&status), 0),
    };
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => {
                let Some(part) = chunk.range_response else { continue };
                merged.kvs.extend(part.kvs);
                merged.header = part.header.or(merged.header);
                merged.more |= part.more;
                merged.count += part.count;
            }
            Err(status) => return (refusal(&status), 0),
        }
    }
    strip(&mut merged.header);
    let revision = merged.header.as_ref().map_or(0, |header| header.revision);
    (format!("{merged:?}"), revision)
}

/// One stretch of a run: steps with one pair of watch streams.
pub struct Session {
    watch: WatchPair,
    seed: u64,
    at: usize,
}

impl Session {
    /// Opens the watch streams.
    pub async fn open(pair: &mut Pair, seed: u64) -> Result<Self> {
        Ok(Session { watch: WatchPair::open(pair).await?, seed, at: 0 })
    }

    /// Sends one step to both; `None` means that they answered alike.
    pub async fn step(
        &mut self,
        pair: &mut Pair,
        generator: &mut Generator,
        step: &Step,
    ) -> Result<Option<Difference>> {
        let (reference, tested) = match step {
            Step::Watch(request) => self.watch.create(request, generator.revision).await?,
            Step::CancelWatch(request) => self.watch.cancel(request).await?,
            _ => {
                let (reference, revision) = execute(&mut pair.reference, step).await;
                let (tested, _) = execute(&mut pair.tested, step).await;
                generator.revision = generator.revision.max(revision);
                if let Step::Compact(request) = step
                    && !reference.starts_with("refused")
                {
                    generator.compacted = request.revision;
                }
                (reference, tested)
            }
        };
        self.at += 1;
        Ok((reference != tested).then(|| Difference {
            seed: self.seed,
            at: self.at - 1,
            step: format!("{step:?}"),
            reference,
            tested,
        }))
    }

    /// Compares the events of all watchers.
    pub async fn finish(self, pair: &mut Pair) -> Result<Option<Difference>> {
        let (seed, at) = (self.seed, self.at);
        let events = self.watch.finish(pair).await.with_context(|| format!("seed {seed}"))?;
        Ok(events.map(|(reference, tested)| Difference {
            seed,
            at,
            step: "events of all watchers".to_string(),
            reference,
            tested,
        }))
    }
}

/// Runs one seed; `None` means that the two never differed.
pub async fn run_seed(pair: &mut Pair, seed: u64, steps: usize) -> Result<Option<Difference>> {
    let mut generator = Generator::new(seed);
    let mut session = Session::open(pair, seed).await?;
    for _ in 0..steps {
        let step = generator.step();
        if let Some(difference) = session.step(pair, &mut generator, &step).await? {
            return Ok(Some(difference));
        }
    }
    session.finish(pair).await
}
