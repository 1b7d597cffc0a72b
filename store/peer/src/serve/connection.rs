//! Serving one accepted connection of the peer port.

use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::PeerService;
use crate::timed_io::TimedIo;

/// How long the head of a request may take, and how long a connection may stay unused.
const HEAD: Duration = Duration::from_secs(30);

/// Answers requests on an accepted connection (after TLS, where there is TLS) until it ends.
/// Peers speak HTTP/1.1 only.
///
/// A connection whose other side takes no bytes is given up after the time for writes, so streams
/// to hosts that vanished do not stay behind.
pub async fn serve_connection<T>(io: T, service: PeerService) -> hyper::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limit = service.peers.shared().timing.write;
    let io = TokioIo::new(TimedIo::new(io, limit));
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .serve_connection(io, service)
        .await
}
