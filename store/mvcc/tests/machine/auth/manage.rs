//! Every request that manages users and roles, with its errors and the rows that it leaves.

use super::*;

#[test]
fn texts_and_codes_are_etcds() {
    let cases = [
        (Error::RootUserNotExist, Code::FailedPrecondition, "root user does not exist"),
        (Error::RootRoleNotExist, Code::FailedPrecondition, "root user does not have root role"),
        (Error::UserAlreadyExists, Code::FailedPrecondition, "user name already exists"),
        (Error::UserEmpty, Code::InvalidArgument, "user name is empty"),
        (Error::UserNotFound, Code::FailedPrecondition, "user name not found"),
        (Error::RoleAlreadyExists, Code::FailedPrecondition, "role name already exists"),
        (Error::RoleNotFound, Code::FailedPrecondition, "role name not found"),
        (Error::RoleEmpty, Code::InvalidArgument, "role name is empty"),
        (Error::PermissionNotGiven, Code::InvalidArgument, "permission not given"),
        (Error::PermissionDenied, Code::PermissionDenied, "permission denied"),
        (Error::RoleNotGranted, Code::FailedPrecondition, "role is not granted to the user"),
        (
            Error::PermissionNotGranted,
            Code::FailedPrecondition,
            "permission is not granted to the role",
        ),
        (Error::AuthNotEnabled, Code::FailedPrecondition, "authentication is not enabled"),
        (Error::InvalidAuthManagement, Code::InvalidArgument, "invalid auth management"),
        (Error::AuthOldRevision, Code::InvalidArgument, "revision of auth store is old"),
        (
            Error::AuthFailed,
            Code::InvalidArgument,
            "authentication failed, invalid user ID or password",
        ),
    ];
    for (error, code, text) in cases {
        assert_eq!((error.code(), error.to_string()), (code, format!("etcdserver: {text}")));
    }
    let text = "auth: authentication failed, password was given for no password user";
    assert_eq!(Error::NoPasswordUser.to_string(), text);
    assert_eq!(Error::NoPasswordUser.code(), Code::Unknown);
}

#[test]
fn users_come_change_and_go() {
    let mut store = Store::new();
    assert_eq!(store.ask("", user_add("")), Err(Error::UserEmpty));
    store.ask("", user_add("u")).unwrap();
    assert_eq!(store.ask("", user_add("u")), Err(Error::UserAlreadyExists));
    // Options are stored also where none were given.
    assert_eq!(store.row(Bucket::AuthUsers, b"u").unwrap(), b"\x0a\x01u\x12\x04hash\x22\x00");
    assert_eq!(store.auth().revision(), 2);

    let options = Some(UserAddOptions { no_password: true });
    let (name, hashed_password) = ("n".to_owned(), HASHED.to_owned());
    let bare = pb::AuthUserAddRequest { name, options, hashed_password, ..Default::default() };
    store.ask("", request!(auth_user_add, bare)).unwrap();
    assert_eq!(store.row(Bucket::AuthUsers, b"n").unwrap(), b"\x0a\x01n\x22\x02\x08\x01");
    let broken = pb::AuthUserAddRequest {
        name: "b".into(),
        hashed_password: "?".into(),
        ..Default::default()
    };
    assert_eq!(store.ask("", request!(auth_user_add, broken)), Err(Error::NoPasswordUser));
    assert_eq!(store.auth().revision(), 3);

    assert_eq!(store.ask("", user_password("x", HASHED)), Err(Error::UserNotFound));
    assert_eq!(store.ask("", user_password("u", "?")), Err(Error::NoPasswordUser));
    store.ask("", user_password("u", "bmV3")).unwrap();
    assert_eq!(store.row(Bucket::AuthUsers, b"u").unwrap(), b"\x0a\x01u\x12\x03new\x22\x00");
    store.ask("", user_password("u", "")).unwrap();
    assert_eq!(store.row(Bucket::AuthUsers, b"u").unwrap(), b"\x0a\x01u\x22\x00");
    // A user without a password does not get one.
    store.ask("", user_password("n", "?")).unwrap();
    assert_eq!(store.row(Bucket::AuthUsers, b"n").unwrap(), b"\x0a\x01n\x22\x02\x08\x01");
    assert_eq!(store.auth().revision(), 6);

    assert_eq!(store.ask("", user_grant("x", "r")), Err(Error::UserNotFound));
    assert_eq!(store.ask("", user_grant("u", "r")), Err(Error::RoleNotFound));
    store.do_all([role_add("r"), role_add("q"), user_grant("u", "root")]);
    store.do_all([user_grant("u", "r"), user_grant("u", "q")]);
    let row = User::decode(&store.row(Bucket::AuthUsers, b"u").unwrap()[..]).unwrap();
    assert_eq!(row.roles, ["q", "r", "root"]);
    let revision = store.auth().revision();
    store.ask("", user_grant("u", "r")).unwrap();
    assert_eq!(store.auth().revision(), revision, "a role that is there is not given again");

    assert_eq!(store.ask("", user_revoke("x", "r")), Err(Error::UserNotFound));
    assert_eq!(store.ask("", user_revoke("u", "x")), Err(Error::RoleNotGranted));
    store.ask("", user_revoke("u", "r")).unwrap();
    let Ok(Response::AuthUserGet(user)) = store.ask("", user_get("u")) else { panic!() };
    assert_eq!(user.roles, ["q", "root"]);
    assert_eq!(store.ask("", user_get("")), Err(Error::UserNotFound));
    let Ok(Response::AuthUserList(list)) = store.ask("", user_list()) else { panic!() };
    assert_eq!(list.users, ["n", "u"]);

    assert_eq!(store.ask("", user_delete("x")), Err(Error::UserNotFound));
    store.ask("", user_delete("u")).unwrap();
    assert_eq!(store.row(Bucket::AuthUsers, b"u"), None);
    assert_eq!(store.auth().revision(), revision + 2);
    let stored = store.row(Bucket::Auth, names::AUTH_REVISION).unwrap();
    assert_eq!(stored, store.auth().revision().to_be_bytes());
}

