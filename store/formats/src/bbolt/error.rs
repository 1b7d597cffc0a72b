//! What can be wrong with a bbolt file, and with rows that are to become one.
//!
//! Every text names the page, what was found there and what was expected, so that an operator can
//! look at that place with `bbolt page`.

use std::io;

/// Why one of the two meta pages can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MetaError {
    /// The file ends before it.
    #[error("the file ends before it")]
    Missing,
    /// Not a bbolt file, or overwritten.
    #[error("magic number is {0:#010x}, a bbolt file has 0xed0cdaed")]
    Magic(u32),
    /// A format that we don't know.
    #[error("format version is {0}, only 2 is known")]
    Version(u32),
    /// Damaged.
    #[error("checksum is {found:#018x}, computed {computed:#018x}")]
    Checksum {
        /// What stands in the page.
        found: u64,
        /// What the page's content gives.
        computed: u64,
    },
    /// The checksum is right, but the content makes no sense.
    #[error("page size is {0}, expected a power of two from 1024 to 65536")]
    PageSize(u32),
    /// The checksum is right, but the root can't be where it is said to be.
    #[error("root page {root} is not between page 2 and the high-water mark {high_water}")]
    Root {
        /// The page id of the root.
        root: u64,
        /// The number of pages in use.
        high_water: u64,
    },
}

/// Why a bbolt file can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file layer failed.
    #[error("reading {length} bytes at offset {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Neither meta page is good: not a bbolt file, or both are damaged.
    #[error("no usable meta page: page 0: {first}; page 1: {second}")]
    NoMeta {
        /// What is wrong with page 0.
        first: MetaError,
        /// What is wrong with page 1 (at the last place where it was looked for).
        second: MetaError,
    },
    /// The file is shorter than its meta page says.
    #[error(
        "the file is cut: {found} bytes, but {expected} are in use ({pages} pages of {page_size})"
    )]
    Truncated {
        /// Bytes in use.
        expected: u64,
        /// Bytes found.
        found: u64,
        /// Pages in use.
        pages: u64,
        /// Bytes of a page.
        page_size: u64,
    },
    /// A reference to a page that is not in use.
    #[error("page {page} is referred to, but pages go from 2 to {high_water} (exclusive)")]
    PageOutOfRange {
        /// The page.
        page: u64,
        /// The number of pages in use.
        high_water: u64,
    },
    /// A page that says it is another one.
    #[error("page {page} says it is page {found}")]
    PageId {
        /// Where it stands.
        page: u64,
        /// What it says.
        found: u64,
    },
    /// A page of a kind that can't stand here.
    #[error("page {page} has flags {flags:#06x}, expected {expected}")]
    PageFlags {
        /// The page.
        page: u64,
        /// Its flags.
        flags: u16,
        /// What could stand here.
        expected: &'static str,
    },
    /// A page that goes on beyond what is in use.
    #[error(
        "page {page} goes on for {overflow} more pages, beyond the high-water mark {high_water} or any sensible size"
    )]
    Overflow {
        /// The page.
        page: u64,
        /// Its number of overflow pages.
        overflow: u32,
        /// The number of pages in use.
        high_water: u64,
    },
    /// An element that points outside its page.
    #[error(
        "page {page}, element {index} of {count}: position {position}, key of {key} and value of {value} bytes do not fit into {size} bytes"
    )]
    Element {
        /// The page.
        page: u64,
        /// The element.
        index: usize,
        /// How many elements the page says it has.
        count: usize,
        /// Where the key starts, counted from the element.
        position: u32,
        /// Bytes of the key.
        key: u32,
        /// Bytes of the value.
        value: u32,
        /// Bytes of the page with its overflow.
        size: usize,
    },
    /// A branch page without children.
    #[error("branch page {page} has no elements")]
    EmptyBranch {
        /// The page.
        page: u64,
    },
    /// A key that is not above the key before it, or outside of what the parent promises.
    #[error("page {page}, element {index}: its key is out of order ({reason})")]
    KeyOrder {
        /// The page.
        page: u64,
        /// The element.
        index: usize,
        /// In what way.
        reason: &'static str,
    },
    /// A tree that comes back to a page, or is deeper than any real tree.
    #[error("page {page} is reached again or at a depth of {depth}: the tree has a cycle")]
    Cycle {
        /// The page.
        page: u64,
        /// How deep.
        depth: usize,
    },
    /// A bucket's row that is too short.
    #[error(
        "page {page}, element {index}: the bucket header has {length} bytes, expected 16, or 32 and more for an inline bucket"
    )]
    BucketHeader {
        /// The page.
        page: u64,
        /// The element.
        index: usize,
        /// Bytes of the row's value.
        length: usize,
    },
    /// Check: a page that two parents refer to.
    #[error("page {page} is referred to more than once")]
    ReferredTwice {
        /// The page.
        page: u64,
    },
    /// Check: a page that is in use and in the list of free pages.
    #[error("page {page} is in use and in the list of free pages")]
    UsedAndFree {
        /// The page.
        page: u64,
    },
    /// Check: a page that nothing refers to, in a file that keeps a list of free pages.
    #[error("page {page} is neither in use nor in the list of free pages")]
    Lost {
        /// The page.
        page: u64,
    },
    /// The list of free pages says that it is longer than its page.
    #[error("page {page}: the list of free pages has {count} entries, more than fit")]
    FreeListCount {
        /// The page.
        page: u64,
        /// How many entries it says it has.
        count: u64,
    },
}

/// Why rows can't become a bbolt file. `R` is the error of whoever produces them.
#[derive(Debug, thiserror::Error)]
pub enum RowsError<R> {
    /// The rows could not be produced.
    #[error("reading the rows: {0}")]
    Source(R),
    /// Buckets that are not in order.
    #[error("bucket {0:?} is not above the one before it, or its name is empty or too long")]
    BucketOrder(String),
    /// Rows that are not in order.
    #[error("bucket {bucket:?}, row {row}: its key is not above the one before it")]
    KeyOrder {
        /// The bucket.
        bucket: String,
        /// The row, from 0.
        row: u64,
    },
    /// A key that bbolt does not take.
    #[error("bucket {bucket:?}, row {row}: a key of {size} bytes, allowed are 1 to 32768")]
    KeySize {
        /// The bucket.
        bucket: String,
        /// The row, from 0.
        row: u64,
        /// Bytes of the key.
        size: usize,
    },
    /// A value that bbolt does not take.
    #[error("bucket {bucket:?}, row {row}: a value of {size} bytes, allowed are 2147483646")]
    ValueSize {
        /// The bucket.
        bucket: String,
        /// The row, from 0.
        row: u64,
        /// Bytes of the value.
        size: usize,
    },
}

/// Why a file was not written to its end. `R` is the error of the rows, `S` that of the receiver.
#[derive(Debug, thiserror::Error)]
pub enum WriteError<R, S> {
    /// The rows are not fit for a file, or could not be produced.
    #[error("{0}")]
    Rows(RowsError<R>),
    /// The receiver of the chunks gave up.
    #[error("handing on a chunk: {0}")]
    Sink(S),
    /// The second pass over the rows did not give what the first gave.
    #[error("the rows changed between the two passes over them ({0}); the output is incomplete")]
    RowsChanged(&'static str),
}

impl<R, S> From<RowsError<R>> for WriteError<R, S> {
    fn from(error: RowsError<R>) -> Self {
        WriteError::Rows(error)
    }
}
