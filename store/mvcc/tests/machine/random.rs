//! Random histories against the model: answers, ranges at every revision, events, hashes, the
//! physical rows after compactions, and independence of how entries are cut into batches.

use std::collections::BTreeMap;

use mainstay_engine::{Engine, Family, MemEngine, View};
use mainstay_mvcc::buckets::LIVE_KEYS;
use mainstay_mvcc::keys::{IndexEntry, RowKey, history_key, history_value, lease_key};
use mainstay_mvcc::{
    CatchUpLimits, EventKind, Limits, RangeChunks, Revision, RevisionEvents, StateMachine,
    check_txn, compaction_hash, events_between, kv_at,
};
use mainstay_proto::etcdserverpb::compare::TargetUnion;
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, PutRequest, RangeRequest, RangeResponse,
    RequestOp, TxnRequest,
};
use mainstay_proto::mvccpb::KeyValue;
use proptest::prelude::*;
use prost::Message;

use crate::model::{Model, within};
use crate::store::{Store, compact, grant, outcome, request, revoke, rows};

/// One step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Request(Box<InternalRaftRequest>),
    /// Compact so many revisions before the current one.
    Compact(i64),
    Slice(usize),
    Reopen,
}

fn key() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "a\0", "a\0\u{1}", "ab", "b", "ba", "c"])
}

fn range_end() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        4 => Just(""),
        2 => prop::sample::select(vec!["a\0", "ab", "b", "c", "d"]),
        1 => Just("\0"),
    ]
}

fn lease() -> impl Strategy<Value = i64> {
    prop_oneof![5 => Just(0i64), 1 => Just(7), 1 => Just(-8)]
}

fn put() -> impl Strategy<Value = PutRequest> {
    (key(), "[xyz]{0,2}", lease(), any::<bool>(), 0..10u8).prop_map(
        |(key, value, lease, prev_kv, ignore)| {
            let (ignore_value, ignore_lease) =
                (ignore == 0 || ignore == 2, ignore == 1 || ignore == 2);
            PutRequest {
                key: key.into(),
                value: if ignore_value { "".into() } else { value.into() },
                lease: if ignore_lease { 0 } else { lease },
                prev_kv,
                ignore_value,
                ignore_lease,
            }
        },
    )
}

fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (key(), range_end(), any::<bool>()).prop_map(|(key, end, prev_kv)| DeleteRangeRequest {
        key: key.into(),
        range_end: end.into(),
        prev_kv,
    })
}

fn range() -> impl Strategy<Value = RangeRequest> {
    let shape = (key(), range_end(), -1..4i64, 0..3i32, 0..5i32);
    let bound = || prop_oneof![4 => Just(0i64), 1 => 1..15i64];
    let bounds = (bound(), bound(), bound(), bound());
    let flags = (0..4u8, 0..6u8, prop_oneof![3 => Just(0i64), 1 => -2..15i64]);
    (shape, bounds, flags).prop_map(|(shape, bounds, flags)| RangeRequest {
        key: shape.0.into(),
        range_end: shape.1.into(),
        limit: shape.2,
        revision: flags.2,
        sort_order: shape.3,
        sort_target: shape.4,
        serializable: false,
        keys_only: flags.0 == 0,
        count_only: flags.1 == 0,
        min_mod_revision: bounds.0,
        max_mod_revision: bounds.1,
        min_create_revision: bounds.2,
        max_create_revision: bounds.3,
    })
}

fn compare() -> impl Strategy<Value = Compare> {
    let union = (0..5i32, 0..6i64, "[xyz]{0,2}", lease());
    (key(), range_end(), 0..4i32, union).prop_map(|(key, end, result, union)| {
        let (target, number, value, lease) = union;
        let operand = match target {
            0 => TargetUnion::Version(number),
            1 => TargetUnion::CreateRevision(number),
            2 => TargetUnion::ModRevision(number),
            3 => TargetUnion::Value(value.into()),
            _ => TargetUnion::Lease(lease),
        };
        Compare {
            result,
            target,
            key: key.into(),
            range_end: end.into(),
            target_union: Some(operand),
        }
    })
}

