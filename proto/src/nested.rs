//! The one message that nests without an end: a transaction within a transaction.
//!
//! prost decodes 100 levels of messages and no more, two of which are taken by each transaction.
//! etcd takes as many as a transaction may have operations, and what one member took the others
//! must be able to apply. So each transaction decodes its operations with a fresh budget, and the
//! depth is counted here.
//! **Invariant:** no input makes decoding use more than [`MAX_DEPTH`] levels; the stack grows with
//! them.

use std::cell::Cell;

use prost::DecodeError;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, message, skip_field};

use crate::etcdserverpb::{Compare, RequestOp};

/// Transactions that one request may have in one another.
pub const MAX_DEPTH: usize = 1_000;

/// What the error says when there are more.
pub const TOO_DEEP: &str = "transactions are nested too deep";

/// Bytes of stack that one level surely does not need, in a build without optimisation too.
const RED_ZONE: usize = 64 << 10;
/// Bytes by which the stack grows.
const GROWTH: usize = 1 << 20;

thread_local! {
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// `etcdserverpb.TxnRequest`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TxnRequest {
    /// Predicates, all of which have to hold for `success`.
    pub compare: Vec<Compare>,
    /// Operations when they hold.
    pub success: Vec<RequestOp>,
    /// Operations when they do not.
    pub failure: Vec<RequestOp>,
}

/// Leaves a level, also when decoding it fails.
struct Level;

impl Level {
    fn enter() -> Result<Self, DecodeError> {
        let depth = DEPTH.get();
        if depth >= MAX_DEPTH {
            #[allow(deprecated)]
            return Err(DecodeError::new(TOO_DEEP));
        }
        DEPTH.set(depth + 1);
        Ok(Level)
    }
}

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

fn operations(
    wire_type: WireType,
    operations: &mut Vec<RequestOp>,
    buf: &mut impl Buf,
) -> Result<(), DecodeError> {
    let _level = Level::enter()?;
    stacker::maybe_grow(RED_ZONE, GROWTH, || {
        message::merge_repeated(wire_type, operations, buf, DecodeContext::default())
    })
}

impl prost::Message for TxnRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        message::encode_repeated(1, &self.compare, buf);
        message::encode_repeated(2, &self.success, buf);
        message::encode_repeated(3, &self.failure, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => message::merge_repeated(wire_type, &mut self.compare, buf, ctx),
            2 => operations(wire_type, &mut self.success, buf),
            3 => operations(wire_type, &mut self.failure, buf),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(1, &self.compare)
            + message::encoded_len_repeated(2, &self.success)
            + message::encoded_len_repeated(3, &self.failure)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::etcdserverpb::{InternalRaftRequest, PutRequest, request_op::Request};

    fn nested(depth: usize) -> TxnRequest {
        let put = PutRequest { key: "a".into(), ..Default::default() };
        let mut request = Request::RequestPut(put);
        for _ in 1..depth {
            let success = vec![RequestOp { request: Some(request) }];
            request = Request::RequestTxn(TxnRequest { success, ..Default::default() });
        }
        TxnRequest { failure: vec![RequestOp { request: Some(request) }], ..Default::default() }
    }

    #[test]
    fn a_log_entry_holds_what_a_client_may_send() {
        for depth in [1, 49, 50, 128, MAX_DEPTH] {
            let txn = nested(depth);
            assert_eq!(TxnRequest::decode(&*txn.encode_to_vec()).unwrap(), txn, "{depth}");
            let entry = InternalRaftRequest { txn: Some(txn), ..Default::default() };
            let bytes = entry.encode_to_vec();
            assert_eq!(InternalRaftRequest::decode(&*bytes).unwrap(), entry, "{depth}");
        }
    }

    #[test]
    fn what_is_too_deep_is_refused_and_forgotten() {
        let deep = nested(MAX_DEPTH + 1).encode_to_vec();
        for _ in 0..2 {
            let error = TxnRequest::decode(&*deep).unwrap_err();
            assert!(error.to_string().ends_with(TOO_DEEP), "{error}");
        }
        assert!(TxnRequest::decode(&*nested(MAX_DEPTH).encode_to_vec()).is_ok());
    }
}
