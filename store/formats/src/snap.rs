//! The raft snapshot file `member/snap/TERM-INDEX.snap`: a raft snapshot message in a frame with a
//! CRC-32C.
//!
//! Input and output are whole files; they are small (members and, up to 3.6, the old v2 store).
//! **Invariant:** what is decoded had the right checksum; an empty file or frame is an error, as
//! in etcd.

use bytes::Bytes;
use mainstay_proto::{raftpb, snappb};
use prost::Message;

/// Why a `.snap` file can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SnapError {
    /// Nothing in it: etcd died before it was written.
    #[error("the snapshot file is empty")]
    Empty,
    /// Damaged.
    #[error("the snapshot's checksum is {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// What stands in the file.
        found: u32,
        /// What the content gives.
        computed: u32,
    },
    /// Not the message that it should be.
    #[error("the snapshot file can't be parsed ({part}): {source}")]
    Parse {
        /// The frame or its content.
        part: &'static str,
        /// What the parser said.
        source: prost::DecodeError,
    },
}

/// The bytes of the file that holds `snapshot`.
pub fn encode(snapshot: &raftpb::Snapshot) -> Vec<u8> {
    let data = snapshot.encode_to_vec();
    let crc = crc32c::crc32c(&data);
    snappb::Snapshot { crc: Some(crc), data: Some(Bytes::from(data)) }.encode_to_vec()
}

/// The snapshot in the bytes of a file.
pub fn decode(file: &[u8]) -> Result<raftpb::Snapshot, SnapError> {
    if file.is_empty() {
        return Err(SnapError::Empty);
    }
    let frame = snappb::Snapshot::decode(file)
        .map_err(|source| SnapError::Parse { part: "frame", source })?;
    let (found, data) = (frame.crc.unwrap_or(0), frame.data.unwrap_or_default());
    if data.is_empty() || found == 0 {
        return Err(SnapError::Empty);
    }
    let computed = crc32c::crc32c(&data);
    if found != computed {
        return Err(SnapError::Checksum { found, computed });
    }
    raftpb::Snapshot::decode(data).map_err(|source| SnapError::Parse { part: "content", source })
}

/// The name of the file of a snapshot.
pub fn file_name(term: u64, index: u64) -> String {
    format!("{term:016x}-{index:016x}.snap")
}

/// Term and index from a file's name, if it is the name of a snapshot file.
pub fn parse_file_name(name: &str) -> Option<(u64, u64)> {
    let (term, index) = name.strip_suffix(".snap")?.split_once('-')?;
    let hex = |text: &str| match text.len() == 16 && !text.starts_with('+') {
        true => u64::from_str_radix(text, 16).ok(),
        false => None,
    };
    Some((hex(term)?, hex(index)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> raftpb::Snapshot {
        raftpb::Snapshot {
            data: Some(Bytes::from_static(b"{}")),
            metadata: Some(raftpb::SnapshotMetadata {
                conf_state: Some(raftpb::ConfState {
                    voters: vec![0x8e9e05c52164694d],
                    auto_leave: Some(false),
                    ..Default::default()
                }),
                index: Some(5),
                term: Some(2),
            }),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(decode(&encode(&sample())), Ok(sample()));
    }

    #[test]
    fn damage_never_changes_the_content() {
        let good = encode(&sample());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            // The top bits of the checksum's varint mean nothing.
            assert!(decode(&bad).map_or(true, |found| found == sample()), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(decode(&good[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn empty_file_and_frame_are_errors() {
        assert_eq!(decode(b""), Err(SnapError::Empty));
        let frame = snappb::Snapshot { crc: Some(0), data: Some(Bytes::from_static(b"x")) };
        assert_eq!(decode(&frame.encode_to_vec()), Err(SnapError::Empty));
    }

    #[test]
    fn names() {
        assert_eq!(file_name(2, 0x1a), "0000000000000002-000000000000001a.snap");
        assert_eq!(parse_file_name(&file_name(7, 8)), Some((7, 8)));
        for bad in ["db", "1-2.snap", "0000000000000002-000000000000001a.snap.db"] {
            assert_eq!(parse_file_name(bad), None, "{bad}");
        }
    }
}
