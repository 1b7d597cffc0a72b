//! Paths about the member and the cluster: who is in it, versions, leases, hashes.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use mainstay_proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveResponse, ResponseHeader,
};
use mainstay_proto::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::{Context, answer, either, error, json, refusal, unless, with_cluster};
use crate::body::{Chunks, CollectError, PeerBody};
use crate::headers::{CLUSTER_ID, Refusal, text};
use crate::host::{LeaseError, PromoteError, Versions};

/// Longest body of a lease request; etcd's limit.
const LEASE_LIMIT: u64 = 64 << 10;
/// Longest body of a hash request.
const HASH_LIMIT: u64 = 64 << 10;

/// GET /members
pub(super) fn members(context: &Context, method: &Method) -> Response<PeerBody> {
    if let Some(refused) = unless("GET", method) {
        return refused;
    }
    let response = match serde_json::to_string(&context.host.members()) {
        Ok(list) => answer(StatusCode::OK, "application/json", list + "\n"),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure),
    };
    with_cluster(context, response)
}

/// POST /members/promote/ID
pub(super) async fn promote(
    context: &Context,
    request: &Request<Incoming>,
    id: &str,
) -> Response<PeerBody> {
    if let Some(refused) = unless("POST", request.method()) {
        return refused;
    }
    let digits_only = id.bytes().all(|byte| byte.is_ascii_digit());
    let response = match id.parse::<u64>() {
        Ok(id) if digits_only => {
            let token = text(request.headers(), header::AUTHORIZATION.as_str());
            promoted(context, id, token.filter(|token| !token.is_empty())).await
        }
        _ => error(StatusCode::NOT_FOUND, format_args!("member {id} not found in cluster")),
    };
    with_cluster(context, response)
}

async fn promoted(context: &Context, id: u64, token: Option<&str>) -> Response<PeerBody> {
    let failure = match context.host.promote(id, token.map(str::to_owned)).await {
        Ok(members) => {
            return match serde_json::to_string(&members) {
                Ok(list) => answer(StatusCode::OK, "application/json", list + "\n"),
                Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure),
            };
        }
        Err(failure) => failure,
    };
    tracing::warn!(member = %crate::headers::hex(id), error = %failure, "failed to promote a member");
    match failure {
        PromoteError::NotFound => error(StatusCode::NOT_FOUND, failure),
        PromoteError::NotLearner | PromoteError::NotReady => {
            error(StatusCode::PRECONDITION_FAILED, failure)
        }
        // etcd says no more than this; the reason is in its log.
        PromoteError::Other(_) => answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            "application/json",
            "{\"message\":\"Internal Server Error\"}",
        ),
    }
}

/// GET /version
pub(super) fn version(context: &Context, method: &Method) -> Response<PeerBody> {
    if let Some(refused) = unless("GET", method) {
        return refused;
    }
    let applied = context.host.versions();
    json(&Versions {
        server: context.shared().identity.version.to_string(),
        cluster: applied.cluster.unwrap_or_else(|| "not_decided".to_owned()),
        storage: applied.storage.unwrap_or_else(|| "unknown".to_owned()),
    })
}

