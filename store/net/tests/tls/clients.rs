//! Which clients are let in, and what the others hear.

use mainstay_net::tls::{Port, TlsOptions};
use rcgen::ExtendedKeyUsagePurpose;

use crate::common::{Log, ask, dial, get, plain_client, refused, serve};
use crate::pki::{Ca, Leaf, OptionsOf as _};

static TLS12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
static TLS13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

#[tokio::test]
async fn a_client_with_a_certificate_is_known_by_its_names() {
    let ca = Ca::new("ca");
    let running = serve(&ca.options("server", Leaf::default()), Port::Client);
    let client = ca.options("client", Leaf { cn: "root", sans: &["a.b"], ..Leaf::default() });
    assert_eq!(get(&running, &client).await.unwrap(), "root [\"a.b\"]");
}

#[tokio::test]
async fn without_a_trusted_ca_no_certificate_is_asked_for() {
    let ca = Ca::new("ca");
    let mut server = ca.options("server", Leaf::default());
    server.trusted_ca_file = None;
    let running = serve(&server, Port::Client);
    let client = ca.options("client", Leaf { cn: "root", ..Leaf::default() });
    assert_eq!(get(&running, &client).await.unwrap(), "nobody, secure: true");
}

#[tokio::test]
async fn a_client_without_a_good_certificate_is_refused_with_etcds_alert() {
    let (log, _guard) = Log::start();
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let running = serve(&ca.options("server", Leaf::default()), Port::Client);

    let none = TlsOptions { trusted_ca_file: Some(ca.file.clone()), ..TlsOptions::default() };
    assert_eq!(refused(&running, &none).await, "remote error: tls: certificate required");
    log.wait_for("rejected connection on client endpoint").await;
    log.wait_for("remote-addr=\"127.0.0.1:").await;
    log.wait_for("tls: client didn't provide a certificate").await;

    let mut foreign = other.options("foreign", Leaf::default());
    foreign.trusted_ca_file = Some(ca.file.clone());
    let unknown = "remote error: tls: unknown certificate authority";
    assert_eq!(refused(&running, &foreign).await, unknown);
    log.wait_for(
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
    )
    .await;

    let expired = ca.options("expired", Leaf { expired: true, ..Leaf::default() });
    assert_eq!(refused(&running, &expired).await, "remote error: tls: expired certificate");
    log.wait_for("x509: certificate has expired or is not yet valid: current time 20").await;

    let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let not_a_client = ca.options("server-only", Leaf { usages, ..Leaf::default() });
    assert_eq!(refused(&running, &not_a_client).await, "remote error: tls: bad certificate");
    log.wait_for("x509: certificate specifies an incompatible key usage").await;

    let signing = ca.options("signing", Leaf { is_ca: true, ..Leaf::default() });
    assert_eq!(refused(&running, &signing).await, "remote error: tls: bad certificate");
    log.wait_for("the certificate is that of a CA; issue one that may not sign others").await;
}

#[tokio::test]
async fn both_versions_check_certificates() {
    let (ca, other) = (Ca::new("ca"), Ca::new("other"));
    let running = serve(&ca.options("server", Leaf::default()), Port::Client);
    let good = ca.issue("good", Leaf { cn: "alice", sans: &[], ..Leaf::default() });
    let bad = other.issue("bad", Leaf::default());
    for version in [TLS12, TLS13] {
        let client = |own: Option<(&std::path::Path, &std::path::Path)>| {
            plain_client(&ca.file, own, version, &[])
        };
        let stream = dial(running.address, &client(Some((&good.0, &good.1)))).await.unwrap();
        assert_eq!(ask(stream).await.unwrap(), "alice []");
        for (own, alert) in [(None, "CertificateRequired"), (Some((&*bad.0, &*bad.1)), "UnknownCA")]
        {
            let error = match dial(running.address, &client(own)).await {
                Ok(stream) => ask(stream).await.unwrap_err(),
                Err(error) => error,
            };
            assert!(error.to_string().contains(alert), "{version:?}: {error}");
        }
    }
}

