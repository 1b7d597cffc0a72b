//! The state beside the keys: what the state machine keeps in memory and publishes after a batch.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_engine::{Family, Scan, View};
use mainstay_proto::raftpb::ConfState;

use crate::alarm::Alarms;
use crate::auth::AuthState;
use crate::buckets::{Bucket, LIVE_KEYS, names};
use crate::keys::{IndexEntry, RowKey};
use crate::membership::{Member, Membership, json, parse_bucket_key};
use crate::revision::{FRESH, NEVER_COMPACTED};
use crate::version::{DowngradeInfo, Version};
use crate::{Fatal, ReadAt, kv};

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// The state beside the keys, as of one batch. Cheap to clone; published with the view of the same
/// batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateView {
    /// Current revision of the store.
    pub revision: i64,
    /// Everything before is gone; [`NEVER_COMPACTED`] if nothing is.
    pub compacted: i64,
    /// Last compaction whose rows are deleted; [`NEVER_COMPACTED`] if none is.
    pub compact_finished: i64,
    /// Keys that are there now.
    pub live_keys: u64,
    /// Last applied entry.
    pub applied: LogPosition,
    /// Raft's configuration.
    pub conf_state: Arc<ConfState>,
    /// Members and removed ids.
    pub members: Arc<Membership>,
    /// Raised alarms.
    pub alarms: Arc<Alarms>,
    /// Lowest version in the cluster; `None` until the first leader has set it.
    pub cluster_version: Option<Version>,
    /// Whether the cluster is on its way to an older version.
    pub downgrade: Arc<DowngradeInfo>,
    /// Users, roles, and whether auth is on.
    pub auth: Arc<AuthState>,
}

impl StateView {
    /// What reads of the view of the same batch need to know.
    pub fn read_at(&self) -> ReadAt {
        ReadAt { revision: self.revision, compacted: self.compacted }
    }

    /// Reads the state from an engine.
    pub(crate) fn load(view: &dyn View) -> Result<Self, Fatal> {
        let get = |bucket: Bucket, name: &[u8]| view.get(Family::System, &bucket.engine_key(name));
        let meta = |name: &[u8]| get(Bucket::Meta, name);
        let number = |name: &'static [u8]| -> Result<u64, Fatal> {
            match meta(name)? {
                None => Ok(0),
                Some(row) => row[..]
                    .try_into()
                    .map(u64::from_be_bytes)
                    .map_err(|_| Fatal::damaged("bucket meta", name, "not eight bytes")),
            }
        };
        let mark = |name: &'static [u8]| -> Result<Option<i64>, Fatal> {
            let decode = |row: Bytes| {
                RowKey::decode(&row)
                    .map(|row| row.revision.main)
                    .ok_or_else(|| Fatal::damaged("bucket meta", name, "not a revision"))
            };
            meta(name)?.map(decode).transpose()
        };
        let finished = mark(names::FINISHED_COMPACT)?.unwrap_or(NEVER_COMPACTED);
        let scheduled = mark(names::SCHEDULED_COMPACT)?.unwrap_or(NEVER_COMPACTED);
        // A scheduled compaction counts from the moment it was accepted. The last record may be
        // older than it: a tombstone that was compacted away.
        let compacted = finished.max(scheduled);
        let revision = last_revision(view)?.unwrap_or(FRESH).max(FRESH).max(compacted);
        let conf_state = match meta(names::CONF_STATE)? {
            None => ConfState::default(),
            Some(row) => json::parse_conf_state(&row).map_err(|error| {
                Fatal::damaged("bucket meta", names::CONF_STATE, error.to_string())
            })?,
        };
        let cluster_version = match get(Bucket::Cluster, names::CLUSTER_VERSION)? {
            None => None,
            Some(row) => Some(String::from_utf8_lossy(&row).parse().map_err(
                |error: crate::version::NotAVersion| {
                    Fatal::damaged("bucket cluster", names::CLUSTER_VERSION, error.to_string())
                },
            )?),
        };
        let downgrade = match get(Bucket::Cluster, names::DOWNGRADE)? {
            None => DowngradeInfo::default(),
            Some(row) => serde_json::from_slice(&row).map_err(|error| {
                Fatal::damaged("bucket cluster", names::DOWNGRADE, error.to_string())
            })?,
        };
        Ok(Self {
            revision,
            compacted,
            compact_finished: finished,
            live_keys: live_keys(view)?,
            applied: LogPosition {
                index: number(names::CONSISTENT_INDEX)?,
                term: number(names::TERM)?,
            },
            conf_state: Arc::new(conf_state),
            members: Arc::new(load_members(view)?),
            alarms: Arc::new(Alarms::load(view)?),
            cluster_version,
            downgrade: Arc::new(downgrade),
            auth: Arc::new(AuthState::load(view)?),
        })
    }
}

fn live_keys(view: &dyn View) -> Result<u64, Fatal> {
    match view.get(Family::System, LIVE_KEYS)? {
        Some(row) => row[..]
            .try_into()
            .map(u64::from_be_bytes)
            .map_err(|_| Fatal::damaged("family System", LIVE_KEYS, "not eight bytes")),
        // Nothing was created or deleted since a version without the row.
        None => count_live_keys(view),
    }
}

/// Counts the live keys by looking at all keys.
pub(crate) fn count_live_keys(view: &dyn View) -> Result<u64, Fatal> {
    let mut rows = view.cursor(Family::Index, Scan::all().uncached())?;
    let mut count = 0;
    rows.seek_to_first();
    while rows.valid() {
        let entry = IndexEntry::decode(rows.value())
            .ok_or_else(|| Fatal::damaged("family Index", rows.key(), "not an index row"))?;
        count += u64::from(!entry.tombstone);
        rows.next();
    }
    rows.status()?;
    Ok(count)
}

fn last_revision(view: &dyn View) -> Result<Option<i64>, Fatal> {
    let mut rows = view.cursor(Family::Key, Bucket::Key.scan())?;
    rows.seek_to_last();
    let last = rows.valid().then(|| kv::row_key(rows.key())).transpose()?;
    rows.status()?;
    Ok(last.map(|row| row.revision.main))
}

fn load_members(view: &dyn View) -> Result<Membership, Fatal> {
    let (mut members, mut removed) = (Vec::new(), Vec::new());
    for bucket in [Bucket::Members, Bucket::MembersRemoved] {
        let mut rows = view.cursor(Family::System, bucket.scan())?;
        rows.seek_to_first();
        while rows.valid() {
            let key = bucket.row_key(rows.key());
            let damaged = |found: String| Fatal::damaged(bucket.name(), key, found);
            let id = parse_bucket_key(key).ok_or_else(|| damaged("not a member id".into()))?;
            if bucket == Bucket::Members {
                let member: Member = serde_json::from_slice(rows.value())
                    .map_err(|error| damaged(error.to_string()))?;
                members.push(Member { id, ..member });
            } else {
                removed.push(id);
            }
            rows.next();
        }
        rows.status()?;
    }
    Ok(Membership::new(members, removed))
}
