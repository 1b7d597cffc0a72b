//! Connections to peers: the trait that everything above dials through, and its plain form.
//!
//! **Invariant:** nothing else in this crate opens a socket, so TLS is another [`Dialer`] over
//! [`connect`].

use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::url::{PeerUrl, Scheme};

/// A connection, whatever is under it.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection that is ready for HTTP/1.1.
pub type BoxedIo = Box<dyn Io>;

/// Opens connections to peers. The caller sets the time limit.
pub trait Dialer: Send + Sync + 'static {
    /// Opens one connection. An error is about this attempt only; the caller tries again, and tries
    /// other URLs.
    fn dial<'a>(&'a self, url: &'a PeerUrl) -> BoxFuture<'a, io::Result<BoxedIo>>;
}

/// Dials without TLS.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainDialer;

/// After this much silence the kernel asks whether the other end is still there, and gives it as
/// much again between the questions, so a dead host ends a connection that waits for an answer.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_PROBES: u32 = 3;

impl Dialer for PlainDialer {
    fn dial<'a>(&'a self, url: &'a PeerUrl) -> BoxFuture<'a, io::Result<BoxedIo>> {
        Box::pin(async move {
            if url.scheme().is_tls() {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!("peer URL {url} needs TLS, and no peer certificates are configured"),
                ));
            }
            connect(url).await
        })
    }
}

/// Connects a socket, on which nothing has been said yet.
pub async fn connect(url: &PeerUrl) -> io::Result<BoxedIo> {
    match url.scheme() {
        Scheme::Http | Scheme::Https => {
            let stream = TcpStream::connect(url.address()).await?;
            stream.set_nodelay(true)?;
            keep_alive(&stream)?;
            Ok(Box::new(stream))
        }
        Scheme::Unix | Scheme::Unixs => Ok(Box::new(UnixStream::connect(url.address()).await?)),
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tls_is_asked_for_in_clear_words() {
        let url = "https://127.0.0.1:1".parse().unwrap();
        let error = PlainDialer.dial(&url).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("https://127.0.0.1:1 needs TLS"), "{error}");
    }
}
