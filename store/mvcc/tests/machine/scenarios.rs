//! Scenario scripts: `testdata/*.txt`, blocks of commands, `----`, and what they print.
//!
//! A block is one command per line; indented lines belong to the command above (the clauses of a
//! `txn`). Requests take the way of a client's: checks, then the log, or a read for ranges and
//! read-only transactions. `UPDATE_SCENARIOS=1` writes the present output into the files.

use std::fmt::Write as _;
use std::path::Path;

use mainstay_engine::Engine;
use mainstay_mvcc::{
    CatchUpLimits, Error, Event, EventKind, KeySpan, Outcome, Response, attached_keys,
    check_delete_range, check_put, check_range, check_txn, events_between, is_read_only_txn, kv_at,
    read_txn, stored_lease, stored_leases,
};
use mainstay_proto::etcdserverpb::compare::TargetUnion;
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::response_op::Response as Op;
use mainstay_proto::etcdserverpb::{self as pb, InternalRaftRequest};
use mainstay_proto::membershippb as mpb;
use mainstay_proto::mvccpb::KeyValue;

use crate::store::{Store, compact, grant, outcome, request, revoke, txn};

#[test]
fn scripts() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let script = std::fs::read_to_string(&path).unwrap();
        let printed = run(&script);
        if std::env::var_os("UPDATE_SCENARIOS").is_some() {
            std::fs::write(&path, &printed).unwrap();
            continue;
        }
        for (number, (ours, wanted)) in printed.lines().zip(script.lines()).enumerate() {
            assert_eq!(ours, wanted, "{}:{}", path.display(), number + 1);
        }
        assert_eq!(printed, script, "{}", path.display());
    }
}

/// The script with the output that it has now.
fn run(script: &str) -> String {
    let mut store = Store::new();
    let mut out = String::new();
    let mut lines = script.lines().peekable();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut commands = vec![vec![line]];
        for line in lines.by_ref() {
            writeln!(out, "{line}").unwrap();
            match line {
                "----" => break,
                line if line.starts_with(' ') => commands.last_mut().unwrap().push(line),
                line => commands.push(vec![line]),
            }
        }
        // The old output, up to the next empty line, is left out.
        while lines.peek().is_some_and(|line| !line.is_empty()) {
            lines.next();
        }
        for command in commands {
            let printed = match execute(&mut store, &command) {
                Ok(printed) => printed,
                Err(error) => format!("error {:?}: {error}\n", error.code()),
            };
            out.push_str(&printed);
        }
    }
    out
}

/// The words of a command: `""` is empty, `\0` a zero byte.
struct Words<'a> {
    plain: Vec<String>,
    options: Vec<&'a str>,
}

impl<'a> Words<'a> {
    /// The first `plain` words are arguments, the others options.
    fn new(line: &'a str) -> Self {
        let is_option = |word: &str| {
            word.contains('=') && word.len() > 1
                || ["prev", "ignore_value", "ignore_lease", "keys_only", "count_only", "physical"]
                    .contains(&word)
        };
        let words: Vec<_> = line.split_whitespace().collect();
        let options = words.iter().copied().filter(|word| is_option(word)).collect();
        let plain = words
            .iter()
            .filter(|word| !is_option(word))
            .map(|word| if *word == "\"\"" { String::new() } else { word.replace("\\0", "\0") })
            .collect();
        Self { plain, options }
    }

    fn word(&self, at: usize) -> &str {
        self.plain.get(at).map_or("", String::as_str)
    }

    fn number(&self, at: usize) -> i64 {
        self.word(at).parse().unwrap_or_else(|_| panic!("a number at {at} of {:?}", self.plain))
    }

    fn bytes(&self, at: usize) -> bytes::Bytes {
        self.word(at).to_owned().into()
    }

    fn flag(&self, name: &str) -> bool {
        self.options.contains(&name)
    }

    fn option(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }

    fn value(&self, name: &str) -> i64 {
        self.option(name).map_or(0, |value| value.parse().unwrap())
    }
}

