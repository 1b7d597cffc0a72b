//! Certificates of a test as options of TLS.

use mainstay_net::tls::TlsOptions;
pub(crate) use mainstay_test_pki::{Ca, Leaf};

pub(crate) trait OptionsOf {
    /// Options with a new certificate and this CA.
    fn options(&self, name: &str, leaf: Leaf<'_>) -> TlsOptions;
}

impl OptionsOf for Ca {
    fn options(&self, name: &str, leaf: Leaf<'_>) -> TlsOptions {
        let (cert, key) = self.issue(name, leaf);
        TlsOptions {
            cert_file: Some(cert),
            key_file: Some(key),
            trusted_ca_file: Some(self.file.clone()),
            ..TlsOptions::default()
        }
    }
}
