//! Snapshots as bbolt databases: out of a published state for lagging members and for operators,
//! and into a new generation of the engine when the leader sends one.
//!
//! Input: published states; files that come from the leader. Output: files front to back; staged
//! generations.
//! **Invariant:** a snapshot is made of one pinned view, and its applied index, term and conf state
//! are those of that view.
//! **Invariant:** a received file is checked as a whole before anything of it counts, and nothing
//! is stepped into raft before its generation is complete and durable.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use mainstay_engine::{Batch, EngineError, Family};
use mainstay_formats::bbolt::{Plan, ReadError, Reader, RowFn, Rows, WriteError};
use mainstay_formats::snapshot::Hasher;
use mainstay_mvcc::buckets::{Bucket, names};
use mainstay_mvcc::membership::json;
use mainstay_mvcc::transfer::{ImportError, Importer, bucket_names, for_each_row};
use mainstay_mvcc::{Limits, StateMachine};
use mainstay_peer::{IncomingSnapshot, SnapshotBody};
use mainstay_proto::etcdserverpb::SnapshotResponse;
use mainstay_proto::raftpb::SnapshotMetadata;
use tokio::sync::mpsc;

use crate::core::{Core, Published};
use crate::engine_home::{EngineHome, HomeError, Staged};
use crate::error::{Error, Result};
use crate::metrics::Metrics;

/// Bytes of one piece on the way to a peer.
const PEER_CHUNK: usize = 256 << 10;
/// Bytes of one piece on the way to a client, as in etcd.
const CLIENT_CHUNK: usize = 32 << 10;
/// Pieces that are made ahead of who takes them.
const CHUNKS_AHEAD: usize = 8;

/// The rows of a published state.
struct PublishedRows<'a>(&'a Published);

impl Rows for PublishedRows<'_> {
    type Error = EngineError;

    fn for_each(&self, bucket: &str, row: &mut RowFn<'_>) -> Result<(), EngineError> {
        let bucket = Bucket::from_name(bucket.as_bytes()).expect("only names of buckets are given");
        for_each_row(&*self.0.view, bucket, row)
    }
}

/// A database file that is being made.
pub(crate) struct Database {
    /// Its exact length.
    pub(crate) len: u64,
    /// The file from front to back.
    pub(crate) chunks: mpsc::Receiver<io::Result<Bytes>>,
}

/// Starts to make the database file of a published state.
pub(crate) async fn database(
    published: Arc<Published>,
    chunk: usize,
    metrics: Arc<Metrics>,
) -> io::Result<Database> {
    let started = Instant::now();
    let measured = tokio::task::spawn_blocking(move || {
        let plan = Plan::measure(bucket_names(), &PublishedRows(&published));
        plan.map(|plan| (plan, published)).map_err(io::Error::other)
    });
    let (plan, published) = measured.await.map_err(io::Error::other)??;
    let len = plan.total_size();
    let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut give = |bytes: Bytes| sender.blocking_send(Ok(bytes));
        match plan.write(&PublishedRows(&published), chunk, &mut give) {
            // Who does not take any more does not want to know why.
            Ok(()) | Err(WriteError::Sink(_)) => {}
            Err(error) => {
                let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
            }
        }
        metrics.snapshot.observe(started.elapsed().as_secs_f64());
    });
    Ok(Database { len, chunks })
}

/// The database file for a peer.
pub(crate) async fn for_peer(
    published: Arc<Published>,
    metrics: Arc<Metrics>,
) -> io::Result<SnapshotBody> {
    let Database { len, mut chunks } = database(published, PEER_CHUNK, metrics).await?;
    let chunks = futures_util::stream::poll_fn(move |context| chunks.poll_recv(context)).boxed();
    Ok(SnapshotBody { len, chunks })
}

