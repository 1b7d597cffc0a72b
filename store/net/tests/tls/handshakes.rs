//! Versions, suites, protocols, and peers that do not shake hands.

use std::time::{Duration, Instant};

use mainstay_net::tls::{Port, Protocol, ServerTls, TlsOptions};
use mainstay_net::{Listener, Options, parse_urls};
use std::sync::Arc;

use mainstay_net::Server;
use mainstay_net::tls::ClientTls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::common::{Endless, Log, ask, dial, get, listener, plain_client, serve, serve_on};
use crate::pki::{Ca, Leaf, OptionsOf as _};

static TLS12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
static TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];
static BOTH: &[&rustls::SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

fn open(ca: &Ca, min: &str, max: &str, suites: &[&str]) -> TlsOptions {
    let suites: Vec<_> = suites.iter().map(|name| (*name).to_owned()).collect();
    TlsOptions {
        trusted_ca_file: None,
        protocol: Protocol::parse(min, max, &suites).unwrap(),
        ..ca.options("server", Leaf::default())
    }
}

#[tokio::test]
async fn versions_are_bounded() {
    let ca = Ca::new("ca");
    for (min, max, good, bad) in [("TLS1.3", "", TLS13, TLS12), ("TLS1.2", "TLS1.2", TLS12, TLS13)]
    {
        let running = serve(&open(&ca, min, max, &[]), Port::Client);
        let client = |versions| plain_client(&ca.file, None, versions, &[]);
        ask(dial(running.address, &client(good)).await.unwrap()).await.unwrap();
        let error = dial(running.address, &client(bad)).await.unwrap_err().to_string();
        assert!(error.contains("ProtocolVersion"), "{error}");
    }
}

#[tokio::test]
async fn cipher_suites_are_restricted() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let names = ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"];
    let running = serve(&open(&ca, "", "", &names), Port::Client);
    log.wait_for("[\"TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA\"]").await;
    let stream = dial(running.address, &plain_client(&ca.file, None, TLS12, &[])).await.unwrap();
    let suite = stream.get_ref().1.negotiated_cipher_suite().unwrap().suite();
    assert_eq!(suite, rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    dial(running.address, &plain_client(&ca.file, None, TLS13, &[])).await.unwrap();

    // The server's key is none of RSA.
    let names = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"];
    let running = serve(&open(&ca, "", "", &names), Port::Client);
    let error = dial(running.address, &plain_client(&ca.file, None, TLS12, &[])).await.unwrap_err();
    assert!(error.to_string().contains("HandshakeFailure"), "{error}");
    log.wait_for("tls: no cipher suite supported by both client and server").await;
}

#[tokio::test]
async fn alpn_is_negotiated() {
    let ca = Ca::new("ca");
    let running = serve(&open(&ca, "", "", &[]), Port::Client);
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&[], None),
    ] {
        let client = plain_client(&ca.file, None, BOTH, offered);
        let stream = dial(running.address, &client).await.unwrap();
        let alpn = stream.get_ref().1.alpn_protocol().map(|name| name.to_vec());
        assert_eq!(alpn.as_deref(), chosen.map(str::as_bytes), "{offered:?}");
        if chosen != Some("h2") {
            assert_eq!(ask(stream).await.unwrap(), "nobody, secure: true");
        }
    }
    let client = plain_client(&ca.file, None, BOTH, &["spdy/1"]);
    let error = dial(running.address, &client).await.unwrap_err().to_string();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

#[tokio::test]
async fn plaintext_gets_no_answer_on_a_tls_port() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let running = serve(&open(&ca, "", "", &[]), Port::Client);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // The end, and no reset.
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"");
    log.wait_for("tls: first record does not look like a TLS handshake").await;

    // A record of a handshake with nonsense in it.
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&[0x16, 3, 1, 0, 4, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
    log.wait_for("error=\"tls: received corrupt message").await;
}

