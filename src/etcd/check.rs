//! From flag values to a store configuration.
//!
//! Input: parsed [`Values`]. Output: URLs to listen on and a [`StoreConfig`], or the sentence
//! that says which flag is wrong and what would be right; where etcd has a text for the mistake,
//! it is etcd's.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_net::{ListenUrl, check_advertise_urls, parse_urls};
use mainstay_store::{AutoCompaction, ClusterState, InitialCluster, StoreConfig, parse_duration};

use crate::flags::Values;

/// Everything that a member needs, checked.
pub(super) struct Checked {
    pub(super) listen_peer: Vec<ListenUrl>,
    pub(super) listen_client: Vec<ListenUrl>,
    pub(super) listen_client_http: Vec<ListenUrl>,
    pub(super) listen_metrics: Vec<ListenUrl>,
    pub(super) store: StoreConfig,
}

fn urls(values: &Values, flag: &str) -> Result<Vec<ListenUrl>, String> {
    parse_urls(values.text(flag))
        .map_err(|error| format!("invalid value {:?} for flag -{flag}: {error}", values.text(flag)))
}

fn listen_urls(values: &Values, flag: &str) -> Result<Vec<ListenUrl>, String> {
    if values.text(flag).is_empty() {
        return Ok(Vec::new());
    }
    let urls = urls(values, flag)?;
    for url in &urls {
        url.check_bindable().map_err(|error| error.to_string())?;
    }
    Ok(urls)
}

fn texts(urls: &[ListenUrl]) -> Vec<String> {
    urls.iter().map(|url| url.as_str().to_string()).collect()
}

/// What the feature gates that are built say.
struct Gates {
    lease_checkpoint: bool,
    initial_corrupt_check: bool,
    /// On unless it is switched off, since it costs one request a minute.
    compact_hash_check: bool,
    /// Told on the metrics page.
    all_alpha: bool,
    all_beta: bool,
}

/// Reads `--feature-gates` and the older names of gates.
fn gates(values: &Values) -> Gates {
    let mut gates = Gates {
        lease_checkpoint: values.switch("experimental-enable-lease-checkpoint")
            || values.switch("experimental-enable-lease-checkpoint-persist"),
        initial_corrupt_check: values.switch("experimental-initial-corrupt-check"),
        compact_hash_check: !values.is_set("experimental-compact-hash-check-enabled")
            || values.switch("experimental-compact-hash-check-enabled"),
        all_alpha: false,
        all_beta: false,
    };
    for (name, on) in values.gates("feature-gates") {
        match name {
            "LeaseCheckpoint" | "LeaseCheckpointPersist" => gates.lease_checkpoint |= on,
            "InitialCorruptCheck" => gates.initial_corrupt_check = on,
            "CompactHashCheck" => gates.compact_hash_check = on,
            "AllAlpha" if on => {
                gates.all_alpha = true;
                gates.lease_checkpoint = true;
                gates.initial_corrupt_check = true;
                gates.compact_hash_check = true;
            }
            "AllBeta" => gates.all_beta = on,
            _ => {}
        }
    }
    gates
}

/// `--auto-compaction-retention` in the sense of `--auto-compaction-mode`. A bare number is hours
/// in the periodic mode.
fn auto_compaction(values: &Values) -> Result<AutoCompaction, String> {
    let retention = values.text("auto-compaction-retention");
    let wrong = |what| format!("error parsing CompactionRetention: {retention:?} is not {what}");
    let number = retention.parse::<u32>();
    if number == Ok(0) || retention.is_empty() {
        return Ok(AutoCompaction::Off);
    }
    if values.text("auto-compaction-mode") == "revision" {
        let number = retention.parse().map_err(|_| wrong("a number of revisions"))?;
        return Ok(AutoCompaction::Revisions(number));
    }
    let period = match number {
        Ok(hours) => Duration::from_secs(u64::from(hours) * 3600),
        Err(_) => parse_duration(retention)
            .ok_or_else(|| wrong("a number of hours or a duration such as 30m"))?,
    };
    Ok(if period.is_zero() { AutoCompaction::Off } else { AutoCompaction::Periodic(period) })
}

