//! What the hub reads: the events of applied revisions, and pinned views of the store from which
//! older events and previous values are read.
//!
//! Implemented by the server over an engine snapshot; by a plain list in tests.
//! **Invariant:** a `History` is immutable. Its revision, its compaction revision and everything
//! that its methods answer stay the same for as long as it is held.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_proto::mvccpb::KeyValue;

/// A point in the history: the main revision and the position within it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The revision that clients see.
    pub main: i64,
    /// The position of the change within its transaction.
    pub sub: i64,
}

/// Whether a key was written or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The key was written.
    Put,
    /// The key was removed; `kv` carries only the key and the mod revision.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Whether the key was written or removed.
    pub kind: EventKind,
    /// The pair after the change.
    pub kv: KeyValue,
    /// Where the previous value of the key is stored, if that is known and there is one.
    pub prev: Option<Revision>,
}

impl Event {
    /// Whether this change began a new life of the key, so that there is no previous value.
    pub fn is_create(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision == self.kv.mod_revision
    }

    /// Roughly the memory that the event holds on to.
    pub(crate) fn weight(&self) -> usize {
        self.kv.key.len() + self.kv.value.len() + std::mem::size_of::<Self>()
    }
}

/// All changes of one main revision, in order of their position within it.
#[derive(Clone, Debug)]
pub struct RevisionEvents {
    /// The main revision.
    pub revision: i64,
    /// Its changes.
    pub events: Arc<[Event]>,
}

/// A step of the store: the revisions that were applied, and the view that contains them.
#[derive(Clone)]
pub struct Published {
    /// The store after these revisions. It says what the current and the compacted revision are.
    pub view: Arc<dyn History>,
    /// Every revision since the previous step, in order. If some are missing (a snapshot was
    /// installed, or they were left out on purpose), watchers read them from the view.
    pub revisions: Vec<RevisionEvents>,
}

/// The bounds of one scan. A scan always covers at least one revision, however large it is.
#[derive(Clone, Copy, Debug)]
pub struct ScanLimit {
    /// Revisions with at least one wanted event.
    pub revisions: usize,
    /// Keys and values of wanted events.
    pub bytes: usize,
    /// Rows looked at, wanted or not.
    pub rows: usize,
}

/// What a scan found.
#[derive(Clone, Debug)]
pub struct Scanned {
    /// The revisions that have wanted events, with only these, in order.
    pub revisions: Vec<RevisionEvents>,
    /// The first revision that was not looked at; everything wanted below it is in `revisions`.
    pub next: i64,
}

/// A question for the value that a key had just before a revision.
#[derive(Clone, Debug)]
pub struct Previous {
    /// The key.
    pub key: Bytes,
    /// The main revision of the change; asked for is the state at `before - 1`.
    pub before: i64,
    /// The row of the previous value if the event says it.
    pub at: Option<Revision>,
}

/// A pinned, immutable view of the store.
pub trait History: Send + Sync {
    /// The newest revision in the view.
    fn revision(&self) -> i64;

    /// The revision below which history may be gone; events at this revision are still there.
    fn compacted(&self) -> i64;

    /// The events with revision ≥ `from` whose key is wanted, up to the limit, cut between two
    /// revisions. `from` is not below `compacted()` and not above `revision()`; the answer's
    /// `next` is above `from` and at most `revision() + 1`.
    fn scan(
        &self,
        from: i64,
        limit: ScanLimit,
        wanted: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Scanned, HistoryError>;

    /// The previous pairs, one answer per question. `None` if the key did not exist or if the
    /// row is gone. Questions without `at` are only asked if `before - 1 ≥ compacted()`.
    fn previous(&self, wanted: &[Previous]) -> Result<Vec<Option<KeyValue>>, HistoryError>;
}

/// The store could not be read. Nothing that watchers are told can be trusted after this.
#[derive(Debug, thiserror::Error)]
#[error("reading the history for watchers: {0}")]
pub struct HistoryError(pub Box<dyn std::error::Error + Send + Sync>);
