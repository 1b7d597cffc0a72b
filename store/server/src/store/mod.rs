//! The store as a program embeds it: open, read, write, watch, close.
//!
//! Input: calls of the embedding program. Output: the same answers that a client of the cluster
//! gets, in the types of etcd's protocol ([`crate::pb`]).
//! - `keys`: which keys a request is about, and what a read wants.
//! - `txn`: several steps as one.
//! - `watch`: changes as they happen.
//!
//! **Invariant:** nothing here decides anything: every call is one of [`Core`]'s, so an embedded
//! store and a served one cannot differ.

mod keys;
mod txn;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use mainstay_net::Listener;
use mainstay_net::tls::ClientTls;
use mainstay_peer::{Dialer, PlainDialer};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::mvccpb::KeyValue;

use crate::bootstrap::StartError;
use crate::config::{EngineKind, StoreConfig};
use crate::core::Core;
use crate::dial::TlsDialer;
use crate::error::{Error, Result};
use crate::fatal::{FatalHook, StopReason};
use crate::member::Member;
use crate::urls::MemberUrlError;

pub use keys::{Get, Keys};
pub use txn::{Compare, Op, Txn};
pub use watch::{Changes, Watch, WatchEnd};

/// A running store: one member of a cluster, usually the only one.
///
/// Cheap to share by reference or in an `Arc`. When it is dropped the member stops as if the
/// process had been killed, which loses nothing that was acknowledged; [`Store::shutdown`] also
/// hands leadership over and saves the next start some work.
pub struct Store {
    member: Member,
    /// The directory of a temporary store. Goes after the member.
    _temporary: Option<tempfile::TempDir>,
}

/// Sets up a [`Store`].
pub struct Builder {
    config: StoreConfig,
    hook: FatalHook,
    listeners: Vec<Listener>,
    dialer: Arc<dyn Dialer>,
    temporary: Option<tempfile::TempDir>,
}

impl Builder {
    /// A store with this configuration.
    pub fn new(config: StoreConfig) -> Self {
        Self {
            config,
            hook: Arc::new(|_| {}),
            listeners: Vec::new(),
            dialer: Arc::new(PlainDialer),
            temporary: None,
        }
    }

    /// Changes the configuration.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut StoreConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Called once, from any thread, when the store cannot go on, with the reason. A server ends
    /// its process here. Without a hook the store answers every call with an error, and
    /// [`Store::stopped`] tells the reason.
    #[must_use]
    pub fn on_fatal(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.hook = Arc::new(hook);
        self
    }

    /// Peer ports that are bound already. Without them the URLs of the configuration are bound.
    #[must_use]
    pub fn peer_listeners(mut self, listeners: Vec<Listener>) -> Self {
        self.listeners = listeners;
        self
    }

    /// TLS towards other members. Without it members whose URL asks for TLS are out of reach.
    #[must_use]
    pub fn peer_tls(mut self, tls: ClientTls) -> Self {
        self.dialer = Arc::new(TlsDialer(tls));
        self
    }

    /// Starts the store. Must be called inside a tokio runtime.
    pub async fn open(mut self) -> Result<Store, StartError> {
        if self.listeners.is_empty() {
            for text in &self.config.listen_peer_urls {
                let urls = mainstay_net::parse_urls(text).map_err(MemberUrlError::from)?;
                self.listeners.extend(Listener::bind_each(&urls, None, false)?);
            }
        }
        let member = Member::start(self.config, self.listeners, self.dialer, self.hook).await?;
        Ok(Store { member, _temporary: self.temporary })
    }
}

impl Store {
    /// Opens a store whose data is in `directory`, which is made when it is not there. It is the
    /// only member of its cluster and opens no socket.
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, StartError> {
        Self::builder(directory).open().await
    }

    /// A store with its data in `directory`, to be configured further.
    pub fn builder(directory: impl Into<PathBuf>) -> Builder {
        Builder::new(StoreConfig::new(directory))
    }

    /// Opens a store in memory, for tests and experiments. What it needs on disk is in a directory
    /// of its own that goes with it.
    pub async fn temporary() -> Result<Self, StartError> {
        let system = |source| StartError::System { doing: "making a temporary directory", source };
        let directory = tempfile::tempdir().map_err(system)?;
        let mut config = StoreConfig::new(directory.path());
        config.engine = EngineKind::Memory;
        config.unsafe_no_fsync = true;
        let builder = Builder { temporary: Some(directory), ..Builder::new(config) };
        builder.open().await
    }

    /// The member, for everything that etcd's services offer.
    pub fn core(&self) -> &Arc<Core> {
        &self.member.core
    }

