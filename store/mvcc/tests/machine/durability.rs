//! Crashes at any point: what was flushed is a prefix of the batches, and replaying the log over
//! it ends in the same content as if nothing had happened.

use mainstay_engine::{Batch, Engine, Family, MemEngine};
use mainstay_mvcc::buckets::{Bucket, names};
use mainstay_mvcc::keys::revision_bytes;
use mainstay_mvcc::{Limits, Revision, StateMachine};
use proptest::prelude::*;

use crate::store::{Store, rows};

/// What the driver does with a run of entries.
#[derive(Clone, Copy, Debug)]
enum Act {
    Apply(usize),
    Slice,
    Flush,
    Crash,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..6usize).prop_map(Act::Apply),
        2 => Just(Act::Slice),
        2 => Just(Act::Flush),
        1 => Just(Act::Crash),
    ]
}

fn undisturbed() -> Store {
    let mut store = Store::new();
    for round in 0..12 {
        for key in ["a", "b", "c"] {
            store.put(key, &format!("{key}{round}"));
        }
        store.delete("b");
        if round % 3 == 2 {
            store.compact(store.state().revision - 1).unwrap();
        }
    }
    store.finish_compaction();
    store
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn replay_after_crashes_ends_in_the_same_content(acts in prop::collection::vec(act(), 1..60)) {
        let expected = undisturbed();
        let mut engine = MemEngine::new();
        let mut machine = StateMachine::open(&engine, Limits::default()).unwrap();
        for act in acts {
            match act {
                Act::Apply(count) => {
                    let from = machine.status().applied.index as usize;
                    let to = (from + count).min(expected.log.len());
                    // The log may be handed over from an older point than needed.
                    let from = from.saturating_sub(2);
                    let applied = machine.apply(&engine, &expected.log[from..to]).unwrap();
                    engine.write(applied.batch).unwrap();
                }
                Act::Slice => {
                    if let Some(slice) = machine.compact_slice(&engine, 2).unwrap() {
                        engine.write(slice.batch).unwrap();
                    }
                }
                Act::Flush => engine.flush().unwrap(),
                Act::Crash => {
                    engine = engine.after_crash();
                    machine = StateMachine::open(&engine, Limits::default()).unwrap();
                }
            }
        }
        let applied = machine.apply(&engine, &expected.log).unwrap();
        engine.write(applied.batch).unwrap();
        while let Some(slice) = machine.compact_slice(&engine, 7).unwrap() {
            engine.write(slice.batch).unwrap();
        }
        for family in Family::ALL {
            prop_assert_eq!(rows(&engine, family), expected.rows(family), "{:?}", family);
        }
        prop_assert_eq!(machine.status(), expected.state());
    }
}

/// A restore with `--bump-revision --mark-compacted` leaves such a mark, and an old server one whose
/// last rows its compaction has deleted.
#[test]
fn a_scheduled_compaction_behind_the_last_row_is_the_current_revision() {
    let mut store = Store::new();
    store.put("a", "1");
    let mut batch = Batch::new();
    let key = Bucket::Meta.engine_key(names::SCHEDULED_COMPACT);
    batch.put(Family::System, key, revision_bytes(Revision::first(50)).to_vec());
    store.engine.write(batch).unwrap();
    store.reopen();
    assert_eq!((store.state().revision, store.state().compacted), (50, 50));
    assert_eq!(store.slice(10), Some(50));
    store.reopen();
    assert_eq!((store.state().revision, store.state().compacted), (50, 50));
    store.put("a", "2");
    assert_eq!(store.state().revision, 51);
}
