//! Several steps as one: conditions, and what is done if they hold and if they don't.

use bytes::Bytes;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use mainstay_proto::etcdserverpb::request_op::Request;

use super::{Get, Keys};

/// A condition on a key.
#[derive(Clone, Debug, PartialEq)]
pub struct Compare(pb::Compare);

impl Compare {
    fn new(
        key: impl Into<Bytes>,
        target: CompareTarget,
        result: CompareResult,
        operand: TargetUnion,
    ) -> Self {
        Self(pb::Compare {
            result: result as i32,
            target: target as i32,
            key: key.into(),
            range_end: Bytes::new(),
            target_union: Some(operand),
        })
    }

    /// The key is not there.
    pub fn is_absent(key: impl Into<Bytes>) -> Self {
        let operand = TargetUnion::CreateRevision(0);
        Self::new(key, CompareTarget::Create, CompareResult::Equal, operand)
    }

    /// The key is there.
    pub fn is_present(key: impl Into<Bytes>) -> Self {
        let operand = TargetUnion::CreateRevision(0);
        Self::new(key, CompareTarget::Create, CompareResult::Greater, operand)
    }

    /// The key has this value.
    pub fn value_is(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        let operand = TargetUnion::Value(value.into());
        Self::new(key, CompareTarget::Value, CompareResult::Equal, operand)
    }

    /// The key was written last at this revision; 0: it is not there.
    pub fn revision_is(key: impl Into<Bytes>, revision: i64) -> Self {
        let operand = TargetUnion::ModRevision(revision);
        Self::new(key, CompareTarget::Mod, CompareResult::Equal, operand)
    }

    /// The key was written so many times since it was made; 0: it is not there.
    pub fn version_is(key: impl Into<Bytes>, version: i64) -> Self {
        let operand = TargetUnion::Version(version);
        Self::new(key, CompareTarget::Version, CompareResult::Equal, operand)
    }
}

/// Any condition of etcd's protocol.
impl From<pb::Compare> for Compare {
    fn from(compare: pb::Compare) -> Self {
        Self(compare)
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Op(Request);

impl Op {
    /// Writes a key.
    pub fn put(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        let (key, value) = (key.into(), value.into());
        Self(Request::RequestPut(pb::PutRequest { key, value, ..Default::default() }))
    }

    /// Writes a key that goes when the lease ends.
    pub fn put_with_lease(key: impl Into<Bytes>, value: impl Into<Bytes>, lease: i64) -> Self {
        let (key, value) = (key.into(), value.into());
        Self(Request::RequestPut(pb::PutRequest { key, value, lease, ..Default::default() }))
    }

    /// Reads keys.
    pub fn get(keys: impl Into<Keys>) -> Self {
        Self(Request::RequestRange(Get::new(keys).into_request()))
    }

    /// Deletes keys.
    pub fn delete(keys: impl Into<Keys>) -> Self {
        let (key, range_end) = keys.into().into_range();
        let request = pb::DeleteRangeRequest { key, range_end, ..Default::default() };
        Self(Request::RequestDeleteRange(request))
    }
}

/// Any step of etcd's protocol.
impl From<Request> for Op {
    fn from(request: Request) -> Self {
        Self(request)
    }
}

/// Conditions and steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Txn(pb::TxnRequest);

impl Txn {
    /// No conditions, which hold, and no steps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition; all must hold.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Self {
        self.0.compare.push(compare.0);
        self
    }

    /// Adds a step for when the conditions hold.
    #[must_use]
    pub fn then(mut self, op: Op) -> Self {
        self.0.success.push(pb::RequestOp { request: Some(op.0) });
        self
    }

    /// Adds a step for when they don't.
    #[must_use]
    pub fn otherwise(mut self, op: Op) -> Self {
        self.0.failure.push(pb::RequestOp { request: Some(op.0) });
        self
    }

    pub(super) fn into_request(self) -> pb::TxnRequest {
        self.0
    }
}
