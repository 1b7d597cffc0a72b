//! etcdserverpb.Lease.

use std::sync::Arc;

use super::body::RequestBody;
use futures_util::stream;
use http::Request;
use mainstay_proto::etcdserverpb as pb;

use super::call::{Chunk, streaming, unary, unary_requests};
use super::methods::Method;
use super::receive::Messages;
use super::status::Status;
use super::{Answer, Api};
use crate::auth::{By, Caller};

unary_requests! {
    pb::LeaseGrantRequest => pb::LeaseGrantResponse,
    pb::LeaseRevokeRequest => pb::LeaseRevokeResponse,
    pb::LeaseTimeToLiveRequest => pb::LeaseTimeToLiveResponse,
    pb::LeaseLeasesRequest => pb::LeaseLeasesResponse,
}

pub(super) fn grant(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::LeaseGrant, request, async |core, request: By<pb::LeaseGrantRequest>| {
        Ok(core.lease_grant(request).await?)
    })
}

pub(super) fn revoke(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::LeaseRevoke, request, async |core, request: By<pb::LeaseRevokeRequest>| {
        Ok(core.lease_revoke(request).await?)
    })
}

pub(super) fn time_to_live(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(
        api,
        Method::LeaseTimeToLive,
        request,
        async |core, request: By<pb::LeaseTimeToLiveRequest>| {
            Ok(core.lease_time_to_live(request).await?)
        },
    )
}

pub(super) fn leases(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::LeaseLeases, request, async |core, request: By<pb::LeaseLeasesRequest>| {
        Ok(core.lease_leases(request).await?)
    })
}

/// One response for each request, in order; the stream ends when the client has sent its last one.
pub(super) fn keep_alive(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::LeaseKeepAlive, request, async |messages, call| {
        let start = (call.api.clone(), call.caller.clone(), messages);
        let renewals = stream::try_unfold(start, |(api, caller, mut messages)| async move {
            let renewed = renew_next(&api, &caller, &mut messages).await?;
            Ok(renewed.map(|chunk| (chunk, (api, caller, messages))))
        });
        call.respond(Box::pin(renewals))
    })
}

async fn renew_next(
    api: &Api,
    caller: &Caller,
    messages: &mut Messages<RequestBody>,
) -> Result<Option<Chunk>, Status> {
    let fault = |status| api.metrics.not_received("lease-keepalive", status);
    let Some(raw) = messages.next().await.map_err(fault)? else { return Ok(None) };
    let request: pb::LeaseKeepAliveRequest =
        api.decode(Method::LeaseKeepAlive, raw).map_err(fault)?;
    let response = api.core.lease_keep_alive(By::new(caller.clone(), request)).await?;
    Ok(Some(Chunk::one(&response)))
}
