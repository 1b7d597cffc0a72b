//! Accepting connections and serving them until shutdown.
//!
//! Input: a [`Listener`] and a [`Handler`]. Output: one handler call per request. HTTP/2 with
//! prior knowledge and HTTP/1.1 are told apart by the first bytes of the connection, within TLS too.
//! Requests whose `:authority` is a URL are answered too (see [`crate::authority`]).
//!
//! **Invariant:** every connection task ends: by itself, by the graceful signal, or at the
//! deadline of [`Server::shutdown`].

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::authority::Mended;
use crate::listen::{Listener, Security, Stream};
use crate::pings::Policed;
use crate::tls::{Handshakes, Identity, Io};

/// Any error of a body or a service.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of every response.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// A body that is known at once.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What is known of a connection; handlers find it in the request's extensions.
#[derive(Clone, Debug)]
pub struct Connection {
    /// The peer's address; `None` on Unix sockets.
    pub peer: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub secure: bool,
    /// Who the peer is, by a certificate that was checked; `None` if none was asked for.
    pub identity: Option<Arc<Identity>>,
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// One request to one response. Must not panic; a failed call answers with a status.
    fn call(
        &self,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>>;
}

/// Limits and timers of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Streams that one HTTP/2 connection may have open.
    pub max_concurrent_streams: u32,
    /// Idle time after which the server pings an HTTP/2 client; `None` never pings.
    pub keepalive_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// Shortest time between two pings of an HTTP/2 client with open streams; clients that ping
    /// more often are cut off. `None` lets them.
    pub ping_min_time: Option<Duration>,
    /// How long the other side of a connection may take none of the bytes that wait for it, before
    /// the connection is cut; `None` waits for as long as the system does.
    pub write_stall: Option<Duration>,
    /// Connections open at the same time; more wait in the kernel's backlog.
    pub max_connections: usize,
    /// How many are open; for who wants to look at it.
    pub open: Arc<AtomicUsize>,
    /// How long a peer may take for the TLS handshake; etcd gives it as long.
    pub handshake_timeout: Duration,
    /// TLS handshakes that run at the same time; more wait for their turn.
    pub max_handshakes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_concurrent_streams: u32::MAX,
            keepalive_interval: Some(Duration::from_secs(2 * 60 * 60)),
            keepalive_timeout: Duration::from_secs(20),
            ping_min_time: None,
            write_stall: None,
            max_connections: 65_536,
            open: Arc::default(),
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 1024,
        }
    }
}

/// Bytes that a client may send ahead on one stream: one full-size request without a round trip.
const STREAM_WINDOW: u32 = 2 << 20;
/// The same for a whole connection.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Header bytes of one request; gRPC metadata of real clients is far below.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Header lines of one HTTP/1 request. Go bounds their bytes alone; hyper holds a table of this
/// many for each request that it reads.
const MAX_HEADER_LINES: usize = 1024;

/// A running server over one or more listeners.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    accepting: JoinSet<()>,
}

impl Server {
    /// Starts serving; must be called inside a tokio runtime.
    pub fn start(listeners: Vec<Listener>, handler: Arc<dyn Handler>, options: Options) -> Self {
        let (stop, stopped) = watch::channel(false);
        let open = options.open.clone();
        let handshakes = Arc::new(Handshakes::new(&options));
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let task = accept_loop(
                listener,
                handler.clone(),
                options.clone(),
                stopped.clone(),
                open.clone(),
                handshakes.clone(),
            );
            accepting.spawn(task);
        }
        Server { stop, accepting }
    }

    /// Stops accepting, lets running requests end, and cuts what is left at the deadline.
    pub async fn shutdown(mut self, deadline: Duration) {
        let _ = self.stop.send(true);
        let drained = async { while self.accepting.join_next().await.is_some() {} };
        if tokio::time::timeout(deadline, drained).await.is_err() {
            self.accepting.shutdown().await;
        }
    }
}

