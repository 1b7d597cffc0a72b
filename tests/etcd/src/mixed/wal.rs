//! etcd's own etcd-dump-logs reads every member's log, and the logs are compared.
//!
//! Input: stopped members. Output: how many entries all of them hold with equal bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::member::{Member, peers_dir};

/// What the raw listing of a log says.
#[derive(Debug, Default)]
struct Dump {
    /// Every entry as a line that shows its bytes.
    entries: BTreeMap<u64, String>,
    commit: u64,
    /// The index before the newest stretch of entries without a gap; a snapshot, unless 0.
    start: u64,
}

fn run_tool(data_dir: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(peers_dir()?.join("etcd-dump-logs"))
        .args(arguments)
        .arg(data_dir)
        .output()
        .context("starting etcd-dump-logs")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || errors.contains("Error") {
        bail!("etcd-dump-logs {arguments:?} {}: {}\n{errors}", data_dir.display(), output.status);
    }
    Ok(text)
}

fn number(line: &str, field: &str) -> Result<u64> {
    let number = line.split(field).nth(1).with_context(|| format!("no {field} in {line}"))?;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().with_context(|| format!("{field} in {line}"))
}

fn parse_raw(text: &str) -> Result<Dump> {
    let mut dump = Dump::default();
    for line in text.lines() {
        let line = line.trim_end();
        if let Some(entry) = line.strip_prefix("Entry: ") {
            // Later entries replace all from their index on.
            let index = number(entry, "Index:")?;
            dump.entries.split_off(&index);
            if !dump.entries.contains_key(&(index - 1)) {
                dump.start = index - 1;
            }
            dump.entries.insert(index, entry.to_string());
        } else if line.starts_with("HardState: ") {
            dump.commit = number(line, "commit:").unwrap_or(dump.commit);
        }
    }
    ensure!(text.contains("EOF: All entries were processed."), "the listing ends early:\n{text}");
    Ok(dump)
}

/// The entries of the usual listing, by index.
fn parse_listing(text: &str) -> BTreeMap<u64, String> {
    let lines = text.lines().filter_map(|line| {
        let index = line.split('\t').nth(1)?.trim().parse().ok()?;
        Some((index, line.to_string()))
    });
    lines.collect()
}

/// Compares the logs of all members, two by two.
pub(super) fn compare(members: &[Member]) -> Result<usize> {
    let mut dumps = Vec::new();
    for member in members {
        let text = run_tool(&member.data_dir, &["-raw".to_string()])?;
        let dump = parse_raw(&text).with_context(|| format!("log of {}", member.name))?;
        // The tool takes a start at a snapshot only from a .snap file, which is not ours to write.
        let start = if dump.start == 0 { 0 } else { dump.start + 1 };
        let arguments = [format!("-start-index={start}")];
        let listing = parse_listing(&run_tool(&member.data_dir, &arguments)?);
        ensure!(
            listing.keys().max() == dump.entries.keys().max(),
            "{}: the usual listing ends at {:?}, the raw one at {:?}",
            member.name,
            listing.keys().max(),
            dump.entries.keys().max()
        );
        println!(
            "log of {} ({:?}): {} entries up to {}, committed {}; etcd-dump-logs lists {} after {}",
            member.name,
            member.program,
            dump.entries.len(),
            dump.entries.keys().max().copied().unwrap_or(0),
            dump.commit,
            listing.len(),
            start,
        );
        dumps.push((member, dump, listing));
    }
    let committed = dumps.iter().map(|(_, dump, _)| dump.commit).min().unwrap_or(0);
    let mut equal = usize::MAX;
    for (at, (one, left, left_listing)) in dumps.iter().enumerate() {
        for (other, right, right_listing) in &dumps[at + 1..] {
            let names = format!("{} and {}", one.name, other.name);
            let count = same(&left.entries, &right.entries, committed).context(names.clone())?;
            same(left_listing, right_listing, committed).context(names.clone())?;
            ensure!(count >= 20, "{names} have only {count} entries in common");
            equal = equal.min(count);
        }
    }
    Ok(equal)
}

fn same(
    left: &BTreeMap<u64, String>,
    right: &BTreeMap<u64, String>,
    committed: u64,
) -> Result<usize> {
    let mut count = 0;
    for (index, entry) in left.range(..=committed) {
        let Some(other) = right.get(index) else { continue };
        ensure!(entry == other, "entry {index} differs:\n  {entry}\n  {other}");
        count += 1;
    }
    Ok(count)
}
