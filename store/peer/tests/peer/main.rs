//! The peer protocol on real sockets: between two members of ours, against members that misbehave,
//! and against real etcd.
#![allow(clippy::unwrap_used)]

mod endpoints;
mod etcd;
mod fake;
mod real_cluster;
mod same_answers;
mod snapshots;
mod streams;
