//! TLS of a listener.
//!
//! Input: [`TlsOptions`]. Output: the configuration of each handshake, of the files as they are.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;

use super::error::TlsError;
use super::files;
use super::options::TlsOptions;
use super::reload::{Contents, Reloading};
use super::trust::{self, Trust};
use super::verify::{Checks, ClientCheck};
use super::{ciphers, provider};

/// Which of the two ports TLS is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Clients; metrics too.
    Client,
    /// Other members, whose certificates must also fit the address that they come from.
    Peer,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Port::Client => "client",
            Port::Peer => "peer",
        })
    }
}

/// TLS of listeners; clones are the same TLS.
#[derive(Clone, Debug)]
pub struct ServerTls {
    config: Arc<Reloading<ServerConfig>>,
    port: Port,
    check_address: bool,
}

/// The files, and what is made of them.
struct Recipe {
    options: TlsOptions,
    provider: Arc<CryptoProvider>,
    cert: PathBuf,
    key: PathBuf,
    /// `None` if clients need no certificate.
    ca: Option<PathBuf>,
}

impl ServerTls {
    /// Reads all files; what is wrong with one of them is an error with what to do.
    pub fn load(options: &TlsOptions, port: Port) -> Result<Self, TlsError> {
        options.check()?;
        let (cert, key) = options.pair()?;
        let provider = provider(&options.protocol);
        let unoffered = ciphers::without_offer(&options.protocol.cipher_suites);
        if !unoffered.is_empty() {
            tracing::warn!(
                suites = ?unoffered,
                "cipher suites are not offered: they lack forward secrecy or authenticated encryption"
            );
        }
        if let Some((cert, key)) = options.client_pair()? {
            let contents = Contents::read(&[cert.clone(), key.clone()]);
            files::certified_key(contents.of(&cert), contents.of(&key), &provider)?;
        }
        let ca = match &options.trusted_ca_file {
            Some(path) => Some(path.clone()),
            None if options.client_cert_auth => Some(system_ca(port)?),
            None => None,
        };
        let names = !options.allowed_cns.is_empty() || !options.allowed_hostnames.is_empty();
        if ca.is_none() && names {
            tracing::warn!(%port, "allowed names have no effect, as no certificate is asked for");
        }
        let mut paths = vec![cert.clone(), key.clone()];
        paths.extend(ca.clone());
        // Without certificates of clients there is nothing to revoke.
        paths.extend(options.crl_file.clone().filter(|_| ca.is_some()));
        let check_address = port == Port::Peer && !options.skip_client_san_verify;
        let recipe = Recipe { options: options.clone(), provider, cert, key, ca };
        let config = Reloading::new(paths, move |contents| recipe.build(contents))?;
        Ok(ServerTls { config: Arc::new(config), port, check_address })
    }

    /// The same, but that certificates of clients must fit the address that they come from, as on
    /// the peer port: etcd's listeners of metrics ask for that.
    pub fn checking_addresses(&self) -> Self {
        ServerTls { check_address: true, ..self.clone() }
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.current()
    }

    pub(super) fn port(&self) -> Port {
        self.port
    }

    pub(super) fn checks_address(&self) -> bool {
        self.check_address
    }
}

fn system_ca(port: Port) -> Result<PathBuf, TlsError> {
    let path = trust::of_system().ok_or_else(|| {
        TlsError::file(
            "trusted-ca-file".as_ref(),
            "clients have to show a certificate, and no CA is given to check it with",
            "name the CA of the clients",
        )
    })?;
    tracing::warn!(
        %port,
        path = %path.display(),
        "no trusted CA is given: any client with a certificate of the system's CAs is let in"
    );
    Ok(path)
}

impl Recipe {
    fn build(&self, contents: &Contents) -> Result<ServerConfig, TlsError> {
        let certified =
            files::certified_key(contents.of(&self.cert), contents.of(&self.key), &self.provider)?;
        files::warn_of_dates(&self.cert, &certified);
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&self.options.protocol.versions())?;
        let resolver = Arc::new(SingleCertAndKey::from(certified));
        let mut config = match &self.ca {
            None => builder.with_no_client_auth().with_cert_resolver(resolver),
            Some(ca) => {
                let check = Arc::new(ClientCheck(self.checks(ca, contents)?));
                builder.with_client_cert_verifier(check).with_cert_resolver(resolver)
            }
        };
        if self.ca.is_some() {
            // A resumed session would show its certificate to nobody.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn checks(&self, ca: &Path, contents: &Contents) -> Result<Checks, TlsError> {
        let trust = match &self.options.trusted_ca_file {
            Some(_) => Trust::of_file(contents.of(ca))?,
            None => Trust::of_system(contents.of(ca))?,
        };
        let mut checks = Checks::new(trust, &self.provider);
        if let Some(crl) = &self.options.crl_file {
            checks.revoked = files::revoked_serials(contents.of(crl))?;
        }
        checks.allowed_cns = self.options.allowed_cns.clone();
        checks.allowed_hostnames = self.options.allowed_hostnames.clone();
        Ok(checks)
    }
}
