//! Views of the engine on disk that stay as they are.
//!
//! A RocksDB snapshot borrows its database. Views are handed to readers on any thread and for any
//! time, so here a snapshot owns a share of the database instead. This is the only file of the
//! project with `unsafe` code.
#![allow(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use rocksdb::{DB, ReadOptions, Snapshot};

use super::{Shared, cursor};
use crate::{Cursor, Family, Result, Scan, View};

/// Keys that are looked up together: bounds the blocks that are held at one time.
const MULTI_GET: usize = 512;

/// A snapshot that keeps its database open.
///
/// **Invariant:** fields are dropped in this order: what points into the snapshot, the snapshot,
/// the database.
pub(super) struct Pinned {
    gets: ReadOptions,
    snapshot: Snapshot<'static>,
    shared: Arc<Shared>,
}

impl Pinned {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        let db: *const DB = &raw const shared.db;
        // SAFETY: `db` points into the allocation of `shared`, which is neither moved nor freed
        // while this value holds its share, and a `DB` inside an `Arc` is never handed out by
        // `&mut`. The reference with its made-up lifetime stays in `snapshot`, which is private,
        // never leaves this struct (only borrows of it with the struct's own lifetime do), and is
        // dropped before `shared` by the order of the fields.
        let snapshot = Snapshot::new(unsafe { &*db });
        let mut gets = ReadOptions::default();
        gets.set_snapshot(&snapshot);
        Self { gets, snapshot, shared }
    }
}

impl View for Pinned {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Bytes>> {
        get(&self.shared, &self.gets, family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Bytes>>> {
        multi_get(&self.shared, &self.gets, family, keys)
    }

    fn cursor(&self, family: Family, scan: Scan) -> Result<Box<dyn Cursor + '_>> {
        let mut options = ReadOptions::default();
        options.set_snapshot(&self.snapshot);
        Ok(cursor::open(&self.shared, options, family, scan))
    }
}

pub(super) fn get(
    shared: &Shared,
    options: &ReadOptions,
    family: Family,
    key: &[u8],
) -> Result<Option<Bytes>> {
    let found = shared.db.get_pinned_cf_opt(shared.handle(family), key, options);
    let found = found.map_err(|error| shared.fail("get", &error))?;
    Ok(found.map(|value| Bytes::copy_from_slice(&value)))
}

pub(super) fn multi_get(
    shared: &Shared,
    options: &ReadOptions,
    family: Family,
    keys: &[&[u8]],
) -> Result<Vec<Option<Bytes>>> {
    let mut values = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(MULTI_GET) {
        let found = shared.db.batched_multi_get_cf_opt(
            shared.handle(family),
            chunk.iter().copied(),
            false,
            options,
        );
        for value in found {
            let value = value.map_err(|error| shared.fail("get", &error))?;
            values.push(value.map(|value| Bytes::copy_from_slice(&value)));
        }
    }
    Ok(values)
}
