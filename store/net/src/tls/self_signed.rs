//! Certificates that a member makes for itself, for `--auto-tls` and `--peer-auto-tls`.
//!
//! Input: the data directory and the hosts that are listened on. Output: options with the files
//! `fixtures/{client,peer}/{cert,key}.pem`, which are made if they are not there. As etcd's, the
//! key is of P-521 and the certificate may sign others, so that it serves as its own CA.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P521_SHA512, SanType,
};

use super::error::TlsError;
use super::files;
use super::options::TlsOptions;
use super::server::Port;
use crate::ListenUrl;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Lets options use a self-signed certificate, which is made if there is none yet or it has
/// expired. Options that have a certificate already are left alone, with a warning.
pub fn auto_tls(
    options: &mut TlsOptions,
    port: Port,
    data_dir: &Path,
    listen: &[ListenUrl],
    validity_years: u32,
) -> Result<(), TlsError> {
    if !options.is_empty() {
        tracing::warn!("ignoring {port} auto TLS since certs given");
        return Ok(());
    }
    if validity_years == 0 {
        return Err(TlsError::Validity);
    }
    let dir = data_dir.join("fixtures").join(port.to_string());
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    if !(cert.exists() && key.exists()) || has_expired(&cert)? {
        make(&dir, &cert, &key, listen, validity_years)?;
    }
    options.client_cert_file = Some(cert.clone());
    options.client_key_file = Some(key.clone());
    options.cert_file = Some(cert);
    options.key_file = Some(key);
    options.self_signed = true;
    Ok(())
}

fn has_expired(cert: &Path) -> Result<bool, TlsError> {
    let chain = files::certificates((cert, &fs::read(cert)))?;
    let now = files::seconds_since_epoch(SystemTime::now());
    let expired =
        chain.first().and_then(|der| files::validity(der)).is_some_and(|(_, end)| end < now);
    if expired {
        tracing::warn!(path = %cert.display(), "the self-signed certificate has expired");
    }
    Ok(expired)
}

fn make(
    dir: &Path,
    cert: &Path,
    key: &Path,
    listen: &[ListenUrl],
    validity_years: u32,
) -> Result<(), TlsError> {
    let library = |error: rcgen::Error| {
        TlsError::file(
            cert,
            format!("cannot make it: {error}"),
            "give a certificate with the flags",
        )
    };
    let now = SystemTime::now();
    let end = now + YEAR * validity_years;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.not_before = now.into();
    params.not_after = end.into();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::CrlSign,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    for url in listen {
        match url.host.parse::<IpAddr>() {
            Ok(ip) => params.subject_alt_names.push(SanType::IpAddress(ip)),
            // The path of a Unix socket is no name.
            Err(_) => {
                if let Ok(name) = url.host.as_str().try_into()
                    && !url.host.contains('/')
                {
                    params.subject_alt_names.push(SanType::DnsName(name));
                }
            }
        }
    }
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512).map_err(library)?;
    let made = params.self_signed(&pair).map_err(library)?;
    let until = super::texts::date(files::seconds_since_epoch(end));
    tracing::warn!(
        "certificate-validity-bound-not-after" = until,
        "automatically generate certificates"
    );
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| unwritable(dir, &error))?;
    // The key first: a certificate is never seen without it.
    replace(key, pair.serialize_pem().as_bytes(), 0o600)?;
    tracing::info!(path = %key.display(), "created key file");
    replace(cert, made.pem().as_bytes(), 0o644)?;
    tracing::info!(path = %cert.display(), "created cert file");
    Ok(())
}

/// Writes a file so that it is there whole or not at all.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), TlsError> {
    let unfinished = path.with_extension("tmp");
    let write = || {
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(mode)
            .open(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|error: io::Error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> TlsError {
    TlsError::file(
        path,
        format!("cannot write it: {error}"),
        "let the user that this process runs as write the data directory",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_urls;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_certificate_is_made_once_and_again_when_it_has_expired() {
        let dir = tempfile::tempdir().unwrap();
        let listen =
            parse_urls("https://127.0.0.1:1,https://localhost:2,unixs:///run/x.sock").unwrap();
        let made = || {
            let mut options = TlsOptions::default();
            auto_tls(&mut options, Port::Peer, dir.path(), &listen, 2).unwrap();
            options
        };
        let options = made();
        let cert = dir.path().join("fixtures/peer/cert.pem");
        assert_eq!(options.cert_file.as_deref(), Some(cert.as_path()));
        let key = options.key_file.unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        let first = fs::read(&cert).unwrap();
        let der = files::certificates((&cert, &Ok(first.clone()))).unwrap().remove(0);
        let identity = super::super::identity::Identity::of(&der);
        assert_eq!(identity.dns_names, ["localhost"]);
        assert_eq!(identity.ip_addresses, ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        let (start, end) = files::validity(&der).unwrap();
        assert_eq!(end - start, 2 * 365 * 24 * 60 * 60);
        made();
        assert_eq!(fs::read(&cert).unwrap(), first, "kept");

        let pair = KeyPair::from_pem(&fs::read_to_string(&key).unwrap()).unwrap();
        let mut params = CertificateParams::default();
        params.not_after = (SystemTime::now() - YEAR).into();
        let expired = params.self_signed(&pair).unwrap().pem();
        fs::write(&cert, &expired).unwrap();
        made();
        assert_ne!(fs::read_to_string(&cert).unwrap(), expired, "made anew");
        let mut options = TlsOptions::default();
        let error = auto_tls(&mut options, Port::Peer, dir.path(), &listen, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "selfSignedCertValidity is invalid,it should be greater than 0"
        );
    }
}
