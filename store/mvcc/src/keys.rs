//! The bytes of keys and of the small values in each engine family.
//!
//! | family | key | value |
//! |---|---|---|
//! | Key | `BE main` `_` `BE sub` (`t`) | `mvccpb.KeyValue` as etcd writes it |
//! | Index | user key | [`IndexEntry`], 41 bytes |
//! | History | escaped user key, `BE main`, `BE sub` | one byte: 1 for a tombstone, else 0 |
//! | LeaseKey | `BE lease id`, user key | empty |
//! | System | tag of the bucket, key | as in etcd's bucket (see [`crate::buckets`]) |
//!
//! **Invariant:** these encodings are a format on disk. A change needs a new family or a migration.
//! **Invariant:** History keys sort by user key first and by revision second, also for user keys
//! that are prefixes of each other or hold zero bytes.

use bytes::{BufMut, Bytes, BytesMut};

use crate::Revision;

/// Length of a Key row's key without the tombstone mark.
pub const ROW_LEN: usize = 17;

const SEPARATOR: u8 = b'_';
const TOMBSTONE: u8 = b't';

/// The key of a row in the Key family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    /// Revision of the change.
    pub revision: Revision,
    /// Whether the change deleted the key.
    pub tombstone: bool,
}

impl RowKey {
    /// Reads a row key; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let tombstone = match bytes.len() {
            ROW_LEN => false,
            18 if bytes[17] == TOMBSTONE => true,
            // A mark other than `t` does not make a tombstone.
            18 => false,
            _ => return None,
        };
        if bytes[8] != SEPARATOR {
            return None;
        }
        let (main, sub) = (be_i64(&bytes[..8])?, be_i64(&bytes[9..17])?);
        (main >= 0 && sub >= 0).then_some(Self { revision: Revision { main, sub }, tombstone })
    }

    /// The row key as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(ROW_LEN + 1);
        self.encode_to(&mut out);
        out.freeze()
    }

    /// Appends the row key.
    pub fn encode_to(&self, out: &mut BytesMut) {
        out.put_slice(&revision_bytes(self.revision));
        if self.tombstone {
            out.put_u8(TOMBSTONE);
        }
    }
}

/// A revision as etcd writes it: row key of a put, and value of the compaction marks in `meta`.
pub fn revision_bytes(revision: Revision) -> [u8; ROW_LEN] {
    let mut out = [SEPARATOR; ROW_LEN];
    out[..8].copy_from_slice(&revision.main.to_be_bytes());
    out[9..].copy_from_slice(&revision.sub.to_be_bytes());
    out
}

/// The newest state of a user key, tombstones included, without the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// Revision of the newest change.
    pub modified: Revision,
    /// Main revision of the put that began this life of the key; 0 for a tombstone.
    pub created: i64,
    /// Number of puts in this life of the key; 0 for a tombstone.
    pub version: i64,
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
    /// Whether the newest change deleted the key.
    pub tombstone: bool,
}

impl IndexEntry {
    /// Length of the encoded form.
    pub const LEN: usize = 41;

    /// The entry of a deleted key.
    pub const fn deleted(modified: Revision) -> Self {
        Self { modified, created: 0, version: 0, lease: 0, tombstone: true }
    }

    /// Appends the encoded form.
    pub fn encode_to(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(self.tombstone));
        out.put_i64(self.modified.main);
        out.put_i64(self.modified.sub);
        out.put_i64(self.created);
        out.put_i64(self.version);
        out.put_i64(self.lease);
    }

    /// The encoded form.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(Self::LEN);
        self.encode_to(&mut out);
        out.freeze()
    }

    /// Reads an entry; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::LEN || bytes[0] > 1 {
            return None;
        }
        let field = |at: usize| be_i64(&bytes[at..at + 8]);
        Some(Self {
            tombstone: bytes[0] == 1,
            modified: Revision { main: field(1)?, sub: field(9)? },
            created: field(17)?,
            version: field(25)?,
            lease: field(33)?,
        })
    }
}

/// Appends the part of a History key that all revisions of `key` share.
///
/// A zero byte becomes `00 FF` and the end is `00 01`, so that the end of a key sorts before any
/// further byte of a longer key.
pub fn history_prefix_to(key: &[u8], out: &mut BytesMut) {
    let mut rest = key;
    while let Some(zero) = rest.iter().position(|byte| *byte == 0) {
        out.put_slice(&rest[..zero]);
        out.put_slice(&[0, 0xff]);
        rest = &rest[zero + 1..];
    }
    out.put_slice(rest);
    out.put_slice(&[0, 1]);
}

