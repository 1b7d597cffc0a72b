//! Hashes that members compare.
//!
//! All of them are CRC-32C over rows as etcd stores them, so that a real member computes the same.
//! They depend on the logical state alone: whether the rows of a compaction were deleted already
//! makes no difference. Memory is bounded by one group of rows.

use bytes::Bytes;
use crc32c::crc32c_append;
use mainstay_engine::{Family, Scan, View};

use crate::buckets::{Bucket, names};
use crate::event::revision_scan;
use crate::keys::RowKey;
use crate::range::{decode_entry, newest, newest_old};
use crate::{Error, Fatal, KeySpan, ReadAt, Revision, kv, range};

/// Rows whose newest revisions are looked up together.
const GROUP: usize = 256;

/// Bytes of rows that are held at most while they wait for that.
const GROUP_BYTES: usize = 4 << 20;

/// Answer of [`hash_kv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// The hash.
    pub hash: u32,
    /// Compacted revision that it counts from.
    pub compact_revision: i64,
    /// Revision that it counts to.
    pub hash_revision: i64,
}

/// The hash of all that was kept since the compacted revision, up to `revision` (0: the current).
pub fn hash_kv(view: &dyn View, at: ReadAt, revision: i64) -> Result<HashKv, Error> {
    if revision > 0 && revision < at.compacted {
        return Err(Error::Compacted);
    }
    if revision > at.revision {
        return Err(Error::FutureRevision);
    }
    let revision = if revision == 0 { at.revision } else { revision };
    let pass = HashPass { view, from: at.compacted, to: revision, compaction: false };
    let hash = pass.run(&mut || true)?.expect("nobody ended the pass");
    Ok(HashKv { hash, compact_revision: at.compacted, hash_revision: revision })
}

/// The hash that members keep of the compaction from `previous` to `revision`. `view` is the state
/// right after the compaction was accepted, or any later one before its rows were deleted.
/// `go_on` is asked after every few MiB: who is in no hurry rests there, and who has no use for the
/// hash any more says so and gets `None`.
pub fn compaction_hash(
    view: &dyn View,
    previous: i64,
    revision: i64,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<u32>, Fatal> {
    HashPass { view, from: previous, to: revision, compaction: true }.run(go_on)
}

/// The hash of everything but what may differ between equal members.
pub fn hash_all(view: &dyn View) -> Result<u32, Fatal> {
    let mut hash = 0;
    for bucket in Bucket::ALL {
        hash = crc32c_append(hash, bucket.name().as_bytes());
        let mut rows = view.cursor(bucket.family(), bucket.scan().uncached())?;
        rows.seek_to_first();
        while rows.valid() {
            let key = bucket.row_key(rows.key());
            let local = [names::CONSISTENT_INDEX, names::TERM, names::STORAGE_VERSION];
            if bucket != Bucket::Meta || !local.contains(&key) {
                hash = crc32c_append(hash, key);
                hash = crc32c_append(hash, rows.value());
            }
            rows.next();
        }
        rows.status()?;
    }
    Ok(hash)
}

/// One pass over the Key family.
///
/// Rows behind `from` count all. Of those up to `from`, only what is still the newest of its key
/// at `to` counts. If there is nothing of that kind at all, everything that the compaction to
/// `from` keeps counts. A tombstone up to `from` never does, not even the one exactly at `from`
/// that a compaction keeps: servers before 3.5.16 deleted it.
struct HashPass<'v> {
    view: &'v dyn View,
    from: i64,
    to: i64,
    /// A compaction also regards a tombstone exactly at `to` as kept.
    compaction: bool,
}

struct Row {
    key: Bytes,
    value: Bytes,
    decoded: RowKey,
}

impl HashPass<'_> {
    fn run(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Option<u32>, Fatal> {
        let mut hash = crc32c_append(0, Bucket::Key.name().as_bytes());
        let mut kept = None;
        let mut group: Vec<Row> = Vec::new();
        let mut bytes = 0;
        let mut rows = self.view.cursor(Family::Key, revision_scan(0, self.to).uncached())?;
        rows.seek_to_first();
        while rows.valid() {
            let decoded = kv::row_key(rows.key())?;
            if decoded.revision.main > self.from {
                break;
            }
            bytes += rows.value().len();
            group.push(Row {
                key: Bytes::copy_from_slice(rows.key()),
                value: Bytes::copy_from_slice(rows.value()),
                decoded,
            });
            if group.len() >= GROUP || bytes >= GROUP_BYTES {
                hash = self.feed(hash, &mut group, &mut kept)?;
                bytes = 0;
                if !go_on() {
                    return Ok(None);
                }
            }
            rows.next();
        }
        hash = self.feed(hash, &mut group, &mut kept)?;
        while rows.valid() {
            hash = crc32c_append(hash, rows.key());
            hash = crc32c_append(hash, rows.value());
            bytes += rows.key().len() + rows.value().len();
            if bytes >= GROUP_BYTES {
                bytes = 0;
                if !go_on() {
                    return Ok(None);
                }
            }
            rows.next();
        }
        rows.status()?;
        Ok(Some(hash))
    }

    /// Feeds those rows of a group that count. `kept` is whether anything up to `from` is still
    /// the newest at `to`, or any key is live there; it is found out when it matters.
    fn feed(
        &self,
        mut hash: u32,
        group: &mut Vec<Row>,
        kept: &mut Option<bool>,
    ) -> Result<u32, Fatal> {
        let keys = group
            .iter()
            .map(|row| kv::user_key(&row.key, &row.value))
            .collect::<Result<Vec<_>, _>>()?;
        let entries = self.view.multi_get(Family::Index, &keys)?;
        for ((row, key), entry) in group.iter().zip(&keys).zip(entries) {
            let entry = entry.map(|entry| decode_entry(key, &entry)).transpose()?;
            let Some(entry) = entry else { continue };
            let newest = if entry.modified.main <= self.to {
                Some((entry.modified, entry.tombstone))
            } else {
                newest_old(self.view, key, Revision::last(self.to))?
            };
            let counts = if newest == Some((row.decoded.revision, false)) {
                *kept = Some(true);
                true
            } else {
                let any = match *kept {
                    Some(any) => any,
                    None => *kept.insert(self.keeps_any()?),
                };
                !any && self.kept_by_previous(row, key)?
            };
            if counts {
                hash = crc32c_append(hash, &row.key);
                hash = crc32c_append(hash, &row.value);
            }
        }
        group.clear();
        Ok(hash)
    }

    /// Whether the compaction to `from` keeps the row.
    fn kept_by_previous(&self, row: &Row, key: &[u8]) -> Result<bool, Fatal> {
        Ok(newest(self.view, key, self.from)? == Some((row.decoded.revision, false)))
    }

    /// Whether a compaction to `to` would keep anything.
    fn keeps_any(&self) -> Result<bool, Fatal> {
        if range::any_live(self.view, &KeySpan::From(Bytes::new()), self.to)? {
            return Ok(true);
        }
        if !self.compaction {
            return Ok(false);
        }
        let scan = Scan { fill_cache: false, ..revision_scan(self.to, self.to) };
        let mut rows = self.view.cursor(Family::Key, scan)?;
        rows.seek_to_first();
        while rows.valid() {
            let row = kv::row_key(rows.key())?;
            let key = kv::user_key(rows.key(), rows.value())?;
            if row.tombstone && newest(self.view, key, self.to)? == Some((row.revision, true)) {
                return Ok(true);
            }
            rows.next();
        }
        rows.status()?;
        Ok(false)
    }
}
