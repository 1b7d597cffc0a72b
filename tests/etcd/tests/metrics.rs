//! The metrics page beside that of real etcd, after both have done the same: names, kinds, helps,
//! labels, buckets, and the counts that must be equal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use mainstay_etcd_tests::member::{Cluster, Member, Program, peers_dir};
use mainstay_etcd_tests::ops::{PATIENCE, retry};

/// One name of the page.
#[derive(Debug, Default, PartialEq)]
struct Family {
    kind: String,
    help: String,
    /// The names of labels, without `le` and `quantile`, of each series.
    labels: BTreeSet<Vec<String>>,
    /// Bounds of the buckets, or the quantiles, in their order.
    bounds: Vec<String>,
    /// Values by the whole text before them.
    values: BTreeMap<String, f64>,
}

type Page = BTreeMap<String, Family>;

fn curl(url: &str) -> Result<String> {
    let output = Command::new("curl").args(["-sS", "--max-time", "10", url]).output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "curl {url}: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// `{a="1",le="2"}` as pairs. Values on this page hold no quotes or commas.
fn labels(text: &str) -> Vec<(&str, &str)> {
    let inner = text.trim_start_matches('{').trim_end_matches('}');
    let pairs = inner.split(',').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap()).map(|(n, v)| (n, v.trim_matches('"'))).collect()
}

fn parse(text: &str) -> Page {
    let mut page = Page::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            page.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            page.entry(name.to_owned()).or_default().kind = kind.to_owned();
            last = name.to_owned();
        } else if !line.is_empty() {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let at = series.find('{').unwrap_or(series.len());
            let (name, pairs) = (&series[..at], labels(&series[at..]));
            let family = page.get_mut(&last).unwrap_or_else(|| panic!("{line}: of no family"));
            let suffix = name.strip_prefix(last.as_str()).unwrap_or_else(|| panic!("{line}"));
            assert!(["", "_bucket", "_sum", "_count"].contains(&suffix), "{line}");
            let mut names = Vec::new();
            for (name, value) in pairs {
                if name == "le" || name == "quantile" {
                    if !family.bounds.iter().any(|bound| bound == value) {
                        family.bounds.push(value.to_owned());
                    }
                } else {
                    names.push(name.to_owned());
                }
            }
            names.sort();
            family.labels.insert(names);
            let value = value.parse().unwrap_or_else(|_| panic!("{line}: not a number"));
            let again = family.values.insert(series.to_owned(), value);
            assert!(again.is_none(), "{line}: twice");
        }
    }
    page
}

fn etcdctl(member: &Member, arguments: &[&str]) -> Result<String> {
    let output = Command::new(peers_dir()?.join("etcdctl"))
        .args(["--endpoints", &member.client_url])
        .args(arguments)
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{:?}: etcdctl {arguments:?}: {error}", member.program);
    Ok(String::from_utf8(output.stdout)?)
}