fn txn() -> impl Strategy<Value = TxnRequest> {
    let flat = prop_oneof![
        3 => put().prop_map(Request::RequestPut),
        2 => delete().prop_map(Request::RequestDeleteRange),
        1 => range().prop_map(Request::RequestRange),
    ];
    let txn = |op: BoxedStrategy<Request>| {
        let ops = move || {
            prop::collection::vec(op.clone(), 0..4).prop_map(|ops| {
                ops.into_iter().map(|op| RequestOp { request: Some(op) }).collect::<Vec<_>>()
            })
        };
        (prop::collection::vec(compare(), 0..2), ops(), ops())
            .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
    };
    let inner = txn(flat.clone().boxed());
    txn(prop_oneof![5 => flat, 1 => inner.prop_map(Request::RequestTxn)].boxed())
}

fn step() -> impl Strategy<Value = Step> {
    let request = prop_oneof![
        6 => put().prop_map(|put| request!(put, put)),
        2 => delete().prop_map(|delete| request!(delete_range, delete)),
        5 => txn()
            .prop_filter("an accepted transaction", |txn| check_txn(txn, 128).is_ok())
            .prop_map(|txn| request!(txn, txn)),
        1 => prop::sample::select(vec![7i64, -8]).prop_map(|id| grant(id, 5)),
        1 => prop::sample::select(vec![7i64, -8]).prop_map(revoke),
    ];
    prop_oneof![
        12 => request.prop_map(|request| Step::Request(Box::new(request))),
        1 => (-1..6i64).prop_map(Step::Compact),
        2 => (1..5usize).prop_map(Step::Slice),
        1 => Just(Step::Reopen),
    ]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40)
}

/// Runs a history on both sides; answers must be equal all along.
fn run(steps: &[Step]) -> (Store, Model, Vec<RevisionEvents>) {
    let (mut store, mut model, mut events) = (Store::new(), Model::new(), Vec::new());
    for step in steps {
        let request = match step {
            Step::Request(request) => (**request).clone(),
            Step::Compact(back) => compact(model.revision - back),
            Step::Slice(rows) => {
                store.slice(*rows);
                continue;
            }
            Step::Reopen => {
                let before = store.state();
                store.reopen();
                assert_eq!(store.state(), before);
                continue;
            }
        };
        let expected = model.apply(&request);
        let previous = store.state().compacted;
        let applied = store.apply(request.clone());
        events.extend(applied.events.iter().cloned());
        if let Some(compaction) = applied.compactions.first() {
            assert_eq!(compaction.previous, previous);
            let hash = compaction_hash(&store.engine, previous, compaction.revision, &mut || true)
                .unwrap()
                .unwrap();
            assert_eq!(hash, model.hash(previous, compaction.revision, true), "compaction hash");
        }
        assert_eq!(outcome(applied).result, expected, "{request:?}");
        assert_eq!(store.state().revision, model.revision);
        assert_eq!(store.state().compacted, model.compacted);
    }
    (store, model, events)
}

/// Index, History, LeaseKey and the number of live keys must be what the rows of the Key family say.
fn check_families(view: &dyn View) {
    let (mut index, mut history, mut leases) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    for (key, value) in rows(view, Family::Key) {
        let row = RowKey::decode(&key).unwrap();
        let kv = KeyValue::decode(&value[..]).unwrap();
        let entry = IndexEntry {
            modified: row.revision,
            created: kv.create_revision,
            version: kv.version,
            lease: kv.lease,
            tombstone: row.tombstone,
        };
        history.insert(
            history_key(&kv.key, row.revision).to_vec(),
            history_value(row.tombstone).to_vec(),
        );
        index.insert(kv.key.to_vec(), entry);
    }
    for (key, entry) in &index {
        if entry.lease != 0 {
            leases.insert(lease_key(entry.lease, key).to_vec(), Vec::new());
        }
    }
    let live = index.values().filter(|entry| !entry.tombstone).count() as u64;
    let counted = view.get(Family::System, LIVE_KEYS).unwrap();
    let counted = counted.map(|row| u64::from_be_bytes(row[..].try_into().unwrap()));
    assert_eq!(counted, (!index.is_empty()).then_some(live), "live keys");
    let index = index.into_iter().map(|(key, entry)| (key, entry.encode().to_vec()));
    assert_eq!(rows(view, Family::Index), index.collect::<Vec<_>>(), "index");
    assert_eq!(rows(view, Family::History), history.into_iter().collect::<Vec<_>>(), "history");
    assert_eq!(rows(view, Family::LeaseKey), leases.into_iter().collect::<Vec<_>>(), "lease keys");
}

