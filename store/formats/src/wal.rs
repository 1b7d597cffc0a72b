//! The records of etcd's write-ahead log as bytes: frames, the rolling checksum, segment names.
//!
//! Input: records to append, or bytes of a segment. Output: bytes that etcd 3.7 would have written,
//! or the record that they hold. A frame is a little-endian length field (low 56 bits: record
//! size; if padded, the top bit and the pad length in bits 56 to 58), the record, and zeros up to
//! a multiple of 8. A record is a `walpb.Record`; its checksum is the CRC-32C over the data of all
//! records so far, its own included.
//!
//! **Invariant:** every frame is a multiple of 8 bytes, so a length field never lies across two
//! disk sectors and is either whole or absent after a torn write.

use bytes::Bytes;
use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;
use prost::Message as _;

/// Bytes of the length field before each record.
pub const FRAME_HEADER: usize = 8;
/// What a disk writes whole or not at all.
pub const SECTOR: u64 = 512;
/// How long the file name of a segment is.
const NAME_LEN: usize = 16 + 1 + 16 + 4;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `etcdserverpb.Metadata`: whose log this is.
    Metadata,
    /// `raftpb.Entry`.
    Entry,
    /// `raftpb.HardState`.
    State,
    /// No data; the checksum so far, at the head of a segment.
    Crc,
    /// `walpb.Snapshot`: replay may start here.
    Snapshot,
}

impl Kind {
    /// The number on disk.
    pub const fn number(self) -> i64 {
        match self {
            Kind::Metadata => 1,
            Kind::Entry => 2,
            Kind::State => 3,
            Kind::Crc => 4,
            Kind::Snapshot => 5,
        }
    }

    /// The kind of a number on disk.
    pub const fn from_number(number: i64) -> Option<Kind> {
        match number {
            1 => Some(Kind::Metadata),
            2 => Some(Kind::Entry),
            3 => Some(Kind::State),
            4 => Some(Kind::Crc),
            5 => Some(Kind::Snapshot),
            _ => None,
        }
    }

    /// The name used in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Metadata => "metadata",
            Kind::Entry => "entry",
            Kind::State => "hard state",
            Kind::Crc => "checksum",
            Kind::Snapshot => "snapshot",
        }
    }
}

/// What a length field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Zero: nothing was written from here on.
    End,
    /// A record and its padding.
    Record {
        /// Bytes of the record.
        len: u64,
        /// Zero bytes after it.
        pad: u64,
    },
    /// No writer produces this field.
    Invalid,
}

impl Frame {
    /// Reads a length field. Stricter than etcd: padding that does not fit the size is invalid.
    pub fn parse(field: u64) -> Frame {
        if field == 0 {
            return Frame::End;
        }
        let len = field & !(0xff << 56);
        if len == 0 || length_field(len) != field {
            return Frame::Invalid;
        }
        Frame::Record { len, pad: padding(len) }
    }
}

fn padding(len: u64) -> u64 {
    len.wrapping_neg() % 8
}

fn length_field(len: u64) -> u64 {
    match padding(len) {
        0 => len,
        pad => len | (0x80 | pad) << 56,
    }
}

/// The bytes that a record of this size takes in a segment.
pub fn framed_len(record_len: u64) -> u64 {
    FRAME_HEADER as u64 + record_len + padding(record_len)
}

/// Continues a rolling checksum over `data`.
pub fn roll(crc: u32, data: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, data)
}

/// Appends frames to a buffer and keeps the checksum going. Allocates only when the buffer grows.
#[derive(Debug, Default)]
pub struct Encoder {
    crc: u32,
}

impl Encoder {
    /// Continues after records whose checksum is `crc`.
    pub fn new(crc: u32) -> Self {
        Self { crc }
    }

    /// The checksum over the data of all records so far.
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The record at the head of a segment: the checksum so far and no data.
    pub fn push_crc(&mut self, out: &mut Vec<u8>) {
        let mut record = Prefix::new();
        record.varint_field(1, Kind::Crc.number() as u64);
        record.varint_field(2, u64::from(self.crc));
        push_frame(out, &[record.bytes()]);
    }

