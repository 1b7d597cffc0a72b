//! What can be wrong with TLS options and their files.
//!
//! Texts of flags are etcd's; texts of files name the file, what is wrong with it, and what to do.

use std::path::{Path, PathBuf};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A version that is not one of ours.
    #[error("unexpected TLS version {0:?} (must be one of: TLS1.2, TLS1.3)")]
    Version(String),
    /// No version is left.
    #[error("min version ({min}) is greater than max version ({max})")]
    VersionOrder {
        /// The lowest version.
        min: String,
        /// The highest version.
        max: String,
    },
    /// TLS 1.3 always has its own suites.
    #[error("cipher suites cannot be configured when only TLS1.3 is enabled")]
    SuitesOfTls13,
    /// Not the name of a suite.
    #[error("unexpected TLS cipher suite {0:?}")]
    UnknownSuite(String),
    /// Every suite is one that is not offered.
    #[error(
        "none of the cipher suites {0:?} is offered: they lack forward secrecy or authenticated \
         encryption; use TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, \
         TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or another ECDHE suite with GCM or CHACHA20_POLY1305"
    )]
    NoSuite(Vec<String>),
    /// A certificate without its key, or a key without its certificate.
    #[error("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]")]
    Pair {
        /// The key file.
        key: String,
        /// The certificate file.
        cert: String,
    },
    /// The same for the certificate that is shown to other servers.
    #[error(
        "ClientKeyFile and ClientCertFile must both be present or both absent: key: {key}, cert: {cert}]"
    )]
    ClientPair {
        /// The key file.
        key: String,
        /// The certificate file.
        cert: String,
    },
    /// Two rules for one certificate.
    #[error(
        "AllowedCNs and AllowedHostnames are mutually exclusive (cns={cns:?}, hostnames={hostnames:?})"
    )]
    Exclusive {
        /// Allowed common names.
        cns: Vec<String>,
        /// Allowed host names.
        hostnames: Vec<String>,
    },
    /// A self-signed certificate that would never be valid.
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
    /// A file that does not do.
    #[error("{path}: {wrong}; {todo}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        wrong: String,
        /// What to do.
        todo: &'static str,
    },
    /// The TLS library refuses the whole.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] rustls::Error),
}

impl TlsError {
    pub(super) fn file(path: &Path, wrong: impl Into<String>, todo: &'static str) -> Self {
        TlsError::File { path: path.to_owned(), wrong: wrong.into(), todo }
    }
}
