//! `mainstay etcdutl`: offline work on snapshot files, with etcdutl's commands and output.
//!
//! Input: a command line and files. Output: text in one of etcdutl's formats, and the exit code.

use std::process::ExitCode;

use mainstay_formats::bbolt::Reader;
use mainstay_formats::snapshot::{self, SnapshotError, Status};

use crate::{complain, print};

/// The commands, for people; the manual page shows it too.
pub(crate) const USAGE: &str = "\
Usage:
  etcdutl version                                   print the version
  etcdutl snapshot status FILE [-w simple|json]     hash, revision, keys and size of a snapshot

Snapshots of this store are etcd's: real etcdutl restores them.
";

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["version"] => {
            let version = mainstay_store::SERVER_VERSION;
            let api = format!("{}.{}", version.major, version.minor);
            print(&format!("etcdutl version: {version}\nAPI version: {api}\n"));
            ExitCode::SUCCESS
        }
        ["snapshot", "status", rest @ ..] => snapshot_status(rest),
        [] | ["help" | "--help" | "-h"] => {
            print(USAGE);
            ExitCode::SUCCESS
        }
        _ => {
            complain(&format!(
                "Error: unknown command {:?} for \"etcdutl\"\n{USAGE}",
                words.join(" ")
            ));
            ExitCode::from(1)
        }
    }
}

fn snapshot_status(words: &[&str]) -> ExitCode {
    let (mut file, mut json) = (None, false);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "-w" | "--write-out" => match words.next() {
                Some(&"json") => json = true,
                Some(&"simple") => json = false,
                other => {
                    complain(&format!("Error: -w takes simple or json, not {other:?}\n"));
                    return ExitCode::from(1);
                }
            },
            "-w=json" | "--write-out=json" => json = true,
            "-w=simple" | "--write-out=simple" => json = false,
            path => file = Some(path),
        }
    }
    let Some(file) = file else {
        complain("Error: snapshot status requires exactly one argument: the snapshot file\n");
        return ExitCode::from(128);
    };
    match read_status(file) {
        Ok(status) if json => {
            print(&format!(
                "{{\"hash\":{},\"revision\":{},\"totalKey\":{},\"totalSize\":{},\"version\":\"{}\"}}\n",
                status.hash, status.revision, status.total_key, status.total_size, status.version
            ));
            ExitCode::SUCCESS
        }
        Ok(status) => {
            print(&format!(
                "{:x}, {}, {}, {}, {}\n",
                status.hash,
                status.revision,
                status.total_key,
                human_bytes(status.total_size),
                status.version
            ));
            ExitCode::SUCCESS
        }
        Err(error) => {
            complain(&format!("Error: {file}: {error}\n"));
            ExitCode::from(1)
        }
    }
}

fn read_status(file: &str) -> Result<Status, SnapshotError> {
    let file = std::fs::File::open(file)?;
    // A plain copy of a database has no hash behind it.
    if snapshot::has_hash(file.metadata()?.len()) {
        snapshot::verify(&file)?;
    }
    snapshot::status(&Reader::open(file)?).map(|(status, _)| status)
}

/// `25 kB`, `2.1 MB`: decimal units, two significant digits, as etcd's tools print sizes.
fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let exponent = (bytes as f64).log(1000.0).floor().min(5.0);
    let scaled = (bytes as f64 / 1000f64.powf(exponent) * 10.0 + 0.5).floor() / 10.0;
    let unit = UNITS.get(exponent as usize).copied().unwrap_or("PB");
    if scaled < 10.0 { format!("{scaled:.1} {unit}") } else { format!("{scaled:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::human_bytes;

    #[test]
    fn sizes_read_like_etcds() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(25_000), "25 kB");
        assert_eq!(human_bytes(20_480), "20 kB");
        assert_eq!(human_bytes(2_147_483_648), "2.1 GB");
    }
}
