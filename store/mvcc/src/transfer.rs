//! The engine's content as etcd's buckets, and back.
//!
//! Out: the rows of each bucket in the order of their keys, bytes for bytes as a real member keeps
//! them; what a snapshot file is made of. In: the rows of a bbolt file, from which an empty engine
//! is filled: with the log of changes as it is, and with all that is derived from it. Memory is
//! bounded by one batch and the ids of the leases.
//!
//! **Invariant:** an export and import give the same engine, row by row. One exception: of a
//! compaction that had not finished, the mark of the last finished one is left out. Another member's
//! half-done pass may have removed any of the rows that this one would use to find the next, so it
//! is done again over everything.
//! **Invariant:** nothing is passed over in silence: a row that has no place here is an error.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;
use mainstay_engine::{Batch, Engine, EngineError, Family, Scan, View};
use mainstay_proto::leasepb;
use mainstay_proto::mvccpb::KeyValue;
use prost::Message;

use crate::Fatal;
use crate::buckets::{Bucket, LIVE_KEYS, names};
use crate::keys::{IndexEntry, RowKey, history_key, history_value, lease_key};

/// Bytes of changes that are written to the engine at one time.
const BATCH_BYTES: usize = 4 << 20;

/// Takes key and value of one row, and tells whether it wants more.
pub type RowFn<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The names of all buckets, in the order in which a bbolt file has them.
pub fn bucket_names() -> impl ExactSizeIterator<Item = &'static str> {
    Bucket::ALL.into_iter().map(Bucket::name)
}

/// Calls `row` with key and value of every row of a bucket, in the order of the keys, until it
/// answers `Break`. On a pinned view two calls give the same.
pub fn for_each_row(
    view: &dyn View,
    bucket: Bucket,
    row: &mut RowFn<'_>,
) -> Result<(), EngineError> {
    let mut rows = view.cursor(bucket.family(), bucket.scan().uncached())?;
    rows.seek_to_first();
    while rows.valid() {
        if row(bucket.row_key(rows.key()), rows.value()).is_break() {
            return Ok(());
        }
        rows.next();
    }
    rows.status()
}

/// Why a file was not taken over.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ImportError {
    /// The engine failed. Fatal, like any of its errors.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine holds rows already.
    #[error("the engine to be filled is not empty: there are rows in family {0}")]
    NotEmpty(&'static str),
    /// The file has a bucket that etcd does not have.
    #[error("bucket {0:?} is none of etcd's; was this database written by another program?")]
    UnknownBucket(String),
    /// A row that etcd does not write.
    #[error("bucket {bucket}, key {key}: {found}; the database is damaged")]
    Row {
        /// Name of the bucket.
        bucket: &'static str,
        /// The row's key, printable.
        key: String,
        /// What is wrong with it.
        found: String,
    },
}

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows that were read.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// What an import came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Imported {
    /// All rows that were read.
    pub read: Progress,
    /// Keys that are attached to a lease.
    pub leased_keys: u64,
    /// A compaction had been accepted and its rows were not all deleted; it will be done again.
    pub compaction_pending: bool,
}

/// Fills an empty engine from the rows of a bbolt file.
///
/// Buckets and rows come in the order of the file. Only after [`Importer::finish`] the engine is
/// complete and durable; after an error, or a crash before that, it has to be thrown away.
pub struct Importer<'e> {
    engine: &'e dyn Engine,
    progress: Box<dyn FnMut(Progress) + 'e>,
    batch: Batch,
    read: Progress,
    /// Place of the last row, to see that the order is the file's.
    last: Option<(Bucket, Vec<u8>)>,
    leases: BTreeSet<i64>,
    scheduled: Option<i64>,
    finished: Option<(i64, Bytes)>,
}

impl<'e> Importer<'e> {
    /// An import into `engine`, which must be empty. `progress` is called after every few
    /// megabytes.
    pub fn new(
        engine: &'e dyn Engine,
        progress: impl FnMut(Progress) + 'e,
    ) -> Result<Self, ImportError> {
        for family in Family::ALL {
            let mut rows = engine.cursor(family, Scan::all())?;
            rows.seek_to_first();
            if rows.valid() {
                return Err(ImportError::NotEmpty(family.name()));
            }
            rows.status()?;
        }
        Ok(Self {
            engine,
            progress: Box::new(progress),
            batch: Batch::new(),
            read: Progress::default(),
            last: None,
            leases: BTreeSet::new(),
            scheduled: None,
            finished: None,
        })
    }

    /// The bucket of this name. A file may have none of the buckets that would be empty.
    pub fn bucket(name: &[u8]) -> Result<Bucket, ImportError> {
        Bucket::from_name(name)
            .ok_or_else(|| ImportError::UnknownBucket(String::from_utf8_lossy(name).into_owned()))
    }

