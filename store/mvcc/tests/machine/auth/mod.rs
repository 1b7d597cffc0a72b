//! Users, roles and permissions: requests in short, and a store with some users.

mod manage;
mod permit;
mod vector;

use mainstay_engine::Family;
use mainstay_mvcc::buckets::{Bucket, names};
use mainstay_mvcc::{Access, AuthEffect, AuthState, Code, Error, Identity, Response};
use mainstay_proto::authpb::permission::Type;
use mainstay_proto::authpb::{Permission, Role, User, UserAddOptions};
use mainstay_proto::etcdserverpb::{self as pb, InternalRaftRequest, RequestHeader};
use mainstay_proto::raftpb::EntryType;
use prost::Message;

use crate::store::{Store, delete, grant, outcome, put, request, revoke, txn};

/// What the tests call the hash of a password, and how requests carry it.
const HASH: &[u8] = b"hash";
const HASHED: &str = "aGFzaA==";

pub(crate) fn user_add(name: &str) -> InternalRaftRequest {
    let (name, hashed_password) = (name.to_owned(), HASHED.to_owned());
    request!(auth_user_add, pb::AuthUserAddRequest { name, hashed_password, ..Default::default() })
}

fn user_delete(name: &str) -> InternalRaftRequest {
    request!(auth_user_delete, pb::AuthUserDeleteRequest { name: name.into() })
}

fn user_password(name: &str, hashed_password: &str) -> InternalRaftRequest {
    let (name, hashed_password) = (name.to_owned(), hashed_password.to_owned());
    let password = String::new();
    let change = pb::AuthUserChangePasswordRequest { name, password, hashed_password };
    request!(auth_user_change_password, change)
}

pub(crate) fn user_grant(user: &str, role: &str) -> InternalRaftRequest {
    let (user, role) = (user.to_owned(), role.to_owned());
    request!(auth_user_grant_role, pb::AuthUserGrantRoleRequest { user, role })
}

fn user_revoke(name: &str, role: &str) -> InternalRaftRequest {
    let (name, role) = (name.to_owned(), role.to_owned());
    request!(auth_user_revoke_role, pb::AuthUserRevokeRoleRequest { name, role })
}

fn user_get(name: &str) -> InternalRaftRequest {
    request!(auth_user_get, pb::AuthUserGetRequest { name: name.into() })
}

fn user_list() -> InternalRaftRequest {
    request!(auth_user_list, pb::AuthUserListRequest {})
}

fn role_add(name: &str) -> InternalRaftRequest {
    request!(auth_role_add, pb::AuthRoleAddRequest { name: name.into() })
}

fn role_delete(role: &str) -> InternalRaftRequest {
    request!(auth_role_delete, pb::AuthRoleDeleteRequest { role: role.into() })
}

fn role_get(role: &str) -> InternalRaftRequest {
    request!(auth_role_get, pb::AuthRoleGetRequest { role: role.into() })
}

fn role_list() -> InternalRaftRequest {
    request!(auth_role_list, pb::AuthRoleListRequest {})
}

fn permission(kind: Type, key: &str, range_end: &str) -> Permission {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    Permission { perm_type: kind as i32, key, range_end }
}

fn role_grant(name: &str, kind: Type, key: &str, range_end: &str) -> InternalRaftRequest {
    let (name, perm) = (name.to_owned(), Some(permission(kind, key, range_end)));
    request!(auth_role_grant_permission, pb::AuthRoleGrantPermissionRequest { name, perm })
}

fn role_revoke(role: &str, key: &str, range_end: &str) -> InternalRaftRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    let revoke = pb::AuthRoleRevokePermissionRequest { role: role.into(), key, range_end };
    request!(auth_role_revoke_permission, revoke)
}

fn authenticate(name: &str) -> InternalRaftRequest {
    let (name, simple_token) = (name.to_owned(), "prefix".to_owned());
    let password = String::new();
    request!(authenticate, pb::InternalAuthenticateRequest { name, password, simple_token })
}

fn enable() -> InternalRaftRequest {
    request!(auth_enable, pb::AuthEnableRequest {})
}

fn disable() -> InternalRaftRequest {
    request!(auth_disable, pb::AuthDisableRequest {})
}

fn status() -> InternalRaftRequest {
    request!(auth_status, pb::AuthStatusRequest {})
}

fn range(key: &str, range_end: &str) -> InternalRaftRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    request!(range, pb::RangeRequest { key, range_end, ..Default::default() })
}

impl Store {
    /// What a user is answered whose identity has the present revision.
    fn ask(&mut self, user: &str, request: InternalRaftRequest) -> Result<Response, Error> {
        let revision = if user.is_empty() { 0 } else { self.auth().revision() };
        self.ask_at(user, revision, request)
    }

    fn ask_at(
        &mut self,
        user: &str,
        auth_revision: u64,
        mut request: InternalRaftRequest,
    ) -> Result<Response, Error> {
        let id = self.log.len() as u64 + 1;
        request.header = Some(RequestHeader { id, username: user.into(), auth_revision });
        let applied = self.try_entry(EntryType::EntryNormal, request.encode_to_vec()).unwrap();
        outcome(applied).result
    }

    fn auth(&self) -> std::sync::Arc<AuthState> {
        self.state().auth
    }

    fn row(&self, bucket: Bucket, name: &[u8]) -> Option<Vec<u8>> {
        let key = bucket.engine_key(name);
        self.rows(Family::System).into_iter().find(|(at, _)| *at == key).map(|(_, row)| row)
    }

    /// Does it as root, or without auth as nobody.
    fn do_all(&mut self, requests: impl IntoIterator<Item = InternalRaftRequest>) {
        for request in requests {
            self.ask("root", request).unwrap();
        }
    }
}

/// Users root and u; u has the role r, which may read and write [a,c) and read x.
fn with_auth() -> Store {
    let mut store = Store::new();
    store.do_all([
        user_add("root"),
        user_grant("root", "root"),
        user_add("u"),
        role_add("r"),
        role_grant("r", Type::Readwrite, "a", "c"),
        role_grant("r", Type::Read, "x", ""),
        user_grant("u", "r"),
        enable(),
    ]);
    store
}

fn denied(answer: Result<Response, Error>) {
    assert_eq!(answer, Err(Error::PermissionDenied));
}
