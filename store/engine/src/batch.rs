//! A batch: the unit of change. Built by the state machine, taken whole by an engine.

use bytes::Bytes;

use crate::Family;

/// One change of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a key.
    Put(Family, Bytes, Bytes),
    /// Removes a key, there or not.
    Delete(Family, Bytes),
    /// Removes every key in `from..to`. Meant for wide ranges: each one slows readers until it is
    /// compacted away, so a few dozen keys are better deleted one by one.
    DeleteRange(Family, Bytes, Bytes),
}

/// Changes that become visible together, in the order in which they were added: of two changes of
/// one key the later one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    ops: Vec<Op>,
    bytes: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for `ops` changes.
    pub fn with_capacity(ops: usize) -> Self {
        Self { ops: Vec::with_capacity(ops), bytes: 0 }
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, family: Family, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len();
        self.ops.push(Op::Put(family, key, value));
    }

    /// Removes `key`.
    pub fn delete(&mut self, family: Family, key: impl Into<Bytes>) {
        let key = key.into();
        self.bytes += key.len();
        self.ops.push(Op::Delete(family, key));
    }

    /// Removes every key in `from..to`; nothing when `from >= to`.
    pub fn delete_range(&mut self, family: Family, from: impl Into<Bytes>, to: impl Into<Bytes>) {
        let (from, to) = (from.into(), to.into());
        if from >= to {
            return;
        }
        self.bytes += from.len() + to.len();
        self.ops.push(Op::DeleteRange(family, from, to));
    }

    /// Adds all changes of `other` behind the changes of this batch.
    pub fn append(&mut self, mut other: Batch) {
        self.bytes += other.bytes;
        self.ops.append(&mut other.ops);
    }

    /// Number of changes.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The changes, oldest first.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The changes, oldest first, to be taken over.
    pub fn into_ops(self) -> impl ExactSizeIterator<Item = Op> {
        self.ops.into_iter()
    }

    /// Forgets all changes and keeps the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.bytes = 0;
    }
}
