//! Who may do what.
//!
//! Every check answers with etcd's error, in etcd's order. The same checks are made when an entry
//! is applied and by a server before it answers from its own state.
//!
//! **Invariant:** nothing here depends on anything but the rules, the request, and the keys that
//! are attached to a lease in the view.

use mainstay_engine::View;
use mainstay_proto::authpb::User;
use mainstay_proto::etcdserverpb::request_op::Request;
use mainstay_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};

use super::permission::{Access, Permissions};
use super::users::has_password;
use super::{Account, AuthState, ROOT};
use crate::Error;
use crate::lease_rows::each_attached_key;

/// On whose behalf something is asked: a user, and the revision of the rules when it was
/// recognised. The default is nobody, which is what a request without a valid token or certificate
/// comes as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the user.
    pub user: String,
    /// Revision of the rules by which it was recognised.
    pub revision: u64,
}

impl AuthState {
    /// Whether all of a range may be read or written. `key` and `range_end` are those of the
    /// request as it was sent: an empty end asks for the key alone, a single zero byte for
    /// everything from the key onwards.
    ///
    /// A watch has to be checked on what it will watch. etcd once turned the zero byte into an
    /// empty end before the check, and so took an open range for its first key.
    pub fn check(
        &self,
        who: &Identity,
        access: Access,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        if who.revision == 0 {
            return Err(Error::UserEmpty);
        }
        if who.revision < self.revision {
            return Err(Error::AuthOldRevision);
        }
        let account = self.account(&who.user).ok_or(Error::PermissionDenied)?;
        if is_root(&account.user) || self.permissions(account).allow(access, key, range_end) {
            return Ok(());
        }
        Err(Error::PermissionDenied)
    }

    /// Whether the user has the role root. The revision of the identity plays no part.
    pub fn check_admin(&self, who: &Identity) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        if who.user.is_empty() {
            return Err(Error::UserEmpty);
        }
        let user = self.user(&who.user).ok_or(Error::UserNotFound)?;
        if is_root(user) { Ok(()) } else { Err(Error::PermissionDenied) }
    }

    /// A put needs its key, all keys of its lease (whose expiry it prepares), and to read the key
    /// if it asks for the previous pair.
    pub fn check_put(
        &self,
        who: &Identity,
        view: &dyn View,
        request: &PutRequest,
    ) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        self.check(who, Access::Write, &request.key, &[])?;
        self.check_lease_write(who, view, request.lease)?;
        if request.prev_kv {
            self.check(who, Access::Read, &request.key, &[])?;
        }
        Ok(())
    }

    /// A deletion needs its range, also to read it if it asks for the previous pairs.
    pub fn check_delete_range(
        &self,
        who: &Identity,
        request: &DeleteRangeRequest,
    ) -> Result<(), Error> {
        let DeleteRangeRequest { key, range_end, prev_kv, .. } = request;
        self.check(who, Access::Write, key, range_end)?;
        if *prev_kv {
            self.check(who, Access::Read, key, range_end)?;
        }
        Ok(())
    }

    /// A transaction needs what all its compares and the operations of both branches need,
    /// whichever is taken.
    pub fn check_txn(
        &self,
        who: &Identity,
        view: &dyn View,
        request: &TxnRequest,
    ) -> Result<(), Error> {
        if !self.enabled {
            return Ok(());
        }
        for compare in &request.compare {
            self.check(who, Access::Read, &compare.key, &compare.range_end)?;
        }
        for RequestOp { request } in request.success.iter().chain(&request.failure) {
            match request {
                Some(Request::RequestRange(range)) => {
                    self.check(who, Access::Read, &range.key, &range.range_end)?;
                }
                Some(Request::RequestPut(put)) => self.check_put(who, view, put)?,
                Some(Request::RequestDeleteRange(delete)) => {
                    self.check_delete_range(who, delete)?
                }
                Some(Request::RequestTxn(nested)) => self.check_txn(who, view, nested)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Whether all keys attached to a lease may be written: to revoke it, to keep it alive, or to
    /// attach one more. A lease without keys asks for nothing, not even for an identity.
    pub fn check_lease_write(
        &self,
        who: &Identity,
        view: &dyn View,
        lease: i64,
    ) -> Result<(), Error> {
        self.check_lease(who, view, lease, Access::Write)
    }

    /// Whether all keys attached to a lease may be read: to list them, or to know of the lease.
    pub fn check_lease_read(
        &self,
        who: &Identity,
        view: &dyn View,
        lease: i64,
    ) -> Result<(), Error> {
        self.check_lease(who, view, lease, Access::Read)
    }

    fn check_lease(
        &self,
        who: &Identity,
        view: &dyn View,
        lease: i64,
        access: Access,
    ) -> Result<(), Error> {
        if lease == 0 || self.check_admin(who).is_ok() {
            return Ok(());
        }
        each_attached_key(view, lease, |key| self.check(who, access, key, &[]))
    }

    /// The hash that a password is compared with, and the revision of the rules that the identity
    /// gets if it fits. If the revision has moved when the token is assigned, all is done again.
    pub fn password_hash(&self, user: &str) -> Result<(&[u8], u64), Error> {
        if !self.enabled {
            return Err(Error::AuthNotEnabled);
        }
        let user = self.user(user).ok_or(Error::AuthFailed)?;
        if !has_password(user) {
            return Err(Error::NoPasswordUser);
        }
        Ok((&user.password, self.revision))
    }

    /// What a user's roles allow, merged when it is first asked for.
    fn permissions<'a>(&self, account: &'a Account) -> &'a Permissions {
        account.permissions.get_or_init(|| Permissions::of(&account.user, &self.roles))
    }
}

/// Whether a user has a role. Its roles are sorted.
pub(super) fn has_role(user: &User, role: &str) -> bool {
    user.roles.binary_search_by(|name| name.as_str().cmp(role)).is_ok()
}

/// Whether a user may do everything.
pub(super) fn is_root(user: &User) -> bool {
    has_role(user, ROOT)
}
