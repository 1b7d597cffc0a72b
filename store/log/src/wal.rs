//! The log that is written to: create, append, cut, release.
//!
//! Input: batches from the raft thread. Output: bytes in the last segment. A batch is encoded into
//! one reused buffer, written with one call and made durable with one `fdatasync`; a hard state
//! whose commit alone moved stays in the buffer until the next batch. Segments are made and deleted
//! beside (see [`crate::pipeline`]).
//!
//! **Invariant:** after any failed write, sync, rename or cut, no call reaches the disk again.
//! **Invariant:** entries are written in an order that a reader accepts: none skips an index.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_formats::wal::{Encoder, parse_segment_name, segment_name};
use mainstay_proto::etcdserverpb;
use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;
use prost::Message as _;

use crate::error::OpenError;
use crate::files::{Access, File, Files};
use crate::pipeline::Pipeline;
use crate::recover;
use crate::scan::{Held, Segment};
use crate::store::{LogStore, Metadata, Options, Recovered};

/// States that wait for a sync are written out once this much has gathered.
const BUFFERED: usize = 128 << 10;
/// A buffer grown beyond this by one large batch is given back.
const KEPT_BUFFER: usize = 4 << 20;
/// A sync that takes longer is worth a line in the log.
const SLOW_SYNC: Duration = Duration::from_secs(1);

/// The raft log on disk, open for appending. Its segments are locked while it lives.
pub struct Wal {
    files: Arc<dyn Files>,
    dir: PathBuf,
    options: Options,
    /// The metadata record's data, repeated at the head of every segment.
    metadata: Bytes,
    /// Given up by `release_before` or below the start of replay, still on disk.
    released: VecDeque<Segment>,
    /// In use; the last one is written to.
    held: VecDeque<Held>,
    pipeline: Option<Pipeline>,
    encoder: Encoder,
    /// Records not yet written to the file.
    buffer: Vec<u8>,
    /// Where the buffer goes in the last segment.
    offset: u64,
    /// Something was written or buffered since the last sync.
    unsynced: bool,
    state: HardState,
    last_index: u64,
    end: Option<End>,
}

/// Why nothing is written any more.
#[derive(Clone)]
enum End {
    Closed,
    Failed { kind: io::ErrorKind, message: String },
}

