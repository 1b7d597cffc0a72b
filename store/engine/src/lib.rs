//! Ordered byte maps with atomic batches and snapshots: the ground that the store's state stands on.
//!
//! Input: whole batches from the one apply thread. Output: consistent views for any number of readers.
//! Two engines answer to the same traits: `RocksEngine` keeps the maps on disk, [`MemEngine`] keeps
//! them in memory for the tests and simulations of the pure crates. Only this crate names `rocksdb`.
//!
//! - **Invariant:** a batch is seen whole or not at all, over all families, by every view and after
//!   every crash.
//! - **Invariant:** a view never changes after it was taken (an [`Engine`] itself is a view of "now").
//! - **Invariant:** `write` is not durable; `flush` is. After a crash the engine holds the state
//!   after some batch that is not older than the last flush: never a mixture, never a gap.
//! - **Invariant:** an error other than "no such key" is fatal for the caller. An engine that failed
//!   in the background refuses everything from then on with [`EngineError::Poisoned`].

mod batch;
mod error;
mod family;
mod mem;
#[cfg(feature = "rocks")]
mod rocks;
mod view;

pub use batch::{Batch, Op};
pub use error::{EngineError, Result};
pub use family::Family;
pub use mem::MemEngine;
#[cfg(feature = "rocks")]
pub use rocks::{RocksEngine, RocksOptions};
pub use view::{Cursor, Engine, Scan, Usage, View};