fn check_physical(store: &Store, model: &Model) {
    let expected: Vec<_> = model.kept(model.compacted).iter().map(|record| record.row()).collect();
    assert_eq!(store.rows(Family::Key), expected);
    check_families(&store.engine);
}

/// All chunks of a stream, merged as a client merges them.
fn stream(store: &Store, request: &RangeRequest, target: usize) -> RangeResponse {
    let view = store.engine.snapshot();
    let mut chunks = RangeChunks::new(store.state().read_at(), request.clone(), target).unwrap();
    let mut merged = RangeResponse::default();
    let mut last = false;
    while let Some(chunk) = chunks.next(&*view).unwrap() {
        assert!(!last, "a chunk behind the last one");
        last = chunk.header.is_some();
        assert!(last || (!chunk.more && chunk.count == 0 && !chunk.kvs.is_empty()));
        merged.kvs.extend(chunk.kvs);
        merged.header = chunk.header;
        merged.more = chunk.more;
        merged.count = chunk.count;
    }
    assert!(last, "no last chunk");
    merged
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn answers_ranges_and_rows_are_those_of_the_model(
        steps in history(), ranges in prop::collection::vec(range(), 1..12),
    ) {
        let (mut store, model, _) = run(&steps);
        for request in &ranges {
            for revision in -1..=model.revision + 1 {
                let request = RangeRequest { revision, ..request.clone() };
                prop_assert_eq!(store.range(&request), model.range(&request), "{:?}", &request);
            }
        }
        store.finish_compaction();
        check_physical(&store, &model);
        for request in &ranges {
            prop_assert_eq!(store.range(request), model.range(request), "{:?}", request);
        }
        store.reopen();
        prop_assert_eq!(store.state().revision, model.revision);
    }

    #[test]
    fn streams_are_ranges_in_pieces(
        steps in history(), shape in range(), target in 1..200usize, limit in 0..6i64,
    ) {
        let (store, model, _) = run(&steps);
        let request = RangeRequest {
            revision: 0,
            limit,
            sort_order: 0,
            sort_target: 0,
            min_mod_revision: 0,
            max_mod_revision: 0,
            min_create_revision: 0,
            max_create_revision: 0,
            ..shape
        };
        prop_assert_eq!(stream(&store, &request, target), model.range(&request).unwrap());
    }

    #[test]
    fn hashes_are_those_of_the_reference(steps in history()) {
        let (mut store, model, _) = run(&steps);
        let from = model.compacted.max(1);
        let hashes = |store: &Store| (from..=model.revision)
            .map(|revision| store.hash(revision).unwrap()).collect::<Vec<_>>();
        let expected: Vec<_> = (from..=model.revision)
            .map(|revision| model.hash(model.compacted, revision, false)).collect();
        prop_assert_eq!(hashes(&store), expected.clone(), "before the deletions are done");
        store.finish_compaction();
        prop_assert_eq!(hashes(&store), expected, "after");
    }

    #[test]
    fn the_past_is_told_as_it_was_told_live(
        steps in history(), span in (key(), range_end()), max_revisions in 1..4usize,
    ) {
        let (store, model, live) = run(&steps);
        let view = store.engine.snapshot();
        let span = (span.0.as_bytes(), span.1.as_bytes());
        let limits = CatchUpLimits { max_revisions, ..CatchUpLimits::default() };
        let (mut next, mut told) = (model.compacted.max(1) + 1, Vec::new());
        while next <= model.revision {
            let part = events_between(
                &*view, store.state().read_at(), next, model.revision, limits, true,
                &mut |key| within(span, key),
            ).unwrap();
            prop_assert!(part.next > next && part.revisions.len() <= max_revisions);
            next = part.next;
            told.extend(part.revisions);
        }
        let expected: Vec<_> = live.iter()
            .filter(|revision| revision.revision > model.compacted.max(1))
            .filter_map(|revision| {
                let wanted: Vec<_> = revision.events.iter()
                    .filter(|event| within(span, &event.kv.key)).cloned().collect();
                (!wanted.is_empty()).then(|| RevisionEvents {
                    revision: revision.revision, events: wanted.into(),
                })
            }).collect();
        prop_assert_eq!(&told, &expected);
        for event in told.iter().flat_map(|revision| revision.events.iter()) {
            let before = model.pairs(event.kv.mod_revision - 1).remove(&event.kv.key[..]);
            let prev = event.prev.map(|prev| kv_at(&*view, prev).unwrap().unwrap());
            prop_assert_eq!(prev, before.filter(|_| !event.is_create()));
            prop_assert_eq!(event.kind == EventKind::Delete, event.kv.version == 0);
        }
    }

    #[test]
    fn batches_may_be_cut_anywhere(
        steps in history(), cuts in prop::collection::vec(1..8usize, 1..40),
    ) {
        let (mut store, _, live) = run(&steps);
        store.finish_compaction();
        let other = MemEngine::new();
        let mut machine = StateMachine::open(&other, Limits::default()).unwrap();
        let (mut rest, mut events, mut cuts) = (&store.log[..], Vec::new(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = later;
            let applied = machine.apply(&other, now).unwrap();
            prop_assert_eq!(applied.outcomes.len(), now.len());
            events.extend(applied.events);
            other.write(applied.batch).unwrap();
        }
        while let Some(slice) = machine.compact_slice(&other, 2).unwrap() {
            other.write(slice.batch).unwrap();
        }
        for family in Family::ALL {
            prop_assert_eq!(rows(&other, family), store.rows(family), "{:?}", family);
        }
        prop_assert_eq!(events, live);
        prop_assert_eq!(machine.status(), store.state());
    }

    #[test]
    fn slices_may_be_taken_long_after_they_were_found(
        steps in history(), waits in prop::collection::vec(0..6usize, 1..40),
    ) {
        let (mut store, _, _) = run(&steps);
        store.finish_compaction();
        let other = MemEngine::new();
        let mut machine = StateMachine::open(&other, Limits::default()).unwrap();
        let (mut rest, mut waits) = (&store.log[..], waits.iter().cycle());
        while !rest.is_empty() || machine.compacting().is_some() {
            let pass = machine.compacting();
            let found = pass.map(|pass| pass.slice(&*other.snapshot(), 2).unwrap());
            let wait = *waits.next().unwrap() + usize::from(found.is_none());
            let (now, later) = rest.split_at(wait.min(rest.len()));
            rest = later;
            other.write(machine.apply(&other, now).unwrap().batch).unwrap();
            if let Some(found) = found {
                let slice = machine.take_slice(&other, found).unwrap().unwrap();
                other.write(slice.batch).unwrap();
            }
        }
        for family in Family::ALL {
            prop_assert_eq!(rows(&other, family), store.rows(family), "{:?}", family);
        }
        prop_assert_eq!(machine.status(), store.state());
    }
}

#[test]
fn a_deletion_with_open_end_and_a_put_inside_keep_the_put_over_a_compaction() {
    let mut store = Store::new();
    store.put("a", "1");
    let ops = [
        Request::RequestDeleteRange(DeleteRangeRequest {
            key: "a".into(),
            range_end: "\0".into(),
            ..Default::default()
        }),
        Request::RequestPut(PutRequest {
            key: "a".into(),
            value: "2".into(),
            ..Default::default()
        }),
    ];
    let success = ops.into_iter().map(|op| RequestOp { request: Some(op) }).collect();
    store.answer(request!(txn, TxnRequest { success, ..Default::default() })).unwrap();
    store.compact(3).unwrap();
    store.finish_compaction();
    let answer = store.range(&RangeRequest { key: "a".into(), ..Default::default() }).unwrap();
    assert_eq!(&answer.kvs[0].value[..], b"2");
    assert_eq!(answer.kvs[0].version, 1);
    let kept = kv_at(&store.engine, Revision::new(3, 1)).unwrap();
    assert!(kept.is_some());
}
