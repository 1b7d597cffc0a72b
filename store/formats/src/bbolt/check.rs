//! The proof that a file is whole: every page has one place, every key is where it belongs.
//!
//! Input: an open file. Output: what it consists of, or the first thing that is wrong.
//! **Invariant:** a file that passes has every row reachable by a search for its key, no page in
//! two trees, and no cycle. The bytes of values are not covered: bbolt keeps no checksum of them.

use super::MAX_DEPTH;
use super::error::ReadError;
use super::page::{FREE_LIST, HEADER_SIZE, Header, LEAF, Node, u64_at};
use super::read::{Bucket, Reader, Tree};
use crate::ReadAt;

/// What a whole file consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Pages in use, the two meta pages among them.
    pub pages: u64,
    /// Branch nodes.
    pub branches: u64,
    /// Leaf nodes that are pages.
    pub leaves: u64,
    /// Pages that continue a node or the list of free pages.
    pub overflow: u64,
    /// Pages that hold nothing: listed as free, or, without a list, referred to by nobody.
    pub free: u64,
    /// Buckets, at all levels.
    pub buckets: u64,
    /// Rows that are not buckets.
    pub rows: u64,
    /// Nodes from the top of the file to the deepest leaf.
    pub depth: usize,
}

impl<R: ReadAt> Reader<R> {
    /// Reads the whole file and checks it. Memory: two bits per page, and one node per level.
    pub fn check(&self) -> Result<CheckReport, ReadError> {
        let pages = self.meta().high_water;
        let mut check = Check {
            reader: self,
            used: PageSet::new(pages),
            free: PageSet::new(pages),
            report: CheckReport { pages, ..CheckReport::default() },
            spare: Vec::new(),
        };
        check.used.insert(0);
        check.used.insert(1);
        check.free_list()?;
        check.page(self.meta().root, Bounds::default(), 1)?;
        check.every_page_accounted_for()?;
        Ok(check.report)
    }
}

struct Check<'r, R> {
    reader: &'r Reader<R>,
    used: PageSet,
    free: PageSet,
    report: CheckReport,
    /// Buffers of nodes that are done with.
    spare: Vec<Node>,
}

/// What the parents promise of the keys below them.
#[derive(Debug, Clone, Copy, Default)]
struct Bounds<'k> {
    /// The lowest key allowed.
    lower: Option<&'k [u8]>,
    /// The first key that is not allowed any more.
    upper: Option<&'k [u8]>,
}

