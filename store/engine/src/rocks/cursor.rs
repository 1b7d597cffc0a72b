//! Cursors of the engine on disk.

use rocksdb::{DBRawIterator, ReadOptions};

use super::Shared;
use crate::{Cursor, Family, Result, Scan};

/// Opens a cursor on what `options` see.
pub(super) fn open<'a>(
    shared: &'a Shared,
    mut options: ReadOptions,
    family: Family,
    scan: Scan,
) -> Box<dyn Cursor + 'a> {
    options.fill_cache(scan.fill_cache);
    options.set_background_purge_on_iterator_cleanup(true);
    let empty = match (&scan.lower, &scan.upper) {
        (Some(lower), Some(upper)) => lower >= upper,
        (None, Some(upper)) => upper.is_empty(),
        (_, None) => false,
    };
    if empty {
        // RocksDB does not define what a cursor between crossed bounds does.
        return Box::new(Nothing);
    }
    if let Some(lower) = scan.lower {
        options.set_iterate_lower_bound(lower);
    }
    if let Some(upper) = scan.upper {
        options.set_iterate_upper_bound(upper);
    }
    let iterator = shared.db.raw_iterator_cf_opt(shared.handle(family), options);
    Box::new(RocksCursor { shared, iterator })
}

struct RocksCursor<'a> {
    shared: &'a Shared,
    iterator: DBRawIterator<'a>,
}

impl Cursor for RocksCursor<'_> {
    fn seek(&mut self, key: &[u8]) {
        self.iterator.seek(key);
    }

    fn seek_for_prev(&mut self, key: &[u8]) {
        self.iterator.seek_for_prev(key);
    }

    fn seek_to_first(&mut self) {
        self.iterator.seek_to_first();
    }

    fn seek_to_last(&mut self) {
        self.iterator.seek_to_last();
    }

    fn next(&mut self) {
        if self.iterator.valid() {
            self.iterator.next();
        }
    }

    fn prev(&mut self) {
        if self.iterator.valid() {
            self.iterator.prev();
        }
    }

    fn valid(&self) -> bool {
        self.iterator.valid()
    }

    fn key(&self) -> &[u8] {
        self.iterator.key().expect("the caller asks a cursor for its key only while it is valid")
    }

    fn value(&self) -> &[u8] {
        self.iterator
            .value()
            .expect("the caller asks a cursor for its value only while it is valid")
    }

    fn status(&self) -> Result<()> {
        self.iterator.status().map_err(|error| self.shared.fail("scan", &error))
    }
}

/// A cursor over nothing.
struct Nothing;

impl Cursor for Nothing {
    fn seek(&mut self, _: &[u8]) {}
    fn seek_for_prev(&mut self, _: &[u8]) {}
    fn seek_to_first(&mut self) {}
    fn seek_to_last(&mut self) {}
    fn next(&mut self) {}
    fn prev(&mut self) {}

    fn valid(&self) -> bool {
        false
    }

    fn key(&self) -> &[u8] {
        panic!("a cursor over nothing is never valid")
    }

    fn value(&self) -> &[u8] {
        panic!("a cursor over nothing is never valid")
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
