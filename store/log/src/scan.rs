//! Reading segments front to back and judging what is found.
//!
//! Input: open segments in order. Output: their records, one by one, and where the written part
//! ends. All rules about what is a torn tail and what is damage are here.
//!
//! A torn tail is what a stop of the machine leaves of writes that were not yet synced: sectors of
//! the last records are still zeros, or the file ends within the last record. Everything else is
//! damage. Two rules go beyond etcd's, which would cut there and lose what followed: a length that
//! contradicts the record is damage (a length field is never torn), and so is a broken record
//! after which records follow that can only have been written after a later sync.
//!
//! **Invariant:** reads only; memory is bounded by the largest record.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_formats::wal::{
    FRAME_HEADER, Frame, Kind, Record, framed_len, has_empty_sector, parse_segment_name, roll,
};
use mainstay_proto::etcdserverpb;
use prost::Message as _;

use crate::error::{Damage, Finding, OpenError};
use crate::files::{File, Files};

const CHUNK: usize = 1 << 20;
static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// A file of the log, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) sequence: u64,
    pub(crate) index: u64,
    pub(crate) path: PathBuf,
}

/// An open file of the log.
pub(crate) struct Held {
    pub(crate) segment: Segment,
    pub(crate) file: Box<dyn File>,
}

/// The segments in a directory in their order, none missing.
pub(crate) fn segments(files: &dyn Files, dir: &Path) -> Result<Vec<Segment>, OpenError> {
    let names = match files.list(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(OpenError::io(dir, "listing the log directory")(error)),
    };
    let mut found = Vec::new();
    for name in names {
        match parse_segment_name(&name) {
            Some((sequence, index)) => {
                found.push(Segment { sequence, index, path: dir.join(name) });
            }
            None if name.ends_with(".tmp") => {}
            None => {
                tracing::warn!(path = %dir.join(name).display(), "ignored file in log directory")
            }
        }
    }
    if found.is_empty() {
        return Err(OpenError::NotFound { dir: dir.to_owned() });
    }
    // Names have a fixed width, so their order is the order of their numbers.
    for pair in found.windows(2) {
        let [before, after] = [&pair[0], &pair[1]];
        let finding = if before.sequence == after.sequence {
            Finding::DuplicateSegment { sequence: after.sequence }
        } else if before.sequence + 1 != after.sequence {
            Finding::MissingSegment { missing: before.sequence + 1 }
        } else {
            continue;
        };
        return Err(damage(after, 0, finding, None));
    }
    Ok(found)
}

/// A record and where it was found.
pub(crate) struct Seen {
    /// Position in the slice of segments.
    pub(crate) segment: usize,
    pub(crate) offset: u64,
    /// The checksum before this record.
    pub(crate) crc_before: u32,
    pub(crate) kind: Kind,
    /// The record's own checksum.
    pub(crate) crc: u32,
    pub(crate) data: Bytes,
}

/// Where the written part of the last segment ends.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) offset: u64,
    pub(crate) crc: u32,
    /// Only zeros follow, up to the end of the file.
    pub(crate) rest_is_zero: bool,
    /// Why the record at `offset` does not count.
    pub(crate) torn: Option<Finding>,
}

