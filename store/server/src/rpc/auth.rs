//! etcdserverpb.Auth. The status is answered; users and roles are not built in this version, and
//! every other call says so by its name.

use std::sync::Arc;

use super::body::RequestBody;
use http::Request;
use mainstay_proto::etcdserverpb as pb;

use super::call::{UnaryRequest, unary, unary_requests};
use super::methods::Method;
use super::status::Status;
use super::{Answer, Api};
use crate::error::Code;

unary_requests! {
    pb::AuthEnableRequest => pb::AuthEnableResponse,
    pb::AuthDisableRequest => pb::AuthDisableResponse,
    pb::AuthStatusRequest => pb::AuthStatusResponse,
    pb::AuthenticateRequest => pb::AuthenticateResponse,
    pb::AuthUserAddRequest => pb::AuthUserAddResponse,
    pb::AuthUserGetRequest => pb::AuthUserGetResponse,
    pb::AuthUserListRequest => pb::AuthUserListResponse,
    pb::AuthUserDeleteRequest => pb::AuthUserDeleteResponse,
    pb::AuthUserChangePasswordRequest => pb::AuthUserChangePasswordResponse,
    pb::AuthUserGrantRoleRequest => pb::AuthUserGrantRoleResponse,
    pb::AuthUserRevokeRoleRequest => pb::AuthUserRevokeRoleResponse,
    pb::AuthRoleAddRequest => pb::AuthRoleAddResponse,
    pb::AuthRoleGetRequest => pb::AuthRoleGetResponse,
    pb::AuthRoleListRequest => pb::AuthRoleListResponse,
    pb::AuthRoleDeleteRequest => pb::AuthRoleDeleteResponse,
    pb::AuthRoleGrantPermissionRequest => pb::AuthRoleGrantPermissionResponse,
    pb::AuthRoleRevokePermissionRequest => pb::AuthRoleRevokePermissionResponse,
}

pub(super) fn status(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::AuthStatus, request, async |core, _: pb::AuthStatusRequest| {
        Ok(core.auth_status().await?)
    })
}

/// Answers a call that is not built.
pub(super) fn refuse<R: UnaryRequest>(
    api: &Arc<Api>,
    method: Method,
    request: Request<RequestBody>,
) -> Answer {
    unary(api, method, request, async move |_, _: R| {
        Err(Status::new(
            Code::Unimplemented,
            format!(
                "{} is not built in this version of Mainstay: there are no users and roles yet",
                method.name()
            ),
        ))
    })
}
