//! What the tests of the log share: small entries, states, and a log on a simulated disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mainstay_log::{Files, LogStore as _, Metadata, OpenError, Options, Recovered, SimFiles, Wal};
use mainstay_proto::raftpb::{ConfState, Entry, HardState};
use mainstay_proto::walpb;

pub(crate) const IDENTITY: Metadata = Metadata { node_id: 0xabc, cluster_id: 0xdef };

pub(crate) fn dir() -> PathBuf {
    PathBuf::from("/member/wal")
}

pub(crate) fn options(segment_bytes: u64) -> Options {
    Options { segment_bytes, prepare_ahead: false, ..Options::default() }
}

pub(crate) fn entry(index: u64, term: u64, len: usize) -> Entry {
    // No zero bytes: then an empty sector always means a torn write.
    let data = Bytes::from(vec![(index % 255) as u8 + 1; len]);
    Entry { r#type: None, term: Some(term), index: Some(index), data: Some(data) }
}

pub(crate) fn entries(range: std::ops::RangeInclusive<u64>, term: u64, len: usize) -> Vec<Entry> {
    range.map(|index| entry(index, term, len)).collect()
}

pub(crate) fn state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term: Some(term), vote: Some(vote), commit: Some(commit) }
}

pub(crate) fn mark(index: u64, term: u64) -> walpb::Snapshot {
    let conf_state = Some(ConfState { voters: vec![0xabc], ..ConfState::default() });
    walpb::Snapshot { index: Some(index), term: Some(term), conf_state }
}

pub(crate) fn create(disk: &SimFiles, segment_bytes: u64) -> Wal {
    disk.create_dir(Path::new("/member")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    Wal::create(Arc::new(disk.clone()), &dir(), IDENTITY, options(segment_bytes)).unwrap()
}

pub(crate) fn open(disk: &SimFiles, segment_bytes: u64) -> Result<(Wal, Recovered), OpenError> {
    Wal::open(Arc::new(disk.clone()), &dir(), options(segment_bytes))
}

/// A log of several segments: entries 1..=last in batches of one, each with its state.
pub(crate) fn filled(segment_bytes: u64, last: u64, len: usize) -> SimFiles {
    let disk = SimFiles::new();
    let mut wal = create(&disk, segment_bytes);
    for index in 1..=last {
        wal.append(&[entry(index, 1, len)], Some(&state(1, 0xabc, index - 1)), true).unwrap();
    }
    wal.close().unwrap();
    disk
}

pub(crate) fn wal_names(disk: &SimFiles) -> Vec<String> {
    let mut names = disk.list(&dir()).unwrap();
    names.retain(|name| name.ends_with(".wal"));
    names
}
