//! Short forms of requests for the tests.

use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

pub(crate) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

pub(crate) fn put(key: &str, value: &str) -> RequestOp {
    op(Request::RequestPut(PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    }))
}

pub(crate) fn delete(key: &str, range_end: &str) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..Default::default()
    }))
}

pub(crate) fn range(key: &str, range_end: &str) -> RequestOp {
    op(Request::RequestRange(RangeRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..Default::default()
    }))
}

pub(crate) fn nested(request: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(request))
}

pub(crate) fn txn(
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
) -> TxnRequest {
    TxnRequest { compare, success, failure }
}
