//! The same log read and written by us and by real etcd 3.7.3.
//!
//! Needs `MAINSTAY_PEERS`: a directory with etcd, etcdctl and etcd-dump-logs. `make test` builds
//! them and sets it.
#![cfg(test)]

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use mainstay_log::{
    DumpEnd, DumpRecord, DumpValue, LogStore as _, Metadata, OpenError, Options, OsFiles, Wal,
    read_all,
};
use mainstay_proto::etcdserverpb::InternalRaftRequest;
use mainstay_proto::raftpb::{ConfState, Entry, HardState};
use mainstay_proto::walpb;
use prost::Message as _;

fn peer(name: &str) -> PathBuf {
    let Some(dir) = std::env::var_os("MAINSTAY_PEERS") else {
        panic!("MAINSTAY_PEERS is not set: run `make test`, which builds real etcd and sets it")
    };
    let path = PathBuf::from(dir).join(name);
    assert!(path.exists(), "{} is missing: run `make test`, which builds it", path.display());
    path
}

fn free_ports() -> [u16; 2] {
    // Both are held until both are known, so that they differ.
    let held = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    held.map(|listener| listener.local_addr().unwrap().port())
}

/// A real member; killed when dropped.
struct Etcd {
    child: Child,
    port: u16,
}

impl Etcd {
    fn command(data: &Path) -> (Command, u16) {
        let [client, peers] = free_ports().map(|port| (port, format!("http://127.0.0.1:{port}")));
        let mut command = Command::new(peer("etcd"));
        command
            .args(["--name", "m1", "--logger", "zap", "--data-dir"])
            .arg(data)
            .args(["--listen-client-urls", &client.1, "--advertise-client-urls", &client.1])
            .args(["--listen-peer-urls", &peers.1, "--initial-advertise-peer-urls", &peers.1])
            .args(["--initial-cluster", &format!("m1={}", peers.1)])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        (command, client.0)
    }

    /// Starts it and waits until it serves.
    fn start(data: &Path) -> Etcd {
        let (mut command, port) = Self::command(data);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        loop {
            let from = log.len();
            if lines.read_line(&mut log).unwrap() == 0 {
                panic!("etcd ended: {:?}\n{log}", child.wait());
            }
            if log[from..].contains("serving client traffic insecurely") {
                break;
            }
        }
        // It must not block on a full pipe.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Etcd { child, port }
    }

