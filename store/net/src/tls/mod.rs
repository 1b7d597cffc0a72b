//! TLS on both sides: what flags ask for, the files that they name, and connections made with them.
//!
//! Input: [`TlsOptions`], one for the client side and one for the peer side. Output: [`ServerTls`],
//! which listeners take, and [`ClientTls`], which wraps connections to other members.
//!
//! The rules are etcd's. A trusted CA asks every client for a certificate. The files are looked at
//! again at each handshake, and what changed takes effect with it: certificates, keys, CAs, and
//! revocation lists. Running connections are left alone.
//!
//! **Invariants:** a set of files that does not work never replaces one that does, and is warned of
//! once; no connection is resumed past the checks of its certificate.
//!
//! What differs from etcd stands in docs/differences.md.

mod accept;
mod addresses;
mod ciphers;
mod client;
mod error;
mod files;
mod identity;
mod options;
mod reload;
mod self_signed;
mod server;
mod texts;
mod trust;
mod verify;

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub(crate) use accept::{Handshakes, Io};
pub use client::{ClientStream, ClientTls};
pub use error::TlsError;
pub use identity::Identity;
pub use options::{Protocol, TlsOptions, TlsVersion};
pub use self_signed::auto_tls;
pub use server::{Port, ServerTls};

/// The one provider, with the suites that the options allow.
fn provider(protocol: &Protocol) -> Arc<CryptoProvider> {
    let all = aws_lc_rs::default_provider();
    let cipher_suites = ciphers::allowed(&protocol.cipher_suites, &all.cipher_suites);
    Arc::new(CryptoProvider { cipher_suites, ..all })
}
