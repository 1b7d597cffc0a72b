//! Who this member is to its peers, and how long it waits for them.

use std::sync::Arc;
use std::time::Duration;

use crate::dial::Dialer;
use crate::url::PeerUrl;
use crate::version::Version;

/// Everything fixed at start.
#[derive(Clone)]
pub struct Config {
    /// This member's id.
    pub local: u64,
    /// The cluster's id.
    pub cluster: u64,
    /// The etcd version that this member claims.
    pub version: Version,
    /// Where peers reach this member, as advertised.
    pub peer_urls: Vec<PeerUrl>,
    /// How connections are opened.
    pub dialer: Arc<dyn Dialer>,
    /// How long things may take.
    pub timing: Timing,
}

/// Times of the peer protocol. The defaults are etcd's where etcd has one.
#[derive(Debug, Clone)]
pub struct Timing {
    /// For opening a connection.
    pub dial: Duration,
    /// Between two attempts to open a stream.
    pub redial: Duration,
    /// Between two signs of life on a stream that we write.
    pub heartbeat: Duration,
    /// Silence after which a stream that we read is taken for dead; also for request bodies.
    pub read: Duration,
    /// How long the other side may take no bytes of a stream that we write.
    pub write: Duration,
    /// For the answer to one message sent by POST, beside the time for its bytes.
    pub answer: Duration,
    /// Between two probes of a peer.
    pub probe: Duration,
    /// How long a snapshot may stand still on its way, in either direction. Longer than for
    /// messages, because both ends write to disks meanwhile.
    pub snapshot_stall: Duration,
    /// How long a peer may take to check and load a snapshot that it has received.
    pub snapshot_answer: Duration,
    /// How long a lease request waits for the log to be applied.
    pub lease_wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            dial: Duration::from_secs(2),
            redial: Duration::from_millis(100),
            heartbeat: Duration::from_secs(5) / 3,
            read: Duration::from_secs(5),
            write: Duration::from_secs(5),
            answer: Duration::from_secs(5),
            probe: Duration::from_secs(4),
            snapshot_stall: Duration::from_secs(60),
            snapshot_answer: Duration::from_secs(30 * 60),
            lease_wait: Duration::from_secs(1),
        }
    }
}
