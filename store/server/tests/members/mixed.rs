//! Members of ours and real etcd members in one cluster. Needs `MAINSTAY_PEERS`, a directory with
//! real `etcd` and `etcdctl`, as `make test` builds it.
//!
//! Real members compare the hash of every compaction with ours and raise an alarm when they differ.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{Builder, ClusterState, EngineKind, Error, InitialCluster, Store};

use crate::common::{bind, config, durable_engine, local, put, ready, show_logs, until, value};

fn program(name: &str) -> PathBuf {
    let directory = std::env::var_os("MAINSTAY_PEERS").unwrap_or_else(|| {
        panic!("MAINSTAY_PEERS names no directory with real etcd; run `make test`, which builds it")
    });
    PathBuf::from(directory).join(name)
}

fn free_url() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// A real member.
struct Real {
    name: String,
    client: String,
    peer: String,
    dir: tempfile::TempDir,
    child: Option<Child>,
}

impl Real {
    fn new(name: &str) -> Self {
        let (client, peer) = (free_url(), free_url());
        Self { name: name.into(), client, peer, dir: tempfile::tempdir().unwrap(), child: None }
    }

    fn start(&mut self, cluster: &str, state: &str) {
        let log = self.dir.path().join("log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let child = Command::new(program("etcd"))
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &self.client])
            .args(["--advertise-client-urls", &self.client])
            .args(["--listen-peer-urls", &self.peer, "--initial-advertise-peer-urls", &self.peer])
            .args(["--initial-cluster", cluster, "--initial-cluster-state", state])
            .args(["--feature-gates=CompactHashCheck=true,InitialCorruptCheck=true"])
            .args(["--compact-hash-check-time=1s", "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("real etcd starts");
        self.child = Some(child);
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// What etcdctl prints; `Err` with its error text when it fails.
    async fn ctl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program("etcdctl"));
        command.args(["--endpoints", &self.client, "--command-timeout=10s"]).args(arguments);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn assert_alive(&mut self) {
        let ended = self.child.as_mut().unwrap().try_wait().unwrap();
        assert!(ended.is_none(), "{} ended: {}", self.name, self.log());
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A member of ours beside real ones.
struct Ours {
    name: String,
    url: String,
    dir: tempfile::TempDir,
}

impl Ours {
    async fn start(name: &str, cluster: &[(String, String)]) -> (Self, Store) {
        let url = cluster.iter().find(|(other, _)| other == name).unwrap().1.clone();
        let ours = Self { name: name.into(), url, dir: tempfile::tempdir().unwrap() };
        let store = ours.open(cluster, ClusterState::New).await;
        (ours, store)
    }

    async fn open(&self, cluster: &[(String, String)], state: ClusterState) -> Store {
        let engine = durable_engine().unwrap_or(EngineKind::Memory);
        let mut config = config(self.dir.path(), engine);
        config.tick = Duration::from_millis(100);
        config.name = self.name.clone();
        config.advertise_peer_urls = vec![self.url.clone()];
        config.listen_peer_urls = vec![self.url.clone()];
        let list = cluster.iter().map(|(name, url)| format!("{name}={url}"));
        let list = list.collect::<Vec<_>>().join(",");
        config.initial_cluster = InitialCluster::parse(&list).unwrap();
        config.initial_cluster_state = state;
        Builder::new(config).open().await.unwrap()
    }
}

async fn hash_of_real(real: &Real, revision: i64) -> Option<u32> {
    let revision = revision.to_string();
    let text =
        real.ctl(&["endpoint", "hashkv", "--write-out=fields", "--rev", &revision]).await.ok()?;
    let line = text.lines().find(|line| line.starts_with("\"Hash\""))?;
    line.rsplit(": ").next()?.parse().ok()
}

/// Waits until all have the same hash at the newest revision of `store`.
async fn assert_equal(store: &Store, others: &[&Store], reals: &[&Real]) {
    let ours = store.core().hash_kv(pb::HashKvRequest::default()).await.unwrap();
    let revision = ours.hash_revision;
    for other in others {
        until("our members agree", async || {
            let request = pb::HashKvRequest { revision };
            other.core().hash_kv(request).await.is_ok_and(|found| found.hash == ours.hash)
        })
        .await;
    }
    for real in reals {
        until(&format!("{} agrees on revision {revision}", real.name), async || {
            hash_of_real(real, revision).await == Some(ours.hash)
        })
        .await;
    }
    assert!(store.core().alarms().is_empty(), "{:?}", store.core().alarms());
}

/// Writes of many kinds, all deterministic, so that members could differ.
async fn work(store: &Store, round: usize) {
    let core = store.core();
    for i in 0..40 {
        core.put(put(&format!("k{}", (i * 7 + round) % 30), &format!("{round}-{i}")))
            .await
            .unwrap();
    }
    let delete = pb::DeleteRangeRequest {
        key: format!("k{}", round % 10).into(),
        range_end: format!("k{}", round % 10 + 1).into(),
        prev_kv: false,
    };
    core.delete_range(delete).await.unwrap();
    let lease = core.lease_grant(pb::LeaseGrantRequest { id: 0, ttl: 300 }).await.unwrap().id;
    core.put(pb::PutRequest { lease, ..put(&format!("leased{round}"), "v") }).await.unwrap();
    core.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap();
    let revision = core.header().revision - 5;
    core.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ours_and_real_members_agree_whoever_leads() {
    show_logs();
    let (mut r1, mut r2) = (Real::new("r1"), Real::new("r2"));
    let ours_url = bind("http://127.0.0.1:0").0;
    let cluster = vec![
        ("r1".to_owned(), r1.peer.clone()),
        ("r2".to_owned(), r2.peer.clone()),
        ("ours".to_owned(), ours_url),
    ];
    let list: Vec<_> = cluster.iter().map(|(name, url)| format!("{name}={url}")).collect();
    let list = list.join(",");
    r1.start(&list, "new");
    r2.start(&list, "new");
    let (ours, mut store) = Ours::start("ours", &cluster).await;
    ready(&store).await;
    let own = store.core().identity().member_id;
    for round in 0..6 {
        work(&store, round).await;
        r1.ctl(&["put", "by-r1", &round.to_string()]).await.unwrap();
        assert_eq!(value(store.core(), "by-r1").await.unwrap(), round.to_string());
        assert_equal(&store, &[], &[&r1, &r2]).await;
        // Leadership goes round.
        let leader = store.core().leader().unwrap();
        if leader == own {
            let members = store.core().member_list(pb::MemberListRequest::default()).await.unwrap();
            let target_id = members.members.iter().find(|m| m.name == "r1").unwrap().id;
            store.core().move_leader(pb::MoveLeaderRequest { target_id }).await.unwrap();
        } else {
            // Only the leader can be asked, and one of the two is it.
            let target = format!("{own:x}");
            let moved =
                [r1.ctl(&["move-leader", &target]).await, r2.ctl(&["move-leader", &target]).await];
            assert!(moved.iter().any(Result::is_ok), "{moved:?}");
            until("ours leads", async || store.core().is_leader()).await;
        }
        // Leases of real members' clients are kept alive by whoever leads.
        let granted = r2.ctl(&["lease", "grant", "100"]).await.unwrap();
        let id = granted.split_whitespace().nth(1).unwrap().to_owned();
        let kept = r2.ctl(&["lease", "keep-alive", "--once", &id]).await.unwrap();
        assert!(kept.contains("keepalived with TTL(100)"), "{kept}");
        let left = r1.ctl(&["lease", "timetolive", &id]).await.unwrap();
        assert!(left.contains("granted with TTL(100s)"), "{left}");
        r2.ctl(&["lease", "revoke", &id]).await.unwrap();
    }

    // Ours lags behind the real leader's log and gets its snapshot.
    until("a real member leads", async || {
        if store.core().is_leader() {
            let members = store.core().member_list(pb::MemberListRequest::default()).await.unwrap();
            let target_id = members.members.iter().find(|m| m.name == "r1").unwrap().id;
            let _ = store.core().move_leader(pb::MoveLeaderRequest { target_id }).await;
        }
        !store.core().is_leader() && store.core().leader().is_some()
    })
    .await;
    if durable_engine().is_some() {
        store.shutdown().await;
        for i in 0..30 {
            r1.ctl(&["put", &format!("while-away{i}"), "1"]).await.unwrap();
        }
        store = ours.open(&cluster, ClusterState::New).await;
        until("ours is back", async || local(store.core(), "while-away29").await.is_some()).await;
        assert_equal(&store, &[], &[&r1, &r2]).await;
    }

    // A real member is killed and comes back.
    r2.kill();
    work(&store, 100).await;
    r2.start(&list, "new");
    assert_equal(&store, &[], &[&r1, &r2]).await;
    r1.assert_alive();
    r2.assert_alive();
    store.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_go_both_ways() {
    show_logs();
    // A real member alone, with more entries than it keeps.
    let mut real = Real::new("real");
    let first = format!("real={}", real.peer);
    real.start(&first, "new");
    until("it serves", async || real.ctl(&["endpoint", "health"]).await.is_ok()).await;
    for i in 0..150 {
        real.ctl(&["put", &format!("k{i}"), &"v".repeat(1000)]).await.unwrap();
    }
    // Ours joins as a learner: the log from its beginning is gone, so it gets a snapshot.
    let url = bind("http://127.0.0.1:0").0;
    let added = real.ctl(&["member", "add", "ours", "--learner", "--peer-urls", &url]).await;
    added.unwrap();
    let mut cluster =
        vec![("real".to_owned(), real.peer.clone()), ("ours".to_owned(), url.clone())];
    let ours = Ours { name: "ours".into(), url, dir: tempfile::tempdir().unwrap() };
    let store = ours.open(&cluster, ClusterState::Existing).await;
    until("ours has it all", async || local(store.core(), "k149").await.is_some()).await;
    assert!(store.core().is_learner());
    ready(&store).await;
    until("ours is promoted", async || {
        let id = format!("{:x}", store.core().identity().member_id);
        real.ctl(&["member", "promote", &id]).await.is_ok()
    })
    .await;
    assert_equal(&store, &[], &[&real]).await;

    // Ours takes over and lets another real member join, which gets a snapshot of ours.
    let target = format!("{:x}", store.core().identity().member_id);
    real.ctl(&["move-leader", &target]).await.unwrap();
    until("ours leads", async || store.core().is_leader()).await;
    let mut third = Real::new("third");
    until("the member is added", async || {
        let peer_ur_ls = vec![third.peer.clone()];
        let request = pb::MemberAddRequest { peer_ur_ls, is_learner: true };
        match store.core().member_add(request).await {
            Ok(_) => true,
            Err(error) => {
                assert_eq!(error, Error::Unhealthy);
                false
            }
        }
    })
    .await;
    cluster.push(("third".to_owned(), third.peer.clone()));
    let list: Vec<_> = cluster.iter().map(|(name, url)| format!("{name}={url}")).collect();
    third.start(&list.join(","), "existing");
    until("the third has it all", async || {
        third
            .ctl(&["get", "k149", "--consistency=s", "--print-value-only"])
            .await
            .is_ok_and(|v| v.len() == 1000)
    })
    .await;
    // A learner does not tell its hash.
    let members = store.core().member_list(pb::MemberListRequest::default()).await.unwrap().members;
    let id = members.iter().find(|member| member.is_learner).unwrap().id;
    until("the third is promoted", async || {
        store.core().member_promote(pb::MemberPromoteRequest { id }).await.is_ok()
    })
    .await;
    work(&store, 1).await;
    assert_equal(&store, &[], &[&real, &third]).await;
    real.assert_alive();
    third.assert_alive();
    store.shutdown().await;
}