    /// A record whose data is `head` followed by `body`.
    fn push_parts(&mut self, out: &mut Vec<u8>, kind: Kind, head: &[u8], body: &[u8]) {
        self.crc = roll(roll(self.crc, head), body);
        let mut record = Prefix::new();
        record.varint_field(1, kind.number() as u64);
        record.varint_field(2, u64::from(self.crc));
        record.bytes_field(3, head.len() + body.len());
        push_frame(out, &[record.bytes(), head, body]);
    }

    /// A metadata record of already encoded metadata, repeated unchanged in every segment.
    pub fn push_metadata(&mut self, out: &mut Vec<u8>, metadata: &[u8]) {
        self.push_parts(out, Kind::Metadata, metadata, &[]);
    }

    /// An entry. A field that is absent stays absent and an explicit zero stays explicit, so an
    /// entry from a peer has the same bytes in every member's log.
    pub fn push_entry(&mut self, out: &mut Vec<u8>, entry: &Entry) {
        let mut head = Prefix::new();
        if let Some(kind) = entry.r#type {
            // An enum is a sign-extended int32 on the wire.
            head.varint_field(1, i64::from(kind) as u64);
        }
        if let Some(term) = entry.term {
            head.varint_field(2, term);
        }
        if let Some(index) = entry.index {
            head.varint_field(3, index);
        }
        let body: &[u8] = match &entry.data {
            Some(data) => {
                head.bytes_field(4, data.len());
                data
            }
            None => &[],
        };
        self.push_parts(out, Kind::Entry, head.bytes(), body);
    }

    /// A hard state; all three fields are written even if zero, as etcd does.
    pub fn push_state(&mut self, out: &mut Vec<u8>, state: &HardState) {
        let mut head = Prefix::new();
        head.varint_field(1, state.term());
        head.varint_field(2, state.vote());
        head.varint_field(3, state.commit());
        self.push_parts(out, Kind::State, head.bytes(), &[]);
    }

    /// A snapshot mark.
    pub fn push_snapshot(&mut self, out: &mut Vec<u8>, snapshot: &walpb::Snapshot) {
        self.push_parts(out, Kind::Snapshot, &snapshot.encode_to_vec(), &[]);
    }
}

fn push_frame(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len() as u64).sum::<u64>();
    out.reserve(framed_len(len) as usize);
    out.extend_from_slice(&length_field(len).to_le_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&[0; 8][..padding(len) as usize]);
}

/// A few protobuf fields on the stack. Room for four: each has one byte of tag and at most ten of
/// varint.
struct Prefix {
    bytes: [u8; 44],
    len: usize,
}

impl Prefix {
    fn new() -> Self {
        Self { bytes: [0; 44], len: 0 }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    fn varint_field(&mut self, number: u8, value: u64) {
        self.byte(number << 3);
        self.varint(value);
    }

    fn bytes_field(&mut self, number: u8, len: usize) {
        self.byte(number << 3 | 2);
        self.varint(len as u64);
    }
}

/// A record as it was read, not yet checked against the checksum of the records before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The type's number; [`Kind::from_number`] knows it or not.
    pub kind: i64,
    /// The stored checksum.
    pub crc: u32,
    /// The data.
    pub data: Bytes,
}

impl Record {
    /// Reads a record out of a frame.
    pub fn decode(frame: Bytes) -> Result<Record, prost::DecodeError> {
        let record = walpb::Record::decode(frame)?;
        Ok(Record {
            kind: record.r#type(),
            crc: record.crc(),
            data: record.data.unwrap_or_default(),
        })
    }

    /// The size in its frame of a record with this content: the writer adds nothing else, so a
    /// frame of another size has a damaged length.
    pub fn encoded_len(&self) -> u64 {
        let mut head = Prefix::new();
        head.varint_field(1, self.kind as u64);
        head.varint_field(2, u64::from(self.crc));
        if self.kind != Kind::Crc.number() {
            head.bytes_field(3, self.data.len());
        }
        (head.len + self.data.len()) as u64
    }
}

