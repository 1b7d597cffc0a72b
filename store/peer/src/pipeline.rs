//! Messages as single POST requests: the way to a peer that has no stream open to us (yet), and the
//! only way to one that we know from its own requests alone.
//!
//! **Invariant:** at most [`WORKERS`] requests are on their way and [`QUEUE`] messages wait. Their
//! order is not kept, which raft does not need.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode, header};
use mainstay_proto::raftpb::Message;
use prost::Message as _;
use thiserror::Error;
use tokio::sync::{Mutex, mpsc};

use crate::body::PeerBody;
use crate::http_client::{Answer, RequestError, finish_request};
use crate::link::Link;
use crate::tasks::TaskGuard;

/// Requests on their way at the same time.
const WORKERS: usize = 4;
/// Messages that wait.
const QUEUE: usize = 64;
/// Longest answer that is read.
const ANSWER_LIMIT: u64 = 64 << 10;
/// A slow link gets more time for a large message: this many bytes a second are expected.
const SLOWEST: u64 = 256 << 10;

/// Why a POST to a peer failed.
#[derive(Debug, Error)]
pub(crate) enum PostError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("this member has been removed from the cluster")]
    Removed,
    #[error("refused: {0}")]
    Refused(String),
    #[error("unexpected http status {0}")]
    Status(StatusCode),
}

/// Reads the answer to a message or a snapshot as etcd's peers mean it.
pub(crate) fn check_answer(answer: &Answer) -> Result<(), PostError> {
    match answer.status {
        StatusCode::NO_CONTENT => Ok(()),
        StatusCode::FORBIDDEN => Err(PostError::Removed),
        StatusCode::PRECONDITION_FAILED => Err(PostError::Refused(answer.text())),
        other => Err(PostError::Status(other)),
    }
}

pub(crate) struct Pipeline {
    queue: mpsc::Sender<Box<Message>>,
    _workers: Vec<TaskGuard>,
}

impl Pipeline {
    pub(crate) fn start(link: &Arc<Link>) -> Self {
        let (queue, messages) = mpsc::channel(QUEUE);
        let messages = Arc::new(Mutex::new(messages));
        let worker =
            |_| TaskGuard::spawn(&link.shared.runtime, work(link.clone(), messages.clone()));
        Pipeline { queue, _workers: (0..WORKERS).map(worker).collect() }
    }

    /// Queues a message, or gives it back when there is no room.
    pub(crate) fn try_send(&self, message: Box<Message>) -> Result<(), Box<Message>> {
        self.queue.try_send(message).map_err(|error| error.into_inner())
    }
}

async fn work(link: Arc<Link>, messages: Arc<Mutex<mpsc::Receiver<Box<Message>>>>) {
    loop {
        let message = messages.lock().await.recv().await;
        let Some(message) = message else { return };
        match post(&link, &message).await {
            Ok(bytes) => {
                link.status.activate();
                link.metrics.sent_bytes.add(bytes);
            }
            Err(error) => {
                if matches!(error, PostError::Removed) {
                    link.told_removed();
                }
                link.status.deactivate("pipeline", &error);
                link.lost();
            }
        }
    }
}

async fn post(link: &Link, message: &Message) -> Result<u64, PostError> {
    let shared = &link.shared;
    let body = bytes::Bytes::from(message.encode_to_vec());
    let len = body.len() as u64;
    let url = link.urls.pick();
    let build = || {
        let head = shared
            .identity
            .request(Method::POST, &url, "/raft")
            .header(header::CONTENT_TYPE, "application/protobuf");
        finish_request(head, PeerBody::full(body.clone()))
    };
    let within = shared.timing.answer + Duration::from_secs(len / SLOWEST);
    let answer = shared.http.request(&url, build, ANSWER_LIMIT, within).await;
    let sent = answer.map_err(PostError::from).and_then(|answer| check_answer(&answer));
    if sent.is_err() {
        link.urls.unreachable(&url);
    }
    sent.map(|()| len)
}
