//! TLS over loopback, with certificates that each test makes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

mod clients;
mod common;
mod files;
mod handshakes;
mod outgoing;
mod pki;
mod reloading;
