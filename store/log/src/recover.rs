//! Opening a log: what it holds, where replay starts, and making its end ready for appending.
//!
//! Input: a directory of segments. Output: [`Recovered`] and what the writer needs to go on.
//! Two passes: the first reads everything there is, finds damage, the last hard state and the
//! newest usable snapshot mark; the second collects the entries after that mark.
//!
//! **Invariant:** nothing is changed on the disk before the first pass has found no damage.
//! **Invariant:** when this returns, all that was read is durable: entries that only the page cache
//! remembered from before must not be acknowledged on its word.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use mainstay_formats::wal::Kind;
use mainstay_proto::etcdserverpb;
use mainstay_proto::raftpb::{Entry, HardState};
use mainstay_proto::walpb;
use prost::Message;

use crate::error::{Finding, OpenError};
use crate::files::{Access, File, Files};
use crate::scan::{Held, Seen, Segment, Tail, damage, segments, walk};
use crate::store::{Metadata, Options, Recovered, Repair};

/// What the writer continues from.
pub(crate) struct Opened {
    pub(crate) recovered: Recovered,
    /// The metadata record's bytes.
    pub(crate) metadata: Bytes,
    /// Segments before the one where replay started.
    pub(crate) released: VecDeque<Segment>,
    pub(crate) held: VecDeque<Held>,
    /// The end of the last segment.
    pub(crate) offset: u64,
    pub(crate) crc: u32,
    pub(crate) last_index: u64,
}

pub(crate) fn open(
    files: &Arc<dyn Files>,
    dir: &Path,
    options: &Options,
) -> Result<Opened, OpenError> {
    let mut held = hold(&**files, segments(&**files, dir)?)?;
    let survey = Survey::make(&held, options)?;
    let start = survey.start(&held, options)?;
    let replay = Replay::make(&held, &start, &survey, options)?;

    let mut end = survey.tail;
    if let Some(orphans) = &replay.orphans {
        end = Tail {
            offset: orphans.offset,
            crc: orphans.crc,
            rest_is_zero: false,
            torn: Some(orphans.finding.clone()),
        };
    }
    let tail = held.last().expect("segments() returns at least one");
    let repair = match &end.torn {
        None => None,
        Some(finding) => {
            let kept_as = keep(&**files, tail)?;
            tracing::warn!(
                path = %tail.segment.path.display(),
                offset = end.offset,
                kept_as = %kept_as.display(),
                "cut the torn tail of the log: {finding}"
            );
            Some(Repair { file: tail.segment.path.clone(), offset: end.offset, kept_as })
        }
    };
    settle(&**files, dir, tail, &end, options)?;

    let last_index = replay.entries.last().map_or(start.snapshot.index(), Entry::index);
    let released = held.drain(..start.segment).map(|held| held.segment).collect();
    Ok(Opened {
        recovered: Recovered {
            metadata: survey.identity,
            hard_state: survey.hard_state,
            snapshot: start.snapshot,
            entries: replay.entries,
            repair,
        },
        metadata: survey.metadata,
        released,
        held: held.into(),
        offset: end.offset,
        crc: end.crc,
        last_index,
    })
}

/// Opens and locks every segment.
fn hold(files: &dyn Files, segments: Vec<Segment>) -> Result<Vec<Held>, OpenError> {
    let mut held = Vec::with_capacity(segments.len());
    for segment in segments {
        let path = &segment.path;
        let file = files.open(path, Access::Write).map_err(OpenError::io(path, "opening it"))?;
        if !file.try_lock().map_err(OpenError::io(path, "locking it"))? {
            return Err(OpenError::Locked { file: path.clone() });
        }
        held.push(Held { segment, file });
    }
    Ok(held)
}

/// A snapshot mark and its place.
struct Mark {
    snapshot: walpb::Snapshot,
    segment: usize,
    offset: u64,
}

/// What the whole log says.
struct Survey {
    metadata: Bytes,
    identity: Metadata,
    hard_state: HardState,
    /// The place of the last hard state.
    state_at: Place,
    marks: Vec<Mark>,
    tail: Tail,
}

/// Where replay starts.
struct Start {
    snapshot: walpb::Snapshot,
    /// The segment in which the entries after the mark begin.
    segment: usize,
    /// The place of the mark itself, which may be before that segment.
    mark: Option<Place>,
}

/// A segment and an offset in it.
type Place = (usize, u64);

