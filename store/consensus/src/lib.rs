//! Consensus: a synchronous raft node and the one thread that drives it.
//!
//! The only crate that names raft-rs. Everything that enters or leaves is in etcd's own messages
//! (`mainstay_proto::raftpb`), because the peers may be real etcd members and the log is in
//! etcd's format.
//!
//! - [`Node`]: inputs in, [`Ready`] out. No clock, thread, file or socket, so it runs in a
//!   simulation as it runs in a member.
//! - [`spawn`]: the raft thread around a node. It takes all waiting inputs, makes one step, writes
//!   the log once and hands out what is decided.
//! - [`Transport`], [`SnapshotSource`], [`Sink`]: what it asks of its surroundings.
//!
//! **Invariant:** an entry is handed out as committed only after a quorum has it on disk, this
//! member included.
//! **Invariant:** no message that promises something leaves before what it promises is on disk.
//! **Invariant:** log entries leave with the bytes with which they were proposed.
//!
//! `docs/consensus.md` tells where raft-rs and etcd's raft differ and what is done about it.

mod change;
mod config;
mod convert;
mod driver;
mod error;
mod handle;
mod hold;
mod inbox;
mod logger;
mod node;
mod outbox;
mod reads;
mod seam;
mod status;
mod storage;

pub use change::bootstrap;
pub use config::{Config, InboxLimits, Start};
pub use driver::spawn;
pub use error::{BadMessage, Fatal, Refused, StepError};
pub use handle::Handle;
pub use inbox::OnRefused;
pub use node::{Advanced, Input, Node, Ready};
pub use outbox::Outbox;
pub use seam::{Pinned, Sink, SnapshotSource, Transport};
pub use status::{Counters, PeerProgress, Replication, Role, SoftState, Status, Waiting};
