//! Series whose numbers are kept elsewhere, and looked up when somebody asks.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use mainstay_proto::etcdserverpb::AlarmType;
use prometheus::{IntGauge, IntGaugeVec};

use super::register::{Kept, Register};
use crate::config::StoreConfig;
use crate::core::Core;

pub(super) struct Scraped {
    has_leader: IntGauge,
    is_leader: IntGauge,
    is_learner: IntGauge,
    leader_changes: Kept,
    committed: IntGauge,
    quota: IntGauge,
    size: IntGauge,
    size_in_use: IntGauge,
    open_views: IntGauge,
    current_revision: IntGauge,
    compact_revision: IntGauge,
    keys: IntGauge,
    auth_revision: IntGauge,
    watch_streams: IntGauge,
    watchers: IntGauge,
    slow_watchers: IntGauge,
    pending_events: IntGauge,
    events: Kept,
    heartbeat_failures: Kept,
    reads_slow: Kept,
    reads_failed: Kept,
    cluster_version: IntGaugeVec,
    known_peers: IntGaugeVec,
    features: IntGaugeVec,
    alarms: IntGaugeVec,
    /// Alarms that were raised at a scrape: their series stay, as with etcd.
    alarms_seen: Mutex<BTreeSet<(u64, i32)>>,
}

impl Scraped {
    pub(super) fn new(r: &Register<'_>) -> Self {
        Self {
            has_leader: r.gauge("etcd_server_has_leader", "Whether or not a leader exists. 1 is existence, 0 is not."),
            is_leader: r.gauge("etcd_server_is_leader", "Whether or not this member is a leader. 1 if is, 0 otherwise."),
            is_learner: r.gauge("etcd_server_is_learner", "Whether or not this member is a learner. 1 if is, 0 otherwise."),
            leader_changes: r.kept("etcd_server_leader_changes_seen_total", "The number of leader changes seen."),
            committed: r.gauge("etcd_server_proposals_committed_total", "The total number of consensus proposals committed."),
            quota: r.gauge("etcd_server_quota_backend_bytes", "Current backend storage quota size in bytes."),
            size: r.gauge("etcd_mvcc_db_total_size_in_bytes", "Total size of the underlying database physically allocated in bytes."),
            size_in_use: r.gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Total size of the underlying database logically in use in bytes."),
            open_views: r.gauge("etcd_mvcc_db_open_read_transactions", "The number of currently open read transactions"),
            current_revision: r.gauge("etcd_debugging_mvcc_current_revision", "The current revision of store."),
            compact_revision: r.gauge("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction in store."),
            keys: r.gauge("etcd_debugging_mvcc_keys_total", "Total number of keys."),
            auth_revision: r.gauge("etcd_debugging_auth_revision", "The current revision of auth store."),
            watch_streams: r.gauge("etcd_debugging_mvcc_watch_stream_total", "Total number of watch streams."),
            watchers: r.gauge("etcd_debugging_mvcc_watcher_total", "Total number of watchers."),
            slow_watchers: r.gauge("etcd_debugging_mvcc_slow_watcher_total", "Total number of unsynced slow watchers."),
            pending_events: r.gauge("etcd_debugging_mvcc_pending_events_total", "Total number of pending events to be sent."),
            events: r.kept("etcd_debugging_mvcc_events_total", "Total number of events sent by this member."),
            heartbeat_failures: r.kept("etcd_server_heartbeat_send_failures_total", "The total number of leader heartbeat send failures (likely overloaded from slow disk)."),
            reads_slow: r.kept("etcd_server_slow_read_indexes_total", "The total number of pending read indexes not in sync with leader's or timed out read index requests."),
            reads_failed: r.kept("etcd_server_read_indexes_failed_total", "The total number of failed read indexes seen."),
            cluster_version: r.gauges("etcd_cluster_version", "Which version is running. 1 for 'cluster_version' label with current cluster version", &["cluster_version"]),
            known_peers: r.gauges("etcd_network_known_peers", "The current number of known peers.", &["Local", "Remote"]),
            features: r.gauges("etcd_server_feature_enabled", "Whether or not a feature is enabled. 1 is enabled, 0 is not.", &["name", "stage"]),
            alarms: r.gauges("etcd_debugging_server_alarms", "Alarms for every member in cluster. 1 for 'server_id' label with current ID. 2 for 'alarm_type' label with type of this alarm", &["server_id", "alarm_type"]),
            alarms_seen: Mutex::default(),
        }
    }
}