impl Survey {
    fn make(held: &[Held], options: &Options) -> Result<Survey, OpenError> {
        let mut metadata = None;
        let mut hard_state = HardState { term: Some(0), vote: Some(0), commit: Some(0) };
        let mut state_at = (0, 0);
        let mut marks = Vec::new();
        let tail = walk(held, options.sync, &mut |seen: Seen| {
            match seen.kind {
                Kind::Metadata => {
                    if metadata.is_none() {
                        let identity: etcdserverpb::Metadata = payload(seen.kind, &seen.data)?;
                        metadata = Some((seen.data, identity));
                    }
                }
                Kind::State => {
                    hard_state = payload(seen.kind, &seen.data)?;
                    state_at = (seen.segment, seen.offset);
                }
                Kind::Snapshot => marks.push(Mark {
                    snapshot: payload(seen.kind, &seen.data)?,
                    segment: seen.segment,
                    offset: seen.offset,
                }),
                // Decoded when it is known which ones count.
                Kind::Entry | Kind::Crc => {}
            }
            Ok(())
        })?;
        let (metadata, identity) =
            metadata.expect("walk() accepts no segment without a metadata record");
        let identity = Metadata { node_id: identity.node_id(), cluster_id: identity.cluster_id() };
        Ok(Survey { metadata, identity, hard_state, state_at, marks, tail })
    }

    /// The last mark that is committed and not beyond what the caller allows, and the segment in
    /// which the entries after it begin.
    fn start(&self, held: &[Held], options: &Options) -> Result<Start, OpenError> {
        let bound = options.replay_from_at_most.unwrap_or(u64::MAX).min(self.hard_state.commit());
        let mark = self.marks.iter().rev().find(|mark| mark.snapshot.index() <= bound);
        let snapshot = mark.map(|mark| mark.snapshot.clone()).unwrap_or_default();
        let mark = mark.map(|mark| (mark.segment, mark.offset));
        let index = snapshot.index();
        match held.iter().rposition(|held| held.segment.index <= index) {
            Some(segment) => Ok(Start { snapshot, segment, mark }),
            None => {
                let oldest = &held[0].segment;
                let finding = Finding::NoSnapshot { first: oldest.index };
                Err(damage(oldest, 0, finding, Some(self.identity.node_id)))
            }
        }
    }

    /// Whether a snapshot of this index was received before this place but never came into force.
    fn abandoned(&self, index: u64, place: Place) -> bool {
        index > self.hard_state.commit()
            && self
                .marks
                .iter()
                .any(|mark| mark.snapshot.index() == index && (mark.segment, mark.offset) < place)
    }
}

/// Entries that followed a received snapshot which never came into force: the batch that held them
/// and the hard state was cut short after some of its entries.
struct Orphans {
    offset: u64,
    crc: u32,
    finding: Finding,
}

struct Replay {
    entries: Vec<Entry>,
    orphans: Option<Orphans>,
}

impl Replay {
    fn make(
        held: &[Held],
        start: &Start,
        survey: &Survey,
        options: &Options,
    ) -> Result<Replay, OpenError> {
        let after = start.snapshot.index();
        let mut entries: Vec<Entry> = Vec::new();
        let mut places: Vec<Place> = Vec::new();
        // The term of the log's own entry where the mark is.
        let mut own_term = None;
        let mut orphans: Option<(usize, Orphans)> = None;
        let mut last_place = (start.segment, 0);
        walk(&held[start.segment..], options.sync, &mut |seen: Seen| {
            let place = (start.segment + seen.segment, seen.offset);
            last_place = place;
            if Some(place) == start.mark
                && own_term.is_some_and(|term| term != start.snapshot.term())
            {
                // The snapshot came from a leader with another log: what was here gave way to it.
                entries.clear();
                places.clear();
            }
            if seen.kind != Kind::Entry {
                return Ok(());
            }
            let entry: Entry = payload(seen.kind, &seen.data)?;
            let index = entry.index();
            let last = after + entries.len() as u64;
            if index > last + 1 {
                let finding = Finding::EntryGap { last, found: index };
                if orphans.is_some() {
                    return Ok(());
                }
                if place <= survey.state_at || !survey.abandoned(index - 1, place) {
                    return Err(finding);
                }
                let orphan = Orphans { offset: seen.offset, crc: seen.crc_before, finding };
                orphans = Some((place.0, orphan));
                return Ok(());
            }
            if let Some((_, orphan)) = &orphans {
                return Err(orphan.finding.clone());
            }
            if index == after {
                own_term = Some(entry.term());
            }
            // The entry replaces all that was after it, even if it is itself below the mark.
            let kept = index.saturating_sub(after + 1) as usize;
            entries.truncate(kept);
            places.truncate(kept);
            if index > after {
                entries.push(entry);
                places.push(place);
            }
            Ok(())
        })?;
        let last = after + entries.len() as u64;
        let commit = survey.hard_state.commit();
        let fail = |(segment, offset): Place, finding| {
            damage(&held[segment].segment, offset, finding, Some(survey.identity.node_id))
        };
        if commit > last {
            return Err(fail(last_place, Finding::CommitPastEnd { commit, last }));
        }
        // Marks that were passed over, when replay starts from an older one.
        for mark in &survey.marks {
            let (index, term) = (mark.snapshot.index(), mark.snapshot.term());
            if index <= after || index > commit {
                continue;
            }
            let own = entries[(index - after - 1) as usize].term();
            if own != term {
                let place = (mark.segment, mark.offset);
                return Err(fail(place, Finding::Superseded { index, term, own }));
            }
        }
        let mut before = start.snapshot.term();
        for (entry, &place) in entries.iter().zip(&places) {
            let (index, term) = (entry.index(), entry.term());
            if term < before {
                return Err(fail(place, Finding::TermOrder { index, term, before }));
            }
            before = term;
        }
        let orphans = match orphans {
            Some((segment, orphan)) if segment + 1 < held.len() => {
                return Err(fail((segment, orphan.offset), orphan.finding));
            }
            other => other.map(|(_, orphan)| orphan),
        };
        Ok(Replay { entries, orphans })
    }
}

