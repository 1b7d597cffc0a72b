//! grpc.health.v1.Health: whether this member serves.
//!
//! There is one service, the empty name, which stands for all. It serves from the moment that
//! clients are let in until the member begins to drain.

use std::sync::Arc;

use super::body::RequestBody;
use futures_util::stream;
use http::Request;
use tokio::sync::watch;

use super::call::{Chunk, streaming, unary, unary_requests};
use super::methods::Method;
use super::status::Status;
use super::{Answer, Api};
use crate::auth::By;
use crate::error::Code;

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

/// `grpc.health.v1.HealthCheckRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

unary_requests! {
    HealthCheckRequest => HealthCheckResponse,
}

fn status(draining: bool) -> i32 {
    if draining { NOT_SERVING } else { SERVING }
}

pub(super) fn check(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    let draining = api.draining.subscribe();
    unary(api, Method::HealthCheck, request, async move |_, by: By<HealthCheckRequest>| {
        if !by.request.service.is_empty() {
            return Err(Status::new(Code::NotFound, "unknown service"));
        }
        Ok(HealthCheckResponse { status: status(*draining.borrow()) })
    })
}

pub(super) fn watch(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::HealthWatch, request, async |messages, call| {
        let request: HealthCheckRequest = match call.request(messages).await {
            Ok(by) => by.request,
            Err(status) => return call.refuse(status),
        };
        let known = request.service.is_empty();
        let first = (call.api.draining.subscribe(), true);
        let states = stream::unfold(first, move |(mut draining, first)| async move {
            let state = next_state(&mut draining, first, known).await?;
            let response = HealthCheckResponse { status: state };
            Some((Ok(Chunk::one(&response)), (draining, false)))
        });
        call.respond(Box::pin(states))
    })
}

/// The state to tell: now at first, then after each change.
async fn next_state(draining: &mut watch::Receiver<bool>, first: bool, known: bool) -> Option<i32> {
    if first {
        let now = status(*draining.borrow_and_update());
        return Some(if known { now } else { SERVICE_UNKNOWN });
    }
    loop {
        draining.changed().await.ok()?;
        if known {
            return Some(status(*draining.borrow_and_update()));
        }
    }
}
