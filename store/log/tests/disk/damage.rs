//! Every kind of damage has its name, and only a torn tail is cut.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use mainstay_formats::wal::{Encoder, Kind, roll, segment_name};
use mainstay_log::{
    Access, Damage, DumpEnd, DumpRecord, DumpValue, Files as _, Finding, LogStore as _, OpenError,
    Options, Recovered, Repair, SimFiles, Wal, read_all,
};
use mainstay_proto::etcdserverpb;
use mainstay_proto::raftpb::Entry;
use mainstay_proto::walpb;
use proptest::prelude::*;
use prost::Message as _;

use crate::common::*;

const SEGMENT: u64 = 1 << 14;

/// Several full segments and a last one that is about half full. Batches of one entry.
fn log() -> SimFiles {
    let disk = filled(SEGMENT, 70, 600);
    assert_eq!(wal_names(&disk).len(), 3);
    disk
}

fn records(disk: &SimFiles) -> Vec<DumpRecord> {
    read_all(disk, &dir()).unwrap().0
}

fn segment(disk: &SimFiles, at: usize) -> PathBuf {
    dir().join(&wal_names(disk)[at])
}

/// The record of an entry.
fn place(disk: &SimFiles, index: u64) -> (PathBuf, usize) {
    let record = records(disk)
        .into_iter()
        .find(|record| matches!(&record.value, DumpValue::Entry(entry) if entry.index() == index))
        .unwrap();
    (record.file, record.offset as usize)
}

fn write(disk: &SimFiles, path: &Path, at: usize, bytes: &[u8]) {
    disk.corrupt(path, |content| content[at..at + bytes.len()].copy_from_slice(bytes)).unwrap();
}

fn damage_of(disk: &SimFiles) -> Damage {
    match open(disk, SEGMENT) {
        Err(OpenError::Damaged(damage)) => *damage,
        Err(error) => panic!("not called damage: {error}"),
        Ok((_, found)) => panic!("opened with {} entries", found.entries.len()),
    }
}

fn opened(disk: &SimFiles) -> Recovered {
    open(disk, SEGMENT).map(|(_, found)| found).unwrap()
}

#[test]
fn a_flipped_bit_in_an_entry_is_a_checksum_mismatch() {
    for index in [3, 40, 66] {
        let disk = log();
        let (path, offset) = place(&disk, index);
        disk.corrupt(&path, |content| content[offset + 100] ^= 4).unwrap();
        let before = disk.contents(&path).unwrap();
        let damage = damage_of(&disk);
        assert!(matches!(damage.finding, Finding::Checksum { .. }), "{damage}");
        assert_eq!((&damage.file, damage.offset), (&path, offset as u64));
        let text = damage.to_string();
        assert!(
            text.contains(&format!("{}: damaged at offset {offset}: checksum", path.display()))
        );
        assert!(text.contains("etcdctl member remove abc"), "{text}");
        assert_eq!(disk.contents(&path).unwrap(), before, "nothing was changed");
        let (_, end) = read_all(&disk, &dir()).unwrap();
        assert!(matches!(end, DumpEnd::Damaged(_)), "{end:?}");
    }
}

/// Below the last two batches no flip may go unnoticed or pass for a torn tail. etcd cuts the log
/// at many of these, and with it what was acknowledged after them.
#[test]
fn no_flipped_bit_passes_for_a_torn_tail() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, 8192);
    for index in 1..=8 {
        let len = [5, 700, 40][index as usize % 3];
        wal.append(&[entry(index, 1, len)], Some(&state(1, 0xabc, index - 1)), true).unwrap();
    }
    wal.close().unwrap();
    let path = segment(&disk, 0);
    let end = place(&disk, 7).1;
    let whole = disk.contents(&path).unwrap();
    for at in 0..end {
        for bit in 0..8 {
            write(&disk, &path, at, &[whole[at] ^ (1 << bit)]);
            let outcome = open(&disk, 8192);
            let Err(OpenError::Damaged(_)) = outcome else {
                // Padding is not covered by the checksum and means nothing.
                let found = outcome.map(|(_, found)| found);
                let all = found
                    .as_ref()
                    .is_ok_and(|found| found.entries.len() == 8 && found.repair.is_none());
                assert!(all, "byte {at} bit {bit}: {found:?}");
                write(&disk, &path, at, &whole[at..=at]);
                continue;
            };
            write(&disk, &path, at, &whole[at..=at]);
        }
    }
}