impl Wal {
    /// Whether a log is there.
    pub fn exists(files: &dyn Files, dir: &Path) -> io::Result<bool> {
        match files.list(dir) {
            Ok(names) => Ok(names.iter().any(|name| parse_segment_name(name).is_some())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a new log: in a directory beside, then renamed, so that it is there whole or not at
    /// all.
    pub fn create(
        files: Arc<dyn Files>,
        dir: &Path,
        metadata: Metadata,
        options: Options,
    ) -> Result<Wal, OpenError> {
        let listing = OpenError::io(dir, "listing the log directory");
        let there = files.exists(dir).map_err(OpenError::io(dir, "looking for it"))?;
        let names = if there { files.list(dir).map_err(listing)? } else { Vec::new() };
        if names.iter().any(|name| parse_segment_name(name).is_some()) {
            return Err(OpenError::Exists { dir: dir.to_owned() });
        }
        let (leftovers, found): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| name.ends_with(".tmp"));
        if !found.is_empty() {
            return Err(OpenError::NotEmpty { dir: dir.to_owned(), found: found.join(", ") });
        }

        let mut beside = dir.as_os_str().to_owned();
        beside.push(".tmp");
        let beside = PathBuf::from(beside);
        let io = |doing| OpenError::io(&beside, doing);
        if files.exists(&beside).map_err(io("looking for a leftover"))? {
            files.remove_dir_all(&beside).map_err(io("removing a leftover"))?;
        }
        files.create_dir(&beside).map_err(io("making the log directory"))?;

        let metadata = etcdserverpb::Metadata {
            node_id: Some(metadata.node_id),
            cluster_id: Some(metadata.cluster_id),
        };
        let metadata = Bytes::from(metadata.encode_to_vec());
        let mut encoder = Encoder::new(0);
        let mut head = Vec::new();
        encoder.push_crc(&mut head);
        encoder.push_metadata(&mut head, &metadata);
        let beginning = walpb::Snapshot { index: Some(0), term: Some(0), conf_state: None };
        encoder.push_snapshot(&mut head, &beginning);

        let name = segment_name(0, 0);
        let path = beside.join(&name);
        let io = |doing| OpenError::io(&path, doing);
        let file = files.open(&path, Access::Create).map_err(io("making the first segment"))?;
        if !file.try_lock().map_err(io("locking it"))? {
            return Err(OpenError::Locked { file: path });
        }
        file.preallocate(options.segment_bytes).map_err(io("setting space aside"))?;
        file.write_at(&head, 0).map_err(io("writing the head of the log"))?;
        if options.sync {
            file.sync_data().map_err(io("syncing the head of the log"))?;
            files.sync_dir(&beside).map_err(OpenError::io(&beside, "syncing it"))?;
        }
        for name in leftovers {
            let path = dir.join(name);
            files.remove(&path).map_err(OpenError::io(&path, "removing a leftover"))?;
        }
        files
            .rename(&beside, dir)
            .map_err(OpenError::io(dir, "giving the new log directory its name"))?;
        if options.sync {
            let parent = match dir.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            files.sync_dir(parent).map_err(OpenError::io(parent, "syncing it"))?;
        }

        let segment = Segment { sequence: 0, index: 0, path: dir.join(name) };
        let pipeline = pipeline(&files, dir, &options)?;
        Ok(Wal {
            files,
            dir: dir.to_owned(),
            options,
            metadata,
            released: VecDeque::new(),
            held: VecDeque::from([Held { segment, file }]),
            pipeline: Some(pipeline),
            encoder,
            buffer: Vec::new(),
            offset: head.len() as u64,
            unsynced: false,
            state: HardState::default(),
            last_index: 0,
            end: None,
        })
    }

    /// Opens a log: checks all of it, cuts a torn tail, and returns what is to be replayed.
    pub fn open(
        files: Arc<dyn Files>,
        dir: &Path,
        options: Options,
    ) -> Result<(Wal, Recovered), OpenError> {
        let opened = recover::open(&files, dir, &options)?;
        let pipeline = pipeline(&files, dir, &options)?;
        let wal = Wal {
            files,
            dir: dir.to_owned(),
            options,
            metadata: opened.metadata,
            released: opened.released,
            held: opened.held,
            pipeline: Some(pipeline),
            encoder: Encoder::new(opened.crc),
            buffer: Vec::new(),
            offset: opened.offset,
            unsynced: false,
            state: opened.recovered.hard_state,
            last_index: opened.last_index,
            end: None,
        };
        Ok((wal, opened.recovered))
    }

    /// The index of the last entry, or of a snapshot mark beyond it.
    pub fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Runs `work` unless the log has ended; an error of it ends the log.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        match &self.end {
            None => {}
            Some(End::Closed) => return Err(io::Error::other("the log is closed")),
            Some(End::Failed { kind, message }) => {
                let message = format!("the log failed before and takes no more: {message}");
                return Err(io::Error::new(*kind, message));
            }
        }
        work(self).map_err(|error| {
            let path = self.held.back().map_or(&self.dir, |held| &held.segment.path);
            let error = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            self.end = Some(End::Failed { kind: error.kind(), message: error.to_string() });
            if let Some(pipeline) = &self.pipeline {
                pipeline.spare();
            }
            error
        })
    }

    fn write_batch(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> io::Result<()> {
        let state = hard_state.filter(|state| !is_empty(state));
        for entry in entries {
            let index = entry.index();
            if index == 0 || index > self.last_index + 1 {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("entry {index} cannot follow entry {}", self.last_index),
                ));
            }
            self.encoder.push_entry(&mut self.buffer, entry);
            self.last_index = index;
        }
        let mut must_sync = sync || !entries.is_empty();
        if let Some(state) = state {
            must_sync |= state.term() != self.state.term() || state.vote() != self.state.vote();
            self.encoder.push_state(&mut self.buffer, state);
            self.state = *state;
        }
        self.unsynced |= !self.buffer.is_empty();
        if self.offset + self.buffer.len() as u64 >= self.options.segment_bytes {
            self.cut()
        } else if must_sync {
            self.sync()
        } else if self.buffer.len() >= BUFFERED {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn tail(&self) -> &Held {
        self.held.back().expect("an open log holds its last segment")
    }

    /// Writes the buffer to the last segment.
    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.timed_write(&*self.tail().file, self.offset)?;
        self.offset += self.buffer.len() as u64;
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BUFFER);
        Ok(())
    }

    fn timed_write(&self, file: &dyn File, offset: u64) -> io::Result<()> {
        let start = Instant::now();
        file.write_at(&self.buffer, offset)?;
        self.options.observer.write(self.buffer.len(), start.elapsed());
        Ok(())
    }