fn execute(store: &mut Store, lines: &[&str]) -> Result<String, Error> {
    let words = Words::new(lines[0]);
    let state = store.state();
    Ok(match words.word(0) {
        "put" => {
            let put = put_request(&words, 1);
            check_put(&put)?;
            apply(store, request!(put, put))?
        }
        "delete" => {
            let delete = delete_request(&words, 1);
            check_delete_range(&delete)?;
            apply(store, request!(delete_range, delete))?
        }
        "range" => {
            let range = range_request(&words, 1);
            check_range(&range)?;
            print_range(&store.range(&range)?, "")
        }
        "txn" => {
            let request = txn_request(&mut lines[1..].iter().copied().peekable(), 2);
            check_txn(&request, 128)?;
            if is_read_only_txn(&request) {
                let view = store.engine.snapshot();
                print_txn(&read_txn(&*view, state.read_at(), &request)?, "")
            } else {
                apply(store, txn(request))?
            }
        }
        "compact" => apply(store, compact(words.number(1)))?,
        "slice" => match store.slice(words.number(1) as usize) {
            Some(revision) => format!("finished {revision}\n"),
            None if store.machine.compacting().is_some() => "more\n".into(),
            None => "idle\n".into(),
        },
        "grant" => apply(store, grant(words.number(1), words.number(2)))?,
        "revoke" => apply(store, revoke(words.number(1)))?,
        "checkpoint" => {
            let checkpoint =
                pb::LeaseCheckpoint { id: words.number(1), remaining_ttl: words.number(2) };
            let checkpoints = vec![checkpoint];
            apply(store, request!(lease_checkpoint, pb::LeaseCheckpointRequest { checkpoints }))?
        }
        "lease" => {
            let id = words.number(1);
            let lease = stored_lease(&store.engine, id)?.ok_or(Error::LeaseNotFound)?;
            let keys = attached_keys(&store.engine, id)?;
            let keys: Vec<_> = keys.iter().map(|key| key.escape_ascii().to_string()).collect();
            format!("ttl {} remaining {} keys {keys:?}\n", lease.ttl, lease.remaining_ttl)
        }
        "leases" => {
            let ids: Vec<_> = stored_leases(&store.engine)?.iter().map(|lease| lease.id).collect();
            format!("{ids:?}\n")
        }
        "alarm" => {
            let action = ["get", "activate", "deactivate"];
            let alarm = ["none", "nospace", "corrupt"];
            let number = |names: &[&str], at| {
                names.iter().position(|name| *name == words.word(at)).unwrap() as i32
            };
            let member_id = words.word(3).parse().unwrap_or(0);
            let (action, alarm) = (number(&action, 1), number(&alarm, 2));
            apply(store, request!(alarm, pb::AlarmRequest { action, member_id, alarm }))?
        }
        "auth" => {
            let status = pb::AuthStatusRequest {};
            apply(
                store,
                match words.word(1) {
                    "status" => request!(auth_status, status),
                    "enable" => request!(auth_enable, pb::AuthEnableRequest {}),
                    "disable" => request!(auth_disable, pb::AuthDisableRequest {}),
                    "users" => request!(auth_user_list, pb::AuthUserListRequest {}),
                    "user" => {
                        let name = words.word(2).to_owned();
                        request!(auth_user_get, pb::AuthUserGetRequest { name })
                    }
                    "role" => {
                        let role = words.word(2).to_owned();
                        request!(auth_role_get, pb::AuthRoleGetRequest { role })
                    }
                    _ => request!(authenticate, pb::InternalAuthenticateRequest::default()),
                },
            )?
        }
        "version" => {
            let ver = words.word(1).to_owned();
            apply(store, request!(cluster_version_set, mpb::ClusterVersionSetRequest { ver }))?
        }
        "downgrade" => {
            let (enabled, ver) = (words.word(1) == "on", words.word(2).to_owned());
            let set = mpb::DowngradeInfoSetRequest { enabled, ver };
            apply(store, request!(downgrade_info_set, set))?
        }
        "hash" => {
            let revision = words.word(1).parse().unwrap_or(0);
            let answer = mainstay_mvcc::hash_kv(&store.engine, state.read_at(), revision)?;
            format!("{answer:?}\n")
        }
        "events" => {
            let to = words.word(2).parse().unwrap_or(state.revision);
            let span = KeySpan::new(&words.bytes(3), &words.bytes(4));
            let all = words.word(3).is_empty();
            let part = events_between(
                &store.engine,
                state.read_at(),
                words.number(1),
                to,
                CatchUpLimits::default(),
                true,
                &mut |key| all || span.contains(key),
            )?;
            let mut out = String::new();
            for event in part.revisions.iter().flat_map(|revision| revision.events.iter()) {
                out.push_str(&print_event(store, event));
            }
            writeln!(out, "next {}", part.next).unwrap();
            out
        }
        "state" => format!(
            "revision {} compacted {} finished {} applied {} version {:?} alarms {}\n",
            state.revision,
            state.compacted,
            state.compact_finished,
            state.applied.index,
            state.cluster_version.map(|version| version.to_string()),
            state.alarms.list(pb::AlarmType::None).len(),
        ),
        "reopen" => {
            store.reopen();
            String::new()
        }
        other => panic!("unknown command {other:?}"),
    })
}

