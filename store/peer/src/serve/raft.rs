//! Paths below /raft: streams, messages, snapshots, probes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body as _;
use hyper::body::Incoming;
use mainstay_proto::raftpb::{Message, MessageType};
use prost::Message as _;

use super::{Context, answer, either, error, no_content, refusal, unless, with_cluster};
use crate::body::{Chunks, PeerBody};
use crate::codec::{
    MESSAGE_LIMIT, SNAPSHOT_MESSAGE_LIMIT, StreamKind, check_snapshot, decode_message,
};
use crate::headers::{
    RAFT_TO, Refusal, SERVER_FROM, SERVER_VERSION, hex, parse_hex, sender_urls, text,
};
use crate::host::{IncomingSnapshot, StageError};
use crate::metrics::{Gauge, PeerMetrics};
use crate::timestamp;

/// GET /raft/stream/KIND/ID: the answer's body is the stream.
pub(super) fn stream(
    context: &Context,
    request: &Request<Incoming>,
    target: Option<(StreamKind, &str)>,
) -> Response<PeerBody> {
    if let Some(refused) = unless("GET", request.method()) {
        return refused;
    }
    let response = match attach(context, request.headers(), target) {
        Ok(body) => Response::new(body),
        Err(refused) => {
            tracing::warn!(
                from = text(request.headers(), SERVER_FROM), path = request.uri().path(),
                %refused, "refused a stream",
            );
            refusal(refused)
        }
    };
    let mut response = with_cluster(context, response);
    let version = context.shared().identity.version_text();
    response.headers_mut().insert(SERVER_VERSION, version);
    response
}

fn attach(
    context: &Context,
    headers: &HeaderMap,
    target: Option<(StreamKind, &str)>,
) -> Result<PeerBody, Refusal> {
    let identity = &context.shared().identity;
    identity.check(headers)?;
    let (kind, id) = target.ok_or(Refusal::InvalidPath)?;
    let from = parse_hex(id).ok_or(Refusal::InvalidFrom)?;
    if context.host.is_removed(from) {
        return Err(Refusal::Removed);
    }
    let Some(peer) = context.peers.peer(from) else {
        note_remote(context, from, headers);
        return Err(Refusal::UnknownSender);
    };
    if text(headers, RAFT_TO) != Some(&hex(identity.local)) {
        return Err(Refusal::ToMismatch);
    }
    Ok(peer.outlet(kind).attach(peer.link()))
}

/// Keeps in mind where the sender of a request can be reached, should it be no known member.
fn note_sender(context: &Context, headers: &HeaderMap) {
    if let Some(from) = text(headers, SERVER_FROM).and_then(parse_hex) {
        note_remote(context, from, headers);
    }
}

fn note_remote(context: &Context, from: u64, headers: &HeaderMap) {
    let Some(urls) = sender_urls(headers) else { return };
    if let Err(error) = context.peers.add_remote(from, &urls) {
        tracing::warn!(from = %hex(from), ?urls, %error, "sender gave peer URLs that are none");
    }
}

/// POST /raft: one message.
pub(super) async fn message(context: &Context, request: Request<Incoming>) -> Response<PeerBody> {
    if let Some(refused) = unless("POST", request.method()) {
        return refused;
    }
    with_cluster(context, either(take_message(context, request).await))
}

async fn take_message(
    context: &Context,
    request: Request<Incoming>,
) -> Result<Response<PeerBody>, Response<PeerBody>> {
    let shared = context.shared();
    shared.identity.check(request.headers()).map_err(refusal)?;
    note_sender(context, request.headers());

    let sender = text(request.headers(), SERVER_FROM).and_then(parse_hex).unwrap_or(0);
    let failed = |status, text: &str| {
        shared.metrics.of(sender).received_failures.increment();
        error(status, text)
    };
    let body = Chunks::new(request.into_body(), shared.timing.read)
        .collect(MESSAGE_LIMIT)
        .await
        .map_err(|_| failed(StatusCode::BAD_REQUEST, "error reading raft message"))?;
    let len = body.len() as u64;
    let message = Message::decode(body)
        .map_err(|_| failed(StatusCode::BAD_REQUEST, "error unmarshalling raft message"))?;
    let from = message.from();
    shared.metrics.of(from).received_bytes.add(len);
    if context.peers.peer(from).is_some_and(|peer| peer.link().is_paused()) {
        return Ok(no_content());
    }
    match shared.receive(&*context.host, message) {
        Ok(()) => Ok(no_content()),
        Err(rejected) => {
            tracing::warn!(from = %hex(from), error = %rejected, "failed to process Raft message");
            let text = "error processing raft message";
            let mut response = failed(StatusCode::INTERNAL_SERVER_ERROR, text);
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
            Err(response)
        }
    }
}

/// POST /raft/snapshot: a message and the database after it.
pub(super) async fn snapshot(context: &Context, request: Request<Incoming>) -> Response<PeerBody> {
    let metrics = &context.shared().metrics;
    if let Some(refused) = unless("POST", request.method()) {
        metrics.of(0).snapshot_receive_failures.increment();
        return refused;
    }
    with_cluster(context, either(take_snapshot(context, request).await))
}