impl<R: ReadAt> Check<'_, R> {
    /// Reads the list of free pages, when there is one.
    fn free_list(&mut self) -> Result<(), ReadError> {
        let Some(page) = self.reader.meta().free_list else { return Ok(()) };
        let mut bytes = Vec::new();
        let header = self.reader.read_page(page, &mut bytes)?;
        if header.flags != FREE_LIST {
            let expected = "a list of free pages (0x10)";
            return Err(ReadError::PageFlags { page, flags: header.flags, expected });
        }
        self.occupy(page, header.overflow)?;
        // A count that does not fit into its 16 bits stands in front of the ids.
        let (mut at, mut count) = (HEADER_SIZE, u64::from(header.count));
        if count == 0xFFFF {
            count = u64_at(&bytes, at);
            at += 8;
        }
        if count > ((bytes.len() - at) / 8) as u64 {
            return Err(ReadError::FreeListCount { page, count });
        }
        let high_water = self.reader.meta().high_water;
        for id in bytes[at..].chunks_exact(8).take(count as usize) {
            let page = u64_at(id, 0);
            if page < 2 || page >= high_water {
                return Err(ReadError::PageOutOfRange { page, high_water });
            }
            if !self.free.insert(page) {
                return Err(ReadError::ReferredTwice { page });
            }
            self.report.free += 1;
        }
        Ok(())
    }

    /// Checks the tree below a page.
    fn page(&mut self, page: u64, bounds: Bounds<'_>, depth: usize) -> Result<(), ReadError> {
        if depth > MAX_DEPTH {
            return Err(ReadError::Cycle { page, depth });
        }
        let mut node = self.spare.pop().unwrap_or_default();
        self.reader.read_node(page, &mut node)?;
        // Before going down: a page that is met again ends the walk here.
        self.occupy(page, Header::parse(&node.bytes).overflow)?;
        if node.is_leaf {
            self.report.leaves += 1;
            self.leaf(&node, bounds, depth)?;
        } else {
            self.report.branches += 1;
            self.branch(&node, bounds, depth)?;
        }
        self.spare.push(node);
        Ok(())
    }

    fn branch(&mut self, node: &Node, bounds: Bounds<'_>, depth: usize) -> Result<(), ReadError> {
        self.keys_in_order(node, bounds)?;
        for index in 0..node.count {
            let upper = match index + 1 < node.count {
                true => Some(node.key(index + 1)?),
                false => bounds.upper,
            };
            let below = Bounds { lower: Some(node.key(index)?), upper };
            self.page(node.child(index), below, depth + 1)?;
        }
        Ok(())
    }

    fn leaf(&mut self, node: &Node, bounds: Bounds<'_>, depth: usize) -> Result<(), ReadError> {
        self.report.depth = self.report.depth.max(depth);
        self.keys_in_order(node, bounds)?;
        for index in 0..node.count {
            let place = node.leaf(index)?;
            if !place.is_bucket {
                self.report.rows += 1;
                continue;
            }
            self.report.buckets += 1;
            match Bucket::parse(node, index, place)?.tree {
                Tree::Page(root) => self.page(root, Bounds::default(), depth + 1)?,
                Tree::Inline { home, leaf } => self.inline(home, &leaf, depth + 1)?,
            }
        }
        Ok(())
    }

    fn inline(&mut self, home: u64, leaf: &[u8], depth: usize) -> Result<(), ReadError> {
        let header = Header::parse(leaf);
        if header.flags != LEAF || depth > MAX_DEPTH {
            let expected = "a leaf (0x02) in an inline bucket";
            return Err(ReadError::PageFlags { page: home, flags: header.flags, expected });
        }
        let mut node = Node { bytes: leaf.to_vec(), ..Node::default() };
        node.set_header(home, header)?;
        self.leaf(&node, Bounds::default(), depth)
    }

    fn keys_in_order(&self, node: &Node, bounds: Bounds<'_>) -> Result<(), ReadError> {
        let out_of_order = |index, reason| ReadError::KeyOrder { page: node.page, index, reason };
        let mut before: Option<&[u8]> = None;
        for index in 0..node.count {
            let key = node.key(index)?;
            if before.is_some_and(|before| key <= before) {
                return Err(out_of_order(index, "not above the key before it"));
            }
            before = Some(key);
        }
        if node.count > 0 {
            if bounds.lower.is_some_and(|lower| node.key(0).is_ok_and(|first| first < lower)) {
                return Err(out_of_order(0, "below the key in the parent"));
            }
            if bounds.upper.is_some_and(|upper| before.is_some_and(|last| last >= upper)) {
                return Err(out_of_order(node.count - 1, "not below the next key in the parent"));
            }
        }
        Ok(())
    }

    /// Notes that a page and its overflow pages are in use here.
    fn occupy(&mut self, page: u64, overflow: u32) -> Result<(), ReadError> {
        for page in page..=page + u64::from(overflow) {
            if !self.used.insert(page) {
                return Err(ReadError::ReferredTwice { page });
            }
        }
        self.report.overflow += u64::from(overflow);
        Ok(())
    }

    /// Compares the pages in use with the list of free pages. Without a list, free is what nobody
    /// refers to; that is how bbolt finds it too.
    fn every_page_accounted_for(&mut self) -> Result<(), ReadError> {
        for page in 0..self.reader.meta().high_water {
            match (self.used.contains(page), self.free.contains(page)) {
                (true, true) => return Err(ReadError::UsedAndFree { page }),
                (false, false) if self.reader.meta().free_list.is_some() => {
                    return Err(ReadError::Lost { page });
                }
                (false, false) => self.report.free += 1,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A set of page ids, one bit each.
struct PageSet(Vec<u64>);

impl PageSet {
    /// `pages` was found to be no more than the file holds.
    fn new(pages: u64) -> PageSet {
        PageSet(vec![0; (pages / 64 + 1) as usize])
    }

    /// Whether the page was not in the set yet.
    fn insert(&mut self, page: u64) -> bool {
        let (word, bit) = (&mut self.0[(page / 64) as usize], 1 << (page % 64));
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    fn contains(&self, page: u64) -> bool {
        self.0[(page / 64) as usize] & (1 << (page % 64)) != 0
    }
}
