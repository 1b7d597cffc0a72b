//! What requests may do under auth.

use super::*;

#[test]
fn only_the_role_root_manages() {
    let mut store = with_auth();
    let requests = [
        enable(),
        disable(),
        user_add("v"),
        user_delete("v"),
        user_password("v", HASHED),
        user_grant("u", "r"),
        user_revoke("u", "r"),
        user_list(),
        role_add("r"),
        role_delete("r"),
        role_grant("r", Type::Read, "a", ""),
        role_revoke("r", "a", "c"),
        role_list(),
    ];
    for request in requests {
        denied(store.ask("u", request.clone()));
        assert_eq!(store.ask("", request.clone()), Err(Error::UserEmpty));
        assert_eq!(store.ask("x", request), Err(Error::UserNotFound));
    }
    // Whoever else has the role is as good as root, and an old revision is good enough for it.
    store.ask("root", user_grant("u", "root")).unwrap();
    store.ask_at("u", 1, user_list()).unwrap();
    let revoked = user_revoke("root", "root");
    assert_eq!(store.ask("u", revoked), Err(Error::InvalidAuthManagement));
}

#[test]
fn users_see_themselves_and_their_roles() {
    let mut store = with_auth();
    store.do_all([role_add("other"), role_add("root")]);
    let Ok(Response::AuthUserGet(user)) = store.ask("u", user_get("u")) else { panic!() };
    assert_eq!(user.roles, ["r"]);
    denied(store.ask("u", user_get("root")));
    denied(store.ask("u", user_get("nobody")));
    assert_eq!(store.ask("", user_get("u")), Err(Error::UserEmpty));
    assert_eq!(store.ask("x", user_get("u")), Err(Error::UserNotFound));
    assert_eq!(store.ask("root", user_get("nobody")), Err(Error::UserNotFound));
    assert!(store.ask("u", role_get("r")).is_ok());
    denied(store.ask("u", role_get("other")));
    denied(store.ask("u", role_get("root")));
    assert_eq!(store.ask("", role_get("r")), Err(Error::UserEmpty));
    assert!(store.ask("root", role_get("root")).is_ok());
}

#[test]
fn keys_are_read_and_written_by_permission() {
    let mut store = with_auth();
    store.ask("u", put("a", "1")).unwrap();
    store.ask("root", put("z", "1")).unwrap();
    denied(store.ask("u", put("c", "1")));
    denied(store.ask("u", put("x", "1")));
    denied(store.ask("x", put("a", "1")));
    assert_eq!(store.ask("", put("a", "1")), Err(Error::UserEmpty));
    let revision = store.auth().revision();
    assert_eq!(store.ask_at("u", revision - 1, put("a", "1")), Err(Error::AuthOldRevision));
    assert_eq!(store.ask_at("root", revision - 1, put("a", "1")), Err(Error::AuthOldRevision));
    store.ask_at("u", revision + 1, put("a", "1")).unwrap();

    assert!(store.ask("u", range("x", "")).is_ok());
    assert!(store.ask("u", range("a", "c")).is_ok());
    denied(store.ask("u", range("a", "c\0")));
    denied(store.ask("u", range("a", "\0")));
    assert!(store.ask("root", range("\0", "\0")).is_ok());
    store.ask("u", delete("a", "b")).unwrap();
    denied(store.ask("u", delete("x", "")));
    denied(store.ask("u", delete("a", "d")));

    // The previous pair has to be readable.
    store.ask("root", role_grant("r", Type::Write, "w", "")).unwrap();
    store.ask("u", put("w", "1")).unwrap();
    let mut with_prev = put("w", "1");
    with_prev.put.as_mut().unwrap().prev_kv = true;
    denied(store.ask("u", with_prev));
    store.ask("u", delete("w", "")).unwrap();
    let mut with_prev = delete("w", "");
    with_prev.delete_range.as_mut().unwrap().prev_kv = true;
    denied(store.ask("u", with_prev.clone()));
    store.ask("root", role_grant("r", Type::Readwrite, "w", "")).unwrap();
    store.ask("u", with_prev).unwrap();

    // A role that goes takes what it allowed with it.
    store.ask("root", role_delete("r")).unwrap();
    denied(store.ask("u", put("a", "1")));
    // Free for every one, even for nobody.
    store.ask("", grant(7, 100)).unwrap();
    store
        .ask("", request!(compaction, pb::CompactionRequest { revision: 2, physical: false }))
        .unwrap();
    store.ask("", request!(alarm, pb::AlarmRequest::default())).unwrap();
}

