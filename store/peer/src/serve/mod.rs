//! The peer port: what each path answers.
//!
//! Input: HTTP/1.1 requests of peers, of joining members and of followers. Output: answers with the
//! statuses and texts of etcd, because real members decide by them what to do next.
//!
//! **Invariant:** 404 means that the thing asked about does not exist in the cluster, or that no
//! etcd has such a path. What can't be done now is a 5xx: a follower takes 404 on a lease for
//! "expired", and tells its client so.

mod member;
mod raft;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;

use crate::body::PeerBody;
use crate::codec::StreamKind;
use crate::headers::{CLUSTER_ID, Refusal};
use crate::host::Host;
use crate::link::Shared;
use crate::peers::Peers;

/// Answers requests on the peer port. Clones answer for the same member.
#[derive(Clone)]
pub struct PeerService {
    peers: Peers,
}

/// What handlers need of one request's surroundings.
struct Context {
    peers: Peers,
    host: Arc<dyn Host>,
}

impl PeerService {
    pub(crate) fn new(peers: Peers) -> Self {
        PeerService { peers }
    }

    /// How long a peer may take no bytes of an answer before its connection is to be cut, so that
    /// streams to hosts that vanished do not stay behind.
    pub fn write_stall(&self) -> Duration {
        self.peers.shared().timing.write
    }

    /// Answers one request. For a stream the answer's body ends when the peer's connection does.
    pub async fn call(&self, request: Request<Incoming>) -> Response<PeerBody> {
        let Some(host) = self.peers.host() else {
            return error(StatusCode::SERVICE_UNAVAILABLE, "member is not serving");
        };
        let context = Context { peers: self.peers.clone(), host };
        route(&context, request).await
    }
}

impl Context {
    fn shared(&self) -> &Shared {
        self.peers.shared()
    }
}

async fn route(context: &Context, request: Request<Incoming>) -> Response<PeerBody> {
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/raft" => raft::message(context, request).await,
        "/raft/snapshot" => raft::snapshot(context, request).await,
        "/raft/probing" => raft::probe(),
        "/members" => member::members(context, request.method()),
        "/members/hashkv" => member::hash_kv(context, request).await,
        "/version" => member::version(context, request.method()),
        "/leases" => member::lease_renew(context, request).await,
        "/leases/internal" => member::lease_time_to_live(context, request).await,
        "/downgrade/enabled" => member::downgrade_enabled(context, request.method()).await,
        _ => {
            if let Some(id) = path.strip_prefix("/members/promote/") {
                member::promote(context, &request, id).await
            } else if path.starts_with("/raft/stream/") {
                raft::stream(context, &request, stream_target(&path))
            } else {
                error(StatusCode::NOT_FOUND, "404 page not found")
            }
        }
    }
}

/// Splits the path of a stream into its kind and the id of the member that dials.
fn stream_target(path: &str) -> Option<(StreamKind, &str)> {
    let (kind, id) = path.rsplit_once('/')?;
    let kinds = [StreamKind::MsgApp, StreamKind::Message];
    let kind = kinds.into_iter().find(|known| known.path() == kind)?;
    Some((kind, id))
}

/// An answer of a status and a body.
fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<PeerBody> {
    let mut response = Response::new(PeerBody::full(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

/// A refusal with a line of text, in the form of Go's HTTP server.
fn error(status: StatusCode, text: impl std::fmt::Display) -> Response<PeerBody> {
    let mut response = answer(status, "text/plain; charset=utf-8", format!("{text}\n"));
    let value = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, value);
    response
}

fn refusal(refusal: Refusal) -> Response<PeerBody> {
    error(refusal.status(), refusal)
}

/// Nothing to say but that it worked.
fn no_content() -> Response<PeerBody> {
    let mut response = Response::new(PeerBody::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn json(value: &impl serde::Serialize) -> Response<PeerBody> {
    match serde_json::to_vec(value) {
        Ok(body) => answer(StatusCode::OK, "application/json", body),
        Err(failure) => error(StatusCode::INTERNAL_SERVER_ERROR, failure),
    }
}

/// The refusal of any other method than `allowed`.
fn unless(allowed: &'static str, method: &Method) -> Option<Response<PeerBody>> {
    if method.as_str() == allowed {
        return None;
    }
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    Some(response)
}

/// Adds the cluster's id, which real members look for in most answers.
fn with_cluster(context: &Context, mut response: Response<PeerBody>) -> Response<PeerBody> {
    let id = context.shared().identity.cluster_text();
    response.headers_mut().insert(CLUSTER_ID, id);
    response
}

/// Unites the two ends of a handler that leaves early with a refusal.
fn either(result: Result<Response<PeerBody>, Response<PeerBody>>) -> Response<PeerBody> {
    result.unwrap_or_else(|refused| refused)
}
