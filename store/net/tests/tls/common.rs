//! A server that tells what it knows of a connection, clients, and the log.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use mainstay_net::tls::{ClientTls, Port, ServerTls, TlsOptions};
use mainstay_net::{Body, Connection, Handler, Listener, Options, Server, full, parse_urls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Answers with the names of the client's certificate.
struct Names;

impl Handler for Names {
    fn call(
        &self,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
        let connection = request.extensions().get::<Connection>().unwrap();
        let text = match &connection.identity {
            Some(identity) => {
                format!("{} {:?}", identity.common_name, identity.dns_names)
            }
            None => format!("nobody, secure: {}", connection.secure),
        };
        Box::pin(async move { Response::new(full(text)) })
    }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) server: Server,
}

/// Answers without end.
pub(crate) struct Endless;

impl Handler for Endless {
    fn call(
        &self,
        _request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
        let chunks = futures_util::stream::repeat_with(|| Ok(Frame::data(vec![0; 1 << 16].into())));
        Box::pin(async { Response::new(StreamBody::new(chunks).boxed_unsync()) })
    }
}

/// A listener on a free port, for one to change.
pub(crate) fn listener() -> Listener {
    Listener::bind(&parse_urls("https://127.0.0.1:0").unwrap()[0], false).unwrap()
}

pub(crate) fn serve_on(listener: Listener, options: Options) -> Running {
    let address = listener.local_addr().unwrap();
    Running { address, server: Server::start(vec![listener], Arc::new(Names), options) }
}

/// Serves TLS; the options must do.
pub(crate) fn serve(options: &TlsOptions, port: Port) -> Running {
    let tls = ServerTls::load(options, port).unwrap();
    serve_on(listener().with_tls(tls), Options::default())
}

/// One request over HTTP/1.1.
pub(crate) async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(body.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no answer")),
    }
}

/// One request with the client side of this crate.
pub(crate) async fn get(running: &Running, options: &TlsOptions) -> io::Result<String> {
    let tls = ClientTls::load(options).unwrap();
    let stream = TcpStream::connect(running.address).await?;
    ask(tls.connect("127.0.0.1", stream).await?).await
}

/// The error of [`get`].
pub(crate) async fn refused(running: &Running, options: &TlsOptions) -> String {
    get(running, options).await.expect_err("the client is refused").to_string()
}

/// Versions that a plain client offers.
pub(crate) type Versions = &'static [&'static SupportedProtocolVersion];

/// A client of the library alone, for what the client side of this crate does not offer.
pub(crate) fn plain_client(
    ca: &Path,
    own: Option<(&Path, &Path)>,
    versions: Versions,
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

pub(crate) async fn dial(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config.clone()).connect(name, stream).await
}

/// What is logged on this thread while it lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    pub(crate) fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Waits for a text in the log; the tasks that write it run on this thread.
    pub(crate) async fn wait_for(&self, text: &str) {
        let found = async {
            while !self.text().contains(text) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(10), found).await;
        assert!(found.is_ok(), "{text:?} is not in the log:\n{}", self.text());
    }
}
