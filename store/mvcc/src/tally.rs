//! How much entries did to the keys, for metrics.
//!
//! Input: an entry's request, its answer and the events that it caused. Output: sums.
//! **Invariant:** every member counts the same for the same entries.

use mainstay_proto::etcdserverpb::request_op::Request as Op;
use mainstay_proto::etcdserverpb::response_op::Response as OpResponse;
use mainstay_proto::etcdserverpb::{
    DeleteRangeRequest, InternalRaftRequest, PutRequest, TxnRequest, TxnResponse,
};

use crate::{EventKind, Response, RevisionEvents};

/// What a run of entries did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Puts, those of transactions included.
    pub puts: u64,
    /// Bytes of their keys and values.
    pub put_bytes: u64,
    /// Deletions, those of transactions included; one for each key of a revoked lease.
    pub deletes: u64,
    /// Ranges and compares of transactions, reads of previous pairs, and ranges in the log.
    pub ranges: u64,
    /// Requests that did more than one of these.
    pub txns: u64,
}

impl Tally {
    /// Counts one entry.
    pub(crate) fn add(
        &mut self,
        request: &InternalRaftRequest,
        response: &Response,
        events: &[RevisionEvents],
    ) {
        let events = || events.iter().flat_map(|step| step.events.iter());
        let before = self.operations();
        let mut compares = 0;
        match response {
            Response::Put(_) => self.add_put(request.put.as_ref()),
            Response::DeleteRange(_) => self.add_delete(request.delete_range.as_ref()),
            Response::Range(_) => self.ranges += 1,
            Response::LeaseRevoke(_) => self.deletes += events().count() as u64,
            Response::Txn(response) => {
                compares = request.txn.as_ref().map_or(0, |txn| self.add_txn(txn, response));
            }
            _ => return,
        }
        self.txns += u64::from(self.operations() > before + 1);
        // The compares of a transaction come before it, as a read of their own.
        self.txns += u64::from(compares > 1);
        self.ranges += compares;
        let puts = events().filter(|event| event.kind == EventKind::Put);
        self.put_bytes +=
            puts.map(|event| (event.kv.key.len() + event.kv.value.len()) as u64).sum::<u64>();
    }

    fn operations(&self) -> u64 {
        self.puts + self.deletes + self.ranges
    }

    fn add_put(&mut self, put: Option<&PutRequest>) {
        let reads = |put: &PutRequest| put.prev_kv || put.ignore_value || put.ignore_lease;
        self.puts += 1;
        self.ranges += u64::from(put.is_some_and(reads));
    }

    fn add_delete(&mut self, delete: Option<&DeleteRangeRequest>) {
        self.deletes += 1;
        self.ranges += u64::from(delete.is_some_and(|delete| delete.prev_kv));
    }

    /// Counts the operations, and gives the number of compares.
    fn add_txn(&mut self, request: &TxnRequest, response: &TxnResponse) -> u64 {
        let mut compares = request.compare.len() as u64;
        let branch = if response.succeeded { &request.success } else { &request.failure };
        for (op, done) in branch.iter().zip(&response.responses) {
            match (&op.request, &done.response) {
                (Some(Op::RequestPut(put)), _) => self.add_put(Some(put)),
                (Some(Op::RequestDeleteRange(delete)), _) => self.add_delete(Some(delete)),
                (Some(Op::RequestRange(_)), _) => self.ranges += 1,
                (Some(Op::RequestTxn(nested)), Some(OpResponse::ResponseTxn(done))) => {
                    compares += self.add_txn(nested, done);
                }
                (Some(Op::RequestTxn(_)) | None, _) => {}
            }
        }
        compares
    }
}
