//! The wire checks of appendix A of the etcd reference: requests to a real server and what it
//! answered, to the letter.
//!
//! With `APPENDIX_A=URL` they run against the server at that address, which must be fresh: so the
//! table itself is checked against real etcd.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

#[path = "serving/common.rs"]
mod common;

use bytes::Bytes;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::request_op::Request as Op;
use mainstay_proto::etcdserverpb::response_op::Response as OpResponse;
use mainstay_proto::etcdserverpb::watch_request::RequestUnion;
use mainstay_proto::etcdserverpb::{
    auth_client::AuthClient, cluster_client::ClusterClient, kv_client::KvClient,
    lease_client::LeaseClient, maintenance_client::MaintenanceClient, watch_client::WatchClient,
};
use mainstay_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code, Response, Status, Streaming};

use common::{PATIENCE, Served, connect};

struct Clients {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    cluster: ClusterClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    auth: AuthClient<Channel>,
    watch: WatchClient<Channel>,
}

impl Clients {
    fn over(channel: Channel) -> Self {
        Self {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            watch: WatchClient::new(channel),
        }
    }
}

/// An answer as the table writes it: `ok` and what matters, or code and text.
fn told<T>(answer: Result<Response<T>, Status>, show: impl FnOnce(T) -> String) -> String {
    match answer {
        Ok(response) => format!("ok {}", show(response.into_inner())).trim_end().to_owned(),
        Err(status) => failed(&status),
    }
}

fn failed(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn nothing<T>(_: T) -> String {
    String::new()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest { key: bytes(key), value: bytes(value), ..Default::default() }
}

fn range(key: &str, end: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: bytes(key), range_end: bytes(end), ..Default::default() }
}

fn delete(key: &str, end: &str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: bytes(key), range_end: bytes(end), ..Default::default() }
}

fn ops(list: Vec<Op>) -> pb::TxnRequest {
    let success = list.into_iter().map(|op| pb::RequestOp { request: Some(op) }).collect();
    pb::TxnRequest { success, ..Default::default() }
}

/// Revision of the header, pairs, and what is said about more of them.
fn shown_range(response: pb::RangeResponse) -> String {
    let pairs: Vec<String> = response
        .kvs
        .iter()
        .map(|kv| format!("{}={}", kv.key.escape_ascii(), kv.value.escape_ascii()))
        .collect();
    let revision = response.header.map_or(0, |header| header.revision);
    format!("at {revision} [{}] more {} count {}", pairs.join(" "), response.more, response.count)
}

fn revision(header: Option<pb::ResponseHeader>) -> String {
    header.map_or("without header".to_owned(), |header| format!("at {}", header.revision))
}

fn shown_txn(response: pb::TxnResponse) -> String {
    let mut text = revision(response.header);
    for op in response.responses {
        let shown = match op.response.unwrap() {
            OpResponse::ResponseRange(r) => shown_range(r),
            OpResponse::ResponsePut(r) => {
                let prev = r.prev_kv.map(|kv| kv.value.escape_ascii().to_string());
                format!("{} put prev {prev:?}", revision(r.header))
            }
            OpResponse::ResponseDeleteRange(r) => {
                format!("{} deleted {}", revision(r.header), r.deleted)
            }
            OpResponse::ResponseTxn(r) => shown_txn(r),
        };
        text.push_str(&format!("; {shown}"));
    }
    format!("{} {text}", response.succeeded)
}

/// Rows: what was asked, what came, what must come.
struct Table(Vec<String>);

impl Table {
    fn row(&mut self, asked: &str, came: String, must: &str) {
        if came != must {
            self.0.push(format!("{asked}\n   came: {came}\n   must: {must}"));
        }
    }