fn txn(member: &Member, text: &str) -> Result<()> {
    let mut child = Command::new(peers_dir()?.join("etcdctl"))
        .args(["--endpoints", &member.client_url, "txn"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(text.as_bytes())?;
    ensure!(child.wait()?.success(), "{:?}: {text}", member.program);
    Ok(())
}

/// Some of everything that has a metric.
async fn drive(member: &Member, dir: &std::path::Path) -> Result<()> {
    let events = dir.join(format!("{}.events", member.name));
    let mut watch = Command::new(peers_dir()?.join("etcdctl"))
        .args(["--endpoints", &member.client_url, "watch", "--prefix", "w"])
        .stdout(std::fs::File::create(&events)?)
        .stderr(Stdio::null())
        .spawn()?;
    let run = |arguments: &[&str]| etcdctl(member, arguments);
    let seen = async || {
        let url = format!("{}/metrics", member.client_url);
        retry("the watcher", PATIENCE, || async {
            let page = parse(&curl(&url)?);
            ensure!(page["etcd_debugging_mvcc_watcher_total"].values.values().sum::<f64>() == 1.0);
            Ok(())
        })
        .await
    };
    seen().await?;
    run(&["put", "w1", "one"])?;
    run(&["put", "w1", "two"])?;
    run(&["put", "w2", "three"])?;
    run(&["get", "w1"])?;
    run(&["get", "--prefix", "w", "--consistency", "s"])?;
    run(&["del", "w1"])?;
    run(&["del", "nothing"])?;
    txn(member, "version(\"t\") = \"0\"\n\nput t 1\nput u 22\n\n\n")?;
    txn(member, "version(\"t\") = \"0\"\n\nput t 1\n\nput t 2\n\n")?;
    txn(member, "version(\"t\") = \"0\"\n\nput t 1\n\n\n")?;
    txn(member, "version(\"t\") > \"0\"\n\nget t\n\n\n")?;
    run(&["put", "w2", "four", "--prev-kv"])?;
    let lease = run(&["lease", "grant", "100"])?;
    let id = lease.split_whitespace().nth(1).context("a lease")?.to_owned();
    run(&["put", "leased", "x", "--lease", &id])?;
    run(&["lease", "keep-alive", "--once", &id])?;
    run(&["lease", "timetolive", &id])?;
    run(&["lease", "revoke", &id])?;
    // What is refused when it is applied.
    assert!(run(&["put", "a", "b", "--lease", "1234"]).is_err());
    assert!(run(&["get", "w1", "--rev", "1000"]).is_err());
    run(&["endpoint", "hashkv"])?;
    run(&["compaction", "--physical", "6"])?;
    run(&["alarm", "list"])?;
    run(&["endpoint", "status"])?;
    run(&["member", "list"])?;
    run(&["defrag"])?;
    let file = dir.join(format!("{}.snapshot", member.name));
    run(&["snapshot", "save", &file.to_string_lossy()])?;
    for path in ["health", "livez", "readyz"] {
        curl(&format!("{}/{path}", member.client_url))?;
    }
    retry("the last event", PATIENCE, || async {
        let text = std::fs::read_to_string(&events)?;
        ensure!(text.contains("DELETE\nw1"), "{text}");
        Ok(())
    })
    .await?;
    watch.kill()?;
    watch.wait()?;
    Ok(())
}

/// The page once everything that goes on behind an answer has been counted.
async fn page(member: &Member) -> Result<Page> {
    let url = format!("{}/metrics", member.client_url);
    let page = retry("the numbers", PATIENCE, || async {
        let page = parse(&curl(&url)?);
        for name in [
            "etcd_disk_backend_defrag_duration_seconds",
            "etcd_disk_backend_snapshot_duration_seconds",
            "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
        ] {
            let count = &page.get(name).context(name)?.values[&format!("{name}_count")];
            ensure!(*count > 0.0, "{name}: nothing counted");
        }
        // The client's last stream has ended.
        let streams = &page["etcd_debugging_mvcc_watch_stream_total"].values;
        ensure!(streams.values().sum::<f64>() == 0.0, "{streams:?}");
        Ok(page)
    });
    page.await
}

async fn pages() -> Result<(Page, Page)> {
    let arguments = ["--metrics", "extensive"];
    let mut pages = Vec::new();
    for program in [Program::Etcd, Program::Mainstay] {
        let cluster = Cluster::start(&[program], &arguments).await?;
        let member = &cluster.members[0];
        drive(member, cluster.dir.path()).await?;
        pages.push(page(member).await?);
    }
    let ours = pages.pop().unwrap();
    Ok((pages.pop().unwrap(), ours))
}

/// What a difference would be of no importance in: what a machine or a moment decides.
fn is_of_the_page(name: &str) -> bool {
    let prefixes = ["etcd_", "grpc_", "os_", "process_", "promhttp_", "go_"];
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Series whose values must be those of real etcd.
const EQUAL: &[&str] = &[
    "etcd_cluster_version",
    "etcd_debugging_auth_revision",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_renewed_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_debugging_mvcc_compact_revision",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_db_compaction_keys_total",
    "etcd_debugging_mvcc_events_total",
    "etcd_debugging_mvcc_keys_total",
    "etcd_debugging_mvcc_pending_events_total",
    "etcd_debugging_mvcc_slow_watcher_total",
    "etcd_debugging_mvcc_total_put_size_in_bytes",
    "etcd_debugging_mvcc_watcher_total",
    "etcd_debugging_server_lease_expired_total",
    "etcd_debugging_store_expires_total",
    "etcd_disk_defrag_inflight",
    "etcd_grpc_proxy_cache_hits_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_put_total",
    "etcd_server_client_requests_total",
    "etcd_server_healthcheck",
    "etcd_server_healthchecks_total",
    "grpc_server_handled_total",
    "grpc_server_started_total",
    "grpc_server_msg_received_total",
    "grpc_server_msg_sent_total",
    "etcd_mvcc_txn_total",
    "etcd_server_has_leader",
    "etcd_server_health_failures",
    "etcd_server_is_leader",
    "etcd_server_is_learner",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending",
    "etcd_server_quota_backend_bytes",
    "etcd_server_read_indexes_failed_total",
    "etcd_server_slow_read_indexes_total",
    "etcd_server_snapshot_apply_in_progress_total",
    "etcd_server_version",
    "os_fd_limit",
    "process_max_fds",
    "process_virtual_memory_max_bytes",
    "promhttp_metric_handler_requests_in_flight",
];

/// Histograms that must have counted as often as real etcd's.
const EQUAL_COUNTS: &[&str] = &[
    "etcd_debugging_lease_ttl_total",
    "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds",
    "etcd_disk_backend_defrag_duration_seconds",
    "etcd_disk_backend_snapshot_duration_seconds",
    "etcd_mvcc_hash_duration_seconds",
    "etcd_mvcc_hash_rev_duration_seconds",
    "etcd_server_request_duration_seconds",
    "etcd_server_range_duration_seconds",
    "etcd_debugging_server_watch_send_loop_watch_stream_duration_seconds",
    "etcd_debugging_server_watch_send_loop_watch_stream_duration_per_event_seconds",
    "etcd_debugging_server_watch_send_loop_control_stream_duration_seconds",
    "etcd_debugging_server_watch_send_loop_progress_duration_seconds",
    "etcd_server_apply_duration_seconds",
    "etcd_snap_db_fsync_duration_seconds",
    "etcd_snap_db_save_total_duration_seconds",
    "etcd_snap_fsync_duration_seconds",
];

#[tokio::test]
async fn the_page_is_etcds_and_more() {
    let (real, ours) = pages().await.unwrap();
    let mut differences = Vec::new();
    for (name, expected) in real.iter().filter(|(name, _)| is_of_the_page(name)) {
        let Some(found) = ours.get(name) else {
            differences.push(format!("{name} is missing"));
            continue;
        };
        if (&expected.kind, &expected.help) != (&found.kind, &found.help) {
            let pair = |f: &Family| format!("{} {:?}", f.kind, f.help);
            differences.push(format!("{name} is {}, not {}", pair(found), pair(expected)));
        }
        if expected.labels != found.labels {
            let (found, expected) = (&found.labels, &expected.labels);
            differences.push(format!("{name} has the labels {found:?}, not {expected:?}"));
        }
        // Go writes 1.048576e+06 where Rust writes 1048576.
        let numbers = |family: &Family| -> Vec<f64> {
            family.bounds.iter().map(|bound| bound.parse().unwrap()).collect()
        };
        if numbers(expected) != numbers(found) {
            let (found, expected) = (&found.bounds, &expected.bounds);
            differences.push(format!("{name} has the buckets {found:?}, not {expected:?}"));
        }
        let compared: Box<dyn Fn(&str) -> bool> = match name {
            _ if EQUAL.contains(&name.as_str()) => Box::new(|_| true),
            _ if EQUAL_COUNTS.contains(&name.as_str()) => {
                let count = format!("{name}_count");
                Box::new(move |series| series.starts_with(&count))
            }
            _ => continue,
        };
        let values = |family: &Family| -> BTreeMap<String, f64> {
            let all = family.values.iter().filter(|(series, _)| compared(series));
            all.map(|(series, value)| (series.clone(), *value)).collect()
        };
        let (found, expected) = (values(found), values(expected));
        let all: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
        for series in all {
            // How a stream ends is a matter of who is faster. Of calls that nobody made there may
            // be series or not.
            let is_call = series.starts_with("grpc_server");
            let zero = |page: &BTreeMap<String, f64>| page.get(series).is_none_or(|n| *n == 0.0);
            if is_call && (!series.contains("unary") || (zero(&found) && zero(&expected))) {
                continue;
            }
            let (found, expected) = (found.get(series), expected.get(series));
            if found != expected {
                differences.push(format!("{series} is {found:?}, not {expected:?}"));
            }
        }
    }
    for name in ours.keys() {
        if !real.contains_key(name) && !name.starts_with("mainstay_") {
            differences.push(format!("{name} is not etcd's"));
        }
    }
    for name in EQUAL.iter().chain(EQUAL_COUNTS) {
        if !real.contains_key(*name) {
            differences.push(format!("{name} is compared and not there"));
        }
    }
    let gates = |page: &Page| -> BTreeSet<String> {
        page["etcd_server_feature_enabled"].values.keys().cloned().collect()
    };
    assert_eq!(gates(&ours), gates(&real), "feature gates");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    limits_are_told(&ours);
}

/// Each limit of ours has its number, and nothing was refused.
fn limits_are_told(page: &Page) {
    let own = page.iter().filter(|(name, _)| name.starts_with("mainstay_"));
    let own: Vec<_> = own.map(|(name, family)| (name.as_str(), family)).collect();
    assert!(own.len() > 15, "{own:?}");
    let clients = &page["mainstay_connections"].values["mainstay_connections{listener=\"client\"}"];
    assert_eq!(*clients, 1.0, "the scrape's own connection");
    for (name, family) in own {
        assert!(!family.help.is_empty(), "{name} has no help");
        if name.ends_with("_refused_total") || name.ends_with("_overflows_total") {
            let refused: f64 = family.values.values().sum();
            assert_eq!(refused, 0.0, "{name}");
        }
    }
}

/// Numbers of a member go up with what it does, also those that are looked up elsewhere.
#[tokio::test]
async fn a_scrape_tells_the_newest_numbers() {
    let cluster = Cluster::start(&[Program::Mainstay], &[]).await.unwrap();
    let member = &cluster.members[0];
    let url = format!("{}/metrics", member.client_url);
    let value = |page: &Page, name: &str| page[name].values.values().sum::<f64>();
    let before = parse(&curl(&url).unwrap());
    assert!(!before.contains_key("grpc_server_handling_seconds"), "not asked for");
    for at in 0..20 {
        etcdctl(member, &["put", &format!("k{at}"), "v"]).unwrap();
    }
    etcdctl(member, &["alarm", "list"]).unwrap();
    let after = parse(&curl(&url).unwrap());
    let grown = |name: &str| value(&after, name) - value(&before, name);
    assert_eq!(grown("etcd_debugging_mvcc_keys_total"), 20.0);
    assert_eq!(grown("etcd_debugging_mvcc_current_revision"), 20.0);
    assert!(grown("etcd_server_proposals_applied_total") >= 20.0);
    assert!(grown("mainstay_raft_log_entries_total") >= 20.0);
    let commits = "etcd_disk_backend_commit_duration_seconds_count";
    let family = &after["etcd_disk_backend_commit_duration_seconds"];
    assert!(family.values[commits] >= 20.0, "{family:?}");
    // A restart keeps the number of keys.
    let mut members = cluster.members;
    members[0].stop().unwrap();
    members[0].start().await.unwrap();
    let again = parse(&curl(&url).unwrap());
    assert_eq!(value(&again, "etcd_debugging_mvcc_keys_total"), 20.0);
}
