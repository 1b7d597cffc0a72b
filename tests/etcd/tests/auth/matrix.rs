//! Every call by everybody, before and after auth is on, on the leader and on a follower, is answered
//! with the code and text of real etcd.

use mainstay_etcd_tests::member::{Cluster, Member, Program};
use mainstay_etcd_tests::ops::{leader, settle};
use mainstay_proto::authpb::Permission;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::v3electionpb as election;
use mainstay_proto::v3lockpb as lock;
use tonic::Status;

use crate::caller::{Caller, enable, lease_with, outcome, set_up, tested};

/// Everything that a caller can call, none of which changes anything that a later call notices.
async fn matrix(caller: &Caller, lease: i64, foreign_lease: i64) -> Vec<(String, String)> {
    let mut outcomes = Vec::new();
    macro_rules! call {
        ($path:literal, $what:literal, $request:expr => $answer:ty) => {
            let result: Result<$answer, Status> = caller.call($path, $request).await;
            let whole = $path.starts_with("/etcdserverpb.Auth/");
            outcomes.push((format!("{} {}", $path, $what), outcome(result, whole)));
        };
    }
    let range = |key: &str, end: &str| pb::RangeRequest {
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
        ..Default::default()
    };
    for (what, request) in [
        ("own", range("a1", "")),
        ("own range", range("a", "b")),
        ("all", range("a", "\0")),
        ("foreign", range("z", "")),
        ("serializable", pb::RangeRequest { serializable: true, ..range("z", "") }),
        ("empty", range("", "")),
    ] {
        let path = "/etcdserverpb.KV/Range";
        let result: Result<pb::RangeResponse, Status> = caller.call(path, request.clone()).await;
        outcomes.push((format!("{path} {what}"), outcome(result, false)));
        let path = "/etcdserverpb.KV/RangeStream";
        let result: Result<pb::RangeStreamResponse, Status> = caller.first(path, request).await;
        outcomes.push((format!("{path} {what}"), outcome(result, false)));
    }
    let put = |key: &str| pb::PutRequest { key: key.to_owned().into(), ..Default::default() };
    call!("/etcdserverpb.KV/Put", "own", put("a1") => pb::PutResponse);
    call!("/etcdserverpb.KV/Put", "foreign", put("z") => pb::PutResponse);
    call!("/etcdserverpb.KV/Put", "previous",
        pb::PutRequest { prev_kv: true, ..put("w1") } => pb::PutResponse);
    call!("/etcdserverpb.KV/Put", "written only", put("w1") => pb::PutResponse);
    call!("/etcdserverpb.KV/Put", "under a foreign lease",
        pb::PutRequest { lease: foreign_lease, ..put("a2") } => pb::PutResponse);
    let delete =
        |key: &str| pb::DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    call!("/etcdserverpb.KV/DeleteRange", "own", delete("a9") => pb::DeleteRangeResponse);
    call!("/etcdserverpb.KV/DeleteRange", "foreign", delete("z9") => pb::DeleteRangeResponse);
    let txn = |operation| pb::TxnRequest {
        success: vec![pb::RequestOp { request: Some(operation) }],
        ..Default::default()
    };
    use pb::request_op::Request as Op;
    call!("/etcdserverpb.KV/Txn", "reads own",
        txn(Op::RequestRange(range("a1", ""))) => pb::TxnResponse);
    call!("/etcdserverpb.KV/Txn", "reads foreign",
        txn(Op::RequestRange(range("z", ""))) => pb::TxnResponse);
    call!("/etcdserverpb.KV/Txn", "writes own",
        txn(Op::RequestPut(put("a1"))) => pb::TxnResponse);
    call!("/etcdserverpb.KV/Txn", "writes foreign",
        txn(Op::RequestPut(put("z"))) => pb::TxnResponse);
    call!("/etcdserverpb.KV/Txn", "compares foreign", pb::TxnRequest {
        compare: vec![pb::Compare { key: "z".into(), ..Default::default() }],
        ..txn(Op::RequestPut(put("a1")))
    } => pb::TxnResponse);
    call!("/etcdserverpb.KV/Compact", "too late",
        pb::CompactionRequest { revision: 1 << 40, physical: false } => pb::CompactionResponse);

    for (what, key, end) in [("own", "a", "b"), ("all", "a", "\0"), ("foreign", "z", "")] {
        let created = async {
            let (_sender, mut answers) = caller.watch(key, end).await?;
            let first = answers.message().await?.ok_or_else(|| Status::unknown("no answer"))?;
            Ok::<_, Status>((first.created, first.canceled, first.watch_id, first.cancel_reason))
        };
        outcomes.push((format!("Watch {what}"), outcome(created.await, true)));
    }
    let grant = pb::LeaseGrantRequest { ttl: 100, id: 0 };
    call!("/etcdserverpb.Lease/LeaseGrant", "", grant => pb::LeaseGrantResponse);
    for (what, id) in [("unknown", 77), ("foreign", foreign_lease), ("own", lease)] {
        // Revoking would be noticed.
        if what != "own" {
            let request = pb::LeaseRevokeRequest { id: if what == "foreign" { id } else { 77 } };
            if what == "unknown" || caller_may_not(&outcomes) {
                let path = "/etcdserverpb.Lease/LeaseRevoke";
                let result: Result<pb::LeaseRevokeResponse, Status> =
                    caller.call(path, request).await;
                outcomes.push((format!("{path} {what}"), outcome(result, false)));
            }
        }
        for keys in [false, true] {
            let path = "/etcdserverpb.Lease/LeaseTimeToLive";
            let request = pb::LeaseTimeToLiveRequest { id, keys };
            let result: Result<pb::LeaseTimeToLiveResponse, Status> =
                caller.call(path, request).await;
            // In no order, with real etcd.
            let result = result.map(|mut answer| {
                answer.keys.sort();
                (answer.ttl > 0, answer.keys)
            });
            outcomes.push((format!("{path} {what} {keys}"), outcome(result, true)));
        }
        let kept = async {
            let request = pb::LeaseKeepAliveRequest { id };
            let (_sender, mut answers) =
                caller.open("/etcdserverpb.Lease/LeaseKeepAlive", request).await?;
            let first: Option<pb::LeaseKeepAliveResponse> = answers.message().await?;
            Ok::<_, Status>(first.map(|answer| answer.ttl > 0))
        };
        outcomes.push((format!("LeaseKeepAlive {what}"), outcome(kept.await, true)));
    }
    call!("/etcdserverpb.Lease/LeaseLeases", "",
        pb::LeaseLeasesRequest {} => pb::LeaseLeasesResponse);

    call!("/etcdserverpb.Cluster/MemberList", "",
        pb::MemberListRequest { linearizable: true } => pb::MemberListResponse);
    call!("/etcdserverpb.Cluster/MemberAdd", "wrong", pb::MemberAddRequest {
        peer_ur_ls: vec!["nowhere".into()], is_learner: false,
    } => pb::MemberAddResponse);
    call!("/etcdserverpb.Cluster/MemberRemove", "unknown",
        pb::MemberRemoveRequest { id: 1 } => pb::MemberRemoveResponse);
    call!("/etcdserverpb.Cluster/MemberUpdate", "unknown", pb::MemberUpdateRequest {
        id: 1, peer_ur_ls: vec!["http://127.0.0.1:1".into()],
    } => pb::MemberUpdateResponse);
    call!("/etcdserverpb.Cluster/MemberPromote", "unknown",
        pb::MemberPromoteRequest { id: 1 } => pb::MemberPromoteResponse);

    call!("/etcdserverpb.Maintenance/Alarm", "list",
        pb::AlarmRequest::default() => pb::AlarmResponse);
    call!("/etcdserverpb.Maintenance/Status", "", pb::StatusRequest {} => pb::StatusResponse);
    call!("/etcdserverpb.Maintenance/Defragment", "",
        pb::DefragmentRequest {} => pb::DefragmentResponse);
    call!("/etcdserverpb.Maintenance/Hash", "", pb::HashRequest {} => pb::HashResponse);
    call!("/etcdserverpb.Maintenance/HashKV", "",
        pb::HashKvRequest { revision: 0 } => pb::HashKvResponse);
    call!("/etcdserverpb.Maintenance/MoveLeader", "nobody",
        pb::MoveLeaderRequest { target_id: 1 } => pb::MoveLeaderResponse);
    call!("/etcdserverpb.Maintenance/Downgrade", "wrong", pb::DowngradeRequest {
        action: 0, version: "x".into(),
    } => pb::DowngradeResponse);
    let path = "/etcdserverpb.Maintenance/Snapshot";
    let result: Result<pb::SnapshotResponse, Status> =
        caller.first(path, pb::SnapshotRequest {}).await;
    outcomes.push((path.to_owned(), outcome(result, false)));

    call!("/etcdserverpb.Auth/AuthStatus", "",
        pb::AuthStatusRequest {} => pb::AuthStatusResponse);
    call!("/etcdserverpb.Auth/Authenticate", "wrong", pb::AuthenticateRequest {
        name: "ann".into(), password: "wrong".into(),
    } => pb::AuthenticateResponse);
    call!("/etcdserverpb.Auth/Authenticate", "unknown", pb::AuthenticateRequest {
        name: "nobody".into(), password: "wrong".into(),
    } => pb::AuthenticateResponse);
    call!("/etcdserverpb.Auth/Authenticate", "without a password", pb::AuthenticateRequest {
        name: "bare".into(), password: "".into(),
    } => pb::AuthenticateResponse);
    call!("/etcdserverpb.Auth/UserAdd", "known", pb::AuthUserAddRequest {
        name: "ann".into(), password: "x".into(), ..Default::default()
    } => pb::AuthUserAddResponse);
    call!("/etcdserverpb.Auth/UserAdd", "empty",
        pb::AuthUserAddRequest::default() => pb::AuthUserAddResponse);
    for name in ["ann", "bob", "root", "none"] {
        let path = "/etcdserverpb.Auth/UserGet";
        let request = pb::AuthUserGetRequest { name: name.into() };
        let result: Result<pb::AuthUserGetResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(result, true)));
    }
    call!("/etcdserverpb.Auth/UserList", "",
        pb::AuthUserListRequest {} => pb::AuthUserListResponse);
    call!("/etcdserverpb.Auth/UserDelete", "unknown",
        pb::AuthUserDeleteRequest { name: "none".into() } => pb::AuthUserDeleteResponse);
    call!("/etcdserverpb.Auth/UserChangePassword", "unknown", pb::AuthUserChangePasswordRequest {
        name: "none".into(), password: "x".into(), ..Default::default()
    } => pb::AuthUserChangePasswordResponse);
    call!("/etcdserverpb.Auth/UserGrantRole", "unknown", pb::AuthUserGrantRoleRequest {
        user: "none".into(), role: "a".into(),
    } => pb::AuthUserGrantRoleResponse);
    call!("/etcdserverpb.Auth/UserRevokeRole", "not granted", pb::AuthUserRevokeRoleRequest {
        name: "bob".into(), role: "a".into(),
    } => pb::AuthUserRevokeRoleResponse);
    call!("/etcdserverpb.Auth/RoleAdd", "known",
        pb::AuthRoleAddRequest { name: "a".into() } => pb::AuthRoleAddResponse);
    call!("/etcdserverpb.Auth/RoleAdd", "empty",
        pb::AuthRoleAddRequest { name: "".into() } => pb::AuthRoleAddResponse);
    for role in ["a", "root", "none"] {
        let path = "/etcdserverpb.Auth/RoleGet";
        let request = pb::AuthRoleGetRequest { role: role.into() };
        let result: Result<pb::AuthRoleGetResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {role}"), outcome(result, true)));
    }
    call!("/etcdserverpb.Auth/RoleList", "",
        pb::AuthRoleListRequest {} => pb::AuthRoleListResponse);
    call!("/etcdserverpb.Auth/RoleDelete", "unknown",
        pb::AuthRoleDeleteRequest { role: "none".into() } => pb::AuthRoleDeleteResponse);
    call!("/etcdserverpb.Auth/RoleGrantPermission", "unknown", pb::AuthRoleGrantPermissionRequest {
        name: "none".into(), perm: Some(Permission { key: "k".into(), ..Default::default() }),
    } => pb::AuthRoleGrantPermissionResponse);
    call!("/etcdserverpb.Auth/RoleGrantPermission", "nothing", pb::AuthRoleGrantPermissionRequest {
        name: "a".into(), perm: None,
    } => pb::AuthRoleGrantPermissionResponse);
    call!("/etcdserverpb.Auth/RoleRevokePermission", "not granted",
        pb::AuthRoleRevokePermissionRequest {
            role: "a".into(), key: "none".into(), range_end: "".into(),
        } => pb::AuthRoleRevokePermissionResponse);

    for name in ["a-lock", "z-lock"] {
        let path = "/v3lockpb.Lock/Lock";
        let request = lock::LockRequest { name: name.into(), lease: 0 };
        let result: Result<lock::LockResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(result.clone(), false)));
        let key = result.map_or_else(|_| format!("{name}/1").into(), |answer| answer.key);
        let path = "/v3lockpb.Lock/Unlock";
        let result: Result<lock::UnlockResponse, Status> =
            caller.call(path, lock::UnlockRequest { key }).await;
        outcomes.push((format!("{path} {name}"), outcome(result, false)));
        let path = "/v3electionpb.Election/Campaign";
        let name = name.replace("lock", "vote");
        let request =
            election::CampaignRequest { name: name.clone().into(), lease: 0, value: "me".into() };
        let result: Result<election::CampaignResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(result.clone(), false)));
        let path = "/v3electionpb.Election/Leader";
        let request = election::LeaderRequest { name: name.clone().into() };
        let found: Result<election::LeaderResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(found, false)));
        let leader = result.ok().and_then(|answer| answer.leader);
        let leader = leader.unwrap_or_else(|| election::LeaderKey {
            name: name.clone().into(),
            key: format!("{name}/1").into(),
            rev: 1,
            lease: 1,
        });
        let path = "/v3electionpb.Election/Proclaim";
        let request =
            election::ProclaimRequest { leader: Some(leader.clone()), value: "again".into() };
        let result: Result<election::ProclaimResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(result, false)));
        let path = "/v3electionpb.Election/Resign";
        let request = election::ResignRequest { leader: Some(leader) };
        let result: Result<election::ResignResponse, Status> = caller.call(path, request).await;
        outcomes.push((format!("{path} {name}"), outcome(result, false)));
    }
    outcomes
}

