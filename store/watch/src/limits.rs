//! Who we are and how much the hub may hold: every bound of this crate has its name here.

use std::time::Duration;

/// What a hub is told when it is made.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Goes into every response header.
    pub cluster_id: u64,
    /// Goes into every response header.
    pub member_id: u64,
    /// How often an idle watcher with `progress_notify` hears the current revision.
    pub progress_interval: Duration,
    /// Responses of watchers with `fragment` are cut at this encoded size. etcd uses its request
    /// limit plus 512 KiB.
    pub fragment_bytes: usize,
    /// The bounds.
    pub limits: Limits,
}

impl HubConfig {
    /// etcd's shortest progress interval.
    pub const MIN_PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

    /// etcd's defaults.
    pub fn new(cluster_id: u64, member_id: u64) -> Self {
        Self {
            cluster_id,
            member_id,
            progress_interval: Duration::from_secs(600),
            fragment_bytes: 1_572_864 + 512 * 1024,
            limits: Limits::default(),
        }
    }
}

/// Bounds on memory and on the work of one step.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Responses that a stream may hold unread, above one for each of its watchers.
    pub queue_responses: usize,
    /// Bytes that a stream may hold unread. One response may overshoot it.
    pub queue_bytes: usize,
    /// Bytes that all streams together may hold unread. Beyond it each stream may hold no more
    /// than `pressed_bytes`.
    pub total_bytes: usize,
    /// What a stream may hold unread while `total_bytes` is exceeded.
    pub pressed_bytes: usize,
    /// Requests of a stream whose answer has not been read; more wait at the sender.
    pub open_requests: usize,
    /// Revisions with events in one catch-up response (etcd's batch).
    pub batch_revisions: usize,
    /// Bytes of events, previous values included, in one catch-up read.
    pub batch_bytes: usize,
    /// Rows that one catch-up read looks at.
    pub batch_rows: usize,
    /// Watchers that share one catch-up read.
    pub batch_watchers: usize,
    /// Watchers that are behind by no more than this are read for on the hub's own thread, so
    /// that they can become live at once.
    pub near_revisions: i64,
    /// Events that wait for the hub. Beyond it only the newest revision is kept and all watchers
    /// read from history.
    pub inbox_events: usize,
    /// Bytes of events that wait for the hub.
    pub inbox_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_responses: 4096,
            queue_bytes: 4 << 20,
            total_bytes: 512 << 20,
            pressed_bytes: 64 << 10,
            open_requests: 16,
            batch_revisions: 1000,
            batch_bytes: 2 << 20,
            batch_rows: 8192,
            batch_watchers: 4096,
            near_revisions: 256,
            inbox_events: 65_536,
            inbox_bytes: 64 << 20,
        }
    }
}
