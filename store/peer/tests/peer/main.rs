//! The peer protocol on real sockets: between two members of ours, against members that misbehave,
//! and against real etcd.
#![allow(clippy::unwrap_used)]

mod fake;
mod snapshots;
mod streams;