fn payload<M: Message + Default>(kind: Kind, data: &Bytes) -> Result<M, Finding> {
    M::decode(data.clone())
        .map_err(|error| Finding::Payload { kind: kind.name(), error: error.to_string() })
}

/// Copies the last segment beside itself before its tail is cut, as etcd's repair does.
fn keep(files: &dyn Files, tail: &Held) -> Result<PathBuf, OpenError> {
    let path = &tail.segment.path;
    let mut name = path.clone().into_os_string();
    name.push(".broken");
    let kept_as = PathBuf::from(name);
    copy(files, &*tail.file, &kept_as)
        .map_err(OpenError::io(&kept_as, "keeping a copy of the torn segment"))?;
    Ok(kept_as)
}

fn copy(files: &dyn Files, from: &dyn File, to: &Path) -> io::Result<()> {
    let to = files.open(to, Access::Create)?;
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let read = from.read_at(&mut buffer, offset)?;
        if read == 0 {
            break;
        }
        // Most of the segment is preallocated zeros: leave holes for them.
        if buffer[..read].iter().any(|&byte| byte != 0) {
            to.write_at(&buffer[..read], offset)?;
        }
        offset += read as u64;
    }
    to.truncate(offset)?;
    to.sync_data()
}

/// Makes the end of the log ready: zeros after it, blocks set aside, all of it durable.
fn settle(
    files: &dyn Files,
    dir: &Path,
    tail: &Held,
    end: &Tail,
    options: &Options,
) -> Result<(), OpenError> {
    let path = &tail.segment.path;
    let step = |doing| OpenError::io(path, doing);
    let size = tail.file.size().map_err(step("reading its size"))?;
    if !end.rest_is_zero {
        // Left-overs of a torn write behind the end would not match what is written over them.
        tail.file.truncate(end.offset).map_err(step("cutting the torn tail"))?;
    }
    // A segment that is full stays as it is; the next batch moves on to a new one.
    let want = if end.offset < options.segment_bytes { size.max(options.segment_bytes) } else { 0 };
    if want > size {
        // A segment has its whole size from the first, and keeps it when a torn tail is cut. Real
        // etcd leaves it short after a repair of its own, so this alone is no proof of a loss.
        tracing::warn!(
            path = %path.display(),
            size,
            expected = options.segment_bytes,
            end = end.offset,
            "the last segment of the log is shorter than it was made: its end was cut off, and \
             acknowledged entries may be gone with it. If nobody but this program has written \
             here, replace this member while the others have a quorum, or put the segment back \
             from a copy"
        );
    }
    if want > size || (want > 0 && !end.rest_is_zero) {
        tail.file.preallocate(want).map_err(step("setting space aside"))?;
    }
    if options.sync {
        tail.file.sync_data().map_err(step("syncing it"))?;
        files.sync_dir(dir).map_err(OpenError::io(dir, "syncing the log directory"))?;
    }
    Ok(())
}
