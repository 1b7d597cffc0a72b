//! etcdserverpb.Cluster.

use std::sync::Arc;

use super::body::RequestBody;
use http::Request;
use mainstay_mvcc::membership::parse_peer_urls;
use mainstay_proto::etcdserverpb as pb;

use super::call::{unary, unary_requests};
use super::methods::Method;
use super::{Answer, Api};
use crate::auth::By;

unary_requests! {
    pb::MemberAddRequest => pb::MemberAddResponse,
    pb::MemberRemoveRequest => pb::MemberRemoveResponse,
    pb::MemberUpdateRequest => pb::MemberUpdateResponse,
    pb::MemberListRequest => pb::MemberListResponse,
    pb::MemberPromoteRequest => pb::MemberPromoteResponse,
}

pub(super) fn add(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberAdd, request, async |core, by: By<pb::MemberAddRequest>| {
        // etcd looks at the URLs first.
        parse_peer_urls(&by.request.peer_ur_ls)?;
        Ok(core.member_add(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn remove(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberRemove, request, async |core, by: By<pb::MemberRemoveRequest>| {
        Ok(core.member_remove(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn update(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberUpdate, request, async |core, by: By<pb::MemberUpdateRequest>| {
        Ok(core.member_update(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn list(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberList, request, async |core, by: By<pb::MemberListRequest>| {
        let members = core.member_list(by.request).await?;
        core.require_identity(&by.caller).await?;
        Ok(members)
    })
}

pub(super) fn promote(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MemberPromote, request, async |core, by: By<pb::MemberPromoteRequest>| {
        Ok(core.member_promote(by.of_admin(&core).await?).await?)
    })
}
