//! Auth, as far as it goes: its state, and the entries that change nothing while auth is off.
//!
//! Management of users and roles is not built. Entries of it that would change something stop the
//! member, since applying them in another way than the others would split the cluster.

use mainstay_engine::{Family, View};
use mainstay_proto::authpb;
use mainstay_proto::etcdserverpb::{
    AuthRoleGetResponse, AuthRoleListResponse, AuthUserGetResponse, AuthUserListResponse,
};
use prost::Message;

use crate::buckets::{Bucket, names};
use crate::range::header;
use crate::{Error, Fatal};

/// Whether auth is on, and how often its rules changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthState {
    /// Whether calls need an identity.
    pub enabled: bool,
    /// Changes with every change of a user or role; 1 at first.
    pub revision: u64,
}

impl AuthState {
    pub(crate) fn load(view: &dyn View) -> Result<Self, Fatal> {
        let get = |name| view.get(Family::System, &Bucket::Auth.engine_key(name));
        let enabled = get(names::AUTH_ENABLED)?.is_some_and(|row| row[..] == [1]);
        let revision = match get(names::AUTH_REVISION)? {
            None => 1,
            Some(row) => row[..].try_into().map(u64::from_be_bytes).map_err(|_| {
                Fatal::damaged("bucket auth", names::AUTH_REVISION, "not eight bytes")
            })?,
        };
        Ok(Self { enabled, revision })
    }
}

/// Whether a user has a row.
pub(crate) fn user_exists(view: &dyn View, name: &str) -> Result<bool, Fatal> {
    Ok(view.get(Family::System, &Bucket::AuthUsers.engine_key(name.as_bytes()))?.is_some())
}

pub(crate) fn user_get(
    view: &dyn View,
    name: &str,
    revision: i64,
) -> Result<AuthUserGetResponse, Error> {
    let user: authpb::User = row(view, Bucket::AuthUsers, name)?.ok_or(Error::UserNotFound)?;
    Ok(AuthUserGetResponse { header: header(revision), roles: user.roles })
}

pub(crate) fn role_get(
    view: &dyn View,
    name: &str,
    revision: i64,
) -> Result<AuthRoleGetResponse, Error> {
    let role: authpb::Role = row(view, Bucket::AuthRoles, name)?.ok_or(Error::RoleNotFound)?;
    let perm = match name {
        // root may do everything, whatever its row says.
        "root" => vec![authpb::Permission {
            perm_type: authpb::permission::Type::Readwrite as i32,
            key: bytes::Bytes::new(),
            range_end: bytes::Bytes::from_static(&[0]),
        }],
        _ => role.key_permission,
    };
    Ok(AuthRoleGetResponse { header: header(revision), perm })
}

pub(crate) fn user_list(view: &dyn View, revision: i64) -> Result<AuthUserListResponse, Fatal> {
    let users = keys(view, Bucket::AuthUsers)?;
    Ok(AuthUserListResponse { header: header(revision), users })
}

pub(crate) fn role_list(view: &dyn View, revision: i64) -> Result<AuthRoleListResponse, Fatal> {
    let roles = keys(view, Bucket::AuthRoles)?;
    Ok(AuthRoleListResponse { header: header(revision), roles })
}

fn row<M: Message + Default>(
    view: &dyn View,
    bucket: Bucket,
    name: &str,
) -> Result<Option<M>, Fatal> {
    let Some(row) = view.get(Family::System, &bucket.engine_key(name.as_bytes()))? else {
        return Ok(None);
    };
    let message = M::decode(row)
        .map_err(|error| Fatal::damaged(bucket.name(), name.as_bytes(), error.to_string()))?;
    Ok(Some(message))
}

fn keys(view: &dyn View, bucket: Bucket) -> Result<Vec<String>, Fatal> {
    let mut keys = Vec::new();
    let mut rows = view.cursor(Family::System, bucket.scan())?;
    rows.seek_to_first();
    while rows.valid() {
        keys.push(String::from_utf8_lossy(bucket.row_key(rows.key())).into_owned());
        rows.next();
    }
    rows.status()?;
    Ok(keys)
}
