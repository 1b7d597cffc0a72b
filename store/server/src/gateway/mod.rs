//! The JSON gateway: etcd's calls for clients that speak HTTP and JSON.
//!
//! Input: HTTP requests below `/v3/` (and `/v3beta/`). Output: the answer of the call, as JSON.
//! A request becomes a gRPC request to the same member, with its own way through admission,
//! metrics and access rules; nothing is answered here that a gRPC client would not be answered.
//! **Invariant:** a stream's call ends when its client goes away, since nobody else holds it.

pub(crate) mod access;
mod call;
mod decode;
mod encode;
mod frames;
mod reader;
mod routes;
mod scan;

use std::sync::{Arc, LazyLock};

use http::header::{CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method as HttpMethod, Request, Response, StatusCode};
use hyper::body::Incoming;
use mainstay_net::{Body, full};
use prost_reflect::DescriptorPool;

use self::call::Call;
use self::encode::push_text;
use crate::error::Code;
use crate::http::drain;
use crate::rpc::Api;
use crate::rpc::methods::{Kind, Method};
use crate::rpc::status::Status;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The types of all messages.
pub(crate) fn types() -> &'static DescriptorPool {
    static TYPES: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(mainstay_proto::DESCRIPTORS)
            .expect("the descriptors are made by the same build")
    });
    &TYPES
}

/// Answers a request; its path is below `/v3/` or `/v3beta/`.
pub(crate) async fn answer(api: &Arc<Api>, request: Request<Incoming>) -> Response<Body> {
    let (method, call) = match called(api, &request) {
        Ok(found) => found,
        Err(status) => {
            drain(request.into_body()).await;
            return failure(&status);
        }
    };
    let body = request.into_body();
    match method.kind() {
        Kind::Unary => call.unary(body).await,
        Kind::ServerStream => call.server_stream(body).await,
        Kind::BidiStream => call.both_ways(body).await,
    }
}

/// The call that a request asks for.
fn called(api: &Arc<Api>, request: &Request<Incoming>) -> Result<(Method, Call), Status> {
    let path = request.uri().path();
    let below = path.strip_prefix("/v3/").or_else(|| path.strip_prefix("/v3beta/"));
    let Some(method) = below.and_then(routes::find) else {
        return Err(Status::new(Code::NotFound, "Not Found"));
    };
    if request.method() != HttpMethod::POST {
        return Err(Status::new(Code::Unimplemented, "Method Not Allowed"));
    }
    match Call::new(api, method, request) {
        Some(call) => Ok((method, call)),
        None => Err(Status::new(Code::Internal, format!("{} has no types", method.path()))),
    }
}

/// Whether a path is the gateway's.
pub(crate) fn is_below(path: &str) -> bool {
    path.starts_with("/v3/") || path.starts_with("/v3beta/")
}

/// A call that failed before it answered anything.
fn failure(status: &Status) -> Response<Body> {
    let mut text = String::new();
    push_status(status, &mut text);
    let mut response = reply(text);
    *response.status_mut() = http_status(status.code);
    if status.code == Code::Unauthenticated
        && let Ok(message) = HeaderValue::from_str(&status.message)
    {
        response.headers_mut().insert(WWW_AUTHENTICATE, message);
    }
    response
}

fn reply(text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// Appends a status as JSON.
fn push_status(status: &Status, out: &mut String) {
    out.push_str(&format!("{{\"code\":{}", status.code as u16));
    if !status.message.is_empty() {
        out.push_str(",\"message\":");
        push_text(&status.message, out);
    }
    out.push('}');
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        // What nginx says when the client has gone.
        Code::Canceled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
