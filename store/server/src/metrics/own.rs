//! What etcd does not have: the engine, the raft thread's loop, and for each limit how full it is
//! and what it refused. All names begin with `mainstay_`.

use prometheus::{Histogram, IntCounter, IntGauge, IntGaugeVec};

use super::register::{Kept, Register, buckets, milliseconds};
use crate::core::Core;

/// Counted where it happens, and looked up when somebody asks.
pub(crate) struct Own {
    pub(crate) apply_batch: Histogram,
    pub(crate) engine_flush: Histogram,
    pub(crate) compaction_hash: Histogram,
    /// Requests that were refused because too much was committed and not applied.
    pub(crate) apply_lag_refused: IntCounter,
    /// Requests that did not fit into the quota.
    pub(crate) quota_refused: IntCounter,
    /// Requests that were refused because the disk is almost full.
    pub(crate) disk_refused: IntCounter,
    disk_available: IntGaugeVec,
    disk_reserve: IntGaugeVec,
    pub(crate) snapshots_staged: IntCounter,
    apply_lag: IntGauge,
    inbox_waiting: IntGaugeVec,
    inbox_bytes: IntGaugeVec,
    inbox_refused: [Kept; 3],
    uncommitted_refused: Kept,
    messages_refused: Kept,
    reads_refused: Kept,
    ticks_missed: Kept,
    log_batches: Kept,
    log_entries: Kept,
    engine_bytes: IntGaugeVec,
    large_reads: IntGauge,
    watch_queued: IntGauge,
    watch_overflows: Kept,
    tokens: IntGauge,
}

/// Kinds of what waits for the raft thread.
const INBOX: [&str; 3] = ["proposal", "message", "request"];

impl Own {
    pub(super) fn new(r: &Register<'_>) -> Self {
        let refused = r.counters(
            "mainstay_raft_inbox_refused_total",
            "What was refused because the inbox of the raft thread was full, by kind.",
            &["kind"],
        );
        Self {
            apply_batch: r.histogram(
                "mainstay_apply_batch_duration_seconds",
                "The latency distributions of applying one batch of entries.",
                buckets(0.0001, 20),
            ),
            engine_flush: r.histogram(
                "mainstay_engine_flush_duration_seconds",
                "The latency distributions of making the engine durable.",
                milliseconds(),
            ),
            compaction_hash: r.histogram(
                "mainstay_compaction_hash_duration_seconds",
                "The latency distributions of hashing what a compaction leaves.",
                buckets(0.01, 15),
            ),
            apply_lag_refused: r.counter(
                "mainstay_apply_lag_refused_total",
                "Requests that were refused because too many entries were committed and not applied.",
            ),
            quota_refused: r.counter(
                "mainstay_quota_refused_total",
                "Requests that were refused because they did not fit into the quota.",
            ),
            disk_refused: r.counter(
                "mainstay_disk_refused_total",
                "Requests that were refused because the disk is almost full.",
            ),
            disk_available: r.gauges(
                "mainstay_disk_available_bytes",
                "Room on the file system, of the data and of a separate log.",
                &["place"],
            ),
            disk_reserve: r.gauges(
                "mainstay_disk_reserve_bytes",
                "Room below which writes are refused.",
                &["place"],
            ),
            snapshots_staged: r.counter(
                "mainstay_snapshots_staged_total",
                "Snapshots of the leader that were received, checked and made ready.",
            ),
            apply_lag: r.gauge(
                "mainstay_apply_lag_entries",
                "Entries that are committed and not applied.",
            ),
            inbox_waiting: r.gauges(
                "mainstay_raft_inbox_waiting",
                "What waits for the raft thread, by kind.",
                &["kind"],
            ),
            inbox_bytes: r.gauges(
                "mainstay_raft_inbox_bytes",
                "Bytes of what waits for the raft thread, by kind.",
                &["kind"],
            ),
            inbox_refused: INBOX.map(|kind| Kept::of(refused.with_label_values(&[kind]))),
            uncommitted_refused: r.kept(
                "mainstay_raft_uncommitted_refused_total",
                "Proposals that were refused because too many bytes were not committed.",
            ),
            messages_refused: r.kept(
                "mainstay_raft_messages_refused_total",
                "Messages of members that were refused as malformed or useless.",
            ),
            reads_refused: r.kept(
                "mainstay_raft_reads_refused_total",
                "Read index requests that were lost and had to be sent again.",
            ),
            ticks_missed: r.kept(
                "mainstay_raft_ticks_missed_total",
                "Ticks that did not fire because the raft thread was busy.",
            ),
            log_batches: r.kept(
                "mainstay_raft_log_batches_total",
                "Passes of the raft thread that wrote to the log.",
            ),
            log_entries: r.kept(
                "mainstay_raft_log_entries_total",
                "Entries that the raft thread wrote to the log.",
            ),
            engine_bytes: r.gauges(
                "mainstay_engine_bytes",
                "Bytes of the engine: in files, waiting in memory, of memory tables, of the block cache.",
                &["where"],
            ),
            large_reads: r.gauge(
                "mainstay_large_reads",
                "Large reads that run on threads of their own.",
            ),
            watch_queued: r.gauge(
                "mainstay_watch_queued_bytes",
                "Bytes that wait for the clients of watch streams.",
            ),
            watch_overflows: r.kept(
                "mainstay_watch_inbox_overflows_total",
                "Times that events did not fit in front of the watch hub and were left to be read.",
            ),
            tokens: r.gauge(
                "mainstay_auth_tokens",
                "Simple tokens of users that are remembered.",
            ),
        }
    }