impl Core {
    /// Takes in the numbers that are kept elsewhere.
    pub(crate) fn refresh_metrics(&self) {
        let s = &self.metrics.scraped;
        let published = self.published.load_full();
        let state = &published.state;
        let leader = self.leadership.leader();
        s.has_leader.set(i64::from(leader != 0));
        s.is_leader.set(i64::from(self.leadership.is_local()));
        s.is_learner.set(i64::from(self.is_learner()));
        s.leader_changes.set(self.leadership.now().changes);
        s.committed.set(self.committed.load(Ordering::Relaxed) as i64);
        s.quota.set(self.config.quota().unwrap_or(0) as i64);
        let usage = published.generation.engine().usage();
        s.size.set(usage.total_bytes as i64);
        s.size_in_use.set(usage.in_use_bytes as i64);
        s.open_views.set(published.generation.open_views() as i64);
        s.current_revision.set(published.revision());
        s.compact_revision.set(state.compacted);
        s.keys.set(state.live_keys as i64);
        s.auth_revision.set(state.auth.revision() as i64);
        let watch = self.watch.metrics();
        s.watch_streams.set(watch.streams as i64);
        s.watchers.set(watch.watchers as i64);
        s.slow_watchers.set(watch.slow_watchers as i64);
        s.pending_events.set(watch.pending_events as i64);
        s.events.set(watch.events_total);
        if let Ok(raft) = self.raft.get() {
            let failures = &raft.counters().heartbeat_send_failures;
            s.heartbeat_failures.set(failures.load(Ordering::Relaxed));
        }
        s.reads_slow.set(self.reads.slow());
        s.reads_failed.set(self.reads.failed());
        if let Some(version) = state.cluster_version {
            s.cluster_version.reset();
            s.cluster_version.with_label_values(&[&crate::version::short(version)]).set(1);
        }
        let own = format!("{:x}", self.identity.member_id);
        s.known_peers.reset();
        for member in state.members.members() {
            s.known_peers.with_label_values(&[&own, &format!("{:x}", member.id)]).set(1);
        }
        for (name, stage, enabled) in features(&self.config) {
            s.features.with_label_values(&[name, stage]).set(i64::from(enabled));
        }
        // Each change is one insert, so the set is whole after any panic.
        let mut seen = s.alarms_seen.lock().unwrap_or_else(PoisonError::into_inner);
        let raised: BTreeSet<(u64, i32)> = state
            .alarms
            .list(AlarmType::None)
            .iter()
            .map(|alarm| (alarm.member_id, alarm.alarm))
            .collect();
        seen.extend(&raised);
        for alarm @ (member, kind) in seen.iter() {
            let kind = AlarmType::try_from(*kind).map_or("UNKNOWN", |kind| kind.as_str_name());
            let alarm = raised.contains(alarm);
            s.alarms.with_label_values(&[&format!("{member:x}"), kind]).set(i64::from(alarm));
        }
        drop(seen);
        self.metrics.own.refresh(self);
    }
}

/// etcd's feature gates with their stages, and whether this member does what they stand for.
fn features(config: &StoreConfig) -> [(&'static str, &'static str, bool); 11] {
    [
        ("AllAlpha", "ALPHA", config.all_alpha),
        ("AllBeta", "BETA", config.all_beta),
        ("CompactHashCheck", "ALPHA", !config.compact_hash_check_time.is_zero()),
        // A renewal waits for the applied index only when the lease is not known.
        ("FastLeaseKeepAlive", "BETA", true),
        ("InitialCorruptCheck", "ALPHA", config.initial_corrupt_check),
        ("LeaseCheckpoint", "ALPHA", config.lease_checkpoint),
        ("LeaseCheckpointPersist", "ALPHA", config.lease_checkpoint),
        // Revocations are taken when other requests are refused for the lag.
        ("PriorityRequest", "ALPHA", true),
        ("SetMemberLocalAddr", "ALPHA", false),
        // Nothing stops while space is given back.
        ("StopGRPCServiceOnDefrag", "ALPHA", false),
        // There is no such buffer.
        ("TxnModeWriteWithSharedBuffer", "BETA", false),
    ]
}