    /// Takes one row.
    pub fn row(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<(), ImportError> {
        let damaged = |found: &str| damaged(bucket, key, found);
        match &mut self.last {
            Some((before, last)) if *before == bucket && last.as_slice() >= key => {
                return Err(damaged("rows are not in the order of their keys"));
            }
            Some((before, _)) if *before > bucket => {
                return Err(damaged("buckets are not in the order of their names"));
            }
            Some((before, last)) => {
                *before = bucket;
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last = Some((bucket, key.to_vec())),
        }
        self.read.rows += 1;
        self.read.bytes += (key.len() + value.len()) as u64;
        let value = Bytes::copy_from_slice(value);
        match bucket {
            Bucket::Key => self.change(key, &value)?,
            Bucket::Lease => {
                let lease = leasepb::Lease::decode(value.clone());
                let lease = lease.map_err(|error| damaged(&error.to_string()))?;
                if key != lease.id.to_be_bytes() {
                    return Err(damaged("holds the lease of another id"));
                }
                self.leases.insert(lease.id);
            }
            Bucket::Meta if key == names::SCHEDULED_COMPACT => {
                self.scheduled = Some(mark(bucket, key, &value)?);
            }
            Bucket::Meta if key == names::FINISHED_COMPACT => {
                self.finished = Some((mark(bucket, key, &value)?, value));
                return Ok(());
            }
            _ => {}
        }
        self.batch.put(bucket.family(), bucket.engine_key(key), value);
        if self.batch.bytes() >= BATCH_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// What follows from a row of the log of changes. Later rows of the same key overwrite it.
    fn change(&mut self, row: &[u8], value: &Bytes) -> Result<(), ImportError> {
        let damaged = |found: &str| damaged(Bucket::Key, row, found);
        let decoded = RowKey::decode(row).ok_or_else(|| damaged("the key is not a revision"))?;
        let RowKey { revision, tombstone } = decoded;
        let pair = KeyValue::decode(value.clone()).map_err(|error| damaged(&error.to_string()))?;
        let entry = if tombstone {
            IndexEntry::deleted(revision)
        } else {
            IndexEntry {
                modified: revision,
                created: pair.create_revision,
                version: pair.version,
                lease: pair.lease,
                tombstone: false,
            }
        };
        let history = history_key(&pair.key, revision);
        self.batch.put(Family::History, history, history_value(tombstone));
        self.batch.put(Family::Index, pair.key, entry.encode());
        Ok(())
    }

    fn write(&mut self) -> Result<(), ImportError> {
        self.engine.write(std::mem::take(&mut self.batch))?;
        (self.progress)(self.read);
        Ok(())
    }

    /// Ends the import: derives what needs all rows, and makes everything durable.
    pub fn finish(mut self) -> Result<Imported, ImportError> {
        let finished = self.finished.take();
        let compaction_pending = self.scheduled > finished.as_ref().map(|(revision, _)| *revision);
        if let Some((_, row)) = finished
            && !compaction_pending
        {
            let key = Bucket::Meta.engine_key(names::FINISHED_COMPACT);
            self.batch.put(Family::System, key, row);
        }
        self.write()?;
        let leased_keys = self.attach()?;
        self.write()?;
        self.engine.flush()?;
        Ok(Imported { read: self.read, leased_keys, compaction_pending })
    }

    /// Attaches keys to leases by their newest state, and counts those that are live. A lease that
    /// is not there has no keys, as on a real member, where a later lease of the same id would not
    /// have them either.
    fn attach(&mut self) -> Result<u64, ImportError> {
        let (mut count, mut live) = (0, None);
        let view = self.engine.snapshot();
        let mut rows = view.cursor(Family::Index, Scan::all().uncached())?;
        rows.seek_to_first();
        while rows.valid() {
            let entry = IndexEntry::decode(rows.value()).ok_or_else(|| {
                EngineError::Corrupt("an index row that was just written is not one".to_owned())
            })?;
            *live.get_or_insert(0_u64) += u64::from(!entry.tombstone);
            if entry.lease != 0 && self.leases.contains(&entry.lease) {
                count += 1;
                self.batch.put(Family::LeaseKey, lease_key(entry.lease, rows.key()), Bytes::new());
                if self.batch.bytes() >= BATCH_BYTES {
                    self.write()?;
                }
            }
            rows.next();
        }
        rows.status()?;
        if let Some(live) = live {
            self.batch.put(Family::System, LIVE_KEYS, live.to_be_bytes().to_vec());
        }
        Ok(count)
    }
}

impl From<ImportError> for Fatal {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::Engine(error) => Fatal::Engine(error),
            other => Fatal::Start {
                found: other.to_string(),
                remedy: "take the database from a snapshot that etcdutl verifies",
            },
        }
    }
}

fn mark(bucket: Bucket, key: &[u8], value: &[u8]) -> Result<i64, ImportError> {
    let row = RowKey::decode(value).ok_or_else(|| damaged(bucket, key, "not a revision"))?;
    Ok(row.revision.main)
}

fn damaged(bucket: Bucket, key: &[u8], found: &str) -> ImportError {
    ImportError::Row {
        bucket: bucket.name(),
        key: key.escape_ascii().to_string(),
        found: found.to_owned(),
    }
}

#[cfg(test)]
mod tests;
