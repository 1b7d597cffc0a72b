//! The configuration of one member.
//!
//! Input is an operator's or a program's wish; output is a checked [`StoreConfig`] that the rest
//! of the room trusts. The defaults are etcd's.
//! **Invariant:** after [`StoreConfig::check`] the limits make sense together.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_mvcc::membership::member_id;

use crate::urls::InitialCluster;

/// Whether the member starts a cluster or joins one that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterState {
    /// All members of the list start together for the first time.
    #[default]
    New,
    /// The cluster runs, and this member was added to it before.
    Existing,
}

/// When old revisions are given up without being asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoCompaction {
    /// Never.
    #[default]
    Off,
    /// What was current this long ago stays.
    Periodic(Duration),
    /// This many revisions stay.
    Revisions(i64),
}

/// Which engine holds the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// RocksDB in `member/mainstay`.
    Rocks {
        /// Budget of the block cache.
        cache_bytes: usize,
        /// Budget of what waits in memory for a flush.
        memtable_bytes: usize,
    },
    /// Maps in memory; after a restart everything comes from the log, which is therefore never
    /// cut. For tests.
    Memory,
}

impl Default for EngineKind {
    fn default() -> Self {
        Self::Rocks { cache_bytes: 64 << 20, memtable_bytes: 64 << 20 }
    }
}

/// Everything that a member is told at its start.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Name of this member, unique in the cluster.
    pub name: String,
    /// Where `member/` lives.
    pub data_dir: PathBuf,
    /// Where the log lives, when not in `member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Where other members reach this one; what member ids are computed from.
    pub advertise_peer_urls: Vec<String>,
    /// Where clients reach this member; published to the cluster.
    pub advertise_client_urls: Vec<String>,
    /// Where the peer port listens; empty: no socket, for a member that is alone.
    pub listen_peer_urls: Vec<String>,
    /// The members of the cluster at its birth, or now when joining.
    pub initial_cluster: InitialCluster,
    /// Birth or joining. Without meaning when there is a log already.
    pub initial_cluster_state: ClusterState,
    /// Makes ids of clusters differ that have the same URLs.
    pub initial_cluster_token: String,
    /// Makes this member the only one of its cluster, keeping the data.
    pub force_new_cluster: bool,

    /// Length of a tick, which is also the interval of heartbeats.
    pub tick: Duration,
    /// Ticks without a leader before an election.
    pub election_ticks: usize,
    /// Whether a member that starts goes ahead in its election timer.
    pub initial_election_tick_advance: bool,
    /// Ask before campaigning, so that a member that comes back disturbs nobody.
    pub pre_vote: bool,
    /// Vote, but never lead.
    pub never_lead: bool,

    /// Entries between two points to which the log may be cut; 0: the default.
    pub snapshot_count: u64,
    /// Entries kept for followers that lag; 0: the default.
    pub snapshot_catchup_entries: u64,
    /// Log segments to keep; 0 keeps all.
    pub max_wals: usize,
    /// Skips every fsync of the log. Loses acknowledged writes; for tests.
    pub unsafe_no_fsync: bool,

    /// Largest entry that is proposed.
    pub max_request_bytes: usize,
    /// Most operations in one list of a transaction.
    pub max_txn_ops: usize,
    /// Size of the engine above which writes are refused; 0: 2 GiB, negative: no limit.
    pub quota_backend_bytes: i64,
    /// Room on the disk below which writes are refused; `None`: 256 MiB, but at most a twentieth of
    /// the file system; 0: never.
    pub disk_reserve_bytes: Option<u64>,
    /// Most learners at a time.
    pub max_learners: usize,
    /// Refuse changes of members that could cost the quorum.
    pub strict_reconfig_check: bool,

    /// When to compact without being asked.
    pub auto_compaction: AutoCompaction,
    /// Records that one step of a compaction deletes.
    pub compaction_batch_limit: usize,
    /// Pause between two steps of a compaction.
    pub compaction_sleep_interval: Duration,
    /// Interval of progress notifications of watches that asked for them.
    pub watch_progress_notify_interval: Duration,
    /// Replicate the remaining time of long leases, so that a new leader does not start them anew.
    pub lease_checkpoint: bool,
    /// Interval of these checkpoints.
    pub lease_checkpoint_interval: Duration,
    /// How often the leader looks whether a downgrade is complete; zero: never.
    pub downgrade_check_time: Duration,
    /// How often the leader compares the hashes of compactions on all members; zero: never.
    pub compact_hash_check_time: Duration,
    /// How often the leader compares all keys on all members, which reads them all; zero: never.
    pub corrupt_check_time: Duration,
    /// Whether a member compares its keys with the others before it serves.
    pub initial_corrupt_check: bool,
    /// Whether all alpha features were asked for. Nothing but the metrics page looks at it.
    pub all_alpha: bool,
    /// The same of beta features.
    pub all_beta: bool,
    /// Batches of entries that take longer to apply are logged and counted.
    pub warning_apply_duration: Duration,

    /// Kind of tokens that clients get for their passwords, with its options: `simple` or
    /// `jwt,sign-method=…,pub-key=…,priv-key=…,ttl=…`. Empty: none are given.
    pub auth_token: String,
    /// How long a simple token lives without being used.
    pub auth_token_ttl: Duration,
    /// Cost of the hashes of passwords; one that is impossible becomes 10.
    pub bcrypt_cost: u64,

    /// The engine and its budgets.
    pub engine: EngineKind,
}

