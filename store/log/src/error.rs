//! Why a log does not open, in words that an operator can act on.
//!
//! **Invariant:** every message about damage names the file, the offset, what was found there and
//! what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a log could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no log.
    #[error("{}: no log segments (*.wal) found", .dir.display())]
    NotFound {
        /// The directory that was looked into.
        dir: PathBuf,
    },
    /// A log is there already.
    #[error("{}: a log exists here already; it is not overwritten", .dir.display())]
    Exists {
        /// The directory of the log.
        dir: PathBuf,
    },
    /// The place where the log should be made holds something else.
    #[error(
        "{}: holds other files ({found}); give the log a directory of its own",
        .dir.display()
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// Names found in it.
        found: String,
    },
    /// Someone else works on the log.
    #[error(
        "{}: another process uses this segment; stop the other etcd or mainstay that runs on this \
         data directory",
        .file.display()
    )]
    Locked {
        /// The segment.
        file: PathBuf,
    },
    /// The log cannot be trusted.
    #[error(transparent)]
    Damaged(#[from] Box<Damage>),
    /// The disk failed.
    #[error("{}: {doing}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// For `map_err`: what was being done, and to what.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> OpenError + use<> {
        let path = path.to_owned();
        move |source| OpenError::Io { path, doing, source }
    }
}

/// A place in the log that is not what was written.
#[derive(Debug)]
pub struct Damage {
    /// The segment.
    pub file: PathBuf,
    /// The start of the record in question.
    pub offset: u64,
    /// What is wrong there.
    pub finding: Finding,
    /// The member that wrote the log, when the segment still tells.
    pub member: Option<u64>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// The bytes of a record are not those that were written.
    #[error("checksum mismatch: the record says {stored:08x}, its bytes give {computed:08x}")]
    Checksum {
        /// In the record.
        stored: u32,
        /// Over the bytes.
        computed: u32,
    },
    /// A segment does not continue the one before.
    #[error(
        "the segment does not continue the one before it: it starts at checksum {stored:08x}, the \
         one before ends at {computed:08x}"
    )]
    Chain {
        /// At the head of this segment.
        stored: u32,
        /// At the end of the one before.
        computed: u32,
    },
    /// A length that no writer writes.
    #[error("impossible length field {field:#018x}")]
    Frame {
        /// The eight bytes.
        field: u64,
    },
    /// The record's inner and outer lengths differ.
    #[error("the frame says {frame} bytes, the record in it {inner}")]
    Length {
        /// By the length field.
        frame: u64,
        /// By the record.
        inner: u64,
    },
    /// A record that goes on beyond the end of a segment that is not the last.
    #[error("a record of {length} bytes does not fit into the segment of {size} bytes")]
    PastEnd {
        /// By the length field.
        length: u64,
        /// Of the file.
        size: u64,
    },
    /// The frame does not hold a record.
    #[error("not a log record: {0}")]
    Record(String),
    /// The record does not hold what its type says.
    #[error("the {kind} record does not decode: {error}")]
    Payload {
        /// What it should be.
        kind: &'static str,
        /// What the decoder said.
        error: String,
    },
    /// A type of record that etcd 3.7 does not have.
    #[error("unknown record type {0}")]
    Kind(i64),
    /// A damaged record although later records prove that it had been synced.
    #[error("{what}; records written after a later sync follow it, so this is no torn tail")]
    NotTorn {
        /// What the record looks like.
        what: String,
    },
    /// A segment that does not start as every segment does.
    #[error("the segment does not start with a checksum record and a metadata record")]
    Head,
    /// Numbers are missing between two segments.
    #[error("segment {missing} is missing before this one")]
    MissingSegment {
        /// The sequence number.
        missing: u64,
    },
    /// Two files with one sequence number.
    #[error("two segments have the sequence number {sequence}")]
    DuplicateSegment {
        /// The sequence number.
        sequence: u64,
    },
    /// Segments of different members.
    #[error(
        "the segment belongs to another member or cluster than the one before it (metadata \
         differs)"
    )]
    Metadata,
    /// Entries are missing.
    #[error("entry {found} follows entry {last}: the entries between them are missing")]
    EntryGap {
        /// The last one before the gap.
        last: u64,
        /// The one after it.
        found: u64,
    },
    /// Terms go backwards.
    #[error("entry {index} has term {term}, the entry before it term {before}")]
    TermOrder {
        /// The entry.
        index: u64,
        /// Its term.
        term: u64,
        /// The term before.
        before: u64,
    },
    /// The commit index points at entries that are not there.
    #[error("entries up to {commit} were committed, but the log ends at {last}")]
    CommitPastEnd {
        /// By the last hard state.
        commit: u64,
        /// The last entry.
        last: u64,
    },
    /// A snapshot took the place of entries that stand in the log before it.
    #[error(
        "the entries up to {index} gave way to a snapshot that came from the leader (term {term},          the entry that stands here is of term {own}), so replay cannot start before it"
    )]
    Superseded {
        /// Of the snapshot.
        index: u64,
        /// Of the snapshot.
        term: u64,
        /// Of the log's own entry.
        own: u64,
    },
    /// Older segments are gone and no mark tells where to start.
    #[error(
        "no usable snapshot record: replay would have to start before index {first}, where the \
         oldest segment begins"
    )]
    NoSnapshot {
        /// By the name of the oldest segment.
        first: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: damaged at offset {}: {}. ",
            self.file.display(),
            self.offset,
            self.finding
        )?;
        let id = match self.member {
            Some(id) => format!("{id:x}"),
            None => "ID".to_owned(),
        };
        write!(
            f,
            "What this member had promised to keep may be lost, so it must not go on under its old \
             id. With a quorum of other members, replace it: `etcdctl member remove {id}`, then \
             `etcdctl member add NAME --peer-urls=URLS`, and start it with an empty data directory \
             and --initial-cluster-state=existing. Without one, restore a snapshot: `etcdutl \
             snapshot restore`"
        )
    }
}

impl std::error::Error for Damage {}
