//! Handshakes of accepted connections.
//!
//! Input: a connection of a listener. Output: the stream to speak HTTP on and who the peer is, or
//! nothing and a line in the log as etcd writes it.
//!
//! **Invariants:** a handshake holds up nobody but its own connection; a peer that is slow is cut
//! after [`Options::handshake_timeout`], not counting the time that it waits for its turn; a peer
//! that has sent nothing yet holds neither a turn nor memory of a handshake.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::identity::Identity;
use super::server::{Port, ServerTls};
use super::{addresses, texts};
use crate::Options;
use crate::listen::{Security, Stream};
use crate::timed_io::TimedIo;

/// First byte of a TLS record of a handshake, and of an alert.
const RECORDS: [u8; 2] = [0x16, 0x15];
/// Lines in the log per second about refused connections.
const LINES_PER_SECOND: u32 = 10;
/// How long a refused peer may take to hear of it.
const LINGER: Duration = Duration::from_millis(500);

/// A connection to speak HTTP on.
#[derive(Debug)]
pub(crate) enum Io {
    Plain(TimedIo<Stream>),
    Tls(Box<TlsStream<TimedIo<Stream>>>),
}

impl Io {
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Io::Tls(_))
    }
}

/// Why a connection was refused, and what is known of it.
struct Rejection {
    reason: String,
    /// The peer went away by itself.
    gone: bool,
    server_name: String,
    identity: Option<Arc<Identity>>,
}

impl Rejection {
    fn new(reason: impl Into<String>) -> Self {
        Rejection { reason: reason.into(), gone: false, server_name: String::new(), identity: None }
    }

    fn of(error: &io::Error) -> Self {
        let gone = error.kind() == io::ErrorKind::UnexpectedEof;
        Rejection { gone, ..Rejection::new(texts::reason(error)) }
    }
}

/// Lines of the current second, and how many were left out since the last line.
struct Lines {
    since: Instant,
    written: u32,
    left_out: u64,
}

/// The handshakes of a server.
pub(crate) struct Handshakes {
    timeout: Duration,
    turns: Semaphore,
    write_stall: Option<Duration>,
    lines: Mutex<Lines>,
}

impl Handshakes {
    pub(crate) fn new(options: &Options) -> Self {
        let lines = Lines { since: Instant::now(), written: 0, left_out: 0 };
        Handshakes {
            timeout: options.handshake_timeout,
            turns: Semaphore::new(options.max_handshakes),
            write_stall: options.write_stall,
            lines: Mutex::new(lines),
        }
    }

    /// Makes a connection ready for HTTP; `None` if it was refused.
    pub(crate) async fn secure(
        &self,
        stream: Stream,
        peer: Option<SocketAddr>,
        security: Security,
    ) -> Option<(Io, Option<Arc<Identity>>)> {
        let (tls, plain_too) = match security {
            Security::Plain => {
                return Some((Io::Plain(TimedIo::new(stream, self.write_stall)), None));
            }
            Security::Tls(tls) => (tls, false),
            Security::Either(tls) => (tls, true),
        };
        match self.handshake(stream, peer, &tls, plain_too).await {
            Ok(secured) => Some(secured),
            Err(rejection) => {
                self.report(&rejection, peer, tls.port());
                None
            }
        }
    }

    async fn handshake(
        &self,
        mut stream: Stream,
        peer: Option<SocketAddr>,
        tls: &ServerTls,
        plain_too: bool,
    ) -> Result<(Io, Option<Arc<Identity>>), Rejection> {
        let too_slow =
            || Rejection::new(format!("i/o timeout: no handshake within {:?}", self.timeout));
        let started = Instant::now();
        let first = tokio::time::timeout(self.timeout, stream.first_byte())
            .await
            .map_err(|_| too_slow())?
            .map_err(|error| Rejection::of(&error))?;
        match first {
            None => return Err(Rejection { gone: true, ..Rejection::new("EOF") }),
            Some(byte) if RECORDS.contains(&byte) => {}
            Some(byte) if plain_too && byte.is_ascii_uppercase() => {
                return Ok((Io::Plain(TimedIo::new(stream, self.write_stall)), None));
            }
            Some(_) => {
                // As etcd: no answer, and an end that is not an error for the peer.
                let _ = stream.read(&mut [0; 4096]).await;
                return Err(Rejection::new("tls: first record does not look like a TLS handshake"));
            }
        }
        let spent = started.elapsed();
        let turn = self.turns.acquire().await.expect("the semaphore is never closed");
        let left = self.timeout.saturating_sub(spent);
        let stream =
            tokio::time::timeout(left, self.greet(stream, tls)).await.map_err(|_| too_slow())??;
        // Looking names up may take long, and costs nothing here.
        drop(turn);
        self.admit(stream, peer, tls).await
    }

