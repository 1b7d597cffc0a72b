//! What flags say of TLS, for one side: clients or peers.
//!
//! Input: the values of flags. Output: options that agree with each other, or etcd's error text.

use std::fmt;
use std::path::PathBuf;

use rustls::SupportedProtocolVersion;

use super::ciphers;
use super::error::TlsError;

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// Reads a flag's value; empty means that nothing is asked for.
    fn parse(text: &str) -> Result<Option<Self>, TlsError> {
        match text {
            "" => Ok(None),
            "TLS1.2" => Ok(Some(TlsVersion::Tls12)),
            "TLS1.3" => Ok(Some(TlsVersion::Tls13)),
            other => Err(TlsError::Version(other.to_owned())),
        }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsVersion::Tls12 => "TLS1.2",
            TlsVersion::Tls13 => "TLS1.3",
        })
    }
}

/// Versions and cipher suites; the same for clients and peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocol {
    /// Lowest version.
    pub min_version: Option<TlsVersion>,
    /// Highest version.
    pub max_version: Option<TlsVersion>,
    /// Names of suites as Go has them; empty allows all that are offered.
    pub cipher_suites: Vec<String>,
}

impl Protocol {
    /// Reads the values of `--tls-min-version`, `--tls-max-version` and `--cipher-suites`, with
    /// etcd's texts for what does not fit.
    pub fn parse(min: &str, max: &str, cipher_suites: &[String]) -> Result<Self, TlsError> {
        ciphers::check(cipher_suites)?;
        let min_version = TlsVersion::parse(min)?;
        let max_version = TlsVersion::parse(max)?;
        if max_version.is_some() && min_version > max_version {
            return Err(TlsError::VersionOrder { min: min.to_owned(), max: max.to_owned() });
        }
        if min_version == Some(TlsVersion::Tls13) && !cipher_suites.is_empty() {
            return Err(TlsError::SuitesOfTls13);
        }
        Ok(Protocol { min_version, max_version, cipher_suites: cipher_suites.to_vec() })
    }

    pub(super) fn versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let allowed = |version: TlsVersion| {
            self.min_version.is_none_or(|min| min <= version)
                && self.max_version.is_none_or(|max| version <= max)
        };
        [(TlsVersion::Tls13, &rustls::version::TLS13), (TlsVersion::Tls12, &rustls::version::TLS12)]
            .into_iter()
            .filter_map(|(version, of_library)| allowed(version).then_some(of_library))
            .collect()
    }
}

/// TLS of one side, as its flags give it. Shown as etcd shows it in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The server's certificate with its intermediates, and what is shown to other servers unless
    /// there is another one for that.
    pub cert_file: Option<PathBuf>,
    /// The key of it.
    pub key_file: Option<PathBuf>,
    /// The certificate that is shown to other servers.
    pub client_cert_file: Option<PathBuf>,
    /// The key of it.
    pub client_key_file: Option<PathBuf>,
    /// Every client has to show a certificate.
    pub client_cert_auth: bool,
    /// The CAs of clients, and of other servers. With it every client has to show a certificate.
    pub trusted_ca_file: Option<PathBuf>,
    /// Revoked certificates, DER as etcd takes it, or PEM.
    pub crl_file: Option<PathBuf>,
    /// Common names of which the other side's certificate must have one; empty allows all.
    pub allowed_cns: Vec<String>,
    /// Host names or addresses of which the other side's certificate must be valid for one.
    pub allowed_hostnames: Vec<String>,
    /// Clients of the peer port may come from other addresses than their certificate says.
    pub skip_client_san_verify: bool,
    /// The name that servers must have, instead of the one that was dialed.
    pub server_name: Option<String>,
    /// Servers need not be who they say.
    pub insecure_skip_verify: bool,
    /// The certificate is one that this member made for itself: others cannot check it, nor it
    /// them.
    pub self_signed: bool,
    /// Versions and cipher suites.
    pub protocol: Protocol,
}

impl TlsOptions {
    /// Whether there is neither a certificate nor a key: the side does not speak TLS.
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_none() && self.key_file.is_none()
    }

    /// Whether clients have to show a certificate: with a trusted CA always, as in etcd.
    pub fn requires_client_cert(&self) -> bool {
        self.client_cert_auth || self.trusted_ca_file.is_some()
    }

    /// The pair of certificate and key; the error if one of them is missing.
    pub(super) fn pair(&self) -> Result<(PathBuf, PathBuf), TlsError> {
        match (&self.cert_file, &self.key_file) {
            (Some(cert), Some(key)) => Ok((cert.clone(), key.clone())),
            (cert, key) => Err(TlsError::Pair { key: shown(key), cert: shown(cert) }),
        }
    }

    /// The pair that is shown to other servers; `None` if there is none at all.
    pub(super) fn client_pair(&self) -> Result<Option<(PathBuf, PathBuf)>, TlsError> {
        match (&self.client_cert_file, &self.client_key_file) {
            (Some(cert), Some(key)) => Ok(Some((cert.clone(), key.clone()))),
            (None, None) if self.is_empty() => Ok(None),
            (None, None) => self.pair().map(Some),
            (cert, key) => Err(TlsError::ClientPair { key: shown(key), cert: shown(cert) }),
        }
    }

    pub(super) fn check(&self) -> Result<(), TlsError> {
        if !self.allowed_cns.is_empty() && !self.allowed_hostnames.is_empty() {
            return Err(TlsError::Exclusive {
                cns: self.allowed_cns.clone(),
                hostnames: self.allowed_hostnames.clone(),
            });
        }
        Ok(())
    }
}

fn shown(path: &Option<PathBuf>) -> String {
    path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
}

impl fmt::Display for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cert = {}, key = {}, client-cert={}, client-key={}, trusted-ca = {}, \
             client-cert-auth = {}, crl-file = {}",
            shown(&self.cert_file),
            shown(&self.key_file),
            shown(&self.client_cert_file),
            shown(&self.client_key_file),
            shown(&self.trusted_ca_file),
            self.client_cert_auth,
            shown(&self.crl_file),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_in_flags_have_etcds_texts() {
        let suites =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let text = |min: &str, max: &str, names: &[&str]| {
            Protocol::parse(min, max, &suites(names)).unwrap_err().to_string()
        };
        assert_eq!(
            text("TLS1.1", "", &[]),
            "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)"
        );
        assert_eq!(
            text("TLS1.3", "TLS1.2", &[]),
            "min version (TLS1.3) is greater than max version (TLS1.2)"
        );
        assert_eq!(
            text("TLS1.3", "", &["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
            "cipher suites cannot be configured when only TLS1.3 is enabled"
        );
        assert_eq!(text("", "", &["TLS_FOO"]), "unexpected TLS cipher suite \"TLS_FOO\"");
        assert!(
            text("", "", &["TLS_RSA_WITH_AES_128_CBC_SHA"])
                .contains("use TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256")
        );
    }

    #[test]
    fn a_half_pair_is_refused() {
        let options = TlsOptions { cert_file: Some("c.pem".into()), ..TlsOptions::default() };
        assert_eq!(
            options.pair().unwrap_err().to_string(),
            "KeyFile and CertFile must both be present[key: , cert: c.pem]"
        );
        let options = TlsOptions {
            key_file: Some("k.pem".into()),
            client_key_file: Some("ck.pem".into()),
            ..options
        };
        assert_eq!(
            options.client_pair().unwrap_err().to_string(),
            "ClientKeyFile and ClientCertFile must both be present or both absent: key: ck.pem, cert: ]"
        );
    }
}
