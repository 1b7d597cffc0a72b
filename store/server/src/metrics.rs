//! Metrics under etcd's names, for the dashboards that people have.
//!
//! Input: counts and durations from all over the member, and at the time of a scrape the numbers
//! that others keep (raft, peers, engine, watch hub). Output: the Prometheus text format.
//! **Invariant:** each member has a registry of its own, so two members in one process don't mix.

use std::time::Duration;

use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder as _, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::core::Core;
use mainstay_mvcc::version::SERVER_VERSION;

/// Everything that is counted where it happens.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) put_total: IntCounter,
    pub(crate) range_total: IntCounter,
    pub(crate) delete_total: IntCounter,
    pub(crate) txn_total: IntCounter,
    pub(crate) proposals_pending: IntGauge,
    pub(crate) proposals_failed: IntCounter,
    pub(crate) lease_granted: IntCounter,
    pub(crate) lease_revoked: IntCounter,
    pub(crate) lease_renewed: IntCounter,
    pub(crate) lease_expired: IntCounter,
    pub(crate) learner_promote_successes: IntCounter,
    pub(crate) learner_promote_failures: IntCounterVec,
    pub(crate) wal_fsync: Histogram,
    pub(crate) wal_write: Histogram,
    pub(crate) wal_bytes: IntGauge,
    pub(crate) engine_flush: Histogram,
    apply: Histogram,
    slow_apply: IntCounter,
    applied: IntGauge,
    id: IntGaugeVec,
    scraped: Scraped,
}

/// What is looked up when somebody asks.
struct Scraped {
    has_leader: IntGauge,
    is_leader: IntGauge,
    is_learner: IntGauge,
    leader_changes: Gauge,
    committed: IntGauge,
    quota: IntGauge,
    size: IntGauge,
    size_in_use: IntGauge,
    current_revision: IntGauge,
    compact_revision: IntGauge,
    watch_streams: IntGauge,
    watchers: IntGauge,
    slow_watchers: IntGauge,
    pending_events: IntGauge,
    events: Gauge,
    heartbeat_failures: Gauge,
    cluster_version: IntGaugeVec,
    known_peers: IntGaugeVec,
}

/// etcd's buckets for what takes milliseconds: 0.001 s, doubled.
fn buckets(start: f64, count: usize) -> Vec<f64> {
    prometheus::exponential_buckets(start, 2.0, count).expect("positive start, factor and count")
}

struct Register<'a>(&'a Registry);

