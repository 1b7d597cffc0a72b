//! A walk over the rows of one bucket in key order.
//!
//! Input: the pages below the bucket's root, read one by one. Output: rows that borrow from the
//! page they stand in; walking allocates nothing once a page of every level was read.
//! **Invariant:** keys handed out rise strictly, and no more pages are read than are in use;
//! so a file whose pages refer to each other in a circle ends in an error.

use super::MAX_DEPTH;
use super::error::ReadError;
use super::page::{Header, Node, Place};
use super::read::{Bucket, Reader, Tree};
use crate::ReadAt;

/// A row of a bucket, valid until the cursor moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'c> {
    /// The key.
    pub key: &'c [u8],
    /// The value; for a bucket its header, which [`Cursor::bucket`] reads.
    pub value: &'c [u8],
    /// Whether the row is a bucket.
    pub is_bucket: bool,
}

/// A walk over the rows of a bucket. It starts at the first row.
#[derive(Debug)]
pub struct Cursor<'r, R> {
    reader: &'r Reader<R>,
    tree: Tree,
    /// The nodes from the root down; those at `depth` and beyond are spare buffers.
    path: Vec<Step>,
    depth: usize,
    started: bool,
    /// Pages read since the walk was placed.
    read: u64,
    /// The last key of the leaf before this one, to compare the next leaf with.
    last: Vec<u8>,
    /// The row under the cursor, in the node at `depth - 1`.
    place: Place,
}

/// A node on the path, and the element of it that comes next.
#[derive(Debug, Default)]
struct Step {
    node: Node,
    next: usize,
}

impl<'r, R: ReadAt> Cursor<'r, R> {
    pub(super) fn new(reader: &'r Reader<R>, bucket: &Bucket) -> Self {
        Cursor {
            reader,
            tree: bucket.tree.clone(),
            path: Vec::new(),
            depth: 0,
            started: false,
            read: 0,
            last: Vec::new(),
            place: Place::default(),
        }
    }

    /// The next row, or `None` behind the last one. After an error there are no more rows.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, ReadError> {
        match self.advance() {
            Ok(true) => {
                let Step { node, .. } = &self.path[self.depth - 1];
                Ok(Some(Row {
                    key: &node.bytes[self.place.key_at..self.place.value_at],
                    value: &node.bytes[self.place.value_at..self.place.end],
                    is_bucket: self.place.is_bucket,
                }))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                self.depth = 0;
                Err(error)
            }
        }
    }

    /// The bucket in the row that [`next_row`](Self::next_row) gave last, if that row is one.
    pub fn bucket(&self) -> Result<Option<Bucket>, ReadError> {
        if self.depth == 0 || !self.place.is_bucket {
            return Ok(None);
        }
        let Step { node, next } = &self.path[self.depth - 1];
        Bucket::parse(node, next.saturating_sub(1), self.place).map(Some)
    }

    /// Places the walk before the first row whose key is at or above `key`.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), ReadError> {
        self.place_at(|node| match node.is_leaf {
            true => node.count_below(key, false),
            // The child that starts at or below the key; the first one if none does.
            false => Ok(node.count_below(key, true)?.saturating_sub(1)),
        })
    }

    /// Places the walk before the last row.
    pub fn seek_to_last(&mut self) -> Result<(), ReadError> {
        self.place_at(|node| Ok(node.count.saturating_sub(1)))
    }

    fn place_at(
        &mut self,
        choose: impl Fn(&Node) -> Result<usize, ReadError>,
    ) -> Result<(), ReadError> {
        let placed = self.descend(choose);
        if placed.is_err() {
            self.depth = 0;
        }
        placed
    }

    /// Goes from the root to a leaf, by the element that `choose` picks in each node.
    fn descend(
        &mut self,
        choose: impl Fn(&Node) -> Result<usize, ReadError>,
    ) -> Result<(), ReadError> {
        self.start()?;
        loop {
            let step = &mut self.path[self.depth - 1];
            let index = choose(&step.node)?;
            if step.node.is_leaf {
                step.next = index;
                return Ok(());
            }
            step.next = index + 1;
            let child = step.node.child(index);
            self.push(child)?;
        }
    }

    /// Moves to the next row; whether there is one.
    fn advance(&mut self) -> Result<bool, ReadError> {
        self.place = Place::default();
        if !self.started {
            self.start()?;
        }
        while self.depth > 0 {
            let step = &mut self.path[self.depth - 1];
            let index = step.next;
            if index == step.node.count {
                self.depth -= 1;
            } else if step.node.is_leaf {
                step.next += 1;
                let place = step.node.leaf(index)?;
                let key = &step.node.bytes[place.key_at..place.value_at];
                let before = if index > 0 { step.node.key(index - 1)? } else { &self.last[..] };
                if key <= before {
                    let (page, reason) = (step.node.page, "not above the key before it");
                    return Err(ReadError::KeyOrder { page, index, reason });
                }
                if step.next == step.node.count {
                    self.last.clear();
                    self.last.extend_from_slice(key);
                }
                self.place = place;
                return Ok(true);
            } else {
                step.next += 1;
                let child = step.node.child(index);
                self.push(child)?;
            }
        }
        Ok(false)
    }

    /// Places the walk at the root.
    fn start(&mut self) -> Result<(), ReadError> {
        self.started = true;
        self.depth = 0;
        self.read = 0;
        self.last.clear();
        match self.tree.clone() {
            Tree::Page(root) => self.push(root),
            Tree::Inline { home, leaf } => {
                let step = self.spare();
                step.node.bytes.clear();
                step.node.bytes.extend_from_slice(&leaf);
                step.node.set_header(home, Header::parse(&leaf))?;
                if !step.node.is_leaf {
                    let (page, flags) = (home, Header::parse(&leaf).flags);
                    let expected = "a leaf (0x02) in an inline bucket";
                    return Err(ReadError::PageFlags { page, flags, expected });
                }
                self.depth += 1;
                Ok(())
            }
        }
    }

    /// Reads a page and goes down into it.
    fn push(&mut self, page: u64) -> Result<(), ReadError> {
        if self.depth == MAX_DEPTH {
            return Err(ReadError::Cycle { page, depth: self.depth });
        }
        let reader = self.reader;
        let step = self.spare();
        reader.read_node(page, &mut step.node)?;
        // Overflow pages count too, so that all buffers together are no larger than the file.
        self.read += step.node.bytes.len() as u64 / reader.meta().page_size;
        if self.read > reader.meta().high_water {
            return Err(ReadError::Cycle { page, depth: self.depth });
        }
        self.depth += 1;
        Ok(())
    }

    /// The buffer for the node below the path.
    fn spare(&mut self) -> &mut Step {
        if self.path.len() == self.depth {
            self.path.push(Step::default());
        }
        let step = &mut self.path[self.depth];
        step.next = 0;
        step
    }
}
