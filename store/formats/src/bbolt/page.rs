//! The page: a header of 16 bytes, a table of elements, and the keys and values they point to.
//!
//! Input: the bytes of a page with its overflow pages. Output: its elements, one by one.
//! **Invariant:** an element is handed out only after its table entry, key and value were found to
//! lie inside the page.

use super::error::ReadError;

/// Bytes of a page's header.
pub(super) const HEADER_SIZE: usize = 16;
/// Bytes of an entry in the table of elements, in leaves and branches alike.
pub(super) const ELEMENT_SIZE: usize = 16;
/// Bytes of the header that a bucket's row starts with: root page, sequence number.
pub(super) const BUCKET_HEADER_SIZE: usize = 16;
/// Flag of a leaf element whose value is a bucket.
pub(super) const BUCKET_FLAG: u32 = 1;

pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let mut word = [0; 2];
    word.copy_from_slice(&bytes[at..at + 2]);
    u16::from_le_bytes(word)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Flags of a page of keys and the pages of the subtrees that start with them.
pub(super) const BRANCH: u16 = 0x01;
/// Flags of a page of keys and values.
pub(super) const LEAF: u16 = 0x02;
/// Flags of the two first pages.
pub(super) const META: u16 = 0x04;
/// Flags of a page of ids of pages that are not in use.
pub(super) const FREE_LIST: u16 = 0x10;

/// The first 16 bytes of a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) id: u64,
    pub(super) flags: u16,
    pub(super) count: u16,
    pub(super) overflow: u32,
}

impl Header {
    /// `bytes` has at least [`HEADER_SIZE`] bytes.
    pub(super) fn parse(bytes: &[u8]) -> Header {
        Header {
            id: u64_at(bytes, 0),
            flags: u16_at(bytes, 8),
            count: u16_at(bytes, 10),
            overflow: u32_at(bytes, 12),
        }
    }

    pub(super) fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        bytes[0..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.flags.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.overflow.to_le_bytes());
        bytes
    }
}

/// Where the key and the value of a leaf element lie in its page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub(super) is_bucket: bool,
    pub(super) key_at: usize,
    pub(super) value_at: usize,
    pub(super) end: usize,
}

/// The bytes of one branch or leaf page. The buffer is kept for the next page.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The page, with its header and its overflow pages.
    pub(super) bytes: Vec<u8>,
    /// The page it was read from; for an inline bucket the page that holds it.
    pub(super) page: u64,
    pub(super) is_leaf: bool,
    pub(super) count: usize,
}

impl Node {
    /// Takes the header's word for what the page is. The caller has filled `bytes`.
    pub(super) fn set_header(&mut self, page: u64, header: Header) -> Result<(), ReadError> {
        self.page = page;
        self.is_leaf = header.flags == LEAF;
        self.count = usize::from(header.count);
        if !self.is_leaf && header.flags != BRANCH {
            let expected = "a branch (0x01) or a leaf (0x02)";
            return Err(ReadError::PageFlags { page, flags: header.flags, expected });
        }
        if !self.is_leaf && self.count == 0 {
            return Err(ReadError::EmptyBranch { page });
        }
        if HEADER_SIZE + self.count * ELEMENT_SIZE > self.bytes.len() {
            return Err(self.bad_element(self.count - 1, 0, 0, 0));
        }
        Ok(())
    }

    /// The places of the key and value of element `index` of a leaf.
    #[inline]
    pub(super) fn leaf(&self, index: usize) -> Result<Place, ReadError> {
        let at = HEADER_SIZE + index * ELEMENT_SIZE;
        let entry = &self.bytes[at..at + ELEMENT_SIZE];
        let (flags, position) = (u32_at(entry, 0), u32_at(entry, 4));
        let (key, value) = (u32_at(entry, 8), u32_at(entry, 12));
        // No sum of three 32-bit numbers overflows a 64-bit one.
        let key_at = at as u64 + u64::from(position);
        let value_at = key_at + u64::from(key);
        let end = value_at + u64::from(value);
        if key == 0 || !self.holds(key_at, end) {
            return Err(self.bad_element(index, position, key, value));
        }
        Ok(Place {
            is_bucket: flags & BUCKET_FLAG != 0,
            key_at: key_at as usize,
            value_at: value_at as usize,
            end: end as usize,
        })
    }

    /// The key of element `index`, whether the page is a leaf or a branch.
    #[inline]
    pub(super) fn key(&self, index: usize) -> Result<&[u8], ReadError> {
        if self.is_leaf {
            let place = self.leaf(index)?;
            return Ok(&self.bytes[place.key_at..place.value_at]);
        }
        let at = HEADER_SIZE + index * ELEMENT_SIZE;
        let (position, size) = (u32_at(&self.bytes, at), u32_at(&self.bytes, at + 4));
        let from = at as u64 + u64::from(position);
        let end = from + u64::from(size);
        if size == 0 || !self.holds(from, end) {
            return Err(self.bad_element(index, position, size, 0));
        }
        Ok(&self.bytes[from as usize..end as usize])
    }

    /// The page below element `index` of a branch.
    pub(super) fn child(&self, index: usize) -> u64 {
        u64_at(&self.bytes, HEADER_SIZE + index * ELEMENT_SIZE + 8)
    }

    /// How many elements have a key below (or, with `or_equal`, at or below) `key`.
    pub(super) fn count_below(&self, key: &[u8], or_equal: bool) -> Result<usize, ReadError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = (low + high) / 2;
            let found = self.key(middle)?;
            if found < key || (or_equal && found == key) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Keys and values lie behind the table and before the end.
    fn holds(&self, from: u64, end: u64) -> bool {
        from >= (HEADER_SIZE + self.count * ELEMENT_SIZE) as u64 && end <= self.bytes.len() as u64
    }

    #[cold]
    fn bad_element(&self, index: usize, position: u32, key: u32, value: u32) -> ReadError {
        let (page, count, size) = (self.page, self.count, self.bytes.len());
        ReadError::Element { page, index, count, position, key, value, size }
    }
}
