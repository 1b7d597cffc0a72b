//! Files that do not do, and what is said of them at the start.

use std::fs;
use std::path::{Path, PathBuf};

use mainstay_net::tls::{ClientTls, Port, ServerTls, TlsOptions};

use crate::common::{get, serve};
use crate::pki::{Ca, Leaf, OptionsOf as _};

fn server_error(options: &TlsOptions) -> String {
    ServerTls::load(options, Port::Client).expect_err("the options do not do").to_string()
}

#[track_caller]
fn says(error: &str, path: &Path, parts: &[&str]) {
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn each_mistake_names_the_file_and_what_to_do() {
    let ca = Ca::new("ca");
    let good = ca.options("server", Leaf::default());
    let other = ca.issue("other", Leaf::default());
    let (cert, key) = (good.cert_file.clone().unwrap(), good.key_file.clone().unwrap());
    let write = |name: &str, content: &str| -> PathBuf {
        let path = ca.path(name);
        fs::write(&path, content).unwrap();
        path
    };
    let with_cert = |path: &Path| TlsOptions { cert_file: Some(path.into()), ..good.clone() };
    let with_key = |path: &Path| TlsOptions { key_file: Some(path.into()), ..good.clone() };
    let with_ca = |path: &Path| TlsOptions { trusted_ca_file: Some(path.into()), ..good.clone() };
    let with_crl = |path: &Path| TlsOptions { crl_file: Some(path.into()), ..good.clone() };

    let missing = ca.path("missing");
    for options in [with_cert(&missing), with_key(&missing), with_ca(&missing), with_crl(&missing)]
    {
        says(&server_error(&options), &missing, &["No such file", "correct the flag"]);
    }
    let empty = write("empty", "");
    for options in [with_cert(&empty), with_key(&empty), with_ca(&empty), with_crl(&empty)] {
        says(&server_error(&options), &empty, &["is empty", "write it again"]);
    }
    let text = write("text", "hello\n");
    for options in [with_cert(&text), with_ca(&text)] {
        says(&server_error(&options), &text, &["no certificate in PEM", "BEGIN CERTIFICATE"]);
    }
    says(&server_error(&with_key(&text)), &text, &["no private key in PEM"]);
    says(&server_error(&with_crl(&text)), &text, &["not a certificate revocation list"]);
    says(&server_error(&with_crl(&cert)), &cert, &["not a certificate revocation list"]);

    let pem = fs::read_to_string(&cert).unwrap();
    let half = write("half", &pem[..pem.len() / 2]);
    says(&server_error(&with_cert(&half)), &half, &["damaged PEM", "write the file again"]);
    let nonsense =
        write("nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    says(&server_error(&with_cert(&nonsense)), &nonsense, &["certificate 1 is not an X.509"]);

    let not_its_key = "it is not the key of the certificate in";
    says(&server_error(&with_key(&other.1)), &other.1, &[not_its_key, "issued together"]);
    let header =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = write("encrypted", header);
    says(&server_error(&with_key(&encrypted)), &encrypted, &["encrypted", "openssl pkey"]);

    let expired = Ca::with_days_left("gone", -3);
    says(
        &server_error(&with_ca(&expired.file)),
        &expired.file,
        &["the CA has expired", "CN=gone", "issue the CA anew"],
    );
    // What is shown to other servers is read at the start too.
    let shown = TlsOptions {
        client_cert_file: Some(missing.clone()),
        client_key_file: Some(key),
        ..good.clone()
    };
    says(&server_error(&shown), &missing, &["No such file"]);
    assert!(ClientTls::load(&shown).unwrap_err().to_string().contains("No such file"));

    let both = TlsOptions {
        allowed_cns: vec!["a".into()],
        allowed_hostnames: vec!["b".into()],
        ..good.clone()
    };
    assert_eq!(
        server_error(&both),
        "AllowedCNs and AllowedHostnames are mutually exclusive (cns=[\"a\"], hostnames=[\"b\"])"
    );
}

/// Wraps DER as PEM.
fn pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for group in der.chunks(3) {
        let bits = (0..3)
            .fold(0_u32, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let index = (bits >> (18 - 6 * at) & 63) as usize;
            text.push(if at <= group.len() { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    format!("{text}\n-----END {label}-----\n")
}

/// Splits the first value off DER: its content, and what follows.
fn take(der: &[u8]) -> (&[u8], &[u8]) {
    let (len, start) = match der[1] {
        short @ 0..0x80 => (usize::from(short), 2),
        long => {
            let bytes = usize::from(long & 0x7f);
            let len = der[2..2 + bytes].iter().fold(0, |len, byte| len << 8 | usize::from(*byte));
            (len, 2 + bytes)
        }
    };
    (&der[start..start + len], &der[start + len..])
}

#[tokio::test]
async fn older_formats_of_keys_are_read() {
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::pki_types::pem::PemObject;
    let ca = Ca::new("ca");
    for (label, algorithm) in [
        ("RSA PRIVATE KEY", &rcgen::PKCS_RSA_SHA256),
        ("EC PRIVATE KEY", &rcgen::PKCS_ECDSA_P384_SHA384),
    ] {
        let options = ca.options("server", Leaf { algorithm, ..Leaf::default() });
        let key_file = options.key_file.clone().unwrap();
        let whole = PrivatePkcs8KeyDer::from_pem_file(&key_file).unwrap();
        // PKCS #8 is a version, an algorithm, and the key in its older format.
        let (inner, _) = take(whole.secret_pkcs8_der());
        let (_, rest) = take(inner);
        let (_, rest) = take(rest);
        let (older, _) = take(rest);
        fs::write(&key_file, pem(label, older)).unwrap();
        let running = serve(&options, Port::Client);
        get(&running, &options).await.unwrap();
    }
}
