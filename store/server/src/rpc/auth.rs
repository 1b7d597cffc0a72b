//! etcdserverpb.Auth.

use std::sync::Arc;

use super::body::RequestBody;
use http::Request;
use mainstay_proto::etcdserverpb as pb;

use super::call::{unary, unary_requests};
use super::methods::Method;
use super::{Answer, Api};
use crate::auth::By;

/// Each call with the operation that answers it.
macro_rules! calls {
    ($($name:ident $method:ident $request:ident => $response:ident $operation:ident,)*) => {
        unary_requests! { $(pb::$request => pb::$response,)* }
        $(
            pub(super) fn $name(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
                unary(api, Method::$method, request, async |core, by: By<pb::$request>| {
                    Ok(core.$operation(by).await?)
                })
            }
        )*
    };
}

calls! {
    enable AuthEnable AuthEnableRequest => AuthEnableResponse auth_enable,
    disable AuthDisable AuthDisableRequest => AuthDisableResponse auth_disable,
    status AuthStatus AuthStatusRequest => AuthStatusResponse auth_status,
    authenticate Authenticate AuthenticateRequest => AuthenticateResponse authenticate,
    user_add UserAdd AuthUserAddRequest => AuthUserAddResponse user_add,
    user_get UserGet AuthUserGetRequest => AuthUserGetResponse user_get,
    user_list UserList AuthUserListRequest => AuthUserListResponse user_list,
    user_delete UserDelete AuthUserDeleteRequest => AuthUserDeleteResponse user_delete,
    user_change_password UserChangePassword
        AuthUserChangePasswordRequest => AuthUserChangePasswordResponse user_change_password,
    user_grant_role UserGrantRole
        AuthUserGrantRoleRequest => AuthUserGrantRoleResponse user_grant_role,
    user_revoke_role UserRevokeRole
        AuthUserRevokeRoleRequest => AuthUserRevokeRoleResponse user_revoke_role,
    role_add RoleAdd AuthRoleAddRequest => AuthRoleAddResponse role_add,
    role_get RoleGet AuthRoleGetRequest => AuthRoleGetResponse role_get,
    role_list RoleList AuthRoleListRequest => AuthRoleListResponse role_list,
    role_delete RoleDelete AuthRoleDeleteRequest => AuthRoleDeleteResponse role_delete,
    role_grant_permission RoleGrantPermission
        AuthRoleGrantPermissionRequest => AuthRoleGrantPermissionResponse role_grant_permission,
    role_revoke_permission RoleRevokePermission
        AuthRoleRevokePermissionRequest => AuthRoleRevokePermissionResponse role_revoke_permission,
}
