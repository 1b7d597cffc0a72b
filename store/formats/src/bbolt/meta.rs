//! The meta page: where the tree starts and how many pages are in use.
//!
//! Input and output are the 64 bytes that follow the header of pages 0 and 1.
//! **Invariant:** a [`Meta`] that was parsed has the right magic, version and checksum, a sensible
//! page size, and a root page below its high-water mark.

use super::PAGE_SIZES;
use super::error::MetaError;
use super::page::{u32_at, u64_at};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// Bytes that the checksum covers.
const SUMMED: usize = 56;
/// Bytes of a meta in its page, behind the page header.
pub(super) const META_SIZE: usize = 64;
/// Stands for "no list of free pages is stored".
const NO_FREE_LIST: u64 = u64::MAX;

/// What a meta page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// Bytes of a page.
    pub page_size: u64,
    /// The page of the tree of buckets.
    pub root: u64,
    /// The sequence number of the top tree; nobody uses it.
    pub sequence: u64,
    /// The page of the list of free pages, when one is stored. etcd stores none.
    pub free_list: Option<u64>,
    /// The number of pages in use: every page id is below it.
    pub high_water: u64,
    /// The transaction that wrote it. Of two good metas the one with the higher number counts.
    pub txid: u64,
}

impl Meta {
    /// Reads the bytes behind the page header.
    pub(super) fn parse(bytes: &[u8; META_SIZE]) -> Result<Meta, MetaError> {
        let magic = u32_at(bytes, 0);
        if magic != MAGIC {
            return Err(MetaError::Magic(magic));
        }
        let version = u32_at(bytes, 4);
        if version != VERSION {
            return Err(MetaError::Version(version));
        }
        let (found, computed) = (u64_at(bytes, SUMMED), fnv1a(&bytes[..SUMMED]));
        if found != computed {
            return Err(MetaError::Checksum { found, computed });
        }
        let page_size = u32_at(bytes, 8);
        if !page_size.is_power_of_two() || !PAGE_SIZES.contains(&u64::from(page_size)) {
            return Err(MetaError::PageSize(page_size));
        }
        let free_list = u64_at(bytes, 32);
        let meta = Meta {
            page_size: u64::from(page_size),
            root: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            free_list: (free_list != NO_FREE_LIST).then_some(free_list),
            high_water: u64_at(bytes, 40),
            txid: u64_at(bytes, 48),
        };
        if meta.root < 2 || meta.root >= meta.high_water {
            return Err(MetaError::Root { root: meta.root, high_water: meta.high_water });
        }
        Ok(meta)
    }

    /// The bytes behind the page header.
    pub(super) fn encode(&self) -> [u8; META_SIZE] {
        let mut bytes = [0; META_SIZE];
        let page_size = u32::try_from(self.page_size).expect("page sizes are at most 65536");
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..12].copy_from_slice(&page_size.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.root.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.free_list.unwrap_or(NO_FREE_LIST).to_le_bytes());
        bytes[40..48].copy_from_slice(&self.high_water.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.txid.to_le_bytes());
        let sum = fnv1a(&bytes[..SUMMED]);
        bytes[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Bytes in use: the length of the file without what it was grown by in advance.
    /// `None` when no file can be that long.
    pub fn used_bytes(&self) -> Option<u64> {
        self.high_water.checked_mul(self.page_size)
    }
}

/// FNV-1a with 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Meta {
        Meta { page_size: 4096, root: 7, sequence: 0, free_list: None, high_water: 8, txid: 1 }
    }

    #[test]
    fn known_fnv_values() {
        assert_eq!(fnv1a(b""), 0xcbf29ce484222325);
        assert_eq!(fnv1a(b"foobar"), 0x85944171f73967e8);
    }

    #[test]
    fn what_is_encoded_is_parsed() {
        let with_list = Meta { free_list: Some(5), page_size: 1024, ..sample() };
        for meta in [sample(), with_list] {
            assert_eq!(Meta::parse(&meta.encode()), Ok(meta));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Meta::parse(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn right_checksum_over_nonsense_is_refused() {
        let root = Meta { root: 8, ..sample() };
        assert_eq!(Meta::parse(&root.encode()), Err(MetaError::Root { root: 8, high_water: 8 }));
        let size = Meta { page_size: 512, ..sample() };
        assert_eq!(Meta::parse(&size.encode()), Err(MetaError::PageSize(512)));
    }
}
