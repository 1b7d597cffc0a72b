//! Trusted CAs, and chains that end in them.
//!
//! Input: a CA file, or the system's. Output: whether a chain of certificates is good for a use.
//!
//! **Invariant:** a CA counts only between its own dates, which the TLS library does not look at.

use std::cell::Cell;
use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use rustls::DistinguishedName;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::error::TlsError;
use super::files::{self, Content};

/// Where systems keep the CAs that they trust.
const OF_SYSTEM: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's file of CAs.
pub(super) fn of_system() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.or_else(|| OF_SYSTEM.iter().map(PathBuf::from).find(|path| path.exists()))
}

/// What a certificate is shown for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use {
    Client,
    Server,
}

/// Why a chain was refused.
#[derive(Clone, Debug)]
pub(super) enum Refusal {
    UnknownIssuer,
    Dates { now: i64, not_before: i64, not_after: i64 },
    Other(String),
}

/// Trusted CAs.
pub(super) struct Trust {
    anchors: Vec<TrustAnchor<'static>>,
    /// For each anchor its certificate and its dates.
    roots: Vec<(CertificateDer<'static>, (i64, i64))>,
    pub(super) names: Vec<DistinguishedName>,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} CAs)", self.anchors.len())
    }
}

impl Trust {
    /// No CA: every chain is refused.
    pub(super) fn nobody() -> Self {
        Trust { anchors: Vec::new(), roots: Vec::new(), names: Vec::new() }
    }

    /// The CAs of a file that a flag names: all of them must be readable, one must be valid now.
    pub(super) fn of_file(file: Content<'_>) -> Result<Self, TlsError> {
        let mut trust = Trust::nobody();
        let mut expired = Vec::new();
        let now = files::seconds_since_epoch(SystemTime::now());
        for der in files::certificates(file)? {
            let (_, not_after) = trust.add(&der).ok_or_else(|| {
                TlsError::file(
                    file.0,
                    format!("the CA {} cannot be used", subject(&der)),
                    "issue a CA certificate of X.509 version 3",
                )
            })?;
            if not_after < now {
                expired.push(subject(&der));
            }
        }
        if expired.len() == trust.anchors.len() {
            return Err(TlsError::file(
                file.0,
                format!("the CA has expired: {}", expired.join("; ")),
                "issue the CA anew, and the certificates that it signed",
            ));
        }
        for subject in expired {
            let path = file.0.display();
            tracing::warn!(%path, %subject, "a trusted CA has expired: what it signed is refused");
        }
        Ok(trust)
    }

    /// The system's CAs, without those that are of no use.
    pub(super) fn of_system(file: Content<'_>) -> Result<Self, TlsError> {
        let mut trust = Trust::nobody();
        for der in files::certificates(file)? {
            trust.add(&der);
        }
        Ok(trust)
    }

    fn add(&mut self, der: &CertificateDer<'static>) -> Option<(i64, i64)> {
        let anchor = anchor_from_trusted_cert(der).ok()?.to_owned();
        let dates = files::validity(der)?;
        self.names.push(DistinguishedName::in_sequence(&anchor.subject));
        self.anchors.push(anchor);
        self.roots.push((der.clone(), dates));
        Some(dates)
    }

    /// Checks a chain: signatures, dates, constraints, and what its certificate may be used for.
    pub(super) fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
        wanted: Use,
    ) -> Result<(), Refusal> {
        let seconds = now.as_secs() as i64;
        if let Some((_, dates)) = self.roots.iter().find(|(root, _)| root == end_entity) {
            return check_root(end_entity, *dates, seconds, wanted);
        }
        let certificate = EndEntityCert::try_from(end_entity).map_err(|error| match error {
            webpki::Error::UnsupportedCertVersion => Refusal::Other(
                "the certificate is of X.509 version 1 or 2; issue it with version 3".into(),
            ),
            other => Refusal::Other(other.to_string()),
        })?;
        let usage = match wanted {
            Use::Client => KeyUsage::client_auth(),
            Use::Server => KeyUsage::server_auth(),
        };
        // The search goes on with other CAs after one that is refused here.
        let stale_root = Cell::new(None);
        let root_is_valid = |path: &webpki::VerifiedPath<'_>| {
            let dates = self
                .anchors
                .iter()
                .position(|anchor| std::ptr::eq(anchor, path.anchor()))
                .map(|at| self.roots[at].1);
            match dates {
                Some((before, after)) if before <= seconds && seconds <= after => Ok(()),
                dates => {
                    stale_root.set(dates);
                    Err(webpki::Error::UnknownIssuer)
                }
            }
        };
        certificate
            .verify_for_usage(
                algorithms,
                &self.anchors,
                intermediates,
                now,
                usage,
                None,
                Some(&root_is_valid),
            )
            .map(|_| ())
            .map_err(|error| match error {
                webpki::Error::UnknownIssuer => match stale_root.get() {
                    Some((not_before, not_after)) => {
                        Refusal::Dates { now: seconds, not_before, not_after }
                    }
                    None => Refusal::UnknownIssuer,
                },
                webpki::Error::CertExpired { .. }
                | webpki::Error::CertNotValidYet { .. }
                | webpki::Error::InvalidCertValidity => {
                    dates_of(end_entity, intermediates, seconds)
                }
                webpki::Error::CaUsedAsEndEntity => Refusal::Other(
                    "the certificate is that of a CA; issue one that may not sign others".into(),
                ),
                webpki::Error::RequiredEkuNotFoundContext(_) => {
                    Refusal::Other("x509: certificate specifies an incompatible key usage".into())
                }
                other => Refusal::Other(other.to_string()),
            })
    }
}

fn dates_of(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: i64,
) -> Refusal {
    std::iter::once(end_entity)
        .chain(intermediates)
        .filter_map(|der| files::validity(der))
        .find(|(before, after)| now < *before || *after < now)
        .map_or(Refusal::UnknownIssuer, |(not_before, not_after)| Refusal::Dates {
            now,
            not_before,
            not_after,
        })
}

/// A certificate that stands in the CA file itself needs no signature; the handshake proves that
/// the other side has its key.
fn check_root(
    der: &CertificateDer<'_>,
    (not_before, not_after): (i64, i64),
    now: i64,
    wanted: Use,
) -> Result<(), Refusal> {
    if now < not_before || not_after < now {
        return Err(Refusal::Dates { now, not_before, not_after });
    }
    let unreadable = |_| Refusal::Other("the certificate cannot be read".into());
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|_| Refusal::Other("unreadable".into()))?;
    let allowed = certificate.extended_key_usage().map_err(unreadable)?.is_none_or(|usage| {
        let usage = usage.value;
        usage.any
            || match wanted {
                Use::Client => usage.client_auth,
                Use::Server => usage.server_auth,
            }
    });
    if allowed {
        return Ok(());
    }
    Err(Refusal::Other("x509: certificate specifies an incompatible key usage".into()))
}

fn subject(der: &[u8]) -> String {
    X509Certificate::from_der(der)
        .map_or_else(|_| String::new(), |(_, certificate)| certificate.subject().to_string())
}
