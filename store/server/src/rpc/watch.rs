//! etcdserverpb.Watch: the client's requests into the hub, the hub's frames to the client.
//!
//! A task reads the requests; the connection polls the frames. Frames come encoded and are copied
//! once, into chunks that hold several.
//! **Invariant:** the two directions do not wait for each other: a client that reads slowly can
//! still cancel, and one that has half-closed goes on receiving, as with etcd.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::body::RequestBody;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::Request;
use mainstay_proto::etcdserverpb::WatchRequest;
use mainstay_proto::etcdserverpb::watch_request::RequestUnion;
use mainstay_watch::{StreamClosed, WatchRequests, WatchResponses};
use tokio::task::JoinHandle;

use super::call::{Chunk, put_header, streaming};
use super::methods::Method;
use super::metrics::Sent;
use super::receive::{HEADER, Messages};
use super::status::{CODE_NAMES, Status};
use super::{Answer, Api};
use crate::auth::Caller;
use crate::error::{Code, Error};

/// Frames are put together up to this size; a larger frame goes alone.
const CHUNK: usize = 32 << 10;

pub(super) fn watch(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    streaming(api, Method::Watch, request, async |messages, call| {
        let (api, caller) = (call.api.clone(), call.caller.clone());
        let (requests, responses) = api.core.watch.open();
        let ender = call.ticket.ender();
        let reader = tokio::spawn(async move {
            if let Err(status) = read(&api, &caller, messages, requests).await {
                ender.end(status);
            }
        });
        let api = call.api.clone();
        call.respond(Frames { api, responses, reader: AbortOnDrop(reader) })
    })
}

/// Gives requests to the hub until the client has sent its last one.
async fn read(
    api: &Api,
    caller: &Caller,
    mut messages: Messages<RequestBody>,
    mut requests: WatchRequests,
) -> Result<(), Status> {
    let fault = |status| api.metrics.not_received("watch", status);
    while let Some(raw) = messages.next().await.map_err(fault)? {
        // The hub keeps the keys for as long as the watcher lives: they must not keep a buffer of
        // the connection with them.
        let raw = Bytes::copy_from_slice(&raw);
        let request: WatchRequest = api.decode(Method::Watch, raw).map_err(fault)?;
        let taken = match request.request_union {
            Some(RequestUnion::CreateRequest(create)) => {
                match api.core.watch_request(caller, create).await {
                    Ok(create) => requests.create(create).await,
                    Err(error) => requests.refuse(why_refused(&error)).await,
                }
            }
            Some(RequestUnion::CancelRequest(cancel)) => requests.cancel(cancel.watch_id).await,
            Some(RequestUnion::ProgressRequest(_)) => requests.progress().await,
            None => Ok(()),
        };
        if let Err(StreamClosed) = taken {
            return Err(Error::Stopped.into());
        }
    }
    Ok(())
}

/// Why a watcher is not made, as etcd's clients know it: the error as their library prints it. What
/// it does not know in this place is a want of permission.
fn why_refused(error: &Error) -> String {
    let error = match error {
        Error::InvalidAuthToken | Error::AuthOldRevision | Error::UserEmpty => error,
        _ => &Error::PermissionDenied,
    };
    let code = CODE_NAMES[error.code() as usize];
    format!("rpc error: code = {code} desc = {}", error.text())
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The frames of a stream, in chunks.
struct Frames {
    api: Arc<Api>,
    responses: WatchResponses,
    /// Ends with the stream.
    #[expect(dead_code, reason = "held for its drop")]
    reader: AbortOnDrop,
}

impl Stream for Frames {
    type Item = Result<Chunk, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let first = match self.responses.poll_recv(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(Some(Err(Error::Stopped.into()))),
            Poll::Ready(Some(frame)) => frame,
        };
        let started = Instant::now();
        let mut sent = Sent::default();
        sent.add(first.kind());
        let length = first.encoded_len();
        if u32::try_from(length).is_err() {
            return Poll::Ready(Some(Err(Status::new(
                Code::ResourceExhausted,
                format!("grpc: trying to send message larger than max ({length} vs. {})", u32::MAX),
            ))));
        }
        let mut data = BytesMut::with_capacity(HEADER + length);
        put_header(length, &mut data);
        first.encode(&mut data);
        let mut messages = 1;
        while data.len() < CHUNK {
            // When the stream has ended, the next poll finds it so again.
            let Poll::Ready(Some(frame)) = self.responses.poll_recv(context) else { break };
            sent.add(frame.kind());
            let length = frame.encoded_len();
            data.reserve(HEADER + length);
            put_header(length, &mut data);
            frame.encode(&mut data);
            messages += 1;
        }
        self.api.metrics.watch.sent(sent, started.elapsed());
        Poll::Ready(Some(Ok(Chunk { data: data.freeze(), messages })))
    }
}