#[test]
fn impossible_lengths_are_named() {
    let disk = log();
    let (path, offset) = place(&disk, 68);
    let field = disk.contents(&path).unwrap()[offset..offset + 8].to_vec();
    let field = u64::from_le_bytes(field.try_into().unwrap());
    write(&disk, &path, offset, &(field ^ 1).to_le_bytes());
    assert_eq!(damage_of(&disk).finding, Finding::Frame { field: field ^ 1 });
    // Beyond the end of the file, which alone would look torn.
    write(&disk, &path, offset, &(field ^ (1 << 30)).to_le_bytes());
    let inner = field & 0xff_ffff;
    let frame = inner + (1 << 30);
    assert_eq!(damage_of(&disk).finding, Finding::Length { frame, inner });
}

#[test]
fn a_record_cut_off_in_an_earlier_segment_is_damage() {
    let disk = log();
    let path = segment(&disk, 1);
    disk.corrupt(&path, |content| content.truncate(content.len() - 100)).unwrap();
    let damage = damage_of(&disk);
    assert!(matches!(damage.finding, Finding::PastEnd { .. }), "{damage}");
    assert_eq!(damage.file, path);
}

#[test]
fn an_earlier_segment_that_ends_too_soon_breaks_the_chain() {
    let disk = log();
    let (path, offset) = place(&disk, 20);
    assert_eq!(path, segment(&disk, 0));
    disk.corrupt(&path, |content| content.truncate(offset)).unwrap();
    let damage = damage_of(&disk);
    assert!(matches!(damage.finding, Finding::Chain { .. }), "{damage}");
    assert_eq!((damage.file, damage.offset), (segment(&disk, 1), 0));
}

#[test]
fn garbage_is_no_record() {
    let disk = log();
    let (path, offset) = place(&disk, 5);
    write(&disk, &path, offset + 8, &[0xff; 600]);
    let damage = damage_of(&disk);
    assert!(matches!(damage.finding, Finding::Record(_)), "{damage}");
}

#[test]
fn missing_and_double_segments_are_named() {
    let disk = log();
    let path = segment(&disk, 1);
    disk.remove(&path).unwrap();
    let damage = damage_of(&disk);
    assert_eq!(damage.finding, Finding::MissingSegment { missing: 1 });
    let disk = log();
    disk.open(&dir().join(segment_name(1, 7)), Access::Create).unwrap();
    let damage = damage_of(&disk);
    assert_eq!(damage.finding, Finding::DuplicateSegment { sequence: 1 });
}

#[test]
fn a_log_without_its_beginning_needs_a_mark() {
    let disk = log();
    disk.remove(&segment(&disk, 0)).unwrap();
    let damage = damage_of(&disk);
    assert!(matches!(damage.finding, Finding::NoSnapshot { first } if first > 1), "{damage}");
}

#[test]
fn a_segment_without_a_head_is_damage() {
    let disk = log();
    let path = segment(&disk, 2);
    disk.corrupt(&path, |content| content.fill(0)).unwrap();
    assert_eq!(damage_of(&disk).finding, Finding::Head);
    disk.corrupt(&path, Vec::clear).unwrap();
    assert_eq!(damage_of(&disk).finding, Finding::Head);
}

/// Segments written record by record, as no sound writer would.
struct Forged {
    disk: SimFiles,
    encoder: Encoder,
    bytes: Vec<u8>,
}

impl Forged {
    fn new() -> Self {
        let mut forged = Self::bare();
        forged.encoder.push_crc(&mut forged.bytes);
        forged.metadata(0xabc);
        forged.encoder.push_snapshot(
            &mut forged.bytes,
            &walpb::Snapshot { index: Some(0), term: Some(0), conf_state: None },
        );
        forged
    }

    fn bare() -> Self {
        let disk = SimFiles::new();
        disk.create_dir(&dir()).unwrap();
        Forged { disk, encoder: Encoder::new(0), bytes: Vec::new() }
    }

    fn metadata(&mut self, node: u64) {
        let metadata = etcdserverpb::Metadata { node_id: Some(node), cluster_id: Some(0xdef) };
        self.encoder.push_metadata(&mut self.bytes, &metadata.encode_to_vec());
    }

    fn entry(&mut self, index: u64, term: u64) -> &mut Self {
        self.encoder.push_entry(&mut self.bytes, &entry(index, term, 10));
        self
    }

    fn commit(&mut self, commit: u64) -> &mut Self {
        self.encoder.push_state(&mut self.bytes, &state(9, 1, commit));
        self
    }

