//! What changes users: checks in etcd's order, and what becomes of the rules.

use mainstay_proto::authpb::{User, UserAddOptions};
use mainstay_proto::etcdserverpb::{
    AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
};

use super::{AuthState, Change, ROOT, password};
use crate::{Error, Fatal};

impl AuthState {
    pub(super) fn user_add(
        &self,
        index: u64,
        request: &AuthUserAddRequest,
    ) -> Result<Vec<Change>, Error> {
        let AuthUserAddRequest { name, password, options, hashed_password } = request;
        if name.is_empty() {
            return Err(Error::UserEmpty);
        }
        if self.user(name).is_some() {
            return Err(Error::UserAlreadyExists);
        }
        let options = *options.as_ref().unwrap_or(&UserAddOptions { no_password: false });
        let password = match options.no_password {
            true => Vec::new(),
            false => hash(index, password, hashed_password)?,
        };
        Ok(vec![Change::User(User {
            name: name.clone().into(),
            password: password.into(),
            roles: Vec::new(),
            options: Some(options),
        })])
    }

    pub(super) fn user_delete(
        &self,
        request: &AuthUserDeleteRequest,
    ) -> Result<Vec<Change>, Error> {
        if self.enabled && request.name == ROOT {
            return Err(Error::InvalidAuthManagement);
        }
        self.user(&request.name).ok_or(Error::UserNotFound)?;
        Ok(vec![Change::UserGone(request.name.clone().into())])
    }

    pub(super) fn user_change_password(
        &self,
        index: u64,
        request: &AuthUserChangePasswordRequest,
    ) -> Result<Vec<Change>, Error> {
        let AuthUserChangePasswordRequest { name, password, hashed_password } = request;
        let user = self.user(name).ok_or(Error::UserNotFound)?;
        let password = match has_password(user) {
            true => hash(index, password, hashed_password)?,
            false => Vec::new(),
        };
        Ok(vec![Change::User(User { password: password.into(), ..user.clone() })])
    }

    pub(super) fn user_grant_role(
        &self,
        request: &AuthUserGrantRoleRequest,
    ) -> Result<Vec<Change>, Error> {
        let AuthUserGrantRoleRequest { user, role } = request;
        let mut user = self.user(user).ok_or(Error::UserNotFound)?.clone();
        // The role root need not be there to be given.
        if role != ROOT && self.role(role).is_none() {
            return Err(Error::RoleNotFound);
        }
        match user.roles.binary_search(role) {
            Ok(_) => Ok(Vec::new()),
            Err(place) => {
                user.roles.insert(place, role.clone());
                Ok(vec![Change::User(user)])
            }
        }
    }

    pub(super) fn user_revoke_role(
        &self,
        request: &AuthUserRevokeRoleRequest,
    ) -> Result<Vec<Change>, Error> {
        let AuthUserRevokeRoleRequest { name, role } = request;
        if self.enabled && name == ROOT && role == ROOT {
            return Err(Error::InvalidAuthManagement);
        }
        let user = self.user(name).ok_or(Error::UserNotFound)?;
        Ok(vec![Change::User(without_role(user, role).ok_or(Error::RoleNotGranted)?)])
    }
}

/// Users of old versions have no options, and a password.
pub(super) fn has_password(user: &User) -> bool {
    !user.options.is_some_and(|options| options.no_password)
}

/// The user without a role; `None` if it does not have it.
pub(super) fn without_role(user: &User, role: &str) -> Option<User> {
    let mut user = user.clone();
    let before = user.roles.len();
    user.roles.retain(|name| name != role);
    (user.roles.len() < before).then_some(user)
}

/// The hash that a request carries. It is made before the log, since it has salt in it; versions
/// before 3.5 left it to each member.
fn hash(index: u64, password: &str, hashed: &str) -> Result<Vec<u8>, Error> {
    if !password.is_empty() && hashed.is_empty() {
        return Err(Error::Broken(Fatal::Entry {
            index,
            found: "a password that is not hashed".into(),
            remedy: "it was written by a server older than 3.5, whose members hash it each in \
                     their own way: start from a snapshot of a member that applied it",
        }));
    }
    password::decode(hashed).ok_or(Error::NoPasswordUser)
}
