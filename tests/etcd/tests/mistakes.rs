//! Mistakes of newcomers: each must be answered within seconds by a message that names the cause
//! and says what to do, and by an exit code that a script can see.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_etcd_tests::member::{
    Cluster, Member, Program, TempDir, free_port, mainstay_binary, peers_dir,
};
use mainstay_etcd_tests::ops::settle;
use rustix::process::{Pid, Signal, kill_process};

/// Within what time a mistake must be answered.
const SOON: Duration = Duration::from_secs(10);

/// A member that is about to be started wrongly.
struct Start {
    dir: TempDir,
    client: String,
    peer: String,
    flags: Vec<String>,
}

/// What came of it.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    output: String,
}

fn url() -> String {
    format!("http://127.0.0.1:{}", free_port().unwrap())
}

/// Waits until a member says that it serves.
fn wait_ready(log: &Path) {
    let start = Instant::now();
    loop {
        let said = std::fs::read_to_string(log).unwrap();
        if said.contains("ready to serve client requests") {
            return;
        }
        assert!(start.elapsed() < SOON, "{said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Start {
    /// All flags that a single member needs, right.
    fn new() -> Self {
        let (client, peer) = (url(), url());
        let dir = tempfile::tempdir().unwrap();
        let flags = [
            ("name", "one".to_string()),
            ("data-dir", dir.path().join("data").display().to_string()),
            ("listen-client-urls", client.clone()),
            ("advertise-client-urls", client.clone()),
            ("listen-peer-urls", peer.clone()),
            ("initial-advertise-peer-urls", peer.clone()),
            ("initial-cluster", format!("one={peer}")),
        ];
        let flags = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        Start { dir, client, peer, flags }
    }

    /// Gives a flag another value.
    fn set(&mut self, flag: &str, value: &str) -> &mut Self {
        self.without(flag).flags.push(format!("--{flag}={value}"));
        self
    }

    fn without(&mut self, flag: &str) -> &mut Self {
        let start = format!("--{flag}=");
        self.flags.retain(|given| !given.starts_with(&start));
        self
    }

    fn plain(&mut self, argument: &str) -> &mut Self {
        self.flags.push(argument.to_string());
        self
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn spawn(&self, log: &Path) -> Child {
        let output = File::create(log).unwrap();
        Command::new(mainstay_binary().unwrap())
            .arg("etcd")
            .args(&self.flags)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap()
    }

    /// Runs it until it ends, or until it has said something; kills it then.
    fn run_until(&self, said: &[&str]) -> Ended {
        let log = self.dir.path().join("output");
        let mut child = self.spawn(&log);
        let start = Instant::now();
        let mut code = None;
        let mut output = String::new();
        while start.elapsed() < SOON {
            let ended = child.try_wait().unwrap();
            output = std::fs::read_to_string(&log).unwrap();
            if let Some(status) = ended {
                code = status.code();
                break;
            }
            if !said.is_empty() && said.iter().all(|text| output.contains(text)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
        assert!(!output.contains("panicked"), "{output}");
        // Lines are JSON.
        let output = output.replace("\\\"", "\"");
        Ended { code, output }
    }

    /// Runs it to its end.
    fn run(&self) -> Ended {
        let ended = self.run_until(&[]);
        assert!(ended.code.is_some(), "still runs after {SOON:?}:\n{}", ended.output);
        ended
    }

    /// Makes data that later starts find, and ends in order.
    fn found(&self) {
        let log = self.dir.path().join("first");
        let mut child = self.spawn(&log);
        wait_ready(&log);
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        child.wait().unwrap();
    }

    fn segment(&self) -> PathBuf {
        let files = std::fs::read_dir(self.data().join("member/wal")).unwrap();
        let mut paths = files.map(|file| file.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|kind| kind == "wal")).unwrap()
    }
}

impl Ended {
    /// The exit code, and texts that the output must have.
    fn says(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.output);
        self.mentions(texts);
    }

    fn mentions(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.output.contains(text), "{text:?} is missing in:\n{}", self.output);
        }
    }
}

#[test]
fn a_url_without_a_scheme() {
    let mut start = Start::new();
    let ended = start.set("listen-client-urls", "127.0.0.1:2379").run();
    ended.says(2, &["listen-client-urls", "URL scheme must be http, https, unix, or unixs"]);
}

#[test]
fn a_url_with_a_wrong_scheme() {
    let mut start = Start::new();
    let ended = start.set("listen-peer-urls", "tcp://127.0.0.1:2380").run();
    ended.says(2, &["listen-peer-urls", "URL scheme must be http, https, unix, or unixs"]);
}

#[test]
fn https_without_a_certificate() {
    let mut start = Start::new();
    let url = start.client.replace("http:", "https:");
    start.set("listen-client-urls", &url).set("advertise-client-urls", &url);
    let key_pair = "TLS key/cert (--cert-file, --key-file) must be provided for client url";
    start.run().says(1, &[key_pair, &url, "with HTTPS scheme"]);
    let mut start = Start::new();
    let url = format!("https://127.0.0.1:{}", free_port().unwrap());
    start.set("listen-peer-urls", &url);
    start.run().says(1, &[&url, "KeyFile and CertFile are not presented", "--peer-cert-file"]);
}

#[test]
fn tls_flags_that_do_not_fit() {
    let secure = || {
        let mut start = Start::new();
        let url = start.client.replace("http:", "https:");
        start.set("listen-client-urls", &url).set("advertise-client-urls", &url);
        start
    };
    secure()
        .set("cert-file", "/nowhere/cert.pem")
        .set("key-file", "/nowhere/key.pem")
        .run()
        .says(1, &["/nowhere/cert.pem", "No such file"]);
    secure()
        .set("cert-file", "/nowhere/cert.pem")
        .run()
        .says(1, &["KeyFile and CertFile must both be present[key: , cert: /nowhere/cert.pem]"]);
    secure()
        .set("cipher-suites", "TLS_NONE")
        .run()
        .says(1, &["unexpected TLS cipher suite \"TLS_NONE\""]);
    secure()
        .set("tls-min-version", "TLS1.3")
        .set("tls-max-version", "TLS1.2")
        .run()
        .says(1, &["min version (TLS1.3) is greater than max version (TLS1.2)"]);
}

#[test]
fn a_host_name_to_listen_on() {
    let mut start = Start::new();
    let ended = start.set("listen-client-urls", "http://example.com:2379").run();
    ended.says(1, &["expected IP in URL for binding (http://example.com:2379)"]);
}

#[test]
fn a_port_that_is_taken() {
    let mut start = Start::new();
    let port = free_port().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let url = format!("http://{address}");
    start.set("listen-client-urls", &url).set("advertise-client-urls", &url);
    start.run().says(1, &[&address, "ddress already in use", "choose another port"]);
    assert!(!start.data().exists(), "nothing is written before the ports are known to be free");
    let mut start = Start::new();
    start.set("listen-peer-urls", &url);
    start.run().says(1, &[&address, "ddress already in use", "choose another port"]);
}

#[test]
fn a_data_directory_that_cannot_be_written() {
    let mut start = Start::new();
    start.set("data-dir", "/proc/mainstay");
    start.run().says(1, &["data directory", "/proc/mainstay", "choose another"]);
    let start = Start::new();
    File::create(start.data()).unwrap();
    let path = start.data().display().to_string();
    start.run().says(1, &["data directory", &path, "is a regular file", "move it away"]);
}

#[test]
fn a_flag_that_does_not_exist() {
    let mut start = Start::new();
    let ended = start.plain("--listen-client-url=http://127.0.0.1:2379").run();
    ended.says(
        2,
        &["flag provided but not defined: -listen-client-url", "--listen-client-urls", "--help"],
    );
    let mut start = Start::new();
    let ended = start.plain("--inital-cluster=one=http://127.0.0.1:2380").run();
    ended.says(2, &["-inital-cluster (did you mean --initial-cluster?)"]);
    let mut start = Start::new();
    start.plain("--colour").run().says(2, &["-colour", "`etcd --help` lists all flags"]);
}

#[test]
fn a_value_that_is_none() {
    let mut start = Start::new();
    let ended = start.set("snapshot-count", "lots").run();
    ended.says(2, &["\"lots\"", "snapshot-count"]);
    let mut start = Start::new();
    let ended = start.set("initial-cluster-state", "maybe").run();
    ended.says(2, &["\"maybe\"", "initial-cluster-state", "new", "existing"]);
    let mut start = Start::new();
    start.plain("serve").run().says(1, &["\"serve\" is not a valid flag"]);
}

/// Real etcd is asked for its exit code.
#[test]
fn exit_codes_are_those_of_etcd() {
    let mistakes: [&[&str]; 16] = [
        &["--listen-peer-urls=tcp://127.0.0.1:2380"],
        &["--listen-metrics-urls=http://127.0.0.1"],
        &["--initial-advertise-peer-urls=http://localhost"],
        &["--advertise-client-urls=http://localhost:1/path"],
        &["--listen-client-urls=http://127.0.0.1:2379"],
        &["--initial-cluster=x"],
        &["--initial-cluster-state=maybe"],
        &["--heartbeat-interval=500"],
        &["--snapshot-count=lots"],
        &["--snapshot-count"],
        &["--colour"],
        &["serve"],
        &["--auto-compaction-mode=foo"],
        &["--log-format=xml"],
        &["--feature-gates=Foo=true"],
        &["--name="],
    ];
    let etcd = peers_dir().unwrap().join("etcd");
    for flags in mistakes {
        let run = |mut program: Command| {
            let dir = tempfile::tempdir().unwrap();
            program.args(flags).current_dir(dir.path()).env_clear().output().unwrap().status.code()
        };
        let mut ours = Command::new(mainstay_binary().unwrap());
        ours.arg("etcd");
        let ours = run(ours);
        assert!(matches!(ours, Some(1 | 2)), "{flags:?}: {ours:?}");
        assert_eq!(ours, run(Command::new(&etcd)), "{flags:?}");
    }
}

#[test]
fn a_config_file_that_is_not_there() {
    let mut start = Start::new();
    let path = start.dir.path().join("none.yaml").display().to_string();
    start.flags = vec![format!("--config-file={path}")];
    start.run().says(1, &[&path, "No such file"]);
}

#[test]
fn a_name_that_is_not_in_the_list() {
    let mut start = Start::new();
    let ended = start.set("name", "other").run();
    ended.says(1, &["couldn't find local name \"other\" in the initial cluster", "--name"]);
}

#[test]
fn peer_urls_that_contradict_the_list() {
    let mut start = Start::new();
    let (right, wrong) = (start.peer.clone(), url());
    start.set("initial-advertise-peer-urls", &wrong);
    start.run().says(1, &["--initial-cluster", "--initial-advertise-peer-urls", &right, &wrong]);
}

#[test]
fn no_urls_to_advertise() {
    let mut start = Start::new();
    let ended = start.without("advertise-client-urls").run();
    ended.says(
        1,
        &["--advertise-client-urls is required when --listen-client-urls is set explicitly"],
    );
}

#[test]
fn an_election_timeout_that_is_too_short() {
    let mut start = Start::new();
    start.set("heartbeat-interval", "500").set("election-timeout", "1000");
    start.run().says(1, &["--election-timeout[1000ms]", "--heartbeat-interval[500ms]"]);
}

#[test]
fn one_of_three_members_alone() {
    let mut start = Start::new();
    let (two, three) = (url(), url());
    let list = format!("one={},two={two},three={three}", start.peer);
    start.set("initial-cluster", &list);
    let ended = start.run_until(&["waiting-for"]);
    assert_eq!(ended.code, None, "it waits for the others: {}", ended.output);
    let line = ended.output.lines().find(|line| line.contains("waiting-for"));
    let line = line.unwrap_or_else(|| panic!("nobody is waited for: {}", ended.output));
    let said: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(said["level"], "warn", "{line}");
    let text = |key: &str| said[key].as_str().unwrap().to_owned();
    assert!(text("msg").contains("2 of 3 voting members are needed to elect a leader"), "{line}");
    assert_eq!(
        (&said["needed"], &said["voters"], &said["reached"]),
        (&2.into(), &3.into(), &1.into())
    );
    // In any order, with their ids.
    let waiting_for = text("waiting-for");
    for (name, url) in [("two", &two), ("three", &three)] {
        let member = waiting_for.split("), ").find(|member| member.starts_with(name));
        let member = member.unwrap_or_else(|| panic!("{name} is missing in: {line}"));
        let (id, urls) = member.split_once(" (id ").unwrap().1.split_once(", ").unwrap();
        assert!(u64::from_str_radix(id, 16).is_ok(), "{line}");
        assert_eq!(urls.trim_end_matches(')'), url.as_str());
    }
    assert!(!waiting_for.contains(&start.peer), "{line}");
}

#[test]
fn joining_a_cluster_that_is_not_there() {
    let mut start = Start::new();
    start.set("initial-cluster-state", "existing");
    start.run().says(1, &["cannot fetch cluster info", "running member", "--initial-cluster"]);
}

#[test]
fn one_data_directory_for_two_members() {
    let start = Start::new();
    let log = start.dir.path().join("first");
    let mut first = start.spawn(&log);
    wait_ready(&log);
    let mut second = Start::new();
    let data = start.data().display().to_string();
    second.set("data-dir", &data);
    let ended = second.run();
    let still_runs = first.try_wait().unwrap().is_none();
    let _ = first.kill();
    let _ = first.wait();
    ended.says(1, &[&data, "in use by another process", "stop"]);
    assert!(still_runs, "{}", std::fs::read_to_string(&log).unwrap());
}

#[test]
fn the_data_directory_of_another_cluster() {
    let mut start = Start::new();
    start.found();
    // As in etcd, what was founded counts, and the flags do not.
    start.set("initial-cluster-token", "another");
    let ready = "ready to serve client requests";
    let ended = start.run_until(&[ready]);
    ended.mentions(&[
        ready,
        "data directory belongs to another cluster",
        "--initial-cluster-token",
    ]);
}

#[test]
fn the_data_directory_of_real_etcd() {
    let start = Start::new();
    let snap = start.data().join("member/snap");
    std::fs::create_dir_all(&snap).unwrap();
    File::create(snap.join("db")).unwrap().write_all(&[0; 8192]).unwrap();
    let path = snap.join("db").display().to_string();
    start.run().says(1, &[&path, "etcd", "empty data directory"]);
}

#[test]
fn a_log_that_is_damaged() {
    let start = Start::new();
    start.found();
    let segment = start.segment();
    let mut bytes = Vec::new();
    File::open(&segment).unwrap().read_to_end(&mut bytes).unwrap();
    bytes[60..67].copy_from_slice(b"garbage");
    std::fs::write(&segment, bytes).unwrap();
    let path = segment.display().to_string();
    start.run().says(1, &[&path, "damaged at offset", "etcdctl member remove", "snapshot restore"]);
}

#[test]
fn a_log_that_is_cut_off() {
    let start = Start::new();
    start.found();
    let segment = start.segment();
    File::options().write(true).open(&segment).unwrap().set_len(100).unwrap();
    let path = segment.display().to_string();
    let data = start.data().display().to_string();
    let ended = start.run();
    ended.says(1, &[&path, "the log has lost its end", "etcdctl member remove", &data]);
    assert_eq!(ended.output.matches("cut the torn tail").count(), 1, "{}", ended.output);
}

#[test]
fn a_log_that_is_gone_after_a_crash() {
    let start = Start::new();
    let log = start.dir.path().join("first");
    let mut child = start.spawn(&log);
    wait_ready(&log);
    child.kill().unwrap();
    child.wait().unwrap();
    let log = start.data().join("member/wal");
    std::fs::remove_dir_all(&log).unwrap();
    let log = log.display().to_string();
    let engine = start.data().join("member/mainstay").display().to_string();
    for _ in 0..2 {
        let ended = start.run();
        ended.says(1, &[&log, &engine, "lost its log", "etcdctl member remove", "--wal-dir"]);
    }
}

#[test]
fn a_log_that_is_gone() {
    let start = Start::new();
    start.found();
    let log = start.data().join("member/wal");
    std::fs::remove_dir_all(&log).unwrap();
    let path = log.display().to_string();
    start.run().says(1, &[&path, "lost its log", "etcdctl member remove", "--wal-dir"]);
}

#[test]
fn a_log_whose_end_was_cut_off() {
    let start = Start::new();
    start.found();
    let segment = start.segment();
    let file = std::fs::File::options().write(true).open(&segment).unwrap();
    file.set_len(41_000_000).unwrap();
    let log = start.dir.path().join("again");
    let mut child = start.spawn(&log);
    wait_ready(&log);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("shorter than it was made"), "{said}");
    assert!(said.contains(&segment.display().to_string()), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_another_token() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["one", "two", "stranger"];
    let mut members: Vec<Member> = names
        .iter()
        .map(|name| Member::new(Program::Mainstay, name, dir.path()).unwrap())
        .collect();
    let list: Vec<String> =
        members.iter().map(|member| format!("{}={}", member.name, member.peer_url)).collect();
    for (member, token) in members.iter_mut().zip(["ours", "ours", "theirs"]) {
        let flags = [format!("--initial-cluster={}", list.join(","))];
        let token = [format!("--initial-cluster-token={token}")];
        member.set_arguments([flags, token].concat());
        member.spawn().unwrap();
    }
    members[0].wait_ready(0).await.unwrap();
    members[1].wait_ready(0).await.unwrap();
    let mut cluster = Cluster { members, dir };
    settle(&cluster.members[..2]).await.unwrap();
    let deadline = Instant::now() + SOON;
    let stranger = cluster.members[2].log_path.clone();
    loop {
        let log = std::fs::read_to_string(&stranger).unwrap();
        if log.contains("cluster ID mismatch") && log.contains("--initial-cluster-token") {
            break;
        }
        assert!(Instant::now() < deadline, "{log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(cluster.members.iter_mut().take(2).all(Member::is_running));
}

#[test]
fn subcommands_of_etcd_that_do_not_exist() {
    for words in [&["gateway", "start"][..], &["gateway"], &["grpc-proxy", "start", "--help"]] {
        let output =
            Command::new(mainstay_binary().unwrap()).arg("etcd").args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        for word in [words[0], "--endpoints", "HAProxy", "Envoy"] {
            assert!(said.contains(word), "{said}");
        }
    }
}