impl Core {
    /// The database of this member as it is now, piece by piece, and in the last message the
    /// SHA-256 of all pieces.
    pub async fn snapshot(self: &Arc<Self>) -> Result<mpsc::Receiver<Result<SnapshotResponse>>> {
        let published = self.published.load_full();
        let version = self.storage_version().unwrap_or_default();
        let made = database(published, CLIENT_CHUNK, self.metrics.clone()).await;
        let Database { len, mut chunks } =
            made.map_err(|error| Error::Raw(error.to_string().into()))?;
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        tokio::spawn(async move {
            let (mut left, mut hasher) = (len, Hasher::new());
            while let Some(chunk) = chunks.recv().await {
                let message = match chunk {
                    Ok(blob) => {
                        left = left.saturating_sub(blob.len() as u64);
                        hasher.update(&blob);
                        let version = version.clone();
                        Ok(SnapshotResponse { header: None, remaining_bytes: left, blob, version })
                    }
                    Err(error) => Err(Error::Raw(error.to_string().into())),
                };
                let failed = message.is_err();
                if sender.send(message).await.is_err() || failed {
                    return;
                }
            }
            let blob = Bytes::copy_from_slice(&hasher.finish());
            let last = SnapshotResponse { header: None, remaining_bytes: 0, blob, version };
            // The client may have gone.
            let _ = sender.send(Ok(last)).await;
        });
        Ok(receiver)
    }
}

