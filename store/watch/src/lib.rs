//! Watchers: live delivery, catch-up, progress and the slow-reader policy.
//!
//! Input: watch requests of clients, the events of each applied revision with the view that they
//! belong to, and the time. Output: per stream an ordered queue of [`Frame`]s, each of which is
//! one encoded `WatchResponse`.
//!
//! - [`Hub`] is the pure core: no clock, no thread, no socket; reads go through [`History`].
//! - [`spawn`] runs a hub on a thread of its own and gives out a [`WatchHandle`].
//! - Who applies entries calls [`WatchHandle::publish`] with the events as `mvcc` gives them and
//!   a [`StoreView`] of the snapshot that contains them.
//!
//! **Invariant:** for every watcher the events are ordered, unique, complete from its start
//! revision on, atomic per revision, and after a response whose header says R no event with a
//! revision ≤ R follows.
//! **Invariant:** no queue grows without bound. A watcher whose stream is full keeps only its
//! position and reads the rest from history later.

mod driver;
mod encode;
mod history;
mod hub;
mod inbox;
mod index;
mod interval;
mod job;
mod limits;
mod pool;
mod request;
mod stream;

pub use driver::{Driver, spawn};
pub use encode::{EventFields, Frame, FrameKind};
pub use history::{History, HistoryError, Published, StoreView};
pub use hub::{Drained, Fatal, Hub, Metrics, Output, Reach, StreamId};
pub use inbox::WatchHandle;
pub use job::{JobResult, ReadJob};
pub use limits::{HubConfig, Limits};
pub use request::{CreateRequest, Filters, KeyRange, MayWatch, RangeEnd};
pub use stream::{StreamClosed, WatchRequests, WatchResponses};