#[test]
fn roles_come_change_and_go() {
    let mut store = Store::new();
    assert_eq!(store.ask("", role_add("")), Err(Error::RoleEmpty));
    store.ask("", role_add("r")).unwrap();
    assert_eq!(store.ask("", role_add("r")), Err(Error::RoleAlreadyExists));
    assert_eq!(store.row(Bucket::AuthRoles, b"r").unwrap(), b"\x0a\x01r");

    let nothing = pb::AuthRoleGrantPermissionRequest { name: "x".into(), perm: None };
    let nothing = request!(auth_role_grant_permission, nothing);
    assert_eq!(store.ask("", nothing), Err(Error::PermissionNotGiven));
    // The range is looked at before the role.
    for (key, end) in [("", ""), ("", "\0"), ("b", "a"), ("b", "b")] {
        let grant = role_grant("x", Type::Read, key, end);
        assert_eq!(store.ask("", grant), Err(Error::InvalidAuthManagement), "{key:?} {end:?}");
    }
    assert_eq!(store.ask("", role_grant("x", Type::Read, "a", "b")), Err(Error::RoleNotFound));
    store.do_all([
        role_grant("r", Type::Read, "b", "c"),
        role_grant("r", Type::Write, "a", "\0"),
        role_grant("r", Type::Readwrite, "b", ""),
    ]);
    // On one key only the first is found again: the second range of `b` is there twice then.
    store.do_all([role_grant("r", Type::Write, "b", "c"), role_grant("r", Type::Read, "b", "")]);
    let expected = [
        permission(Type::Write, "a", "\0"),
        permission(Type::Write, "b", "c"),
        permission(Type::Readwrite, "b", ""),
        permission(Type::Read, "b", ""),
    ];
    let row = store.row(Bucket::AuthRoles, b"r").unwrap();
    assert_eq!(Role::decode(&row[..]).unwrap().key_permission, expected);
    let Ok(Response::AuthRoleGet(role)) = store.ask("", role_get("r")) else { panic!() };
    assert_eq!(role.perm, expected);
    assert_eq!(store.auth().revision(), 7);

    assert_eq!(store.ask("", role_revoke("x", "b", "")), Err(Error::RoleNotFound));
    assert_eq!(store.ask("", role_revoke("r", "a", "")), Err(Error::PermissionNotGranted));
    store.ask("", role_revoke("r", "b", "")).unwrap();
    let Ok(Response::AuthRoleGet(role)) = store.ask("", role_get("r")) else { panic!() };
    assert_eq!(role.perm, expected[..2]);

    assert_eq!(store.ask("", role_get("root")), Err(Error::RoleNotFound));
    store.do_all([role_add("root"), role_grant("root", Type::Read, "q", "")]);
    let Ok(Response::AuthRoleGet(role)) = store.ask("", role_get("root")) else { panic!() };
    assert_eq!(role.perm, [permission(Type::Readwrite, "", "\0")]);
    let Ok(Response::AuthRoleList(list)) = store.ask("", role_list()) else { panic!() };
    assert_eq!(list.roles, ["r", "root"]);

    store.do_all([user_add("u"), user_grant("u", "root"), user_grant("u", "r"), user_add("v")]);
    let revision = store.auth().revision();
    assert_eq!(store.ask("", role_delete("x")), Err(Error::RoleNotFound));
    store.ask("", role_delete("r")).unwrap();
    assert_eq!(store.row(Bucket::AuthRoles, b"r"), None);
    assert_eq!(store.auth().user("u").unwrap().roles, ["root"]);
    assert_eq!(store.auth().user("u").unwrap().password, HASH);
    assert_eq!(store.auth().revision(), revision + 1);
}

