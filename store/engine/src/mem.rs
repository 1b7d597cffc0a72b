//! The engine in memory, for tests and simulations.
//!
//! Each family is a persistent tree, so a snapshot is five pointer copies and a write beside a
//! snapshot copies only the paths that it touches. `flush` remembers the state that a crash would
//! leave behind ([`MemEngine::after_crash`]).

use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rpds::RedBlackTreeMapSync;

use crate::{Batch, Cursor, Engine, EngineError, Family, Op, Result, Scan, Usage, View};

type Map = RedBlackTreeMapSync<Bytes, Bytes>;

/// All families at one point.
#[derive(Clone, Default)]
struct State {
    maps: [Map; Family::ALL.len()],
    bytes: u64,
}

impl State {
    fn map(&self, family: Family) -> &Map {
        &self.maps[family.number()]
    }

    fn put(&mut self, family: Family, key: Bytes, value: Bytes) {
        self.delete(family, &key);
        self.bytes += (key.len() + value.len()) as u64;
        self.maps[family.number()].insert_mut(key, value);
    }

    fn delete(&mut self, family: Family, key: &[u8]) {
        let map = &mut self.maps[family.number()];
        if let Some(value) = map.get(key) {
            self.bytes -= (key.len() + value.len()) as u64;
            map.remove_mut(key);
        }
    }

    fn delete_range(&mut self, family: Family, from: &[u8], to: &[u8]) {
        let range = (Bound::Included(from), Bound::Excluded(to));
        let doomed: Vec<Bytes> =
            self.map(family).range::<[u8], _>(range).map(|(key, _)| key.clone()).collect();
        for key in doomed {
            self.delete(family, &key);
        }
    }

    fn apply(&mut self, batch: Batch) {
        for op in batch.into_ops() {
            match op {
                Op::Put(family, key, value) => self.put(family, key, value),
                Op::Delete(family, key) => self.delete(family, &key),
                Op::DeleteRange(family, from, to) => self.delete_range(family, &from, &to),
            }
        }
    }

    fn cursor(&self, family: Family, scan: Scan) -> MemCursor {
        MemCursor { map: self.map(family).clone(), scan, at: None }
    }
}

impl View for State {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.map(family).get(key).cloned())
    }

    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(State::cursor(self, family, scan)))
    }
}

#[derive(Default)]
struct Inner {
    now: State,
    flushed: State,
    closed: bool,
    poison: Option<String>,
}

/// An engine that lives in memory. Loses everything when it is dropped.
#[derive(Default)]
pub struct MemEngine {
    inner: RwLock<Inner>,
}

impl MemEngine {
    /// An empty engine.
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine that a process would find after a crash now: the state of the last flush.
    pub fn after_crash(&self) -> MemEngine {
        let flushed = self.read(|inner| inner.flushed.clone());
        MemEngine {
            inner: RwLock::new(Inner { now: flushed.clone(), flushed, ..Inner::default() }),
        }
    }

    /// Makes every later write and flush fail, as a broken disk does.
    pub fn poison(&self, reason: &str) {
        self.change(|inner| inner.poison = Some(reason.to_owned()));
    }

    fn read<T>(&self, read: impl FnOnce(&Inner) -> T) -> T {
        // A panic of another test thread cannot leave the maps half changed in a way that matters:
        // the panic itself fails the test.
        read(&self.inner.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        change(&mut self.inner.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    fn check(&self) -> Result<()> {
        match &self.poison {
            Some(reason) => Err(EngineError::Poisoned(reason.clone())),
            None if self.closed => Err(EngineError::Refused("closed")),
            None => Ok(()),
        }
    }
}

impl View for MemEngine {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|inner| inner.now.get(family, key))
    }

    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>> {
        Ok(Box::new(self.read(|inner| inner.now.cursor(family, scan))))
    }
}

impl Engine for MemEngine {
    fn snapshot(&self) -> Arc<dyn View> {
        Arc::new(self.read(|inner| inner.now.clone()))
    }

    fn write(&self, batch: Batch) -> Result<()> {
        self.change(|inner| {
            inner.check()?;
            inner.now.apply(batch);
            Ok(())
        })
    }

    fn flush(&self) -> Result<()> {
        self.change(|inner| {
            inner.check()?;
            inner.flushed = inner.now.clone();
            Ok(())
        })
    }

    fn usage(&self) -> Usage {
        let bytes = self.read(|inner| inner.now.bytes);
        Usage { total_bytes: bytes, in_use_bytes: bytes, memory_bytes: bytes, ..Usage::default() }
    }

    fn reclaim(&self) -> Result<()> {
        self.read(Inner::check)
    }

    fn health(&self) -> Result<()> {
        self.read(Inner::check)
    }

    fn wait_reclaimed(&self, _: Duration) -> bool {
        true
    }

    fn close(&self) {
        self.change(|inner| inner.closed = true);
    }
}

/// A cursor that owns its (shared) map, so that it outlives any lock.
struct MemCursor {
    map: Map,
    scan: Scan,
    at: Option<(Bytes, Bytes)>,
}

impl MemCursor {
    fn lower(&self) -> Bound<&[u8]> {
        self.scan.lower.as_deref().map_or(Bound::Unbounded, Bound::Included)
    }

    fn upper(&self) -> Bound<&[u8]> {
        self.scan.upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded)
    }

    /// First key of `from..upper`.
    fn forward(&self, from: Bound<&[u8]>) -> Option<(Bytes, Bytes)> {
        let range = (from, self.upper());
        if is_empty(range) {
            return None;
        }
        self.map.range::<[u8], _>(range).next().map(own)
    }

    /// Last key of `lower..to`.
    fn backward(&self, to: Bound<&[u8]>) -> Option<(Bytes, Bytes)> {
        let range = (self.lower(), to);
        if is_empty(range) {
            return None;
        }
        self.map.range::<[u8], _>(range).next_back().map(own)
    }

    fn here(&self) -> &(Bytes, Bytes) {
        self.at.as_ref().expect("the caller asks a cursor for its key only while it is valid")
    }
}

fn own((key, value): (&Bytes, &Bytes)) -> (Bytes, Bytes) {
    (key.clone(), value.clone())
}

/// Whether a range is empty by its bounds alone; the tree's `range` panics on those.
fn is_empty(range: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match range {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (
            Bound::Included(from) | Bound::Excluded(from),
            Bound::Excluded(to) | Bound::Included(to),
        ) => from >= to,
    }
}

impl Cursor for MemCursor {
    fn seek(&mut self, key: &[u8]) {
        let from = self.scan.lower.as_deref().map_or(key, |lower| lower.max(key));
        self.at = self.forward(Bound::Included(from));
    }

    fn seek_for_prev(&mut self, key: &[u8]) {
        self.at = match self.scan.upper.as_deref() {
            Some(upper) if upper <= key => self.backward(Bound::Excluded(upper)),
            _ => self.backward(Bound::Included(key)),
        };
    }

    fn seek_to_first(&mut self) {
        self.at = self.forward(self.lower());
    }

    fn seek_to_last(&mut self) {
        self.at = self.backward(self.upper());
    }

    fn next(&mut self) {
        if let Some((key, _)) = self.at.take() {
            self.at = self.forward(Bound::Excluded(&key));
        }
    }

    fn prev(&mut self) {
        if let Some((key, _)) = self.at.take() {
            self.at = self.backward(Bound::Excluded(&key));
        }
    }

    fn valid(&self) -> bool {
        self.at.is_some()
    }

    fn key(&self) -> &[u8] {
        &self.here().0
    }

    fn value(&self) -> &[u8] {
        &self.here().1
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
