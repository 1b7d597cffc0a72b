//! Whole members in this process: alone, and three of them over loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

mod cluster;
mod common;
mod mixed;
mod peer_port;
mod recovery;
mod single;