    fn check(self) {
        assert!(self.0.is_empty(), "{} rows differ:\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// Revision 22, keys `a` and `b`, compacted at 2.
async fn prepare(clients: &mut Clients) {
    for value in 2..22 {
        clients.kv.put(put("a", &value.to_string())).await.unwrap();
    }
    clients.kv.put(put("b", "0")).await.unwrap();
    let compact = pb::CompactionRequest { revision: 2, physical: true };
    clients.kv.compact(compact).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests() {
    let (ours, channel) = match std::env::var("APPENDIX_A") {
        Ok(url) => (None, connect(&url).await),
        Err(_) => {
            let served = Served::start_with(|_| {}, |_| {}).await;
            let channel = served.channel().await;
            (Some(served), channel)
        }
    };
    let mut c = Clients::over(channel);
    prepare(&mut c).await;
    let mut table = Table(Vec::new());
    keys(&mut c, &mut table).await;
    transactions(&mut c, &mut table).await;
    leases(&mut c, &mut table).await;
    maintenance(&mut c, &mut table).await;
    auth(&mut c, &mut table).await;
    watches(&mut c, &mut table).await;
    members(&mut c, &mut table).await;
    if let Some(served) = ours {
        served.stop().await;
    }
    table.check();
}

async fn keys(c: &mut Clients, table: &mut Table) {
    for (asked, request, must) in [
        ("Put key=\"\"", put("", ""), "InvalidArgument: etcdserver: key is not provided"),
        (
            "Put with an unknown lease",
            pb::PutRequest { lease: 99, ..put("a", "1") },
            "NotFound: etcdserver: requested lease not found",
        ),
        (
            "Put ignore_value with a value",
            pb::PutRequest { ignore_value: true, ..put("a", "1") },
            "InvalidArgument: etcdserver: value is provided",
        ),
        (
            "Put ignore_value of a missing key",
            pb::PutRequest { ignore_value: true, ..put("zz", "") },
            "InvalidArgument: etcdserver: key not found",
        ),
        (
            "Put 1.6 MB",
            put("a", &"x".repeat(1_600_000)),
            "InvalidArgument: etcdserver: request is too large",
        ),
        (
            "Put 3 MB",
            put("a", &"x".repeat(3_000_000)),
            "ResourceExhausted: grpc: received message larger than max (3000008 vs. 2097152)",
        ),
    ] {
        table.row(asked, told(c.kv.put(request).await, nothing), must);
    }
    for (asked, request, must) in [
        (
            "Range of the future",
            pb::RangeRequest { revision: 100_000, ..range("a", "") },
            "OutOfRange: etcdserver: mvcc: required revision is a future revision",
        ),
        (
            "Range of a compacted revision",
            pb::RangeRequest { revision: 1, ..range("a", "") },
            "OutOfRange: etcdserver: mvcc: required revision has been compacted",
        ),
        (
            "Range at revision -5",
            pb::RangeRequest { revision: -5, ..range("a", "") },
            "ok at 22 [a=21] more false count 1",
        ),
        (
            "Range with limit -5",
            pb::RangeRequest { limit: -5, ..range("a", "c") },
            "ok at 22 [a=21 b=0] more false count 2",
        ),
        ("Range z..a", range("z", "a"), "ok at 22 [] more false count 0"),
        (
            "Range of everything, keys only, limit 1",
            pb::RangeRequest { keys_only: true, limit: 1, ..range("\0", "\0") },
            "ok at 22 [a=] more true count 2",
        ),
    ] {
        table.row(asked, told(c.kv.range(request).await, shown_range), must);
    }
    let deleted = told(c.kv.delete_range(delete("z", "a")).await, |r| {
        format!("{} deleted {}", revision(r.header), r.deleted)
    });
    table.row("DeleteRange z..a", deleted, "ok at 22 deleted 0");
    for (at, must) in [
        (1_000_000, "OutOfRange: etcdserver: mvcc: required revision is a future revision"),
        (0, "OutOfRange: etcdserver: mvcc: required revision has been compacted"),
    ] {
        let request = pb::CompactionRequest { revision: at, physical: false };
        let asked = format!("Compact {at}");
        table.row(&asked, told(c.kv.compact(request).await, nothing), must);
    }
}

async fn transactions(c: &mut Clients, table: &mut Table) {
    let puts = |n: usize| (0..n).map(|i| Op::RequestPut(put(&format!("k{i}"), ""))).collect();
    let old = pb::RangeRequest { revision: 1, ..range("a", "") };
    let future = pb::RangeRequest { revision: 10_000, ..range("a", "") };
    let empty_key = pb::Compare { target: 0, ..Default::default() };
    for (asked, request, must) in [
        (
            "Txn of two puts of a key",
            ops(vec![Op::RequestPut(put("a", "1")), Op::RequestPut(put("a", "2"))]),
            "InvalidArgument: etcdserver: duplicate key given in txn request",
        ),
        (
            "Txn of 129 puts",
            ops(puts(129)),
            "InvalidArgument: etcdserver: too many operations in txn request",
        ),
        (
            "Txn of an empty op",
            pb::TxnRequest { success: vec![pb::RequestOp { request: None }], ..Default::default() },
            "InvalidArgument: etcdserver: key not found",
        ),
        (
            "Txn with an empty key to compare",
            pb::TxnRequest { compare: vec![empty_key], ..Default::default() },
            "InvalidArgument: etcdserver: key is not provided",
        ),
        ("Txn of nothing", pb::TxnRequest::default(), "ok true at 22"),
        (
            "Txn that reads a compacted revision",
            ops(vec![Op::RequestRange(old)]),
            "OutOfRange: etcdserver: mvcc: required revision has been compacted",
        ),
        (
            "Txn that reads the future and puts",
            ops(vec![Op::RequestRange(future), Op::RequestPut(put("a", "x"))]),
            "OutOfRange: etcdserver: mvcc: required revision is a future revision",
        ),
        (
            "Txn of reads and writes",
            ops(vec![
                Op::RequestRange(range("a", "")),
                Op::RequestPut(pb::PutRequest { prev_kv: true, ..put("a", "2") }),
                Op::RequestRange(range("a", "")),
                Op::RequestDeleteRange(delete("q", "")),
            ]),
            "ok true at 23; at 22 [a=21] more false count 1; at 23 put prev Some(\"21\"); \
             at 23 [a=2] more false count 1; at 23 deleted 0",
        ),
    ] {
        table.row(asked, told(c.kv.txn(request).await, shown_txn), must);
    }
}

async fn leases(c: &mut Clients, table: &mut Table) {
    for (ttl, id, must) in [
        (9_000_000_001, 0, "OutOfRange: etcdserver: too large lease TTL"),
        (0, 77, "ok ttl 2"),
        (0, 77, "FailedPrecondition: etcdserver: lease already exists"),
        (100, -77, "ok ttl 100"),
    ] {
        let request = pb::LeaseGrantRequest { ttl, id };
        let came = told(c.lease.lease_grant(request).await, |r| format!("ttl {}", r.ttl));
        table.row(&format!("LeaseGrant TTL {ttl} ID {id}"), came, must);
    }
    for (id, must) in [(77, "ok ttl 1 of 2"), (78, "ok ttl -1 of 0")] {
        let request = pb::LeaseTimeToLiveRequest { id, keys: true };
        let came = told(c.lease.lease_time_to_live(request).await, |r| {
            format!("ttl {} of {}", r.ttl, r.granted_ttl)
        });
        table.row(&format!("TimeToLive {id}"), came, must);
    }
    let came = told(c.lease.lease_revoke(pb::LeaseRevokeRequest { id: 78 }).await, nothing);
    table.row("LeaseRevoke 78", came, "NotFound: etcdserver: requested lease not found");
    let requests = [78, 77].map(|id| pb::LeaseKeepAliveRequest { id });
    let stream = c.lease.lease_keep_alive(tokio_stream::iter(requests)).await;
    let mut renewed = stream.unwrap().into_inner();
    let mut came = Vec::new();
    while let Some(response) = renewed.message().await.transpose() {
        came.push(response.map_or_else(|s| failed(&s), |r| format!("{} ttl {}", r.id, r.ttl)));
    }
    table.row("KeepAlive 78, 77, end", came.join(", "), "78 ttl 0, 77 ttl 2");
    // Gone before the watches, so that no expiry comes between.
    for id in [77, -77] {
        c.lease.lease_revoke(pb::LeaseRevokeRequest { id }).await.unwrap();
    }
}

async fn maintenance(c: &mut Clients, table: &mut Table) {
    let came =
        told(c.maintenance.defragment(pb::DefragmentRequest {}).await, |r| revision(r.header));
    table.row("Defragment", came, "ok without header");
    let request = pb::MoveLeaderRequest { target_id: 5 };
    let came = told(c.maintenance.move_leader(request).await, nothing);
    table.row("MoveLeader 5", came, "FailedPrecondition: etcdserver: bad leader transferee");
    // The reference server was a 3.5: versions below are moved to those of this one's cluster. To
    // cancel a downgrade that is not there was an error then and is none in 3.7.
    for (action, version, must) in [
        (0, "abc", "InvalidArgument: etcdserver: wrong downgrade target version format"),
        (0, "3.2", "InvalidArgument: etcdserver: invalid downgrade target version"),
        (0, "3.6.0", "ok version 3.7"),
        (2, "", "ok version 3.7"),
    ] {
        let request = pb::DowngradeRequest { action, version: version.into() };
        let came =
            told(c.maintenance.downgrade(request).await, |r| format!("version {}", r.version));
        table.row(&format!("Downgrade {action} {version:?}"), came, must);
    }
}

async fn auth(c: &mut Clients, table: &mut Table) {
    let came = told(c.auth.auth_status(pb::AuthStatusRequest {}).await, |r| {
        format!("{} revision {}", r.enabled, r.auth_revision)
    });
    table.row("AuthStatus", came, "ok false revision 1");
    let enable = told(c.auth.auth_enable(pb::AuthEnableRequest {}).await, nothing);
    table.row(
        "AuthEnable without root",
        enable,
        "FailedPrecondition: etcdserver: root user does not exist",
    );
    let login = pb::AuthenticateRequest { name: "root".into(), password: "x".into() };
    let came = told(c.auth.authenticate(login).await, nothing);
    let off = "FailedPrecondition: etcdserver: authentication is not enabled";
    table.row("Authenticate while off", came, off);
    let user = pb::AuthUserAddRequest::default();
    let came = told(c.auth.user_add(user).await, nothing);
    table.row("UserAdd \"\"", came, "InvalidArgument: etcdserver: user name is empty");
    let user = pb::AuthUserAddRequest { name: "u1".into(), ..Default::default() };
    table.row("UserAdd without a password", told(c.auth.user_add(user).await, nothing), "ok");
    let user = pb::AuthUserGetRequest { name: "u2".into() };
    let came = told(c.auth.user_get(user).await, nothing);
    table.row("UserGet", came, "FailedPrecondition: etcdserver: user name not found");
    let role = pb::AuthRoleAddRequest { name: String::new() };
    let came = told(c.auth.role_add(role).await, nothing);
    table.row("RoleAdd \"\"", came, "InvalidArgument: etcdserver: role name is empty");
    for name in ["nope", "root"] {
        let role = pb::AuthRoleGetRequest { role: name.into() };
        let came = told(c.auth.role_get(role).await, nothing);
        table.row("RoleGet", came, "FailedPrecondition: etcdserver: role name not found");
    }
}

/// Last, because the cluster loses its quorum at the end.
async fn members(c: &mut Clients, table: &mut Table) {
    let list = pb::MemberListRequest { linearizable: true };
    let members = c.cluster.member_list(list).await.unwrap().into_inner().members;
    let own = members[0].clone();
    let add = |url: &str, is_learner| pb::MemberAddRequest {
        peer_ur_ls: if url.is_empty() { Vec::new() } else { vec![url.to_owned()] },
        is_learner,
    };
    let not_enough =
        "Unknown: etcdserver: re-configuration failed due to not enough started members";
    let invalid = "InvalidArgument: etcdserver: given member URLs are invalid";
    for (asked, request, must) in [
        ("MemberAdd of a bad URL", add("bad", false), invalid),
        ("MemberAdd of no URL", add("", false), invalid),
        (
            "MemberAdd of the own URL",
            add(&own.peer_ur_ls[0], false),
            "FailedPrecondition: etcdserver: Peer URLs already exists",
        ),
        ("MemberAdd of a learner", add("http://127.0.0.1:1", true), "ok at 0 without name"),
        (
            "MemberAdd of a second learner",
            add("http://127.0.0.1:2", true),
            "FailedPrecondition: etcdserver: too many learner members in cluster",
        ),
    ] {
        table.row(asked, told(c.cluster.member_add(request).await, shown_add), must);
    }
    let list = pb::MemberListRequest { linearizable: true };
    let members = c.cluster.member_list(list).await.unwrap().into_inner().members;
    let learner = members.iter().find(|member| member.is_learner).unwrap().id;
    for (asked, id, must) in [
        (
            "MemberPromote of a voter",
            own.id,
            "FailedPrecondition: etcdserver: can only promote a learner member",
        ),
        (
            "MemberPromote of an unstarted learner",
            learner,
            "FailedPrecondition: etcdserver: can only promote a learner member which is in sync \
             with leader",
        ),
    ] {
        let request = pb::MemberPromoteRequest { id };
        table.row(asked, told(c.cluster.member_promote(request).await, nothing), must);
    }
    let not_found = "NotFound: etcdserver: member not found";
    for (asked, id, must) in [
        ("MemberRemove 5", 5, not_found),
        ("MemberRemove of the learner", learner, "ok"),
        ("MemberRemove of the learner again", learner, not_found),
        ("MemberRemove of the last member", own.id, not_enough),
    ] {
        let request = pb::MemberRemoveRequest { id };
        table.row(asked, told(c.cluster.member_remove(request).await, nothing), must);
    }
    for (asked, port, must) in [
        ("MemberAdd of a voter", 3, "ok at 0 without name"),
        ("MemberAdd of another voter", 4, not_enough),
    ] {
        let request = add(&format!("http://127.0.0.1:{port}"), false);
        table.row(asked, told(c.cluster.member_add(request).await, shown_add), must);
    }
}

fn shown_add(response: pb::MemberAddResponse) -> String {
    let name = response.member.map(|member| member.name).unwrap_or_default();
    let name = if name.is_empty() { "without name".to_owned() } else { name };
    format!("{} {name}", revision(response.header))
}

/// A watch stream with both of its directions.
struct Watching {
    requests: mpsc::Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Watching {
    async fn open(client: &mut WatchClient<Channel>) -> Self {
        let (requests, taken) = mpsc::channel(16);
        // Real servers send nothing until they have something to say.
        let taken = tokio_stream::wrappers::ReceiverStream::new(taken);
        let first = pb::WatchRequest { request_union: None };
        requests.send(first).await.unwrap();
        requests.send(progress()).await.unwrap();
        requests.send(create(watch("a"))).await.unwrap();
        let responses = client.watch(taken).await.unwrap().into_inner();
        Self { requests, responses }
    }

    async fn send(&self, request: pb::WatchRequest) {
        self.requests.send(request).await.unwrap();
    }

    async fn next(&mut self) -> String {
        let next = tokio::time::timeout(PATIENCE, self.responses.message()).await;
        next.expect("a response comes").unwrap().map_or("end".to_owned(), shown_watch)
    }
}

fn shown_watch(response: pb::WatchResponse) -> String {
    let mut text = format!("id {}", response.watch_id);
    for (flag, name) in [(response.created, " created"), (response.canceled, " canceled")] {
        if flag {
            text.push_str(name);
        }
    }
    if response.compact_revision != 0 {
        text.push_str(&format!(" compacted {}", response.compact_revision));
    }
    text.push_str(&format!(" at {}", response.header.unwrap().revision));
    if !response.cancel_reason.is_empty() {
        text.push_str(&format!(" because {}", response.cancel_reason));
    }
    for event in response.events {
        text.push_str(&format!(" {}", shown_event(&event)));
    }
    text
}

fn shown_event(event: &Event) -> String {
    let kv = event.kv.as_ref().unwrap();
    let kind = event.r#type().as_str_name();
    let prev = event.prev_kv.as_ref().map(|kv| kv.value.escape_ascii().to_string());
    let value = kv.value.escape_ascii();
    format!("{kind} {}={value}@{} prev {prev:?}", kv.key.escape_ascii(), kv.mod_revision)
}

fn watch(key: &str) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest { key: bytes(key), ..Default::default() }
}

fn create(request: pb::WatchCreateRequest) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(request)) }
}

fn cancel(watch_id: i64) -> pb::WatchRequest {
    let cancel = pb::WatchCancelRequest { watch_id };
    pb::WatchRequest { request_union: Some(RequestUnion::CancelRequest(cancel)) }
}

fn progress() -> pb::WatchRequest {
    let progress = pb::WatchProgressRequest {};
    pb::WatchRequest { request_union: Some(RequestUnion::ProgressRequest(progress)) }
}

/// The session of the appendix, at revision 23 and compacted at 2. What must give no answer is
/// followed by something that does: the next answer is then the latter's.
async fn watches(c: &mut Clients, table: &mut Table) {
    let mut w = Watching::open(&mut c.watch).await;
    table.row("progress without watcher, create a", w.next().await, "id 0 created at 23");
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let start = |start_revision| create(pb::WatchCreateRequest { start_revision, ..watch("a") });
    let id = |watch_id, key| create(pb::WatchCreateRequest { watch_id, ..watch(key) });
    for (asked, request, must) in [
        ("progress", progress(), vec!["id -1 at 23".to_owned()]),
        (
            "create a from 1",
            start(1),
            vec!["id 1 created at 23".into(), "id 1 canceled compacted 2 at 0".into()],
        ),
        (
            "create a from -1",
            start(-1),
            vec![format!("id -1 created canceled at 23 because {compacted}")],
        ),
        ("create a from 1000", start(1000), vec!["id 2 created at 23".into()]),
        ("progress with a watcher of the future", progress(), vec![]),
        (
            "create a with the id of one that was compacted",
            id(1, "a"),
            vec![
                "id -1 created canceled at 23 because mvcc: duplicate watch ID provided on the \
                 WatchStream"
                    .into(),
            ],
        ),
        (
            "create b with id 7 and prev_kv",
            create(pb::WatchCreateRequest { watch_id: 7, prev_kv: true, ..watch("b") }),
            vec!["id 7 created at 23".into()],
        ),
        (
            "create z..a",
            create(pb::WatchCreateRequest { range_end: bytes("a"), ..watch("z") }),
            vec!["id -1 created canceled at 23 because mvcc: watcher range is empty".into()],
        ),
        ("create a with id -3", id(-3, "a"), vec!["id -3 created at 23".into()]),
        (
            "create everything",
            create(pb::WatchCreateRequest { range_end: bytes("\0"), ..watch("") }),
            vec!["id 3 created at 23".into()],
        ),
    ] {
        w.send(request).await;
        for must in must {
            table.row(asked, w.next().await, &must);
        }
    }
    c.kv.put(put("b", "1")).await.unwrap();
    c.kv.put(put("b", "2")).await.unwrap();
    c.kv.delete_range(delete("b", "")).await.unwrap();
    for (at, seven, three) in [
        (24, "PUT b=1@24 prev Some(\"0\")", "PUT b=1@24 prev None"),
        (25, "PUT b=2@25 prev Some(\"1\")", "PUT b=2@25 prev None"),
        (26, "DELETE b=@26 prev Some(\"2\")", "DELETE b=@26 prev None"),
    ] {
        // The watchers of one stream come in any order.
        let mut came = [w.next().await, w.next().await];
        came.sort();
        let must = format!("id 3 at {at} {three}, id 7 at {at} {seven}");
        table.row("changes of b", came.join(", "), &must);
    }
    w.send(cancel(7)).await;
    table.row("cancel 7", w.next().await, "id 7 canceled at 26");
    w.send(cancel(70)).await;
    let past = pb::WatchCreateRequest {
        start_revision: 21,
        prev_kv: true,
        filters: vec![1],
        ..watch("a")
    };
    w.send(create(past)).await;
    table.row("cancel 70, create a from 21", w.next().await, "id 4 created at 26");
    table.row(
        "the past of a",
        w.next().await,
        "id 4 at 26 PUT a=21@21 prev Some(\"20\") PUT a=2@23 prev Some(\"21\")",
    );
}

/// The codes of tonic are those of the wire.
#[test]
fn codes_have_their_names() {
    assert_eq!(failed(&Status::new(Code::OutOfRange, "x")), "OutOfRange: x");
}
