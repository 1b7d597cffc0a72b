//! Transactions: compares, and the operations of the branch that they choose.
//!
//! **Invariant:** all compares of the whole tree are evaluated on the state before the transaction,
//! and all that could make an operation of the chosen path fail is checked, before anything is
//! executed. So a transaction is done whole or refused whole.

use std::cmp::Ordering;

use mainstay_engine::View;
use mainstay_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::response_op::Response;
use mainstay_proto::etcdserverpb::{
    Compare, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};

use crate::range::{decode_entry, header, index_entry, pairs, range};
use crate::writer::Writer;
use crate::{Error, Fatal, KeySpan, ReadAt};

/// Whether a transaction only reads, so that it needs no log entry. One with a nested transaction
/// or an empty operation counts as a write.
pub fn is_read_only_txn(request: &TxnRequest) -> bool {
    ops(request).all(|op| matches!(op.request, Some(Request::RequestRange(_))))
}

/// Whether a read-only transaction may be answered from local state.
pub fn is_serializable_txn(request: &TxnRequest) -> bool {
    ops(request)
        .all(|op| matches!(&op.request, Some(Request::RequestRange(range)) if range.serializable))
}

fn ops(request: &TxnRequest) -> impl Iterator<Item = &RequestOp> {
    request.success.iter().chain(&request.failure)
}

/// Answers a read-only transaction on a consistent view.
pub fn read_txn(view: &dyn View, at: ReadAt, request: &TxnRequest) -> Result<TxnResponse, Error> {
    let succeeded = holds(view, at, &request.compare)?;
    let branch = if succeeded { &request.success } else { &request.failure };
    let ranges = || {
        branch.iter().filter_map(|op| match &op.request {
            Some(Request::RequestRange(range)) => Some(range),
            _ => None,
        })
    };
    for range in ranges() {
        check_revision(at, range)?;
    }
    let responses = ranges()
        .map(|request| {
            let response = range(view, at, request)?;
            Ok(ResponseOp { response: Some(Response::ResponseRange(response)) })
        })
        .collect::<Result<_, Error>>()?;
    Ok(TxnResponse { header: header(at.revision), succeeded, responses })
}

/// Executes a transaction. With `skip_ranges` its ranges are not read, for members on which nobody
/// waits for the answer.
pub(crate) fn write_txn(
    writer: &mut Writer<'_, '_>,
    request: &TxnRequest,
    skip_ranges: bool,
) -> Result<TxnResponse, Error> {
    let at = writer.at();
    let mut path = Vec::new();
    choose(writer.overlay, at, request, &mut path)?;
    check(writer, at, request, &mut path.iter())?;
    let mut response = execute(writer, request, &mut path.iter(), skip_ranges)?;
    response.header = header(writer.at().revision);
    Ok(response)
}

type Path<'p> = std::slice::Iter<'p, bool>;

fn branch<'r>(request: &'r TxnRequest, path: &mut Path<'_>) -> (bool, &'r [RequestOp]) {
    let succeeded = *path.next().expect("the path has a step for each transaction on it");
    (succeeded, if succeeded { &request.success } else { &request.failure })
}

/// Appends to `path` which branch is taken, here and in the nested transactions of that branch.
fn choose(
    view: &dyn View,
    at: ReadAt,
    request: &TxnRequest,
    path: &mut Vec<bool>,
) -> Result<(), Error> {
    let succeeded = holds(view, at, &request.compare)?;
    path.push(succeeded);
    for op in if succeeded { &request.success } else { &request.failure } {
        if let Some(Request::RequestTxn(nested)) = &op.request {
            choose(view, at, nested, path)?;
        }
    }
    Ok(())
}

