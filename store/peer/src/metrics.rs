//! Counters of the peer port, for the server to read and print under etcd's names.
//!
//! **Invariant:** there is one row per member that was ever a peer or a remote of ours, and one
//! (id 0) for everybody else: what a stranger writes into a message makes no new row.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The counters of one peer. Names follow etcd's `etcd_network_*`.
#[derive(Debug)]
pub struct PeerMetrics {
    /// `peer_sent_bytes_total`
    pub sent_bytes: Counter,
    /// `peer_received_bytes_total`
    pub received_bytes: Counter,
    /// `peer_sent_failures_total`
    pub sent_failures: Counter,
    /// `peer_received_failures_total`
    pub received_failures: Counter,
    /// `active_peers`: 1 or 0
    pub active: Gauge,
    /// `disconnected_peers_total`
    pub disconnected: Counter,
    /// `peer_round_trip_time_seconds`
    pub round_trip_seconds: Histogram,
    /// `snapshot_send_success`
    pub snapshots_sent: Counter,
    /// `snapshot_send_failures`
    pub snapshot_send_failures: Counter,
    /// `snapshot_send_inflights_total`
    pub snapshots_sending: Gauge,
    /// `snapshot_send_total_duration_seconds`
    pub snapshot_send_seconds: Histogram,
    /// `snapshot_receive_success`
    pub snapshots_received: Counter,
    /// `snapshot_receive_failures`
    pub snapshot_receive_failures: Counter,
    /// `snapshot_receive_inflights_total`
    pub snapshots_receiving: Gauge,
    /// `snapshot_receive_total_duration_seconds`
    pub snapshot_receive_seconds: Histogram,
}

impl PeerMetrics {
    fn new() -> Self {
        PeerMetrics {
            sent_bytes: Counter::default(),
            received_bytes: Counter::default(),
            sent_failures: Counter::default(),
            received_failures: Counter::default(),
            active: Gauge::default(),
            disconnected: Counter::default(),
            round_trip_seconds: Histogram::doubling(0.0001, 16),
            snapshots_sent: Counter::default(),
            snapshot_send_failures: Counter::default(),
            snapshots_sending: Gauge::default(),
            snapshot_send_seconds: Histogram::doubling(0.1, 10),
            snapshots_received: Counter::default(),
            snapshot_receive_failures: Counter::default(),
            snapshots_receiving: Gauge::default(),
            snapshot_receive_seconds: Histogram::doubling(0.1, 10),
        }
    }
}

/// All rows.
#[derive(Debug)]
pub struct Metrics {
    rows: Mutex<BTreeMap<u64, Arc<PeerMetrics>>>,
    strangers: Arc<PeerMetrics>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let strangers = Arc::new(PeerMetrics::new());
        let rows = Mutex::new(BTreeMap::from([(0, strangers.clone())]));
        Metrics { rows, strangers }
    }

    /// The row of a member that is about to become a peer or a remote.
    pub(crate) fn open(&self, id: u64) -> Arc<PeerMetrics> {
        self.lock().entry(id).or_insert_with(|| Arc::new(PeerMetrics::new())).clone()
    }

    /// The row of a member, or the row of strangers.
    pub fn of(&self, id: u64) -> Arc<PeerMetrics> {
        self.lock().get(&id).unwrap_or(&self.strangers).clone()
    }

    /// All rows by member id; id 0 stands for unknown senders.
    pub fn rows(&self) -> Vec<(u64, Arc<PeerMetrics>)> {
        self.lock().iter().map(|(id, row)| (*id, row.clone())).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<PeerMetrics>>> {
        self.rows.lock().expect("no code panics while it holds the rows")
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub(crate) fn increment(&self) {
        self.add(1);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that grows and shrinks.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Counts one up until the guard is gone.
    pub(crate) fn hold(row: Arc<PeerMetrics>, gauge: fn(&PeerMetrics) -> &Gauge) -> Held {
        gauge(&row).0.fetch_add(1, Relaxed);
        Held { row, gauge }
    }

    /// The number now.
    pub fn get(&self) -> i64 {
        self.0.load(Relaxed)
    }
}

/// One count of a [`Gauge`].
pub(crate) struct Held {
    row: Arc<PeerMetrics>,
    gauge: fn(&PeerMetrics) -> &Gauge,
}

impl Drop for Held {
    fn drop(&mut self) {
        (self.gauge)(&self.row).0.fetch_sub(1, Relaxed);
    }
}

/// Durations in buckets, each bound twice the one before.
#[derive(Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    /// One more than bounds: the last holds what is above all of them.
    counts: Vec<AtomicU64>,
    sum_nanos: AtomicU64,
}

impl Histogram {
    fn doubling(first: f64, count: i32) -> Self {
        let bounds: Vec<f64> = (0..count).map(|power| first * f64::powi(2.0, power)).collect();
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, sum_nanos: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Relaxed);
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    /// `(upper bound, count at or below it)`, as Prometheus wants them.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut below = 0;
        self.bounds
            .iter()
            .zip(&self.counts)
            .map(|(bound, count)| {
                below += count.load(Relaxed);
                (*bound, below)
            })
            .collect()
    }

    /// How many durations were seen.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    /// All durations together, in seconds.
    pub fn sum(&self) -> f64 {
        self.sum_nanos.load(Relaxed) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_doubling_buckets() {
        let histogram = Histogram::doubling(0.1, 3);
        for millis in [50, 100, 150, 5000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let counts: Vec<u64> = histogram.cumulative().into_iter().map(|(_, count)| count).collect();
        assert_eq!(counts, [2, 3, 3]);
        assert_eq!(histogram.count(), 4);
        assert!((histogram.sum() - 5.3).abs() < 1e-9);
    }

    #[test]
    fn strangers_share_a_row() {
        let metrics = Metrics::new();
        metrics.open(7).sent_bytes.add(1);
        metrics.of(8).received_failures.increment();
        metrics.of(9).received_failures.increment();
        let rows = metrics.rows();
        assert_eq!(rows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 7]);
        assert_eq!(rows[0].1.received_failures.get(), 2);
        assert_eq!(metrics.of(7).sent_bytes.get(), 1);
    }
}
