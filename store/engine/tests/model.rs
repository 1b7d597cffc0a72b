//! Both engines against a model of plain sorted maps: random batches, views, cursors, reopenings.
//!
//! Input: scripts of operations from proptest. Each engine runs the same scripts. Keys are short and
//! from few letters, so that they collide, nest, and touch both ends of the order.
#![allow(clippy::unwrap_used, reason = "helpers of tests; a failure is the finding")]

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_engine::{Batch, Cursor, Engine, Family, MemEngine, Scan, View};
use proptest::collection::vec;
use proptest::prelude::*;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The model: one sorted map per family.
#[derive(Clone, Default)]
struct Model([Map; Family::ALL.len()]);

impl Model {
    fn map(&self, family: Family) -> &Map {
        &self.0[family.number()]
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Put(family, key, value) => {
                self.0[family.number()].insert(key.clone(), value.clone());
            }
            Change::Delete(family, key) => {
                self.0[family.number()].remove(key);
            }
            Change::DeleteRange(family, from, to) => {
                self.0[family.number()].retain(|key, _| key < from || key >= to);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Put(Family, Vec<u8>, Vec<u8>),
    Delete(Family, Vec<u8>),
    DeleteRange(Family, Vec<u8>, Vec<u8>),
}

#[derive(Clone, Debug)]
enum Move {
    Seek(Vec<u8>),
    SeekForPrev(Vec<u8>),
    First,
    Last,
    Next,
    Prev,
}

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Change>),
    Flush,
    Reclaim,
    Reopen,
    Snapshot,
    Forget,
    Read(Family, Vec<Vec<u8>>),
    Walk { family: Family, lower: Option<Vec<u8>>, upper: Option<Vec<u8>>, moves: Vec<Move> },
}

fn family() -> impl Strategy<Value = Family> {
    proptest::sample::select(&Family::ALL[..])
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(proptest::sample::select(vec![0x00, b'a', b'b', 0xff]), 0..4)
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (family(), key(), vec(any::<u8>(), 0..8)).prop_map(|(f, k, v)| Change::Put(f, k, v)),
        3 => (family(), key()).prop_map(|(f, k)| Change::Delete(f, k)),
        1 => (family(), key(), key()).prop_map(|(f, from, to)| Change::DeleteRange(f, from, to)),
    ]
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        key().prop_map(Move::Seek),
        key().prop_map(Move::SeekForPrev),
        Just(Move::First),
        Just(Move::Last),
        Just(Move::Next),
        Just(Move::Next),
        Just(Move::Prev),
        Just(Move::Prev),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let bound = || proptest::option::of(key());
    prop_oneof![
        8 => vec(change(), 0..6).prop_map(Step::Write),
        1 => Just(Step::Flush),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Reopen),
        2 => Just(Step::Snapshot),
        1 => Just(Step::Forget),
        3 => (family(), vec(key(), 0..5)).prop_map(|(family, keys)| Step::Read(family, keys)),
        6 => (family(), bound(), bound(), vec(moves(), 1..12)).prop_map(
            |(family, lower, upper, moves)| Step::Walk { family, lower, upper, moves }
        ),
    ]
}

/// How a kind of engine is made and made again.
trait Kit {
    type Engine: Engine;
    fn open(&mut self) -> Self::Engine;
    /// Closes the engine after a flush and opens it again.
    fn reopen(&mut self, engine: Self::Engine) -> Self::Engine;
}

struct InMemory;

impl Kit for InMemory {
    type Engine = MemEngine;

    fn open(&mut self) -> MemEngine {
        MemEngine::new()
    }

    fn reopen(&mut self, engine: MemEngine) -> MemEngine {
        engine.after_crash()
    }
}

#[cfg(feature = "rocks")]
struct OnDisk {
    folder: tempfile::TempDir,
    options: mainstay_engine::RocksOptions,
}

#[cfg(feature = "rocks")]
impl OnDisk {
    fn new() -> Self {
        // A memtable budget of a few hundred bytes: the engine's own flushes come in mid-script.
        let options = mainstay_engine::RocksOptions {
            cache_bytes: 1 << 20,
            memtable_bytes: 512,
            ..Default::default()
        };
        Self { folder: tempfile::tempdir().unwrap(), options }
    }
}

#[cfg(feature = "rocks")]
impl Kit for OnDisk {
    type Engine = mainstay_engine::RocksEngine;

    fn open(&mut self) -> Self::Engine {
        Self::Engine::open(self.folder.path().join("engine"), &self.options).unwrap()
    }

    fn reopen(&mut self, engine: Self::Engine) -> Self::Engine {
        engine.close();
        drop(engine);
        self.open()
    }
}

