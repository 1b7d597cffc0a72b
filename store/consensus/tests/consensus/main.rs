//! Consensus as a whole: random runs of whole clusters in virtual time, single scenarios, and the
//! raft thread with real time.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod asks;
mod cluster;
mod disk;
mod machine;
mod random;
mod scenarios;
mod threads;
mod truth;
