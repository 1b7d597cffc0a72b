//! The files of certificates, keys and revocation lists.
//!
//! Input: a file's content. Output: what it holds, or an error that names the file, what is wrong,
//! and what to do.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use super::error::TlsError;

/// A file and what was read of it.
pub(super) type Content<'a> = (&'a Path, &'a io::Result<Vec<u8>>);

/// The bytes of a file that must be there and hold something.
fn bytes<'a>((path, read): Content<'a>) -> Result<&'a [u8], TlsError> {
    match read {
        Ok(bytes) if bytes.is_empty() => Err(TlsError::file(
            path,
            "the file is empty",
            "write it again; if it was being written just now, nothing has to be done",
        )),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(TlsError::file(
            path,
            error.to_string(),
            match error.kind() {
                io::ErrorKind::NotFound => "correct the flag that names it, or put the file there",
                io::ErrorKind::PermissionDenied => {
                    "let the user that this process runs as read the file and its directories"
                }
                io::ErrorKind::IsADirectory => "name the file in it",
                _ => "check the disk",
            },
        )),
    }
}

/// The certificates of a PEM file: at least one, each of them readable.
pub(super) fn certificates(file: Content<'_>) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let path = file.0;
    let found = CertificateDer::pem_slice_iter(bytes(file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| {
            TlsError::file(
                path,
                format!("damaged PEM: {error}"),
                "write the file again from its source",
            )
        })?;
    if found.is_empty() {
        return Err(TlsError::file(
            path,
            "it has no certificate in PEM",
            "put a block with BEGIN CERTIFICATE there; `openssl x509 -inform der` converts DER",
        ));
    }
    for (at, der) in found.iter().enumerate() {
        if X509Certificate::from_der(der).is_err() {
            return Err(TlsError::file(
                path,
                format!("certificate {} is not an X.509 certificate", at + 1),
                "compare it with `openssl x509 -text`, and issue it again",
            ));
        }
    }
    Ok(found)
}

fn key(file: Content<'_>) -> Result<PrivateKeyDer<'static>, TlsError> {
    let path = file.0;
    let content = bytes(file)?;
    if contains(content, b"ENCRYPTED") {
        return Err(TlsError::file(
            path,
            "the key is encrypted",
            "keys with a passphrase cannot be used: decrypt it with `openssl pkey`",
        ));
    }
    PrivateKeyDer::from_pem_slice(content).map_err(|_| {
        TlsError::file(
            path,
            "it has no private key in PEM",
            "put a block with BEGIN PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY there",
        )
    })
}

fn contains(content: &[u8], part: &[u8]) -> bool {
    content.windows(part.len()).any(|window| window == part)
}

/// A certificate with its chain and its key, which belong together.
pub(super) fn certified_key(
    cert_file: Content<'_>,
    key_file: Content<'_>,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let chain = certificates(cert_file)?;
    let signer = provider.key_provider.load_private_key(key(key_file)?).map_err(|error| {
        TlsError::file(
            key_file.0,
            format!("the key cannot be used: {error}"),
            "use an ECDSA key (P-256, P-384, P-521), an Ed25519 key, or RSA of 2048 bits or more",
        )
    })?;
    let certified = CertifiedKey::new(chain, signer);
    match certified.keys_match() {
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(Error::InconsistentKeys(_)) => Err(TlsError::file(
            key_file.0,
            format!("it is not the key of the certificate in {}", cert_file.0.display()),
            "give the two that were issued together; the server's own certificate must be the \
             first one in its file",
        )),
        Err(error) => Err(TlsError::file(
            cert_file.0,
            format!("the certificate cannot be used: {error}"),
            "issue one of X.509 version 3, with the server's names as subject alternative names",
        )),
    }
}

/// Serial numbers of revoked certificates. Who issued the list is not asked, as in etcd.
pub(super) fn revoked_serials(file: Content<'_>) -> Result<HashSet<Vec<u8>>, TlsError> {
    let path = file.0;
    let content = bytes(file)?;
    let malformed = || {
        TlsError::file(
            path,
            "it is not a certificate revocation list",
            "give one in DER or PEM; `openssl crl -text` shows whether it is one",
        )
    };
    let lists: Vec<CertificateRevocationListDer<'_>> = if contains(content, b"-----BEGIN") {
        CertificateRevocationListDer::pem_slice_iter(content)
            .collect::<Result<_, _>>()
            .map_err(|_| malformed())?
    } else {
        vec![content.into()]
    };
    if lists.is_empty() {
        return Err(malformed());
    }
    let mut serials = HashSet::new();
    for der in &lists {
        let (rest, list) =
            CertificateRevocationList::from_der(der.as_ref()).map_err(|_| malformed())?;
        if !rest.is_empty() {
            return Err(malformed());
        }
        let overdue = list
            .next_update()
            .is_some_and(|next| next.timestamp() < seconds_since_epoch(SystemTime::now()));
        if overdue {
            tracing::warn!(
                path = %path.display(),
                "the revocation list should have been replaced by a newer one; it is used as it is"
            );
        }
        serials.extend(
            list.iter_revoked_certificates()
                .map(|revoked| significant(revoked.raw_serial()).to_vec()),
        );
    }
    Ok(serials)
}

/// The serial number of a certificate, as [`revoked_serials`] has it.
pub(super) fn serial(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(significant(certificate.raw_serial()).to_vec())
}

fn significant(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

pub(super) fn seconds_since_epoch(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// When a certificate is valid, in seconds since 1970, both included; `None` if it cannot be read.
pub(super) fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Warns of an own certificate that others will refuse.
pub(super) fn warn_of_dates(path: &Path, certified: &CertifiedKey) {
    let now = seconds_since_epoch(SystemTime::now());
    match certified.cert.first().and_then(|der| validity(der)) {
        Some((_, after)) if after < now => tracing::warn!(
            path = %path.display(),
            "the certificate has expired: the other side will refuse it; issue a new one"
        ),
        Some((before, _)) if now < before => tracing::warn!(
            path = %path.display(),
            "the certificate is not valid yet: check the clocks of this machine and of its CA"
        ),
        _ => {}
    }
}
