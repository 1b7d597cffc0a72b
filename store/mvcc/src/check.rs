//! Checks of requests before they reach the log: what a member refuses by itself.
//!
//! The order of the checks is etcd's, since a request with two faults must get the same answer.
//! They look at the request alone. What depends on the state is checked when the entry is applied.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use crate::Error;

/// Default of `--max-txn-ops`.
pub const MAX_TXN_OPS: usize = 128;

/// Checks a Range.
pub fn check_range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if SortOrder::try_from(request.sort_order).is_err()
        || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Error::InvalidSortOption);
    }
    Ok(())
}

/// Checks a RangeStream, which offers less than a Range.
pub fn check_range_stream(request: &RangeRequest) -> Result<(), Error> {
    check_range(request)?;
    if !crate::range::in_natural_order(request) {
        return Err(Error::Unimplemented("RangeStream does not support custom sort orders".into()));
    }
    if crate::range::has_revision_filters(request) {
        return Err(Error::Unimplemented("RangeStream does not support revision filters".into()));
    }
    Ok(())
}

/// Checks a Put.
pub fn check_put(request: &PutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

/// Checks a DeleteRange.
pub fn check_delete_range(request: &DeleteRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks a Txn: number of operations, each operation, and keys that are changed twice.
pub fn check_txn(request: &TxnRequest, max_ops: usize) -> Result<(), Error> {
    check_ops(request, max_ops)?;
    check_overlaps(&request.success)?;
    check_overlaps(&request.failure)?;
    Ok(())
}

/// A nested transaction gets what its parent leaves of `max_ops`; so does the depth have an end.
fn check_ops(request: &TxnRequest, max_ops: usize) -> Result<(), Error> {
    let ops = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = max_ops.checked_sub(ops) else {
        return Err(Error::TooManyOps);
    };
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(range)) => check_range(range)?,
            Some(Request::RequestPut(put)) => check_put(put)?,
            Some(Request::RequestDeleteRange(delete)) => check_delete_range(delete)?,
            Some(Request::RequestTxn(txn)) => check_ops(txn, left)?,
            // etcd's answer to an operation without content.
            None => return Err(Error::KeyNotFound),
        }
    }
    Ok(())
}

/// What a list of operations may put and delete, its nested transactions included.
#[derive(Default)]
struct Touched<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Spans<'a>,
}

/// Refuses a key that is put twice, or put and deleted, on one path.
///
/// A deletion "from key on" (`range_end` = `\0`) looks like an empty span here, so a put behind its
/// start is accepted. That is etcd's behaviour too.
fn check_overlaps(ops: &[RequestOp]) -> Result<Touched<'_>, Error> {
    let mut touched = Touched::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            touched.deletes.add_request(delete);
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(txn)) = &op.request else { continue };
        let then = check_overlaps(&txn.success)?;
        let otherwise = check_overlaps(&txn.failure)?;
        for key in &then.puts {
            touched.put(key)?;
        }
        for key in &otherwise.puts {
            // The two branches exclude each other: only a put of a sibling counts.
            if touched.puts.contains(key) && !then.puts.contains(key) {
                return Err(Error::DuplicateKey);
            }
            if touched.deletes.contains(key) {
                return Err(Error::DuplicateKey);
            }
            touched.puts.insert(key);
        }
        touched.deletes.append(then.deletes);
        touched.deletes.append(otherwise.deletes);
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            touched.put(&put.key)?;
        }
    }
    Ok(touched)
}

impl<'a> Touched<'a> {
    fn put(&mut self, key: &'a [u8]) -> Result<(), Error> {
        if self.deletes.contains(key) || !self.puts.insert(key) {
            return Err(Error::DuplicateKey);
        }
        Ok(())
    }
}

/// A set of spans of keys: disjoint, by start. The end is exclusive; a point has no end.
#[derive(Default)]
struct Spans<'a>(BTreeMap<&'a [u8], End<'a>>);

/// End of a span.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End<'a> {
    Point,
    Before(&'a [u8]),
}

impl<'a> Spans<'a> {
    fn add_request(&mut self, delete: &'a DeleteRangeRequest) {
        if delete.range_end.is_empty() {
            self.add(&delete.key, End::Point);
        } else if delete.key < delete.range_end {
            self.add(&delete.key, End::Before(&delete.range_end));
        }
    }

    fn add(&mut self, start: &'a [u8], end: End<'a>) {
        if self.contains(start) && end == End::Point {
            return;
        }
        let End::Before(mut last) = end else {
            self.0.insert(start, end);
            return;
        };
        let mut first = start;
        if let Some((before, End::Before(to))) = self.0.range(..=start).next_back()
            && *to >= start
        {
            first = before;
            last = last.max(to);
        }
        // Everything that begins within the new span is taken into it.
        loop {
            let within = self.0.range(first..last).next().map(|(begin, end)| (*begin, *end));
            let Some((begin, end)) = within else { break };
            if let End::Before(to) = end {
                last = last.max(to);
            }
            self.0.remove(begin);
        }
        self.0.insert(first, End::Before(last));
    }

