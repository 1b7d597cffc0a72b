//! etcdserverpb.Maintenance.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::body::RequestBody;
use futures_util::stream;
use http::Request;
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::etcdserverpb::alarm_request::AlarmAction;
use tokio::sync::mpsc;

use super::call::{Chunk, UnaryRequest, streaming, unary, unary_requests};
use super::methods::Method;
use super::status::Status;
use super::{Answer, Api};
use crate::auth::By;
use crate::error::Result;

unary_requests! {
    pb::AlarmRequest => pb::AlarmResponse,
    pb::DefragmentRequest => pb::DefragmentResponse,
    pb::HashRequest => pb::HashResponse,
    pb::HashKvRequest => pb::HashKvResponse,
    pb::MoveLeaderRequest => pb::MoveLeaderResponse,
    pb::DowngradeRequest => pb::DowngradeResponse,
}

impl UnaryRequest for pb::StatusRequest {
    type Response = pb::StatusResponse;

    fn served_by_learner(&self) -> bool {
        true
    }
}

pub(super) fn alarm(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Alarm, request, async |core, by: By<pb::AlarmRequest>| {
        if by.request.action == AlarmAction::Get as i32 {
            core.require_identity(&by.caller).await?;
            return Ok(core.alarm(by.request).await?);
        }
        Ok(core.alarm(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn status(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Status, request, async |core, by: By<pb::StatusRequest>| {
        core.require_identity(&by.caller).await?;
        Ok(core.status())
    })
}

pub(super) fn defragment(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Defragment, request, async |core, by: By<pb::DefragmentRequest>| {
        by.of_admin(&core).await?;
        tracing::info!("starting defragment");
        let answer = core.defragment().await?;
        tracing::info!("finished defragment");
        Ok(answer)
    })
}

pub(super) fn hash(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Hash, request, async |core, by: By<pb::HashRequest>| {
        by.of_admin(&core).await?;
        Ok(core.hash().await?)
    })
}

pub(super) fn hash_kv(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::HashKv, request, async |core, by: By<pb::HashKvRequest>| {
        Ok(core.hash_kv(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn move_leader(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::MoveLeader, request, async |core, by: By<pb::MoveLeaderRequest>| {
        Ok(core.move_leader(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn downgrade(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Downgrade, request, async |core, by: By<pb::DowngradeRequest>| {
        Ok(core.downgrade(by.of_admin(&core).await?).await?)
    })
}

pub(super) fn snapshot(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::Snapshot, request, async |messages, call| {
        let pieces = match call.request::<pb::SnapshotRequest>(messages).await {
            Ok(by) => match by.of_admin(&call.api.core).await {
                Ok(_) => call.api.core.snapshot().await.map_err(Status::from),
                Err(error) => Err(error.into()),
            },
            Err(status) => Err(status),
        };
        match pieces {
            Ok(mut pieces) => {
                tracing::info!("sending database snapshot to client");
                call.respond(stream::poll_fn(move |context| next_piece(&mut pieces, context)))
            }
            Err(status) => call.refuse(status),
        }
    })
}

fn next_piece(
    pieces: &mut mpsc::Receiver<Result<pb::SnapshotResponse>>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Chunk, Status>>> {
    pieces
        .poll_recv(context)
        .map(|piece| piece.map(|piece| Ok(Chunk::one(&piece.map_err(Status::from)?))))
}