/// Reads all records. `trust_sync` is false for a log that was written without syncs, in which
/// nothing proves that a record had been durable.
pub(crate) fn walk(
    held: &[Held],
    trust_sync: bool,
    visit: &mut dyn FnMut(Seen) -> Result<(), Finding>,
) -> Result<Tail, OpenError> {
    let mut crc = None;
    let mut metadata: Option<Bytes> = None;
    for (position, Held { segment, file }) in held.iter().enumerate() {
        let last = position + 1 == held.len();
        let mut reader = Reader::new(&**file, &segment.path)?;
        let mut number = 0;
        loop {
            let offset = reader.offset;
            let member = metadata.as_ref().and_then(member);
            let fail = |finding| damage(segment, offset, finding, member);
            let (finding, frame, stored) = match reader.next()? {
                Step::End if number < 2 => return Err(fail(Finding::Head)),
                Step::End if !last => break,
                Step::End => {
                    let crc = crc.expect("two records were read, the first held a checksum");
                    let rest_is_zero = reader.rest_is_zero()?;
                    if !rest_is_zero && trust_sync && reader.later_sync(Tracker::default(), None)? {
                        let what = "a sector of the log reads as zeros".to_owned();
                        return Err(fail(Finding::NotTorn { what }));
                    }
                    return Ok(Tail { offset, crc, rest_is_zero, torn: None });
                }
                Step::Record { record, frame } => {
                    let before = crc.unwrap_or(record.crc);
                    let kind = Kind::from_number(record.kind);
                    let head = match number {
                        0 => kind == Some(Kind::Crc),
                        1 => kind == Some(Kind::Metadata),
                        _ => true,
                    };
                    if !head {
                        return Err(fail(Finding::Head));
                    }
                    let computed = match kind {
                        Some(Kind::Crc) => before,
                        _ => roll(before, &record.data),
                    };
                    if computed == record.crc {
                        let kind = kind.ok_or_else(|| fail(Finding::Kind(record.kind)))?;
                        if kind == Kind::Metadata {
                            if metadata.as_ref().is_some_and(|known| *known != record.data) {
                                return Err(fail(Finding::Metadata));
                            }
                            metadata = Some(record.data.clone());
                        }
                        visit(Seen {
                            segment: position,
                            offset,
                            crc_before: before,
                            kind,
                            crc: record.crc,
                            data: record.data,
                        })
                        .map_err(fail)?;
                        crc = Some(computed);
                        number += 1;
                        continue;
                    }
                    let stored = record.crc;
                    if kind == Some(Kind::Crc) {
                        return Err(fail(Finding::Chain { stored, computed }));
                    }
                    (Finding::Checksum { stored, computed }, Some(frame), Some((kind, stored)))
                }
                Step::Unreadable { finding, frame } => (finding, Some(frame), None),
                Step::PastEnd { length } => {
                    (Finding::PastEnd { length, size: reader.size }, None, None)
                }
                Step::Impossible(finding) => return Err(fail(finding)),
            };
            // The record is broken. The head of a segment is synced before the segment gets its
            // name, and all of an earlier segment before the next one does: neither can be torn.
            let crc = match crc {
                Some(crc) if last && number >= 2 => crc,
                _ => return Err(fail(finding)),
            };
            if let Some(frame) = frame {
                if !has_empty_sector(offset + FRAME_HEADER as u64, &frame) {
                    return Err(fail(finding));
                }
                let (kind, stored) = stored.unzip();
                let mut tracker = Tracker::default();
                if let Some(kind) = kind.flatten() {
                    tracker.saw(kind);
                }
                if trust_sync && reader.later_sync(tracker, stored)? {
                    return Err(fail(Finding::NotTorn { what: finding.to_string() }));
                }
            }
            return Ok(Tail { offset, crc, rest_is_zero: false, torn: Some(finding) });
        }
    }
    unreachable!("the last segment returns, and there is at least one")
}

fn member(metadata: &Bytes) -> Option<u64> {
    etcdserverpb::Metadata::decode(metadata.clone()).ok()?.node_id
}

pub(crate) fn damage(
    segment: &Segment,
    offset: u64,
    finding: Finding,
    member: Option<u64>,
) -> OpenError {
    Box::new(Damage { file: segment.path.clone(), offset, finding, member }).into()
}

/// Watches the order of records for a proof that a sync lay between them.
///
/// A batch is entries, then at most one state, then a sync; before it only states whose commit
/// alone moved may wait unsynced; a snapshot mark is synced itself. So once an entry and after it
/// a state were seen, whatever comes next was written after a sync of both.
#[derive(Default)]
struct Tracker {
    entry: bool,
    batch: bool,
}

impl Tracker {
    /// True once a sync is proved to lie between the first record and this one.
    fn saw(&mut self, kind: Kind) -> bool {
        if self.batch {
            return true;
        }
        match kind {
            Kind::Entry => self.entry = true,
            Kind::State => self.batch = self.entry,
            Kind::Snapshot => self.batch = true,
            Kind::Metadata | Kind::Crc => {}
        }
        false
    }
}

enum Step {
    End,
    /// Well formed; the checksum is not yet compared.
    Record {
        record: Record,
        frame: Bytes,
    },
    /// A frame that does not hold a record.
    Unreadable {
        finding: Finding,
        frame: Bytes,
    },
    /// The file ends within the record.
    PastEnd {
        length: u64,
    },
    /// Nothing that a writer or a torn write leaves.
    Impossible(Finding),
}

/// Reads frames out of one file in large pieces.
struct Reader<'a> {
    file: &'a dyn File,
    path: &'a Path,
    size: u64,
    /// The next frame.
    offset: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
}

impl<'a> Reader<'a> {
    fn new(file: &'a dyn File, path: &'a Path) -> Result<Self, OpenError> {
        let size = file.size().map_err(OpenError::io(path, "reading its size"))?;
        Ok(Self { file, path, size, offset: 0, buffer: Vec::new(), buffer_at: 0 })
    }

    /// The bytes at `offset`, fewer at the end of the file.
    fn peek(&mut self, offset: u64, len: usize) -> Result<&[u8], OpenError> {
        let len = (self.size.saturating_sub(offset)).min(len as u64) as usize;
        let end = self.buffer_at + self.buffer.len() as u64;
        if offset < self.buffer_at || offset + len as u64 > end {
            let want = self.size.saturating_sub(offset).min(len.max(CHUNK) as u64) as usize;
            self.buffer.resize(want, 0);
            self.buffer_at = offset;
            let mut filled = 0;
            while filled < want {
                let read = self.file.read_at(&mut self.buffer[filled..], offset + filled as u64);
                match read {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(OpenError::io(self.path, "reading it")(error)),
                }
            }
            // Shorter than it was when it was opened: treat the new end as the end.
            self.buffer.truncate(filled);
            if filled < want {
                self.size = offset + filled as u64;
            }
        }
        let start = ((offset - self.buffer_at) as usize).min(self.buffer.len());
        let end = (start + len).min(self.buffer.len());
        Ok(&self.buffer[start..end])
    }