    fn append(&mut self, other: Spans<'a>) {
        for (start, end) in other.0 {
            self.add(start, end);
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        match self.0.range(..=key).next_back() {
            Some((start, End::Point)) => *start == key,
            Some((_, End::Before(end))) => key < *end,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{delete, nested, put, range, txn};
    use proptest::prelude::*;

    #[test]
    fn single_requests() {
        assert_eq!(check_put(&PutRequest::default()), Err(Error::EmptyKey));
        let value = PutRequest {
            key: "a".into(),
            value: "1".into(),
            ignore_value: true,
            ..Default::default()
        };
        assert_eq!(check_put(&value), Err(Error::ValueProvided));
        let lease =
            PutRequest { key: "a".into(), lease: 1, ignore_lease: true, ..Default::default() };
        assert_eq!(check_put(&lease), Err(Error::LeaseProvided));
        assert_eq!(check_delete_range(&DeleteRangeRequest::default()), Err(Error::EmptyKey));
        let sort = RangeRequest { key: "a".into(), sort_target: 9, ..Default::default() };
        assert_eq!(check_range(&sort), Err(Error::InvalidSortOption));
        let descending = RangeRequest { key: "a".into(), sort_order: 2, ..Default::default() };
        assert_eq!(check_range(&descending), Ok(()));
        assert!(matches!(check_range_stream(&descending), Err(Error::Unimplemented(_))));
        let filter = RangeRequest { key: "a".into(), min_mod_revision: 1, ..Default::default() };
        assert!(matches!(check_range_stream(&filter), Err(Error::Unimplemented(_))));
    }

    #[test]
    fn number_of_operations_is_limited_and_shared_with_nested_transactions() {
        let many = |n: usize| (0..n).map(|i| put(&format!("k{i}"), "v")).collect::<Vec<_>>();
        assert_eq!(check_txn(&txn(vec![], many(128), vec![]), 128), Ok(()));
        assert_eq!(check_txn(&txn(vec![], many(129), vec![]), 128), Err(Error::TooManyOps));
        let inner = |n| txn(vec![], vec![nested(txn(vec![], many(n), vec![]))], vec![]);
        assert_eq!(check_txn(&inner(127), 128), Ok(()));
        assert_eq!(check_txn(&inner(128), 128), Err(Error::TooManyOps));
    }

    #[test]
    fn the_first_fault_decides() {
        let compare = mainstay_proto::etcdserverpb::Compare::default();
        let request = txn(vec![compare], vec![RequestOp { request: None }], vec![]);
        assert_eq!(check_txn(&request, 128), Err(Error::EmptyKey));
        let request = txn(vec![], vec![RequestOp { request: None }, put("", "")], vec![]);
        assert_eq!(check_txn(&request, 128), Err(Error::KeyNotFound));
        let request = txn(vec![], vec![put("a", ""), put("a", ""), put("", "")], vec![]);
        assert_eq!(check_txn(&request, 128), Err(Error::EmptyKey));
    }

    #[test]
    fn keys_that_are_changed_twice() {
        let check = |ops| check_txn(&txn(vec![], ops, vec![]), 128);
        let twice = Err(Error::DuplicateKey);
        assert_eq!(check(vec![put("a", "1"), put("a", "2")]), twice);
        assert_eq!(check(vec![put("b", "1"), delete("a", "c")]), twice);
        assert_eq!(check(vec![put("b", "1"), delete("b", "")]), twice);
        assert_eq!(check(vec![put("c", "1"), delete("a", "c")]), Ok(()));
        assert_eq!(check(vec![delete("a", "c"), delete("b", "d"), range("a", "d")]), Ok(()));
        assert_eq!(check(vec![put("b", "1"), delete("a", "\0")]), Ok(()));
        assert_eq!(check_txn(&txn(vec![], vec![put("a", "1")], vec![put("a", "2")]), 128), Ok(()));
        let inner = |then, otherwise| nested(txn(vec![], then, otherwise));
        assert_eq!(check(vec![inner(vec![put("a", "")], vec![put("a", "")])]), Ok(()));
        assert_eq!(check(vec![inner(vec![put("a", "")], vec![]), put("a", "")]), twice);
        assert_eq!(check(vec![inner(vec![], vec![put("a", "")]), delete("a", "b")]), twice);
        assert_eq!(check(vec![inner(vec![delete("a", "b")], vec![]), put("a", "")]), twice);
        assert_eq!(
            check(vec![inner(vec![put("a", "")], vec![]), inner(vec![], vec![put("a", "")])]),
            twice
        );
    }

    proptest! {
        #[test]
        fn spans_hold_what_was_added(
            spans in prop::collection::vec(("[a-d]{1,2}", "[a-d]{0,2}"), 0..8),
            keys in prop::collection::vec("[a-e]{1,3}", 1..8),
        ) {
            let requests: Vec<_> = spans.iter().map(|(key, end)| DeleteRangeRequest {
                key: key.clone().into(), range_end: end.clone().into(), ..Default::default()
            }).collect();
            let mut set = Spans::default();
            for request in &requests {
                set.add_request(request);
            }
            for key in keys {
                let expected = spans.iter().any(|(from, to)| {
                    if to.is_empty() { *from == key } else { *from <= key && key < *to }
                });
                prop_assert_eq!(set.contains(key.as_bytes()), expected);
            }
        }
    }
}
