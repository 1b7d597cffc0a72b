//! Bound sockets: TCP and Unix, behind one accept.
//!
//! Input: a [`ListenUrl`], and TLS where it asks for that. Output: accepted [`Stream`]s.
//! **Invariant:** a Unix socket file that this process made is removed again when its listener goes.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

use crate::tls::ServerTls;
use crate::url::{ListenUrl, Scheme};

/// How many connections the kernel may hold before they are accepted.
const BACKLOG: u32 = 4096;

/// Why a URL could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address is in use, not of this machine, or may not be bound.
    #[error("listen {network} {address}: bind: {source}; {advice}")]
    Bind {
        /// `tcp` or `unix`.
        network: &'static str,
        /// Host and port, or the path.
        address: String,
        /// What the system said.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// The URL asks for TLS, and there is no certificate for it.
    #[error(
        "TLS key/cert (--cert-file, --key-file) must be provided for client url {0} with HTTPS scheme"
    )]
    NoTls(ListenUrl),
    /// The same for peers and metrics.
    #[error(
        "cannot listen on TLS for {0}: KeyFile and CertFile are not presented; name them with \
         --cert-file and --key-file, and for peers with --peer-cert-file and --peer-key-file"
    )]
    NoPeerTls(ListenUrl),
}

fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process serves there: stop it, or choose another port with the listen flag"
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not bind it: use a port above 1023 or a directory that is writable"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: listen on one that `ip address` shows, or on 0.0.0.0"
        }
        _ => "check the listen URL",
    }
}

/// A bound socket, and how its connections are spoken on.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    pub(crate) security: Security,
}

#[derive(Debug)]
enum Socket {
    /// TCP.
    Tcp(TcpListener),
    /// A Unix socket and its file.
    Unix(UnixListener, PathBuf),
}

/// Whether connections are encrypted.
#[derive(Clone, Debug)]
pub(crate) enum Security {
    Plain,
    Tls(ServerTls),
    /// The first byte of each connection tells.
    Either(ServerTls),
}

impl Listener {
    /// Binds the URL; connections are not encrypted unless [`Listener::with_tls`] says so.
    pub fn bind(url: &ListenUrl, reuse_port: bool) -> Result<Self, BindError> {
        let socket = match url.scheme {
            Scheme::Http | Scheme::Https => Self::bind_tcp(url, reuse_port),
            Scheme::Unix | Scheme::Unixs => Self::bind_unix(url),
        }?;
        Ok(Listener { socket, security: Security::Plain })
    }

    /// Binds the URLs of the client port. Those of `https` and `unixs` speak TLS, and an address
    /// that is named with and without TLS speaks both, as in etcd.
    pub fn bind_clients(
        urls: &[ListenUrl],
        tls: Option<&ServerTls>,
        reuse_port: bool,
    ) -> Result<Vec<Self>, BindError> {
        if let (None, Some(url)) = (tls, urls.iter().find(|url| url.is_tls())) {
            return Err(BindError::NoTls(url.clone()));
        }
        let same = |a: &ListenUrl, b: &ListenUrl| (&a.host, a.port) == (&b.host, b.port);
        let mut listeners = Vec::new();
        for (at, url) in urls.iter().enumerate() {
            // Port 0 is another one each time.
            let named_before =
                |before: &ListenUrl| same(before, url) && before.is_tls() != url.is_tls();
            let fixed = url.port != 0 || matches!(url.scheme, Scheme::Unix | Scheme::Unixs);
            if fixed && urls[..at].iter().any(named_before) {
                continue;
            }
            let plain = urls.iter().any(|other| fixed && same(other, url) && !other.is_tls());
            let secure = url.is_tls()
                || urls.iter().any(|other| fixed && same(other, url) && other.is_tls());
            let listener = Self::bind(url, reuse_port)?;
            listeners.push(match tls {
                Some(tls) if secure && plain => listener.with_tls_or_plain(tls.clone()),
                Some(tls) if secure => listener.with_tls(tls.clone()),
                _ => listener,
            });
        }
        Ok(listeners)
    }

    /// Binds the URLs of the peer port, or of metrics. Those of `https` and `unixs` speak TLS.
    pub fn bind_each(
        urls: &[ListenUrl],
        tls: Option<&ServerTls>,
        reuse_port: bool,
    ) -> Result<Vec<Self>, BindError> {
        let bind = |url: &ListenUrl| match tls {
            None if url.is_tls() => Err(BindError::NoPeerTls(url.clone())),
            Some(tls) if url.is_tls() => Ok(Self::bind(url, reuse_port)?.with_tls(tls.clone())),
            _ => Self::bind(url, reuse_port),
        };
        urls.iter().map(bind).collect()
    }

    /// Every connection speaks TLS.
    pub fn with_tls(self, tls: ServerTls) -> Self {
        Listener { security: Security::Tls(tls), ..self }
    }

    /// Connections may speak TLS.
    pub fn with_tls_or_plain(self, tls: ServerTls) -> Self {
        Listener { security: Security::Either(tls), ..self }
    }

    fn bind_tcp(url: &ListenUrl, reuse_port: bool) -> Result<Socket, BindError> {
        let address = format!("{}:{}", url.host, url.port);
        let fail = |source: io::Error| BindError::Bind {
            network: "tcp",
            address: address.clone(),
            advice: advice(&source),
            source,
        };
        // `localhost` names 127.0.0.1 first, as clients that dial it expect.
        let mut addresses: Vec<SocketAddr> =
            (url.host.as_str(), url.port).to_socket_addrs().map_err(fail)?.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let first = addresses.first().copied().ok_or_else(|| {
            fail(io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address"))
        })?;
        let socket = if first.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() };
        let bind = |socket: TcpSocket| -> io::Result<TcpListener> {
            // A restarted server must not wait for connections of its former life.
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(reuse_port)?;
            socket.bind(first)?;
            socket.listen(BACKLOG)
        };
        socket.and_then(bind).map(Socket::Tcp).map_err(fail)
    }

    fn bind_unix(url: &ListenUrl) -> Result<Socket, BindError> {
        let path = PathBuf::from(&url.host);
        let bound = match UnixListener::bind(&path) {
            // A file without a listener is left over from a killed process.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match std::os::unix::net::UnixStream::connect(&path) {
                    Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
                    }
                    _ => Err(error),
                }
            }
            other => other,
        };
        bound.map(|listener| Socket::Unix(listener, path)).map_err(|source| BindError::Bind {
            network: "unix",
            address: url.host.clone(),
            advice: advice(&source),
            source,
        })
    }

    /// The bound TCP address; `None` for a Unix socket.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(listener) => listener.local_addr().ok(),
            Socket::Unix(..) => None,
        }
    }

    /// The next connection, with the peer's address where it has one.
    pub(crate) async fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Small answers must not wait for a full segment.
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Some(address)))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Stream::Unix(stream), None))
            }
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// An accepted connection.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix socket.
    Unix(UnixStream),
}

macro_rules! each {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
        }
    };
}

impl Stream {
    /// Waits for the first byte and leaves it there; `None` at the end of the stream.
    pub(crate) async fn first_byte(&self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        let peeked = each!(self, inner => {
            inner
                .async_io(Interest::READABLE, || {
                    let (_, count) = recv(inner, &mut byte, RecvFlags::PEEK)?;
                    Ok(count)
                })
                .await?
        });
        Ok((peeked > 0).then_some(byte[0]))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self.get_mut(), inner => Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        each!(self, inner => inner.is_write_vectored())
    }
}
