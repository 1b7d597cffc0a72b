//! The entries about auth: what each comes to, and what it means for the tokens.

use bytes::Bytes;
use mainstay_proto::authpb::{Permission, permission};
use mainstay_proto::etcdserverpb::{self as pb, InternalRaftRequest};

use super::check::{has_role, is_root};
use super::users::has_password;
use super::{AuthEffect, AuthState, Change, Identity, ROOT};
use crate::apply::Applier;
use crate::buckets::{Bucket, names};
use crate::range::header;
use crate::state_machine::change;
use crate::{Error, LogPosition, Response};

/// Whether only who has the role root may do it. Known before anything else is looked at.
pub(crate) fn needs_admin(request: &InternalRaftRequest) -> bool {
    let r = request;
    r.auth_enable.is_some()
        || r.auth_disable.is_some()
        || r.auth_user_add.is_some()
        || r.auth_user_delete.is_some()
        || r.auth_user_change_password.is_some()
        || r.auth_user_grant_role.is_some()
        || r.auth_user_revoke_role.is_some()
        || r.auth_user_list.is_some()
        || r.auth_role_add.is_some()
        || r.auth_role_delete.is_some()
        || r.auth_role_grant_permission.is_some()
        || r.auth_role_revoke_permission.is_some()
        || r.auth_role_list.is_some()
}

