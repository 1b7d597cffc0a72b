//! What changes roles: checks in etcd's order, and what becomes of the rules.

use mainstay_proto::authpb::Role;
use mainstay_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest,
};

use super::users::without_role;
use super::{AuthState, Change, ROOT, permission, sort};
use crate::Error;

impl AuthState {
    pub(super) fn role_add(&self, request: &AuthRoleAddRequest) -> Result<Vec<Change>, Error> {
        if request.name.is_empty() {
            return Err(Error::RoleEmpty);
        }
        if self.role(&request.name).is_some() {
            return Err(Error::RoleAlreadyExists);
        }
        let name = request.name.clone().into();
        Ok(vec![Change::Role(Role { name, key_permission: Vec::new() })])
    }

    /// The role goes, and every user that had it loses it.
    pub(super) fn role_delete(
        &self,
        request: &AuthRoleDeleteRequest,
    ) -> Result<Vec<Change>, Error> {
        let name = &request.role;
        if self.enabled && name == ROOT {
            return Err(Error::InvalidAuthManagement);
        }
        self.role(name).ok_or(Error::RoleNotFound)?;
        let mut changes = vec![Change::RoleGone(name.clone().into())];
        changes.extend(self.users().filter_map(|user| without_role(user, name)).map(Change::User));
        Ok(changes)
    }

    pub(super) fn role_grant_permission(
        &self,
        request: &AuthRoleGrantPermissionRequest,
    ) -> Result<Vec<Change>, Error> {
        let new = request.perm.as_ref().ok_or(Error::PermissionNotGiven)?;
        if !permission::is_valid(&new.key, &new.range_end) {
            return Err(Error::InvalidAuthManagement);
        }
        let mut role = self.role(&request.name).ok_or(Error::RoleNotFound)?.clone();
        let permissions = &mut role.key_permission;
        // Of several on the same key etcd looks at the first alone: one behind it is added again.
        let first = permissions.partition_point(|old| old.key < new.key);
        match permissions.get_mut(first) {
            Some(old) if old.key == new.key && old.range_end == new.range_end => {
                old.perm_type = new.perm_type;
            }
            _ => sort::add(permissions, new.clone()),
        }
        Ok(vec![Change::Role(role)])
    }

    pub(super) fn role_revoke_permission(
        &self,
        request: &AuthRoleRevokePermissionRequest,
    ) -> Result<Vec<Change>, Error> {
        let AuthRoleRevokePermissionRequest { role, key, range_end } = request;
        let mut role = self.role(role).ok_or(Error::RoleNotFound)?.clone();
        let before = role.key_permission.len();
        role.key_permission.retain(|old| old.key != key || old.range_end != range_end);
        if role.key_permission.len() == before {
            return Err(Error::PermissionNotGranted);
        }
        Ok(vec![Change::Role(role)])
    }
}
