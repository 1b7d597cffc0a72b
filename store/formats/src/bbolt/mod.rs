//! bbolt, the file in which etcd keeps its state and which it sends as a snapshot.
//!
//! A file is a row of pages. Pages 0 and 1 are two copies of the [`Meta`], which names the root of
//! a tree of sorted rows. The rows of the top tree are buckets, each a tree of its own, or, when
//! small, a leaf kept inside the row ("inline"). A node that is larger than one page goes on in
//! the pages that follow it ("overflow").
//!
//! - [`Reader`] opens a file (or bytes), [`Cursor`] walks a bucket in key order,
//!   [`Reader::check`] proves the whole structure.
//! - [`Plan`] measures what is to be written and then writes it front to back.
//!
//! The shapes are described in `docs/formats-bbolt.md`.
//! **Invariant:** memory does not grow with the size of the file: the reader holds one node per
//! level of the tree, the writer one node per level and one chunk of output.

mod check;
mod cursor;
mod error;
mod meta;
mod page;
mod read;
mod tree;
mod write;

pub use check::CheckReport;
pub use cursor::{Cursor, Row};
pub use error::{MetaError, ReadError, RowsError, WriteError};
pub use meta::Meta;
pub use read::{Bucket, Reader};
pub use write::{Plan, RowFn, Rows};

/// The page size of the files that we write. Files with another one are read too.
pub const PAGE_SIZE: u64 = 4096;
/// The longest key that bbolt takes, in bytes. A key has at least one byte.
pub const MAX_KEY_SIZE: usize = 32768;
/// The longest value that bbolt takes, in bytes.
pub const MAX_VALUE_SIZE: usize = (1 << 31) - 2;

/// The smallest and the largest page size that a file may have.
const PAGE_SIZES: std::ops::RangeInclusive<u64> = 1024..=65536;
/// No tree of real data is deeper: with two children per branch it would hold 2^48 leaves.
const MAX_DEPTH: usize = 48;
/// The largest node that is read into memory.
const MAX_NODE_SIZE: u64 = 4 << 30;
