//! `mvccpb.KeyValue` as rows of the Key family.
//!
//! **Invariant:** the bytes are those that etcd writes (fields in the order of their numbers, zero
//! fields left out, a tombstone has the key alone): hashes over them are compared between members.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mainstay_engine::{Family, View};
use mainstay_proto::mvccpb::KeyValue;
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::keys::{RowKey, revision_bytes};
use crate::{Fatal, Revision};

/// Appends the row value for `kv`.
pub fn encode_to(kv: &KeyValue, out: &mut BytesMut) {
    out.reserve(encoded_len(kv));
    bytes_field(1, &kv.key, out);
    int_field(2, kv.create_revision, out);
    int_field(3, kv.mod_revision, out);
    int_field(4, kv.version, out);
    bytes_field(5, &kv.value, out);
    int_field(6, kv.lease, out);
}

/// The row value of a tombstone of `key`.
pub(crate) fn encode_tombstone_to(key: &[u8], out: &mut BytesMut) {
    bytes_field(1, key, out);
}

fn encoded_len(kv: &KeyValue) -> usize {
    let bytes = |len: usize| 1 + encoded_len_varint(len as u64) + len;
    // Four integers of at most eleven bytes each: close enough for a reservation.
    bytes(kv.key.len()) + bytes(kv.value.len()) + 44
}

fn bytes_field(number: u8, value: &[u8], out: &mut BytesMut) {
    if !value.is_empty() {
        out.put_u8(number << 3 | 2);
        encode_varint(value.len() as u64, out);
        out.put_slice(value);
    }
}

fn int_field(number: u8, value: i64, out: &mut BytesMut) {
    if value != 0 {
        out.put_u8(number << 3);
        encode_varint(value as u64, out);
    }
}

/// Reads a row; key and value share the memory of `bytes`.
pub fn decode(row: &[u8], bytes: Bytes) -> Result<KeyValue, Fatal> {
    KeyValue::decode(bytes).map_err(|error| Fatal::damaged("key row", row, error.to_string()))
}

/// The user key of a row, without reading the rest of it.
pub fn user_key<'a>(row: &[u8], value: &'a [u8]) -> Result<&'a [u8], Fatal> {
    let mut rest = value;
    let damaged = || Fatal::damaged("key row", row, "no user key in it");
    match rest.first() {
        // A record with no key at all: what `etcdutl snapshot restore --bump-revision` writes.
        None => Ok(&[]),
        Some(0x0a) => {
            rest.advance(1);
            let len = prost::encoding::decode_varint(&mut rest).map_err(|_| damaged())?;
            rest.get(..usize::try_from(len).map_err(|_| damaged())?).ok_or_else(damaged)
        }
        // Another first field: the key is empty.
        Some(_) => Ok(&[]),
    }
}

/// The pair that the put at `revision` wrote; `None` if it was compacted away or is a tombstone.
pub fn kv_at(view: &dyn View, revision: Revision) -> Result<Option<KeyValue>, Fatal> {
    let row = revision_bytes(revision);
    match view.get(Family::Key, &row)? {
        Some(bytes) => Ok(Some(decode(&row, bytes)?)),
        None => Ok(None),
    }
}

/// Like [`kv_at`] for many revisions at once, all of which must be there.
pub(crate) fn kvs_at(view: &dyn View, revisions: &[Revision]) -> Result<Vec<KeyValue>, Fatal> {
    let rows: Vec<_> = revisions.iter().map(|revision| revision_bytes(*revision)).collect();
    let keys: Vec<&[u8]> = rows.iter().map(|row| row.as_slice()).collect();
    let found = view.multi_get(Family::Key, &keys)?;
    rows.iter()
        .zip(found)
        .map(|(row, bytes)| {
            let bytes =
                bytes.ok_or_else(|| Fatal::damaged("key row", row, "an indexed row is missing"))?;
            decode(row, bytes)
        })
        .collect()
}

/// Reads the key of a row of the Key family.
pub(crate) fn row_key(bytes: &[u8]) -> Result<RowKey, Fatal> {
    RowKey::decode(bytes).ok_or_else(|| Fatal::damaged("key row", bytes, "not a revision"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_are_protobuf(
            key in prop::collection::vec(any::<u8>(), 0..20),
            value in prop::collection::vec(any::<u8>(), 0..300),
            create in prop_oneof![Just(0i64), any::<i64>()],
            modified: i64,
            version in prop_oneof![Just(0i64), any::<i64>()],
            lease in prop_oneof![Just(0i64), any::<i64>()],
        ) {
            let kv = KeyValue {
                key: key.clone().into(), value: value.into(), create_revision: create,
                mod_revision: modified, version, lease,
            };
            let mut ours = BytesMut::new();
            encode_to(&kv, &mut ours);
            let ours = ours.freeze();
            prop_assert_eq!(&ours[..], &kv.encode_to_vec()[..]);
            prop_assert_eq!(user_key(b"", &ours).unwrap(), &key[..]);
            prop_assert_eq!(decode(b"", ours).unwrap(), kv);
        }
    }

    #[test]
    fn damaged_rows_are_named() {
        let error = user_key(b"\0row", &[0x0a, 5, b'a']).unwrap_err();
        assert!(error.to_string().contains("\\x00row"), "{error}");
        assert!(decode(b"", Bytes::from_static(&[0x0a, 5, b'a'])).is_err());
    }
}