fn apply(store: &mut Store, request: InternalRaftRequest) -> Result<String, Error> {
    let applied = store.apply(request);
    let events: Vec<_> =
        applied.events.iter().flat_map(|revision| revision.events.iter().cloned()).collect();
    let changes = applied.lease_changes.clone();
    let Outcome { result, compaction, .. } = outcome(applied);
    let mut out = match result? {
        Response::Put(put) => print_put(&put),
        Response::DeleteRange(delete) => print_delete(&delete),
        Response::Txn(txn) => print_txn(&txn, ""),
        Response::LeaseGrant(grant) => {
            format!("granted {} ttl {} {}\n", grant.id, grant.ttl, revision(&grant.header))
        }
        Response::LeaseRevoke(answer) => format!("revoked {}\n", revision(&answer.header)),
        Response::Compaction(answer) => format!("compacted {}\n", revision(&answer.header)),
        Response::Alarm(answer) => {
            let alarms = answer.alarms.iter();
            let alarms: Vec<_> = alarms
                .map(|alarm| format!("{}:{}", alarm.member_id, alarm.alarm().as_str_name()))
                .collect();
            format!("alarms {alarms:?}\n")
        }
        other => format!("{other:?}\n"),
    };
    for change in changes {
        writeln!(out, "lessor {change:?}").unwrap();
    }
    for event in &events {
        out.push_str(&print_event(store, event));
    }
    if let Some(revision) = compaction {
        writeln!(out, "to {revision}").unwrap();
    }
    Ok(out)
}

fn put_request(words: &Words<'_>, at: usize) -> pb::PutRequest {
    pb::PutRequest {
        key: words.bytes(at),
        value: words.bytes(at + 1),
        lease: words.value("lease"),
        prev_kv: words.flag("prev"),
        ignore_value: words.flag("ignore_value"),
        ignore_lease: words.flag("ignore_lease"),
    }
}

fn delete_request(words: &Words<'_>, at: usize) -> pb::DeleteRangeRequest {
    let (key, range_end) = (words.bytes(at), words.bytes(at + 1));
    pb::DeleteRangeRequest { key, range_end, prev_kv: words.flag("prev") }
}

fn range_request(words: &Words<'_>, at: usize) -> pb::RangeRequest {
    let named = |name: &str, names: &[&str]| {
        words.option(name).map_or(0, |word| {
            let known = names.iter().position(|name| *name == word);
            known.map_or_else(|| word.parse().unwrap(), |position| position as i32)
        })
    };
    pb::RangeRequest {
        key: words.bytes(at),
        range_end: words.bytes(at + 1),
        limit: words.value("limit"),
        revision: words.value("rev"),
        sort_order: named("order", &["none", "ascend", "descend"]),
        sort_target: named("target", &["key", "version", "create", "mod", "value"]),
        serializable: false,
        keys_only: words.flag("keys_only"),
        count_only: words.flag("count_only"),
        min_mod_revision: words.value("min_mod"),
        max_mod_revision: words.value("max_mod"),
        min_create_revision: words.value("min_create"),
        max_create_revision: words.value("max_create"),
    }
}

