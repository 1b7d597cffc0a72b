//! Sending a snapshot: the message and the database file as one request, streamed.
//!
//! Input: a MsgSnap and whatever pins the state it names. Output: the request, and exactly one
//! report to raft about how it went, also when the sending is cut short by the end of the peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use http::{Method, header};
use mainstay_proto::raftpb::Message;
use thiserror::Error;
use tokio::time::timeout;

use crate::body::{Chunks, PeerBody};
use crate::codec::{check_snapshot, encode_message_to_bytes};
use crate::headers::hex;
use crate::host::{Host, Pinned};
use crate::http_client::{Answer, RequestError, finish_request};
use crate::link::Link;
use crate::metrics::Gauge;
use crate::pipeline::{PostError, check_answer};

/// Longest answer that is read.
const ANSWER_LIMIT: u64 = 64 << 10;

#[derive(Debug, Error)]
enum SendError {
    #[error("the message is not fit to be sent: {0}")]
    Unfit(#[from] crate::codec::Unfit),
    #[error("the database could not be read: {0}")]
    Body(std::io::Error),
    #[error("nothing moved for {0:?}")]
    Stalled(Duration),
    #[error("the peer has the whole snapshot and gave no answer within {0:?}")]
    NoAnswer(Duration),
    #[error(transparent)]
    Post(#[from] PostError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Tells raft how a snapshot went: what was noted, or failure.
pub(crate) struct Report {
    host: Arc<dyn Host>,
    to: u64,
    delivered: bool,
}

impl Report {
    pub(crate) fn new(host: Arc<dyn Host>, to: u64) -> Self {
        Report { host, to, delivered: false }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.host.report_snapshot(self.to, self.delivered);
    }
}

/// Sends one snapshot.
pub(crate) async fn send(link: Arc<Link>, message: Message, pinned: Pinned, mut report: Report) {
    let started = Instant::now();
    let _held = Gauge::hold(link.metrics.clone(), |row| &row.snapshots_sending);
    let metadata = message.snapshot.as_ref().and_then(|snapshot| snapshot.metadata.as_ref());
    let index = metadata.map_or(0, |metadata| metadata.index());
    tracing::info!(peer = %hex(link.id), index, "sending database snapshot");
    match post(&link, &message, pinned).await {
        Ok(bytes) => {
            report.delivered = true;
            drop(report);
            link.status.activate();
            link.metrics.sent_bytes.add(bytes);
            link.metrics.snapshots_sent.increment();
            link.metrics.snapshot_send_seconds.observe(started.elapsed());
            tracing::info!(peer = %hex(link.id), index, bytes, "sent database snapshot");
        }
        Err(error) => {
            tracing::warn!(peer = %hex(link.id), index, %error, "failed to send database snapshot");
            if matches!(error, SendError::Post(PostError::Removed)) {
                link.told_removed();
            }
            link.status.deactivate("snapshot", &error);
            link.metrics.snapshot_send_failures.increment();
            link.lost();
        }
    }
}

/// Bytes of the body that the connection has taken.
type Progress = Arc<AtomicU64>;

async fn post(link: &Link, message: &Message, pinned: Pinned) -> Result<u64, SendError> {
    check_snapshot(message, link.id)?;
    let database = link.host.snapshot_body(message, pinned).await.map_err(SendError::Body)?;
    let head = encode_message_to_bytes(message);
    let total = head.len() as u64 + database.len;

    let progress = Progress::default();
    let taken = progress.clone();
    let pieces = futures_util::stream::once(async move { Ok(head) })
        .chain(database.chunks)
        .inspect_ok(move |piece| {
            taken.fetch_add(piece.len() as u64, Ordering::Relaxed);
        });
    let body = PeerBody::sized(total, pieces.boxed());

    let url = link.urls.pick();
    let result = exchange(link, &url, body, total, &progress).await;
    if result.is_err() {
        link.urls.unreachable(&url);
    }
    check_answer(&result?)?;
    Ok(total)
}

async fn exchange(
    link: &Link,
    url: &crate::url::PeerUrl,
    body: PeerBody,
    total: u64,
    progress: &Progress,
) -> Result<Answer, SendError> {
    let shared = &link.shared;
    let request = shared
        .identity
        .request(Method::POST, url, "/raft/snapshot")
        .header(header::CONTENT_TYPE, "application/octet-stream");
    let mut connection = shared.http.connect(url).await?;
    let sending = connection.send(finish_request(request, body));
    tokio::pin!(sending);

    let stall = shared.timing.snapshot_stall;
    let mut before = 0;
    let mut complete_since = None;
    let response = loop {
        if let Ok(response) = timeout(stall, &mut sending).await {
            break response.map_err(|error| RequestError::Http { url: url.clone(), error })?;
        }
        let taken = progress.load(Ordering::Relaxed);
        if taken >= total {
            let since = *complete_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= shared.timing.snapshot_answer {
                return Err(SendError::NoAnswer(shared.timing.snapshot_answer));
            }
        } else if taken == before {
            return Err(SendError::Stalled(stall));
        }
        before = taken;
    };
    let (head, body) = response.into_parts();
    let body = Chunks::new(body, shared.timing.read).collect(ANSWER_LIMIT).await;
    Ok(Answer { status: head.status, headers: head.headers, body: body.unwrap_or_default() })
}