/// Why a received snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("the message names no index")]
    NoIndex,
    #[error("receiving: {0}")]
    Receive(#[source] io::Error),
    #[error("storing: {0}")]
    Store(#[source] io::Error),
    #[error("not a sound database: {0}")]
    Read(#[from] ReadError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(transparent)]
    State(#[from] mainstay_mvcc::Fatal),
    #[error("the database is of index {database}, its message of index {message}")]
    Index { database: u64, message: u64 },
    #[error("stopped")]
    Stopped,
}

/// Received snapshots that wait for raft.
///
/// **Invariant:** a generation that waits stays as it is until it is taken or a later one was: raft
/// may have accepted it already.
pub(crate) struct StagedSnapshots {
    home: Arc<EngineHome>,
    directory: PathBuf,
    limits: Limits,
    metrics: Arc<Metrics>,
    /// One is received at a time.
    receiving: tokio::sync::Mutex<()>,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    staged: BTreeMap<u64, Staged>,
    /// The index of the state, or of the generation that is about to become it.
    taken: u64,
}

impl StagedSnapshots {
    /// `applied` is how far the state is now.
    pub(crate) fn new(
        home: Arc<EngineHome>,
        directory: PathBuf,
        limits: Limits,
        applied: u64,
        metrics: Arc<Metrics>,
    ) -> Self {
        let waiting = Waiting { staged: BTreeMap::new(), taken: applied };
        let receiving = tokio::sync::Mutex::default();
        Self { home, directory, limits, metrics, receiving, waiting: Mutex::new(waiting) }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The generation for the snapshot at `index`, to be installed now. Older ones are of no use
    /// any more.
    pub(crate) fn take(&self, index: u64) -> Result<Option<Staged>, HomeError> {
        let mut waiting = self.waiting();
        let staged = waiting.staged.remove(&index);
        if staged.is_some() {
            waiting.taken = waiting.taken.max(index);
        }
        let later = waiting.staged.split_off(&index);
        let older = std::mem::replace(&mut waiting.staged, later);
        drop(waiting);
        for staged in older.into_values() {
            staged.discard(&self.home)?;
        }
        Ok(staged)
    }

    /// Whether a snapshot at `index` is of no use: the state is as far, or it waits already.
    fn is_known(&self, index: u64, applied: u64) -> bool {
        let waiting = self.waiting();
        index <= applied.max(waiting.taken) || waiting.staged.contains_key(&index)
    }

    /// Receives a database and makes a generation of it. `applied` is how far the state is.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        metadata: SnapshotMetadata,
        mut body: IncomingSnapshot,
        applied: u64,
    ) -> Result<(), ReceiveError> {
        let index = metadata.index.filter(|index| *index > 0).ok_or(ReceiveError::NoIndex)?;
        let _one_at_a_time = self.receiving.lock().await;
        if self.is_known(index, applied) {
            while let Some(chunk) = body.chunks.next().await {
                chunk.map_err(ReceiveError::Receive)?;
            }
            return Ok(());
        }
        let path = self.directory.join(format!("{index:016x}.snap.db"));
        let started = Instant::now();
        let file = File::create(&path).map_err(ReceiveError::Store)?;
        let (sender, chunks) = mpsc::channel::<Bytes>(CHUNKS_AHEAD);
        let written = tokio::task::spawn_blocking(move || write_all(file, chunks));
        let mut failed = None;
        while let Some(chunk) = body.chunks.next().await {
            match chunk {
                Ok(chunk) => {
                    if sender.send(chunk).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        drop(sender);
        let written = written.await.map_err(|_| ReceiveError::Stopped)?;
        let result = match failed {
            Some(error) => Err(ReceiveError::Receive(error)),
            None => written.map_err(ReceiveError::Store),
        };
        match result {
            Ok(fsync) => {
                self.metrics.snapshot_received_fsync.observe(fsync.as_secs_f64());
                self.metrics.snapshot_received.observe(started.elapsed().as_secs_f64());
            }
            Err(error) => {
                let _ = fs::remove_file(&path);
                return Err(error);
            }
        }
        let staged = {
            let (this, path) = (self.clone(), path.clone());
            tokio::task::spawn_blocking(move || this.build(&path, index, &metadata)).await
        };
        // The generation holds all of it now, or nothing of it counts.
        let _ = fs::remove_file(&path);
        let staged = staged.map_err(|_| ReceiveError::Stopped)??;
        self.waiting().staged.insert(index, staged);
        self.metrics.own.snapshots_staged.inc();
        Ok(())
    }

    fn build(
        &self,
        path: &Path,
        index: u64,
        metadata: &SnapshotMetadata,
    ) -> Result<Staged, ReceiveError> {
        let file = File::open(path).map_err(ReceiveError::Store)?;
        let reader = Reader::open(file)?;
        reader.check()?;
        let staging = self.home.stage(index)?;
        let engine = &**staging.engine();
        let mut importer = Importer::new(engine, |_| {})?;
        for name in reader.buckets()? {
            let bucket = Importer::bucket(&name)?;
            let Some(found) = reader.bucket(&name)? else { continue };
            let mut rows = reader.cursor(&found);
            while let Some(row) = rows.next_row()? {
                importer.row(bucket, row.key, row.value)?;
            }
        }
        let imported = importer.finish()?;
        let state = StateMachine::open(engine, self.limits)?.status();
        if state.applied.index != index {
            return Err(ReceiveError::Index { database: state.applied.index, message: index });
        }
        // Raft continues from the message's configuration, so the engine must too.
        if let Some(conf_state) = &metadata.conf_state
            && *conf_state != *state.conf_state
        {
            let mut batch = Batch::new();
            let key = Bucket::Meta.engine_key(names::CONF_STATE);
            batch.put(Family::System, key, json::conf_state(conf_state));
            engine.write(batch).map_err(ImportError::from)?;
        }
        tracing::info!(
            index,
            rows = imported.read.rows,
            bytes = imported.read.bytes,
            "prepared an engine from the leader's snapshot"
        );
        Ok(staging.finish()?)
    }
}

/// Writes what comes until the sender is gone, and makes it durable; tells how long that took.
fn write_all(mut file: File, mut chunks: mpsc::Receiver<Bytes>) -> io::Result<Duration> {
    while let Some(chunk) = chunks.blocking_recv() {
        file.write_all(&chunk)?;
    }
    let started = Instant::now();
    file.sync_all()?;
    Ok(started.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineKind;
    use mainstay_proto::raftpb::{ConfChange, Entry, EntryType};
    use prost::Message as _;

    const INDEX: u64 = 7;

    fn home(path: &Path) -> Arc<EngineHome> {
        Arc::new(EngineHome::lock(EngineKind::Memory, path.join("mainstay")).unwrap())
    }

    /// A state at index 7, of a cluster of one.
    fn published(home: &EngineHome) -> Arc<Published> {
        let generation = home.open().unwrap();
        let engine = generation.engine().clone();
        let mut machine = StateMachine::open(&*engine, Limits::default()).unwrap();
        let member = mainstay_mvcc::membership::Member::new(1, "m", vec![], false);
        let change = ConfChange {
            r#type: Some(0),
            node_id: Some(1),
            context: Some(json::member(&member).into()),
            ..ConfChange::default()
        };
        let entry = |index| Entry { index: Some(index), term: Some(1), ..Entry::default() };
        let mut entries: Vec<_> = (1..=INDEX).map(entry).collect();
        entries[0].r#type = Some(EntryType::EntryConfChange as i32);
        entries[0].data = Some(change.encode_to_vec().into());
        engine.write(machine.apply(&*engine, &entries).unwrap().batch).unwrap();
        Arc::new(Published::new(machine.status(), Arc::new(generation), 1))
    }

    fn metadata(index: u64) -> SnapshotMetadata {
        SnapshotMetadata { index: Some(index), term: Some(1), conf_state: None }
    }

    async fn body(published: &Arc<Published>) -> IncomingSnapshot {
        let SnapshotBody { len, chunks } =
            for_peer(published.clone(), Arc::new(Metrics::new())).await.unwrap();
        IncomingSnapshot { len: Some(len), chunks }
    }

    fn staged(dir: &Path, applied: u64) -> Arc<StagedSnapshots> {
        let limits = Limits::default();
        let metrics = Arc::new(Metrics::new());
        Arc::new(StagedSnapshots::new(home(dir), dir.to_owned(), limits, applied, metrics))
    }

    #[tokio::test]
    async fn a_snapshot_is_staged_once_and_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let published = published(&home(dir.path()));
        let staged = staged(dir.path(), 2);
        for _ in 0..2 {
            staged.receive(metadata(INDEX), body(&published).await, 2).await.unwrap();
        }
        assert!(staged.take(INDEX - 1).unwrap().is_none());
        let generation = staged.take(INDEX).unwrap().unwrap().install(&staged.home).unwrap();
        let state = StateMachine::open(&**generation.engine(), staged.limits).unwrap().status();
        assert_eq!(state, published.state);
        // The leader sends it again because the answer was lost: the one in use is not touched.
        staged.receive(metadata(INDEX), body(&published).await, 2).await.unwrap();
        assert!(staged.take(INDEX).unwrap().is_none());
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "files are left");
    }

    #[tokio::test]
    async fn what_is_not_what_it_says_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let published = published(&home(dir.path()));
        let staged = staged(dir.path(), 0);
        let wrong = staged.receive(metadata(INDEX + 1), body(&published).await, 0).await;
        assert!(matches!(wrong, Err(ReceiveError::Index { database: INDEX, .. })), "{wrong:?}");
        let garbage = futures_util::stream::iter([Ok(Bytes::from(vec![7; 20_000]))]).boxed();
        let garbage = IncomingSnapshot { len: None, chunks: garbage };
        let error = staged.receive(metadata(INDEX), garbage, 0).await;
        assert!(matches!(error, Err(ReceiveError::Read(_))), "{error:?}");
        let cut = futures_util::stream::iter([Err(io::Error::other("gone"))]).boxed();
        let cut = IncomingSnapshot { len: None, chunks: cut };
        let error = staged.receive(metadata(INDEX), cut, 0).await;
        assert!(matches!(error, Err(ReceiveError::Receive(_))), "{error:?}");
        assert!(staged.take(INDEX).unwrap().is_none());
    }
}
