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
//! What differs from etcd:
//!
//! - A certificate of X.509 version 1 is refused, but for a CA. So are RSA keys below 2048 bits.
//! - A certificate that may sign others does not pass as a client's or a server's own, unless it
//!   stands in the CA file itself.
//! - CBC suites and suites without forward secrecy are not offered.
//! - A revoked certificate is refused in the handshake, with an alert that says so; etcd ends the
//!   connection after the handshake without one.
//! - With TLS 1.2 a client without a certificate hears `certificate required` too, and one that
//!   speaks only TLS 1.1 `handshake failure`.
//! - `http/1.1` is a protocol that can be negotiated; etcd serves such clients without naming it.
//! - A CA or revocation list that cannot be read is an error at the start. Later, the one that was
//!   read before stays in use; etcd lets nobody in while a revocation list cannot be read.
//! - `--auto-tls` replaces its certificate when it has expired.

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