/// Refuses what would make an operation of the chosen path fail.
fn check(
    writer: &Writer<'_, '_>,
    at: ReadAt,
    request: &TxnRequest,
    path: &mut Path<'_>,
) -> Result<(), Error> {
    for op in branch(request, path).1 {
        match &op.request {
            Some(Request::RequestRange(range)) => check_revision(at, range)?,
            Some(Request::RequestPut(put)) => writer.check_put(put)?,
            Some(Request::RequestTxn(nested)) => check(writer, at, nested, path)?,
            Some(Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// The check of a range within a transaction, stricter than that of a range alone: a negative
/// revision is looked at.
fn check_revision(at: ReadAt, range: &RangeRequest) -> Result<(), Error> {
    match range.revision {
        0 => Ok(()),
        revision if revision > at.revision => Err(Error::FutureRevision),
        revision if revision < at.compacted => Err(Error::Compacted),
        _ => Ok(()),
    }
}

fn execute(
    writer: &mut Writer<'_, '_>,
    request: &TxnRequest,
    path: &mut Path<'_>,
    skip_ranges: bool,
) -> Result<TxnResponse, Error> {
    let (succeeded, ops) = branch(request, path);
    let mut responses = Vec::with_capacity(ops.len());
    for op in ops {
        let response = match &op.request {
            Some(Request::RequestRange(_)) if skip_ranges => {
                let header = header(writer.at().revision);
                Some(Response::ResponseRange(RangeResponse { header, ..Default::default() }))
            }
            Some(Request::RequestRange(request)) => {
                Some(Response::ResponseRange(range(writer.overlay, writer.at(), request)?))
            }
            Some(Request::RequestPut(put)) => Some(Response::ResponsePut(writer.put_request(put)?)),
            Some(Request::RequestDeleteRange(delete)) => {
                Some(Response::ResponseDeleteRange(writer.delete_request(delete)?))
            }
            Some(Request::RequestTxn(nested)) => {
                Some(Response::ResponseTxn(execute(writer, nested, path, skip_ranges)?))
            }
            None => None,
        };
        responses.push(ResponseOp { response });
    }
    // Only the outermost header gets a revision.
    Ok(TxnResponse { header: Some(ResponseHeader::default()), succeeded, responses })
}

fn holds(view: &dyn View, at: ReadAt, compares: &[Compare]) -> Result<bool, Error> {
    for compare in compares {
        if !compare_holds(view, at, compare)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a compare looks at.
#[derive(Clone, Copy, Default)]
struct Subject<'a> {
    version: i64,
    created: i64,
    modified: i64,
    lease: i64,
    value: &'a [u8],
}

/// Every key of the compare's range must satisfy it. No key at all counts as one with zeros, which
/// has no value that anything could be compared with.
fn compare_holds(view: &dyn View, at: ReadAt, compare: &Compare) -> Result<bool, Error> {
    let span = KeySpan::new(&compare.key, &compare.range_end);
    if compare.target == CompareTarget::Value as i32 {
        let kvs = pairs(view, &span, at.revision)?;
        return Ok(!kvs.is_empty()
            && kvs
                .iter()
                .all(|kv| satisfies(compare, Subject { value: &kv.value, ..Default::default() })));
    }
    let mut any = false;
    if let KeySpan::One(key) = &span {
        let entry = index_entry(view, key)?.filter(|entry| !entry.tombstone);
        let subject = entry.map_or_else(Subject::default, |entry| Subject::of(&entry));
        return Ok(satisfies(compare, subject));
    }
    if !span.is_empty() {
        let mut index = view.cursor(mainstay_engine::Family::Index, span.scan())?;
        index.seek_to_first();
        while index.valid() {
            let entry = decode_entry(index.key(), index.value())?;
            if !entry.tombstone {
                any = true;
                if !satisfies(compare, Subject::of(&entry)) {
                    return Ok(false);
                }
            }
            index.next();
        }
        index.status().map_err(Fatal::from)?;
    }
    Ok(any || satisfies(compare, Subject::default()))
}

impl Subject<'_> {
    fn of(entry: &crate::keys::IndexEntry) -> Self {
        Self {
            version: entry.version,
            created: entry.created,
            modified: entry.modified.main,
            lease: entry.lease,
            value: &[],
        }
    }
}

/// An operand of another kind than the target counts as zero. An unknown target makes both sides
/// equal, an unknown result is satisfied: etcd's behaviour.
fn satisfies(compare: &Compare, subject: Subject<'_>) -> bool {
    let union = compare.target_union.as_ref();
    let order = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => subject.version.cmp(match union {
            Some(TargetUnion::Version(operand)) => operand,
            _ => &0,
        }),
        Ok(CompareTarget::Create) => subject.created.cmp(match union {
            Some(TargetUnion::CreateRevision(operand)) => operand,
            _ => &0,
        }),
        Ok(CompareTarget::Mod) => subject.modified.cmp(match union {
            Some(TargetUnion::ModRevision(operand)) => operand,
            _ => &0,
        }),
        Ok(CompareTarget::Lease) => subject.lease.cmp(match union {
            Some(TargetUnion::Lease(operand)) => operand,
            _ => &0,
        }),
        Ok(CompareTarget::Value) => subject.value.cmp(match union {
            Some(TargetUnion::Value(operand)) => operand,
            _ => &[],
        }),
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => order.is_eq(),
        Ok(CompareResult::NotEqual) => order.is_ne(),
        Ok(CompareResult::Greater) => order.is_gt(),
        Ok(CompareResult::Less) => order.is_lt(),
        Err(_) => true,
    }
}
