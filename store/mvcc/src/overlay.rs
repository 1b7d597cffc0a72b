//! The state in the middle of a batch: what the engine holds, with the changes of the entries that
//! were applied so far laid over it.
//!
//! Input: a view, and changes. Output: the same view as if the changes were in it, and at the end
//! one [`Batch`] in which each key is written once.
//!
//! **Invariant:** reading through an overlay and reading the engine after its batch was written
//! give the same, for points and for cursors in both directions.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};
use mainstay_engine::{Batch, Cursor, Family, Result, Scan, View};

type Changes = BTreeMap<Bytes, Option<Bytes>>;

/// Changes over a view.
pub(crate) struct Overlay<'v> {
    base: &'v dyn View,
    changes: [Changes; Family::ALL.len()],
    /// Where encoded keys and small values are cut from, so that a put does not allocate each.
    scratch: BytesMut,
}

/// Memory that is asked for at once for encoded keys and values.
const SCRATCH: usize = 16 * 1024;

impl<'v> Overlay<'v> {
    /// Nothing over `base`.
    pub(crate) fn new(base: &'v dyn View) -> Self {
        Self { base, changes: Default::default(), scratch: BytesMut::new() }
    }

    /// Encodes something into memory that is shared by many keys and values of the batch.
    pub(crate) fn encode(&mut self, size: usize, encode: impl FnOnce(&mut BytesMut)) -> Bytes {
        if self.scratch.capacity() - self.scratch.len() < size {
            self.scratch = BytesMut::with_capacity(SCRATCH.max(size));
        }
        encode(&mut self.scratch);
        self.scratch.split().freeze()
    }

    /// Sets a key.
    pub(crate) fn put(&mut self, family: Family, key: Bytes, value: Bytes) {
        self.changes[family.number()].insert(key, Some(value));
    }

    /// Removes a key.
    pub(crate) fn delete(&mut self, family: Family, key: Bytes) {
        self.changes[family.number()].insert(key, None);
    }

    /// Everything that was changed, as one batch.
    pub(crate) fn into_batch(self) -> Batch {
        let mut batch = Batch::with_capacity(self.changes.iter().map(BTreeMap::len).sum());
        for (family, changes) in Family::ALL.into_iter().zip(self.changes) {
            for (key, value) in changes {
                match value {
                    Some(value) => batch.put(family, key, value),
                    None => batch.delete(family, key),
                }
            }
        }
        batch
    }
}

impl View for Overlay<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        match self.changes[family.number()].get(key) {
            Some(change) => Ok(change.clone()),
            None => self.base.get(family, key),
        }
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        let changes = &self.changes[family.number()];
        if changes.is_empty() {
            return self.base.multi_get(family, keys);
        }
        let below: Vec<&[u8]> =
            keys.iter().copied().filter(|key| !changes.contains_key(*key)).collect();
        let mut found = self.base.multi_get(family, &below)?.into_iter();
        Ok(keys
            .iter()
            .map(|key| match changes.get(*key) {
                Some(change) => change.clone(),
                None => found.next().flatten(),
            })
            .collect())
    }

    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>> {
        let changes = &self.changes[family.number()];
        let base = self.base.cursor(family, scan.clone())?;
        if changes.is_empty() {
            return Ok(base);
        }
        Ok(Box::new(Merged { base, changes, scan, at: None, direction: Direction::Forward }))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A cursor over the engine and the changes together.
struct Merged<'a> {
    base: Box<dyn Cursor + 'a>,
    changes: &'a Changes,
    scan: Scan,
    /// `None`: invalid. Else whether it stands on a change or on the base.
    at: Option<At<'a>>,
    /// While moving forward the base stands on the first key that is not before ours, while
    /// moving backward on the last that is not behind it.
    direction: Direction,
}

#[derive(Clone, Copy)]
enum At<'a> {
    Base,
    Change(&'a Bytes, &'a Bytes),
}

