//! Writes a bbolt file front to back, from rows that come in key order.
//!
//! The file begins with the meta pages, which name its root and its length; so the rows are gone
//! through twice: [`Plan::measure`] lays the pages out without keeping them, [`Plan::write`] does
//! the same again and hands the bytes on in chunks.
//! Input: [`Rows`], twice the same. Output: chunks of a file that bbolt, etcd and etcdutl open.
//! **Invariants:** the length is known before the first chunk. The last chunk is handed on only
//! after the second pass was found to have given the pages of the first, byte for byte; so what
//! comes from changed rows is never as long as a whole file.

use std::convert::Infallible;
use std::ops::ControlFlow;

use bytes::{BufMut, Bytes, BytesMut};

use super::error::{RowsError, WriteError};
use super::meta::Meta;
use super::page::{BUCKET_FLAG, BUCKET_HEADER_SIZE, HEADER_SIZE, Header, META};
use super::tree::{Built, Draft, Pages, TreeBuilder};
use super::{MAX_KEY_SIZE, MAX_VALUE_SIZE, PAGE_SIZE};

/// A bucket of one leaf up to this size is kept inside its row, as bbolt itself does.
const MAX_INLINE: u64 = PAGE_SIZE / 4;
/// The first page behind the two meta pages.
const FIRST_PAGE: u64 = 2;

/// Takes key and value of one row, and tells whether it wants more.
pub type RowFn<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Where the rows of a file come from.
///
/// Each bucket is asked for once in either pass, in the order of the names.
pub trait Rows {
    /// Why rows can't be produced.
    type Error;

    /// Calls `row` with key and value of every row of `bucket`, in strictly rising key order, and
    /// the same ones each time. When `row` answers `Break`, returns `Ok` at once.
    fn for_each(&self, bucket: &str, row: &mut RowFn<'_>) -> Result<(), Self::Error>;
}

impl<T: Rows + ?Sized> Rows for &T {
    type Error = T::Error;

    fn for_each(&self, bucket: &str, row: &mut RowFn<'_>) -> Result<(), Self::Error> {
        (**self).for_each(bucket, row)
    }
}

/// A file that was measured and can be written.
#[derive(Debug, Clone)]
pub struct Plan {
    buckets: Vec<String>,
    layout: Layout,
}

/// What one pass over the rows came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Pages of the file.
    pages: u64,
    /// The page of the tree of buckets.
    root: u64,
    /// Rows in all buckets.
    rows: u64,
    /// CRC-32C of all pages but the metas, without their padding.
    sum: u32,
}

impl Plan {
    /// The first pass: goes through the rows of all buckets and lays out the file. The names have
    /// to rise strictly; a bucket without rows is written too.
    pub fn measure<R: Rows, N: Into<String>>(
        buckets: impl IntoIterator<Item = N>,
        rows: &R,
    ) -> Result<Plan, RowsError<R::Error>> {
        let buckets: Vec<String> = buckets.into_iter().map(Into::into).collect();
        let mut before = "";
        for name in &buckets {
            if name.as_str() <= before || name.len() > MAX_KEY_SIZE {
                return Err(RowsError::BucketOrder(name.clone()));
            }
            before = name;
        }
        let mut measure = Measure { numbers: Numbers::new() };
        match pass(&buckets, rows, &mut measure) {
            Ok((root, rows)) => {
                let Numbers { next, sum, .. } = measure.numbers;
                let layout = Layout { pages: next, root, rows, sum };
                Ok(Plan { buckets, layout })
            }
            Err(PassError::Rows(error)) => Err(error),
            Err(PassError::Pages(never)) => match never {},
        }
    }

    /// The exact length of the file in bytes.
    pub fn total_size(&self) -> u64 {
        self.layout.pages * PAGE_SIZE
    }

    /// The number of rows in all buckets.
    pub fn rows(&self) -> u64 {
        self.layout.rows
    }

