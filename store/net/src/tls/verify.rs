//! The checks of the other side's certificate within a handshake.
//!
//! Input: the certificates that the other side shows. Output: consent, or an error whose alert is
//! the one that etcd sends; the reason in words is noted for the log (see [`super::texts`]).

use std::collections::HashSet;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::files;
use super::identity::Identity;
use super::texts;
use super::trust::{Refusal, Trust, Use};

/// What every certificate has to pass.
#[derive(Debug)]
pub(super) struct Checks {
    pub(super) trust: Trust,
    pub(super) revoked: HashSet<Vec<u8>>,
    pub(super) allowed_cns: Vec<String>,
    pub(super) allowed_hostnames: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Checks {
    pub(super) fn new(trust: Trust, provider: &Arc<CryptoProvider>) -> Self {
        Checks {
            trust,
            revoked: HashSet::new(),
            allowed_cns: Vec::new(),
            allowed_hostnames: Vec::new(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        wanted: Use,
    ) -> Result<(), Error> {
        self.trust
            .check(end_entity, intermediates, self.algorithms.all, now, wanted)
            .map_err(refused)?;
        self.check_revoked(end_entity, intermediates)?;
        self.check_allowed(&Identity::of(end_entity))
    }

    fn check_revoked(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        for der in std::iter::once(end_entity).chain(intermediates) {
            // One whose number cannot be read cannot be looked up, so it is not let in either.
            let serial = files::serial(der).unwrap_or_default();
            if serial.is_empty() || self.revoked.contains(&serial) {
                let digits: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
                texts::note(format!("transport: certificate serial {digits} revoked"));
                return Err(CertificateError::Revoked.into());
            }
        }
        Ok(())
    }

    fn check_allowed(&self, identity: &Identity) -> Result<(), Error> {
        let by_name =
            self.allowed_cns.is_empty() || self.allowed_cns.contains(&identity.common_name);
        let by_host = self.allowed_hostnames.is_empty()
            || self.allowed_hostnames.iter().any(|host| identity.check_host(host).is_ok());
        if by_name && by_host {
            return Ok(());
        }
        texts::note("client certificate authentication failed");
        Err(bad_certificate())
    }
}

/// The error whose alert is "bad certificate".
fn bad_certificate() -> Error {
    CertificateError::BadEncoding.into()
}

fn refused(refusal: Refusal) -> Error {
    let failed = |text: &str| texts::note(format!("tls: failed to verify certificate: {text}"));
    match refusal {
        Refusal::UnknownIssuer => {
            failed("x509: certificate signed by unknown authority");
            CertificateError::UnknownIssuer.into()
        }
        Refusal::Dates { now, not_before, not_after } => {
            let (word, date) =
                if now < not_before { ("before", not_before) } else { ("after", not_after) };
            failed(&format!(
                "x509: certificate has expired or is not yet valid: current time {} is {word} {}",
                texts::date(now),
                texts::date(date),
            ));
            CertificateError::Expired.into()
        }
        Refusal::Other(text) => {
            failed(&text);
            bad_certificate()
        }
    }
}

/// Asks clients for a certificate and checks it.
#[derive(Debug)]
pub(super) struct ClientCheck(pub(super) Checks);

impl ClientCertVerifier for ClientCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.0.trust.names
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0
            .check(end_entity, intermediates, now, Use::Client)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.algorithms.supported_schemes()
    }
}

/// Checks the servers that are dialed.
#[derive(Debug)]
pub(super) struct ServerCheck {
    pub(super) checks: Checks,
    /// Neither the chain nor the name is looked at.
    pub(super) skip: bool,
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let checks = &self.checks;
        if self.skip {
            // A name that nobody vouches for is not one of those that are allowed.
            let any_name = checks.allowed_cns.is_empty() && checks.allowed_hostnames.is_empty();
            if any_name {
                return Ok(ServerCertVerified::assertion());
            }
            texts::note("client certificate authentication failed");
            return Err(bad_certificate());
        }
        checks
            .trust
            .check(end_entity, intermediates, checks.algorithms.all, now, Use::Server)
            .map_err(refused)?;
        let identity = Identity::of(end_entity);
        identity.check_host(&server_name.to_str()).map_err(|text| refused(Refusal::Other(text)))?;
        checks.check_allowed(&identity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.checks.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.checks.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.checks.algorithms.supported_schemes()
    }
}