/// Name that etcd gives to a member without one.
pub(crate) const DEFAULT_NAME: &str = "default";
/// Token that etcd takes without one.
pub(crate) const DEFAULT_TOKEN: &str = "etcd-cluster";
/// Peer URL of a member that is told none.
pub(crate) const DEFAULT_PEER_URL: &str = "http://localhost:2380";
/// Entries between two marks in the log when none are given.
const DEFAULT_SNAPSHOT_COUNT: u64 = 10_000;
/// Entries kept for followers when none are given.
const DEFAULT_CATCHUP_ENTRIES: u64 = 5_000;
/// Quota when none is given.
pub(crate) const DEFAULT_QUOTA_BYTES: i64 = 2 << 30;

/// A configuration that cannot work, with what would.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// See the text.
    #[error(
        "the election timeout ({election:?}) must be at least 5 times the heartbeat interval ({tick:?})"
    )]
    ElectionTooShort {
        /// The election timeout.
        election: Duration,
        /// The heartbeat interval.
        tick: Duration,
    },
    /// See the text.
    #[error("the election timeout ({0:?}) must not exceed 50s")]
    ElectionTooLong(Duration),
    /// See the text.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// See the text.
    #[error("no data directory is given")]
    NoDataDir,
}

impl StoreConfig {
    /// The configuration of a member that is alone, with its data in `data_dir`.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let peer_urls = vec![DEFAULT_PEER_URL.to_owned()];
        Self {
            name: DEFAULT_NAME.to_owned(),
            data_dir: data_dir.into(),
            wal_dir: None,
            initial_cluster: InitialCluster::single(DEFAULT_NAME, &peer_urls),
            advertise_peer_urls: peer_urls,
            advertise_client_urls: vec!["http://localhost:2379".to_owned()],
            listen_peer_urls: Vec::new(),
            initial_cluster_state: ClusterState::New,
            initial_cluster_token: DEFAULT_TOKEN.to_owned(),
            force_new_cluster: false,
            tick: Duration::from_millis(100),
            election_ticks: 10,
            initial_election_tick_advance: true,
            pre_vote: true,
            never_lead: false,
            snapshot_count: DEFAULT_SNAPSHOT_COUNT,
            snapshot_catchup_entries: DEFAULT_CATCHUP_ENTRIES,
            max_wals: 5,
            unsafe_no_fsync: false,
            max_request_bytes: 3 << 19,
            max_txn_ops: 128,
            quota_backend_bytes: 0,
            disk_reserve_bytes: None,
            max_learners: 1,
            strict_reconfig_check: true,
            auto_compaction: AutoCompaction::Off,
            compaction_batch_limit: 1_000,
            compaction_sleep_interval: Duration::from_millis(10),
            watch_progress_notify_interval: Duration::from_secs(600),
            lease_checkpoint: false,
            lease_checkpoint_interval: Duration::from_secs(300),
            downgrade_check_time: Duration::from_secs(5),
            compact_hash_check_time: Duration::from_secs(60),
            corrupt_check_time: Duration::ZERO,
            initial_corrupt_check: false,
            all_alpha: false,
            all_beta: false,
            warning_apply_duration: Duration::from_millis(100),
            auth_token: "simple".to_owned(),
            auth_token_ttl: Duration::from_secs(300),
            bcrypt_cost: 10,
            engine: EngineKind::default(),
        }
    }

    /// Checks that the numbers make sense together.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.data_dir.as_os_str().is_empty() {
            return Err(ConfigError::NoDataDir);
        }
        let positive = [
            ("the heartbeat interval", !self.tick.is_zero()),
            ("max-request-bytes", self.max_request_bytes > 0),
            ("max-txn-ops", self.max_txn_ops > 0),
            ("compaction-batch-limit", self.compaction_batch_limit > 0),
        ];
        if let Some((what, _)) = positive.iter().find(|(_, good)| !good) {
            return Err(ConfigError::Zero(what));
        }
        let election = self.election_timeout();
        if self.election_ticks < 5 {
            return Err(ConfigError::ElectionTooShort { election, tick: self.tick });
        }
        if election > Duration::from_secs(50) {
            return Err(ConfigError::ElectionTooLong(election));
        }
        Ok(())
    }

    /// Time without a leader before an election.
    pub fn election_timeout(&self) -> Duration {
        self.tick * self.election_ticks as u32
    }

    /// How long a request may take: queueing and disk, and two elections.
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(5) + 2 * self.election_timeout()
    }

    /// Seconds below which no lease lives.
    pub fn min_lease_ttl(&self) -> i64 {
        let shortest = self.tick * (3 * self.election_ticks as u32 / 2);
        shortest.as_millis().div_ceil(1000) as i64
    }

    /// Entries between two marks in the log.
    pub(crate) fn entries_between_marks(&self) -> u64 {
        if self.snapshot_count == 0 { DEFAULT_SNAPSHOT_COUNT } else { self.snapshot_count }
    }

    /// Entries kept in memory for followers that lag.
    pub(crate) fn entries_kept(&self) -> u64 {
        match self.snapshot_catchup_entries {
            0 => DEFAULT_CATCHUP_ENTRIES,
            entries => entries,
        }
    }

    /// The quota in bytes; `None` when there is none.
    pub fn quota(&self) -> Option<u64> {
        match self.quota_backend_bytes {
            0 => Some(DEFAULT_QUOTA_BYTES as u64),
            bytes => u64::try_from(bytes).ok(),
        }
    }

    /// `DATA/member`.
    pub fn member_dir(&self) -> PathBuf {
        self.data_dir.join("member")
    }

    /// Where the log lives.
    pub fn wal_dir(&self) -> PathBuf {
        match &self.wal_dir {
            Some(dir) => dir.clone(),
            None => self.member_dir().join("wal"),
        }
    }

    /// Where received snapshots wait.
    pub fn snap_dir(&self) -> PathBuf {
        self.member_dir().join("snap")
    }

    /// Where the engine lives.
    pub fn engine_dir(&self) -> PathBuf {
        self.member_dir().join("mainstay")
    }

    /// The id that this member has in a cluster that it founds.
    pub fn founding_id(&self) -> u64 {
        member_id(&self.advertise_peer_urls, &self.initial_cluster_token, None)
    }

    /// Whether `data_dir` holds a member already: it has a log.
    pub fn is_initialized(&self) -> bool {
        has_log(&self.wal_dir())
    }
}

/// Whether `dir` holds segments of a log.
pub(crate) fn has_log(dir: &Path) -> bool {
    std::fs::read_dir(dir).is_ok_and(|entries| {
        entries.flatten().any(|entry| entry.path().extension().is_some_and(|e| e == "wal"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_etcds() {
        let config = StoreConfig::new("/data");
        config.check().unwrap();
        assert_eq!(config.request_timeout(), Duration::from_secs(7));
        assert_eq!(config.min_lease_ttl(), 2);
        assert_eq!(config.quota(), Some(2 << 30));
        assert_eq!(config.max_request_bytes, 1_572_864);
    }

    #[test]
    fn a_negative_quota_is_none() {
        let mut config = StoreConfig::new("/data");
        config.quota_backend_bytes = -1;
        assert_eq!(config.quota(), None);
    }

    #[test]
    fn election_must_fit_the_heartbeat() {
        let mut config = StoreConfig::new("/data");
        config.election_ticks = 4;
        assert!(matches!(config.check(), Err(ConfigError::ElectionTooShort { .. })));
        config.election_ticks = 501;
        assert!(matches!(config.check(), Err(ConfigError::ElectionTooLong(_))));
    }
}
