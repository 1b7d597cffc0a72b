//! Real etcd and etcdutl read what we write, and we read what they write.
//!
//! Needs `etcd`, `etcdctl` and `etcdutl` in the directory `MAINSTAY_PEERS`; `make test` builds them
//! and sets it. `etcdutl snapshot status` runs bbolt's own check of the whole file first.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::Content;
use mainstay_formats::bbolt::{PAGE_SIZE, Reader};
use mainstay_formats::snapshot::{self, Status};
use mainstay_proto::mvccpb;
use prost::Message;

const BUCKETS: [&str; 10] = [
    "alarm",
    "auth",
    "authRoles",
    "authUsers",
    "cluster",
    "key",
    "lease",
    "members",
    "members_removed",
    "meta",
];

fn peer(program: &str) -> Command {
    let dir = std::env::var_os("MAINSTAY_PEERS").unwrap_or_else(|| {
        panic!("MAINSTAY_PEERS is not set: run `make test`, which builds {program} and sets it")
    });
    Command::new(PathBuf::from(dir).join(program))
}

/// Runs a program that has to succeed and returns what it wrote.
fn run(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("its input");
    let output = child.wait_with_output().expect("its output");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

fn revision(main: i64, sub: i64) -> Vec<u8> {
    let mut key = main.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend_from_slice(&sub.to_be_bytes());
    key
}

/// A number with zeros in front of it.
fn padded(number: i64, width: usize) -> String {
    let number = number.to_string();
    "0".repeat(width.saturating_sub(number.len())) + &number
}

/// What etcd's db holds after `revisions` puts on `keys` keys, each with a value of `size(main)`
/// bytes, and every 50th key deleted at the end.
fn state(revisions: i64, keys: i64, size: impl Fn(i64) -> usize) -> Content {
    let mut content = Content::default();
    for bucket in BUCKETS {
        content.0.entry(bucket.to_owned()).or_default();
    }
    let mut versions = BTreeMap::new();
    for main in 2..2 + revisions {
        let key = format!("key {:06}", main % keys);
        let (create_revision, version) = versions.entry(key.clone()).or_insert((main, 0));
        *version += 1;
        let row = mvccpb::KeyValue {
            key: key.into_bytes().into(),
            create_revision: *create_revision,
            mod_revision: main,
            version: *version,
            value: padded(main, size(main)).into_bytes().into(),
            lease: 0,
        };
        content.put("key", revision(main, 0), row.encode_to_vec());
    }
    let gone = versions.keys().step_by(50).cloned().collect::<Vec<_>>();
    for (sub, key) in gone.into_iter().enumerate() {
        let row = mvccpb::KeyValue { key: key.into_bytes().into(), ..Default::default() };
        let mut revision = revision(2 + revisions, sub as i64);
        revision.push(b't');
        content.put("key", revision, row.encode_to_vec());
    }
    content.put("meta", "consistent_index", 77u64.to_be_bytes());
    content.put("meta", "term", 3u64.to_be_bytes());
    content.put("meta", "confState", r#"{"voters":[10276657743932975437],"auto_leave":false}"#);
    content.put("meta", "storageVersion", "3.7.0");
    content.put("cluster", "clusterVersion", "3.7.0");
    content
}

/// What `etcdutl snapshot status` says, after bbolt's check.
fn etcdutl_status(path: &Path) -> Status {
    let mut command = peer("etcdutl");
    let text = run(command.args(["snapshot", "status", "-w", "json"]).arg(path), "");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let number = |field: &str| json[field].as_u64().expect("a number");
    Status {
        hash: number("hash") as u32,
        revision: number("revision") as i64,
        total_key: number("totalKey"),
        total_size: number("totalSize"),
        version: json["version"].as_str().unwrap_or_default().to_owned(),
    }
}

/// What we say about the same file, after our own check.
fn our_status(path: &Path) -> Status {
    let file = File::open(path).expect("the file");
    let reader = Reader::open(file).expect("a bbolt file");
    snapshot::status(&reader).expect("a whole file").0
}

/// Writes a snapshot file: the bbolt file and its hash.
fn write_snapshot(content: &Content, path: &Path) {
    let mut bytes = content.file();
    let mut hasher = snapshot::Hasher::new();
    hasher.update(&bytes);
    bytes.extend_from_slice(&hasher.finish());
    std::fs::write(path, bytes).expect("a writable directory");
}

/// A real etcd on loopback ports, killed when dropped.
struct Etcd {
    child: Child,
    url: String,
}

impl Etcd {
    /// Starts it and waits until it says that it serves.
    fn start(data_dir: &Path, peer_url: &str) -> Etcd {
        let url = free_url();
        let mut child = peer("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(data_dir)
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url])
            .args(["--initial-cluster", &format!("one={peer_url}")])
            .args(["--unsafe-no-fsync"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("etcd starts");
        let mut log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut seen = Vec::new();
        loop {
            let Some(Ok(line)) = log.next() else {
                panic!("etcd ended before it served:\n{}", seen.join("\n"))
            };
            if line.contains("ready to serve client requests") {
                break;
            }
            seen.push(line);
        }
        // A full pipe would stop etcd.
        std::thread::spawn(move || log.for_each(drop));
        Etcd { child, url }
    }

    fn ctl(&self, arguments: &[&str], input: &str) -> String {
        run(peer("etcdctl").args(["--endpoints", &self.url]).args(arguments), input)
    }

    /// All keys and values.
    fn all(&self) -> BTreeMap<String, String> {
        let text = self.ctl(&["get", "", "--from-key"], "");
        let lines: Vec<&str> = text.lines().collect();
        lines.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
    }

    /// Ends it as an operator does, so that everything is in its db.
    fn stop(mut self) {
        let id = self.child.id().to_string();
        run(Command::new("kill").args(["-TERM", &id]), "");
        self.child.wait().expect("etcd ends");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // Fails when it has ended already, which is the aim.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("its address"))
}

#[test]
fn bbolt_finds_our_files_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("db");
    let mut shapes = vec![
        state(0, 1, |_| 1),
        state(1, 1, |_| 1),
        state(30, 10, |_| 10),
        state(20_000, 300, |_| 100),
        state(3000, 3000, |main| main as usize % 3000),
        state(40, 7, |main| if main % 3 == 0 { 700_000 } else { 20 }),
    ];
    // Many buckets, so that the tree of buckets has branches too, some of them empty.
    let mut many = state(10, 10, |_| 10);
    for number in 0..500 {
        many.0.entry(format!("other {number:04}")).or_default();
        if number % 3 == 0 {
            many.put(&format!("other {number:04}"), "row", vec![b'x'; number * 7]);
        }
    }
    // Keys so long that branches go on in overflow pages.
    for number in 0..100u32 {
        many.put("other 0001", format!("{number:0>32768}"), "long");
    }
    shapes.push(many);
    for (number, content) in shapes.iter().enumerate() {
        let file = content.file();
        std::fs::write(&path, &file).unwrap();
        let found = etcdutl_status(&path);
        assert_eq!(found.total_size, file.len() as u64, "shape {number}");
        assert_eq!(found, our_status(&path), "shape {number}");
    }
}

#[test]
fn etcd_lives_on_our_pages_and_we_read_its() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let content = state(8000, 400, |main| if main % 100 == 0 { 9000 } else { 150 });
    write_snapshot(&content, &path);
    let data_dir = dir.path().join("data");
    let peer_url = free_url();
    run(
        peer("etcdutl")
            .args(["snapshot", "restore", "--name", "one"])
            .args(["--initial-cluster", &format!("one={peer_url}")])
            .args(["--initial-advertise-peer-urls", &peer_url, "--data-dir"])
            .arg(&data_dir)
            .arg(&path),
        "",
    );
    let etcd = Etcd::start(&data_dir, &peer_url);
    let all = etcd.all();
    assert_eq!(all.len(), 400 - 8);
    for main in 8002 - 400..8002 {
        let key = format!("key {:06}", main % 400);
        let number = all.get(&key).map(|value| value.trim_start_matches('0').to_owned());
        assert!(number.is_none_or(|number| number == main.to_string()), "{key} at {main}");
    }

    // It changes our pages: appends, and deletes so many rows that pages are merged.
    etcd.ctl(&["compact", "8002", "--physical"], "");
    for round in 0..4 {
        let mut script = String::from("\n");
        for number in 0..100 {
            let width = if number == 50 { 30_000 } else { 100 };
            script += &format!("put new{number:03} {round:0>width$}\n");
        }
        etcd.ctl(&["txn"], &(script + "\n\n"));
    }
    let all = etcd.all();
    assert_eq!(all.len(), 400 - 8 + 100);

    let saved = dir.path().join("saved");
    etcd.ctl(&["snapshot", "save", saved.to_str().unwrap()], "");
    let size = std::fs::metadata(&saved).unwrap().len();
    let saved_file = File::open(&saved).unwrap();
    assert_eq!(snapshot::verify(&saved_file).unwrap(), size - 32);
    assert_eq!(size % PAGE_SIZE, 32);
    assert_eq!(etcdutl_status(&saved), our_status(&saved));
    etcd.stop();

    let db = data_dir.join("member/snap/db");
    assert_eq!(etcdutl_status(&db), our_status(&db));
    let reader = Reader::open(File::open(&db).unwrap()).unwrap();
    let report = reader.check().unwrap();
    assert!(report.free > 0, "the compaction left free pages: {report:?}");
    let content = Content::read(&reader).unwrap();
    let mut found = BTreeMap::new();
    for (revision, value) in &content.0["key"] {
        let row = mvccpb::KeyValue::decode(value.as_slice()).unwrap();
        let key = String::from_utf8(row.key.to_vec()).unwrap();
        match revision.len() {
            17 => found.insert(key, String::from_utf8(row.value.to_vec()).unwrap()),
            _ => found.remove(&key),
        };
    }
    assert_eq!(found, all);

    // And back: what we read from it we write again, and it is the same to etcdutl.
    let again = dir.path().join("again");
    std::fs::write(&again, content.file()).unwrap();
    let (ours, theirs) = (etcdutl_status(&again), etcdutl_status(&db));
    assert_eq!((ours.hash, ours.total_key), (theirs.hash, theirs.total_key));
}