impl Applier<'_> {
    /// Applies a request about auth; `None` if it is not about auth.
    pub(crate) fn auth(
        &mut self,
        position: LogPosition,
        who: &Identity,
        request: &InternalRaftRequest,
        waited: bool,
    ) -> Result<Option<Response>, Error> {
        if let Some(request) = &request.authenticate {
            return self.authenticate(position, request).map(Some);
        }
        if request.auth_enable.is_some() {
            return self.auth_enable().map(Some);
        }
        if request.auth_disable.is_some() {
            return Ok(Some(self.auth_disable()));
        }
        // These change nothing, so they are left out where nobody waits.
        let idle = request.auth_status.is_some()
            || request.auth_user_get.is_some()
            || request.auth_role_get.is_some();
        if idle && !waited {
            return Ok(Some(Response::Empty));
        }
        let header = header(self.state.revision);
        let auth = &self.state.auth;
        let response = if request.auth_status.is_some() {
            let (enabled, auth_revision) = (auth.enabled, auth.revision);
            Response::AuthStatus(pb::AuthStatusResponse { header, enabled, auth_revision })
        } else if let Some(request) = &request.auth_user_add {
            self.change_rules(auth.user_add(position.index, request)?);
            Response::AuthUserAdd(pb::AuthUserAddResponse { header })
        } else if let Some(request) = &request.auth_user_delete {
            self.change_rules(auth.user_delete(request)?);
            self.revoke_tokens(&request.name);
            Response::AuthUserDelete(pb::AuthUserDeleteResponse { header })
        } else if let Some(request) = &request.auth_user_change_password {
            self.change_rules(auth.user_change_password(position.index, request)?);
            self.revoke_tokens(&request.name);
            Response::AuthUserChangePassword(pb::AuthUserChangePasswordResponse { header })
        } else if let Some(request) = &request.auth_user_grant_role {
            self.change_rules(auth.user_grant_role(request)?);
            Response::AuthUserGrantRole(pb::AuthUserGrantRoleResponse { header })
        } else if let Some(request) = &request.auth_user_get {
            let roles = auth.user_get(who, &request.name)?;
            Response::AuthUserGet(pb::AuthUserGetResponse { header, roles })
        } else if let Some(request) = &request.auth_user_revoke_role {
            self.change_rules(auth.user_revoke_role(request)?);
            Response::AuthUserRevokeRole(pb::AuthUserRevokeRoleResponse { header })
        } else if let Some(request) = &request.auth_role_add {
            self.change_rules(auth.role_add(request)?);
            Response::AuthRoleAdd(pb::AuthRoleAddResponse { header })
        } else if let Some(request) = &request.auth_role_grant_permission {
            self.change_rules(auth.role_grant_permission(request)?);
            Response::AuthRoleGrantPermission(pb::AuthRoleGrantPermissionResponse { header })
        } else if let Some(request) = &request.auth_role_get {
            let perm = auth.role_get(who, &request.role)?;
            Response::AuthRoleGet(pb::AuthRoleGetResponse { header, perm })
        } else if let Some(request) = &request.auth_role_revoke_permission {
            self.change_rules(auth.role_revoke_permission(request)?);
            Response::AuthRoleRevokePermission(pb::AuthRoleRevokePermissionResponse { header })
        } else if let Some(request) = &request.auth_role_delete {
            self.change_rules(auth.role_delete(request)?);
            Response::AuthRoleDelete(pb::AuthRoleDeleteResponse { header })
        } else if request.auth_user_list.is_some() {
            let users = auth.users().map(|user| text(&user.name)).collect();
            Response::AuthUserList(pb::AuthUserListResponse { header, users })
        } else if request.auth_role_list.is_some() {
            let roles = auth.roles().map(|role| text(&role.name)).collect();
            Response::AuthRoleList(pb::AuthRoleListResponse { header, roles })
        } else {
            return Ok(None);
        };
        Ok(Some(response))
    }

    /// The password was compared before the log; its staleness shows in the revision.
    fn authenticate(
        &mut self,
        position: LogPosition,
        request: &pb::InternalAuthenticateRequest,
    ) -> Result<Response, Error> {
        let auth = &self.state.auth;
        if !auth.enabled {
            return Err(Error::AuthNotEnabled);
        }
        auth.user(&request.name).filter(|user| has_password(user)).ok_or(Error::AuthFailed)?;
        // The number that real members append is that of the entry before this one.
        let token = format!("{}.{}", request.simple_token, position.index - 1);
        self.applied
            .auth_effects
            .push(AuthEffect::TokenAssigned { user: request.name.clone(), token: token.clone() });
        let header = header(self.state.revision);
        Ok(Response::Authenticate(pb::AuthenticateResponse { header, token }))
    }

    fn auth_enable(&mut self) -> Result<Response, Error> {
        let auth = &self.state.auth;
        if !auth.enabled {
            let root = auth.user(ROOT).ok_or(Error::RootUserNotExist)?;
            if !is_root(root) {
                return Err(Error::RootRoleNotExist);
            }
            self.turn(true);
            self.applied.auth_effects.push(AuthEffect::Enabled);
        }
        let header = header(self.state.revision);
        Ok(Response::AuthEnable(pb::AuthEnableResponse { header }))
    }

    fn auth_disable(&mut self) -> Response {
        if self.state.auth.enabled {
            self.turn(false);
            self.raise_revision();
            self.applied.auth_effects.push(AuthEffect::Disabled);
        }
        let header = header(self.state.revision);
        Response::AuthDisable(pb::AuthDisableResponse { header })
    }

    fn turn(&mut self, enabled: bool) {
        self.put(Bucket::Auth, names::AUTH_ENABLED, vec![u8::from(enabled)]);
        change(&mut self.state.auth, |auth| auth.enabled = enabled);
    }

    fn raise_revision(&mut self) {
        let revision = change(&mut self.state.auth, |auth| {
            auth.revision += 1;
            auth.revision
        });
        self.put(Bucket::Auth, names::AUTH_REVISION, revision.to_be_bytes().to_vec());
    }

    /// Carries out what a request comes to. One that changes nothing leaves the revision alone.
    fn change_rules(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        for one in &changes {
            one.write(&mut self.overlay);
        }
        change(&mut self.state.auth, |auth| changes.into_iter().for_each(|one| auth.adopt(one)));
        self.raise_revision();
    }

    fn revoke_tokens(&mut self, user: &str) {
        self.applied.auth_effects.push(AuthEffect::TokensRevoked { user: user.to_owned() });
    }
}

impl AuthState {
    /// Roles of a user, for an administrator or the user itself.
    fn user_get(&self, who: &Identity, name: &str) -> Result<Vec<String>, Error> {
        match self.check_admin(who) {
            Err(error) if name != who.user => return Err(error),
            _ => {}
        }
        Ok(self.user(name).ok_or(Error::UserNotFound)?.roles.clone())
    }

    /// Permissions of a role, for an administrator or who has the role.
    fn role_get(&self, who: &Identity, name: &str) -> Result<Vec<Permission>, Error> {
        match self.check_admin(who) {
            Err(error) if !self.user(&who.user).is_some_and(|user| has_role(user, name)) => {
                return Err(error);
            }
            _ => {}
        }
        let role = self.role(name).ok_or(Error::RoleNotFound)?;
        if name == ROOT {
            // It may do everything, whatever its row says.
            return Ok(vec![Permission {
                perm_type: permission::Type::Readwrite as i32,
                key: Bytes::new(),
                range_end: Bytes::from_static(&[0]),
            }]);
        }
        Ok(role.key_permission.clone())
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
