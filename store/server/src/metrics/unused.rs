//! Series of etcd for things that are not here. They stay at zero, so that dashboards and tests
//! that ask for every name find it. docs/monitoring.md tells why for each.

use super::register::{Register, buckets, milliseconds};

/// Adds them.
pub(super) fn add(r: &Register<'_>) {
    for (name, help) in [
        (
            "etcd_debugging_disk_backend_commit_rebalance_duration_seconds",
            "The latency distributions of commit.rebalance called by bboltdb backend.",
        ),
        (
            "etcd_debugging_disk_backend_commit_spill_duration_seconds",
            "The latency distributions of commit.spill called by bboltdb backend.",
        ),
        (
            "etcd_debugging_snap_save_marshalling_duration_seconds",
            "The marshalling cost distributions of save called by snapshot.",
        ),
        (
            "etcd_debugging_snap_save_total_duration_seconds",
            "The total latency distributions of save called by snapshot.",
        ),
        ("etcd_snap_fsync_duration_seconds", "The latency distributions of fsync called by snap."),
    ] {
        r.histogram(name, help, milliseconds());
    }
    r.histogram(
        "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds",
        "Bucketed histogram of index compaction pause duration.",
        buckets(0.5, 14),
    );
    for (name, help) in [
        ("etcd_debugging_store_expires_total", "Total number of expired keys."),
        (
            "etcd_debugging_store_watch_requests_total",
            "Total number of incoming watch requests (new or reestablished).",
        ),
        ("etcd_grpc_proxy_events_coalescing_total", "Total number of events coalescing"),
    ] {
        r.counter(name, help);
    }
    for (name, help) in [
        ("etcd_debugging_store_watchers", "Count of currently active watchers."),
        ("etcd_grpc_proxy_cache_hits_total", "Total number of cache hits"),
        ("etcd_grpc_proxy_cache_keys_total", "Total number of keys/ranges cached"),
        ("etcd_grpc_proxy_cache_misses_total", "Total number of cache misses"),
        (
            "etcd_grpc_proxy_watchers_coalescing_total",
            "Total number of current watchers coalescing",
        ),
    ] {
        r.gauge(name, help);
    }
}