fn run(mut kit: impl Kit, script: &[Step]) {
    let mut engine = kit.open();
    let mut now = Model::default();
    let mut views: Vec<(Arc<dyn View>, Model)> = Vec::new();
    for step in script {
        match step {
            Step::Write(changes) => {
                let mut batch = Batch::new();
                for change in changes {
                    now.apply(change);
                    match change.clone() {
                        Change::Put(family, key, value) => batch.put(family, key, value),
                        Change::Delete(family, key) => batch.delete(family, key),
                        Change::DeleteRange(family, from, to) => {
                            batch.delete_range(family, from, to);
                        }
                    }
                }
                engine.write(batch).unwrap();
            }
            Step::Flush => engine.flush().unwrap(),
            Step::Reclaim => {
                engine.reclaim().unwrap();
                assert!(engine.wait_reclaimed(Duration::from_secs(60)));
            }
            Step::Reopen => {
                engine.flush().unwrap();
                views.clear();
                engine = kit.reopen(engine);
            }
            Step::Snapshot => views.push((engine.snapshot(), now.clone())),
            Step::Forget => views.truncate(1),
            Step::Read(family, keys) => {
                check_reads(&engine, now.map(*family), *family, keys);
                for (view, then) in &views {
                    check_reads(&**view, then.map(*family), *family, keys);
                }
            }
            Step::Walk { family, lower, upper, moves } => {
                let scan = Scan {
                    lower: lower.clone().map(Bytes::from),
                    upper: upper.clone().map(Bytes::from),
                    fill_cache: true,
                };
                check_walk(&engine, now.map(*family), *family, &scan, moves);
                for (view, then) in &views {
                    check_walk(
                        &**view,
                        then.map(*family),
                        *family,
                        &scan.clone().uncached(),
                        moves,
                    );
                }
            }
        }
    }
    for family in Family::ALL {
        assert_eq!(dump(&engine, family), *now.map(family), "at the end, in {}", family.name());
    }
    engine.health().unwrap();
}

fn dump(view: &dyn View, family: Family) -> Map {
    let mut cursor = view.cursor(family, Scan::all()).unwrap();
    let mut map = Map::new();
    cursor.seek_to_first();
    while cursor.valid() {
        map.insert(cursor.key().to_vec(), cursor.value().to_vec());
        cursor.next();
    }
    cursor.status().unwrap();
    map
}

fn check_reads(view: &dyn View, map: &Map, family: Family, keys: &[Vec<u8>]) {
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let wanted: Vec<_> = keys.iter().map(|key| map.get(key).cloned().map(Bytes::from)).collect();
    assert_eq!(view.multi_get(family, &slices).unwrap(), wanted);
    for (key, value) in keys.iter().zip(&wanted) {
        assert_eq!(view.get(family, key).unwrap(), *value);
    }
}

fn check_walk(view: &dyn View, map: &Map, family: Family, scan: &Scan, moves: &[Move]) {
    let seen: Map = map
        .iter()
        .filter(|(key, _)| scan.lower.as_ref().is_none_or(|lower| key[..] >= lower[..]))
        .filter(|(key, _)| scan.upper.as_ref().is_none_or(|upper| key[..] < upper[..]))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut cursor = view.cursor(family, scan.clone()).unwrap();
    assert!(!cursor.valid(), "a new cursor stands nowhere");
    let mut at: Option<Vec<u8>> = None;
    for step in moves {
        at = match step {
            Move::Seek(key) => seen.range(key.clone()..).next(),
            Move::SeekForPrev(key) => seen.range(..=key.clone()).next_back(),
            Move::First => seen.iter().next(),
            Move::Last => seen.iter().next_back(),
            Move::Next => {
                at.and_then(|at| seen.range((Bound::Excluded(at), Bound::Unbounded)).next())
            }
            Move::Prev => at.and_then(|at| seen.range(..at).next_back()),
        }
        .map(|(key, _)| key.clone());
        step_cursor(&mut *cursor, step);
        cursor.status().unwrap();
        let here = cursor.valid().then(|| (cursor.key().to_vec(), cursor.value().to_vec()));
        let wanted = at.as_ref().map(|key| (key.clone(), seen[key].clone()));
        assert_eq!(here, wanted, "after {step:?} in {scan:?}");
    }
}

fn step_cursor(cursor: &mut dyn Cursor, step: &Move) {
    match step {
        Move::Seek(key) => cursor.seek(key),
        Move::SeekForPrev(key) => cursor.seek_for_prev(key),
        Move::First => cursor.seek_to_first(),
        Move::Last => cursor.seek_to_last(),
        Move::Next => cursor.next(),
        Move::Prev => cursor.prev(),
    }
}

proptest! {
    #[test]
    fn memory_follows_the_model(script in vec(step(), 1..60)) {
        run(InMemory, &script);
    }
}

#[cfg(feature = "rocks")]
proptest! {
    // Each case opens a database or several: fewer of them.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn disk_follows_the_model(script in vec(step(), 1..60)) {
        run(OnDisk::new(), &script);
    }
}

#[test]
fn a_broken_engine_takes_nothing_more() {
    let engine = MemEngine::new();
    engine.poison("disk on fire");
    let mut batch = Batch::new();
    batch.put(Family::System, "k", "v");
    assert!(engine.write(batch).is_err());
    assert!(engine.flush().is_err());
    assert!(engine.health().is_err());
    assert_eq!(engine.get(Family::System, b"k").unwrap(), None);
}

#[test]
fn memory_comes_back_after_a_crash_as_it_was_flushed() {
    let engine = MemEngine::new();
    for (value, flush) in [("1", true), ("2", false)] {
        let mut batch = Batch::new();
        batch.put(Family::Index, "k", value);
        engine.write(batch).unwrap();
        if flush {
            engine.flush().unwrap();
        }
    }
    let found = engine.after_crash().get(Family::Index, b"k").unwrap();
    assert_eq!(found.as_deref(), Some(&b"1"[..]));
}

#[test]
fn usage_of_memory_follows_puts_and_deletes() {
    let engine = MemEngine::new();
    let mut batch = Batch::new();
    batch.put(Family::Index, "key", "value");
    batch.put(Family::Index, "key", "other");
    engine.write(batch).unwrap();
    assert_eq!(engine.usage().total_bytes, 8);
    let mut batch = Batch::new();
    batch.delete_range(Family::Index, "a", "z");
    engine.write(batch).unwrap();
    assert_eq!(engine.usage().total_bytes, 0);
}