impl<'a> Merged<'a> {
    /// The first change within the bounds at or behind `from`.
    fn change_after(&self, from: Bound<&[u8]>) -> Option<(&'a Bytes, Option<&'a Bytes>)> {
        let lower = match (from, self.scan.lower.as_deref()) {
            (Bound::Included(key) | Bound::Excluded(key), Some(lower)) if key < lower => {
                Bound::Included(lower)
            }
            (Bound::Unbounded, Some(lower)) => Bound::Included(lower),
            (from, _) => from,
        };
        let (key, value) = self.changes.range::<[u8], _>((lower, Bound::Unbounded)).next()?;
        let within = self.scan.upper.as_ref().is_none_or(|upper| key < upper);
        within.then_some((key, value.as_ref()))
    }

    /// The last change within the bounds at or before `to`.
    fn change_before(&self, to: Bound<&[u8]>) -> Option<(&'a Bytes, Option<&'a Bytes>)> {
        let upper = match (to, self.scan.upper.as_deref()) {
            (Bound::Included(key) | Bound::Excluded(key), Some(upper)) if key >= upper => {
                Bound::Excluded(upper)
            }
            (Bound::Unbounded, Some(upper)) => Bound::Excluded(upper),
            (to, _) => to,
        };
        let (key, value) = self.changes.range::<[u8], _>((Bound::Unbounded, upper)).next_back()?;
        let within = self.scan.lower.as_ref().is_none_or(|lower| key >= lower);
        within.then_some((key, value.as_ref()))
    }

    /// Takes the nearer of base and changes, seen from `from`; deleted keys are stepped over.
    fn settle_forward(&mut self, mut from: Bound<Bytes>) {
        self.direction = Direction::Forward;
        loop {
            let change = self.change_after(as_slice(&from));
            let base = self.base.valid().then(|| self.base.key());
            match (base, change) {
                (None, None) => return self.at = None,
                (Some(base), Some((key, value))) if *key <= base => {
                    let same = *key == base;
                    if let Some(value) = value {
                        return self.at = Some(At::Change(key, value));
                    }
                    if same {
                        self.base.next();
                    }
                    from = Bound::Excluded(key.clone());
                }
                (Some(_), _) => return self.at = Some(At::Base),
                (None, Some((key, Some(value)))) => return self.at = Some(At::Change(key, value)),
                (None, Some((key, None))) => from = Bound::Excluded(key.clone()),
            }
        }
    }

    fn settle_backward(&mut self, mut to: Bound<Bytes>) {
        self.direction = Direction::Backward;
        loop {
            let change = self.change_before(as_slice(&to));
            let base = self.base.valid().then(|| self.base.key());
            match (base, change) {
                (None, None) => return self.at = None,
                (Some(base), Some((key, value))) if *key >= base => {
                    let same = *key == base;
                    if let Some(value) = value {
                        return self.at = Some(At::Change(key, value));
                    }
                    if same {
                        self.base.prev();
                    }
                    to = Bound::Excluded(key.clone());
                }
                (Some(_), _) => return self.at = Some(At::Base),
                (None, Some((key, Some(value)))) => return self.at = Some(At::Change(key, value)),
                (None, Some((key, None))) => to = Bound::Excluded(key.clone()),
            }
        }
    }
}

fn as_slice(bound: &Bound<Bytes>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

impl Cursor for Merged<'_> {
    fn seek(&mut self, key: &[u8]) {
        self.base.seek(key);
        self.settle_forward(Bound::Included(Bytes::copy_from_slice(key)));
    }

    fn seek_for_prev(&mut self, key: &[u8]) {
        self.base.seek_for_prev(key);
        self.settle_backward(Bound::Included(Bytes::copy_from_slice(key)));
    }

    fn seek_to_first(&mut self) {
        self.base.seek_to_first();
        self.settle_forward(Bound::Unbounded);
    }

    fn seek_to_last(&mut self) {
        self.base.seek_to_last();
        self.settle_backward(Bound::Unbounded);
    }

    fn next(&mut self) {
        let Some(at) = self.at else { return };
        let here = match at {
            At::Base => Bytes::copy_from_slice(self.base.key()),
            At::Change(key, _) => key.clone(),
        };
        if self.direction == Direction::Backward {
            self.base.seek(&here);
        }
        if self.base.valid() && self.base.key() == here {
            self.base.next();
        }
        self.settle_forward(Bound::Excluded(here));
    }

    fn prev(&mut self) {
        let Some(at) = self.at else { return };
        let here = match at {
            At::Base => Bytes::copy_from_slice(self.base.key()),
            At::Change(key, _) => key.clone(),
        };
        if self.direction == Direction::Forward {
            self.base.seek_for_prev(&here);
        }
        if self.base.valid() && self.base.key() == here {
            self.base.prev();
        }
        self.settle_backward(Bound::Excluded(here));
    }

    fn valid(&self) -> bool {
        self.at.is_some() && self.base.status().is_ok()
    }

    fn key(&self) -> &[u8] {
        match self.at.expect("only a valid cursor is asked for its key") {
            At::Base => self.base.key(),
            At::Change(key, _) => key,
        }
    }

    fn value(&self) -> &[u8] {
        match self.at.expect("only a valid cursor is asked for its value") {
            At::Base => self.base.value(),
            At::Change(_, value) => value,
        }
    }

    fn status(&self) -> Result<()> {
        self.base.status()
    }
}

