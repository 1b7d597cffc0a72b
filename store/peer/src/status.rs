//! Whether a peer can be reached, and since when.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::headers::hex;
use crate::metrics::PeerMetrics;

/// Active from the first thing that worked until the first that did not.
#[derive(Debug)]
pub(crate) struct Status {
    id: u64,
    since: Mutex<Option<Instant>>,
    metrics: Arc<PeerMetrics>,
}

impl Status {
    pub(crate) fn new(id: u64, metrics: Arc<PeerMetrics>) -> Self {
        Status { id, since: Mutex::new(None), metrics }
    }

    pub(crate) fn activate(&self) {
        let mut since = self.lock();
        if since.is_none() {
            *since = Some(Instant::now());
            self.metrics.active.set(1);
            tracing::info!(peer = %hex(self.id), "peer became active");
        }
    }

    pub(crate) fn deactivate(&self, what: &str, error: &dyn std::fmt::Display) {
        let mut since = self.lock();
        if since.take().is_some() {
            self.metrics.active.set(0);
            self.metrics.disconnected.increment();
            tracing::warn!(peer = %hex(self.id), what, %error, "peer became inactive");
        } else {
            tracing::debug!(peer = %hex(self.id), what, %error, "peer is still inactive");
        }
    }

    pub(crate) fn active_since(&self) -> Option<Instant> {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.since.lock().expect("no code panics while it holds a status")
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        if self.lock().is_some() {
            self.metrics.active.set(0);
        }
    }
}