async fn accept_loop(
    listener: Listener,
    handler: Arc<dyn Handler>,
    options: Options,
    mut stopped: watch::Receiver<bool>,
    open: Arc<AtomicUsize>,
    handshakes: Arc<Handshakes>,
) {
    let builder = Arc::new(builder(&options));
    let ping_min_time = options.ping_min_time;
    let server = Arc::new(Served { builder, handler, handshakes, ping_min_time });
    let for_connections = stopped.clone();
    // Dropping the set cuts the connections that did not end by themselves.
    let mut connections = JoinSet::new();
    loop {
        let room = open.load(Ordering::Relaxed) < options.max_connections;
        tokio::select! {
            _ = stop_asked(&mut stopped) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, peer)) => {
                    let task = serve_stream(
                        server.clone(),
                        stream,
                        peer,
                        listener.security.clone(),
                        for_connections.clone(),
                        Counted::new(open.clone()),
                    );
                    connections.spawn(task);
                }
                // Out of file descriptors, most likely: others must end first.
                Err(error) => {
                    tracing::warn!(error = %error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Resolves when the server is told to stop, or is gone.
async fn stop_asked(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Counts a connection while it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(open: Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Counted(open)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn builder(options: &Options) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(30))
        .max_headers(MAX_HEADER_LINES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.max_concurrent_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADER_BYTES)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout);
    builder
}

/// What the connections of a listener share.
struct Served {
    builder: Arc<auto::Builder<TokioExecutor>>,
    handler: Arc<dyn Handler>,
    handshakes: Arc<Handshakes>,
    ping_min_time: Option<Duration>,
}

async fn serve_stream(
    server: Arc<Served>,
    stream: Stream,
    peer: Option<SocketAddr>,
    security: Security,
    mut stopped: watch::Receiver<bool>,
    _counted: Counted,
) {
    let secured = tokio::select! {
        secured = server.handshakes.secure(stream, peer, security) => secured,
        _ = stop_asked(&mut stopped) => return,
    };
    let Some((io, identity)) = secured else { return };
    let connection = Connection { peer, secure: io.is_tls(), identity };
    serve_connection(server, io, connection, stopped).await;
}

async fn serve_connection(
    server: Arc<Served>,
    io: Io,
    connection: Connection,
    mut stopped: watch::Receiver<bool>,
) {
    let handler = server.handler.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        let answer = match host_fault(&request) {
            Some(fault) => Err(refused(fault)),
            None => Ok(handler.call(request)),
        };
        async move {
            Ok::<_, std::convert::Infallible>(match answer {
                Ok(answer) => answer.await,
                Err(refusal) => refusal,
            })
        }
    });
    let io = TokioIo::new(Policed::new(Mended::new(io), server.ping_min_time));
    let serving = server.builder.serve_connection_with_upgrades(io, service);
    tokio::pin!(serving);
    let mut ended = None;
    tokio::select! {
        result = serving.as_mut() => ended = Some(result),
        _ = stop_asked(&mut stopped) => {}
    }
    let ended = match ended {
        Some(result) => result,
        None => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %error, "connection ended with an error");
    }
}

/// Why Go's server does not take a request of HTTP/1.1 as it names its host, in Go's words.
fn host_fault<B>(request: &Request<B>) -> Option<&'static str> {
    if request.version() != Version::HTTP_11 {
        return None;
    }
    match request.headers().get_all(header::HOST).iter().count() {
        0 if request.method() != Method::CONNECT => {
            Some("400 Bad Request: missing required Host header")
        }
        0 | 1 => None,
        _ => Some("400 Bad Request"),
    }
}

