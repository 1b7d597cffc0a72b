//! Metrics under etcd's names, for the dashboards that people have.
//!
//! Input: counts and durations from all over the member, and at the time of a scrape the numbers
//! that others keep (raft, peers, engine, watch hub). Output: the Prometheus text format.
//! Names, types, labels and buckets of `etcd_*` are etcd's; what etcd does not have begins with
//! `mainstay_` and is in [`own`].
//! **Invariant:** each member has a registry of its own, so two members in one process don't mix.
//! **Invariant:** counting on the way of a request takes no lock and no allocation.

mod own;
pub(crate) mod register;
mod scraped;
mod unused;

use std::time::Duration;

use mainstay_mvcc::version::SERVER_VERSION;
use mainstay_mvcc::{Applied, Error, LeaseChange, Op, Outcome, Tally};
use prometheus::proto::MetricFamily;
use prometheus::{
    Encoder as _, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};

use self::own::Own;
use self::register::{Durations, Register, buckets, milliseconds};
use self::scraped::Scraped;

/// The compiler, in the labels that etcd has for Go's version.
pub(crate) const COMPILER: &str = concat!("rust", env!("MAINSTAY_RUST"));

/// Kinds of requests beside those that enter the log.
const READ_ONLY_TXN: usize = Op::ALL.len();

/// Everything that is counted where it happens.
pub(crate) struct Metrics {
    registry: Registry,
    keys: Keys,
    leases: Leases,
    pub(crate) proposals_pending: IntGauge,
    pub(crate) proposals_failed: IntCounter,
    pub(crate) lease_renewed: IntCounter,
    pub(crate) lease_expired: IntCounter,
    pub(crate) learner_promote_successes: IntCounter,
    pub(crate) learner_promote_failures: IntCounterVec,
    pub(crate) wal_fsync: Histogram,
    pub(crate) wal_write: Histogram,
    pub(crate) wal_bytes: IntGauge,
    pub(crate) defrag: Histogram,
    pub(crate) defrag_inflight: IntGauge,
    /// Making a snapshot, from the pinned view to its last byte.
    pub(crate) snapshot: Histogram,
    pub(crate) snapshot_received_fsync: Histogram,
    pub(crate) snapshot_received: Histogram,
    pub(crate) snapshot_installing: IntGauge,
    pub(crate) hash: Histogram,
    pub(crate) hash_by_revision: Histogram,
    pub(crate) compaction: Compaction,
    pub(crate) own: Own,
    commit: Histogram,
    commit_write: Histogram,
    apply_seconds: Durations,
    request_seconds: Durations,
    range_seconds: Durations,
    slow_apply: IntCounter,
    applied: IntGauge,
    id: IntGaugeVec,
    scraped: Scraped,
}

/// What was done to keys.
struct Keys {
    puts: IntCounter,
    put_bytes: IntGauge,
    ranges: IntCounter,
    deletes: IntCounter,
    txns: IntCounter,
}

/// What was done to leases.
struct Leases {
    granted: IntCounter,
    revoked: IntCounter,
    ttl: Histogram,
}

/// What compactions deleted, and how long it took.
pub(crate) struct Compaction {
    rows: IntCounter,
    last: IntGauge,
    pause: Histogram,
    total: Histogram,
}

impl Compaction {
    /// The apply thread wrote the deletions of a slice.
    pub(crate) fn slice(&self, rows: u64, took: Duration) {
        self.rows.inc_by(rows);
        self.pause.observe(took.as_millis() as f64);
    }

