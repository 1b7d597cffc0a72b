//! Builds a tree of pages from rows in key order, bottom up and left to right.
//!
//! Input: rows. Output: nodes, each handed to [`Pages`] as soon as nothing can be added to it, so
//! that a branch follows its children in the file and the root comes last.
//! **Invariants:** where a node ends depends on the sizes of the rows only; a branch has at least
//! two children (bbolt takes that for granted when it deletes); every node but the last of its
//! level is at least three quarters full, unless its rows are larger than pages.

use super::PAGE_SIZE;
use super::page::{BRANCH, ELEMENT_SIZE, HEADER_SIZE, Header, LEAF};

/// A node of small rows may grow to so many pages, if that leaves less of them empty.
const MAX_SMALL_NODE: u64 = 4 * PAGE_SIZE;

/// Takes finished nodes and gives them their place in the file.
pub(super) trait Pages {
    type Error;

    /// Places a node on the next free pages and returns the id of the first one.
    fn put(&mut self, node: &Draft) -> Result<u64, Self::Error>;
}

/// A node that is being filled.
#[derive(Debug)]
pub(super) struct Draft {
    flags: u16,
    entries: Vec<Entry>,
    /// Keys and values, one after the other.
    data: Vec<u8>,
}

/// An entry of the table of elements, without the position, which follows from the sizes.
#[derive(Debug)]
struct Entry {
    flags: u32,
    key: u32,
    value: u32,
    child: u64,
}

impl Draft {
    fn new(flags: u16) -> Draft {
        Draft { flags, entries: Vec::new(), data: Vec::new() }
    }

    /// Bytes of the node.
    pub(super) fn size(&self) -> u64 {
        (HEADER_SIZE + self.entries.len() * ELEMENT_SIZE + self.data.len()) as u64
    }

    /// Pages that the node needs.
    pub(super) fn pages(&self) -> u64 {
        self.size().div_ceil(PAGE_SIZE)
    }

    /// Keys and values, which follow the table.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Appends the header and the table of elements, as they stand in page `id`.
    pub(super) fn encode_table(&self, id: u64, out: &mut Vec<u8>) {
        let overflow = u32::try_from(self.pages() - 1).expect("a node has less than 2^32 pages");
        let count = u16::try_from(self.entries.len()).expect("a node has less than 2^16 elements");
        out.extend_from_slice(&Header { id, flags: self.flags, count, overflow }.encode());
        let mut position = self.entries.len() * ELEMENT_SIZE;
        for entry in &self.entries {
            // The position counts from where the entry itself stands.
            let from_here = u32::try_from(position).expect("a node has less than 2^32 bytes");
            let mut bytes = [0; ELEMENT_SIZE];
            if self.flags == LEAF {
                bytes[0..4].copy_from_slice(&entry.flags.to_le_bytes());
                bytes[4..8].copy_from_slice(&from_here.to_le_bytes());
                bytes[8..12].copy_from_slice(&entry.key.to_le_bytes());
                bytes[12..16].copy_from_slice(&entry.value.to_le_bytes());
            } else {
                bytes[0..4].copy_from_slice(&from_here.to_le_bytes());
                bytes[4..8].copy_from_slice(&entry.key.to_le_bytes());
                bytes[8..16].copy_from_slice(&entry.child.to_le_bytes());
            }
            out.extend_from_slice(&bytes);
            position += entry.key as usize + entry.value as usize;
            position -= ELEMENT_SIZE;
        }
    }

    /// Whether one more element belongs into this node rather than into the next.
    fn takes(&self, bytes: usize) -> bool {
        let (now, then) = (self.size(), self.size() + (ELEMENT_SIZE + bytes) as u64);
        let capacity = self.pages() * PAGE_SIZE;
        if self.flags == BRANCH {
            return self.entries.len() < 2 || then <= PAGE_SIZE;
        }
        self.entries.is_empty()
            || then <= capacity
            || (now * 4 < capacity * 3 && then <= MAX_SMALL_NODE)
    }

    /// The caller has checked that key and value are no longer than bbolt allows.
    fn push(&mut self, flags: u32, key: &[u8], value: &[u8], child: u64) {
        let (key_size, value_size) = (key.len() as u32, value.len() as u32);
        self.entries.push(Entry { flags, key: key_size, value: value_size, child });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    fn first_key(&self) -> &[u8] {
        &self.data[..self.entries[0].key as usize]
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.data.clear();
    }
}

/// A tree that is being built.
#[derive(Debug)]
pub(super) struct TreeBuilder {
    leaf: Draft,
    /// Branches from just above the leaves to the top.
    levels: Vec<Level>,
}

/// The branch that is being filled at one height.
#[derive(Debug)]
struct Level {
    branch: Draft,
    /// A child that did not fit. It waits for a sibling: a branch of its own is begun only when
    /// that comes, and otherwise it joins the full branch, on an overflow page.
    held: Option<(Vec<u8>, u64)>,
}

/// What became of the rows of a tree.
pub(super) enum Built {
    /// A tree whose root is this page.
    Root(u64),
    /// One leaf, which was not placed.
    Leaf(Draft),
}

impl TreeBuilder {
    pub(super) fn new() -> TreeBuilder {
        TreeBuilder { leaf: Draft::new(LEAF), levels: Vec::new() }
    }

    /// Adds a row whose key is above those before it.
    pub(super) fn push<P: Pages>(
        &mut self,
        pages: &mut P,
        flags: u32,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), P::Error> {
        if !self.leaf.takes(key.len() + value.len()) {
            self.close_leaf(pages)?;
        }
        self.leaf.push(flags, key, value, 0);
        Ok(())
    }

    /// Ends the tree.
    pub(super) fn finish<P: Pages>(mut self, pages: &mut P) -> Result<Built, P::Error> {
        if self.levels.is_empty() {
            return Ok(Built::Leaf(self.leaf));
        }
        self.close_leaf(pages)?;
        let mut height = 0;
        loop {
            let Level { branch, held } = &mut self.levels[height];
            if let Some((key, child)) = held.take() {
                branch.push(0, &key, &[], child);
            }
            let page = pages.put(branch)?;
            let key = branch.first_key().to_vec();
            height += 1;
            if height == self.levels.len() {
                return Ok(Built::Root(page));
            }
            self.add_child(pages, height, key, page)?;
        }
    }

    fn close_leaf<P: Pages>(&mut self, pages: &mut P) -> Result<(), P::Error> {
        let page = pages.put(&self.leaf)?;
        let key = self.leaf.first_key().to_vec();
        self.leaf.clear();
        self.add_child(pages, 0, key, page)
    }

    /// Hangs a finished node into the branch above it, which may finish that, and so on.
    fn add_child<P: Pages>(
        &mut self,
        pages: &mut P,
        mut height: usize,
        mut key: Vec<u8>,
        mut page: u64,
    ) -> Result<(), P::Error> {
        loop {
            if height == self.levels.len() {
                self.levels.push(Level { branch: Draft::new(BRANCH), held: None });
            }
            let Level { branch, held } = &mut self.levels[height];
            let Some((held_key, held_page)) = held.take() else {
                if branch.takes(key.len()) {
                    branch.push(0, &key, &[], page);
                } else {
                    *held = Some((key, page));
                }
                return Ok(());
            };
            let full = pages.put(branch)?;
            let full_key = branch.first_key().to_vec();
            branch.clear();
            branch.push(0, &held_key, &[], held_page);
            branch.push(0, &key, &[], page);
            (height, key, page) = (height + 1, full_key, full);
        }
    }
}
