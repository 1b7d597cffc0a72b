//! Cipher suites by the names that Go gives them.
//!
//! The suites of TLS 1.3 are always there, as in Go: what is chosen are those of TLS 1.2.

use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::{ProtocolVersion, SupportedCipherSuite};

use super::error::TlsError;

/// Suites of TLS 1.2 that are offered; two of them have an older name too.
const OFFERED: [(&str, SupportedCipherSuite); 8] = [
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// Suites of TLS 1.3.
const OF_TLS13: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Suites that Go has and this library does not.
const NOT_OFFERED: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

fn offered(name: &str) -> Option<SupportedCipherSuite> {
    OFFERED.iter().find(|(known, _)| *known == name).map(|(_, suite)| *suite)
}

/// Refuses names that are none, and lists of which nothing is offered.
pub(super) fn check(names: &[String]) -> Result<(), TlsError> {
    let known = |name: &str| {
        offered(name).is_some() || OF_TLS13.contains(&name) || NOT_OFFERED.contains(&name)
    };
    if let Some(name) = names.iter().find(|name| !known(name)) {
        return Err(TlsError::UnknownSuite(name.clone()));
    }
    if !names.is_empty() && without_offer(names).len() == names.len() {
        return Err(TlsError::NoSuite(names.to_vec()));
    }
    Ok(())
}

/// The names that are not offered: the others are used without them.
pub(super) fn without_offer(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).filter(|name| NOT_OFFERED.contains(name)).collect()
}

/// Of all suites those of TLS 1.3, and those that have one of the names; all if there are no names.
pub(super) fn allowed(names: &[String], all: &[SupportedCipherSuite]) -> Vec<SupportedCipherSuite> {
    let chosen: Vec<_> = names.iter().filter_map(|name| offered(name)).collect();
    let of_tls13 =
        |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
    all.iter()
        .filter(|suite| names.is_empty() || of_tls13(suite) || chosen.contains(suite))
        .copied()
        .collect()
}
