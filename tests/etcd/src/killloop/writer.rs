//! One client that reads and writes without end, and remembers what it was told.
//!
//! Input: members, a seed. Output: its operations. A client asks one member at a time and goes to
//! another one after an error, as client libraries do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use mainstay_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare,
    request_op, response_op,
};
use mainstay_proto::mvccpb::KeyValue;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tonic::{Code, Status};

use super::operation::{Answer, Operation, Outcome, Request, Version};
use crate::client::Client;
use crate::ops::connect;

/// Longer than any server's own limit.
const REQUEST_TIME: Duration = Duration::from_secs(15);
const OWN_KEYS: u32 = 6;
const SHARED_KEYS: u32 = 4;
const UNKNOWN_LEASE: i64 = 0x7007;

/// What all clients and watchers of a run share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The newest revision that anybody has seen.
    pub(super) seen: AtomicI64,
    /// Clients end.
    pub(super) stop: AtomicBool,
    /// Operations by how they ended: acked, failed, unknown.
    pub(super) counts: [AtomicU64; 3],
    /// How often a watcher lost its stream.
    pub(super) breaks: AtomicU64,
}

/// Start of the keys that only one client writes.
pub(super) fn own_prefix(client: u32) -> Bytes {
    format!("own/{client:02}/").into()
}

/// Start of the keys that all clients fight for.
pub(super) const SHARED_PREFIX: &str = "shared/";

struct Writer {
    client: u32,
    rng: ChaCha8Rng,
    /// Mod revisions of shared keys as last seen.
    known: HashMap<Bytes, i64>,
    count: u64,
}

impl Writer {
    fn value(&mut self) -> Bytes {
        self.count += 1;
        format!("client {} value {}", self.client, self.count).into()
    }

    fn own_key(&mut self) -> Bytes {
        let number = self.rng.random_range(0..OWN_KEYS);
        format!("own/{:02}/{number}", self.client).into()
    }

    fn request(&mut self) -> Request {
        let shared = format!("{SHARED_PREFIX}{}", self.rng.random_range(0..SHARED_KEYS));
        let shared = Bytes::from(shared);
        match self.rng.random_range(0..100) {
            0..42 => Request::Put { key: self.own_key(), value: self.value() },
            42..46 => Request::Refusable { key: self.own_key(), value: self.value() },
            46..54 => Request::Delete { key: self.own_key() },
            54..56 => Request::DeletePrefix { prefix: own_prefix(self.client) },
            56..78 => Request::Swap {
                expected: self.known.get(&shared).copied().unwrap_or(0),
                key: shared,
                value: self.value(),
                mirror: format!("own/{:02}/mirror", self.client).into(),
                mirror_value: self.value(),
            },
            at => {
                let key = if self.rng.random_bool(0.5) { shared } else { self.own_key() };
                Request::Get { key, serializable: at % 2 == 0 }
            }
        }
    }

    fn learn(&mut self, operation: &Operation) {
        let Outcome::Acked { revision, answer } = &operation.outcome else { return };
        let (Request::Swap { key, .. } | Request::Get { key, .. }) = &operation.request else {
            return;
        };
        let known = match answer {
            Answer::Swapped => *revision,
            Answer::Found(found) => found.as_ref().map_or(0, |found| found.revision),
            _ => return,
        };
        // A serializable read may be older than what is known; the next swap then fails, which is
        // a case worth having.
        self.known.insert(key.clone(), known);
    }
}

/// A copy: the bytes of an answer would keep the whole buffer that it came in.
fn version(kv: KeyValue) -> Version {
    Version { revision: kv.mod_revision, value: Bytes::copy_from_slice(&kv.value) }
}