    /// All deletions are done, `took` after they were begun.
    pub(crate) fn finished(&self, took: Duration) {
        self.total.observe(took.as_millis() as f64);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.last.set(now.unwrap_or_default().as_secs() as i64);
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::new();
        let r = Register(&registry);
        for (name, help, label, value) in [
            (
                "etcd_server_version",
                "Which version is running. 1 for 'server_version' label with current version.",
                "server_version",
                &*SERVER_VERSION.to_string(),
            ),
            (
                "etcd_server_go_version",
                "Which Go version server is running with. 1 for 'server_go_version' label with current version.",
                "server_go_version",
                COMPILER,
            ),
        ] {
            r.gauges(name, help, &[label]).with_label_values(&[value]).set(1);
        }
        unused::add(&r);
        Self {
            keys: Keys {
                puts: r.counter("etcd_mvcc_put_total", "Total number of puts seen by this member."),
                put_bytes: r.gauge("etcd_debugging_mvcc_total_put_size_in_bytes", "The total size of put kv pairs seen by this member."),
                ranges: r.counter("etcd_mvcc_range_total", "Total number of ranges seen by this member."),
                deletes: r.counter("etcd_mvcc_delete_total", "Total number of deletes seen by this member."),
                txns: r.counter("etcd_mvcc_txn_total", "Total number of txns seen by this member."),
            },
            leases: Leases {
                granted: r.counter("etcd_debugging_lease_granted_total", "The total number of granted leases."),
                revoked: r.counter("etcd_debugging_lease_revoked_total", "The total number of revoked leases."),
                ttl: r.histogram("etcd_debugging_lease_ttl_total", "Bucketed histogram of lease TTLs.", buckets(1.0, 24)),
            },
            proposals_pending: r.gauge("etcd_server_proposals_pending", "The current number of pending proposals to commit."),
            proposals_failed: r.counter("etcd_server_proposals_failed_total", "The total number of failed proposals seen."),
            lease_renewed: r.counter("etcd_debugging_lease_renewed_total", "The number of renewed leases seen by the leader."),
            lease_expired: r.counter("etcd_debugging_server_lease_expired_total", "The total number of expired leases."),
            learner_promote_successes: r.counter("etcd_server_learner_promote_successes", "The total number of successful learner promotions while this member is leader."),
            learner_promote_failures: r.counters("etcd_server_learner_promote_failures", "The total number of failed learner promotions (likely learner not ready) while this member is leader.", &["Reason"]),
            wal_fsync: r.histogram("etcd_disk_wal_fsync_duration_seconds", "The latency distributions of fsync called by WAL.", milliseconds()),
            wal_write: r.histogram("etcd_disk_wal_write_duration_seconds", "The latency distributions of write called by WAL.", milliseconds()),
            wal_bytes: r.gauge("etcd_disk_wal_write_bytes_total", "Total number of bytes written in WAL."),
            defrag: r.histogram("etcd_disk_backend_defrag_duration_seconds", "The latency distribution of backend defragmentation.", buckets(0.1, 13)),
            defrag_inflight: r.gauge("etcd_disk_defrag_inflight", "Whether or not defrag is active on the member. 1 means active, 0 means not."),
            snapshot: r.histogram("etcd_disk_backend_snapshot_duration_seconds", "The latency distribution of backend snapshots.", buckets(0.01, 17)),
            snapshot_received_fsync: r.histogram("etcd_snap_db_fsync_duration_seconds", "The latency distributions of fsyncing .snap.db file", milliseconds()),
            snapshot_received: r.histogram("etcd_snap_db_save_total_duration_seconds", "The total latency distributions of v3 snapshot save", buckets(0.1, 10)),
            snapshot_installing: r.gauge("etcd_server_snapshot_apply_in_progress_total", "1 if the server is applying the incoming snapshot. 0 if none."),
            hash: r.histogram("etcd_mvcc_hash_duration_seconds", "The latency distribution of storage hash operation.", buckets(0.01, 15)),
            hash_by_revision: r.histogram("etcd_mvcc_hash_rev_duration_seconds", "The latency distribution of storage hash by revision operation.", buckets(0.01, 15)),
            compaction: Compaction {
                rows: r.counter("etcd_debugging_mvcc_db_compaction_keys_total", "Total number of db keys compacted."),
                last: r.gauge("etcd_debugging_mvcc_db_compaction_last", "The unix time of the last db compaction. Resets to 0 on start."),
                pause: r.histogram("etcd_debugging_mvcc_db_compaction_pause_duration_milliseconds", "Bucketed histogram of db compaction pause duration.", buckets(1.0, 13)),
                total: r.histogram("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds", "Bucketed histogram of db compaction total duration.", buckets(100.0, 14)),
            },
            own: Own::new(&r),
            commit: r.histogram("etcd_disk_backend_commit_duration_seconds", "The latency distributions of commit called by backend.", milliseconds()),
            commit_write: r.histogram("etcd_debugging_disk_backend_commit_write_duration_seconds", "The latency distributions of commit.write called by bboltdb backend.", milliseconds()),
            apply_seconds: r.durations("etcd_server_apply_duration_seconds", "The latency distributions of v2 apply called by backend.", buckets(0.0001, 20), &["version", "op", "success"], Op::ALL.len()),
            request_seconds: r.durations("etcd_server_request_duration_seconds", "Response latency distribution in seconds for each type.", milliseconds(), &["type", "success"], Op::ALL.len() + 1),
            range_seconds: r.durations("etcd_server_range_duration_seconds", "The latency distributions of txn.Range", buckets(0.0001, 20), &["success"], 1),
            slow_apply: r.counter("etcd_server_slow_apply_total", "The total number of slow apply requests (likely overloaded from slow disk)."),
            applied: r.gauge("etcd_server_proposals_applied_total", "The total number of consensus proposals applied."),
            id: r.gauges("etcd_server_id", "Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.", &["server_id"]),
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

    /// One entry was applied; it is not written to the engine yet.
    pub(crate) fn applied_entry(&self, outcome: &Outcome, took: Duration) {
        let Some(op) = outcome.op else { return };
        let success = matches!(outcome.result, Ok(_) | Err(Error::Compacted));
        self.apply_seconds.observe(op as usize, success, took, |success| {
            let name = match op {
                // So it is with etcd.
                Op::AuthStatus | Op::Unknown => "unknown",
                op => op.name(),
            };
            ["v3", name, success]
        });
    }

    /// The engine took a batch.
    pub(crate) fn committed(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.commit.observe(seconds);
        self.commit_write.observe(seconds);
    }

    /// What a batch did is published.
    pub(crate) fn applied(&self, applied: &Applied) {
        let Tally { puts, put_bytes, deletes, ranges, txns } = applied.tally;
        self.keys.puts.inc_by(puts);
        self.keys.put_bytes.add(put_bytes as i64);
        self.keys.deletes.inc_by(deletes);
        self.keys.ranges.inc_by(ranges);
        self.keys.txns.inc_by(txns);
        for change in &applied.lease_changes {
            match change {
                LeaseChange::Granted { ttl, .. } => {
                    self.leases.granted.inc();
                    self.leases.ttl.observe(*ttl as f64);
                }
                LeaseChange::Revoked { .. } => self.leases.revoked.inc(),
                LeaseChange::Checkpoint { .. } => {}
            }
        }
    }

    /// A batch was dealt with up to `index`.
    pub(crate) fn applied_batch(&self, index: u64, took: Duration, is_slow: bool) {
        self.applied.set(index as i64);
        self.own.apply_batch.observe(took.as_secs_f64());
        if is_slow {
            self.slow_apply.inc();
        }
    }

    /// A request that enters the log got an answer, or did not.
    pub(crate) fn request(&self, op: Op, answered: bool, took: Duration) {
        let labels = |success| [op.name(), success];
        self.request_seconds.observe(op as usize, answered, took, labels);
    }

    /// A read-only transaction of so many ranges and compares was read.
    pub(crate) fn read_txn(&self, ranges: usize, success: bool, took: Duration) {
        let labels = |success| ["ReadonlyTxn", success];
        self.request_seconds.observe(READ_ONLY_TXN, success, took, labels);
        if success {
            self.keys.ranges.inc_by(ranges as u64);
            self.keys.txns.inc_by(u64::from(ranges > 1));
        }
    }

    /// A range was read from the published state.
    pub(crate) fn range(&self, success: bool, took: Duration) {
        self.keys.ranges.inc();
        self.range_seconds.observe(0, success, took, |success| [success]);
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