    fn raw(&mut self, kind: i64, data: &[u8]) -> &mut Self {
        let crc = roll(self.encoder.crc(), data);
        self.encoder = Encoder::new(crc);
        let data = Some(Bytes::copy_from_slice(data));
        let record = walpb::Record { r#type: Some(kind), crc: Some(crc), data }.encode_to_vec();
        let pad = record.len().wrapping_neg() % 8;
        let flag = if pad == 0 { 0 } else { 0x80 | pad as u64 };
        let field = record.len() as u64 | flag << 56;
        self.bytes.extend(field.to_le_bytes());
        self.bytes.extend(record);
        self.bytes.resize(self.bytes.len() + pad, 0);
        self
    }

    /// Ends the segment.
    fn segment(&mut self, sequence: u64, index: u64) -> &mut Self {
        let path = dir().join(segment_name(sequence, index));
        let file = self.disk.open(&path, Access::Create).unwrap();
        file.write_at(&self.bytes, 0).unwrap();
        self.bytes.clear();
        self
    }

    fn finding(&mut self) -> Finding {
        self.segment(0, 0);
        damage_of(&self.disk).finding
    }
}

#[test]
fn segments_of_different_members_are_named() {
    let mut forged = Forged::new();
    forged.entry(1, 1).segment(0, 0);
    forged.encoder.push_crc(&mut forged.bytes);
    forged.metadata(0xfff);
    forged.segment(1, 2);
    assert_eq!(damage_of(&forged.disk).finding, Finding::Metadata);
}

#[test]
fn records_out_of_order_are_named() {
    let gap = Finding::EntryGap { last: 2, found: 4 };
    assert_eq!(Forged::new().entry(1, 1).entry(2, 1).entry(4, 1).finding(), gap);
    let order = Finding::TermOrder { index: 2, term: 1, before: 2 };
    assert_eq!(Forged::new().entry(1, 2).entry(2, 1).finding(), order);
    let commit = Finding::CommitPastEnd { commit: 3, last: 2 };
    assert_eq!(Forged::new().entry(1, 1).entry(2, 1).commit(3).finding(), commit);
    let mut headless = Forged::bare();
    headless.metadata(0xabc);
    assert_eq!(headless.entry(1, 1).finding(), Finding::Head);
}

#[test]
fn unknown_and_undecodable_records_are_named() {
    assert_eq!(Forged::new().raw(6, b"new").finding(), Finding::Kind(6));
    let finding = Forged::new().raw(Kind::Entry.number(), &[0xff; 20]).finding();
    assert!(matches!(finding, Finding::Payload { kind: "entry", .. }), "{finding}");
}

#[test]
fn a_torn_last_record_is_cut_and_the_segment_kept_beside() {
    // A sector in the middle of the last record, in the sector of its head, or the file's end.
    for tear in 0..3 {
        let disk = SimFiles::new();
        let mut wal = create(&disk, SEGMENT);
        wal.append(&entries(1..=4, 1, 100), Some(&state(1, 1, 3)), true).unwrap();
        wal.append(&entries(5..=6, 1, 3000), None, true).unwrap();
        wal.close().unwrap();
        let (path, offset) = place(&disk, 6);
        let sector = offset / 512 * 512;
        disk.corrupt(&path, |content| match tear {
            0 => content[sector + 1024..sector + 1536].fill(0),
            1 => content[offset + 8..sector + 512].fill(0),
            _ => content.truncate(offset + 2000),
        })
        .unwrap();
        let torn = disk.contents(&path).unwrap();
        let (_, end) = read_all(&disk, &dir()).unwrap();
        assert!(matches!(end, DumpEnd::Torn { offset: at, .. } if at == offset as u64), "{end:?}");

        let (mut wal, found) = open(&disk, SEGMENT).unwrap();
        let mut name = path.clone().into_os_string();
        name.push(".broken");
        let kept_as = PathBuf::from(name);
        let repair = Repair { file: path.clone(), offset: offset as u64, kept_as: kept_as.clone() };
        assert_eq!(found.repair, Some(repair));
        assert_eq!(found.entries.len(), 5);
        assert_eq!(disk.contents(&kept_as).unwrap(), torn);
        let now = disk.contents(&path).unwrap();
        assert_eq!(now.len() as u64, SEGMENT, "space is set aside again");
        assert!(now[offset..].iter().all(|&byte| byte == 0));
        wal.append(&entries(6..=7, 2, 50), Some(&state(2, 1, 5)), true).unwrap();
        drop(wal);
        let again = opened(&disk);
        assert_eq!((again.entries.len(), again.repair), (7, None));
    }
}

/// The length of the data is the last byte of a sector, its value would be the first of the next.
#[test]
fn a_head_across_two_sectors_of_which_one_is_missing_is_torn() {
    for shift in 0..64 {
        let disk = SimFiles::new();
        let mut wal = create(&disk, SEGMENT);
        wal.append(&[entry(1, 1, 300)], Some(&state(1, 1, 0)), true).unwrap();
        wal.append(&[entry(2, 1, 1 + shift * 8)], Some(&state(1, 1, 1)), true).unwrap();
        wal.append(&[entry(3, 1, 1000)], None, true).unwrap();
        wal.close().unwrap();
        let (path, offset) = place(&disk, 3);
        let next = (offset + 8) / 512 * 512 + 512;
        disk.corrupt(&path, |content| content[next..next + 512].fill(0)).unwrap();
        let found = opened(&disk);
        assert_eq!(found.entries.len(), 2);
        assert_eq!(found.repair.map(|repair| repair.offset), Some(offset as u64));
    }
}

#[test]
fn left_overs_behind_the_end_are_cleared() {
    let disk = log();
    let (path, offset) = place(&disk, 70);
    // The sector that held the length never arrived, later ones did.
    let sector = (offset / 512 + 1) * 512;
    disk.corrupt(&path, |content| content[offset..sector].fill(0)).unwrap();
    let found = opened(&disk);
    assert_eq!((found.entries.len(), found.repair), (69, None));
    assert!(disk.contents(&path).unwrap()[offset..].iter().all(|&byte| byte == 0));
}

/// Zeros in the middle of the last segment, with batches after them that were synced later.
#[test]
fn a_sector_lost_after_it_was_synced_is_damage() {
    let disk = log();
    let (path, offset) = place(&disk, 66);
    let whole = disk.contents(&path).unwrap();
    let sector = (offset / 512 + 1) * 512;
    write(&disk, &path, sector, &[0; 512]);
    let damage = damage_of(&disk);
    assert!(matches!(&damage.finding, Finding::NotTorn { what } if what.contains("checksum")));
    assert_eq!((&damage.file, damage.offset), (&path, offset as u64));
    // Now such that a length field is among the zeros, which ends the log for a plain reader.
    write(&disk, &path, 0, &whole);
    write(&disk, &path, offset, &vec![0; 1024]);
    let damage = damage_of(&disk);
    assert!(matches!(&damage.finding, Finding::NotTorn { what } if what.contains("zeros")));
    assert_eq!(damage.offset, offset as u64);
    // A log that was written without syncs proves nothing, and is cut.
    let unsynced = Options { sync: false, ..options(SEGMENT) };
    let (_, found) = Wal::open(std::sync::Arc::new(disk.clone()), &dir(), unsynced).unwrap();
    assert_eq!(found.entries.len(), 65);
}

/// One batch of many entries: the loss of any sector is a torn tail, whatever is left behind it.
#[test]
fn any_sector_of_the_last_batch_may_be_missing() {
    let disk = SimFiles::new();
    let mut wal = create(&disk, SEGMENT);
    wal.append(&entries(1..=4, 1, 100), Some(&state(1, 1, 0)), true).unwrap();
    wal.append(&[], Some(&state(1, 1, 3)), false).unwrap();
    let batch: Vec<Entry> =
        (5..=30).map(|index| entry(index, 1, 37 * index as usize % 500)).collect();
    wal.append(&batch, Some(&state(1, 1, 4)), true).unwrap();
    wal.close().unwrap();
    let path = segment(&disk, 0);
    let whole = disk.contents(&path).unwrap();
    let (_, start) = place(&disk, 5);
    let end = records(&disk).last().unwrap().offset as usize;
    let mut cuts = std::collections::BTreeSet::new();
    for sector in start / 512 + 1..=end / 512 {
        write(&disk, &path, 0, &whole);
        disk.corrupt(&path, |content| content[sector * 512..(sector + 1) * 512].fill(0)).unwrap();
        let found = opened(&disk);
        let count = found.entries.len();
        assert!((4..=30).contains(&count));
        assert_eq!(found.entries[4..], batch[..count - 4]);
        cuts.insert(count);
    }
    assert!(cuts.len() > 5, "{cuts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is on the disk, opening ends with damage or with a beginning of what was written.
    #[test]
    fn garbage_never_panics_and_never_becomes_entries(
        which in 0..3_usize,
        at in any::<prop::sample::Index>(),
        garbage in prop_oneof![
            prop::collection::vec(any::<u8>(), 1..40),
            prop::collection::vec(Just(0), 1..3000),
            prop::collection::vec(Just(0xff), 1..3000),
        ],
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let disk = log();
        let written = opened(&disk).entries;
        disk.corrupt(&segment(&disk, which), |content| {
            let at = at.index(content.len());
            let end = content.len().min(at + garbage.len());
            content[at..end].copy_from_slice(&garbage[..end - at]);
            if let Some(length) = length {
                content.truncate(length.index(content.len()));
            }
        })
        .unwrap();
        match open(&disk, SEGMENT) {
            Ok((_, found)) => {
                prop_assert_eq!(&found.entries[..], &written[..found.entries.len()]);
                prop_assert!(which == 2 || found.entries.len() == written.len());
            }
            Err(OpenError::Damaged(_)) => {}
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}
