//! Served members over real connections: streams and how they end, locks and elections, snapshots,
//! HTTP, metrics, the faults of clients.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

mod certificates;
mod common;
mod grpc;
mod http;
mod recipes;
mod streams;
