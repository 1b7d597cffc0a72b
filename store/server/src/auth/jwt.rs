//! Signed tokens: a user, the revision of the rules, and when it is over, under a signature.
//!
//! Input: keys in the forms that etcd takes, tokens, the wall clock. Output: tokens and identities,
//! the same as etcd's, so members of both kinds take each other's.
//! **Invariant:** only the configured method is taken, whatever a token says of itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
    KeyPair as _, RsaKeyPair,
};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, EncodingKey, Header, Validation};
use mainstay_mvcc::Identity;
use serde_json::{Map, Value, json};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509Certificate};

use super::options::{JwtOptions, TokenError};
use crate::error::{Error, Result};

/// Signs and checks tokens.
pub(crate) struct Jwt {
    method: Algorithm,
    /// `None`: this member can only check.
    signing: Option<EncodingKey>,
    checking: DecodingKey,
    validation: Validation,
    ttl: Duration,
}

impl Jwt {
    pub(super) fn new(options: &JwtOptions) -> Result<Self, TokenError> {
        let method = options.method;
        let (signing, checking) = keys(options)?;
        // Times are looked at here, since etcd takes tokens without them and gives no grace.
        let mut validation = Validation::new(method);
        validation.required_spec_claims.clear();
        (validation.validate_exp, validation.validate_nbf, validation.validate_aud) =
            (false, false, false);
        let jwt = Self { method, signing, checking, validation, ttl: options.ttl };
        if jwt.signing.is_some() && jwt.sign("", 0).is_err() {
            return Err(TokenError::Key("priv-key", options.method_name));
        }
        Ok(jwt)
    }

    pub(super) fn can_sign(&self) -> Result<()> {
        self.signing_key().map(drop)
    }

    fn signing_key(&self) -> Result<&EncodingKey> {
        let verify_only =
            || Error::Raw("auth: token signing attempted with verify-only key".into());
        self.signing.as_ref().ok_or_else(verify_only)
    }

    /// A token for a user.
    pub(super) fn sign(&self, user: &str, revision: u64) -> Result<String> {
        let key = self.signing_key()?;
        let until = since_epoch(SystemTime::now()) + self.ttl;
        let claims = json!({"username": user, "revision": revision, "exp": until.as_secs()});
        jsonwebtoken::encode(&Header::new(self.method), &claims, key)
            .map_err(|error| Error::Raw(error.to_string().into()))
    }