impl Register<'_> {
    fn add<C: prometheus::core::Collector + Clone + 'static>(&self, collector: C) -> C {
        self.0.register(Box::new(collector.clone())).expect("each name is registered once");
        collector
    }
    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help).expect("the name is a valid one"))
    }
    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help).expect("the name is a valid one"))
    }
    /// A count that is kept elsewhere; the text format has no other way to set one.
    fn float(&self, name: &str, help: &str) -> Gauge {
        self.add(Gauge::new(name, help).expect("the name is a valid one"))
    }
    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels).expect("valid names"))
    }
    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        self.add(Histogram::with_opts(options).expect("the name is a valid one"))
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let r = Register(&registry);
        let version = r.gauges(
            "etcd_server_version",
            "Which version is running. 1 for 'server_version' label with current version.",
            &["server_version"],
        );
        version.with_label_values(&[&SERVER_VERSION.to_string()]).set(1);
        let failures = Opts::new(
            "etcd_server_learner_promote_failures",
            "The total number of failed learner promotions (likely learner not ready) while this member is leader.",
        );
        Self {
            put_total: r.counter("etcd_mvcc_put_total", "Total number of puts seen by this member."),
            range_total: r.counter("etcd_mvcc_range_total", "Total number of ranges seen by this member."),
            delete_total: r.counter("etcd_mvcc_delete_total", "Total number of deletes seen by this member."),
            txn_total: r.counter("etcd_mvcc_txn_total", "Total number of txns seen by this member."),
            proposals_pending: r.gauge("etcd_server_proposals_pending", "The current number of pending proposals to commit."),
            proposals_failed: r.counter("etcd_server_proposals_failed_total", "The total number of failed proposals seen."),
            lease_granted: r.counter("etcd_debugging_lease_granted_total", "The total number of granted leases."),
            lease_revoked: r.counter("etcd_debugging_lease_revoked_total", "The total number of revoked leases."),
            lease_renewed: r.counter("etcd_debugging_lease_renewed_total", "The number of renewed leases seen by the leader."),
            lease_expired: r.counter("etcd_debugging_server_lease_expired_total", "The total number of expired leases."),
            learner_promote_successes: r.counter("etcd_server_learner_promote_successes", "The total number of successful learner promotions while this member is leader."),
            learner_promote_failures: r.add(IntCounterVec::new(failures, &["Reason"]).expect("valid names")),
            wal_fsync: r.histogram("etcd_disk_wal_fsync_duration_seconds", "The latency distributions of fsync called by WAL.", buckets(0.001, 14)),
            wal_write: r.histogram("etcd_disk_wal_write_duration_seconds", "The latency distributions of write called by WAL.", buckets(0.001, 14)),
            wal_bytes: r.gauge("etcd_disk_wal_write_bytes_total", "Total number of bytes written in WAL."),
            engine_flush: r.histogram("etcd_disk_backend_commit_duration_seconds", "The latency distributions of commit called by backend.", buckets(0.001, 14)),
            apply: r.histogram("etcd_mainstay_apply_batch_duration_seconds", "The latency distributions of applying one batch of entries.", buckets(0.0001, 20)),
            slow_apply: r.counter("etcd_server_slow_apply_total", "The total number of slow apply requests (likely overloaded from slow disk)."),
            id: r.gauges("etcd_server_id", "Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.", &["server_id"]),
            applied: r.gauge("etcd_server_proposals_applied_total", "The total number of consensus proposals applied."),
            scraped: Scraped::new(&r),
            registry,
        }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The member knows who it is.
    pub(crate) fn set_member(&self, id: u64) {
        self.id.with_label_values(&[&format!("{id:x}")]).set(1);
    }

    /// A batch was applied up to `index`.
    pub(crate) fn applied(&self, index: u64, took: Duration, is_slow: bool) {
        self.applied.set(index as i64);
        self.apply.observe(took.as_secs_f64());
        if is_slow {
            self.slow_apply.inc();
        }
    }

    /// The text of all metrics, with families that are made elsewhere.
    pub(crate) fn render(&self, more: Vec<MetricFamily>) -> String {
        let mut families = self.registry.gather();
        families.extend(more);
        families.sort_by(|a, b| a.name().cmp(b.name()));
        let mut text = Vec::new();
        TextEncoder::new().encode(&families, &mut text).expect("metrics are written to memory");
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Scraped {
    fn new(r: &Register<'_>) -> Self {
        Self {
            has_leader: r.gauge("etcd_server_has_leader", "Whether or not a leader exists. 1 is existence, 0 is not."),
            is_leader: r.gauge("etcd_server_is_leader", "Whether or not this member is a leader. 1 if is, 0 otherwise."),
            is_learner: r.gauge("etcd_server_is_learner", "Whether or not this member is a learner. 1 if is, 0 otherwise."),
            leader_changes: r.float("etcd_server_leader_changes_seen_total", "The number of leader changes seen."),
            committed: r.gauge("etcd_server_proposals_committed_total", "The total number of consensus proposals committed."),
            quota: r.gauge("etcd_server_quota_backend_bytes", "Current backend storage quota size in bytes."),
            size: r.gauge("etcd_mvcc_db_total_size_in_bytes", "Total size of the underlying database physically allocated in bytes."),
            size_in_use: r.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Total size of the underlying database logically in use in bytes."),
            current_revision: r.gauge("etcd_debugging_mvcc_current_revision", "The current revision of store."),
            compact_revision: r.gauge("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction in store."),
            watch_streams: r.gauge("etcd_debugging_mvcc_watch_stream_total", "Total number of watch streams."),
            watchers: r.gauge("etcd_debugging_mvcc_watcher_total", "Total number of watchers."),
            slow_watchers: r.gauge("etcd_debugging_mvcc_slow_watcher_total", "Total number of unsynced slow watchers."),
            pending_events: r.gauge("etcd_debugging_mvcc_pending_events_total", "Total number of pending events to be sent."),
            events: r.float("etcd_debugging_mvcc_events_total", "Total number of events sent by this member."),
            heartbeat_failures: r.float("etcd_server_heartbeat_send_failures_total", "The total number of leader heartbeat send failures (likely overloaded from slow disk)."),
            cluster_version: r.gauges("etcd_cluster_version", "Which version is running. 1 for 'cluster_version' label with current cluster version", &["cluster_version"]),
            known_peers: r.gauges("etcd_network_known_peers", "The current number of known peers.", &["Local", "Remote"]),
        }
    }
}

impl Core {
    /// Takes in the numbers that are kept elsewhere.
    pub(crate) fn refresh_metrics(&self) {
        let s = &self.metrics.scraped;
        let published = self.published.load_full();
        let leader = self.leadership.leader();
        s.has_leader.set(i64::from(leader != 0));
        s.is_leader.set(i64::from(self.leadership.is_local()));
        s.is_learner.set(i64::from(self.is_learner()));
        s.leader_changes.set(self.leadership.now().changes as f64);
        s.committed.set(self.committed.load(std::sync::atomic::Ordering::Relaxed) as i64);
        s.quota.set(self.config.quota().unwrap_or(0) as i64);
        let usage = published.generation.engine().usage();
        s.size.set(usage.total_bytes as i64);
        s.size_in_use.set(usage.in_use_bytes as i64);
        s.current_revision.set(published.revision());
        s.compact_revision.set(published.state.compacted);
        let watch = self.watch.metrics();
        s.watch_streams.set(watch.streams as i64);
        s.watchers.set(watch.watchers as i64);
        s.slow_watchers.set(watch.slow_watchers as i64);
        s.pending_events.set(watch.pending_events as i64);
        s.events.set(watch.events_total as f64);
        if let Ok(raft) = self.raft.get() {
            let failures = &raft.counters().heartbeat_send_failures;
            s.heartbeat_failures.set(failures.load(std::sync::atomic::Ordering::Relaxed) as f64);
        }
        if let Some(version) = published.state.cluster_version {
            s.cluster_version.reset();
            s.cluster_version.with_label_values(&[&crate::version::short(version)]).set(1);
        }
        let own = format!("{:x}", self.identity.member_id);
        s.known_peers.reset();
        for member in published.state.members.members() {
            s.known_peers.with_label_values(&[&own, &format!("{:x}", member.id)]).set(1);
        }
    }
}