#[test]
fn auth_is_turned_on_and_off() {
    let mut store = Store::new();
    assert_eq!(store.ask("", enable()), Err(Error::RootUserNotExist));
    assert_eq!(store.ask("", authenticate("root")), Err(Error::AuthNotEnabled));
    store.ask("", user_add("root")).unwrap();
    assert_eq!(store.ask("", enable()), Err(Error::RootRoleNotExist));
    assert_eq!(store.row(Bucket::Auth, names::AUTH_ENABLED), None);
    store.ask("", disable()).unwrap();
    assert_eq!(store.row(Bucket::Auth, names::AUTH_ENABLED), None);
    // The role root can be had without being there.
    store.ask("", user_grant("root", "root")).unwrap();
    assert_eq!(store.apply(enable()).auth_effects, [AuthEffect::Enabled]);
    assert_eq!(store.row(Bucket::Auth, names::AUTH_ENABLED).unwrap(), [1]);
    assert_eq!(store.auth().revision(), 3);
    assert_eq!(store.ask("", enable()), Err(Error::UserEmpty));
    store.ask("root", enable()).unwrap();

    assert_eq!(store.ask("root", user_delete("root")), Err(Error::InvalidAuthManagement));
    assert_eq!(store.ask("root", role_delete("root")), Err(Error::InvalidAuthManagement));
    assert_eq!(store.ask("root", user_revoke("root", "root")), Err(Error::InvalidAuthManagement));
    assert_eq!(store.ask("root", user_revoke("root", "x")), Err(Error::RoleNotGranted));
    let Ok(Response::AuthStatus(now)) = store.ask("", status()) else { panic!() };
    assert_eq!((now.enabled, now.auth_revision), (true, 3));

    assert_eq!(store.ask("", disable()), Err(Error::UserEmpty));
    store.ask("root", disable()).unwrap();
    assert_eq!(store.row(Bucket::Auth, names::AUTH_ENABLED).unwrap(), [0]);
    assert_eq!(store.auth().revision(), 4);
    store.ask("", disable()).unwrap();
    assert_eq!(store.auth().revision(), 4);
    store.do_all([user_revoke("root", "root"), user_delete("root")]);
}

#[test]
fn tokens_follow_the_log() {
    let mut store = with_auth();
    let options = Some(UserAddOptions { no_password: true });
    let bare = pb::AuthUserAddRequest { name: "n".into(), options, ..Default::default() };
    store.ask("root", request!(auth_user_add, bare)).unwrap();
    assert_eq!(store.ask("", authenticate("x")), Err(Error::AuthFailed));
    assert_eq!(store.ask("", authenticate("n")), Err(Error::AuthFailed));
    let index = store.state().applied.index;
    let applied = store.apply(authenticate("u"));
    let token = format!("prefix.{index}");
    let assigned = AuthEffect::TokenAssigned { user: "u".into(), token: token.clone() };
    assert_eq!(applied.auth_effects, [assigned]);
    let Ok(Response::Authenticate(answer)) = outcome(applied).result else { panic!() };
    assert_eq!(answer.token, token);

    let effects = |store: &mut Store, mut request: InternalRaftRequest| {
        let auth_revision = store.auth().revision();
        request.header = Some(RequestHeader { id: 1, username: "root".into(), auth_revision });
        store.try_entry(EntryType::EntryNormal, request.encode_to_vec()).unwrap().auth_effects
    };
    let revoked = [AuthEffect::TokensRevoked { user: "u".into() }];
    assert_eq!(effects(&mut store, user_password("u", HASHED)), revoked);
    assert_eq!(effects(&mut store, user_revoke("u", "r")), []);
    assert_eq!(effects(&mut store, user_delete("u")), revoked);
    assert_eq!(effects(&mut store, user_delete("u")), []);
    assert_eq!(effects(&mut store, disable()), [AuthEffect::Disabled]);
}

#[test]
fn a_restart_and_another_cut_of_the_log_give_the_same() {
    let mut store = with_auth();
    store.do_all([role_add("s"), role_grant("s", Type::Write, "k", "\0"), user_grant("u", "s")]);
    store.do_all([
        role_delete("r"),
        user_add("v"),
        user_password("v", "bmV3"),
        disable(),
        enable(),
    ]);
    let before = store.state();
    let mut batched = Store::new();
    let applied = batched.machine.apply(&batched.engine, &store.log).unwrap();
    mainstay_engine::Engine::write(&batched.engine, applied.batch).unwrap();
    assert_eq!(batched.state(), before);
    assert_eq!(batched.rows(Family::System), store.rows(Family::System));
    store.reopen();
    assert_eq!(store.state(), before);
    let who = Identity { user: "u".into(), revision: before.auth.revision() };
    assert_eq!(store.auth().check(&who, Access::Write, b"k", b"\0"), Ok(()));
    assert_eq!(store.auth().check(&who, Access::Read, b"k", b"\0"), Err(Error::PermissionDenied));
    assert_eq!(store.auth().password_hash("v"), Ok((&b"new"[..], before.auth.revision())));
}

#[test]
fn what_only_answers_is_left_out_where_nobody_waits() {
    let mut store = with_auth();
    for request in [user_get("u"), role_get("r"), status()] {
        let entry = mainstay_proto::raftpb::Entry {
            index: Some(store.state().applied.index + 1),
            term: Some(2),
            r#type: Some(EntryType::EntryNormal as i32),
            data: Some(crate::store::encode(9, request).into()),
        };
        let applied = store.machine.apply_for(&store.engine, &[entry], &|_| false).unwrap();
        assert_eq!(outcome(applied).result, Ok(Response::Empty));
    }
}
