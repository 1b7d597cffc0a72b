//! HTTP/1.1 requests to peers over a [`Dialer`], with a small store of idle connections.
//!
//! **Invariant:** a connection lives no longer than its owner: dropping a [`Connection`] ends the
//! task that drives it and closes the socket.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, request};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::body::{Chunks, CollectError, PeerBody};
use crate::dial::Dialer;
use crate::tasks::TaskGuard;
use crate::url::PeerUrl;

/// Idle connections kept for one URL.
const IDLE_PER_URL: usize = 8;
/// How long an idle connection is trusted: real etcd closes one that is silent for 5 s.
const IDLE_FOR: Duration = Duration::from_secs(4);

/// Why a request has no answer.
#[derive(Debug, Error)]
pub enum RequestError {
    /// No connection.
    #[error("failed to dial {url}: {error}")]
    Dial {
        /// Where to.
        url: PeerUrl,
        /// Why not.
        error: io::Error,
    },
    /// The connection broke, or what came back is no HTTP.
    #[error("request to {url} failed: {error}")]
    Http {
        /// Where to.
        url: PeerUrl,
        /// What happened.
        error: hyper::Error,
    },
    /// The answer broke off.
    #[error("answer of {url} broke off: {error}")]
    Answer {
        /// Where to.
        url: PeerUrl,
        /// What happened.
        error: io::Error,
    },
    /// No answer in time.
    #[error("no answer from {url} within {after:?}")]
    Timeout {
        /// Where to.
        url: PeerUrl,
        /// How long it was waited for.
        after: Duration,
    },
    /// The answer is larger than any proper one.
    #[error("answer of {url} exceeds {limit} bytes")]
    TooLarge {
        /// Where to.
        url: PeerUrl,
        /// Bytes allowed.
        limit: u64,
    },
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    /// The body as a text for people: one line.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim_end().to_owned()
    }
}

/// One connection to a peer.
pub(crate) struct Connection {
    sender: SendRequest<PeerBody>,
    _driver: TaskGuard,
}

impl Connection {
    /// Sends a request. The connection must stay alive until the answer's body is read.
    pub(crate) async fn send(
        &mut self,
        request: Request<PeerBody>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }
}

/// Opens connections and keeps idle ones.
pub(crate) struct HttpClient {
    dialer: Arc<dyn Dialer>,
    dial_timeout: Duration,
    runtime: Handle,
    idle: Mutex<HashMap<PeerUrl, Vec<(Connection, Instant)>>>,
}

impl HttpClient {
    pub(crate) fn new(dialer: Arc<dyn Dialer>, dial_timeout: Duration, runtime: Handle) -> Self {
        HttpClient { dialer, dial_timeout, runtime, idle: Mutex::new(HashMap::new()) }
    }

    /// A fresh connection.
    pub(crate) async fn connect(&self, url: &PeerUrl) -> Result<Connection, RequestError> {
        let failed = |error| RequestError::Dial { url: url.clone(), error };
        let late = || {
            let text = format!("no connection within {:?}", self.dial_timeout);
            io::Error::new(io::ErrorKind::TimedOut, text)
        };
        let dialed = timeout(self.dial_timeout, self.dialer.dial(url)).await;
        let io = dialed.map_err(|_| failed(late()))?.map_err(failed)?;
        let (sender, driver) = handshake(TokioIo::new(io))
            .await
            .map_err(|error| RequestError::Http { url: url.clone(), error })?;
        let driver = TaskGuard::spawn(&self.runtime, async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "peer connection ended");
            }
        });
        Ok(Connection { sender, _driver: driver })
    }

    /// Sends a request and reads the whole answer, on an idle connection if there is one.
    /// `build` is called again when an idle connection turns out to be closed before the request
    /// was on its way, so it is sent at most once.
    pub(crate) async fn request(
        &self,
        url: &PeerUrl,
        build: impl Fn() -> Request<PeerBody>,
        limit: u64,
        within: Duration,
    ) -> Result<Answer, RequestError> {
        let exchange = async {
            while let Some(mut connection) = self.take_idle(url) {
                match connection.sender.try_send_request(build()).await {
                    Ok(response) => {
                        return self.finish(url, connection, response, limit, within).await;
                    }
                    Err(mut error) => {
                        // A request that comes back was not sent: the connection was closed
                        // while idle.
                        if error.take_message().is_none() {
                            let error = error.into_error();
                            return Err(RequestError::Http { url: url.clone(), error });
                        }
                    }
                }
            }
            let mut connection = self.connect(url).await?;
            let response = connection
                .send(build())
                .await
                .map_err(|error| RequestError::Http { url: url.clone(), error })?;
            self.finish(url, connection, response, limit, within).await
        };
        match timeout(within, exchange).await {
            Ok(result) => result,
            Err(_) => Err(RequestError::Timeout { url: url.clone(), after: within }),
        }
    }

    async fn finish(
        &self,
        url: &PeerUrl,
        connection: Connection,
        response: Response<Incoming>,
        limit: u64,
        within: Duration,
    ) -> Result<Answer, RequestError> {
        let (head, body) = response.into_parts();
        let body = match Chunks::new(body, within).collect(limit).await {
            Ok(body) => body,
            Err(CollectError::TooLarge(limit)) => {
                return Err(RequestError::TooLarge { url: url.clone(), limit });
            }
            Err(CollectError::Io(error)) => {
                return Err(RequestError::Answer { url: url.clone(), error });
            }
        };
        self.put_idle(url, connection);
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    fn take_idle(&self, url: &PeerUrl) -> Option<Connection> {
        let mut idle = self.lock();
        let connections = idle.get_mut(url)?;
        while let Some((connection, since)) = connections.pop() {
            if since.elapsed() < IDLE_FOR && connection.sender.is_ready() {
                return Some(connection);
            }
        }
        idle.remove(url);
        None
    }

    fn put_idle(&self, url: &PeerUrl, connection: Connection) {
        if connection.sender.is_closed() {
            return;
        }
        let mut idle = self.lock();
        // Old ones are swept here, so that URLs that are no longer used hold no sockets for long.
        idle.retain(|_, connections| {
            connections.retain(|(connection, since)| {
                since.elapsed() < IDLE_FOR && !connection.sender.is_closed()
            });
            !connections.is_empty()
        });
        let connections = idle.entry(url.clone()).or_default();
        if connections.len() < IDLE_PER_URL {
            connections.push((connection, Instant::now()));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PeerUrl, Vec<(Connection, Instant)>>> {
        self.idle.lock().expect("no code panics while it holds the idle connections")
    }
}

/// Ends a request whose parts are known to be sound.
pub(crate) fn finish_request(builder: request::Builder, body: PeerBody) -> Request<PeerBody> {
    builder.body(body).expect("paths and headers of peer requests are valid")
}
