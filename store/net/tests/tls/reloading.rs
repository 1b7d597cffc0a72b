//! Files that change while the server runs.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_net::tls::{Port, TlsOptions};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::sync::Arc;

use crate::common::{Log, Running, dial, get, plain_client, refused, serve};
use crate::pki::{Ca, Leaf, OptionsOf as _};

static BOTH: &[&rustls::SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// An HTTP/2 connection that stays open, and the certificate that the server showed on it.
async fn h2(
    running: &Running,
    client: &Arc<ClientConfig>,
) -> (SendRequest<Empty<Bytes>>, CertificateDer<'static>) {
    let stream = dial(running.address, client).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    (sender, shown)
}

async fn ask(sender: &mut SendRequest<Empty<Bytes>>) -> Bytes {
    let request = Request::get("https://localhost/").body(Empty::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    answer.into_body().collect().await.unwrap().to_bytes()
}

fn first_of(file: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(file).unwrap()
}

#[tokio::test]
async fn a_new_certificate_is_shown_and_open_connections_live_on() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let running = serve(&ca.options("server", Leaf::default()), Port::Client);
    let own = ca.issue("client", Leaf { cn: "c", sans: &[], ..Leaf::default() });
    let client = plain_client(&ca.file, Some((&own.0, &own.1)), BOTH, &["h2"]);
    let (mut open, before) = h2(&running, &client).await;
    assert_eq!(before, first_of(&ca.path("server.pem")));

    ca.issue("server", Leaf { serial: 2, ..Leaf::default() });
    let (mut next, after) = h2(&running, &client).await;
    assert_eq!(after, first_of(&ca.path("server.pem")));
    assert_ne!(before, after);
    log.wait_for("TLS files changed and are in use").await;
    assert_eq!(ask(&mut open).await, "c []");
    assert_eq!(ask(&mut next).await, "c []");

    // A certificate whose key has not arrived yet is not used, nor is half a file.
    let key = fs::read(ca.path("server.key")).unwrap();
    ca.issue("server", Leaf { serial: 3, ..Leaf::default() });
    let newest_key = fs::read(ca.path("server.key")).unwrap();
    for half in [&key[..], &key[..key.len() / 2], b""] {
        fs::write(ca.path("server.key"), half).unwrap();
        for _ in 0..3 {
            assert_eq!(h2(&running, &client).await.1, after);
        }
    }
    let warned = log.text().matches("TLS files changed and cannot be used").count();
    assert_eq!(warned, 3, "once for each state of the files:\n{}", log.text());
    assert!(log.text().contains("it is not the key of the certificate in"), "{}", log.text());
    fs::write(ca.path("server.key"), newest_key).unwrap();
    assert_eq!(h2(&running, &client).await.1, first_of(&ca.path("server.pem")));
    assert_eq!(ask(&mut open).await, "c []");
}

#[tokio::test]
async fn a_certificate_is_revoked_when_the_list_changes() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let list = ca.path("revoked.crl");
    for (round, pem) in [(0, false), (1, true)] {
        let serial = 0xabcd + round;
        ca.revoke(&list, &[5], pem);
        let mut server = ca.options("server", Leaf::default());
        server.crl_file = Some(list.clone());
        let running = serve(&server, Port::Client);
        let client = ca.options("client", Leaf { serial, cn: "c", sans: &[], ..Leaf::default() });
        get(&running, &client).await.unwrap();
        let (cert, key) = (client.cert_file.clone().unwrap(), client.key_file.clone().unwrap());
        let config = plain_client(&ca.file, Some((&cert, &key)), BOTH, &["h2"]);
        let (mut open, _) = h2(&running, &config).await;

        ca.revoke(&list, &[5, serial], pem);
        let revoked = Instant::now();
        let error = refused(&running, &client).await;
        assert!(revoked.elapsed() < Duration::from_secs(2));
        assert_eq!(error, "remote error: tls: revoked certificate");
        log.wait_for(&format!("transport: certificate serial {serial:x} revoked")).await;
        assert_eq!(ask(&mut open).await, "c []");
        get(&running, &ca.options("other", Leaf::default())).await.unwrap();

        fs::write(&list, b"not a list").unwrap();
        assert_eq!(refused(&running, &client).await, "remote error: tls: revoked certificate");
        log.wait_for("it is not a certificate revocation list").await;
    }
}

#[tokio::test]
async fn a_new_ca_replaces_the_old_one() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let trusted = old.path("trusted.pem");
    fs::copy(&old.file, &trusted).unwrap();
    let mut server = old.options("server", Leaf::default());
    server.trusted_ca_file = Some(trusted.clone());
    let running = serve(&server, Port::Client);
    let of_old = old.options("client", Leaf::default());
    let of_new = TlsOptions {
        trusted_ca_file: Some(old.file.clone()),
        ..new.options("client", Leaf::default())
    };
    get(&running, &of_old).await.unwrap();
    refused(&running, &of_new).await;
    fs::copy(&new.file, &trusted).unwrap();
    get(&running, &of_new).await.unwrap();
    refused(&running, &of_old).await;
}
