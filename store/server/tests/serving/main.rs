//! Served members over real connections: streams and how they end, locks and elections, snapshots,
//! HTTP, metrics, the faults of clients.

mod common;
mod grpc;
mod http;
mod recipes;
mod streams;
