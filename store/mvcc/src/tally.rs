//! How much entries did to the keys, for metrics.
//!
//! Input: the answer to an entry and the events that it caused. Output: sums.
//! **Invariant:** every member counts the same for the same entries.

use mainstay_proto::etcdserverpb::TxnResponse;
use mainstay_proto::etcdserverpb::response_op::Response as OpResponse;

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
    /// Ranges of transactions, and ranges in the log.
    pub ranges: u64,
    /// Transactions that did more than one of these.
    pub txns: u64,
}

impl Tally {
    /// Counts one entry.
    pub(crate) fn add(&mut self, response: &Response, events: &[RevisionEvents]) {
        let events = || events.iter().flat_map(|step| step.events.iter());
        match response {
            Response::Put(_) => self.puts += 1,
            Response::DeleteRange(_) => self.deletes += 1,
            Response::Range(_) => self.ranges += 1,
            Response::LeaseRevoke(_) => self.deletes += events().count() as u64,
            Response::Txn(txn) => {
                let before = self.operations();
                self.add_txn(txn);
                self.txns += u64::from(self.operations() > before + 1);
            }
            _ => return,
        }
        let puts = events().filter(|event| event.kind == EventKind::Put);
        self.put_bytes +=
            puts.map(|event| (event.kv.key.len() + event.kv.value.len()) as u64).sum::<u64>();
    }

    fn operations(&self) -> u64 {
        self.puts + self.deletes + self.ranges
    }

    fn add_txn(&mut self, txn: &TxnResponse) {
        for response in txn.responses.iter().filter_map(|op| op.response.as_ref()) {
            match response {
                OpResponse::ResponsePut(_) => self.puts += 1,
                OpResponse::ResponseDeleteRange(_) => self.deletes += 1,
                OpResponse::ResponseRange(_) => self.ranges += 1,
                OpResponse::ResponseTxn(nested) => self.add_txn(nested),
            }
        }
    }
}
