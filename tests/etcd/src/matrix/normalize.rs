//! What may differ between two clusters: ids, addresses, times, sizes, terms and log indexes.

use std::collections::BTreeMap;

use anyhow::Result;
use mainstay_proto::etcdserverpb::{MemberListRequest, StatusRequest};
use regex::Regex;

use crate::client::Client;
use crate::member::Cluster;

/// Ids of one cluster with the names that stand for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    ids: BTreeMap<u64, String>,
    addresses: Vec<(String, String)>,
}

impl Names {
    /// The ids of the cluster and its members, by name.
    pub(super) async fn of(cluster: &Cluster) -> Result<Self> {
        let mut names = Names::default();
        for member in &cluster.members {
            let mut client = Client::connect(&member.client_url).await?;
            let status = client.maintenance.status(StatusRequest {}).await?.into_inner();
            names.ids.insert(status.header.map_or(0, |header| header.cluster_id), "cluster".into());
            let name = &member.name;
            for (url, kind) in [(&member.client_url, "client"), (&member.peer_url, "peer")] {
                names.addresses.push((url.clone(), format!("http://{name}-{kind}")));
                let host = url.trim_start_matches("http://").to_string();
                names.addresses.push((host, format!("{name}-{kind}")));
            }
            let list = client.cluster.member_list(MemberListRequest { linearizable: true }).await?;
            for listed in list.into_inner().members {
                let number = listed.name.trim_start_matches('m').to_string();
                names.ids.insert(listed.id, format!("member-{number}"));
            }
        }
        Ok(names)
    }

    pub(super) fn is_new(&self, id: u64) -> bool {
        !self.ids.contains_key(&id)
    }

    pub(super) fn add(&mut self, id: u64, kind: &str) {
        let number = self.ids.values().filter(|name| name.starts_with(kind)).count();
        self.ids.insert(id, format!("{kind}-{number}"));
    }

    fn replace_in(&self, text: &str) -> String {
        let mut text = text.to_string();
        for (address, name) in &self.addresses {
            text = text.replace(address, name);
        }
        for (id, name) in &self.ids {
            if *id < 10_000 {
                continue;
            }
            for written in [format!("{id:016x}"), format!("{id:x}"), id.to_string()] {
                text = text.replace(&written, name);
            }
            text = text.replace(&(*id as i64).to_string(), name);
        }
        text
    }
}