#[tokio::test]
async fn only_allowed_names_are_let_in() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let mut by_cn = ca.options("server", Leaf::default());
    by_cn.allowed_cns = vec!["member".into(), "other".into()];
    let by_hostname = TlsOptions {
        allowed_cns: Vec::new(),
        allowed_hostnames: vec!["m1.example".into(), "10.1.1.1".into()],
        ..by_cn.clone()
    };
    let local = "127.0.0.1";
    let cn = ca.options("a", Leaf { cn: "member", ..Leaf::default() });
    let wildcard = ca.options("b", Leaf { sans: &["*.example", local], ..Leaf::default() });
    let address = ca.options("c", Leaf { sans: &["10.1.1.1", local], ..Leaf::default() });
    let cns = serve(&by_cn, Port::Peer);
    let hostnames = serve(&by_hostname, Port::Client);
    for (running, good) in [(&cns, &cn), (&hostnames, &wildcard), (&hostnames, &address)] {
        get(running, good).await.unwrap();
    }
    for (running, bad) in [(&cns, &wildcard), (&hostnames, &cn)] {
        assert_eq!(refused(running, bad).await, "remote error: tls: bad certificate");
    }
    log.wait_for("client certificate authentication failed").await;
    log.wait_for("rejected connection on peer endpoint").await;
}

#[tokio::test]
async fn a_peer_must_come_from_where_its_certificate_says() {
    let (log, _guard) = Log::start();
    let ca = Ca::new("ca");
    let mut server = ca.options("server", Leaf::default());
    let elsewhere = ca.options("peer", Leaf { sans: &["10.1.1.1"], ..Leaf::default() });
    let peers = serve(&server, Port::Peer);
    get(&peers, &ca.options("local", Leaf::default())).await.unwrap();
    get(&peers, &ca.options("nameless", Leaf { sans: &[], ..Leaf::default() })).await.unwrap();
    // As in etcd, the connection ends without an alert.
    assert_eq!(refused(&peers, &elsewhere).await, "no answer");
    log.wait_for("x509: certificate is valid for 10.1.1.1, not 127.0.0.1").await;
    log.wait_for("ip-addresses=[10.1.1.1]").await;

    get(&serve(&server, Port::Client), &elsewhere).await.unwrap();
    server.skip_client_san_verify = true;
    get(&serve(&server, Port::Peer), &elsewhere).await.unwrap();
}

#[tokio::test]
async fn chains_and_every_kind_of_key_are_taken() {
    let root = Ca::new("root");
    let ca = root.intermediate("intermediate");
    for algorithm in [
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ECDSA_P521_SHA512,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let server = ca.options("server", Leaf { algorithm, ..Leaf::default() });
        let client =
            ca.options("client", Leaf { cn: "c", sans: &[], algorithm, ..Leaf::default() });
        for port in [Port::Client, Port::Peer] {
            let answer = get(&serve(&server, port), &client).await;
            assert_eq!(answer.unwrap(), "c []", "{algorithm:?}");
        }
    }
}

#[tokio::test]
async fn a_ca_counts_only_while_it_is_valid() {
    let (log, _guard) = Log::start();
    let (old, new) = (Ca::with_days_left("old", -1), Ca::new("new"));
    let both = new.path("both.pem");
    let pems = [&old.file, &new.file].map(|file| std::fs::read_to_string(file).unwrap());
    std::fs::write(&both, pems.concat()).unwrap();
    let mut server = new.options("server", Leaf::default());
    server.trusted_ca_file = Some(both);
    let running = serve(&server, Port::Client);
    log.wait_for("a trusted CA has expired").await;
    get(&running, &new.options("client", Leaf::default())).await.unwrap();
    let mut of_old = old.options("client", Leaf::default());
    of_old.trusted_ca_file = Some(new.file.clone());
    assert_eq!(refused(&running, &of_old).await, "remote error: tls: expired certificate");
}

#[tokio::test]
async fn no_client_resumes_a_session_past_the_checks() {
    let ca = Ca::new("ca");
    let mut server = ca.options("server", Leaf::default());
    let own = ca.issue("client", Leaf::default());
    let kind = async |server: &TlsOptions| {
        let running = serve(server, Port::Client);
        let client = plain_client(&ca.file, Some((&own.0, &own.1)), TLS13, &[]);
        ask(dial(running.address, &client).await.unwrap()).await.unwrap();
        let again = dial(running.address, &client).await.unwrap();
        again.get_ref().1.handshake_kind().unwrap()
    };
    assert_ne!(kind(&server).await, rustls::HandshakeKind::Resumed);
    server.trusted_ca_file = None;
    assert_eq!(kind(&server).await, rustls::HandshakeKind::Resumed);
}