/// Clauses with at least `depth` spaces before them; those with more belong to a nested `txn`.
fn txn_request<'a>(
    lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
    depth: usize,
) -> pb::TxnRequest {
    let mut txn = pb::TxnRequest::default();
    while let Some(line) = lines.next_if(|line| line.len() - line.trim_start().len() >= depth) {
        let words = Words::new(line);
        let op = match words.word(1) {
            _ if words.word(0) == "if" => {
                txn.compare.push(compare(line));
                continue;
            }
            "put" => Some(Request::RequestPut(put_request(&words, 2))),
            "delete" => Some(Request::RequestDeleteRange(delete_request(&words, 2))),
            "range" => Some(Request::RequestRange(range_request(&words, 2))),
            "txn" => Some(Request::RequestTxn(txn_request(&mut *lines, depth + 2))),
            _ => None,
        };
        let branch = if words.word(0) == "then" { &mut txn.success } else { &mut txn.failure };
        branch.push(pb::RequestOp { request: op });
    }
    txn
}

/// `if TARGET KEY [END] OPERATOR OPERAND`.
fn compare(line: &str) -> pb::Compare {
    let text = |word: &str| {
        if word == "\"\"" { String::new() } else { word.replace("\\0", "\0") }
    };
    let words: Vec<_> = line.split_whitespace().map(text).collect();
    let (operand, operator) = (words[words.len() - 1].clone(), &words[words.len() - 2]);
    let number = || operand.parse().unwrap();
    let (target, union) = match words[1].as_str() {
        "version" => (0, TargetUnion::Version(number())),
        "create" => (1, TargetUnion::CreateRevision(number())),
        "mod" => (2, TargetUnion::ModRevision(number())),
        "value" => (3, TargetUnion::Value(operand.into())),
        _ => (4, TargetUnion::Lease(number())),
    };
    let operators = ["==", ">", "<", "!="];
    pb::Compare {
        result: operators.iter().position(|name| name == operator).unwrap() as i32,
        target,
        key: words[2].clone().into(),
        range_end: if words.len() == 6 { words[3].clone().into() } else { "".into() },
        target_union: Some(union),
    }
}

fn revision(header: &Option<pb::ResponseHeader>) -> String {
    format!("rev {}", header.as_ref().map_or(-1, |header| header.revision))
}

fn print_kv(kv: &KeyValue) -> String {
    let lease = if kv.lease == 0 { String::new() } else { format!(" lease {}", kv.lease) };
    format!(
        "{}={} create {} mod {} version {}{lease}",
        kv.key.escape_ascii(),
        kv.value.escape_ascii(),
        kv.create_revision,
        kv.mod_revision,
        kv.version,
    )
}

fn print_range(range: &pb::RangeResponse, indent: &str) -> String {
    let more = if range.more { " more" } else { "" };
    let mut out = format!("{indent}{} count {}{more}\n", revision(&range.header), range.count);
    for kv in &range.kvs {
        writeln!(out, "{indent}  {}", print_kv(kv)).unwrap();
    }
    out
}

fn print_put(put: &pb::PutResponse) -> String {
    let prev = put.prev_kv.as_ref().map_or(String::new(), |kv| format!(" prev {}", print_kv(kv)));
    format!("put {}{prev}\n", revision(&put.header))
}

fn print_delete(delete: &pb::DeleteRangeResponse) -> String {
    let prevs: Vec<_> = delete.prev_kvs.iter().map(print_kv).collect();
    let prevs = if prevs.is_empty() { String::new() } else { format!(" prevs {prevs:?}") };
    format!("deleted {} {}{prevs}\n", delete.deleted, revision(&delete.header))
}

fn print_txn(txn: &pb::TxnResponse, indent: &str) -> String {
    let mut out = format!("{indent}succeeded {} {}\n", txn.succeeded, revision(&txn.header));
    let deeper = format!("{indent}  ");
    for op in &txn.responses {
        out.push_str(&match op.response.as_ref().unwrap() {
            Op::ResponseRange(range) => print_range(range, &deeper),
            Op::ResponsePut(put) => format!("{deeper}{}", print_put(put)),
            Op::ResponseDeleteRange(delete) => format!("{deeper}{}", print_delete(delete)),
            Op::ResponseTxn(txn) => print_txn(txn, &deeper),
        });
    }
    out
}

fn print_event(store: &Store, event: &Event) -> String {
    let kind = match event.kind {
        EventKind::Put => "PUT",
        EventKind::Delete => "DELETE",
    };
    let prev = event.prev.and_then(|prev| kv_at(&store.engine, prev).unwrap());
    let prev = prev.map_or(String::new(), |kv| format!(" prev {}", print_kv(&kv)));
    format!("event {kind} {}{prev}\n", print_kv(&event.kv))
}
