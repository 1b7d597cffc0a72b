//! A member in this process that is served on loopback, and connections to it.

use std::time::Duration;

use mainstay_net::{Listener, parse_urls};
use mainstay_store::serve::{ServeOptions, Serving, drain};
use mainstay_store::{Builder, EngineKind, Store, StoreConfig};
use tonic::transport::{Channel, Endpoint};

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A member with its sockets.
pub(crate) struct Served {
    store: Store,
    serving: Serving,
    /// `http://127.0.0.1:PORT` of the client port.
    pub(crate) url: String,
    _dir: tempfile::TempDir,
}

impl Served {
    /// A member that is configured and served in another way.
    pub(crate) async fn start_with(
        configure: impl FnOnce(&mut StoreConfig),
        choose: impl FnOnce(&mut ServeOptions),
    ) -> Self {
        let (listener, url) = listener();
        let (store, dir) = open(configure).await;
        let mut options = ServeOptions::default();
        choose(&mut options);
        let serving =
            Serving::start(&store, vec![listener], Vec::new(), Vec::new(), options).unwrap();
        // Clients are let in before that, and some answers tell it.
        let decided = async {
            while store.core().cluster_version().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, decided).await.expect("the cluster has a version");
        Self { store, serving, url, _dir: dir }
    }

    /// A connection of its own.
    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.url).await
    }

    /// Drains it.
    pub(crate) async fn stop(self) {
        drain(self.store, self.serving, PATIENCE).await;
    }
}

/// A member alone and in memory.
pub(crate) async fn open(configure: impl FnOnce(&mut StoreConfig)) -> (Store, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = StoreConfig::new(dir.path());
    config.engine = EngineKind::Memory;
    config.unsafe_no_fsync = true;
    configure(&mut config);
    (Builder::new(config).open().await.unwrap(), dir)
}

/// A free port on loopback, bound.
pub(crate) fn listener() -> (Listener, String) {
    let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
    let listener = Listener::bind(url, false).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// Connects; the member lets clients in when it is ready.
pub(crate) async fn connect(url: &str) -> Channel {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    tokio::time::timeout(PATIENCE, endpoint.connect()).await.unwrap().unwrap()
}
