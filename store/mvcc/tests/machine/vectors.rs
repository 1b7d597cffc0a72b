//! Hashes that real servers gave for the same requests.

use mainstay_engine::Engine;
use mainstay_mvcc::{Error, HashKv, compaction_hash, hash_kv};

use crate::store::Store;

fn eleven_revisions() -> Store {
    let mut store = Store::new();
    for (key, value) in [("k0", "v0"), ("k1", "v1"), ("k2", "v2"), ("k0", "v3"), ("k1", "v4")] {
        store.put(key, value);
    }
    store.delete("k1");
    store.put("a", "b");
    store.put("k1", "again");
    store.delete("k2");
    store.put("z", "1");
    assert_eq!(store.state().revision, 11);
    store
}

#[test]
fn hash_of_a_store_that_was_never_compacted() {
    let store = eleven_revisions();
    assert_eq!(store.hash(0), Ok(4_234_103_437));
    let answer = hash_kv(&store.engine, store.state().read_at(), 0).unwrap();
    let expected = HashKv { hash: 4_234_103_437, compact_revision: -1, hash_revision: 11 };
    assert_eq!(answer, expected);
    assert_eq!(store.hash(12), Err(Error::FutureRevision));
}

#[test]
fn hash_after_a_compaction() {
    for revision in [7, 9] {
        let mut store = eleven_revisions();
        store.compact(revision).unwrap();
        assert_eq!(store.hash(0), Ok(934_471_728), "rows of {revision} still there");
        store.finish_compaction();
        assert_eq!(store.hash(0), Ok(934_471_728), "rows of {revision} deleted");
        store.reopen();
        assert_eq!(store.hash(11), Ok(934_471_728));
        assert_eq!(store.hash(revision - 1), Err(Error::Compacted));
    }
}

#[test]
fn hash_of_a_compaction_to_a_tombstone() {
    let mut store = Store::new();
    store.put("a", "1");
    store.compact(2).unwrap();
    store.finish_compaction();
    store.put("a", "2");
    store.delete("a");
    store.compact(4).unwrap();
    let before = store.engine.snapshot();
    assert_eq!(compaction_hash(&*before, 2, 4, &mut || true).unwrap().unwrap(), 573_317_793);
}

#[test]
fn hash_of_a_compaction_does_not_wait_for_the_deletions_of_the_one_before() {
    let mut store = Store::new();
    store.put("a", "1");
    store.compact(2).unwrap();
    store.put("a", "2");
    store.delete("a");
    store.compact(4).unwrap();
    assert_eq!(compaction_hash(&store.engine, 2, 4, &mut || true).unwrap().unwrap(), 573_317_793);
}