async fn take_snapshot(
    context: &Context,
    request: Request<Incoming>,
) -> Result<Response<PeerBody>, Response<PeerBody>> {
    let started = Instant::now();
    let shared = context.shared();
    let failed = |row: &PeerMetrics, status, text: &dyn std::fmt::Display| {
        row.snapshot_receive_failures.increment();
        error(status, text)
    };
    let strangers = shared.metrics.of(0);
    if let Err(refused) = shared.identity.check(request.headers()) {
        return Err(failed(&strangers, refused.status(), &refused));
    }
    note_sender(context, request.headers());

    let announced = request.body().size_hint().exact();
    let mut chunks = Chunks::new(request.into_body(), shared.timing.snapshot_stall);
    let mut buffer = BytesMut::new();
    let head = read_head(&mut chunks, &mut buffer).await;
    let (message, head_len) = head.map_err(|reason| {
        strangers.received_failures.increment();
        let text = format!("failed to decode raft message ({reason})");
        failed(&strangers, StatusCode::BAD_REQUEST, &text)
    })?;
    let from = message.from();
    let row = shared.metrics.of(from);
    row.received_bytes.add(head_len);
    if message.r#type() != MessageType::MsgSnap {
        return Err(failed(&row, StatusCode::BAD_REQUEST, &"wrong raft message type"));
    }
    let refused = |reason: String| {
        let reason = StageError::Process(reason);
        tracing::warn!(from = %hex(from), error = %reason, "refused a snapshot");
        failed(&row, StatusCode::INTERNAL_SERVER_ERROR, &reason)
    };
    if context.host.is_removed(from) {
        return Err(refused("cannot process message from removed member".to_owned()));
    }
    // Whatever is wrong with it, a real sender must not take it for delivered.
    check_snapshot(&message, shared.identity.local).map_err(|unfit| refused(unfit.to_string()))?;

    let _held = Gauge::hold(row.clone(), |row| &row.snapshots_receiving);
    let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
    let index = metadata.map_or(0, |metadata| metadata.index());
    tracing::info!(from = %hex(from), index, "receiving database snapshot");
    let counted = row.clone();
    let body = IncomingSnapshot {
        len: announced.and_then(|all| all.checked_sub(head_len)),
        chunks: rest(buffer.freeze(), chunks)
            .inspect(move |chunk| {
                if let Ok(chunk) = chunk {
                    counted.received_bytes.add(chunk.len() as u64);
                }
            })
            .boxed(),
    };
    // A task of its own: when the sender's connection breaks, this handler is dropped where it
    // stands, and the staging must not be. It sees an error in the body instead.
    let staging = shared.runtime.spawn(context.host.stage_snapshot(message, body));
    let staged = staging.await.unwrap_or_else(|error| Err(StageError::Save(error.to_string())));
    match staged {
        Ok(()) => {
            row.snapshots_received.increment();
            row.snapshot_receive_seconds.observe(started.elapsed());
            tracing::info!(from = %hex(from), index, took = ?started.elapsed(), "received and saved database snapshot");
            Ok(no_content())
        }
        Err(failure) => {
            tracing::warn!(from = %hex(from), index, error = %failure, "failed to take a database snapshot");
            Err(failed(&row, StatusCode::INTERNAL_SERVER_ERROR, &failure))
        }
    }
}

async fn read_head(chunks: &mut Chunks, buffer: &mut BytesMut) -> Result<(Message, u64), String> {
    loop {
        let chunk = match chunks.next().await {
            None if buffer.is_empty() => return Err("EOF".to_owned()),
            None => return Err("unexpected EOF".to_owned()),
            Some(Err(error)) => return Err(error.to_string()),
            Some(Ok(chunk)) => chunk,
        };
        buffer.extend_from_slice(&chunk);
        let before = buffer.len();
        let head = decode_message(buffer, SNAPSHOT_MESSAGE_LIMIT);
        if let Some(message) = head.map_err(|error| error.to_string())? {
            return Ok((message, (before - buffer.len()) as u64));
        }
    }
}

/// What was read too far, then what is still to come.
fn rest(
    read: Bytes,
    chunks: Chunks,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
    let read = if read.is_empty() { None } else { Some(Ok(read)) };
    // A database that has failed to arrive does not go on after the failure.
    let failed = Arc::new(AtomicBool::new(false));
    futures_util::stream::iter(read).chain(chunks).take_while(move |chunk| {
        let go_on = !failed.load(Ordering::Relaxed);
        if chunk.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        futures_util::future::ready(go_on)
    })
}

/// /raft/probing, by any method.
pub(super) fn probe() -> Response<PeerBody> {
    let now = timestamp::format(SystemTime::now());
    let body = format!("{{\"OK\":true,\"Now\":\"{now}\"}}\n");
    answer(StatusCode::OK, "text/plain; charset=utf-8", body)
}
