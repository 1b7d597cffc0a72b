//! The Auth service: users, roles, and tokens for passwords.
//!
//! Input: requests and their callers. Output: entries for the log, in which there is no password,
//! and the answers. Who may do what is decided when an entry is applied.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainstay_mvcc::Response;
use mainstay_proto::etcdserverpb as pb;

use super::By;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::kv::expect_response;

/// Calls that are nothing but an entry and its answer.
macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident($field:ident: $request:ident) -> $kind:ident($response:ident);)*) => {
        impl Core {
            $(
                $(#[$doc])*
                pub async fn $name(
                    &self,
                    by: impl Into<By<pb::$request>>,
                ) -> Result<pb::$response> {
                    let By { request, caller } = by.into();
                    let entry =
                        pb::InternalRaftRequest { $field: Some(request), ..Default::default() };
                    let answer = self.propose(By::new(caller, entry)).await?;
                    let mut response = expect_response!(self, answer, $kind);
                    self.complete(&mut response.header);
                    Ok(response)
                }
            )*
        }
    };
}

entries! {
    /// Turns auth on.
    auth_enable(auth_enable: AuthEnableRequest) -> AuthEnable(AuthEnableResponse);
    /// Turns auth off.
    auth_disable(auth_disable: AuthDisableRequest) -> AuthDisable(AuthDisableResponse);
    /// Whether auth is on.
    auth_status(auth_status: AuthStatusRequest) -> AuthStatus(AuthStatusResponse);
    /// Adds a user whose password is hashed already.
    user_add_hashed(auth_user_add: AuthUserAddRequest) -> AuthUserAdd(AuthUserAddResponse);
    /// The roles of a user.
    user_get(auth_user_get: AuthUserGetRequest) -> AuthUserGet(AuthUserGetResponse);
    /// The names of all users.
    user_list(auth_user_list: AuthUserListRequest) -> AuthUserList(AuthUserListResponse);
    /// Deletes a user, and voids its tokens.
    user_delete(auth_user_delete: AuthUserDeleteRequest)
        -> AuthUserDelete(AuthUserDeleteResponse);
    /// Sets a password that is hashed already.
    user_change_hashed(auth_user_change_password: AuthUserChangePasswordRequest)
        -> AuthUserChangePassword(AuthUserChangePasswordResponse);
    /// Gives a role to a user.
    user_grant_role(auth_user_grant_role: AuthUserGrantRoleRequest)
        -> AuthUserGrantRole(AuthUserGrantRoleResponse);
    /// Takes a role from a user.
    user_revoke_role(auth_user_revoke_role: AuthUserRevokeRoleRequest)
        -> AuthUserRevokeRole(AuthUserRevokeRoleResponse);
    /// Adds a role.
    role_add(auth_role_add: AuthRoleAddRequest) -> AuthRoleAdd(AuthRoleAddResponse);
    /// The permissions of a role.
    role_get(auth_role_get: AuthRoleGetRequest) -> AuthRoleGet(AuthRoleGetResponse);
    /// The names of all roles.
    role_list(auth_role_list: AuthRoleListRequest) -> AuthRoleList(AuthRoleListResponse);
    /// Deletes a role, and takes it from all users.
    role_delete(auth_role_delete: AuthRoleDeleteRequest)
        -> AuthRoleDelete(AuthRoleDeleteResponse);
    /// Gives a permission to a role.
    role_grant_permission(auth_role_grant_permission: AuthRoleGrantPermissionRequest)
        -> AuthRoleGrantPermission(AuthRoleGrantPermissionResponse);
    /// Takes a permission from a role.
    role_revoke_permission(auth_role_revoke_permission: AuthRoleRevokePermissionRequest)
        -> AuthRoleRevokePermission(AuthRoleRevokePermissionResponse);
}

impl Core {
    /// Adds a user.
    pub async fn user_add(
        &self,
        by: impl Into<By<pb::AuthUserAddRequest>>,
    ) -> Result<pb::AuthUserAddResponse> {
        let mut by = by.into();
        let password = std::mem::take(&mut by.request.password);
        if !by.request.options.is_some_and(|options| options.no_password) {
            by.request.hashed_password = self.hashed(password).await?;
        }
        self.user_add_hashed(by).await
    }

    /// Changes a password, and voids the tokens of the user.
    pub async fn user_change_password(
        &self,
        by: impl Into<By<pb::AuthUserChangePasswordRequest>>,
    ) -> Result<pb::AuthUserChangePasswordResponse> {
        let mut by = by.into();
        let password = std::mem::take(&mut by.request.password);
        if !password.is_empty() {
            by.request.hashed_password = self.hashed(password).await?;
        }
        self.user_change_hashed(by).await
    }

    async fn hashed(&self, password: String) -> Result<String> {
        Ok(STANDARD.encode(self.passwords.hash(password).await?))
    }

    /// A token for a password.
    pub async fn authenticate(
        &self,
        by: impl Into<By<pb::AuthenticateRequest>>,
    ) -> Result<pb::AuthenticateResponse> {
        let pb::AuthenticateRequest { name, password } = by.into().request;
        self.catch_up().await?;
        loop {
            let checked = match self.check_password(&name, &password).await {
                Ok(revision) => revision,
                Err(error) => {
                    if error != Error::AuthNotEnabled {
                        tracing::warn!(user = name, %error, "invalid authentication was requested");
                    }
                    return Err(error);
                }
            };
            self.tokens.can_assign()?;
            let authenticate = pb::InternalAuthenticateRequest {
                name: name.clone(),
                password: String::new(),
                simple_token: self.tokens.prefix(),
            };
            let entry =
                pb::InternalRaftRequest { authenticate: Some(authenticate), ..Default::default() };
            let answer = self.propose(entry).await?;
            let mut response = expect_response!(self, answer, Authenticate);
            // The password may have been changed between the look at it and the entry.
            if self.auth_state().revision() == checked {
                response.token = self.tokens.token(&name, checked, response.token)?;
                self.complete(&mut response.header);
                return Ok(response);
            }
            tracing::info!("revision when password checked became stale; retrying");
        }
    }

    /// The revision of the rules under which the password is the user's.
    async fn check_password(&self, name: &str, password: &str) -> Result<u64> {
        let (hash, revision) = {
            let auth = self.auth_state();
            let (hash, revision) = auth.password_hash(name)?;
            (hash.to_vec(), revision)
        };
        match self.passwords.fits(password.to_owned(), hash).await? {
            true => Ok(revision),
            false => Err(Error::AuthFailed),
        }
    }
}