fn refused(fault: &'static str) -> Response<Body> {
    let mut response = Response::new(full(fault));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_urls;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    struct Echo;
    impl Handler for Echo {
        fn call(
            &self,
            request: Request<Incoming>,
        ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
            Box::pin(async move { Response::new(full(request.uri().path().to_string())) })
        }
    }

    async fn get(address: SocketAddr) -> String {
        exchange(address, "GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await
    }

    /// Sends a request and reads until the other side closes.
    async fn exchange(address: SocketAddr, request: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn heads_of_http1_are_taken_and_refused_as_go_does() {
        let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
        let listener = Listener::bind(url, false).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(vec![listener], Arc::new(Echo), Options::default());
        let missing = exchange(address, "GET /a HTTP/1.1\r\n\r\n").await;
        assert!(missing.starts_with("HTTP/1.1 400 "), "{missing}");
        assert!(
            missing.ends_with("\r\n\r\n400 Bad Request: missing required Host header"),
            "{missing}"
        );
        let twice = exchange(address, "GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").await;
        assert!(twice.ends_with("\r\n\r\n400 Bad Request"), "{twice}");
        assert!(exchange(address, "GET /old HTTP/1.0\r\n\r\n").await.ends_with("/old"));
        let many: String = (0..1000).map(|i| format!("X-{i}: v\r\n")).collect();
        let many = format!("GET /many HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{many}\r\n");
        let many = exchange(address, &many).await;
        assert!(many.ends_with("/many"), "{many}");
        server.shutdown(Duration::from_secs(1)).await;
    }

    #[tokio::test]
    async fn garbage_on_one_connection_leaves_others_alone() {
        let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
        let listener = Listener::bind(url, false).unwrap();
        let address = listener.local_addr().unwrap();
        let options = Options::default();
        let open = options.open.clone();
        let server = Server::start(vec![listener], Arc::new(Echo), options);
        let mut garbage = tokio::net::TcpStream::connect(address).await.unwrap();
        garbage.write_all(&[0xff; 4096]).await.unwrap();
        assert!(get(address).await.ends_with("/hello"));
        server.shutdown(Duration::from_secs(1)).await;
        assert_eq!(open.load(Ordering::Relaxed), 0);
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }

    #[tokio::test]
    async fn a_url_as_authority_is_answered() {
        use crate::authority::tests::{frame, request};
        let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
        let listener = Listener::bind(url, false).unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::start(vec![listener], Arc::new(Echo), Options::default());
        for (authority, huffman) in [
            ("http://127.0.0.1:2379", true),
            ("http://127.0.0.1:2379", false),
            ("unix:///run/x.sock", true),
            ("127.0.0.1:2379", true),
        ] {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
            // In two writes, for the server to see a part if it is quick.
            let headers = frame(1, 0x5, &request(authority, huffman));
            let (first, second) = headers.split_at(20);
            stream.write_all(first).await.unwrap();
            stream.write_all(second).await.unwrap();
            // The first frame of the stream: a reset if the authority was refused.
            let (kind, payload) = loop {
                let mut header = [0; 9];
                stream.read_exact(&mut header).await.unwrap();
                let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
                let mut payload = vec![0; len as usize];
                stream.read_exact(&mut payload).await.unwrap();
                if header[8] == 1 {
                    break (header[3], payload);
                }
            };
            assert_eq!((kind, payload[0]), (1, 0x88), "{authority}: HEADERS with :status 200");
        }
        server.shutdown(Duration::from_secs(1)).await;
    }

    /// Answers without end; tells when nobody wants the answer any more.
    struct Endless(tokio::sync::mpsc::UnboundedSender<()>);
    impl Handler for Endless {
        fn call(
            &self,
            _request: Request<Incoming>,
        ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
            struct Told(tokio::sync::mpsc::UnboundedSender<()>);
            impl Drop for Told {
                fn drop(&mut self) {
                    let _ = self.0.send(());
                }
            }
            let told = Told(self.0.clone());
            let chunks = futures_util::stream::repeat_with(move || {
                let _ = &told;
                Ok(hyper::body::Frame::data(Bytes::from(vec![0; 64 << 10])))
            });
            Box::pin(async {
                Response::new(http_body_util::StreamBody::new(chunks).boxed_unsync())
            })
        }
    }

    #[tokio::test]
    async fn a_connection_whose_other_side_takes_nothing_is_cut() {
        let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
        let listener = Listener::bind(url, false).unwrap();
        let address = listener.local_addr().unwrap();
        let (ends, mut ended) = tokio::sync::mpsc::unbounded_channel();
        let options =
            Options { write_stall: Some(Duration::from_millis(200)), ..Options::default() };
        let server = Server::start(vec![listener], Arc::new(Endless(ends)), options);
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        // One that takes its time, but takes something, is kept.
        let mut some = vec![0; 1 << 20];
        for _ in 0..8 {
            stream.read_exact(&mut some).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(ended.try_recv().is_err());
        let cut = tokio::time::timeout(Duration::from_secs(10), ended.recv()).await;
        assert_eq!(cut.expect("the stalled connection is cut"), Some(()));
        server.shutdown(Duration::from_secs(1)).await;
    }

    #[tokio::test]
    async fn a_taken_port_says_what_to_do() {
        let url = &parse_urls("http://127.0.0.1:0").unwrap()[0];
        let first = Listener::bind(url, false).unwrap();
        let taken = format!("http://{}", first.local_addr().unwrap());
        let error = Listener::bind(&parse_urls(&taken).unwrap()[0], false).unwrap_err().to_string();
        assert!(error.contains("another process serves there"), "{error}");
    }

    #[tokio::test]
    async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let url = &parse_urls(&format!("unix://{}", path.display())).unwrap()[0];
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Listener::bind(url, false).unwrap();
        assert!(Listener::bind(url, false).is_err());
        drop(live);
        assert!(!path.exists());
    }
}
