//! etcd's buckets and where their rows are in the engine.
//!
//! The bucket `key` is the Key family as it is. All others share the System family: one tag byte,
//! then etcd's own key; values are etcd's too. Tags follow the order of the bucket names, so that a
//! pass over System meets the buckets in the order of a bbolt file.
//!
//! **Invariant:** tags are a format on disk: never change or reuse one.

use bytes::{BufMut, Bytes, BytesMut};
use mainstay_engine::{Family, Scan};

/// One of etcd's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Bucket {
    /// Raised alarms: marshalled `AlarmMember` → empty.
    Alarm = 1,
    /// Whether auth is on, and its revision.
    Auth = 2,
    /// Roles by name.
    AuthRoles = 3,
    /// Users by name.
    AuthUsers = 4,
    /// Cluster version and downgrade state.
    Cluster = 5,
    /// The log of all changes.
    Key = 6,
    /// Leases by id.
    Lease = 7,
    /// Members by hexadecimal id.
    Members = 8,
    /// Hexadecimal ids that never come back.
    MembersRemoved = 9,
    /// Applied index, term, conf state, compaction marks, storage version.
    Meta = 10,
}

impl Bucket {
    /// All buckets in the order of their names, as bbolt keeps them.
    pub const ALL: [Bucket; 10] = [
        Bucket::Alarm,
        Bucket::Auth,
        Bucket::AuthRoles,
        Bucket::AuthUsers,
        Bucket::Cluster,
        Bucket::Key,
        Bucket::Lease,
        Bucket::Members,
        Bucket::MembersRemoved,
        Bucket::Meta,
    ];

    /// etcd's name.
    pub const fn name(self) -> &'static str {
        match self {
            Bucket::Alarm => "alarm",
            Bucket::Auth => "auth",
            Bucket::AuthRoles => "authRoles",
            Bucket::AuthUsers => "authUsers",
            Bucket::Cluster => "cluster",
            Bucket::Key => "key",
            Bucket::Lease => "lease",
            Bucket::Members => "members",
            Bucket::MembersRemoved => "members_removed",
            Bucket::Meta => "meta",
        }
    }

    /// The bucket with this name in a bbolt file.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|bucket| bucket.name().as_bytes() == name)
    }

    /// First byte of this bucket's keys in the System family.
    pub const fn tag(self) -> u8 {
        self as u8
    }

    /// The bucket with this tag.
    pub fn from_tag(tag: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|bucket| bucket.tag() == tag)
    }

    /// Family in which the rows are.
    pub const fn family(self) -> Family {
        match self {
            Bucket::Key => Family::Key,
            _ => Family::System,
        }
    }

    /// The engine key of a row of this bucket.
    pub fn engine_key(self, key: &[u8]) -> Bytes {
        if self == Bucket::Key {
            return Bytes::copy_from_slice(key);
        }
        let mut out = BytesMut::with_capacity(1 + key.len());
        out.put_u8(self.tag());
        out.put_slice(key);
        out.freeze()
    }

    /// etcd's key of a row that a scan of this bucket met.
    pub fn row_key(self, engine_key: &[u8]) -> &[u8] {
        match self {
            Bucket::Key => engine_key,
            _ => engine_key.get(1..).unwrap_or_default(),
        }
    }

    /// All rows of this bucket.
    pub fn scan(self) -> Scan {
        match self {
            Bucket::Key => Scan::all(),
            _ => Scan::prefix(vec![self.tag()]),
        }
    }
}

/// A row of the System family that belongs to no bucket, so no export has it: how many keys are
/// live, BE u64. Its tag is none of a bucket.
pub const LIVE_KEYS: &[u8] = b"\xffliveKeys";

/// Keys within the buckets.
pub mod names {
    /// `meta`: last applied index, BE u64.
    pub const CONSISTENT_INDEX: &[u8] = b"consistent_index";
    /// `meta`: term of the last applied entry, BE u64.
    pub const TERM: &[u8] = b"term";
    /// `meta`: JSON of the conf state.
    pub const CONF_STATE: &[u8] = b"confState";
    /// `meta`: revision of the last accepted compaction.
    pub const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
    /// `meta`: revision up to which rows were deleted.
    pub const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
    /// `meta`: version of the layout, as text.
    pub const STORAGE_VERSION: &[u8] = b"storageVersion";
    /// `cluster`: version as text.
    pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";
    /// `cluster`: JSON of the downgrade state.
    pub const DOWNGRADE: &[u8] = b"downgrade";
    /// `auth`: one byte, 1 when auth is on.
    pub const AUTH_ENABLED: &[u8] = b"authEnabled";
    /// `auth`: BE u64.
    pub const AUTH_REVISION: &[u8] = b"authRevision";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_follow_names() {
        let names: Vec<_> = Bucket::ALL.iter().map(|bucket| bucket.name()).collect();
        assert!(names.is_sorted());
        assert!(Bucket::ALL.iter().map(|bucket| bucket.tag()).is_sorted());
        for bucket in Bucket::ALL {
            assert_eq!(Bucket::from_tag(bucket.tag()), Some(bucket));
            assert_eq!(Bucket::from_name(bucket.name().as_bytes()), Some(bucket));
            assert_eq!(bucket.row_key(&bucket.engine_key(b"k")), b"k");
        }
    }
}
