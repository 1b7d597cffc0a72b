//! TLS of whole members: clusters of ours and mixed with real etcd, spoken to by real etcdctl and
//! curl, and what each refuses.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_etcd_tests::member::{Cluster, Member, Program, free_port, peers_dir};
use mainstay_test_pki::{Ca, Leaf};

/// Certificates of one test: a CA, one certificate for all members, and clients.
struct Pki {
    ca: Ca,
    client: (PathBuf, PathBuf),
}

impl Pki {
    fn new() -> Self {
        let ca = Ca::new("tests");
        ca.issue("member", Leaf { cn: "member", ..Leaf::default() });
        let client = ca.issue("client", Leaf { cn: "client", serial: 2, ..Leaf::default() });
        Pki { ca, client }
    }

    /// Flags of a member that asks everybody for a certificate.
    fn flags(&self) -> Vec<String> {
        let path = |name: &str| self.ca.path(name).display().to_string();
        let mut flags = Vec::new();
        for side in ["", "peer-"] {
            flags.push(format!("--{side}cert-file={}", path("member.pem")));
            flags.push(format!("--{side}key-file={}", path("member.key")));
            flags.push(format!("--{side}trusted-ca-file={}", self.ca.file.display()));
            flags.push(format!("--{side}client-cert-auth"));
        }
        flags
    }
}

fn run(command: &mut Command) -> (bool, String) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Real etcdctl with a client's certificate.
fn etcdctl(pki: &Pki, endpoint: &str) -> Command {
    let mut command = Command::new(peers_dir().unwrap().join("etcdctl"));
    command
        .args(["--endpoints", endpoint, "--command-timeout=10s", "--dial-timeout=5s"])
        .arg("--cacert")
        .arg(&pki.ca.file)
        .arg("--cert")
        .arg(&pki.client.0)
        .arg("--key")
        .arg(&pki.client.1);
    command
}

fn ctl(pki: &Pki, endpoint: &str, arguments: &[&str]) -> String {
    let (good, text) = run(etcdctl(pki, endpoint).args(arguments));
    assert!(good, "etcdctl {arguments:?} at {endpoint}: {text}");
    text
}

