//! Reading a log without touching it, for tools: no locks, no repair.
//!
//! Input: a directory, also one that another process is writing. Output: every record with its
//! place, then how the log ends.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_formats::wal::Kind;
use mainstay_proto::etcdserverpb;
use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;
use prost::Message;

use crate::error::{Damage, Finding, OpenError};
use crate::files::{Access, Files};
use crate::scan::{Held, Seen, segments, walk};

/// A record and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct DumpRecord {
    /// The segment.
    pub file: PathBuf,
    /// Where its frame begins.
    pub offset: u64,
    /// The checksum that it holds.
    pub crc: u32,
    /// What it says.
    pub value: DumpValue,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub enum DumpValue {
    /// Whose log this is.
    Metadata(etcdserverpb::Metadata),
    /// A log entry.
    Entry(Entry),
    /// Term, vote and commit.
    State(HardState),
    /// The head of a segment.
    Crc,
    /// Replay may start here.
    Snapshot(walpb::Snapshot),
}

/// How the log ends.
#[derive(Debug)]
pub enum DumpEnd {
    /// After the last record, with nothing but zeros.
    Clean,
    /// With what a torn write left; opening the log would cut it there.
    Torn {
        /// The last segment.
        file: PathBuf,
        /// Where the good part ends.
        offset: u64,
        /// What follows; `None`: something behind a gap of zeros.
        finding: Option<Finding>,
    },
    /// The rest cannot be read.
    Damaged(Box<Damage>),
}

/// Hands every readable record to `visit`, in the order of the log.
pub fn visit_all(
    files: &dyn Files,
    dir: &Path,
    visit: &mut dyn FnMut(DumpRecord),
) -> Result<DumpEnd, OpenError> {
    let mut held = Vec::new();
    for segment in segments(files, dir)? {
        let path = &segment.path;
        let file = files.open(path, Access::Read).map_err(OpenError::io(path, "opening it"))?;
        held.push(Held { segment, file });
    }
    let tail = walk(&held, true, &mut |seen: Seen| {
        let value = match seen.kind {
            Kind::Metadata => DumpValue::Metadata(payload(&seen)?),
            Kind::Entry => DumpValue::Entry(payload(&seen)?),
            Kind::State => DumpValue::State(payload(&seen)?),
            Kind::Crc => DumpValue::Crc,
            Kind::Snapshot => DumpValue::Snapshot(payload(&seen)?),
        };
        visit(DumpRecord {
            file: held[seen.segment].segment.path.clone(),
            offset: seen.offset,
            crc: seen.crc,
            value,
        });
        Ok(())
    });
    match tail {
        Ok(tail) if tail.torn.is_none() && tail.rest_is_zero => Ok(DumpEnd::Clean),
        Ok(tail) => {
            let file = held.last().expect("segments() returns at least one").segment.path.clone();
            Ok(DumpEnd::Torn { file, offset: tail.offset, finding: tail.torn })
        }
        Err(OpenError::Damaged(damage)) => Ok(DumpEnd::Damaged(damage)),
        Err(error) => Err(error),
    }
}

/// Every readable record at once; [`visit_all`] needs less memory.
pub fn read_all(files: &dyn Files, dir: &Path) -> Result<(Vec<DumpRecord>, DumpEnd), OpenError> {
    let mut records = Vec::new();
    let end = visit_all(files, dir, &mut |record| records.push(record))?;
    Ok((records, end))
}

fn payload<M: Message + Default>(seen: &Seen) -> Result<M, Finding> {
    let data: Bytes = seen.data.clone();
    M::decode(data)
        .map_err(|error| Finding::Payload { kind: seen.kind.name(), error: error.to_string() })
}