    /// The second pass: writes the file in chunks of `chunk_size` bytes (the last one may be
    /// shorter). `rows` has to give what it gave to [`measure`](Self::measure).
    ///
    /// After an error what was handed on is not a file, and shorter than one.
    pub fn write<R: Rows, S>(
        &self,
        rows: &R,
        chunk_size: usize,
        sink: &mut dyn FnMut(Bytes) -> Result<(), S>,
    ) -> Result<(), WriteError<R::Error, S>> {
        let mut emit = Emit {
            numbers: Numbers::new(),
            limit: self.layout.pages,
            chunk: BytesMut::new(),
            chunk_size: chunk_size.max(1),
            sink,
        };
        self.write_metas(&mut emit)?;
        let (root, rows) = pass(&self.buckets, rows, &mut emit).map_err(|error| match error {
            PassError::Rows(error) => WriteError::Rows(error),
            PassError::Pages(error) => error.into(),
        })?;
        let Numbers { next, sum, .. } = emit.numbers;
        if (Layout { pages: next, root, rows, sum }) != self.layout {
            return Err(WriteError::RowsChanged("other rows"));
        }
        emit.send().map_err(WriteError::Sink)
    }

    /// Pages 0 and 1. They differ in their transaction number alone.
    fn write_metas<R, S>(&self, emit: &mut Emit<'_, S>) -> Result<(), WriteError<R, S>> {
        for txid in 0..FIRST_PAGE {
            let header = Header { id: txid, flags: META, count: 0, overflow: 0 };
            let meta = Meta {
                page_size: PAGE_SIZE,
                root: self.layout.root,
                sequence: 0,
                free_list: None,
                high_water: self.layout.pages,
                txid,
            };
            let mut page = header.encode().to_vec();
            page.extend_from_slice(&meta.encode());
            page.resize(PAGE_SIZE as usize, 0);
            emit.write(&page).map_err(WriteError::Sink)?;
        }
        Ok(())
    }
}

/// Why a pass over the rows ended early.
enum PassError<R, P> {
    Rows(RowsError<R>),
    Pages(P),
}

/// Goes through all rows once and hands all pages behind the metas to `pages`. Returns the root
/// page and the number of rows.
fn pass<R: Rows, P: Pages>(
    buckets: &[String],
    rows: &R,
    pages: &mut P,
) -> Result<(u64, u64), PassError<R::Error, P::Error>> {
    let mut top = TreeBuilder::new();
    let mut total = 0;
    for name in buckets {
        let mut bucket =
            BucketPass { name, pages, tree: TreeBuilder::new(), rows: 0, last: Vec::new() };
        let mut failed = None;
        rows.for_each(name, &mut |key, value| match bucket.row(key, value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })
        .map_err(|error| PassError::Rows(RowsError::Source(error)))?;
        if let Some(error) = failed {
            return Err(error);
        }
        total += bucket.rows;
        let tree = bucket.tree;
        let value = bucket_value(tree, pages).map_err(PassError::Pages)?;
        top.push(pages, BUCKET_FLAG, name.as_bytes(), &value).map_err(PassError::Pages)?;
    }
    let root = match top.finish(pages).map_err(PassError::Pages)? {
        Built::Root(page) => page,
        Built::Leaf(leaf) => pages.put(&leaf).map_err(PassError::Pages)?,
    };
    Ok((root, total))
}

/// The rows of one bucket on their way into its tree.
struct BucketPass<'p, P> {
    name: &'p str,
    pages: &'p mut P,
    tree: TreeBuilder,
    rows: u64,
    last: Vec<u8>,
}

impl<P: Pages> BucketPass<'_, P> {
    fn row<R>(&mut self, key: &[u8], value: &[u8]) -> Result<(), PassError<R, P::Error>> {
        let (bucket, row) = (|| self.name.to_owned(), self.rows);
        let problem = if key.is_empty() || key.len() > MAX_KEY_SIZE {
            RowsError::KeySize { bucket: bucket(), row, size: key.len() }
        } else if value.len() > MAX_VALUE_SIZE {
            RowsError::ValueSize { bucket: bucket(), row, size: value.len() }
        } else if key <= self.last.as_slice() {
            RowsError::KeyOrder { bucket: bucket(), row }
        } else {
            self.rows += 1;
            self.last.clear();
            self.last.extend_from_slice(key);
            return self.tree.push(self.pages, 0, key, value).map_err(PassError::Pages);
        };
        Err(PassError::Rows(problem))
    }
}

