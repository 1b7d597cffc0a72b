//! Connections to servers: which servers are believed.

use std::io;

use mainstay_net::parse_urls;
use mainstay_net::tls::{ClientTls, Port, TlsOptions, auto_tls};
use tokio::net::TcpStream;

use crate::common::{Running, ask, get, refused, serve};
use crate::pki::{Ca, Leaf, OptionsOf as _};

fn open(ca: &Ca, leaf: Leaf<'_>) -> Running {
    let name = format!("server-{}", leaf.cn);
    serve(&TlsOptions { trusted_ca_file: None, ..ca.options(&name, leaf) }, Port::Peer)
}

async fn get_as(running: &Running, options: &TlsOptions, host: &str) -> io::Result<String> {
    let stream = TcpStream::connect(running.address).await?;
    ask(ClientTls::load(options).unwrap().connect(host, stream).await?).await
}

#[tokio::test]
async fn a_server_must_be_who_was_dialed() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let running = open(&ca, Leaf { sans: &["localhost", "::1"], ..Leaf::default() });
    let trusting =
        |ca: &Ca| TlsOptions { trusted_ca_file: Some(ca.file.clone()), ..TlsOptions::default() };
    let client = trusting(&ca);
    for host in ["localhost", "[::1]", "::1"] {
        get_as(&running, &client, host).await.unwrap();
    }
    let error = get_as(&running, &client, "127.0.0.1").await.unwrap_err().to_string();
    assert_eq!(
        error,
        "tls: failed to verify certificate: x509: certificate is valid for ::1, not 127.0.0.1"
    );
    let error = get_as(&running, &trusting(&other), "localhost").await.unwrap_err().to_string();
    assert_eq!(
        error,
        "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    let skipping = TlsOptions { insecure_skip_verify: true, ..trusting(&other) };
    get_as(&running, &skipping, "elsewhere").await.unwrap();
    let named = TlsOptions { server_name: Some("localhost".into()), ..client };
    get_as(&running, &named, "10.0.0.1").await.unwrap();
    let expired = open(&ca, Leaf { expired: true, ..Leaf::default() });
    let error = refused(&expired, &trusting(&ca)).await;
    assert!(error.contains("x509: certificate has expired or is not yet valid"), "{error}");
}

#[tokio::test]
async fn allowed_names_hold_for_servers_too() {
    let ca = Ca::new("ca");
    let member = open(&ca, Leaf { cn: "member", ..Leaf::default() });
    let stranger = open(&ca, Leaf { cn: "stranger", ..Leaf::default() });
    let mut client = ca.options("client", Leaf::default());
    client.allowed_cns = vec!["member".into()];
    get(&member, &client).await.unwrap();
    assert_eq!(refused(&stranger, &client).await, "client certificate authentication failed");
    client.insecure_skip_verify = true;
    assert_eq!(refused(&member, &client).await, "client certificate authentication failed");
}

#[tokio::test]
async fn another_certificate_can_be_shown_to_servers() {
    let ca = Ca::new("ca");
    let running = serve(&ca.options("server", Leaf::default()), Port::Client);
    let mut options = ca.options("own", Leaf { cn: "server", ..Leaf::default() });
    let (cert, key) = ca.issue("shown", Leaf { cn: "client", sans: &[], ..Leaf::default() });
    (options.client_cert_file, options.client_key_file) = (Some(cert), Some(key));
    assert_eq!(get(&running, &options).await.unwrap(), "client []");
}

#[tokio::test]
async fn what_is_shown_and_trusted_follows_the_files() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let trusted = old.path("trusted.pem");
    std::fs::copy(&old.file, &trusted).unwrap();
    let server = serve(&old.options("server", Leaf::default()), Port::Client);
    let mut options = old.options("client", Leaf { cn: "one", sans: &[], ..Leaf::default() });
    options.trusted_ca_file = Some(trusted.clone());
    let tls = ClientTls::load(&options).unwrap();
    let get = async |running: &Running| {
        let stream = TcpStream::connect(running.address).await?;
        ask(tls.connect("127.0.0.1", stream).await?).await
    };
    assert_eq!(get(&server).await.unwrap(), "one []");
    old.issue("client", Leaf { cn: "two", sans: &[], ..Leaf::default() });
    assert_eq!(get(&server).await.unwrap(), "two []");
    std::fs::copy(&new.file, &trusted).unwrap();
    assert!(get(&server).await.unwrap_err().to_string().contains("unknown authority"));
    get(&open(&new, Leaf::default())).await.unwrap();
}

#[tokio::test]
async fn members_with_certificates_of_their_own_talk() {
    let dir = tempfile::tempdir().unwrap();
    let listen = parse_urls("https://127.0.0.1:1").unwrap();
    let mut options = TlsOptions::default();
    auto_tls(&mut options, Port::Peer, dir.path(), &listen, 1).unwrap();
    let running = serve(&options, Port::Peer);
    assert_eq!(get(&running, &options).await.unwrap(), "nobody, secure: true");
    // A certificate that is its own CA passes where it is trusted as such.
    let trusting = TlsOptions { trusted_ca_file: options.cert_file, ..TlsOptions::default() };
    get(&running, &trusting).await.unwrap();
    let error = get_as(&running, &trusting, "localhost").await.unwrap_err().to_string();
    assert!(error.contains("x509: certificate is not valid for any names"), "{error}");
}