    /// Writes a key. The answer tells the revision of the write.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let store = mainstay_store::Store::temporary().await?;
    /// let written = store.put("greeting", "hello").await?;
    /// assert_eq!(written.header.unwrap().revision, 2);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<pb::PutResponse> {
        let (key, value) = (key.into(), value.into());
        self.core().put(pb::PutRequest { key, value, ..Default::default() }).await
    }

    /// Writes a key that goes when the lease ends.
    pub async fn put_with_lease(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        lease: i64,
    ) -> Result<pb::PutResponse> {
        let (key, value) = (key.into(), value.into());
        self.core().put(pb::PutRequest { key, value, lease, ..Default::default() }).await
    }

    /// Reads one key as it is now: no older than what any write before had acknowledged.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<KeyValue>> {
        let request = Get::new(Keys::one(key)).into_request();
        Ok(self.core().range(request).await?.kvs.into_iter().next())
    }

    /// Reads many keys, or one at an older revision.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use mainstay_store::{Get, Keys};
    /// let store = mainstay_store::Store::temporary().await?;
    /// for key in ["users/ann", "users/bob", "zoo"] {
    ///     store.put(key, "").await?;
    /// }
    /// let page = store.range(Get::new(Keys::prefix("users/")).limit(1)).await?;
    /// assert_eq!(page.kvs[0].key, "users/ann");
    /// assert!(page.more && page.count == 2);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn range(&self, get: Get) -> Result<pb::RangeResponse> {
        self.core().range(get.into_request()).await
    }

    /// Deletes keys; the answer tells how many there were.
    pub async fn delete(&self, keys: impl Into<Keys>) -> Result<pb::DeleteRangeResponse> {
        let (key, range_end) = keys.into().into_range();
        let request = pb::DeleteRangeRequest { key, range_end, ..Default::default() };
        self.core().delete_range(request).await
    }

    /// Compares, then does one of two lists of steps, all at one revision.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use mainstay_store::{Compare, Op, Txn};
    /// let store = mainstay_store::Store::temporary().await?;
    /// let claim = Txn::new()
    ///     .when(Compare::is_absent("leader"))
    ///     .then(Op::put("leader", "me"))
    ///     .otherwise(Op::get("leader"));
    /// assert!(store.txn(claim.clone()).await?.succeeded);
    /// assert!(!store.txn(claim).await?.succeeded);
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn txn(&self, txn: Txn) -> Result<pb::TxnResponse> {
        self.core().txn(txn.into_request()).await
    }

    /// Gives up the history before `revision`, which frees the space of overwritten and deleted
    /// keys. Reads and watches from before it fail from then on.
    pub async fn compact(&self, revision: i64) -> Result<pb::CompactionResponse> {
        self.core().compact(pb::CompactionRequest { revision, physical: false }).await
    }

    /// Watches keys: every change from now on, or from an older revision on.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use mainstay_store::{Keys, Watch};
    /// let store = mainstay_store::Store::temporary().await?;
    /// let mut changes = store.watch(Watch::new(Keys::prefix("users/"))).await?;
    /// store.put("users/ann", "1").await?;
    /// let response = changes.next().await?;
    /// assert_eq!(response.events[0].kv.as_ref().unwrap().value, "1");
    /// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
    /// ```
    pub async fn watch(&self, watch: Watch) -> Result<Changes> {
        Changes::open(self.core(), watch).await
    }

    /// Makes a lease of `ttl` seconds (at least a few). Keys that are put with it go when it is
    /// not kept alive.
    pub async fn grant(&self, ttl: i64) -> Result<pb::LeaseGrantResponse> {
        self.core().lease_grant(pb::LeaseGrantRequest { id: 0, ttl }).await
    }

    /// Gives a lease its whole time again.
    pub async fn keep_alive(&self, lease: i64) -> Result<pb::LeaseKeepAliveResponse> {
        match self.core().lease_keep_alive(pb::LeaseKeepAliveRequest { id: lease }).await {
            Ok(response) if response.ttl == 0 => Err(Error::LeaseNotFound),
            result => result,
        }
    }

    /// Ends a lease and deletes its keys.
    pub async fn revoke(&self, lease: i64) -> Result<pb::LeaseRevokeResponse> {
        self.core().lease_revoke(pb::LeaseRevokeRequest { id: lease }).await
    }

    /// How this member is.
    pub fn status(&self) -> pb::StatusResponse {
        self.core().status()
    }

    /// The members of the cluster.
    pub async fn members(&self) -> Result<Vec<pb::Member>> {
        let list = pb::MemberListRequest { linearizable: true };
        Ok(self.core().member_list(list).await?.members)
    }

    /// Resolves when the member has told the cluster its name and URLs and the cluster has a version:
    /// from then on it serves clients. Returns early when the store stops before that.
    pub async fn ready(&self) {
        let core = self.core();
        let mut ready = core.ready();
        let serves = async {
            // The sender lives as long as the store.
            let _ = ready.wait_for(|ready| *ready).await;
            // Without a cluster version every call is answered `not capable`.
            loop {
                let applied = core.applied.get();
                if core.published.load().state.cluster_version.is_some() {
                    break;
                }
                core.applied.wait(applied + 1).await;
            }
        };
        tokio::select! {
            () = serves => {}
            _ = self.stopped() => {}
        }
    }

    /// Resolves when the store stops by itself, with the reason.
    pub async fn stopped(&self) -> StopReason {
        self.core().stopped().await
    }

    /// Hands leadership to another voter, if this member leads and there is one that it reaches.
    pub async fn hand_over(&self) {
        self.member.hand_over().await;
    }

    /// Hands leadership over if this member leads, answers what is under way, and ends the store.
    pub async fn shutdown(self) {
        self.member.shutdown().await;
    }
}
