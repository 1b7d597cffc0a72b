//! The published state as the watch hub reads it.
//!
//! **Invariant:** a view pins the state that it was made of, and the generation of the engine that
//! the state is in; what it answers never changes.

use std::sync::Arc;

use mainstay_mvcc::{CatchUp, CatchUpLimits, Revision};
use mainstay_proto::mvccpb::KeyValue;
use mainstay_watch::{History, HistoryError, StoreView};

use crate::core::Published;

/// A published state as history for watchers.
pub(crate) struct WatchView {
    store: StoreView,
    _published: Arc<Published>,
}

impl WatchView {
    pub(crate) fn new(published: Arc<Published>) -> Self {
        Self {
            store: StoreView::new(published.view.clone(), published.at()),
            _published: published,
        }
    }
}

impl History for WatchView {
    fn revision(&self) -> i64 {
        self.store.revision()
    }

    fn compacted(&self) -> i64 {
        self.store.compacted()
    }

    fn scan(
        &self,
        from: i64,
        limits: CatchUpLimits,
        prevs: bool,
        wanted: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<CatchUp, HistoryError> {
        self.store.scan(from, limits, prevs, wanted)
    }

    fn pairs(&self, places: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError> {
        self.store.pairs(places)
    }
}
