//! Makes one byte wrong in the data of a stopped member, so that nothing but the content shows it.
//!
//! Input: a data directory and a text that was stored as a value. Output: the same files with one
//! letter of the text changed. **Invariant:** all checksums of the files are right afterwards.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use mainstay_proto::prost::Message;
use mainstay_proto::walpb::Record;

/// The type of a checksum record, which sets the running checksum.
const CRC_RECORD: i64 = 4;

fn change(bytes: &mut [u8], text: &[u8]) -> usize {
    let at: Vec<usize> = bytes
        .windows(text.len())
        .enumerate()
        .filter(|(_, window)| *window == text)
        .map(|(at, _)| at)
        .collect();
    for at in &at {
        bytes[at + text.len() - 1] ^= 1;
    }
    at.len()
}

/// In a bbolt file, whose pages have no checksums: in every copy of the page, since the stale ones
/// do no harm.
pub(super) fn change_database(data_dir: &Path, text: &str) -> Result<()> {
    let path = data_dir.join("member/snap/db");
    let mut bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    ensure!(change(&mut bytes, text.as_bytes()) > 0, "{text} is not in {}", path.display());
    std::fs::write(&path, bytes)?;
    Ok(())
}

/// In the entries of a log, with all checksums made new. The member must be started with a store
/// that does not have the entry yet.
pub(super) fn change_log(data_dir: &Path, text: &str) -> Result<()> {
    let dir = data_dir.join("member/wal");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
        .with_context(|| dir.display().to_string())?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|kind| kind == "wal"));
    files.sort();
    let path = files.pop().context("no log file")?;
    let old = std::fs::read(&path)?;
    let (new, changed) = rewrite(&old, text.as_bytes())?;
    ensure!(changed == 1, "{text} is {changed} times in {}", path.display());
    std::fs::write(&path, new)?;
    Ok(())
}

/// The file with the text changed, and how often the text was there.
fn rewrite(old: &[u8], text: &[u8]) -> Result<(Vec<u8>, usize)> {
    let (mut at, mut crc, mut changed) = (0, 0, 0);
    let mut new = Vec::with_capacity(old.len());
    while let Some(frame) = old.get(at..at + 8) {
        let field = u64::from_le_bytes(frame.try_into()?);
        if field == 0 {
            break;
        }
        let padding = if field >> 63 == 1 { (field >> 56 & 7) as usize } else { 0 };
        let length = (field & 0x00ff_ffff_ffff_ffff) as usize;
        let body = old.get(at + 8..at + 8 + length).context("a record beyond the end")?;
        let mut record = Record::decode(body)?;
        if record.r#type == Some(CRC_RECORD) {
            crc = record.crc.unwrap_or(0);
        } else if let Some(data) = &record.data {
            let mut data = data.to_vec();
            changed += change(&mut data, text);
            crc = crc32c::crc32c_append(crc, &data);
            record.data = Some(data.into());
            record.crc = Some(crc);
        }
        let body = record.encode_to_vec();
        let padded = body.len().next_multiple_of(8);
        let pad = (padded - body.len()) as u64;
        let field = body.len() as u64 | if pad > 0 { (0x80 | pad) << 56 } else { 0 };
        new.extend_from_slice(&field.to_le_bytes());
        new.extend_from_slice(&body);
        new.resize(new.len() + pad as usize, 0);
        at += 8 + length + padding;
    }
    new.resize(old.len().max(new.len()), 0);
    Ok((new, changed))
}
