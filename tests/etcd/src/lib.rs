//! Black-box tests: members of Mainstay and of real etcd as processes, driven over gRPC.
//!
//! Input: the binary under test and the peers that `make peers` builds. Output: differences.
//! Nothing here looks inside a member.
#![allow(clippy::print_stdout)]

pub mod client;
pub mod fuzz;
pub mod killloop;
pub mod matrix;
pub mod member;
pub mod mixed;
pub mod ops;
pub mod size;
