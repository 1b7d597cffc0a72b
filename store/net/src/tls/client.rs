//! TLS of connections to other servers.
//!
//! Input: [`TlsOptions`] and a connected stream. Output: an encrypted stream whose errors say what
//! the other side objected to.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::sign::SingleCertAndKey;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;

use super::error::TlsError;
use super::options::TlsOptions;
use super::reload::{Contents, Reloading};
use super::trust::{self, Trust};
use super::verify::{Checks, ServerCheck};
use super::{files, provider, texts};

/// How long a handshake may take; Go's clients of other members wait as long.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// TLS of connections to other servers; clones are the same TLS.
#[derive(Clone, Debug)]
pub struct ClientTls {
    config: Arc<Reloading<ClientConfig>>,
    server_name: Option<String>,
}

struct Recipe {
    options: TlsOptions,
    provider: Arc<CryptoProvider>,
    pair: Option<(PathBuf, PathBuf)>,
    ca: Option<PathBuf>,
    /// What is negotiated by ALPN.
    protocols: Vec<Vec<u8>>,
}

impl ClientTls {
    /// Reads all files. Without a trusted CA servers are checked with the system's CAs.
    pub fn load(options: &TlsOptions) -> Result<Self, TlsError> {
        Self::load_for(options, &[])
    }

    /// The same for connections on which one of these protocols is spoken.
    pub fn load_for(options: &TlsOptions, protocols: &[&str]) -> Result<Self, TlsError> {
        options.check()?;
        let pair = options.client_pair()?;
        let ca = options.trusted_ca_file.clone().or_else(trust::of_system);
        let mut paths = Vec::new();
        if let Some((cert, key)) = &pair {
            paths.extend([cert.clone(), key.clone()]);
        }
        paths.extend(ca.clone());
        let provider = provider(&options.protocol);
        let protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let recipe = Recipe { options: options.clone(), provider, pair, ca, protocols };
        let config = Reloading::new(paths, move |contents| recipe.build(contents))?;
        Ok(ClientTls { config: Arc::new(config), server_name: options.server_name.clone() })
    }

    /// Encrypts a connection to a host: a name, or an address with or without brackets.
    ///
    /// With TLS 1.3 the other side's refusal of our own certificate comes only with the first
    /// read of the stream.
    pub async fn connect<S>(&self, host: &str, stream: S) -> io::Result<ClientStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = self.server_name.as_deref().unwrap_or(host);
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("tls: {host:?} is neither a host name nor an address"),
            )
        })?;
        let handshake = TlsConnector::from(self.config.current()).connect(name, stream);
        match tokio::time::timeout(HANDSHAKE, texts::explained(handshake)).await {
            Ok(Ok(stream)) => Ok(ClientStream(Box::new(stream))),
            Ok(Err((error, text))) => Err(io::Error::new(error.kind(), text)),
            Err(_) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "net/http: TLS handshake timeout"))
            }
        }
    }
}

impl Recipe {
    fn build(&self, contents: &Contents) -> Result<ClientConfig, TlsError> {
        let options = &self.options;
        let trust = match &self.ca {
            Some(ca) if options.trusted_ca_file.is_some() => Trust::of_file(contents.of(ca))?,
            Some(ca) => Trust::of_system(contents.of(ca))?,
            None => Trust::nobody(),
        };
        let mut checks = Checks::new(trust, &self.provider);
        checks.allowed_cns = options.allowed_cns.clone();
        checks.allowed_hostnames = options.allowed_hostnames.clone();
        let skip = options.insecure_skip_verify || options.self_signed;
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&options.protocol.versions())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerCheck { checks, skip }));
        let mut config = match &self.pair {
            Some((cert, key)) => {
                let certified =
                    files::certified_key(contents.of(cert), contents.of(key), &self.provider)?;
                files::warn_of_dates(cert, &certified);
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
            None => builder.with_no_client_auth(),
        };
        // A resumed session would check the server's certificate no more.
        config.resumption = Resumption::disabled();
        config.alpn_protocols = self.protocols.clone();
        Ok(config)
    }
}

/// An encrypted connection to a server.
#[derive(Debug)]
pub struct ClientStream<S>(Box<tokio_rustls::client::TlsStream<S>>);

impl<S> ClientStream<S> {
    /// The stream below.
    pub fn get_ref(&self) -> &S {
        self.0.get_ref().0
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer).map_err(texts::reworded)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes).map_err(texts::reworded)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bytes).map_err(texts::reworded)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx).map_err(texts::reworded)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx).map_err(texts::reworded)
    }
}