#[test]
fn transactions_are_checked_whole() {
    use pb::request_op::Request;
    let op = |request| pb::RequestOp { request: Some(request) };
    let put_op = |key: &str| op(Request::RequestPut(put(key, "1").put.unwrap()));
    let get_op = |key: &str| op(Request::RequestRange(range(key, "").range.unwrap()));
    let delete_op =
        |key: &str| op(Request::RequestDeleteRange(delete(key, "").delete_range.unwrap()));
    // Holds for every key: no version is negative.
    let compare = |key: &str| pb::Compare {
        key: key.to_owned().into(),
        result: pb::compare::CompareResult::Greater as i32,
        target: pb::compare::CompareTarget::Version as i32,
        target_union: Some(pb::compare::TargetUnion::Version(-1)),
        ..Default::default()
    };
    let mut store = with_auth();
    let before = store.state().revision;
    let write = pb::TxnRequest {
        compare: vec![compare("x"), compare("a")],
        success: vec![put_op("a"), get_op("x")],
        failure: vec![delete_op("b")],
    };
    store.ask("u", txn(write.clone())).unwrap();
    let nested = pb::TxnRequest {
        success: vec![op(Request::RequestTxn(write.clone()))],
        ..Default::default()
    };
    store.ask("u", txn(nested)).unwrap();
    assert_eq!(store.state().revision, before + 2);

    let mut unreadable = write.clone();
    unreadable.compare.push(compare("z"));
    // The branch that is not taken counts too.
    let mut elsewhere = write.clone();
    elsewhere.failure.push(put_op("x"));
    let mut deleting = write.clone();
    deleting.failure.push(delete_op("x"));
    let mut reading = write.clone();
    reading.success.push(get_op("z"));
    for wrong in [unreadable, elsewhere, deleting, reading] {
        denied(store.ask("u", txn(wrong.clone())));
        let nested = pb::TxnRequest {
            failure: vec![op(Request::RequestTxn(wrong.clone()))],
            ..Default::default()
        };
        denied(store.ask("u", txn(nested)));
        store.ask("root", txn(wrong)).unwrap();
    }
    assert_eq!(store.state().revision, before + 6, "a refused transaction changes nothing");
    assert_eq!(store.ask("", txn(write)), Err(Error::UserEmpty));
    store.ask("", txn(pb::TxnRequest::default())).unwrap();
}

#[test]
fn leases_belong_to_who_may_write_their_keys() {
    let mut store = with_auth();
    let attach = |key: &str, lease: i64| {
        let mut request = put(key, "1");
        request.put.as_mut().unwrap().lease = lease;
        request
    };
    store.do_all([grant(1, 100), grant(2, 100), attach("z", 2)]);
    store.ask("u", attach("a", 1)).unwrap();
    // Lease 2 has a key that u cannot write, so u cannot attach another to it, nor revoke it.
    denied(store.ask("u", attach("a", 2)));
    denied(store.ask("u", revoke(2)));
    assert_eq!(store.ask("", revoke(1)), Err(Error::UserEmpty));
    assert_eq!(store.ask_at("u", 1, revoke(1)), Err(Error::AuthOldRevision));
    let state = store.auth();
    let who = Identity { user: "u".into(), revision: state.revision() };
    let view = mainstay_engine::Engine::snapshot(&store.engine);
    assert_eq!(state.check_lease_read(&who, &*view, 1), Ok(()));
    assert_eq!(state.check_lease_read(&who, &*view, 2), Err(Error::PermissionDenied));
    assert_eq!(state.check_lease_write(&who, &*view, 2), Err(Error::PermissionDenied));
    store.ask("u", revoke(1)).unwrap();
    assert_eq!(store.ask("u", revoke(1)), Err(Error::LeaseNotFound));
    store.ask_at("root", 1, revoke(2)).unwrap();
    // A lease without keys is anyone's.
    store.ask("", grant(3, 100)).unwrap();
    store.ask("", revoke(3)).unwrap();
}

#[test]
fn alarms_come_before_permissions_but_behind_administration() {
    let alarm = |alarm: pb::AlarmType| {
        let (action, alarm) = (pb::alarm_request::AlarmAction::Activate as i32, alarm as i32);
        request!(alarm, pb::AlarmRequest { action, member_id: 1, alarm })
    };
    let mut store = with_auth();
    store.ask("", alarm(pb::AlarmType::Nospace)).unwrap();
    assert_eq!(store.ask("", put("a", "1")), Err(Error::NoSpace));
    assert_eq!(store.ask("", delete("a", "")), Err(Error::UserEmpty));
    store.ask("root", user_add("v")).unwrap();
    store.ask("", alarm(pb::AlarmType::Corrupt)).unwrap();
    assert_eq!(store.ask("", put("a", "1")), Err(Error::CorruptCluster));
    assert_eq!(store.ask("", delete("a", "")), Err(Error::CorruptCluster));
    assert_eq!(store.ask("", range("a", "")), Err(Error::CorruptCluster));
    assert_eq!(store.ask("", user_add("v")), Err(Error::UserEmpty));
    store.ask("root", user_delete("v")).unwrap();
}
