//! What the log promises to the rest of the store: the trait that the raft thread writes through,
//! the options, and what a start finds.
//!
//! **Invariant:** nothing here touches a file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;

/// The durable log as the raft thread sees it.
///
/// A call that returns an error has poisoned the log: all later calls fail too, and the process
/// must end.
pub trait LogStore: Send {
    /// Writes `entries`, then `hard_state`, as one batch with at most one sync.
    ///
    /// The batch is synced when there are entries, when term or vote changed since the last state,
    /// or when `sync` asks for it. A state whose commit alone moved waits for the next sync.
    /// `None`, and a state of three zeros, write nothing.
    fn append(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> io::Result<()>;

    /// Writes a snapshot mark and syncs it. Replay may start at a mark once a hard state with
    /// `commit >= snapshot.index` is in the log, so for a snapshot that came from the leader the
    /// hard state has to follow by [`LogStore::append`] before anything builds on it.
    fn save_snapshot(&mut self, snapshot: &walpb::Snapshot) -> io::Result<()>;

    /// Gives up the segments that hold only entries below `index`, and has the oldest of those
    /// beyond [`Options::max_wals`] deleted. The segment with `index` in it always stays. With
    /// [`Options::prepare_ahead`] this touches no disk: the deletion comes later, and if it fails a
    /// later call says so.
    fn release_before(&mut self, index: u64) -> io::Result<()>;

    /// Writes and syncs what is buffered and lets the files go. Later calls fail.
    fn close(&mut self) -> io::Result<()>;
}

/// The identity that opens every segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The member's id.
    pub node_id: u64,
    /// The cluster's id.
    pub cluster_id: u64,
}

/// What a log found when it was opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// Who wrote the log.
    pub metadata: Metadata,
    /// The last hard state; three zeros when none was written.
    pub hard_state: HardState,
    /// The mark from which replay starts; index 0 at the beginning of a log.
    pub snapshot: walpb::Snapshot,
    /// Every entry after the mark, without gaps. Those above `hard_state.commit` may yet be
    /// replaced by the leader.
    pub entries: Vec<Entry>,
    /// The torn tail that was cut, if there was one.
    pub repair: Option<Repair>,
}

/// A torn tail: the last batch was being written when the machine stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// The last segment.
    pub file: PathBuf,
    /// Where the unfinished record began; the segment now ends here.
    pub offset: u64,
    /// The copy of the segment as it was found.
    pub kept_as: PathBuf,
}

/// Learns how long the disk takes. Called on the thread that writes.
pub trait Observer: Send + Sync {
    /// One sync of a segment or of the directory took this long.
    fn fsync(&self, took: Duration);
    /// One write to a segment of this many bytes took this long.
    fn write(&self, bytes: usize, took: Duration);
}

/// Looks away.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn fsync(&self, _took: Duration) {}
    fn write(&self, _bytes: usize, _took: Duration) {}
}

/// How a log is kept.
#[derive(Clone)]
pub struct Options {
    /// The size at which a segment is full; it is also what is preallocated. etcd's: 64,000,000.
    pub segment_bytes: u64,
    /// Released segments are deleted while more files than this are there (`--max-wals`);
    /// 0 keeps all.
    pub max_wals: usize,
    /// False skips every sync of a segment (`--unsafe-no-fsync`): only for tests and benchmarks.
    pub sync: bool,
    /// Whether a thread prepares the next segment ahead of time and deletes old ones. Without it
    /// the calls do so themselves: slower, but the order of disk operations is then fixed, which a
    /// simulation needs.
    pub prepare_ahead: bool,
    /// At open, ignores snapshot marks above this index. `None` takes the newest usable mark.
    pub replay_from_at_most: Option<u64>,
    /// Told about every sync and write.
    pub observer: Arc<dyn Observer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 64_000_000,
            max_wals: 5,
            sync: true,
            prepare_ahead: true,
            replay_from_at_most: None,
            observer: Arc::new(NoObserver),
        }
    }
}
