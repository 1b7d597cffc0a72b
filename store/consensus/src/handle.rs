//! The way into the raft thread for everybody else.
//!
//! Input: calls from any thread, none of which wait for the raft thread. Output: items in the
//! inbox; results come back through [`crate::Sink`] and the `refused` callbacks.
//!
//! **Invariant:** a proposal that was taken is either handed to raft once or refused once.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use mainstay_proto::raftpb::{ConfChange, Message};
use mainstay_proto::walpb;

use crate::error::Refused;
use crate::inbox::{Command, Inbox, OnRefused, Payload, Proposal};
use crate::status::{Counters, Status, Waiting};

/// What the handles and the raft thread share.
pub(crate) struct Shared {
    pub(crate) inbox: Inbox,
    pub(crate) status: ArcSwap<Status>,
    pub(crate) counters: Counters,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

/// A running member. Clones speak to the same one. Dropping handles does not stop it.
#[derive(Clone)]
pub struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Handle {
    /// Proposes an entry. While nobody leads, or leadership is being handed over, it waits in the
    /// inbox until `deadline`, as with etcd; `refused` is called when it is sure that it will not
    /// enter the log. When it has been handed to the leader nothing more is heard of it here: it
    /// comes back through [`crate::Sink::committed`], or it is lost.
    pub fn propose(
        &self,
        data: Bytes,
        deadline: Instant,
        refused: impl FnOnce(Refused) + Send + 'static,
    ) -> Result<(), Refused> {
        if data.is_empty() {
            return Err(Refused::Malformed);
        }
        self.queue(Payload::Data(data), None, deadline, Box::new(refused))
    }

    /// Proposes an entry that only the leader of the term `term` may decide about, such as the end
    /// of a lease: it is refused with [`Refused::NotLeader`] when this member does not lead in that
    /// term any more, and never passed on to another leader. Otherwise like [`Handle::propose`].
    pub fn propose_as_leader(
        &self,
        data: Bytes,
        term: u64,
        deadline: Instant,
        refused: impl FnOnce(Refused) + Send + 'static,
    ) -> Result<(), Refused> {
        if data.is_empty() {
            return Err(Refused::Malformed);
        }
        self.queue(Payload::Data(data), Some(term), deadline, Box::new(refused))
    }

    /// Proposes a membership change, in etcd's numbering; otherwise like [`Handle::propose`].
    pub fn propose_conf_change(
        &self,
        change: ConfChange,
        deadline: Instant,
        refused: impl FnOnce(Refused) + Send + 'static,
    ) -> Result<(), Refused> {
        self.queue(Payload::Change(change), None, deadline, Box::new(refused))
    }

    fn queue(
        &self,
        payload: Payload,
        own_term: Option<u64>,
        deadline: Instant,
        refused: OnRefused,
    ) -> Result<(), Refused> {
        let proposal = Proposal { payload, own_term, deadline, refused };
        let result = self.shared.inbox.propose(proposal);
        if result == Err(Refused::Full) {
            Counters::add(&self.shared.counters.proposals_full, 1);
        }
        result
    }

    /// Proposals that wait for the raft thread or for a leader.
    pub fn proposals_waiting(&self) -> usize {
        self.shared.inbox.proposals()
    }

    /// What waits for the raft thread.
    pub fn waiting(&self) -> Waiting {
        self.shared.inbox.waiting()
    }

    fn request(&self, command: Command) -> Result<(), Refused> {
        let result = self.shared.inbox.push(command);
        if result == Err(Refused::Full) {
            Counters::add(&self.shared.counters.requests_full, 1);
        }
        result
    }

    /// Takes in a message from a peer. `Full` means that it was dropped, which raft bears; a peer
    /// that is told so slows down.
    pub fn message(&self, message: Message) -> Result<(), Refused> {
        let result = self.shared.inbox.push(Command::Message(Box::new(message)));
        if result == Err(Refused::Full) {
            Counters::add(&self.shared.counters.messages_dropped, 1);
        }
        result
    }

    /// Asks for the index from which a read that starts now is linearizable. The answer comes
    /// through [`crate::Sink::read_state`] or [`crate::Sink::read_refused`] with the same context,
    /// or not at all. One request serves all reads that wait when it is made, so the caller should
    /// have one on its way at a time. A context is used only once.
    pub fn read_index(&self, context: u64) -> Result<(), Refused> {
        self.request(Command::ReadIndex(context))
    }

    /// Starts to hand leadership to `to`. That it worked shows in the soft state; after an election
    /// timeout raft gives up and goes on leading, and `refused` is told.
    pub fn transfer(
        &self,
        to: u64,
        refused: impl FnOnce(Refused) + Send + 'static,
    ) -> Result<(), Refused> {
        self.request(Command::Transfer { to, refused: Box::new(refused) })
    }

    /// Starts an election now, if this member may lead and nobody does.
    pub fn campaign(&self) -> Result<(), Refused> {
        self.request(Command::Campaign)
    }

    /// Shortens the wait for the first election by this many ticks (etcd's
    /// `--initial-election-tick-advance` when peers are reachable).
    pub fn advance_ticks(&self, ticks: usize) -> Result<(), Refused> {
        self.shared.inbox.push(Command::AdvanceTicks(ticks))
    }

    /// A message to `id` could not be delivered.
    pub fn report_unreachable(&self, id: u64) {
        // When the inbox is full raft learns from missing answers instead.
        let _ = self.shared.inbox.push(Command::Unreachable(id));
    }

    /// Whether the snapshot sent to `id` arrived. Owed for each one.
    pub fn report_snapshot(&self, id: u64, ok: bool) {
        // Refused only after a stop, when nobody needs it.
        let _ = self.shared.inbox.push(Command::SnapshotReport { id, ok });
    }

    /// Entries up to `index` are applied and the state at `index` is published. `conf_changes` has
    /// each membership change among them: `None` when it was refused, which changes nothing.
    pub fn applied(&self, index: u64, conf_changes: Vec<(u64, Option<ConfChange>)>) {
        // Refused only after a stop, when nobody needs it.
        let _ = self.shared.inbox.push(Command::Applied { index, conf_changes });
    }

    /// The state at `snapshot.index` is durable outside the log: marks it in the log and lets go
    /// of what is no longer needed.
    pub fn snapshot_taken(&self, snapshot: walpb::Snapshot) {
        // Refused only after a stop, when nobody needs it.
        let _ = self.shared.inbox.push(Command::SnapshotTaken(snapshot));
    }

    /// The newest published status. Cheap.
    pub fn status(&self) -> Arc<Status> {
        self.shared.status.load_full()
    }

    /// Counts for metrics.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Asks the raft thread to end. It writes what it has, closes the log and calls
    /// [`crate::Sink::stopped`].
    pub fn stop(&self) {
        // Refused when it has ended already.
        let _ = self.shared.inbox.push(Command::Stop);
    }

    /// Waits until the raft thread has ended. Not to be called on the raft thread.
    pub fn join(&self) {
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches its own panics and reports them through the sink.
            let _ = thread.join();
        }
    }
}
