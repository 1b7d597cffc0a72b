//! Opening a bbolt file and finding buckets and keys in it.
//!
//! Input: a [`ReadAt`] that does not change. Output: buckets, rows, or a [`ReadError`].
//! **Invariant:** no page is read that is not below the high-water mark, and the file was found to
//! hold all pages below it.

use bytes::Bytes;

use super::cursor::Cursor;
use super::error::{MetaError, ReadError};
use super::meta::{META_SIZE, Meta};
use super::page::{BUCKET_HEADER_SIZE, HEADER_SIZE, Header, Node, Place, u64_at};
use super::{MAX_NODE_SIZE, PAGE_SIZES};
use crate::ReadAt;

/// An open bbolt file.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    meta: Meta,
}

/// A tree of rows in a file: the top one, whose rows are buckets, or a bucket.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// The number that bbolt's `NextSequence` counts up. etcd does not use it.
    pub sequence: u64,
    pub(super) tree: Tree,
}

/// Where the rows of a bucket are.
#[derive(Debug, Clone)]
pub(super) enum Tree {
    /// In a tree of pages below this one.
    Page(u64),
    /// In a leaf inside the bucket's own row, which stands in page `home`.
    Inline { home: u64, leaf: Bytes },
}

impl<R: ReadAt> Reader<R> {
    /// Opens a file: takes the good meta page with the higher transaction number. Bytes behind the
    /// pages in use (a file grown in advance, the hash behind a snapshot) are ignored.
    pub fn open(source: R) -> Result<Self, ReadError> {
        let found =
            source.size().map_err(|source| ReadError::Io { offset: 0, length: 0, source })?;
        let meta = choose_meta(&source, found)?;
        let expected = meta.used_bytes().unwrap_or(u64::MAX);
        if expected > found {
            let (pages, page_size) = (meta.high_water, meta.page_size);
            return Err(ReadError::Truncated { expected, found, pages, page_size });
        }
        Ok(Reader { source, meta })
    }

    /// The meta page that counts.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The top tree, whose rows are the buckets.
    pub fn root(&self) -> Bucket {
        Bucket { sequence: self.meta.sequence, tree: Tree::Page(self.meta.root) }
    }

    /// The names of the buckets, in order.
    pub fn buckets(&self) -> Result<Vec<Bytes>, ReadError> {
        let root = self.root();
        let mut cursor = self.cursor(&root);
        let mut names = Vec::new();
        while let Some(row) = cursor.next_row()? {
            if row.is_bucket {
                names.push(Bytes::copy_from_slice(row.key));
            }
        }
        Ok(names)
    }

    /// The bucket of this name, if there is one.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>, ReadError> {
        self.bucket_in(&self.root(), name)
    }

    /// The bucket of this name inside another bucket. etcd has none of these.
    pub fn bucket_in(&self, parent: &Bucket, name: &[u8]) -> Result<Option<Bucket>, ReadError> {
        let mut cursor = self.cursor(parent);
        cursor.seek(name)?;
        match cursor.next_row()? {
            Some(row) if row.key == name => cursor.bucket(),
            _ => Ok(None),
        }
    }

    /// Walks the rows of a bucket in key order, from the first one.
    pub fn cursor<'r>(&'r self, bucket: &Bucket) -> Cursor<'r, R> {
        Cursor::new(self, bucket)
    }

    /// The value of a key, if the bucket has it (and it is not itself a bucket).
    pub fn get(&self, bucket: &Bucket, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let mut cursor = self.cursor(bucket);
        cursor.seek(key)?;
        Ok(cursor.next_row()?.and_then(|row| {
            (row.key == key && !row.is_bucket).then(|| Bytes::copy_from_slice(row.value))
        }))
    }

    /// The last row of a bucket, unless it is empty.
    pub fn last(&self, bucket: &Bucket) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let mut cursor = self.cursor(bucket);
        cursor.seek_to_last()?;
        Ok(cursor
            .next_row()?
            .map(|row| (Bytes::copy_from_slice(row.key), Bytes::copy_from_slice(row.value))))
    }

    /// Calls `row` for every row of a bucket in key order, and stops at its first error. A bucket
    /// inside the bucket is a row with an empty value, as in bbolt.
    pub fn for_each<E: From<ReadError>>(
        &self,
        bucket: &Bucket,
        mut row: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut cursor = self.cursor(bucket);
        while let Some(found) = cursor.next_row()? {
            row(found.key, if found.is_bucket { &[] } else { found.value })?;
        }
        Ok(())
    }

    /// Reads a branch or leaf page with its overflow pages.
    pub(super) fn read_node(&self, page: u64, node: &mut Node) -> Result<(), ReadError> {
        let header = self.read_page(page, &mut node.bytes)?;
        node.set_header(page, header)
    }

    /// Reads any page with its overflow pages.
    pub(super) fn read_page(&self, page: u64, bytes: &mut Vec<u8>) -> Result<Header, ReadError> {
        let Meta { high_water, page_size, .. } = self.meta;
        if page < 2 || page >= high_water {
            return Err(ReadError::PageOutOfRange { page, high_water });
        }
        let one = page_size as usize;
        bytes.resize(one, 0);
        self.read_at(&mut bytes[..], page * page_size)?;
        let header = Header::parse(bytes);
        if header.id != page {
            return Err(ReadError::PageId { page, found: header.id });
        }
        if header.overflow > 0 {
            let overflow = header.overflow;
            let size = (u64::from(overflow) + 1) * page_size;
            if page + u64::from(overflow) >= high_water || size > MAX_NODE_SIZE {
                return Err(ReadError::Overflow { page, overflow, high_water });
            }
            bytes.resize(size as usize, 0);
            self.read_at(&mut bytes[one..], (page + 1) * page_size)?;
        }
        Ok(header)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), ReadError> {
        let length = buffer.len() as u64;
        self.source.read_exact_at(buffer, offset).map_err(|source| ReadError::Io {
            offset,
            length,
            source,
        })
    }
}

