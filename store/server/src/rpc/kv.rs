//! etcdserverpb.KV.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::body::RequestBody;
use futures_util::stream;
use http::Request;
use mainstay_proto::etcdserverpb as pb;
use tokio::sync::mpsc;

use super::call::{Chunk, streaming, unary, unary_requests};
use super::methods::Method;
use super::status::Status;
use super::{Answer, Api};
use crate::auth::By;
use crate::error::Result;

unary_requests! {
    pb::CompactionRequest => pb::CompactionResponse,
}

pub(super) fn range(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Range, request, async |core, request: By<pb::RangeRequest>| {
        Ok(core.range(request).await?)
    })
}

pub(super) fn put(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Put, request, async |core, request: By<pb::PutRequest>| {
        Ok(core.put(request).await?)
    })
}

pub(super) fn delete_range(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::DeleteRange, request, async |core, request: By<pb::DeleteRangeRequest>| {
        Ok(core.delete_range(request).await?)
    })
}

pub(super) fn txn(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Txn, request, async |core, request: By<pb::TxnRequest>| {
        Ok(core.txn(request).await?)
    })
}

pub(super) fn compact(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    unary(api, Method::Compact, request, async |core, request: By<pb::CompactionRequest>| {
        Ok(core.compact(request.of_admin(&core).await?).await?)
    })
}

pub(super) fn range_stream(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::RangeStream, request, async |messages, call| {
        let chunks = match call.request::<pb::RangeRequest>(messages).await {
            Ok(request) => call.api.core.range_stream(request).await.map_err(Status::from),
            Err(status) => Err(status),
        };
        match chunks {
            Ok(mut chunks) => {
                call.respond(stream::poll_fn(move |context| next_chunk(&mut chunks, context)))
            }
            Err(status) => call.refuse(status),
        }
    })
}

fn next_chunk(
    chunks: &mut mpsc::Receiver<Result<pb::RangeResponse>>,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Chunk, Status>>> {
    chunks.poll_recv(context).map(|chunk| {
        chunk.map(|chunk| {
            let range_response = Some(chunk.map_err(Status::from)?);
            Ok(Chunk::one(&pb::RangeStreamResponse { range_response }))
        })
    })
}
