//! What the hub reads: steps of the store, and pinned views of it from which older events and
//! previous pairs are read.
//!
//! [`StoreView`] is the one over an engine snapshot; tests have a plain list.
//! **Invariant:** a `History` is immutable. Its revision, its compaction revision and everything
//! that its methods answer stay the same for as long as it is held.

use std::sync::Arc;

use mainstay_engine::View;
use mainstay_mvcc::{
    CatchUp, CatchUpLimits, Event, ReadAt, Revision, RevisionEvents, events_between, kv_at,
};
use mainstay_proto::mvccpb::KeyValue;

/// A step of the store: the revisions that were applied, and the view that contains them.
#[derive(Clone)]
pub struct Published {
    /// The store after these revisions. It says what the current and the compacted revision are.
    pub view: Arc<dyn History>,
    /// Every revision since the previous step, in order. If some are missing (a snapshot was
    /// installed, or they were left out on purpose), watchers read them from the view.
    pub revisions: Vec<RevisionEvents>,
}

/// A pinned, immutable view of the store.
pub trait History: Send + Sync {
    /// The newest revision in the view.
    fn revision(&self) -> i64;

    /// The revision below which history may be gone; events at this revision are still there.
    fn compacted(&self) -> i64;

    /// The events with revision ≥ `from` whose key is wanted, up to the limits, cut between two
    /// revisions. `from` is not below `compacted()` and not above `revision()`; the answer's
    /// `next` is above `from` and at most `revision() + 1`. With `prevs` the events say where
    /// their previous pairs are.
    fn scan(
        &self,
        from: i64,
        limits: CatchUpLimits,
        prevs: bool,
        wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<CatchUp, HistoryError>;

    /// The pairs that were written at these places, one answer for each; `None` if one is gone.
    fn pairs(&self, places: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError>;
}

/// The store could not be read. Nothing that watchers are told can be trusted after this.
#[derive(Debug, thiserror::Error)]
#[error("reading the history for watchers: {0}")]
pub struct HistoryError(pub Box<dyn std::error::Error + Send + Sync>);

/// A snapshot of the engine as a history.
pub struct StoreView {
    view: Arc<dyn View>,
    at: ReadAt,
}

impl StoreView {
    /// `at` is what the state that was published with the snapshot says about it.
    pub fn new(view: Arc<dyn View>, at: ReadAt) -> Self {
        Self { view, at }
    }
}

impl History for StoreView {
    fn revision(&self) -> i64 {
        self.at.revision
    }

    fn compacted(&self) -> i64 {
        self.at.compacted
    }

    fn scan(
        &self,
        from: i64,
        limits: CatchUpLimits,
        prevs: bool,
        wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<CatchUp, HistoryError> {
        events_between(&*self.view, self.at, from, self.at.revision, limits, prevs, wanted)
            .map_err(|error| HistoryError(error.into()))
    }

    fn pairs(&self, places: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError> {
        let pair = |place: &Revision| kv_at(&*self.view, *place);
        places
            .iter()
            .map(pair)
            .collect::<Result<_, _>>()
            .map_err(|fatal| HistoryError(fatal.into()))
    }
}

/// Roughly the memory that an event holds on to.
pub(crate) fn weight(event: &Event) -> usize {
    event.kv.key.len() + event.kv.value.len() + std::mem::size_of::<Event>()
}
