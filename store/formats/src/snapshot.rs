//! The snapshot file that `etcdctl snapshot save` makes: a bbolt file and behind it the SHA-256 of
//! its bytes.
//!
//! Input: the bytes of the bbolt file as they pass, or a file with such a hash. Output: the hash,
//! whether it is right, and what `etcdutl snapshot status` tells.
//! **Invariant:** whether a file carries a hash is told by its length alone, as etcd does: a bbolt
//! file is a multiple of 512 bytes long, with the hash 32 more.

use std::collections::HashSet;
use std::io;

use mainstay_proto::mvccpb;
use prost::Message;
use sha2::{Digest, Sha256};

use crate::ReadAt;
use crate::bbolt::{CheckReport, ReadError, Reader};

/// Bytes of the hash.
pub const HASH_SIZE: usize = 32;
/// How much is read at once to compute a hash.
const READ_SIZE: u64 = 256 * 1024;

/// Computes the hash from the bytes of the bbolt file as they pass.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Nothing has passed yet.
    pub fn new() -> Hasher {
        Hasher::default()
    }

    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash to append.
    pub fn finish(self) -> [u8; HASH_SIZE] {
        self.0.finalize().into()
    }
}

/// Why a snapshot file is not good.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file layer failed.
    #[error("reading the snapshot: {0}")]
    Io(#[from] io::Error),
    /// A copy of `member/snap/db`, or cut.
    #[error("the snapshot has no hash at its end (its length is {0} bytes)")]
    NoHash(u64),
    /// Damaged.
    #[error("the snapshot's SHA-256 is {computed}, its end says {found}")]
    Hash {
        /// What stands at the end of the file, in hex.
        found: String,
        /// What the content gives, in hex.
        computed: String,
    },
    /// The bbolt file in it is damaged.
    #[error(transparent)]
    Bbolt(#[from] ReadError),
    /// A row of the bucket `key` that is not one of etcd's.
    #[error("bucket key: the row {key} {problem}")]
    Row {
        /// The row's key, in hex.
        key: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// Whether a file of so many bytes ends in a hash.
pub fn has_hash(size: u64) -> bool {
    size % 512 == HASH_SIZE as u64
}

/// Checks the hash at the end of a file and returns the length of the bbolt file before it.
pub fn verify(file: &impl ReadAt) -> Result<u64, SnapshotError> {
    let size = file.size()?;
    if !has_hash(size) {
        return Err(SnapshotError::NoHash(size));
    }
    let content = size - HASH_SIZE as u64;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; READ_SIZE.min(content) as usize];
    let mut offset = 0;
    while offset < content {
        let part = &mut buffer[..READ_SIZE.min(content - offset) as usize];
        file.read_exact_at(part, offset)?;
        hasher.update(part);
        offset += part.len() as u64;
    }
    let mut found = [0; HASH_SIZE];
    file.read_exact_at(&mut found, content)?;
    let computed = hasher.finish();
    if found != computed {
        return Err(SnapshotError::Hash { found: hex(&found), computed: hex(&computed) });
    }
    Ok(content)
}

/// What `etcdutl snapshot status` tells of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// CRC-32C over the names of the buckets and their rows.
    pub hash: u32,
    /// The main revision of the last row of the bucket `key`; 0 without rows.
    pub revision: i64,
    /// Keys that exist at that revision.
    pub total_key: u64,
    /// Bytes of the bbolt file that are in use.
    pub total_size: u64,
    /// The storage version in the bucket `meta`: empty before 3.6.
    pub version: String,
}

/// Checks the structure of a bbolt file and sums it up. A hash behind it is not looked at; see
/// [`verify`].
///
/// Memory grows with the number of keys that exist, by about 32 bytes each.
pub fn status<R: ReadAt>(reader: &Reader<R>) -> Result<(Status, CheckReport), SnapshotError> {
    let report = reader.check()?;
    let mut hash = 0;
    let mut revision = 0;
    let mut version = String::new();
    let mut live = HashSet::new();
    for name in reader.buckets()? {
        hash = crc32c::crc32c_append(hash, &name);
        let Some(bucket) = reader.bucket(&name)? else { continue };
        let is_key = name.as_ref() == b"key";
        reader.for_each(&bucket, |key, value| {
            hash = crc32c::crc32c_append(hash, key);
            hash = crc32c::crc32c_append(hash, value);
            if is_key {
                revision = count_row(key, value, &mut live)?;
            } else if name.as_ref() == b"meta" && key == b"storageVersion" {
                version = String::from_utf8_lossy(value).into_owned();
            }
            Ok::<(), SnapshotError>(())
        })?;
    }
    let total_size = reader.meta().used_bytes().unwrap_or(u64::MAX);
    let total_key = live.len() as u64;
    Ok((Status { hash, revision, total_key, total_size, version }, report))
}

/// Notes a row of the bucket `key` among the keys that exist. Returns its main revision.
fn count_row(key: &[u8], value: &[u8], live: &mut HashSet<[u8; 16]>) -> Result<i64, SnapshotError> {
    let bad = |problem| SnapshotError::Row { key: hex(key), problem };
    let (main, rest) = key.split_first_chunk::<8>().ok_or_else(|| bad("is too short"))?;
    let is_tombstone = match (key.len(), rest.first(), key.get(17)) {
        (17, Some(b'_'), None) => false,
        (18, Some(b'_'), Some(b't')) => true,
        _ => return Err(bad("is not a revision")),
    };
    let row = mvccpb::KeyValue::decode(value).map_err(|_| bad("has no key-value message"))?;
    // Half a SHA-256 stands for the key: no two keys share it, and it has a small fixed size.
    let mut short = [0; 16];
    short.copy_from_slice(&Sha256::digest(&row.key)[..16]);
    if is_tombstone {
        live.remove(&short);
    } else {
        live.insert(short);
    }
    Ok(i64::from_be_bytes(*main))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_hash(content: &[u8]) -> Vec<u8> {
        let mut hasher = Hasher::new();
        for part in content.chunks(100) {
            hasher.update(part);
        }
        let mut file = content.to_vec();
        file.extend_from_slice(&hasher.finish());
        file
    }

    #[test]
    fn known_sha256() {
        assert_eq!(
            hex(&Hasher::new().finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn the_hash_at_the_end_is_checked() {
        let content = vec![7; READ_SIZE as usize + 512];
        let file = with_hash(&content);
        assert_eq!(verify(&file).unwrap(), content.len() as u64);
        for at in [0, READ_SIZE as usize, content.len() - 1, file.len() - 1] {
            let mut bad = file.clone();
            bad[at] ^= 1;
            assert!(matches!(verify(&bad), Err(SnapshotError::Hash { .. })), "byte {at}");
        }
        assert!(matches!(verify(&content), Err(SnapshotError::NoHash(_))));
    }

    #[test]
    fn rows_that_are_not_etcds_are_named() {
        let mut live = HashSet::new();
        let error = count_row(b"short", b"", &mut live).unwrap_err();
        assert_eq!(error.to_string(), "bucket key: the row 73686f7274 is too short");
        let error = count_row(b"12345678_12345678x", b"", &mut live).unwrap_err();
        assert!(error.to_string().ends_with("is not a revision"), "{error}");
        let error = count_row(b"12345678_12345678", &[0xFF], &mut live).unwrap_err();
        assert!(error.to_string().ends_with("has no key-value message"), "{error}");
    }
}
