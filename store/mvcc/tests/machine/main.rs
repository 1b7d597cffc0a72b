//! The state machine from outside: scenarios, vectors of real servers, crashes, and random
//! histories against a naive model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod auth;
mod durability;
mod members;
mod model;
mod random;
mod scenarios;
mod store;
mod vectors;