/// The revision and content of an answer; sends one request.
async fn send(client: &mut Client, request: &Request) -> Result<(i64, Answer), Status> {
    let broken = || Status::internal("an answer without its parts");
    let (header, answer) = match request.clone() {
        Request::Put { key, value } => {
            let put = PutRequest { key, value, prev_kv: true, ..Default::default() };
            let answer = client.kv.put(put).await?.into_inner();
            (answer.header, Answer::Put(answer.prev_kv.map(version)))
        }
        Request::Refusable { key, value } => {
            let put = PutRequest { key, value, lease: UNKNOWN_LEASE, ..Default::default() };
            let answer = client.kv.put(put).await?.into_inner();
            (answer.header, Answer::Put(answer.prev_kv.map(version)))
        }
        Request::Delete { key } => {
            delete(client, DeleteRangeRequest { key, prev_kv: true, ..Default::default() }).await?
        }
        Request::DeletePrefix { prefix } => {
            let range_end = prefix_end(&prefix);
            delete(client, DeleteRangeRequest { key: prefix, range_end, prev_kv: true }).await?
        }
        Request::Get { key, serializable } => {
            let range = RangeRequest { key, serializable, ..Default::default() };
            let answer = client.kv.range(range).await?.into_inner();
            (answer.header, Answer::Found(answer.kvs.into_iter().next().map(version)))
        }
        Request::Swap { key, expected, value, mirror, mirror_value } => {
            let put = |key, value| RequestOp {
                request: Some(request_op::Request::RequestPut(PutRequest {
                    key,
                    value,
                    ..Default::default()
                })),
            };
            let range = RangeRequest { key: key.clone(), ..Default::default() };
            let txn = TxnRequest {
                compare: vec![Compare {
                    result: compare::CompareResult::Equal.into(),
                    target: compare::CompareTarget::Mod.into(),
                    key: key.clone(),
                    target_union: Some(compare::TargetUnion::ModRevision(expected)),
                    ..Default::default()
                }],
                success: vec![put(key, value), put(mirror, mirror_value)],
                failure: vec![RequestOp {
                    request: Some(request_op::Request::RequestRange(range)),
                }],
            };
            let answer = client.kv.txn(txn).await?.into_inner();
            let content = if answer.succeeded {
                Answer::Swapped
            } else {
                let first = answer.responses.into_iter().next().and_then(|op| op.response);
                let Some(response_op::Response::ResponseRange(range)) = first else {
                    return Err(broken());
                };
                Answer::Found(range.kvs.into_iter().next().map(version))
            };
            (answer.header, content)
        }
    };
    Ok((header.ok_or_else(broken)?.revision, answer))
}

async fn delete(
    client: &mut Client,
    request: DeleteRangeRequest,
) -> Result<(Option<mainstay_proto::etcdserverpb::ResponseHeader>, Answer), Status> {
    let answer = client.kv.delete_range(request).await?.into_inner();
    let previous = answer
        .prev_kvs
        .into_iter()
        .map(|kv| (Bytes::copy_from_slice(&kv.key), version(kv)))
        .collect();
    Ok((answer.header, Answer::Deleted(answer.deleted, previous)))
}

/// The end of the range of all keys with a start that ends in ASCII.
pub(super) fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// Whether an error says that nothing was done and nothing will be.
fn is_definite(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => true,
        // etcd sends these before it proposes, with a code that says nothing.
        _ => status.message().contains("too many requests"),
    }
}

/// Reads and writes until it is told to stop.
pub(super) async fn write(
    client: u32,
    seed: u64,
    urls: Vec<String>,
    shared: Arc<Shared>,
) -> Vec<Operation> {
    let rng = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1000) + u64::from(client));
    let mut writer = Writer { client, rng, known: HashMap::new(), count: 0 };
    let mut operations = Vec::new();
    let mut connection: Option<Client> = None;
    let mut turn = client as usize;
    while !shared.stop.load(Ordering::Relaxed) {
        let Some(member) = &mut connection else {
            turn += 1;
            connection = connect(&urls[turn % urls.len()]).await.ok();
            if connection.is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            continue;
        };
        let request = writer.request();
        let floor = shared.seen.load(Ordering::SeqCst);
        let outcome = match tokio::time::timeout(REQUEST_TIME, send(member, &request)).await {
            Ok(Ok((revision, answer))) => {
                shared.seen.fetch_max(revision, Ordering::SeqCst);
                Outcome::Acked { revision, answer }
            }
            Ok(Err(status)) if is_definite(&status) => Outcome::Failed(status.message().into()),
            Ok(Err(status)) => {
                Outcome::Unknown(format!("{:?}: {}", status.code(), status.message()))
            }
            Err(_) => Outcome::Unknown(format!("no answer in {REQUEST_TIME:?}")),
        };
        let count = match &outcome {
            Outcome::Acked { .. } => 0,
            Outcome::Failed(_) => 1,
            Outcome::Unknown(_) => {
                connection = None;
                2
            }
        };
        shared.counts[count].fetch_add(1, Ordering::Relaxed);
        let operation = Operation { client, floor, request, outcome };
        writer.learn(&operation);
        operations.push(operation);
    }
    operations
}