    /// Makes everything up to here durable.
    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        if self.unsynced {
            self.sync_file(&*self.tail().file)?;
            self.unsynced = false;
        }
        Ok(())
    }

    fn sync_file(&self, file: &dyn File) -> io::Result<()> {
        self.timed(|| file.sync_data())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.timed(|| self.files.sync_dir(&self.dir))
    }

    fn timed(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if !self.options.sync {
            return Ok(());
        }
        let start = Instant::now();
        sync()?;
        let took = start.elapsed();
        self.options.observer.fsync(took);
        if took > SLOW_SYNC {
            tracing::warn!(?took, expected = ?SLOW_SYNC, "slow fdatasync");
        }
        Ok(())
    }

    /// Ends the last segment and begins the next one.
    fn cut(&mut self) -> io::Result<()> {
        self.flush()?;
        // What was preallocated and not used is given back.
        self.tail().file.truncate(self.offset)?;
        self.sync()?;

        let Some(pipeline) = &mut self.pipeline else {
            return Err(io::Error::other("the log is closed"));
        };
        let next = pipeline.take()?;
        self.encoder.push_crc(&mut self.buffer);
        self.encoder.push_metadata(&mut self.buffer, &self.metadata);
        if !is_empty(&self.state) {
            self.encoder.push_state(&mut self.buffer, &self.state);
        }
        self.timed_write(&*next.file, 0)?;
        self.sync_file(&*next.file)?;
        let sequence = self.tail().segment.sequence + 1;
        let index = self.last_index + 1;
        let path = self.dir.join(segment_name(sequence, index));
        self.files.rename(&next.path, &path)?;
        self.sync_dir()?;

        self.offset = self.buffer.len() as u64;
        self.buffer.clear();
        tracing::info!(path = %path.display(), "began a log segment");
        let segment = Segment { sequence, index, path };
        self.held.push_back(Held { segment, file: next.file });
        Ok(())
    }

    /// Has the oldest of the released segments deleted, oldest first.
    fn purge(&mut self) -> io::Result<()> {
        if self.options.max_wals == 0 {
            return Ok(());
        }
        let files = self.released.len() + self.held.len();
        let surplus = files.saturating_sub(self.options.max_wals).min(self.released.len());
        let Some(pipeline) = &mut self.pipeline else {
            return Err(io::Error::other("the log is closed"));
        };
        pipeline.delete(self.released.drain(..surplus).map(|segment| segment.path).collect())
    }
}

impl LogStore for Wal {
    fn append(
        &mut self,
        entries: &[Entry],
        hard_state: Option<&HardState>,
        sync: bool,
    ) -> io::Result<()> {
        self.guarded(|wal| wal.write_batch(entries, hard_state, sync))
    }

    fn save_snapshot(&mut self, snapshot: &walpb::Snapshot) -> io::Result<()> {
        self.guarded(|wal| {
            let whole = snapshot.index.is_some()
                && snapshot.term.is_some()
                && (snapshot.conf_state.is_some() || snapshot.index() == 0);
            if !whole {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "a snapshot mark needs an index, a term and a conf state",
                ));
            }
            wal.encoder.push_snapshot(&mut wal.buffer, snapshot);
            wal.last_index = wal.last_index.max(snapshot.index());
            wal.unsynced = true;
            wal.sync()
        })
    }

    fn release_before(&mut self, index: u64) -> io::Result<()> {
        self.guarded(|wal| {
            // A segment's name says where it begins, so the one with `index` in it is the last
            // that begins below.
            let keep_from = match wal.held.iter().position(|held| held.segment.index >= index) {
                Some(at) => at.saturating_sub(1),
                None => wal.held.len() - 1,
            };
            wal.released.extend(wal.held.drain(..keep_from).map(|held| held.segment));
            wal.purge()
        })
    }

    fn close(&mut self) -> io::Result<()> {
        self.guarded(|wal| wal.sync())?;
        self.pipeline = None;
        self.held.clear();
        self.end = Some(End::Closed);
        Ok(())
    }
}

fn is_empty(state: &HardState) -> bool {
    state.term() == 0 && state.vote() == 0 && state.commit() == 0
}

fn pipeline(files: &Arc<dyn Files>, dir: &Path, options: &Options) -> Result<Pipeline, OpenError> {
    let Options { segment_bytes, sync, prepare_ahead, .. } = *options;
    Pipeline::new(files.clone(), dir, segment_bytes, sync, prepare_ahead)
        .map_err(OpenError::io(dir, "starting the thread that prepares segments"))
}