/// Whether a damaged record at the end of the log can be what a torn write left: some sector of
/// it holds only zeros, as the preallocated file did before. `offset` is where `frame` (record and
/// padding, without the length field) lies in the file.
pub fn has_empty_sector(offset: u64, frame: &[u8]) -> bool {
    let mut at = 0;
    while at < frame.len() {
        let sector = (SECTOR - (offset + at as u64) % SECTOR) as usize;
        let end = frame.len().min(at + sector);
        if frame[at..end].iter().all(|&byte| byte == 0) {
            return true;
        }
        at = end;
    }
    false
}

/// The file name of a segment: its sequence number and the index of the first entry in it.
pub fn segment_name(sequence: u64, index: u64) -> String {
    format!("{sequence:016x}-{index:016x}.wal")
}

/// The sequence number and first index in a segment's name; `None` for other files.
pub fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    let bytes = name.as_bytes();
    if bytes.len() != NAME_LEN || bytes[16] != b'-' || !name.ends_with(".wal") {
        return None;
    }
    let number = |digits: &[u8]| {
        let plain = digits.iter().all(|d| matches!(d, b'0'..=b'9' | b'a'..=b'f'));
        plain.then(|| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()).flatten()
    };
    Some((number(&bytes[..16])?, number(&bytes[17..33])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first records of a segment that etcd 3.7.3 wrote (one member, first start): checksum,
    /// metadata, snapshot, an entry that adds the member, a state, a state, an empty entry, and
    /// the entry that publishes the member.
    const REAL: &[&str] = &[
        "040000000000008408041000000000001f00000000000081080110c0eee05a1a",
        "16088df2f48ec1f7a6d7bd0110aaf4e5f599f3ebe7d101000d00000000000083",
        "080510b6f7e4581a04080010000000006e000000000000820802109687c8de06",
        "1a64080110011801225c1000188df2f48ec1f7a6d7bd01224d7b226964223a31",
        "333636383033333135313137313930313730392c227065657255524c73223a5b",
        "22687474703a2f2f3132372e302e302e313a3233383031225d2c226e616d6522",
        "3a226d31227d0000100000000000000008031089d5d887011a06080110001801",
        "1900000000000087080310f6d6e1df091a0f0802108df2f48ec1f7a6d7bd0118",
        "01000000000000000e000000000000820802108bfbd4d60d1a04100218020000",
        "4900000000000087080210f2c190f4071a3f100218032239a2060a08818091cc",
        "e8c5e88639aa5129088df2f48ec1f7a6d7bd01121c0a026d311216687474703a",
        "2f2f3132372e302e302e313a32333739",
        "3100000000000000",
    ];

    #[test]
    fn writes_the_bytes_that_etcd_writes() {
        let real = REAL.concat();
        let real: Vec<u8> = (0..real.len() / 2)
            .map(|at| u8::from_str_radix(&real[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let mut encoder = Encoder::new(0);
        let (mut ours, mut kinds, mut at) = (Vec::new(), Vec::new(), 0);
        while at < real.len() {
            let field = u64::from_le_bytes(real[at..at + 8].try_into().unwrap());
            let Frame::Record { len, pad } = Frame::parse(field) else { panic!("{field:x}") };
            let record = Bytes::copy_from_slice(&real[at + 8..at + 8 + len as usize]);
            at += (8 + len + pad) as usize;
            let record = Record::decode(record).unwrap();
            assert_eq!(record.encoded_len(), len);
            let data = record.data.clone();
            match Kind::from_number(record.kind).unwrap() {
                Kind::Crc => encoder.push_crc(&mut ours),
                Kind::Metadata => encoder.push_metadata(&mut ours, &data),
                Kind::Entry => encoder.push_entry(&mut ours, &Entry::decode(data).unwrap()),
                Kind::State => {
                    let state = HardState::decode(data).unwrap();
                    let sparse = HardState { vote: state.vote.filter(|&id| id != 0), ..state };
                    encoder.push_state(&mut ours, &sparse);
                }
                Kind::Snapshot => {
                    encoder.push_snapshot(&mut ours, &walpb::Snapshot::decode(data).unwrap());
                }
            }
            assert_eq!(encoder.crc(), record.crc);
            kinds.push(record.kind);
        }
        assert_eq!(kinds, [4, 1, 5, 2, 3, 3, 2, 2]);
        assert_eq!(ours, real);
    }

    #[test]
    fn an_entry_is_encoded_as_protobuf_does() {
        let data = Bytes::from(vec![7; 300]);
        let mut cases = vec![Entry::default()];
        for kind in [None, Some(0), Some(1), Some(-1)] {
            for number in [None, Some(0), Some(1), Some(128), Some(u64::MAX)] {
                for data in [None, Some(Bytes::new()), Some(data.clone())] {
                    let entry = Entry { r#type: kind, term: number, index: number, data };
                    cases.push(entry);
                }
            }
        }
        let mut encoder = Encoder::new(17);
        let mut crc = 17;
        for entry in cases {
            let mut out = Vec::new();
            encoder.push_entry(&mut out, &entry);
            let data = entry.encode_to_vec();
            crc = roll(crc, &data);
            let record = walpb::Record {
                r#type: Some(2),
                crc: Some(crc),
                data: Some(Bytes::from(data.clone())),
            }
            .encode_to_vec();
            let field = u64::from_le_bytes(out[..8].try_into().unwrap());
            let Frame::Record { len, pad } = Frame::parse(field) else { panic!("{field:x}") };
            assert_eq!(len, record.len() as u64);
            assert_eq!(out.len() as u64, framed_len(len));
            assert_eq!(out.len() as u64, 8 + len + pad);
            assert_eq!(out[8..8 + len as usize], record);
            assert!(out[8 + len as usize..].iter().all(|&byte| byte == 0));
            let read = Record::decode(Bytes::copy_from_slice(&record)).unwrap();
            assert_eq!(read, Record { kind: 2, crc, data: data.into() });
            assert_eq!(read.encoded_len(), len);
        }
        assert_eq!(encoder.crc(), crc);
    }

    #[test]
    fn impossible_length_fields_are_found() {
        assert_eq!(Frame::parse(0), Frame::End);
        assert_eq!(Frame::parse(8), Frame::Record { len: 8, pad: 0 });
        assert_eq!(Frame::parse(0x84 << 56 | 4), Frame::Record { len: 4, pad: 4 });
        for field in [4, 0x83 << 56 | 4, 0x88 << 56 | 8, 0x04 << 56 | 4, 0xc4 << 56 | 4, 1 << 63] {
            assert_eq!(Frame::parse(field), Frame::Invalid, "{field:x}");
        }
    }

    #[test]
    fn an_empty_sector_is_looked_for_in_the_files_sectors() {
        let mut frame = vec![1; 2000];
        assert!(!has_empty_sector(8, &frame));
        frame[504..1016].fill(0);
        assert!(has_empty_sector(8, &frame));
        // The same zeros, but now they lie across two sectors.
        assert!(!has_empty_sector(16, &frame));
        assert!(has_empty_sector(504, &[0; 8]), "a short chunk counts too");
        assert!(!has_empty_sector(0, &[]));
    }

    #[test]
    fn segment_names() {
        let name = segment_name(0x1f, 0xabc);
        assert_eq!(name, "000000000000001f-0000000000000abc.wal");
        assert_eq!(parse_segment_name(&name), Some((0x1f, 0xabc)));
        for other in ["0.tmp", "000000000000001F-0000000000000abc.wal", "x", ""] {
            assert_eq!(parse_segment_name(other), None, "{other}");
        }
        assert_eq!(parse_segment_name(&format!("{name}.broken")), None);
    }
}