    /// Takes in how much room a file system has.
    pub(crate) fn disk(&self, place: &str, available: u64, reserve: u64) {
        self.disk_available.with_label_values(&[place]).set(available as i64);
        self.disk_reserve.with_label_values(&[place]).set(reserve as i64);
    }

    pub(super) fn refresh(&self, core: &Core) {
        use std::sync::atomic::Ordering::Relaxed;
        let committed = core.committed.load(Relaxed);
        self.apply_lag.set(committed.saturating_sub(core.applied.get()) as i64);
        if let Ok(raft) = core.raft.get() {
            let waiting = raft.waiting();
            let waits = [waiting.proposals, waiting.messages, waiting.requests];
            let bytes = [waiting.proposal_bytes, waiting.message_bytes];
            for (kind, waits) in INBOX.iter().zip(waits) {
                self.inbox_waiting.with_label_values(&[kind]).set(waits as i64);
            }
            // Other requests have no bytes worth a limit.
            for (kind, bytes) in INBOX.iter().zip(bytes) {
                self.inbox_bytes.with_label_values(&[kind]).set(bytes as i64);
            }
            let counters = raft.counters();
            let full =
                [&counters.proposals_full, &counters.messages_dropped, &counters.requests_full];
            for (refused, now) in self.inbox_refused.iter().zip(full) {
                refused.set(now.load(Relaxed));
            }
            self.uncommitted_refused.set(counters.proposals_uncommitted.load(Relaxed));
            self.messages_refused.set(counters.messages_refused.load(Relaxed));
            self.reads_refused.set(counters.reads_refused.load(Relaxed));
            self.ticks_missed.set(counters.ticks_missed.load(Relaxed));
            self.log_batches.set(counters.log_batches.load(Relaxed));
            self.log_entries.set(counters.log_entries.load(Relaxed));
        }
        let usage = core.usage();
        for (place, bytes) in [
            ("files", usage.file_bytes),
            ("waiting", usage.memory_bytes),
            ("memtables", usage.memtable_bytes),
            ("cache", usage.cache_bytes),
        ] {
            self.engine_bytes.with_label_values(&[place]).set(bytes as i64);
        }
        self.large_reads.set(core.large_reads_running() as i64);
        let watch = core.watch.metrics();
        self.watch_queued.set(watch.queued_bytes as i64);
        self.watch_overflows.set(watch.inbox_overflows);
        self.tokens.set(core.tokens.count() as i64);
    }
}