    /// Who the token says it is, if it was signed with the key and its time has come and not gone.
    pub(super) fn verify(&self, token: &str) -> Option<Identity> {
        let decoded =
            jsonwebtoken::decode::<Map<String, Value>>(token, &self.checking, &self.validation);
        let claims = match decoded {
            Ok(decoded) => decoded.claims,
            Err(error) => {
                tracing::warn!(%error, "failed to parse a JWT token");
                return None;
            }
        };
        let now = since_epoch(SystemTime::now()).as_secs_f64();
        let time = |name: &str| match claims.get(name) {
            None => Some(None),
            Some(time) => time.as_f64().map(Some),
        };
        let over = time("exp")?.is_some_and(|exp| now >= exp);
        let early = time("nbf")?.is_some_and(|nbf| now < nbf);
        if over || early {
            tracing::warn!(over, early, "a JWT token is not valid now");
            return None;
        }
        let user = claims.get("username")?.as_str()?.to_owned();
        // Numbers in JSON are floats to Go.
        let revision = claims.get("revision")?.as_f64()? as u64;
        Some(Identity { user, revision })
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The key to sign with, if there is one, and the one to check with.
fn keys(options: &JwtOptions) -> Result<(Option<EncodingKey>, DecodingKey), TokenError> {
    let JwtOptions { method, method_name, public_key, private_key, .. } = options;
    let wrong = |file| TokenError::Key(file, method_name);
    let family = method.family();
    if family == AlgorithmFamily::Hmac {
        if private_key.is_empty() {
            return Err(TokenError::MissingKey);
        }
        let no_key = |_| wrong("priv-key");
        let signing = EncodingKey::from_secret(private_key).map_err(no_key)?;
        return Ok((Some(signing), DecodingKey::from_secret(private_key).map_err(no_key)?));
    }
    let private = match &private_key[..] {
        [] => None,
        pem => Some(private_half(*method, pem).ok_or_else(|| wrong("priv-key"))?),
    };
    let public = match &public_key[..] {
        [] => None,
        pem => Some(public_half(pem).ok_or_else(|| wrong("pub-key"))?),
    };
    let (signing, public) = match (private, public) {
        (None, None) => return Err(TokenError::MissingKey),
        (None, Some(public)) => (None, public),
        (Some((_, own)), Some(public)) if own != public => return Err(TokenError::KeyMismatch),
        (Some((signing, own)), _) => (Some(signing), own),
    };
    let checking = match family {
        AlgorithmFamily::Rsa => DecodingKey::from_rsa_der(&public),
        AlgorithmFamily::Ec => DecodingKey::from_ec_der(&public),
        _ => DecodingKey::from_ed_der(&public),
    };
    Ok((signing, checking))
}

/// A private key, and the bytes of its public half.
fn private_half(method: Algorithm, pem: &[u8]) -> Option<(EncodingKey, Vec<u8>)> {
    let (_, read) = parse_x509_pem(pem).ok()?;
    let der = &read.contents;
    match method.family() {
        AlgorithmFamily::Rsa => {
            let plain = RsaKeyPair::from_der(der);
            let pair = plain.or_else(|_| RsaKeyPair::from_pkcs8(der)).ok()?;
            Some((EncodingKey::from_rsa_pem(pem).ok()?, pair.public_key().as_ref().to_vec()))
        }
        AlgorithmFamily::Ec => {
            let curve = match method {
                Algorithm::ES256 => &ECDSA_P256_SHA256_FIXED_SIGNING,
                _ => &ECDSA_P384_SHA384_FIXED_SIGNING,
            };
            let pair = EcdsaKeyPair::from_pkcs8(curve, der)
                .or_else(|_| EcdsaKeyPair::from_private_key_der(curve, der))
                .ok()?;
            let signing = EncodingKey::from_ec_der(pair.to_pkcs8v1().ok()?.as_ref());
            Some((signing, pair.public_key().as_ref().to_vec()))
        }
        _ => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok()?;
            let signing = EncodingKey::from_ed_der(pair.to_pkcs8().ok()?.as_ref());
            Some((signing, pair.public_key().as_ref().to_vec()))
        }
    }
}

/// The bytes of a public key, bare or in a certificate.
fn public_half(pem: &[u8]) -> Option<Vec<u8>> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    let der = &pem.contents;
    if let Ok((_, key)) = SubjectPublicKeyInfo::from_der(der) {
        return Some(key.subject_public_key.data.to_vec());
    }
    if let Ok((_, certificate)) = X509Certificate::from_der(der) {
        return Some(certificate.public_key().subject_public_key.data.to_vec());
    }
    // The older form of RSA keys, which is what is inside of the other two.
    aws_lc_rs::rsa::PublicKey::from_der(der).ok().map(|key| key.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(method: Algorithm, name: &'static str, private: &str, public: &str) -> JwtOptions {
        JwtOptions {
            method,
            method_name: name,
            public_key: public.into(),
            private_key: private.into(),
            ttl: Duration::from_secs(60),
        }
    }

    fn hs256(ttl: u64) -> Jwt {
        let secret = options(Algorithm::HS256, "HS256", "secret", "");
        Jwt::new(&JwtOptions { ttl: Duration::from_secs(ttl), ..secret }).unwrap()
    }

    #[test]
    fn a_token_says_who_and_under_which_rules() {
        let jwt = hs256(60);
        let token = jwt.sign("ann", 7).unwrap();
        assert_eq!(jwt.verify(&token), Some(Identity { user: "ann".into(), revision: 7 }));
        assert_eq!(jwt.verify(&(token + "x")), None);
        assert_eq!(hs256(0).verify(&hs256(0).sign("ann", 7).unwrap()), None, "over at once");
    }

    #[test]
    fn what_a_token_must_and_may_say() {
        let jwt = hs256(60);
        let verify = |method, claims: Value| {
            let key = EncodingKey::from_secret(b"secret").unwrap();
            jwt.verify(&jsonwebtoken::encode(&Header::new(method), &claims, &key).unwrap())
        };
        let whole = json!({"username": "ann", "revision": 3.0, "exp": 4_000_000_000_u64});
        assert!(verify(Algorithm::HS256, whole.clone()).is_some());
        assert_eq!(verify(Algorithm::HS384, whole), None, "another method");
        let endless = json!({"username": "ann", "revision": 3});
        assert_eq!(verify(Algorithm::HS256, endless).unwrap().revision, 3);
        for wrong in [
            json!({"username": "ann"}),
            json!({"revision": 3}),
            json!({"username": 1, "revision": 3}),
            json!({"username": "ann", "revision": "3"}),
            json!({"username": "ann", "revision": 3, "exp": 1000}),
            json!({"username": "ann", "revision": 3, "exp": "x"}),
            json!({"username": "ann", "revision": 3, "nbf": 4_000_000_000_u64}),
        ] {
            assert_eq!(verify(Algorithm::HS256, wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn keys_come_in_pairs_or_alone() {
        for (method, name, kind) in [
            (Algorithm::ES256, "ES256", &rcgen::PKCS_ECDSA_P256_SHA256),
            (Algorithm::ES384, "ES384", &rcgen::PKCS_ECDSA_P384_SHA384),
            (Algorithm::EdDSA, "EdDSA", &rcgen::PKCS_ED25519),
            (Algorithm::RS256, "RS256", &rcgen::PKCS_RSA_SHA256),
            (Algorithm::PS512, "PS512", &rcgen::PKCS_RSA_SHA256),
        ] {
            let pair = rcgen::KeyPair::generate_for(kind).unwrap();
            let other = rcgen::KeyPair::generate_for(kind).unwrap();
            let (private, public) = (pair.serialize_pem(), pair.public_key_pem());
            let make =
                |private: &str, public: &str| Jwt::new(&options(method, name, private, public));
            let both = make(&private, &public).unwrap();
            let token = both.sign("ann", 2).unwrap();
            for jwt in [both, make(&private, "").unwrap(), make("", &public).unwrap()] {
                assert_eq!(jwt.verify(&token).unwrap().user, "ann", "{name}");
            }
            assert!(make("", &public).unwrap().can_sign().is_err());
            let error = |private: &str, public: &str| make(private, public).err().unwrap();
            assert_eq!(error(&private, &other.public_key_pem()), TokenError::KeyMismatch);
            assert_eq!(error("", ""), TokenError::MissingKey);
            assert_eq!(error("nonsense", ""), TokenError::Key("priv-key", name));
        }
    }
}
