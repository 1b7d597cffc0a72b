//! The embeddable etcd-compatible store.
//!
//! One [`Store`] is one member of a cluster that speaks etcd's protocols and keeps etcd's formats,
//! alone or among others, real etcd members included. It runs inside a tokio runtime, with a few
//! threads of its own, and needs no socket unless there are other members or clients elsewhere.
//!
//! ```
//! use mainstay_store::{Keys, Store, Watch};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let store = Store::temporary().await?; // Store::open("directory") keeps its data
//! let mut changes = store.watch(Watch::new(Keys::prefix("config/"))).await?;
//! store.put("config/color", "blue").await?;
//! assert_eq!(store.get("config/color").await?.unwrap().value, "blue");
//! assert_eq!(changes.next().await?.events.len(), 1);
//! store.shutdown().await;
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! - [`Store`] has the everyday calls; `examples/embed.rs` shows them together.
//! - [`Core`], reached by [`Store::core`], has one call for each operation of etcd's services, in
//!   the protocol's own messages ([`pb`]). The servers of this crate stand on it too.
//! - [`StoreConfig`] and [`Builder`] set a member up, among them its engine and its budgets.
//!
//! What is acknowledged is on the disks of a quorum. When that cannot be kept up any more (a failed
//! fsync, a broken invariant) the store stops for good: calls answer `server stopped`, and
//! [`Store::stopped`] and the hook given to [`Builder::on_fatal`] tell why.

mod applied;
mod apply_loop;
mod auth;
mod auto_compaction;
mod background;
mod bootstrap;
mod cluster;
mod compaction;
mod config;
mod core;
mod corruption;
mod dial;
mod disk;
mod duration;
mod engine_home;
mod error;
mod fatal;
mod gateway;
mod http;
mod kv;
mod leadership;
mod lease;
mod lessor;
mod maintenance;
mod member;
mod metrics;
mod network;
mod peer_host;
mod peer_metrics;
mod peer_port;
mod quota;
mod read;
mod request_id;
mod rpc;
pub mod serve;
mod sink;
mod snapshot;
mod store;
mod tasks;
mod urls;
mod version;
mod waiters;
mod waiting;
mod watch_view;

pub use auth::{By, Caller, TokenError};
pub use bootstrap::StartError;
pub use config::{AutoCompaction, ClusterState, ConfigError, EngineKind, StoreConfig};
pub use core::{Core, Identity};
pub use duration::parse_duration;
pub use engine_home::HomeError;
pub use error::{Code, Error, Result};
pub use fatal::{FatalHook, StopReason};
pub use leadership::Leadership;
pub use mainstay_mvcc::version::SERVER_VERSION;
pub use mainstay_proto::{etcdserverpb as pb, mvccpb};
pub use store::{Builder, Changes, Compare, Get, Keys, Op, Store, Txn, Watch, WatchEnd};
pub use urls::{InitialCluster, MemberUrlError, check_url, check_urls};