    /// The handshake itself.
    async fn greet(
        &self,
        stream: Stream,
        tls: &ServerTls,
    ) -> Result<TlsStream<TimedIo<Stream>>, Rejection> {
        let stream = TimedIo::new(stream, self.write_stall);
        let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
        let hello = match (&mut acceptor).await {
            Ok(hello) => hello,
            Err(error) => {
                linger(acceptor.take_io()).await;
                return Err(Rejection::of(&error));
            }
        };
        let server_name = hello.client_hello().server_name().unwrap_or_default().to_owned();
        // What was built from the files as they are now.
        let accepting = hello.into_stream(tls.config()).into_fallible();
        let mut refused = None;
        let accepted = texts::explained(async {
            accepting.await.map_err(|(error, stream)| {
                refused = Some(stream);
                error
            })
        })
        .await;
        match accepted {
            Ok(stream) => Ok(stream),
            Err((error, reason)) => {
                linger(refused).await;
                Err(Rejection { reason, server_name, ..Rejection::of(&error) })
            }
        }
    }

    /// What is checked once the handshake is done.
    async fn admit(
        &self,
        mut stream: TlsStream<TimedIo<Stream>>,
        peer: Option<SocketAddr>,
        tls: &ServerTls,
    ) -> Result<(Io, Option<Arc<Identity>>), Rejection> {
        let session = stream.get_ref().1;
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        let identity = leaf.map(|der| Arc::new(Identity::of(der)));
        if let (true, Some(identity), Some(peer)) = (tls.checks_address(), &identity, peer) {
            let fits = tokio::time::timeout(self.timeout, addresses::check(identity, peer.ip()));
            let fits = fits.await.unwrap_or_else(|_| Err("looking names up took too long".into()));
            if let Err(reason) = fits {
                let server_name = session.server_name().unwrap_or_default().to_owned();
                let _ = tokio::time::timeout(LINGER, stream.shutdown()).await;
                let identity = Some(identity.clone());
                return Err(Rejection { server_name, identity, ..Rejection::new(reason) });
            }
        }
        Ok((Io::Tls(Box::new(stream)), identity))
    }

    fn report(&self, rejection: &Rejection, peer: Option<SocketAddr>, port: Port) {
        let remote = peer.map_or_else(|| "@".to_owned(), |peer| peer.to_string());
        let Rejection { reason, gone, server_name, identity } = rejection;
        if *gone {
            tracing::debug!(
                "remote-addr" = remote,
                "server-name" = server_name,
                error = reason,
                "rejected connection on {port} endpoint"
            );
            return;
        }
        let Some(left_out) = self.next_line() else { return };
        if left_out > 0 {
            tracing::warn!(left_out, "rejected more connections than the log has lines for");
        }
        match identity {
            Some(identity) => tracing::warn!(
                "remote-addr" = remote,
                "server-name" = server_name,
                "ip-addresses" = ?identity.ip_addresses,
                "dns-names" = ?identity.dns_names,
                error = reason,
                "rejected connection on {port} endpoint"
            ),
            None => tracing::warn!(
                "remote-addr" = remote,
                "server-name" = server_name,
                error = reason,
                "rejected connection on {port} endpoint"
            ),
        }
    }

    /// Whether a line may be written now, and how many were left out before it.
    fn next_line(&self) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if lines.since.elapsed() >= Duration::from_secs(1) {
            lines.since = Instant::now();
            lines.written = 0;
        }
        if lines.written == LINES_PER_SECOND {
            lines.left_out += 1;
            return None;
        }
        lines.written += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

/// Lets a refused peer read the alert: closing while it still sends would take that from it.
async fn linger(stream: Option<TimedIo<Stream>>) {
    let Some(mut stream) = stream else { return };
    let drained = async {
        stream.shutdown().await?;
        let mut scrap = [0; 4096];
        for _ in 0..16 {
            if stream.read(&mut scrap).await? == 0 {
                break;
            }
        }
        Ok::<_, io::Error>(())
    };
    let _ = tokio::time::timeout(LINGER, drained).await;
}

macro_rules! each {
    ($io:expr, $inner:ident => $call:expr) => {
        match $io {
            Io::Plain($inner) => $call,
            Io::Tls($inner) => $call,
        }
    };
}

impl AsyncRead for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Io {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write_vectored(cx, bytes))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, inner => inner.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }
}
