//! `--auth-token`: the kind of tokens and its options, with etcd's texts for mistakes.

use std::time::Duration;

use jsonwebtoken::Algorithm;

use super::jwt::Jwt;
use super::tokens::{SimpleTokens, Tokens};
use crate::duration::parse_duration;

/// Lifetime of a signed token when none is given.
const DEFAULT_JWT_TTL: Duration = Duration::from_secs(300);

/// Why the option makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No such kind of tokens, or options that are none. What is wrong was logged.
    #[error("auth: invalid auth options")]
    Options,
    /// A method that etcd has and this server has not.
    #[error(
        "auth: the signature method {0} is not offered; use one of RS256, RS384, RS512, PS256, \
         PS384, PS512, ES256, ES384, EdDSA, HS256, HS384, HS512"
    )]
    Method(&'static str),
    /// A method that signs nothing.
    #[error("unsupported signing method: *jwt.signingMethodNone")]
    NoSignature,
    /// Neither key is given.
    #[error("auth: missing key data")]
    MissingKey,
    /// The keys are not of one pair.
    #[error("auth: public and private keys don't match")]
    KeyMismatch,
    /// A key file holds something else than a key for the method.
    #[error("auth: {0} holds no key for {1}")]
    Key(&'static str, &'static str),
}

/// All methods with their names.
const METHODS: [(&str, Algorithm); 12] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
];

/// What signed tokens are made of.
pub(super) struct JwtOptions {
    pub(super) method: Algorithm,
    pub(super) method_name: &'static str,
    pub(super) public_key: Vec<u8>,
    pub(super) private_key: Vec<u8>,
    pub(super) ttl: Duration,
}

impl Tokens {
    /// Tokens of the kind that `options` name; `ttl` is the lifetime of simple ones.
    pub(crate) fn new(options: &str, ttl: Duration) -> Result<Self, TokenError> {
        let mut words = options.split(',');
        let kind = words.next().unwrap_or_default();
        let mut pairs = Vec::new();
        for word in words {
            let Some((name, value)) = word.split_once('=').filter(|(_, v)| !v.contains('=')) else {
                tracing::error!(option = options, "invalid token option");
                return Err(TokenError::Options);
            };
            if pairs.iter().any(|(known, _)| *known == name) {
                tracing::error!(
                    option = options,
                    "duplicate-parameter" = name,
                    "invalid token option"
                );
                return Err(TokenError::Options);
            }
            pairs.push((name, value));
        }
        match kind {
            "simple" => {
                tracing::warn!("simple token is not cryptographically signed");
                Ok(Self::Simple(SimpleTokens::new(ttl)))
            }
            "jwt" => Ok(Self::Jwt(Box::new(Jwt::new(&read(&pairs)?)?))),
            "" => Ok(Self::Nothing),
            _ => {
                tracing::warn!("type" = kind, "unknown token type");
                Err(TokenError::Options)
            }
        }
    }
}

fn read(pairs: &[(&str, &str)]) -> Result<JwtOptions, TokenError> {
    let of = |name: &str| pairs.iter().find(|(n, v)| *n == name && !v.is_empty()).map(|(_, v)| *v);
    let problem = |error: String| {
        tracing::error!(error, "problem loading JWT options");
        TokenError::Options
    };
    let file = |name: &str| match of(name) {
        None => Ok(Vec::new()),
        Some(path) => std::fs::read(path).map_err(|error| problem(format!("open {path}: {error}"))),
    };
    let ttl = match of("ttl") {
        None => DEFAULT_JWT_TTL,
        Some(text) => {
            lifetime(text).ok_or_else(|| problem(format!("time: invalid duration {text:?}")))?
        }
    };
    let (public_key, private_key) = (file("pub-key")?, file("priv-key")?);
    let (method_name, method) = match of("sign-method").unwrap_or_default() {
        "ES512" => return Err(TokenError::Method("ES512")),
        "none" => return Err(TokenError::NoSignature),
        name => *METHODS
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| problem("auth: invalid auth signature method".into()))?,
    };
    let known = ["sign-method", "pub-key", "priv-key", "ttl"];
    let unknown: Vec<&str> =
        pairs.iter().map(|(name, _)| *name).filter(|name| !known.contains(name)).collect();
    if !unknown.is_empty() {
        tracing::warn!(keys = ?unknown, "unknown JWT options");
    }
    Ok(JwtOptions { method, method_name, public_key, private_key, ttl })
}

/// One below zero makes tokens that are over at once, which zero does too.
fn lifetime(text: &str) -> Option<Duration> {
    match text.strip_prefix('-') {
        None => parse_duration(text),
        Some(rest) if rest.starts_with('+') => None,
        Some(rest) => parse_duration(rest).map(|_| Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_have_etcds_texts() {
        let text = |options: &str| match Tokens::new(options, Duration::ZERO) {
            Ok(_) => "fine".to_owned(),
            Err(error) => error.to_string(),
        };
        for good in ["simple", "simple,ttl=5", ""] {
            assert_eq!(text(good), "fine", "{good}");
        }
        for bad in [
            "bogus",
            "jwt",
            "jwt,x",
            "jwt,a=b=c",
            "jwt,sign-method=FOO",
            "jwt,sign-method=HS256,sign-method=HS256",
            "jwt,sign-method=HS256,ttl=abc",
            "jwt,sign-method=RS256,priv-key=/nowhere/at-all",
        ] {
            assert_eq!(text(bad), "auth: invalid auth options", "{bad}");
        }
        assert_eq!(text("jwt,sign-method=RS256"), "auth: missing key data");
        assert_eq!(
            text("jwt,sign-method=none"),
            "unsupported signing method: *jwt.signingMethodNone"
        );
        assert!(text("jwt,sign-method=ES512").contains("ES512"));
    }

    #[test]
    fn a_lifetime_below_zero_is_none() {
        assert_eq!(lifetime("5m"), Some(Duration::from_secs(300)));
        assert_eq!((lifetime("0"), lifetime("-5s")), (Some(Duration::ZERO), Some(Duration::ZERO)));
        for bad in ["", "-", "-+5s", "--5s", "-x"] {
            assert_eq!(lifetime(bad), None, "{bad}");
        }
    }
}
