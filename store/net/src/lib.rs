//! Listeners and the one-port server for gRPC and HTTP.
