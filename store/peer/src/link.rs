//! What all the tasks of one peer share, and the way in for messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_proto::raftpb::Message;
use thiserror::Error;
use tokio::runtime::Handle;

use crate::codec::{Unfit, check_incoming};
use crate::config::Timing;
use crate::headers::{Identity, hex};
use crate::host::{Host, ProcessError};
use crate::http_client::HttpClient;
use crate::metrics::{Metrics, PeerMetrics};
use crate::status::Status;
use crate::url::{PeerUrl, UrlPicker};

/// What all peers share.
pub(crate) struct Shared {
    pub(crate) identity: Identity,
    pub(crate) timing: Timing,
    pub(crate) http: Arc<HttpClient>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) runtime: Handle,
    told_removed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        identity: Identity,
        timing: Timing,
        http: Arc<HttpClient>,
        runtime: Handle,
    ) -> Self {
        let metrics = Arc::new(Metrics::new());
        let told_removed = AtomicBool::new(false);
        Shared { identity, timing, http, metrics, runtime, told_removed }
    }

    /// Hands a message from a peer to raft, if it may go there.
    pub(crate) fn receive(&self, host: &dyn Host, message: Message) -> Result<(), Rejected> {
        let from = message.from();
        if host.is_removed(from) {
            return Err(Rejected::Removed(from));
        }
        check_incoming(&message, self.identity.local)?;
        Ok(host.process(message)?)
    }
}

/// Why a message from a peer did not reach raft.
#[derive(Debug, Error)]
pub(crate) enum Rejected {
    #[error("cannot process message from removed member {0:x}")]
    Removed(u64),
    #[error(transparent)]
    Unfit(#[from] Unfit),
    #[error(transparent)]
    Process(#[from] ProcessError),
}

/// One peer, as its tasks see it.
pub(crate) struct Link {
    pub(crate) id: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) urls: UrlPicker,
    pub(crate) status: Status,
    pub(crate) metrics: Arc<PeerMetrics>,
    paused: AtomicBool,
}

impl Link {
    pub(crate) fn new(
        id: u64,
        urls: Vec<PeerUrl>,
        shared: Arc<Shared>,
        host: Arc<dyn Host>,
    ) -> Arc<Self> {
        let metrics = shared.metrics.open(id);
        let status = Status::new(id, metrics.clone());
        let urls = UrlPicker::new(urls);
        Arc::new(Link { id, shared, host, urls, status, metrics, paused: AtomicBool::new(false) })
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// A message could not be delivered.
    pub(crate) fn lost(&self) {
        self.metrics.sent_failures.increment();
        self.host.report_unreachable(self.id);
    }

    /// The peer says that we are not in the cluster any more. The member hears it once.
    pub(crate) fn told_removed(&self) {
        if !self.shared.told_removed.swap(true, Ordering::Relaxed) {
            tracing::error!(
                told_by = %hex(self.id),
                "this member has been permanently removed from the cluster"
            );
            self.host.removed_from_cluster(self.id);
        }
    }
}