    fn ctl<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = Command::new(peer("etcdctl"))
            .arg(format!("--endpoints=127.0.0.1:{}", self.port))
            .args(["--command-timeout=30s", "--dial-timeout=10s"])
            .args(args)
            .env_clear()
            .output()
            .unwrap();
        stdout(output)
    }

    fn put(&self, key: &str, value: &str) {
        assert_eq!(self.ctl(["put", key, value]).trim(), "OK");
    }

    fn get(&self, key: &str) -> String {
        self.ctl(["get", "--print-value-only", key]).trim_end().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in good order, so that its database holds everything.
    fn stop(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stdout(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A data directory in which a real member has put `k1=v1` to `k20=v20` and one large value.
fn written_by_etcd() -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let etcd = Etcd::start(&data);
    for number in 1..=20 {
        etcd.put(&format!("k{number}"), &format!("v{number}"));
    }
    etcd.put("large", &"x".repeat(100_000));
    etcd.stop();
    let wal = data.join("member/wal");
    (home, wal)
}

fn files() -> Arc<OsFiles> {
    Arc::new(OsFiles)
}

fn dump(wal: &Path) -> Vec<DumpRecord> {
    let (records, end) = read_all(&OsFiles, wal).unwrap();
    assert!(matches!(end, DumpEnd::Clean), "{end:?}");
    records
}

fn keys(entries: &[Entry]) -> Vec<String> {
    let request = |entry: &Entry| match entry.r#type() as i32 {
        0 => InternalRaftRequest::decode(entry.data.clone()?).ok()?.put,
        _ => None,
    };
    let puts = entries.iter().filter_map(request);
    puts.map(|put| String::from_utf8(put.key.to_vec()).unwrap()).collect()
}

/// Writes the records of a log anew, one call each.
fn rewrite(records: &[DumpRecord], to: &Path, options: Options) -> Wal {
    let metadata = records.iter().find_map(|record| match &record.value {
        DumpValue::Metadata(metadata) => {
            Some(Metadata { node_id: metadata.node_id(), cluster_id: metadata.cluster_id() })
        }
        _ => None,
    });
    let mut wal = Wal::create(files(), to, metadata.unwrap(), options).unwrap();
    for record in records {
        match &record.value {
            DumpValue::Entry(entry) => {
                wal.append(std::slice::from_ref(entry), None, true).unwrap();
            }
            DumpValue::State(state) => wal.append(&[], Some(state), false).unwrap(),
            DumpValue::Snapshot(mark) if mark.index() > 0 => wal.save_snapshot(mark).unwrap(),
            _ => {}
        }
    }
    wal
}

#[test]
fn we_read_what_etcd_wrote_and_write_the_same_bytes() {
    let (home, wal) = written_by_etcd();
    let records = dump(&wal);
    let (mut ours, found) = Wal::open(files(), &wal, Options::default()).unwrap();
    ours.close().unwrap();
    assert_eq!(found.repair, None);
    assert_eq!(found.snapshot.index(), 0);
    let indices: Vec<u64> = found.entries.iter().map(Entry::index).collect();
    assert_eq!(indices, (1..=found.entries.len() as u64).collect::<Vec<_>>());
    let mut expected: Vec<String> = (1..=20).map(|number| format!("k{number}")).collect();
    expected.push("large".to_owned());
    assert_eq!(keys(&found.entries), expected);

    let again = home.path().join("again");
    rewrite(&records, &again, Options::default()).close().unwrap();
    let name = "0000000000000000-0000000000000000.wal";
    let theirs = std::fs::read(wal.join(name)).unwrap();
    let ours = std::fs::read(again.join(name)).unwrap();
    assert_eq!(ours.len(), 64_000_000);
    let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
    assert_eq!((ours.len(), differs), (theirs.len(), None));
}

#[test]
fn etcd_goes_on_with_what_we_wrote() {
    let (home, wal) = written_by_etcd();
    // Many small segments instead of one.
    let small = Options { segment_bytes: 1024, ..Options::default() };
    let again = home.path().join("again");
    let mut ours = rewrite(&dump(&wal), &again, small.clone());
    let (_, found) = {
        ours.close().unwrap();
        Wal::open(files(), &again, small.clone()).unwrap()
    };
    // A mark, and nothing left below it.
    let mark_at = found.entries.len() as u64 - 4;
    let mark = walpb::Snapshot {
        index: Some(mark_at),
        term: found.entries[mark_at as usize - 1].term,
        conf_state: Some(ConfState {
            voters: vec![found.metadata.node_id],
            auto_leave: Some(false),
            ..ConfState::default()
        }),
    };
    // What is released is gone when the call returns.
    let at_once = Options { max_wals: 1, prepare_ahead: false, ..small.clone() };
    let (mut ours, _) = Wal::open(files(), &again, at_once).unwrap();
    let segments = |dir: &Path| {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".wal")).count()
    };
    assert!(segments(&again) > 3);
    let before = segments(&again);
    ours.save_snapshot(&mark).unwrap();
    ours.release_before(mark_at).unwrap();
    assert!(segments(&again) < before);

    // An entry that only we know, committed.
    let put = mainstay_proto::etcdserverpb::PutRequest {
        key: "ours".into(),
        value: "written".into(),
        ..Default::default()
    };
    let header = mainstay_proto::etcdserverpb::RequestHeader { id: 7, ..Default::default() };
    let request =
        InternalRaftRequest { header: Some(header), put: Some(put), ..Default::default() };
    let last = found.entries.last().unwrap();
    let entry = Entry {
        term: last.term,
        index: Some(last.index() + 1),
        data: Some(request.encode_to_vec().into()),
        ..Entry::default()
    };
    let state = HardState { commit: entry.index, ..found.hard_state };
    ours.append(&[entry], Some(&state), true).unwrap();

    std::fs::remove_dir_all(&wal).unwrap();
    let copy = |to: &Path| {
        std::fs::create_dir(to).unwrap();
        for file in std::fs::read_dir(&again).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    ours.close().unwrap();
    copy(&wal);

    let dump_logs = |how: &str| {
        let mut command = Command::new(peer("etcd-dump-logs"));
        let output = command.arg(how).arg(home.path().join("data")).env_clear().output();
        stdout(output.unwrap())
    };
    let raw = dump_logs("--raw");
    assert!(raw.contains(&format!("Snapshot: index:{mark_at}")), "{raw}");
    assert!(raw.contains("EOF: All entries were processed."), "{raw}");
    let listing = dump_logs(&format!("--start-index={}", mark_at + 1));
    assert!(listing.contains("key:\"ours\" value:\"written\""), "{listing}");

    let etcd = Etcd::start(&home.path().join("data"));
    assert_eq!(etcd.get("ours"), "written");
    assert_eq!(etcd.get("k20"), "v20");
    etcd.put("theirs", "too");
    // While it runs we stay out.
    let refused = Wal::open(files(), &wal, small.clone()).err();
    assert!(matches!(refused, Some(OpenError::Locked { .. })), "{refused:?}");
    etcd.kill();

    let (ours, found) = Wal::open(files(), &wal, small).unwrap();
    assert_eq!(found.snapshot, mark);
    assert!(keys(&found.entries).ends_with(&["ours".to_owned(), "theirs".to_owned()]));
    // And while we hold it, it stays out.
    let (mut command, _) = Etcd::command(&home.path().join("data"));
    let mut child = command.spawn().unwrap();
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(log.contains("failed to open WAL"), "{log}");
    drop(ours);
}