#[cfg(test)]
mod tests {
    use mainstay_engine::{Engine, MemEngine};
    use proptest::prelude::*;

    use super::*;

    type Rows = Vec<(String, Option<u8>)>;

    fn rows() -> impl Strategy<Value = Rows> {
        prop::collection::vec(("[a-c]{1,2}", prop::option::weighted(0.7, any::<u8>())), 0..10)
    }

    #[derive(Clone, Debug)]
    enum Move {
        Seek(String),
        SeekForPrev(String),
        First,
        Last,
        Next,
        Prev,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            "[a-c]{0,3}".prop_map(Move::Seek),
            "[a-c]{0,3}".prop_map(Move::SeekForPrev),
            Just(Move::First),
            Just(Move::Last),
            Just(Move::Next),
            Just(Move::Next),
            Just(Move::Prev),
            Just(Move::Prev),
        ];
        prop::collection::vec(one, 1..20)
    }

    fn go(cursor: &mut dyn Cursor, step: &Move) -> Option<(Vec<u8>, Vec<u8>)> {
        match step {
            Move::Seek(key) => cursor.seek(key.as_bytes()),
            Move::SeekForPrev(key) => cursor.seek_for_prev(key.as_bytes()),
            Move::First => cursor.seek_to_first(),
            Move::Last => cursor.seek_to_last(),
            Move::Next => cursor.next(),
            Move::Prev => cursor.prev(),
        }
        cursor.status().unwrap();
        cursor.valid().then(|| (cursor.key().to_vec(), cursor.value().to_vec()))
    }

    proptest! {
        #[test]
        fn reads_like_the_engine_after_the_write(
            below in rows(), above in rows(), steps in moves(),
            lower in prop::option::of("[a-c]{0,2}"), upper in prop::option::of("[a-c]{0,2}"),
        ) {
            let engine = MemEngine::new();
            let mut batch = Batch::new();
            for (key, value) in below {
                if let Some(value) = value {
                    batch.put(Family::Index, key, vec![value]);
                }
            }
            engine.write(batch).unwrap();
            let before = engine.snapshot();
            let mut overlay = Overlay::new(&*before);
            for (key, value) in above {
                match value {
                    Some(value) => overlay.put(Family::Index, key.into(), vec![value].into()),
                    None => overlay.delete(Family::Index, key.into()),
                }
            }
            let scan = Scan { lower: lower.map(Bytes::from), upper: upper.map(Bytes::from), fill_cache: true };
            let mut seen = Vec::new();
            {
                let mut cursor = overlay.cursor(Family::Index, scan.clone()).unwrap();
                for step in &steps {
                    seen.push(go(&mut *cursor, step));
                }
            }
            let keys: Vec<&[u8]> = vec![b"a", b"ab", b"c", b"cc", b"b"];
            let points = overlay.multi_get(Family::Index, &keys).unwrap();
            engine.write(overlay.into_batch()).unwrap();
            let mut cursor = engine.cursor(Family::Index, scan).unwrap();
            for (step, seen) in steps.iter().zip(seen) {
                prop_assert_eq!(go(&mut *cursor, step), seen, "{:?}", step);
            }
            prop_assert_eq!(engine.multi_get(Family::Index, &keys).unwrap(), points);
        }
    }
}
