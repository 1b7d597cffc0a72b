//! What the tests of whole members share: starting members and clusters, and short requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_net::{Listener, parse_urls};
use mainstay_proto::etcdserverpb as pb;
use mainstay_store::{
    Builder, ClusterState, Core, EngineKind, Error, InitialCluster, StartError, Store, StoreConfig,
};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The engine on disk where this build has it.
pub(crate) fn durable_engine() -> Option<EngineKind> {
    cfg!(feature = "rocks")
        .then(|| EngineKind::Rocks { cache_bytes: 4 << 20, memtable_bytes: 8 << 20 })
}

/// A member that is alone, with short times.
pub(crate) fn config(dir: &Path, engine: EngineKind) -> StoreConfig {
    let mut config = StoreConfig::new(dir);
    config.engine = engine;
    config.tick = Duration::from_millis(10);
    config
}

/// Shows what members say, when `RUST_LOG` asks for it.
pub(crate) fn show_logs() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    // Each test calls it; the first one counts.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

/// Starts a member that is alone and waits until it serves.
pub(crate) async fn open(config: StoreConfig) -> Store {
    show_logs();
    let store = Builder::new(config).open().await.unwrap();
    ready(&store).await;
    store
}

/// Waits until a member has published itself.
pub(crate) async fn ready(store: &Store) {
    let mut ready = store.core().ready();
    let waiting = ready.wait_for(|ready| *ready);
    tokio::time::timeout(PATIENCE, waiting).await.expect("the member serves in time").unwrap();
}

/// Waits until a condition holds; polls, for conditions that nothing announces.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) fn put(key: &str, value: &str) -> pb::PutRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    pb::PutRequest { key, value, ..Default::default() }
}

pub(crate) fn get(key: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

/// Reads one value of this member alone.
pub(crate) async fn local(core: &Core, key: &str) -> Option<String> {
    let request = pb::RangeRequest { serializable: true, ..get(key) };
    let response = core.range(request).await.unwrap();
    response.kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
}

/// Reads one value, linearizably.
pub(crate) async fn value(core: &Core, key: &str) -> Option<String> {
    let response = core.range(get(key)).await.unwrap();
    response.kvs.first().map(|kv| String::from_utf8(kv.value.to_vec()).unwrap())
}

/// A copy of a data directory as a crash would leave it.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

/// A cluster over loopback, in one process.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    urls: BTreeMap<String, String>,
    engine: EngineKind,
    pub(crate) members: BTreeMap<String, Store>,
    pub(crate) adjust: fn(&mut StoreConfig),
}

impl Cluster {
    /// Starts members `m1`, `m2`, … together.
    pub(crate) async fn start(
        count: usize,
        engine: EngineKind,
        adjust: fn(&mut StoreConfig),
    ) -> Self {
        show_logs();
        let mut cluster = Self {
            dir: tempfile::tempdir().unwrap(),
            urls: BTreeMap::new(),
            engine,
            members: BTreeMap::new(),
            adjust,
        };
        let names: Vec<_> = (1..=count).map(|number| format!("m{number}")).collect();
        let mut listeners = Vec::new();
        for name in &names {
            let (url, listener) = bind("http://127.0.0.1:0");
            cluster.urls.insert(name.clone(), url);
            listeners.push(listener);
        }
        let mut starting = Vec::new();
        for (name, listener) in names.iter().zip(listeners) {
            let config = cluster.config(name, ClusterState::New);
            starting.push(Builder::new(config).peer_listeners(vec![listener]).open());
        }
        let started = futures_util::future::join_all(starting).await;
        for (name, store) in names.into_iter().zip(started) {
            cluster.members.insert(name, store.unwrap());
        }
        for store in cluster.members.values() {
            ready(store).await;
        }
        cluster
    }

