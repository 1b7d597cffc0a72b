//! What locks and elections are made of: keys under a prefix, each owned by a lease, of which the
//! one that was created first wins.
//!
//! Input: names and leases. Output: transactions, ranges and watches on this member's own store.
//! The layout of keys and the order of steps are those of etcd's client library, so clients that
//! run the recipe themselves and clients of these services exclude each other.
//! **Invariant:** who waits watches one key only, the last one before his own: a release wakes one
//! waiter, and they come in the order of their keys.

use bytes::Bytes;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use mainstay_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use mainstay_proto::etcdserverpb::request_op::Request as Op;
use mainstay_proto::etcdserverpb::response_op::Response as OpResponse;
use mainstay_proto::mvccpb::KeyValue;
use mainstay_proto::mvccpb::event::EventType;
use mainstay_watch::{WatchRequests, WatchResponses};

use crate::auth::{By, Caller};
use crate::core::Core;
use crate::error::{Error, Result};

/// Seconds that the lease of a client lives that names none.
const OWN_LEASE: i64 = 60;

/// `name/`, under which all keys of a lock or election are.
pub(super) fn prefix(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

/// `name/LEASE` with the lease in hexadecimal.
pub(super) fn own_key(prefix: &[u8], lease: i64) -> Bytes {
    let sign = if lease < 0 { "-" } else { "" };
    Bytes::from([prefix, format!("{sign}{:x}", lease.unsigned_abs()).as_bytes()].concat())
}

/// Where a prefix that ends with a slash ends.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end.into()
}

/// The given lease, or a new one that nobody renews.
pub(super) async fn lease_or_new(core: &Core, caller: &Caller, lease: i64) -> Result<i64> {
    if lease != 0 {
        return Ok(lease);
    }
    let request = pb::LeaseGrantRequest { ttl: OWN_LEASE, id: 0 };
    Ok(core.lease_grant(By::new(caller.clone(), request)).await?.id)
}

/// The request for the key under a prefix that was created first.
pub(super) fn first_created(prefix: &[u8]) -> pb::RangeRequest {
    pb::RangeRequest {
        key: Bytes::copy_from_slice(prefix),
        range_end: prefix_end(prefix),
        limit: 1,
        sort_order: SortOrder::Ascend as i32,
        sort_target: SortTarget::Create as i32,
        ..Default::default()
    }
}

/// The request for the key under a prefix that was created last, up to a revision.
fn last_created(prefix: &[u8], up_to: i64) -> pb::RangeRequest {
    pb::RangeRequest {
        sort_order: SortOrder::Descend as i32,
        max_create_revision: up_to,
        ..first_created(prefix)
    }
}

/// The request for one key.
pub(super) fn get(key: &Bytes) -> pb::RangeRequest {
    pb::RangeRequest { key: key.clone(), ..Default::default() }
}

/// A put under a lease, as an operation.
pub(super) fn put(key: &Bytes, value: Bytes, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key: key.clone(), value, lease, ..Default::default() };
    pb::RequestOp { request: Some(Op::RequestPut(put)) }
}

/// A range, as an operation.
pub(super) fn range(request: pb::RangeRequest) -> pb::RequestOp {
    pb::RequestOp { request: Some(Op::RequestRange(request)) }
}

/// A deletion, as an operation.
pub(super) fn delete(key: &Bytes) -> pb::RequestOp {
    let request = pb::DeleteRangeRequest { key: key.clone(), ..Default::default() };
    pb::RequestOp { request: Some(Op::RequestDeleteRange(request)) }
}

/// A transaction that asks whether `key` was created at `revision` (0: is not there).
pub(super) fn if_created_at(
    key: &Bytes,
    revision: i64,
    success: Vec<pb::RequestOp>,
    failure: Vec<pb::RequestOp>,
) -> pb::TxnRequest {
    let compare = pb::Compare {
        result: CompareResult::Equal as i32,
        target: CompareTarget::Create as i32,
        key: key.clone(),
        range_end: Bytes::new(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
    };
    pb::TxnRequest { compare: vec![compare], success, failure }
}

/// The first pair that the operation number `at` of a transaction found.
pub(super) fn found(response: &pb::TxnResponse, at: usize) -> Option<&KeyValue> {
    match response.responses.get(at)?.response.as_ref()? {
        OpResponse::ResponseRange(range) => range.kvs.first(),
        _ => None,
    }
}

/// The revision in a response's header.
pub(super) fn revision(header: &Option<pb::ResponseHeader>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

/// Waits until no key under the prefix is left that was created up to a revision.
pub(super) async fn wait_for_deletes(
    core: &Core,
    caller: &Caller,
    prefix: &[u8],
    up_to: i64,
) -> Result<()> {
    loop {
        let response = core.range(By::new(caller.clone(), last_created(prefix, up_to))).await?;
        let Some(last) = response.kvs.first() else { return Ok(()) };
        let mut watch = LocalWatch::open(
            core,
            caller,
            pb::WatchCreateRequest {
                key: last.key.clone(),
                start_revision: revision(&response.header),
                ..Default::default()
            },
        )
        .await?;
        loop {
            let response = watch.next().await?;
            if response.events.iter().any(|event| event.r#type() == EventType::Delete) {
                break;
            }
        }
    }
}

/// One watcher inside the server.
pub(super) struct LocalWatch {
    responses: WatchResponses,
    #[expect(dead_code, reason = "the stream lives as long as both of its sides")]
    requests: WatchRequests,
}

impl LocalWatch {
    pub(super) async fn open(
        core: &Core,
        caller: &Caller,
        request: pb::WatchCreateRequest,
    ) -> Result<Self> {
        let request = core.watch_request(caller, request).await?;
        let (mut requests, responses) = core.watch.open();
        let created = requests.create(request).await;
        created.map_err(|_| Error::Stopped)?;
        Ok(Self { responses, requests })
    }

    /// The next response with events.
    pub(super) async fn next(&mut self) -> Result<pb::WatchResponse> {
        loop {
            let frame = self.responses.recv().await.ok_or(Error::Stopped)?;
            let response = frame.to_message();
            if response.compact_revision != 0 {
                return Err(Error::Compacted);
            }
            if response.canceled {
                return Err(Error::Raw(response.cancel_reason.into()));
            }
            if !response.events.is_empty() {
                return Ok(response);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_etcds_clients() {
        let under = prefix(b"jobs");
        assert_eq!(own_key(&under, 0x694d_71dd_acfd_a227), "jobs/694d71ddacfda227");
        assert_eq!(own_key(&under, -77), "jobs/-4d");
        assert_eq!(prefix_end(&under), "jobs0");
    }
}