/// GET /downgrade/enabled
pub(super) async fn downgrade_enabled(context: &Context, method: &Method) -> Response<PeerBody> {
    if let Some(refused) = unless("GET", method) {
        return refused;
    }
    let response = match context.host.downgrade_enabled().await {
        Ok(enabled) => answer(StatusCode::OK, "text/plain", enabled.to_string()),
        Err(reason) => {
            let text = format!("failed linearized read: {reason}");
            error(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    };
    with_cluster(context, response)
}

/// POST /leases
pub(super) async fn lease_renew(
    context: &Context,
    request: Request<Incoming>,
) -> Response<PeerBody> {
    let renewed = async {
        let body = lease_body(context, request).await?;
        let LeaseKeepAliveRequest { id } =
            LeaseKeepAliveRequest::decode(body).map_err(|_| unreadable())?;
        let call = context.host.lease_renew(id);
        let ttl = caught_up(context, call)
            .await
            .map_err(|failure| lease_failure(failure, StatusCode::BAD_REQUEST))?;
        Ok(protobuf(&LeaseKeepAliveResponse { id, ttl, ..LeaseKeepAliveResponse::default() }))
    };
    either(renewed.await)
}

/// POST /leases/internal
pub(super) async fn lease_time_to_live(
    context: &Context,
    request: Request<Incoming>,
) -> Response<PeerBody> {
    let found = async {
        let body = lease_body(context, request).await?;
        let request = LeaseInternalRequest::decode(body).map_err(|_| unreadable())?;
        let asked = request.lease_time_to_live_request.ok_or_else(unreadable)?;
        let call = context.host.lease_time_to_live(asked.id, asked.keys);
        let found = caught_up(context, call)
            .await
            .map_err(|failure| lease_failure(failure, StatusCode::INTERNAL_SERVER_ERROR))?;
        let response = LeaseTimeToLiveResponse {
            header: Some(ResponseHeader::default()),
            id: asked.id,
            ttl: found.ttl,
            granted_ttl: found.granted_ttl,
            keys: found.keys,
        };
        Ok(protobuf(&LeaseInternalResponse { lease_time_to_live_response: Some(response) }))
    };
    either(found.await)
}

async fn lease_body(
    context: &Context,
    request: Request<Incoming>,
) -> Result<Bytes, Response<PeerBody>> {
    if request.method() != Method::POST {
        // etcd names no allowed method here.
        return Err(error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
    }
    let chunks = Chunks::new(request.into_body(), context.shared().timing.read);
    chunks.collect(LEASE_LIMIT).await.map_err(|failure| match failure {
        CollectError::TooLarge(_) => error(StatusCode::PAYLOAD_TOO_LARGE, "request body too large"),
        CollectError::Io(_) => error(StatusCode::BAD_REQUEST, "error reading body"),
    })
}

/// Waits for the log to be applied, for a while, and then for the answer about the lease.
async fn caught_up<T>(
    context: &Context,
    call: BoxFuture<'static, Result<T, LeaseError>>,
) -> Result<T, LeaseError> {
    tokio::time::timeout(context.shared().timing.lease_wait, context.host.wait_applied())
        .await
        .map_err(|_| LeaseError::ApplyTimeout)?;
    call.await
}

fn lease_failure(failure: LeaseError, otherwise: StatusCode) -> Response<PeerBody> {
    let status = match failure {
        LeaseError::NotFound => StatusCode::NOT_FOUND,
        LeaseError::ApplyTimeout => StatusCode::REQUEST_TIMEOUT,
        LeaseError::NotPrimary | LeaseError::Other(_) => otherwise,
    };
    error(status, failure)
}

fn unreadable() -> Response<PeerBody> {
    error(StatusCode::BAD_REQUEST, "error unmarshalling request")
}

fn protobuf(message: &impl prost::Message) -> Response<PeerBody> {
    answer(StatusCode::OK, "application/protobuf", message.encode_to_vec())
}

#[derive(Deserialize)]
struct HashRequest {
    #[serde(default)]
    revision: i64,
}

/// In the form of Go's JSON: what is zero is left out.
#[derive(Serialize)]
struct HashAnswer {
    header: HashHeader,
    #[serde(skip_serializing_if = "is_zero")]
    hash: i64,
    #[serde(skip_serializing_if = "is_zero")]
    compact_revision: i64,
    #[serde(skip_serializing_if = "is_zero")]
    hash_revision: i64,
}

#[derive(Serialize)]
struct HashHeader {
    #[serde(skip_serializing_if = "is_zero")]
    revision: i64,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

/// GET /members/hashkv, with a body.
pub(super) async fn hash_kv(context: &Context, request: Request<Incoming>) -> Response<PeerBody> {
    if let Some(refused) = unless("GET", request.method()) {
        return refused;
    }
    let hashed = async {
        let cluster = text(request.headers(), CLUSTER_ID).unwrap_or("");
        if !cluster.is_empty() && *cluster != context.shared().identity.cluster_text() {
            return Err(refusal(Refusal::ClusterMismatch));
        }
        let chunks = Chunks::new(request.into_body(), context.shared().timing.read);
        let body = chunks
            .collect(HASH_LIMIT)
            .await
            .map_err(|_| error(StatusCode::BAD_REQUEST, "error reading body"))?;
        let HashRequest { revision } = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let hash = context
            .host
            .hash_kv(revision)
            .await
            .map_err(|failure| error(StatusCode::BAD_REQUEST, failure))?;
        let answer = json(&HashAnswer {
            header: HashHeader { revision: hash.revision },
            hash: i64::from(hash.hash),
            compact_revision: hash.compact_revision,
            hash_revision: hash.hash_revision,
        });
        Ok(with_cluster(context, answer))
    };
    either(hashed.await)
}
