//! Differential fuzz: one random stream of requests goes to real etcd and to Mainstay, and every
//! answer must be equal, ids and times aside.
//!
//! Input: a seed and two members that have seen the same requests. Output: the first difference,
//! with the requests that led to it. **Invariant:** a seed makes the same requests every time, so
//! a difference replays.

pub mod generate;
mod run;
mod watch;

pub use run::{Difference, Pair, Session, run_seed};
