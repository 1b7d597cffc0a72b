//! etcd's peer protocol, both sides: how a member sends raft messages and snapshots to others, and
//! what it answers on its peer port. Real etcd members are on the other end as often as our own.
//!
//! Above it stands one trait, [`Host`], which the server implements. In the other direction the
//! server holds [`Peers`]: it adds and removes members as they are applied, and gives it to raft as
//! the way out. [`PeerService`] answers the peer port, [`Client`] makes the single requests of a
//! joining member or a follower. `docs/peer-protocol.md` describes the wire.
//!
//! **Invariant:** everything that leaves here is read by real etcd with the same meaning; several
//! kinds of malformed input end a real member's process, so nothing malformed is ever sent.
//! **Invariant:** what comes in is untrusted: a bad frame, header or body ends its own connection
//! and nothing else, and no length field is believed before its bytes are there.

mod body;
mod client;
pub mod codec;
mod config;
mod dial;
mod headers;
mod host;
mod http_client;
mod inlet;
mod link;
mod metrics;
mod outlet;
mod peers;
mod pipeline;
mod probe;
mod serve;
mod snapshot;
mod status;
mod tasks;
mod timestamp;
mod url;
mod version;

pub use body::PeerBody;
pub use client::{Client, ClientError, RemoteCluster};
pub use config::{Config, Timing};
pub use dial::{BoxedIo, Dialer, Io, PlainDialer, connect};
pub use host::*;
pub use http_client::RequestError;
pub use metrics::{Counter, Gauge, Histogram, Metrics, PeerMetrics};
pub use peers::Peers;
pub use serve::PeerService;
pub use url::{PeerUrl, Scheme, UrlError, parse_urls};
pub use version::{MIN_CLUSTER_VERSION, Version, VersionError, compatible};
