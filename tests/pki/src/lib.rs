//! A certificate authority for tests, and the files of what it issues.
//!
//! Input: what a certificate shall say. Output: PEM files in a directory that goes with the CA.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub use rcgen;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, RevokedCertParams, SerialNumber, SignatureAlgorithm,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A CA and its files.
pub struct Ca {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    /// Intermediates that go with what it issues.
    chain: String,
    /// Its own certificate.
    pub file: PathBuf,
}

/// What to issue.
pub struct Leaf<'a> {
    /// Common name.
    pub cn: &'a str,
    /// Names and addresses.
    pub sans: &'a [&'a str],
    /// Valid until yesterday.
    pub expired: bool,
    /// What a revocation list calls it.
    pub serial: u64,
    /// Of the key.
    pub algorithm: &'static SignatureAlgorithm,
    /// Extended usages of the key.
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    /// Whether it may sign others.
    pub is_ca: bool,
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        Leaf {
            cn: "",
            sans: &["localhost", "127.0.0.1"],
            expired: false,
            serial: 1,
            algorithm: &PKCS_ECDSA_P256_SHA256,
            usages: vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            is_ca: false,
        }
    }
}

fn ca_params(name: &str, days_left: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now = SystemTime::now();
    params.not_before = (now - 100 * DAY).into();
    let days = DAY * u32::try_from(days_left.abs()).unwrap();
    params.not_after = if days_left < 0 { (now - days).into() } else { (now + days).into() };
    params
}

impl Ca {
    /// A CA that is valid for a day more.
    pub fn new(name: &str) -> Self {
        Ca::with_days_left(name, 1)
    }

    /// A CA that is valid for so many days, or has not been any more for them.
    pub fn with_days_left(name: &str, days_left: i64) -> Self {
        let params = ca_params(name, days_left);
        let key = KeyPair::generate().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.pem");
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Ca { dir, issuer: Issuer::new(params, key), chain: String::new(), file }
    }

    /// A CA below this one; its file is still that of this one.
    pub fn intermediate(&self, name: &str) -> Self {
        let params = ca_params(name, 1);
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.issuer).unwrap().pem();
        let dir = tempfile::tempdir().unwrap();
        Ca { dir, issuer: Issuer::new(params, key), chain, file: self.file.clone() }
    }

    /// A file beside those of the CA.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues a certificate into `{name}.pem` and its key into `{name}.key`.
    pub fn issue(&self, name: &str, leaf: Leaf<'_>) -> (PathBuf, PathBuf) {
        let sans: Vec<String> = leaf.sans.iter().map(|san| (*san).to_owned()).collect();
        let mut params = CertificateParams::new(sans).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, leaf.cn);
        params.serial_number = Some(SerialNumber::from(leaf.serial));
        params.extended_key_usages = leaf.usages;
        if leaf.is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let now = SystemTime::now();
        params.not_before = (now - 10 * DAY).into();
        params.not_after = if leaf.expired { now - DAY } else { now + DAY }.into();
        let key = KeyPair::generate_for(leaf.algorithm).unwrap();
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        let (cert, key_file) =
            (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&cert, format!("{pem}{}", self.chain)).unwrap();
        fs::write(&key_file, key.serialize_pem()).unwrap();
        (cert, key_file)
    }

    /// Writes a revocation list: DER, as etcd takes it, or PEM.
    pub fn revoke(&self, file: &Path, serials: &[u64], pem: bool) {
        let now = SystemTime::now();
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: now.into(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + DAY).into(),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        let bytes = if pem { list.pem().unwrap().into_bytes() } else { list.der().to_vec() };
        fs::write(file, bytes).unwrap();
    }
}