/// What curl says of a URL: its exit code, the HTTP status, and its complaint.
fn curl(url: &str, ca: &Path, client: Option<&(PathBuf, PathBuf)>, more: &[&str]) -> Curled {
    let mut command = Command::new("curl");
    command.args(["-sS", "-m", "10", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"]);
    command.arg("--cacert").arg(ca);
    if let Some((cert, key)) = client {
        command.arg("--cert").arg(cert).arg("--key").arg(key);
    }
    let output = command.args(more).arg(url).output().unwrap();
    Curled {
        code: output.status.code(),
        status: String::from_utf8_lossy(&output.stdout).into_owned(),
        // The library's place in its source varies.
        complaint: String::from_utf8_lossy(&output.stderr)
            .split(':')
            .next_back()
            .unwrap_or_default()
            .split(',')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned(),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Curled {
    code: Option<i32>,
    status: String,
    complaint: String,
}

impl Curled {
    fn is_served(&self) -> bool {
        self.code == Some(0) && self.status.starts_with("200")
    }
}

async fn single(program: Program, flags: Vec<String>) -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    Cluster::start_secure(dir, &[program], |_| flags.clone()).await.unwrap()
}

/// Puts through each member, reads through each, and moves the leader to each.
fn exercise(cluster: &Cluster, ctl: impl Fn(&str, &[&str]) -> String) {
    let urls = cluster.client_urls();
    for (at, url) in urls.iter().enumerate() {
        let value = format!("v{at}");
        ctl(url, &["put", "key", &value]);
        for other in &urls {
            assert_eq!(ctl(other, &["get", "key", "--print-value-only"]).trim(), value);
        }
    }
    let all = urls.join(",");
    let status = ctl(&all, &["endpoint", "status", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    for target in status.as_array().unwrap() {
        let id = target["Status"]["header"]["member_id"].as_u64().unwrap();
        let leader = ctl(&all, &["endpoint", "status", "-w", "json"]);
        let leader: serde_json::Value = serde_json::from_str(&leader).unwrap();
        if leader[0]["Status"]["leader"].as_u64() != Some(id) {
            ctl(&all, &["move-leader", &format!("{id:x}")]);
        }
        ctl(&urls[0], &["put", "led-by", &format!("{id:x}")]);
    }
    for url in &urls {
        ctl(url, &["get", "led-by"]);
    }
    let hashes = ctl(&all, &["endpoint", "hashkv", "-w", "json"]);
    let hashes: serde_json::Value = serde_json::from_str(&hashes).unwrap();
    let hash = |at: usize| hashes[at]["HashKV"]["hash"].as_u64().unwrap();
    assert!((1..urls.len()).all(|at| hash(at) == hash(0)), "{hashes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_ours_and_real_ones_are_one_cluster_over_mtls() {
    let pki = Pki::new();
    let dir = tempfile::tempdir().unwrap();
    let programs = [Program::Mainstay, Program::Etcd, Program::Mainstay];
    let cluster = Cluster::start_secure(dir, &programs, |_| pki.flags()).await.unwrap();
    exercise(&cluster, |url, arguments| ctl(&pki, url, arguments));
    let all = cluster.client_urls().join(",");
    let health = ctl(&pki, &all, &["endpoint", "health"]);
    assert_eq!(health.matches("is healthy").count(), 3, "{health}");
    for member in &cluster.members {
        let log = fs::read_to_string(&member.log_path).unwrap();
        assert!(!log.contains("rejected connection"), "{}: {log}", member.name);
        assert!(log.contains("serving client traffic securely"), "{}", member.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_members_make_for_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let programs = [Program::Mainstay, Program::Mainstay, Program::Etcd];
    let flags = ["--auto-tls", "--peer-auto-tls"].map(str::to_owned).to_vec();
    let cluster = Cluster::start_secure(dir, &programs, |_| flags.clone()).await.unwrap();
    exercise(&cluster, |url, arguments| {
        let mut command = Command::new(peers_dir().unwrap().join("etcdctl"));
        command.args(["--endpoints", url, "--insecure-transport=false"]);
        let (good, text) = run(command.arg("--insecure-skip-tls-verify").args(arguments));
        // etcdctl warns that it checks nothing.
        let answer: Vec<_> = text.lines().filter(|line| !line.contains("skip")).collect();
        assert!(good, "{arguments:?}: {text}");
        answer.join("\n")
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_and_how_equals_real_etcd() {
    let pki = Pki::new();
    let stranger = Ca::new("strangers");
    let strange = stranger.issue("strange", Leaf { cn: "strange", ..Leaf::default() });
    let expired =
        pki.ca.issue("expired", Leaf { cn: "x", serial: 3, expired: true, ..Leaf::default() });
    let server_only = pki.ca.issue(
        "server-only",
        Leaf {
            serial: 4,
            usages: vec![mainstay_test_pki::rcgen::ExtendedKeyUsagePurpose::ServerAuth],
            ..Leaf::default()
        },
    );
    let ours = single(Program::Mainstay, pki.flags()).await;
    let real = single(Program::Etcd, pki.flags()).await;
    let ask = |cluster: &Cluster, client: Option<&(PathBuf, PathBuf)>, more: &[&str]| {
        let url = format!("{}/version", cluster.members[0].client_url);
        // Real etcd closes without waiting for the request that curl sends meanwhile: then curl
        // fails to send (55) before it has read the alert.
        let mut asked = (0..50).map(|_| curl(&url, &pki.ca.file, client, more));
        asked.find(|curled| curled.code != Some(55)).unwrap()
    };
    for (what, client, more) in [
        ("the right one", Some(&pki.client), &[][..]),
        ("the right one, HTTP/1.1", Some(&pki.client), &["--http1.1"]),
        ("the right one, TLS 1.2", Some(&pki.client), &["--tls-max", "1.2"]),
        ("no certificate", None, &[]),
        ("of another CA", Some(&strange), &[]),
        ("of another CA, TLS 1.2", Some(&strange), &["--tls-max", "1.2"]),
        ("expired", Some(&expired), &[]),
        ("not for clients", Some(&server_only), &[]),
    ] {
        let (mine, theirs) = (ask(&ours, client, more), ask(&real, client, more));
        assert_eq!(mine, theirs, "{what}");
        assert_eq!(mine.is_served(), what.starts_with("the right one"), "{what}: {mine:?}");
    }
    // The server is not who it should be.
    for cluster in [&ours, &real] {
        let url = format!("{}/version", cluster.members[0].client_url);
        assert_eq!(curl(&url, &stranger.file, Some(&pki.client), &[]).code, Some(60));
        // Plaintext on the port of TLS.
        let plain = curl(&url.replace("https:", "http:"), &pki.ca.file, None, &[]);
        assert!(!plain.is_served(), "{plain:?}");
    }
    // What a client without a certificate gets on the peer port.
    let peer = |cluster: &Cluster, client| {
        let url = format!("{}/version", cluster.members[0].peer_url);
        curl(&url, &pki.ca.file, client, &["--http1.1"])
    };
    assert_eq!(peer(&ours, None), peer(&real, None));
    assert_eq!(peer(&ours, Some(&pki.client)), peer(&real, Some(&pki.client)));
    assert!(peer(&ours, Some(&pki.client)).is_served());
}

/// A watch of real etcdctl that runs on, with what it prints in a file.
struct Watching {
    child: Child,
    output: PathBuf,
}

impl Watching {
    fn start(pki: &Pki, member: &Member, output: PathBuf) -> Self {
        let file = fs::File::create(&output).unwrap();
        let mut command = etcdctl(pki, &member.client_url);
        command.args(["watch", "key"]).stdin(Stdio::null()).stdout(file);
        Watching { child: command.spawn().unwrap(), output }
    }

    fn wait_for(&self, value: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !fs::read_to_string(&self.output).unwrap().lines().any(|line| line == value) {
            assert!(Instant::now() < deadline, "the watch never saw {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_certificate_is_refused_within_two_seconds() {
    let pki = Pki::new();
    let other = pki.ca.issue("other", Leaf { cn: "other", serial: 7, ..Leaf::default() });
    let list = pki.ca.path("revoked.crl");
    pki.ca.revoke(&list, &[99], false);
    let mut flags = pki.flags();
    flags.push(format!("--client-crl-file={}", list.display()));
    flags.push(format!("--peer-crl-file={}", list.display()));
    let ours = single(Program::Mainstay, flags).await;
    let member = &ours.members[0];
    let ask = |client| curl(&format!("{}/health", member.client_url), &pki.ca.file, client, &[]);
    assert!(ask(Some(&other)).is_served());
    let watching = Watching::start(&pki, member, ours.dir.path().join("watch"));
    ctl(&pki, &member.client_url, &["put", "key", "before"]);

    pki.ca.revoke(&list, &[99, 7], false);
    let start = Instant::now();
    while ask(Some(&other)).is_served() {
        assert!(start.elapsed() < Duration::from_secs(2), "still served after {start:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(ask(Some(&pki.client)).is_served(), "the others are let in");
    ctl(&pki, &member.client_url, &["put", "key", "after"]);
    watching.wait_for("after");
    // One that comes back from the list is let in again.
    pki.ca.revoke(&list, &[99], false);
    assert!(ask(Some(&other)).is_served());
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_replaced_while_connections_stay() {
    let pki = Pki::new();
    let ours = single(Program::Mainstay, pki.flags()).await;
    let member = &ours.members[0];
    let watching = Watching::start(&pki, member, ours.dir.path().join("watch"));
    ctl(&pki, &member.client_url, &["put", "key", "first"]);
    // A new CA for everybody, with both trusted for a while.
    let next = Ca::new("next");
    let (cert, key) = next.issue("member", Leaf { cn: "member", ..Leaf::default() });
    let newcomer = next.issue("client", Leaf { cn: "client", serial: 2, ..Leaf::default() });
    let ask =
        |ca: &Path, client| curl(&format!("{}/health", member.client_url), ca, Some(client), &[]);
    assert!(!ask(&pki.ca.file, &newcomer).is_served());
    let both = [fs::read(&pki.ca.file).unwrap(), fs::read(&next.file).unwrap()].concat();
    fs::write(&pki.ca.file, both).unwrap();
    assert!(ask(&pki.ca.file, &newcomer).is_served());
    // Certificate and key are two files: a moment in between serves the old pair.
    fs::copy(&key, pki.ca.path("member.key")).unwrap();
    assert!(ask(&pki.ca.file, &pki.client).is_served());
    fs::copy(&cert, pki.ca.path("member.pem")).unwrap();
    assert!(ask(&next.file, &newcomer).is_served(), "the new certificate is shown");
    // What cannot be used is not taken over.
    fs::write(pki.ca.path("member.pem"), "no certificate").unwrap();
    assert!(ask(&next.file, &newcomer).is_served());
    ctl(&pki, &member.client_url, &["put", "key", "last"]);
    watching.wait_for("last");
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_http_share_the_port_and_metrics_have_their_own() {
    let pki = Pki::new();
    let metrics = format!("https://127.0.0.1:{}", free_port().unwrap());
    let mut flags = pki.flags();
    flags.push(format!("--listen-metrics-urls={metrics}"));
    let ours = single(Program::Mainstay, flags).await;
    let url = &ours.members[0].client_url;
    for (path, version, answered) in [
        ("/health", "--http1.1", "200 1.1"),
        ("/health", "--http2", "200 2"),
        ("/metrics", "--http1.1", "200 1.1"),
    ] {
        let got = curl(&format!("{url}{path}"), &pki.ca.file, Some(&pki.client), &[version]);
        assert_eq!(got.status, answered, "{path} {version}: {got:?}");
    }
    let put = ["-d", r#"{"key":"a2V5","value":"dg=="}"#];
    let put = curl(&format!("{url}/v3/kv/put"), &pki.ca.file, Some(&pki.client), &put);
    assert!(put.is_served(), "{put:?}");
    assert_eq!(ctl(&pki, url, &["get", "key", "--print-value-only"]).trim(), "v");
    let metrics = format!("{metrics}/metrics");
    assert!(curl(&metrics, &pki.ca.file, Some(&pki.client), &[]).is_served());
    assert!(!curl(&metrics, &pki.ca.file, None, &[]).is_served());
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_need_an_allowed_name() {
    let pki = Pki::new();
    let mut allowed = pki.flags();
    allowed.push("--peer-cert-allowed-cn=member".to_owned());
    let ours = single(Program::Mainstay, allowed).await;
    let ask = |client| {
        let url = format!("{}/version", ours.members[0].peer_url);
        curl(&url, &pki.ca.file, client, &["--http1.1"])
    };
    let member = (pki.ca.path("member.pem"), pki.ca.path("member.key"));
    assert!(ask(Some(&member)).is_served());
    assert!(!ask(Some(&pki.client)).is_served(), "of the right CA, but another name");
}