#[test]
fn a_torn_tail_is_cut_where_etcd_cuts_it() {
    let (home, wal) = written_by_etcd();
    let records = dump(&wal);
    let large = records
        .iter()
        .find(|record| {
            matches!(&record.value, DumpValue::Entry(entry)
            if entry.data.as_ref().is_some_and(|data| data.len() > 100_000))
        })
        .unwrap();
    // Of the last batch that counts, the large value, one sector is missing and nothing follows.
    let mut bytes = std::fs::read(&large.file).unwrap();
    let middle = large.offset as usize / 512 * 512 + 50 * 512;
    bytes[middle..middle + 512].fill(0);
    bytes[large.offset as usize + 100_500..].fill(0);
    std::fs::write(&large.file, &bytes).unwrap();

    let copy = home.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    let name = large.file.file_name().unwrap();
    std::fs::copy(&large.file, copy.join(name)).unwrap();
    let (mut ours, found) = Wal::open(files(), &copy, Options::default()).unwrap();
    ours.close().unwrap();
    let repair = found.repair.unwrap();
    assert_eq!(repair.offset, large.offset);
    assert_eq!(std::fs::read(&repair.kept_as).unwrap(), bytes);

    // The database knows more than the log now, which etcd does not accept: give it none.
    let database = home.path().join("data/member/snap/db");
    let without = home.path().join("db");
    std::fs::rename(&database, without).unwrap();
    let (mut command, _) = Etcd::command(&home.path().join("data"));
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let repaired = lines.map(Result::unwrap).any(|line| line.contains("\"repaired\""));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(repaired);
    let theirs = std::fs::read(&large.file).unwrap();
    let cut = theirs.len().min(theirs.iter().rposition(|&byte| byte != 0).unwrap() + 1);
    let ours = std::fs::read(copy.join(name)).unwrap();
    let shared = cut.min(large.offset as usize);
    assert_eq!(ours[..shared], theirs[..shared]);
    assert!(ours[large.offset as usize..].iter().all(|&byte| byte == 0));
    let broken = large.file.with_extension("wal.broken");
    assert_eq!(std::fs::read(broken).unwrap(), bytes);
}
