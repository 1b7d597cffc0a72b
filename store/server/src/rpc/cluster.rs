//! etcdserverpb.Cluster.

use std::sync::Arc;

use super::body::RequestBody;
use http::Request;
use mainstay_proto::etcdserverpb as pb;

use super::call::{unary, unary_requests};
use super::methods::Method;
use super::{Answer, Api};

unary_requests! {
    pb::MemberAddRequest => pb::MemberAddResponse,
    pb::MemberRemoveRequest => pb::MemberRemoveResponse,
    pb::MemberUpdateRequest => pb::MemberUpdateResponse,
    pb::MemberListRequest => pb::MemberListResponse,
    pb::MemberPromoteRequest => pb::MemberPromoteResponse,
}

pub(super) fn add(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberAdd, request, async |core, request| {
        Ok(core.member_add(request).await?)
    })
}

pub(super) fn remove(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberRemove, request, async |core, request| {
        Ok(core.member_remove(request).await?)
    })
}

pub(super) fn update(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberUpdate, request, async |core, request| {
        Ok(core.member_update(request).await?)
    })
}

pub(super) fn list(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberList, request, async |core, request| {
        Ok(core.member_list(request).await?)
    })
}

pub(super) fn promote(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberPromote, request, async |core, request| {
        Ok(core.member_promote(request).await?)
    })
}