    fn next(&mut self) -> Result<Step, OpenError> {
        let header = self.peek(self.offset, FRAME_HEADER)?;
        let Ok(field) = <[u8; FRAME_HEADER]>::try_from(header) else {
            let zero = header.iter().all(|&byte| byte == 0);
            let length = FRAME_HEADER as u64;
            return Ok(if zero { Step::End } else { Step::PastEnd { length } });
        };
        let field = u64::from_le_bytes(field);
        let len = match Frame::parse(field) {
            Frame::End => return Ok(Step::End),
            Frame::Invalid => return Ok(Step::Impossible(Finding::Frame { field })),
            Frame::Record { len, .. } => len,
        };
        let at = self.offset + FRAME_HEADER as u64;
        if let Some(inner) = told_len(self.peek(at, TOLD_LEN)?)
            && inner != len
        {
            return Ok(Step::Impossible(Finding::Length { frame: len, inner }));
        }
        let total = framed_len(len);
        if total > self.size - self.offset {
            return Ok(Step::PastEnd { length: len });
        }
        // Its own allocation: an entry that lives long must not keep a whole chunk alive.
        let frame = Bytes::copy_from_slice(self.peek(at, total as usize - FRAME_HEADER)?);
        if (frame.len() as u64) < total - FRAME_HEADER as u64 {
            return Ok(Step::PastEnd { length: len });
        }
        self.offset += total;
        Ok(match Record::decode(frame.slice(..len as usize)) {
            Ok(record) => Step::Record { record, frame },
            Err(error) => Step::Unreadable { finding: Finding::Record(error.to_string()), frame },
        })
    }

    /// Whether only zeros follow; else `offset` moves to the first word that is not zero.
    fn rest_is_zero(&mut self) -> Result<bool, OpenError> {
        loop {
            let offset = self.offset;
            let piece = self.peek(offset, CHUNK)?;
            if piece.is_empty() {
                return Ok(true);
            }
            if *piece != ZEROS[..piece.len()] {
                let zeros = piece.iter().take_while(|&&byte| byte == 0).count();
                self.offset += (zeros - zeros % FRAME_HEADER) as u64;
                return Ok(false);
            }
            self.offset += piece.len() as u64;
        }
    }

    /// Whether records follow that prove a sync after the broken record before `offset`.
    /// A record counts if its checksum continues that of the one before it, `previous` at first.
    fn later_sync(
        &mut self,
        mut tracker: Tracker,
        mut previous: Option<u32>,
    ) -> Result<bool, OpenError> {
        while self.offset < self.size {
            let offset = self.offset;
            match self.next()? {
                Step::Record { record, .. } => {
                    let kind = Kind::from_number(record.kind);
                    if let (Some(previous), Some(kind)) = (previous, kind)
                        && roll(previous, &record.data) == record.crc
                        && tracker.saw(kind)
                    {
                        return Ok(true);
                    }
                    // A record on its own proves nothing yet, but the next may continue it.
                    previous = kind.map(|_| record.crc);
                    if kind.is_none() {
                        self.offset = offset + FRAME_HEADER as u64;
                    }
                }
                Step::End => {
                    if self.rest_is_zero()? {
                        return Ok(false);
                    }
                    previous = None;
                }
                _ => {
                    previous = None;
                    self.offset = offset + FRAME_HEADER as u64;
                }
            }
        }
        Ok(false)
    }
}

/// The most bytes that type, checksum and data length take at the head of a record.
const TOLD_LEN: usize = 2 + 6 + 11;

/// The size of a record by its own head; `None` when the head is not whole.
fn told_len(head: &[u8]) -> Option<u64> {
    let (&[0x08, kind, 0x10], rest) = head.split_first_chunk()? else { return None };
    let crc = varint(rest)?.1;
    let fixed = 3 + crc as u64;
    match rest[crc..] {
        _ if i64::from(kind) == Kind::Crc.number() => Some(fixed),
        [0x1a, ref rest @ ..] => {
            let (data, len) = varint(rest)?;
            fixed.checked_add(1 + len as u64)?.checked_add(data)
        }
        _ => None,
    }
}

/// A varint and its size; `None` if its last byte is zero. Across two sectors of which the second
/// was never written it looks like that, so it tells nothing.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
        if byte < 0x80 {
            return (byte != 0).then_some((value, at + 1));
        }
    }
    None
}