/// Patterns of values that differ by nature, with what stands for them.
const PATTERNS: &[(&str, &str)] = &[
    // The lines that etcdctl logs for itself.
    (r#"(?m)^\{"level".*\n?"#, ""),
    (r"took = [0-9.]+(ns|µs|ms|s)", "took = TIME"),
    (r"took [0-9.]+(ns|µs|ms|s)", "took TIME"),
    (r#""took":"[^"]*""#, r#""took":"TIME""#),
    (r#""Took" : "?[^\n]*"#, r#""Took" : TIME"#),
    (r"\| +[0-9.]+(ns|µs|ms|s) \|", "| TIME |"),
    (r#""raft_term":[0-9]+"#, r#""raft_term":N"#),
    (r#""RaftTerm" : [0-9]+"#, r#""RaftTerm" : N"#),
    (
        r#""(raftIndex|raftTerm|raftAppliedIndex|dbSize|dbSizeInUse|dbSizeQuota)":[0-9]+"#,
        r#""$1":N"#,
    ),
    (r#""(Leader|leader)":[0-9a-z-]+"#, r#""$1":N"#),
    (r#""Leader" : [0-9a-z-]+"#, r#""Leader" : N"#),
    (
        r#""(RaftIndex|RaftTerm|RaftAppliedIndex|DBSize|DBSizeInUse|DBSizeQuota)" : [0-9]+"#,
        r#""$1" : N"#,
    ),
    // `endpoint status`, simple: sizes, leader, term, index.
    (r"[0-9.]+ [kMG]?B", "SIZE"),
    (r"(true|false), (true|false), [0-9]+, [0-9]+, [0-9]+,", "LEADER, $2, N, N, N,"),
    (r"remaining\([0-9]+s\)", "remaining(N)"),
    (r#""ttl":[0-9]+"#, r#""ttl":N"#),
    (r#""TTL" : [0-9]+"#, r#""TTL" : N"#),
    // Locks and elections name their key by a lease that was granted meanwhile.
    (r"(mutex|office)/[0-9a-f]+", "$1/LEASE"),
    (r"(bXV0ZXg|b2ZmaWNl)[0-9A-Za-z+/=]+", "$1KEY"),
    (r#""(lease|create_revision|mod_revision)":[0-9]+"#, r#""$1":N"#),
    // Which member answers is the client's choice.
    (r"member-[0-9]", "MEMBER"),
    // Which leases are known by number depends on when others were granted.
    (r"lease-[0-9]", "LEASE"),
    // Hashes cover the random leases of locks and elections.
    (r#""hash":[0-9]+"#, r#""hash":N"#),
    (r#""Hash" : [0-9]+"#, r#""Hash" : N"#),
    (r#""Lease" : [0-9]+"#, r#""Lease" : N"#),
    (r"(?m)^(http://m[0-9]-client), [0-9]+(, [0-9]+)?$", "$1, HASH$2"),
    (r", [0-9]+%,", ", N%,"),
    (r" 6:[0-9]{12,}", " 6:N"),
    (r"0x[0-9a-f]+", "POINTER"),
    (r"raft_term:[0-9]+", "raft_term:N"),
    // A client that panics prints addresses of its own.
    (r"(?s)^panic: ([^\n]*)\n.*", "panic: $1"),
    (r"Snapshot saved at \S+", "Snapshot saved at FILE"),
    (r"/tmp/\S+", "FILE"),
];

/// The comparable text of an output.
pub(super) fn normalize(names: &Names, format: &str, arguments: &[&str], output: &[u8]) -> String {
    let mut text = if format == "protobuf" && !output.is_ascii() {
        names.replace_in(&message_text(output, true))
    } else {
        names.replace_in(&String::from_utf8_lossy(output))
    };
    for (pattern, replacement) in PATTERNS {
        let pattern = Regex::new(pattern).expect("the patterns are constants");
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    let snapshot = arguments.starts_with(&["snapshot", "status"]);
    if text.contains('│') || text.contains("+-") || snapshot {
        text = squeeze_table(&text, snapshot);
    }
    // Nor does etcd keep the keys of a lease in an order; members are ordered by their ids, and
    // endpoints by who answers first. Ids are padded, so a short one brings a space more.
    let unordered = ["timetolive", "member", "endpoint"];
    if arguments.iter().any(|argument| unordered.contains(argument)) {
        let borders = ['\n', ',', ' ', '[', ']', '(', ')', '"', '{', '}'];
        let mut words: Vec<&str> = text.split(borders).filter(|word| !word.is_empty()).collect();
        words.sort_unstable();
        text = words.join(" ");
    }
    // Members answer in no fixed order.
    if arguments.contains(&"health") || arguments.contains(&"--cluster") {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        text = lines.join("\n");
    }
    text
}

/// Columns are as wide as their widest value, which is a size or an index: compare words only.
fn squeeze_table(text: &str, drop_numbers: bool) -> String {
    let blanks = Regex::new(r"[ ]+").expect("a constant");
    let text = text.replace('│', "|");
    let lines = text.lines().filter(|line| {
        !line.starts_with(['+', '┌', '├', '└']) || line.contains(|c: char| c.is_alphanumeric())
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let text = blanks.replace_all(&text, " ").into_owned();
    if drop_numbers {
        // A snapshot's hash covers the ids of members.
        return Regex::new(r"[0-9a-f]{2,}")
            .expect("a constant")
            .replace_all(&text, "N")
            .into_owned();
    }
    let cells =
        Regex::new(r"\| (true|false|[0-9]+|[0-9]+%|[0-9.]+(ns|µs|ms|s)) ").expect("a constant");
    // Neighbouring cells share a border, so one pass sees every second of them.
    let once = cells.replace_all(&text, "| N ").into_owned();
    cells.replace_all(&once, "| N ").into_owned()
}

/// A protobuf message without its schema: fields in order, the ids of the header left out.
fn message_text(mut bytes: &[u8], top: bool) -> String {
    let mut text = String::from("{");
    while !bytes.is_empty() {
        let Some(tag) = varint(&mut bytes) else { return "{not a message}".into() };
        let (field, kind) = (tag >> 3, tag & 7);
        match kind {
            0 => {
                let Some(value) = varint(&mut bytes) else { return "{not a message}".into() };
                text.push_str(&format!("{field}:{value} "));
            }
            2 => {
                let Some(length) = varint(&mut bytes) else { return "{not a message}".into() };
                let Some((inner, rest)) = bytes.split_at_checked(length as usize) else {
                    return "{not a message}".into();
                };
                bytes = rest;
                if top && field == 1 {
                    // cluster_id, member_id and raft_term go; the revision stays.
                    let header = message_text(inner, false);
                    let revision = header
                        .split(' ')
                        .find(|part| part.trim_start_matches('{').starts_with("3:"));
                    text.push_str(&format!("header:{} ", revision.unwrap_or("-")));
                } else {
                    text.push_str(&format!("{field}:{:?} ", bytes_text(inner)));
                }
            }
            _ => return "{not a message}".into(),
        }
    }
    text.push('}');
    text
}

fn bytes_text(bytes: &[u8]) -> String {
    let nested = message_text(bytes, false);
    let plain = String::from_utf8_lossy(bytes).into_owned();
    if nested.contains("not a message") || bytes.iter().all(u8::is_ascii_graphic) {
        plain
    } else {
        nested
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
