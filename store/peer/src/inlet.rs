//! One stream that we read from a peer: we dial, it writes.
//!
//! Input: frames in the body of the peer's answer. Output: messages to raft, in the stream's order.
//! Runs until its task is ended: a stream that is lost or refused is dialled again.

use std::sync::Arc;

use bytes::BytesMut;
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use mainstay_proto::raftpb::Message;
use prost::Message as _;
use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout};

use crate::body::{Chunks, PeerBody};
use crate::codec::{CodecError, Decoder, Frame, StreamKind};
use crate::headers::{RAFT_TO, SERVER_VERSION, hex, text};
use crate::http_client::{Connection, RequestError, finish_request};
use crate::link::Link;
use crate::version::Version;

/// Longest explanation of a refusal that is read.
const REFUSAL_LIMIT: u64 = 4096;
/// The first version that serves these streams.
const FIRST_WITH_STREAMS: (u32, u32) = (2, 1);

#[derive(Debug, Error)]
enum DialError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("no answer within the time for reads")]
    Silent,
    #[error("the peer is of version {0}, which has no such stream")]
    Unsupported(String),
    #[error("this member has been removed from the cluster")]
    Removed,
    #[error("peer {0:x} failed to find this member")]
    NotFound(u64),
    #[error("refused: {0}")]
    Refused(String),
    #[error("unhandled http status {0}")]
    Status(StatusCode),
}

#[derive(Debug, Error)]
enum StreamEnd {
    #[error("end of stream")]
    End,
    #[error(transparent)]
    Broken(#[from] std::io::Error),
    #[error(transparent)]
    Garbage(#[from] CodecError),
}

/// Keeps one stream open.
pub(crate) async fn run(link: Arc<Link>, kind: StreamKind) {
    loop {
        let next_dial = Instant::now() + link.shared.timing.redial;
        match dial(&link, kind).await {
            Ok((connection, response)) => {
                link.status.activate();
                tracing::info!(
                    peer = %hex(link.id), stream = kind.name(),
                    "established TCP streaming connection with remote peer",
                );
                let end = read(&link, kind, response).await;
                drop(connection);
                tracing::warn!(
                    peer = %hex(link.id), stream = kind.name(), reason = %end,
                    "lost TCP streaming connection with remote peer",
                );
                // A peer that ends a stream in order is not thereby gone: it redials after it has
                // installed a snapshot.
                if !matches!(end, StreamEnd::End) {
                    link.status.deactivate(kind.name(), &end);
                }
            }
            Err(error) => {
                if matches!(error, DialError::Removed) {
                    link.told_removed();
                }
                link.status.deactivate(kind.name(), &error);
            }
        }
        sleep_until(next_dial).await;
    }
}

async fn dial(
    link: &Link,
    kind: StreamKind,
) -> Result<(Connection, Response<Incoming>), DialError> {
    let url = link.urls.pick();
    let opened = open(link, kind, &url).await;
    if opened.is_err() {
        link.urls.unreachable(&url);
    }
    opened
}

async fn open(
    link: &Link,
    kind: StreamKind,
    url: &crate::url::PeerUrl,
) -> Result<(Connection, Response<Incoming>), DialError> {
    let shared = &link.shared;
    let path = format!("{}/{}", kind.path(), hex(shared.identity.local));
    let request = shared.identity.request(Method::GET, url, &path).header(RAFT_TO, hex(link.id));
    let mut connection = shared.http.connect(url).await?;
    let sending = connection.send(finish_request(request, PeerBody::empty()));
    let response = timeout(shared.timing.read, sending)
        .await
        .map_err(|_| DialError::Silent)?
        .map_err(|error| RequestError::Http { url: url.clone(), error })?;
    let version = text(response.headers(), SERVER_VERSION);
    match Version::from_header(version) {
        Ok(version) if version.minor_pair() >= FIRST_WITH_STREAMS => {}
        _ => return Err(DialError::Unsupported(version.unwrap_or("unknown").to_owned())),
    }
    match response.status() {
        StatusCode::OK => Ok((connection, response)),
        StatusCode::GONE => Err(DialError::Removed),
        StatusCode::NOT_FOUND => Err(DialError::NotFound(link.id)),
        StatusCode::PRECONDITION_FAILED => {
            let body = Chunks::new(response.into_body(), shared.timing.read);
            let body = body.collect(REFUSAL_LIMIT).await.unwrap_or_default();
            Err(DialError::Refused(String::from_utf8_lossy(&body).trim_end().to_owned()))
        }
        other => Err(DialError::Status(other)),
    }
}

async fn read(link: &Link, kind: StreamKind, response: Response<Incoming>) -> StreamEnd {
    let mut decoder = Decoder::new(kind, link.shared.identity.local, link.id);
    let mut chunks = Chunks::new(response.into_body(), link.shared.timing.read);
    let mut buffer = BytesMut::new();
    loop {
        match chunks.next().await {
            None => return StreamEnd::End,
            Some(Err(error)) => return error.into(),
            Some(Ok(chunk)) => buffer.extend_from_slice(&chunk),
        }
        loop {
            match decoder.decode(&mut buffer) {
                Ok(None) => break,
                Ok(Some(Frame::Heartbeat)) => {}
                Ok(Some(Frame::Message(message))) => deliver(link, *message),
                Err(error) => {
                    link.metrics.received_failures.increment();
                    return error.into();
                }
            }
        }
        // Gives other tasks a turn after each piece, however fast the peer sends.
        tokio::task::coop::consume_budget().await;
    }
}

fn deliver(link: &Link, message: Message) {
    link.metrics.received_bytes.add(message.encoded_len() as u64);
    if link.is_paused() {
        return;
    }
    if let Err(error) = link.shared.receive(&*link.host, message) {
        link.metrics.received_failures.increment();
        tracing::debug!(peer = %hex(link.id), %error, "dropped a raft message");
    }
}
