//! Changes as they happen, for the embedding program.
//!
//! **Invariant:** every change of the watched keys comes once and in order, all changes of one
//! revision in one response; who falls behind reads the rest from the history.

use mainstay_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use mainstay_watch::{WatchRequests, WatchResponses};

use super::Keys;
use crate::core::Core;
use crate::error::{Error, Result};

/// What to watch.
#[derive(Clone, Debug, PartialEq)]
pub struct Watch(WatchCreateRequest);

impl Watch {
    /// All changes of these keys from now on.
    pub fn new(keys: impl Into<Keys>) -> Self {
        let (key, range_end) = keys.into().into_range();
        Self(WatchCreateRequest { key, range_end, ..Default::default() })
    }

    /// From this revision on, which may be in the past as long as it is not compacted.
    #[must_use]
    pub fn from_revision(mut self, revision: i64) -> Self {
        self.0.start_revision = revision;
        self
    }

    /// With the pair as it was before each change.
    #[must_use]
    pub fn with_previous(mut self) -> Self {
        self.0.prev_kv = true;
        self
    }

    /// With a response without events now and then, which tells how far everything was told.
    #[must_use]
    pub fn with_progress(mut self) -> Self {
        self.0.progress_notify = true;
        self
    }
}

/// Why there are no more changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatchEnd {
    /// The changes from the asked revision on are gone; the first one that is kept is this.
    #[error("the history before revision {0} is compacted")]
    Compacted(i64),
    /// The watch was refused, or ended by the store.
    #[error("the watch was cancelled: {0}")]
    Cancelled(String),
    /// The store stopped.
    #[error("the store has stopped")]
    Stopped,
}

/// A watch that is open. Dropping it ends the watch.
pub struct Changes {
    /// Keeps the requesting side open.
    _requests: WatchRequests,
    responses: WatchResponses,
    created_at: i64,
}

impl Changes {
    pub(super) async fn open(core: &Core, watch: Watch) -> Result<Self> {
        core.refuse_on_learner()?;
        let (mut requests, mut responses) = core.watch_stream();
        requests.create(watch.0.into()).await.map_err(|_| Error::Stopped)?;
        let created = responses.recv().await.ok_or(Error::Stopped)?.to_message();
        if created.canceled {
            return Err(Error::Raw(created.cancel_reason.into()));
        }
        let created_at = created.header.unwrap_or_default().revision;
        Ok(Self { _requests: requests, responses, created_at })
    }

    /// The revision at which the watch began; without a start revision the changes after it come.
    pub fn created_at(&self) -> i64 {
        self.created_at
    }

    /// The next changes. All of one revision come together; while catching up several revisions
    /// may.
    pub async fn next(&mut self) -> Result<WatchResponse, WatchEnd> {
        let response = self.responses.recv().await.ok_or(WatchEnd::Stopped)?.to_message();
        if response.compact_revision > 0 {
            return Err(WatchEnd::Compacted(response.compact_revision));
        }
        if response.canceled {
            return Err(WatchEnd::Cancelled(response.cancel_reason));
        }
        Ok(response)
    }
}
