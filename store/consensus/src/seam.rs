//! What consensus asks of its surroundings: a way to peers, a source of snapshots, and somebody
//! who takes what has been decided.
//!
//! **Invariant:** the raft thread calls these between two disk writes, so none of them may block
//! or wait for the raft thread.

use std::any::Any;
use std::sync::Arc;

use mainstay_proto::raftpb::{Entry, Message, Snapshot, SnapshotMetadata};

use crate::error::Fatal;
use crate::status::SoftState;

/// Keeps the state behind a snapshot message readable until the message is through. Consensus does
/// not look inside: it comes from [`SnapshotSource`] and goes to [`Transport`].
pub type Pinned = Arc<dyn Any + Send + Sync>;

/// The way to the other members. Losing a message is allowed; waiting is not.
pub trait Transport: Send + Sync {
    /// Sends messages of any type but MsgSnap, in this order for each receiver.
    fn send(&self, messages: Vec<Message>);

    /// Sends a MsgSnap with the state that it stands for. The result must come back through
    /// [`crate::Handle::report_snapshot`], or the follower waits for ever.
    fn send_snapshot(&self, message: Message, state: Pinned);
}

/// Where snapshots for lagging followers come from.
pub trait SnapshotSource: Send + Sync {
    /// The newest published state: its index, the term of that entry and the members as of that
    /// index, and the state itself. Called on the raft thread when a follower needs it.
    ///
    /// **Invariant:** an index is published before the raft thread is told that it is applied.
    fn latest(&self) -> (SnapshotMetadata, Pinned);
}

/// Takes what has been decided: to the apply thread, and to those who wait for reads.
pub trait Sink: Send {
    /// Committed entries, in order, each exactly once since the start.
    fn committed(&self, entries: Vec<Entry>);

    /// The state is to be replaced by this snapshot, which is already marked in the log. Entries
    /// that come after it follow by [`Sink::committed`].
    fn install_snapshot(&self, snapshot: Snapshot);

    /// The read request `context` may be answered from any state at or above `index`.
    fn read_state(&self, context: u64, index: u64);

    /// The read request is lost, for example because the leader changed; ask again under a new
    /// context. A request that was lost on the way to the leader is not reported: use a timeout.
    fn read_refused(&self, context: u64);

    /// The leader, the term or this member's role changed.
    fn soft_state(&self, state: SoftState);

    /// The raft thread has ended and has let go of the log: `None` after a stop, else why. On
    /// `Some` the process must end.
    fn stopped(&self, reason: Option<Fatal>);
}
