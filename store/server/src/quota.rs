//! What a request is reckoned to cost in the engine, by etcd's estimates.

use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{InternalRaftRequest, PutRequest, RequestOp, TxnRequest};

/// A pair beside its key and value.
const PAIR: u64 = 256;
/// A lease.
pub(crate) const LEASE: u64 = 64;

/// The cost of a put.
pub(crate) fn cost_of_put(request: &PutRequest) -> u64 {
    PAIR + request.key.len() as u64 + request.value.len() as u64
}

/// The cost of the more costly branch of a transaction; 0 when it puts nothing.
pub(crate) fn cost_of_txn(request: &TxnRequest) -> u64 {
    let branch = |ops: &[RequestOp]| -> u64 { ops.iter().map(cost_of_op).sum() };
    branch(&request.success).max(branch(&request.failure))
}

fn cost_of_op(op: &RequestOp) -> u64 {
    match &op.request {
        Some(Request::RequestPut(put)) => cost_of_put(put),
        Some(Request::RequestTxn(txn)) => cost_of_txn(txn),
        _ => 0,
    }
}

/// The cost of an entry of the log; 0 when it needs no space.
pub(crate) fn cost_of_entry(request: &InternalRaftRequest) -> u64 {
    match request {
        InternalRaftRequest { put: Some(put), .. } => cost_of_put(put),
        InternalRaftRequest { txn: Some(txn), .. } => cost_of_txn(txn),
        InternalRaftRequest { lease_grant: Some(_), .. } => LEASE,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: usize) -> PutRequest {
        PutRequest { key: "key".into(), value: vec![0; value].into(), ..Default::default() }
    }

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    #[test]
    fn the_costlier_branch_counts_and_nested_puts_too() {
        assert_eq!(cost_of_put(&put(10)), 269);
        let nested =
            TxnRequest { success: vec![op(Request::RequestPut(put(1)))], ..Default::default() };
        let txn = TxnRequest {
            success: vec![op(Request::RequestPut(put(10)))],
            failure: vec![
                op(Request::RequestPut(put(100))),
                op(Request::RequestTxn(nested)),
                op(Request::RequestRange(Default::default())),
            ],
            ..Default::default()
        };
        assert_eq!(cost_of_txn(&txn), 359 + 260);
        assert_eq!(cost_of_entry(&InternalRaftRequest::default()), 0);
    }
}