impl Bucket {
    /// Reads the bucket that stands in an element of a leaf.
    pub(super) fn parse(node: &Node, index: usize, place: Place) -> Result<Bucket, ReadError> {
        let value = &node.bytes[place.value_at..place.end];
        let short = || ReadError::BucketHeader { page: node.page, index, length: value.len() };
        if value.len() < BUCKET_HEADER_SIZE {
            return Err(short());
        }
        let (root, sequence) = (u64_at(value, 0), u64_at(value, 8));
        if root != 0 {
            return Ok(Bucket { sequence, tree: Tree::Page(root) });
        }
        let leaf = &value[BUCKET_HEADER_SIZE..];
        if leaf.len() < HEADER_SIZE {
            return Err(short());
        }
        let leaf = Bytes::copy_from_slice(leaf);
        Ok(Bucket { sequence, tree: Tree::Inline { home: node.page, leaf } })
    }
}

/// Finds the meta page that counts. The page size is known only from a meta page, so a second one
/// whose first is damaged is looked for at every place where it could be.
fn choose_meta<R: ReadAt>(source: &R, size: u64) -> Result<Meta, ReadError> {
    match read_meta(source, size, 0)? {
        Ok(first) => match read_meta(source, size, first.page_size)? {
            Ok(second) if second.page_size == first.page_size && second.txid > first.txid => {
                Ok(second)
            }
            _ => Ok(first),
        },
        Err(first) => {
            let mut problem = MetaError::Missing;
            let mut page_size = *PAGE_SIZES.start();
            while PAGE_SIZES.contains(&page_size) {
                match read_meta(source, size, page_size)? {
                    Ok(meta) if meta.page_size == page_size => return Ok(meta),
                    Ok(_) | Err(MetaError::Missing) => {}
                    // A wrong magic only says that no meta page stands here.
                    Err(MetaError::Magic(_)) if !matches!(problem, MetaError::Missing) => {}
                    Err(found) => problem = found,
                }
                page_size *= 2;
            }
            Err(ReadError::NoMeta { first, second: problem })
        }
    }
}

/// The meta in the page that starts at `offset`.
fn read_meta<R: ReadAt>(
    source: &R,
    size: u64,
    offset: u64,
) -> Result<Result<Meta, MetaError>, ReadError> {
    let offset = offset + HEADER_SIZE as u64;
    if size < offset + META_SIZE as u64 {
        return Ok(Err(MetaError::Missing));
    }
    let mut bytes = [0; META_SIZE];
    source.read_exact_at(&mut bytes, offset).map_err(|source| ReadError::Io {
        offset,
        length: META_SIZE as u64,
        source,
    })?;
    Ok(Meta::parse(&bytes))
}