/// Whether the caller was refused a foreign key, so that he will be refused what hangs on it too.
fn caller_may_not(outcomes: &[(String, String)]) -> bool {
    outcomes.iter().any(|(what, said)| what == "/etcdserverpb.KV/Put foreign" && said != "ok")
}

/// All outcomes of one cluster, each with who asked where.
async fn outcomes(cluster: &Cluster) -> Vec<(String, String)> {
    settle(&cluster.members).await.unwrap();
    let all: Vec<&Member> = cluster.members.iter().collect();
    let leader = leader(&all).await.unwrap();
    let follower = (leader + 1) % all.len();
    let places = [("leader", leader), ("follower", follower)];
    let mut lines = Vec::new();
    let root = Caller::at(all[leader]).await;
    set_up(&root).await.unwrap();
    let lease = lease_with(&root, "a3").await.unwrap();
    let foreign = lease_with(&root, "z3").await.unwrap();
    for (place, at) in places {
        let nobody = Caller::at(all[at]).await;
        for (who, caller) in [("nobody", nobody.clone()), ("wrong", nobody.with("x.1"))] {
            for (what, said) in matrix(&caller, lease, foreign).await {
                lines.push((format!("off, {place}, {who}: {what}"), said));
            }
        }
    }
    enable(&root).await.unwrap();
    for (place, at) in places {
        let nobody = Caller::at(all[at]).await;
        for (who, caller) in [
            ("nobody", nobody.clone()),
            ("wrong", nobody.with("x.1")),
            ("bob", nobody.as_user("bob", "bob-secret").await.unwrap()),
            ("ann", nobody.as_user("ann", "ann-secret").await.unwrap()),
            ("root", nobody.as_user("root", "root-secret").await.unwrap()),
        ] {
            for (what, said) in matrix(&caller, lease, foreign).await {
                lines.push((format!("on, {place}, {who}: {what}"), said));
            }
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_answered_as_by_real_etcd() {
    let (tested, etcd) = ([tested(); 3], [Program::Etcd; 3]);
    let (ours, real) = tokio::join!(Cluster::start(&tested, &[]), Cluster::start(&etcd, &[]));
    let (ours, real) = (ours.unwrap(), real.unwrap());
    let (mine, theirs) = tokio::join!(outcomes(&ours), outcomes(&real));
    assert_eq!(mine.len(), theirs.len());
    let mut differences = Vec::new();
    for ((what, mine), (also, theirs)) in mine.iter().zip(&theirs) {
        assert_eq!(what, also);
        if mine != theirs {
            differences.push(format!("{what}\n  ours: {mine}\n  real: {theirs}"));
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {}:\n{}",
        differences.len(),
        mine.len(),
        differences.join("\n")
    );
    for member in &ours.members {
        let log = std::fs::read_to_string(&member.log_path).unwrap();
        assert!(!log.contains("-secret"), "a password is in the log of {}", member.name);
    }
}
