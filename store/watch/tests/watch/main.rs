//! Tests of the hub against a fake history, and of its threads.
#![allow(clippy::unwrap_used)]

mod driver;
mod fairness;
mod property;
mod store;
mod support;
mod table;