/// `--disk-reserve-bytes`; nothing leaves it to the store.
fn disk_reserve(values: &Values) -> Result<Option<u64>, String> {
    match values.text("disk-reserve-bytes") {
        "" => Ok(None),
        bytes => bytes.parse().map(Some).map_err(|_| {
            format!("invalid value {bytes:?} for flag -disk-reserve-bytes: a number of bytes is expected")
        }),
    }
}

/// Checks all values.
pub(super) fn check(values: &Values) -> Result<Checked, String> {
    let listen_peer = listen_urls(values, "listen-peer-urls")?;
    let listen_client = listen_urls(values, "listen-client-urls")?;
    let listen_client_http = listen_urls(values, "listen-client-http-urls")?;
    let listen_metrics = listen_urls(values, "listen-metrics-urls")?;
    let advertise_peer = urls(values, "initial-advertise-peer-urls")?;
    let advertise_client = urls(values, "advertise-client-urls")?;
    check_advertise_urls(&advertise_peer)
        .and_then(|()| check_advertise_urls(&advertise_client))
        .map_err(|error| error.to_string())?;
    if values.is_set("listen-client-urls") && !values.is_set("advertise-client-urls") {
        return Err(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly"
                .to_string(),
        );
    }
    let heartbeat = values.unsigned("heartbeat-interval");
    let election = values.unsigned("election-timeout");
    if heartbeat == 0 {
        return Err("--heartbeat-interval must be >0 (set to 0ms)".to_string());
    }
    if election == 0 {
        return Err("--election-timeout must be >0 (set to 0ms)".to_string());
    }
    if 5 * heartbeat > election {
        return Err(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as --heartbeat-interval[{heartbeat}ms]"
        ));
    }
    if election > 50_000 {
        return Err(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than 50000ms"
        ));
    }
    if values.integer("max-learners") < 0 {
        return Err("--max-learners must not be negative".to_string());
    }
    let name = values.text("name").to_string();
    if name.is_empty() {
        return Err("couldn't find local name \"\" in the initial cluster configuration: give \
                    this member a name with --name"
            .to_string());
    }
    let peer_texts = texts(&advertise_peer);
    let initial_cluster = match values.text("initial-cluster") {
        "" => InitialCluster::single(&name, &peer_texts),
        list => InitialCluster::parse(list)
            .map_err(|error| format!("error setting up initial cluster: {error}"))?,
    };
    let data_dir = match values.text("data-dir") {
        "" => PathBuf::from(format!("{name}.etcd")),
        dir => PathBuf::from(dir),
    };
    let gates = gates(values);
    let store = StoreConfig {
        auth_token: values.text("auth-token").to_string(),
        auth_token_ttl: Duration::from_secs(values.unsigned("auth-token-ttl")),
        bcrypt_cost: values.unsigned("bcrypt-cost"),
        data_dir,
        wal_dir: Some(values.text("wal-dir")).filter(|dir| !dir.is_empty()).map(PathBuf::from),
        advertise_peer_urls: peer_texts,
        advertise_client_urls: texts(&advertise_client),
        listen_peer_urls: texts(&listen_peer),
        initial_cluster,
        initial_cluster_state: match values.text("initial-cluster-state") {
            "existing" => ClusterState::Existing,
            _ => ClusterState::New,
        },
        initial_cluster_token: match values.text("discovery-token") {
            "" => values.text("initial-cluster-token").to_string(),
            token => token.to_string(),
        },
        force_new_cluster: values.switch("force-new-cluster"),
        tick: Duration::from_millis(heartbeat),
        election_ticks: (election / heartbeat) as usize,
        initial_election_tick_advance: values.switch("initial-election-tick-advance"),
        pre_vote: values.switch("pre-vote"),
        never_lead: values.switch("never-lead"),
        snapshot_count: values.unsigned("snapshot-count"),
        snapshot_catchup_entries: values.unsigned("snapshot-catchup-entries"),
        max_wals: values.unsigned("max-wals") as usize,
        unsafe_no_fsync: values.switch("unsafe-no-fsync"),
        max_request_bytes: values.unsigned("max-request-bytes") as usize,
        max_txn_ops: values.unsigned("max-txn-ops") as usize,
        disk_reserve_bytes: disk_reserve(values)?,
        quota_backend_bytes: values.integer("quota-backend-bytes"),
        max_learners: values.integer("max-learners") as usize,
        strict_reconfig_check: values.switch("strict-reconfig-check"),
        compaction_batch_limit: values.unsigned("compaction-batch-limit") as usize,
        compaction_sleep_interval: values.duration("compaction-sleep-interval"),
        auto_compaction: auto_compaction(values)?,
        watch_progress_notify_interval: values.duration("watch-progress-notify-interval"),
        lease_checkpoint: gates.lease_checkpoint,
        initial_corrupt_check: gates.initial_corrupt_check,
        all_alpha: gates.all_alpha,
        all_beta: gates.all_beta,
        compact_hash_check_time: if gates.compact_hash_check {
            values.duration("compact-hash-check-time")
        } else {
            Duration::ZERO
        },
        corrupt_check_time: values.duration("corrupt-check-time"),
        downgrade_check_time: values.duration("downgrade-check-time"),
        warning_apply_duration: values.duration("warning-apply-duration"),
        name: name.clone(),
        ..StoreConfig::new("")
    };
    store.check().map_err(|error| error.to_string())?;
    if name == "default" {
        tracing::warn!(
            name = %name,
            "it isn't recommended to use default name, please set a value for --name. \
             Members of one cluster must have different names"
        );
    }
    Ok(Checked { listen_peer, listen_client, listen_client_http, listen_metrics, store })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_flags(arguments: &[&str]) -> Result<Checked, String> {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        check(&Values::parse(&arguments, std::iter::empty()).map_err(|error| error.to_string())?)
    }

    fn mistake(arguments: &[&str]) -> String {
        check_flags(arguments).err().unwrap()
    }

    #[test]
    fn defaults_are_accepted() {
        let checked = check_flags(&[]).ok().unwrap();
        assert_eq!(checked.store.data_dir, PathBuf::from("default.etcd"));
        assert_eq!(checked.store.election_ticks, 10);
        assert_eq!(checked.store.initial_cluster.to_string(), "default=http://localhost:2380");
    }

    #[test]
    fn retention_is_read_in_the_sense_of_its_mode() {
        let of = |flags: &[&str]| check_flags(flags).map(|checked| checked.store.auto_compaction);
        assert_eq!(of(&[]), Ok(AutoCompaction::Off));
        assert_eq!(
            of(&["--auto-compaction-retention=2"]),
            Ok(AutoCompaction::Periodic(Duration::from_secs(7200)))
        );
        assert_eq!(
            of(&["--auto-compaction-retention=5m"]),
            Ok(AutoCompaction::Periodic(Duration::from_secs(300)))
        );
        let revisions = ["--auto-compaction-mode=revision", "--auto-compaction-retention=1000"];
        assert_eq!(of(&revisions), Ok(AutoCompaction::Revisions(1000)));
        assert!(of(&["--auto-compaction-retention=often"]).unwrap_err().contains("a duration"));
    }

    #[test]
    fn mistakes_have_etcds_texts() {
        assert_eq!(
            mistake(&["--listen-client-urls", "http://127.0.0.1:1"]),
            "--advertise-client-urls is required when --listen-client-urls is set explicitly"
        );
        assert_eq!(
            mistake(&["--heartbeat-interval", "500"]),
            "--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[500ms]"
        );
        assert_eq!(
            mistake(&[
                "--listen-client-urls=http://example.com:2379",
                "--advertise-client-urls=http://example.com:2379"
            ]),
            "expected IP in URL for binding (http://example.com:2379)"
        );
        assert!(mistake(&["--feature-gates", "Foo=true"]).contains("unrecognized feature gate"));
        assert!(mistake(&["--disk-reserve-bytes=1G"]).contains("a number of bytes"));
        assert!(mistake(&["--max-learners=-1"]).contains("--max-learners"));
        assert!(mistake(&["--name="]).contains("couldn't find local name \"\""));
        assert!(mistake(&["--listen-peer-urls", "127.0.0.1:2380"]).contains("URL scheme must be"));
        assert!(mistake(&["--initial-cluster", "http://a:1"]).contains("NAME=URL"));
    }
}