    pub(crate) fn config(&self, name: &str, state: ClusterState) -> StoreConfig {
        let mut config = config(&self.path(name), self.engine.clone());
        config.tick = Duration::from_millis(20);
        config.name = name.to_owned();
        config.advertise_peer_urls = vec![self.urls[name].clone()];
        config.listen_peer_urls = vec![self.urls[name].clone()];
        config.advertise_client_urls = vec![format!("http://{name}:2379")];
        let all = self.urls.iter().map(|(name, url)| (name.clone(), vec![url.clone()]));
        config.initial_cluster = InitialCluster::from_members(all.collect()).unwrap();
        config.initial_cluster_state = state;
        (self.adjust)(&mut config);
        config
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where the member serves the others.
    pub(crate) fn url(&self, name: &str) -> &str {
        &self.urls[name]
    }

    pub(crate) fn core(&self, name: &str) -> &std::sync::Arc<Core> {
        self.members[name].core()
    }

    /// Ends a member as an operator would.
    pub(crate) async fn stop(&mut self, name: &str) {
        self.members.remove(name).unwrap().shutdown().await;
    }

    /// Starts a member on its data.
    pub(crate) async fn restart(&mut self, name: &str) {
        let store = self.try_restart(name).await.unwrap();
        self.members.insert(name.to_owned(), store);
    }

    pub(crate) async fn try_restart(&self, name: &str) -> Result<Store, StartError> {
        Builder::new(self.config(name, ClusterState::New)).open().await
    }

    /// Adds a member to the cluster and starts it.
    pub(crate) async fn join(&mut self, name: &str, is_learner: bool) -> u64 {
        let (url, listener) = bind("http://127.0.0.1:0");
        let leader = self.leader().await;
        // Each member counts its own connections, and refuses until they have been up for a while.
        let mut id = 0;
        until("the leader counts the cluster as healthy", async || {
            let request = pb::MemberAddRequest { peer_ur_ls: vec![url.clone()], is_learner };
            match self.core(&leader).member_add(request).await {
                Ok(added) => {
                    id = added.member.unwrap().id;
                    true
                }
                Err(error) => {
                    assert_eq!(error, Error::Unhealthy);
                    false
                }
            }
        })
        .await;
        self.urls.insert(name.to_owned(), url);
        let config = self.config(name, ClusterState::Existing);
        let store = Builder::new(config).peer_listeners(vec![listener]).open().await.unwrap();
        assert_eq!(store.core().identity().member_id, id);
        self.members.insert(name.to_owned(), store);
        id
    }

    /// The name of the member that leads; waits for one.
    pub(crate) async fn leader(&self) -> String {
        let mut leader = None;
        until("a leader", async || {
            leader =
                self.members.iter().find(|(_, m)| m.core().is_leader()).map(|(n, _)| n.clone());
            leader.is_some()
        })
        .await;
        leader.unwrap()
    }

    /// Some member that does not lead.
    pub(crate) async fn follower(&self) -> String {
        let leader = self.leader().await;
        self.members.keys().find(|name| **name != leader).unwrap().clone()
    }

    /// Waits until a member has applied what the leader has, and compares their hashes.
    pub(crate) async fn assert_equal(&self) {
        let leader = self.leader().await;
        let request = pb::HashKvRequest::default();
        let expected = self.core(&leader).hash_kv(request).await.unwrap();
        let index = self.core(&leader).status().raft_applied_index;
        for (name, store) in &self.members {
            until(&format!("{name} catches up"), async || {
                store.core().status().raft_applied_index >= index
            })
            .await;
            let revision = expected.hash_revision;
            let request = pb::HashKvRequest { revision };
            let found = store.core().hash_kv(request).await.unwrap();
            let key = |r: &pb::HashKvResponse| (r.hash, r.compact_revision, r.hash_revision);
            assert_eq!(key(&found), key(&expected), "{name} differs from {leader}");
        }
    }

    pub(crate) async fn shutdown(self) {
        for (_, store) in self.members {
            store.shutdown().await;
        }
    }
}

pub(crate) fn bind(url: &str) -> (String, Listener) {
    let listener = Listener::bind(&parse_urls(url).unwrap()[0], false).unwrap();
    let address = listener.local_addr().unwrap();
    (format!("http://{address}"), listener)
}