/// Appends the History key of one revision of `key`.
pub fn history_key_to(key: &[u8], revision: Revision, out: &mut BytesMut) {
    history_prefix_to(key, out);
    out.put_i64(revision.main);
    out.put_i64(revision.sub);
}

/// The History key of one revision of `key`.
pub fn history_key(key: &[u8], revision: Revision) -> Bytes {
    let mut out = BytesMut::with_capacity(key.len() + 18);
    history_key_to(key, revision, &mut out);
    out.freeze()
}

/// The value of a History row.
pub fn history_value(tombstone: bool) -> Bytes {
    Bytes::from_static(if tombstone { &[1] } else { &[0] })
}

/// Splits a History key into the user key and the revision; `None` if the bytes are not one.
pub fn decode_history_key(bytes: &[u8]) -> Option<(Bytes, Revision)> {
    let split = bytes.len().checked_sub(16)?;
    let (mut escaped, revision) = bytes.split_at(split);
    escaped = escaped.strip_suffix(&[0, 1])?;
    let mut key = BytesMut::with_capacity(escaped.len());
    while let Some(zero) = escaped.iter().position(|byte| *byte == 0) {
        if escaped.get(zero + 1) != Some(&0xff) {
            return None;
        }
        key.put_slice(&escaped[..=zero]);
        escaped = &escaped[zero + 2..];
    }
    key.put_slice(escaped);
    Some((key.freeze(), decode_history_revision(revision)?))
}

/// The revision at the end of a History key.
pub fn decode_history_revision(bytes: &[u8]) -> Option<Revision> {
    let revision = &bytes[bytes.len().checked_sub(16)?..];
    Some(Revision { main: be_i64(&revision[..8])?, sub: be_i64(&revision[8..])? })
}

/// The LeaseKey key for `key` attached to `lease`.
pub fn lease_key(lease: i64, key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(8 + key.len());
    out.put_i64(lease);
    out.put_slice(key);
    out.freeze()
}

/// Splits a LeaseKey key into lease id and user key.
pub fn decode_lease_key(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (lease, key) = bytes.split_at_checked(8)?;
    Some((be_i64(lease)?, key))
}

fn be_i64(bytes: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn row_keys_are_etcds() {
        let put = RowKey { revision: Revision::new(5, 2), tombstone: false };
        assert_eq!(&put.encode()[..], b"\0\0\0\0\0\0\0\x05_\0\0\0\0\0\0\0\x02");
        let deletion = RowKey { revision: Revision::new(256, 0), tombstone: true };
        assert_eq!(&deletion.encode()[..], b"\0\0\0\0\0\0\x01\0_\0\0\0\0\0\0\0\0t");
        for row in [put, deletion] {
            assert_eq!(RowKey::decode(&row.encode()), Some(row));
        }
        assert_eq!(RowKey::decode(b"short"), None);
        assert_eq!(RowKey::decode(b"\xff\0\0\0\0\0\0\x05_\0\0\0\0\0\0\0\x02"), None);
        assert_eq!(RowKey::decode(b"\0\0\0\0\0\0\0\x05-\0\0\0\0\0\0\0\x02"), None);
    }

    fn small_key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'a'), Just(0xff)], 0..6)
    }

    proptest! {
        #[test]
        fn history_keys_sort_by_key_then_revision(
            a in small_key(), b in small_key(), m in 0i64..4, n in 0i64..4, s in 0i64..3,
        ) {
            let (ra, rb) = (Revision::new(m, s), Revision::new(n, 1));
            let left = history_key(&a, ra);
            prop_assert_eq!(left.cmp(&history_key(&b, rb)), (&a, ra).cmp(&(&b, rb)));
            prop_assert_eq!(decode_history_key(&left), Some((Bytes::from(a), ra)));
        }

        #[test]
        fn index_entries_survive(main: i64, sub: i64, created: i64, version: i64, lease: i64, tombstone: bool) {
            let entry = IndexEntry { modified: Revision { main, sub }, created, version, lease, tombstone };
            let bytes = entry.encode();
            prop_assert_eq!(bytes.len(), IndexEntry::LEN);
            prop_assert_eq!(IndexEntry::decode(&bytes), Some(entry));
        }
    }

    #[test]
    fn lease_keys_split_again() {
        let bytes = lease_key(-7, b"a/b");
        assert_eq!(decode_lease_key(&bytes), Some((-7, &b"a/b"[..])));
        assert_eq!(decode_lease_key(b"1234567"), None);
    }
}
