//! Whether a peer can be reached, and since when.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::headers::hex;
use crate::metrics::{Gauge, Held, PeerMetrics};

/// Active from the first thing that worked until the first that did not.
pub(crate) struct Status {
    id: u64,
    state: Mutex<State>,
    metrics: Arc<PeerMetrics>,
}

enum State {
    Inactive,
    Active {
        since: Instant,
        _counted: Held,
    },
    /// The peer was removed; tasks that are still ending change nothing any more.
    Closed,
}

impl Status {
    pub(crate) fn new(id: u64, metrics: Arc<PeerMetrics>) -> Self {
        Status { id, state: Mutex::new(State::Inactive), metrics }
    }

    pub(crate) fn activate(&self) {
        let mut state = self.lock();
        if matches!(*state, State::Inactive) {
            let _counted = Gauge::hold(self.metrics.clone(), |row| &row.active);
            *state = State::Active { since: Instant::now(), _counted };
            tracing::info!(peer = %hex(self.id), "peer became active");
        }
    }

    pub(crate) fn deactivate(&self, what: &str, error: &dyn std::fmt::Display) {
        let mut state = self.lock();
        match *state {
            State::Active { .. } => {
                *state = State::Inactive;
                self.metrics.disconnected.increment();
                tracing::warn!(peer = %hex(self.id), what, %error, "peer became inactive");
            }
            State::Inactive => {
                tracing::debug!(peer = %hex(self.id), what, %error, "peer is still inactive");
            }
            State::Closed => {}
        }
    }

    pub(crate) fn close(&self) {
        *self.lock() = State::Closed;
    }

    pub(crate) fn active_since(&self) -> Option<Instant> {
        match *self.lock() {
            State::Active { since, .. } => Some(since),
            State::Inactive | State::Closed => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds a status")
    }
}