#[tokio::test]
async fn one_address_can_speak_with_and_without_tls() {
    let ca = Ca::new("ca");
    let tls = ServerTls::load(&open(&ca, "", "", &[]), Port::Client).unwrap();
    let running = serve_on(listener().with_tls_or_plain(tls), Options::default());
    let plain = TcpStream::connect(running.address).await.unwrap();
    assert_eq!(ask(plain).await.unwrap(), "nobody, secure: false");
    let client = plain_client(&ca.file, None, BOTH, &[]);
    let secure = dial(running.address, &client).await.unwrap();
    assert_eq!(ask(secure).await.unwrap(), "nobody, secure: true");
    let mut nonsense = TcpStream::connect(running.address).await.unwrap();
    nonsense.write_all(&[0xff; 64]).await.unwrap();
    assert_eq!(nonsense.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn urls_of_clients_say_which_listeners_speak_tls() {
    let ca = Ca::new("ca");
    let tls = ServerTls::load(&open(&ca, "", "", &[]), Port::Client).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = format!("https://127.0.0.1:0,unixs://{}/s", dir.path().display());
    let urls = parse_urls(&text).unwrap();
    assert_eq!(
        Listener::bind_clients(&urls, None, false).unwrap_err().to_string(),
        "TLS key/cert (--cert-file, --key-file) must be provided for client url \
         https://127.0.0.1:0 with HTTPS scheme"
    );
    let listeners = Listener::bind_clients(&urls, Some(&tls), false).unwrap();
    assert_eq!(listeners.len(), 2);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let text = format!("http://127.0.0.1:{port},https://127.0.0.1:{port}");
    let mut both = Listener::bind_clients(&parse_urls(&text).unwrap(), Some(&tls), false).unwrap();
    assert_eq!(both.len(), 1, "one socket");
    let running = serve_on(both.remove(0), Options::default());
    ask(TcpStream::connect(running.address).await.unwrap()).await.unwrap();
    let client = plain_client(&ca.file, None, BOTH, &[]);
    ask(dial(running.address, &client).await.unwrap()).await.unwrap();
    assert_eq!(running.address.port(), port);
}

#[tokio::test]
async fn a_slow_handshake_is_cut_and_holds_up_nobody() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let options = ca.options("server", Leaf::default());
    let limits = Options {
        handshake_timeout: Duration::from_millis(1500),
        max_handshakes: 2,
        ..Options::default()
    };
    let tls = ServerTls::load(&options, Port::Client).unwrap();
    let running = serve_on(listener().with_tls(tls), limits);
    // Some that say nothing at all, and one that stops within its greeting.
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    let mut slow = TcpStream::connect(running.address).await.unwrap();
    slow.write_all(&[0x16, 3, 1, 1]).await.unwrap();
    let started = Instant::now();
    get(&running, &ca.options("client", Leaf::default())).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(1500), "it waited for the others");
    for stream in silent.iter_mut().chain([&mut slow]) {
        let end = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0; 8])).await;
        assert_eq!(end.expect("it is cut").unwrap_or(0), 0);
    }
    log.wait_for("i/o timeout: no handshake within 1.5s").await;
    assert!(started.elapsed() >= Duration::from_millis(1400));
}

#[tokio::test]
async fn many_handshakes_take_turns() {
    let ca = Ca::new("ca");
    let tls = ServerTls::load(&open(&ca, "", "", &[]), Port::Client).unwrap();
    let limits = Options { max_handshakes: 1, ..Options::default() };
    let running = serve_on(listener().with_tls(tls), limits);
    let client = plain_client(&ca.file, None, BOTH, &[]);
    let all = (0..30)
        .map(|_| async { ask(dial(running.address, &client).await.unwrap()).await.unwrap() });
    assert_eq!(futures_util::future::join_all(all).await.len(), 30);
}

#[tokio::test]
async fn the_log_has_an_end() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let running = serve(&open(&ca, "", "", &[]), Port::Client);
    let started = Instant::now();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(b"nonsense").await.unwrap();
        let _ = stream.read(&mut [0; 8]).await;
    }
    let seconds = started.elapsed().as_secs() as usize + 1;
    let lines = log.text().matches("rejected connection on client endpoint").count();
    assert!((1..=10 * seconds).contains(&lines), "{lines} lines in {seconds} s");
}

#[tokio::test]
async fn shutdown_does_not_wait_for_handshakes() {
    let ca = Ca::new("ca");
    let running = serve(&open(&ca, "", "", &[]), Port::Client);
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(&[0x16, 3, 1]).await.unwrap();
    let started = Instant::now();
    running.server.shutdown(Duration::from_secs(5)).await;
    assert!(started.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn a_unix_socket_speaks_tls_and_has_no_address_to_check() {
    let ca = Ca::new("ca");
    let options =
        ca.options("server", Leaf { sans: &["localhost", "10.1.1.1"], ..Leaf::default() });
    let path = ca.path("socket");
    let urls = parse_urls(&format!("unixs://{}", path.display())).unwrap();
    let tls = ServerTls::load(&options, Port::Peer).unwrap();
    let listener = Listener::bind(&urls[0], false).unwrap().with_tls(tls);
    let _server = Server::start(vec![listener], Arc::new(Endless), Options::default());
    let stream = UnixStream::connect(&path).await.unwrap();
    let tls = ClientTls::load(&options).unwrap();
    let mut stream = tls.connect("localhost", stream).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut start = [0; 15];
    stream.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_cut_within_tls_too() {
    let ca = Ca::new("ca");
    let tls = ServerTls::load(&open(&ca, "", "", &[]), Port::Client).unwrap();
    let listener = listener().with_tls(tls);
    let address = listener.local_addr().unwrap();
    let options = Options { write_stall: Some(Duration::from_millis(300)), ..Options::default() };
    let _server = Server::start(vec![listener], Arc::new(Endless), options);
    let mut stream = dial(address, &plain_client(&ca.file, None, BOTH, &[])).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    // What was on its way is still there, and then comes the end without a word of TLS.
    let mut nowhere = tokio::io::sink();
    let drained = tokio::io::copy(&mut stream, &mut nowhere);
    let end = tokio::time::timeout(Duration::from_secs(20), drained).await;
    end.expect("the connection was cut").expect_err("it was cut in the middle");
}
