//! Users and roles beside real etcd: who may do what, tokens, running watches, the gateway.
//!
//! `MAINSTAY_TEST_PROGRAM=etcd` runs the same on real etcd alone, which shows that the tests are
//! fair; there only the tests of watches that end and of what is logged fail, on purpose.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

mod caller;
mod gateway;
mod jwt;
mod matrix;
mod tokens;
mod watch;