/// Ends a bucket's tree and makes the value of its row: the header, and the rows themselves when
/// they are few.
fn bucket_value<P: Pages>(tree: TreeBuilder, pages: &mut P) -> Result<Vec<u8>, P::Error> {
    let mut value = vec![0; BUCKET_HEADER_SIZE];
    let root = match tree.finish(pages)? {
        Built::Root(page) => page,
        Built::Leaf(leaf) if leaf.size() > MAX_INLINE => pages.put(&leaf)?,
        Built::Leaf(leaf) => {
            leaf.encode_table(0, &mut value);
            value.extend_from_slice(leaf.data());
            return Ok(value);
        }
    };
    value[0..8].copy_from_slice(&root.to_le_bytes());
    Ok(value)
}

/// Numbers pages in the order in which they are placed, and sums them up.
struct Numbers {
    next: u64,
    sum: u32,
    /// The header and the table of the last node.
    table: Vec<u8>,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers { next: FIRST_PAGE, sum: 0, table: Vec::with_capacity(HEADER_SIZE) }
    }

    fn assign(&mut self, node: &Draft) -> u64 {
        let id = self.next;
        self.next += node.pages();
        self.table.clear();
        node.encode_table(id, &mut self.table);
        self.sum = crc32c::crc32c_append(self.sum, &self.table);
        self.sum = crc32c::crc32c_append(self.sum, node.data());
        id
    }
}

/// The first pass: nothing is kept.
struct Measure {
    numbers: Numbers,
}

impl Pages for Measure {
    type Error = Infallible;

    fn put(&mut self, node: &Draft) -> Result<u64, Infallible> {
        Ok(self.numbers.assign(node))
    }
}

/// The second pass: the bytes go out.
struct Emit<'s, S> {
    numbers: Numbers,
    /// Pages that the first pass came to.
    limit: u64,
    chunk: BytesMut,
    chunk_size: usize,
    sink: &'s mut dyn FnMut(Bytes) -> Result<(), S>,
}

/// Why a page does not go out.
enum EmitError<S> {
    Sink(S),
    TooManyPages,
}

impl<R, S> From<EmitError<S>> for WriteError<R, S> {
    fn from(error: EmitError<S>) -> Self {
        match error {
            EmitError::Sink(error) => WriteError::Sink(error),
            EmitError::TooManyPages => WriteError::RowsChanged("more rows"),
        }
    }
}

impl<S> Pages for Emit<'_, S> {
    type Error = EmitError<S>;

    fn put(&mut self, node: &Draft) -> Result<u64, EmitError<S>> {
        let id = self.numbers.assign(node);
        if self.numbers.next > self.limit {
            return Err(EmitError::TooManyPages);
        }
        let table = std::mem::take(&mut self.numbers.table);
        let written = self.write(&table).and_then(|()| self.write(node.data()));
        self.numbers.table = table;
        let padding = node.pages() * PAGE_SIZE - node.size();
        const ZEROS: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
        written.and_then(|()| self.write(&ZEROS[..padding as usize])).map_err(EmitError::Sink)?;
        Ok(id)
    }
}

impl<S> Emit<'_, S> {
    /// Appends bytes to the output. A full chunk goes out only when a byte follows it.
    fn write(&mut self, mut bytes: &[u8]) -> Result<(), S> {
        while !bytes.is_empty() {
            if self.chunk.len() == self.chunk_size {
                self.send()?;
            }
            if self.chunk.capacity() == 0 {
                self.chunk.reserve(self.chunk_size);
            }
            let (now, later) = bytes.split_at(bytes.len().min(self.chunk_size - self.chunk.len()));
            self.chunk.put_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), S> {
        (self.sink)(std::mem::take(&mut self.chunk).freeze())
    }
}
