//! Range: reading pairs at a revision.
//!
//! The Index tells which keys exist and where their newest records are. A key that did not change
//! after the asked revision is answered from there; only for the others the History is asked for
//! the newest record that is old enough. Values are read last, and only those that are answered.
//!
//! **Invariant:** the Index is walked once per request, and not beyond what `count` needs.

use std::cmp::Ordering;

use bytes::{Bytes, BytesMut};
use mainstay_engine::{Cursor, Family, Scan, View};
use mainstay_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use mainstay_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use mainstay_proto::mvccpb::KeyValue;

use crate::keys::{IndexEntry, decode_history_revision, history_key_to, history_prefix_to};
use crate::kv::kvs_at;
use crate::{Error, Fatal, KeySpan, ReadAt, Revision};

/// Rows that are asked for in one call of the engine.
const FETCH: usize = 512;

/// Answers a Range on a consistent view.
pub fn range(view: &dyn View, at: ReadAt, request: &RangeRequest) -> Result<RangeResponse, Error> {
    let revision = resolve_revision(at, request.revision)?;
    let span = KeySpan::new(&request.key, &request.range_end);
    if request.count_only {
        let count = count(view, &span, revision)?;
        return Ok(RangeResponse { header: header(at.revision), kvs: vec![], more: false, count });
    }
    let limit = fetch_limit(request);
    let (found, count) = collect(view, &span, revision, limit, Count::All)?;
    let (kvs, more) = select(view, found, request)?;
    Ok(RangeResponse { header: header(at.revision), kvs, more, count })
}

/// The revision that a request for `asked` reads at.
pub(crate) fn resolve_revision(at: ReadAt, asked: i64) -> Result<i64, Error> {
    if asked > at.revision {
        return Err(Error::FutureRevision);
    }
    let revision = if asked <= 0 { at.revision } else { asked };
    if revision < at.compacted { Err(Error::Compacted) } else { Ok(revision) }
}

pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..Default::default() })
}

/// Whether results come in the order of the keys anyway. A sort target without an order counts as
/// such for the limit, though the result is sorted afterwards: etcd's behaviour.
pub(crate) fn in_natural_order(request: &RangeRequest) -> bool {
    request.sort_order == SortOrder::None as i32
        || (request.sort_target == SortTarget::Key as i32
            && request.sort_order == SortOrder::Ascend as i32)
}

pub(crate) fn has_revision_filters(request: &RangeRequest) -> bool {
    request.min_mod_revision != 0
        || request.max_mod_revision != 0
        || request.min_create_revision != 0
        || request.max_create_revision != 0
}

/// How many keys have to be found: one more than asked for, so that `more` is known.
fn fetch_limit(request: &RangeRequest) -> usize {
    if request.limit <= 0 || !in_natural_order(request) || has_revision_filters(request) {
        return usize::MAX;
    }
    usize::try_from(request.limit).unwrap_or(usize::MAX).saturating_add(1)
}

/// A live key at the asked revision.
pub(crate) struct Found {
    pub(crate) key: Bytes,
    pub(crate) modified: Revision,
    /// What the Index knows besides, if the key did not change after the asked revision; else what
    /// the pair says, once it was read.
    life: Option<Life>,
    /// The whole pair, once it was read.
    pub(crate) kv: Option<KeyValue>,
}

/// A put's place in the life of its key.
#[derive(Clone, Copy)]
pub(crate) struct Life {
    pub(crate) created: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
}

/// Whether keys behind the limit are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    All,
    UpToLimit,
}

/// The state of a key at a revision: what the Index or the History know of it.
enum State {
    Live(Revision, Option<Life>),
    Absent,
}

/// Finds out what a key was at a revision. Opens a History cursor at the first key that changed
/// after it.
struct Lookup<'v> {
    view: &'v dyn View,
    revision: i64,
    history: Option<Box<dyn Cursor + 'v>>,
    buffer: BytesMut,
}

impl<'v> Lookup<'v> {
    fn new(view: &'v dyn View, revision: i64) -> Self {
        Self { view, revision, history: None, buffer: BytesMut::new() }
    }

    fn state(&mut self, key: &[u8], entry: &IndexEntry) -> Result<State, Fatal> {
        if entry.modified.main <= self.revision {
            if entry.tombstone {
                return Ok(State::Absent);
            }
            let IndexEntry { created, version, lease, .. } = *entry;
            let life = Life { created, version, lease };
            return Ok(State::Live(entry.modified, Some(life)));
        }
        let history = match &mut self.history {
            Some(history) => history,
            none => none.insert(self.view.cursor(Family::History, Scan::all())?),
        };
        let last = Revision::last(self.revision);
        Ok(match newest_in_history(&mut **history, key, last, &mut self.buffer)? {
            Some((modified, false)) => State::Live(modified, None),
            _ => State::Absent,
        })
    }
}

/// The newest record of `key` that is not behind `last`, and whether it is a tombstone.
pub(crate) fn newest_in_history(
    history: &mut dyn Cursor,
    key: &[u8],
    last: Revision,
    buffer: &mut BytesMut,
) -> Result<Option<(Revision, bool)>, Fatal> {
    buffer.clear();
    history_key_to(key, last, buffer);
    history.seek_for_prev(buffer);
    if !history.valid() {
        history.status()?;
        return Ok(None);
    }
    let prefix = buffer.len() - 16;
    let row = history.key();
    if row.len() != buffer.len() || row[..prefix] != buffer[..prefix] {
        return Ok(None);
    }
    let revision = decode_history_revision(row)
        .ok_or_else(|| Fatal::damaged("history row", row, "no revision in it"))?;
    Ok(Some((revision, history.value() == [1])))
}

/// The newest record of `key` with a main revision up to `revision`, and whether it is a tombstone.
pub(crate) fn newest(
    view: &dyn View,
    key: &[u8],
    revision: i64,
) -> Result<Option<(Revision, bool)>, Fatal> {
    match index_entry(view, key)? {
        None => Ok(None),
        Some(entry) if entry.modified.main <= revision => {
            Ok(Some((entry.modified, entry.tombstone)))
        }
        Some(_) => newest_old(view, key, Revision::last(revision)),
    }
}

/// The newest record of `key` that is not behind `last`, from the History.
pub(crate) fn newest_old(
    view: &dyn View,
    key: &[u8],
    last: Revision,
) -> Result<Option<(Revision, bool)>, Fatal> {
    let mut buffer = BytesMut::with_capacity(key.len() + 18);
    history_prefix_to(key, &mut buffer);
    // Bounds keep the engine from looking at the keys before this one when nothing is found.
    let scan = Scan { lower: Some(buffer.split().freeze()), upper: None, fill_cache: true };
    let mut history = view.cursor(Family::History, scan)?;
    newest_in_history(&mut *history, key, last, &mut buffer)
}

/// The Index entry of a key, tombstones included.
pub(crate) fn index_entry(view: &dyn View, key: &[u8]) -> Result<Option<IndexEntry>, Fatal> {
    view.get(Family::Index, key)?.map(|value| decode_entry(key, &value)).transpose()
}

pub(crate) fn decode_entry(key: &[u8], value: &[u8]) -> Result<IndexEntry, Fatal> {
    IndexEntry::decode(value).ok_or_else(|| Fatal::damaged("index row", key, "not an entry"))
}

/// The live keys of a span at a revision: the first `limit` of them, and how many there are.
pub(crate) fn collect(
    view: &dyn View,
    span: &KeySpan,
    revision: i64,
    limit: usize,
    count: Count,
) -> Result<(Vec<Found>, i64), Fatal> {
    let mut found = Vec::new();
    let mut total = 0;
    visit(view, span, revision, |key, modified, life| {
        if found.len() < limit {
            let key = Bytes::copy_from_slice(key);
            found.push(Found { key, modified, life, kv: None });
        }
        total += 1;
        count == Count::All || found.len() < limit
    })?;
    Ok((found, total))
}

/// The number of live keys of a span at a revision.
pub(crate) fn count(view: &dyn View, span: &KeySpan, revision: i64) -> Result<i64, Fatal> {
    let mut total = 0;
    visit(view, span, revision, |_, _, _| {
        total += 1;
        true
    })?;
    Ok(total)
}

/// Whether a span has a live key at a revision.
pub(crate) fn any_live(view: &dyn View, span: &KeySpan, revision: i64) -> Result<bool, Fatal> {
    let mut any = false;
    visit(view, span, revision, |_, _, _| {
        any = true;
        false
    })?;
    Ok(any)
}

/// Calls `each` for the live keys of a span, in their order, until it returns false.
fn visit(
    view: &dyn View,
    span: &KeySpan,
    revision: i64,
    mut each: impl FnMut(&[u8], Revision, Option<Life>) -> bool,
) -> Result<(), Fatal> {
    if span.is_empty() {
        return Ok(());
    }
    let mut lookup = Lookup::new(view, revision);
    if let KeySpan::One(key) = span {
        if let Some(entry) = index_entry(view, key)?
            && let State::Live(modified, life) = lookup.state(key, &entry)?
        {
            each(key, modified, life);
        }
        return Ok(());
    }
    let mut index = view.cursor(Family::Index, span.scan())?;
    index.seek_to_first();
    while index.valid() {
        let entry = decode_entry(index.key(), index.value())?;
        if let State::Live(modified, life) = lookup.state(index.key(), &entry)?
            && !each(index.key(), modified, life)
        {
            break;
        }
        index.next();
    }
    index.status()?;
    Ok(())
}

/// Filters, sorts and cuts what was found, and reads the values of what is left.
/// Also tells whether the limit cut something off.
fn select(
    view: &dyn View,
    mut found: Vec<Found>,
    request: &RangeRequest,
) -> Result<(Vec<KeyValue>, bool), Error> {
    let target = SortTarget::try_from(request.sort_target).ok();
    let keys_only = request.keys_only && target != Some(SortTarget::Value);
    if has_revision_filters(request) {
        let (min, max) = (request.min_mod_revision, request.max_mod_revision);
        found.retain(|found| passes(found.modified.main, min, max));
        let (min, max) = (request.min_create_revision, request.max_create_revision);
        if min != 0 || max != 0 {
            read_lives(view, &mut found)?;
            found.retain(|found| passes(found.life().created, min, max));
        }
    }
    sort(view, &mut found, request, target)?;
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let more = limit > 0 && found.len() > limit;
    if more {
        found.truncate(limit);
    }
    if keys_only {
        read_lives(view, &mut found)?;
        return Ok((found.into_iter().map(Found::into_key_only).collect(), more));
    }
    read_pairs(view, &mut found, |_| true)?;
    let kvs = found.into_iter().filter_map(|found| found.kv);
    if request.keys_only {
        return Ok((kvs.map(|kv| KeyValue { value: Bytes::new(), ..kv }).collect(), more));
    }
    Ok((kvs.collect(), more))
}

/// Bounds are inclusive; 0 is no bound.
fn passes(revision: i64, min: i64, max: i64) -> bool {
    (max == 0 || revision <= max) && (min == 0 || revision >= min)
}

fn sort(
    view: &dyn View,
    found: &mut [Found],
    request: &RangeRequest,
    target: Option<SortTarget>,
) -> Result<(), Error> {
    // An order or target that etcd does not know comes only from logs of other versions. It does
    // not sort.
    let Some(target) = target else { return Ok(()) };
    let descending = match SortOrder::try_from(request.sort_order) {
        Ok(SortOrder::Descend) => true,
        Ok(SortOrder::Ascend) => false,
        Ok(SortOrder::None) if target != SortTarget::Key => false,
        _ => return Ok(()),
    };
    match target {
        SortTarget::Key if !descending => return Ok(()),
        SortTarget::Key | SortTarget::Mod => {}
        SortTarget::Create | SortTarget::Version => read_lives(view, found)?,
        SortTarget::Value => read_pairs(view, found, |_| true)?,
    }
    let order = |a: &Found, b: &Found| -> Ordering {
        match target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Mod => a.modified.main.cmp(&b.modified.main),
            SortTarget::Create => a.life().created.cmp(&b.life().created),
            SortTarget::Version => a.life().version.cmp(&b.life().version),
            SortTarget::Value => a.value().cmp(b.value()),
        }
    };
    if descending {
        found.sort_by(|a, b| order(b, a));
    } else {
        found.sort_by(order);
    }
    Ok(())
}

/// Reads the pairs of those whose creation and version the Index does not know.
fn read_lives(view: &dyn View, found: &mut [Found]) -> Result<(), Fatal> {
    read_pairs(view, found, |found| found.life.is_none())
}

/// Reads the pairs of those that `wanted` names and that were not read yet.
pub(crate) fn read_pairs(
    view: &dyn View,
    found: &mut [Found],
    wanted: impl Fn(&Found) -> bool,
) -> Result<(), Fatal> {
    for part in found.chunks_mut(FETCH) {
        let mut missing: Vec<_> =
            part.iter_mut().filter(|found| found.kv.is_none() && wanted(found)).collect();
        let revisions: Vec<_> = missing.iter().map(|found| found.modified).collect();
        for (found, kv) in missing.iter_mut().zip(kvs_at(view, &revisions)?) {
            let KeyValue { create_revision: created, version, lease, .. } = kv;
            found.life = Some(Life { created, version, lease });
            found.kv = Some(kv);
        }
    }
    Ok(())
}

impl Found {
    /// Known of what was found at the current revision, and of what [`read_lives`] has seen.
    pub(crate) fn life(&self) -> Life {
        self.life.expect("lives are looked at where they are known or were read")
    }

    fn value(&self) -> &[u8] {
        self.kv.as_ref().map(|kv| &kv.value[..]).unwrap_or_default()
    }

    /// What etcd answers for keys alone: neither value nor lease.
    fn into_key_only(self) -> KeyValue {
        let life = self.life();
        KeyValue {
            key: self.key,
            create_revision: life.created,
            mod_revision: self.modified.main,
            version: life.version,
            value: Bytes::new(),
            lease: 0,
        }
    }
}

/// All pairs of a span at a revision.
pub(crate) fn pairs(
    view: &dyn View,
    span: &KeySpan,
    revision: i64,
) -> Result<Vec<KeyValue>, Fatal> {
    let (mut found, _) = collect(view, span, revision, usize::MAX, Count::All)?;
    read_pairs(view, &mut found, |_| true)?;
    Ok(found.into_iter().filter_map(|found| found.kv).collect())
}

/// One chunk of a stream: the first `limit` pairs, and whether more follow. Nothing is counted.
pub(crate) fn chunk(
    view: &dyn View,
    span: &KeySpan,
    revision: i64,
    limit: usize,
    request: &RangeRequest,
) -> Result<(Vec<KeyValue>, bool), Error> {
    let fetch = limit.saturating_add(1);
    let (mut found, _) = collect(view, span, revision, fetch, Count::UpToLimit)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let (kvs, _) = select(view, found, &RangeRequest { limit: 0, ..request.clone() })?;
    Ok((kvs, more))
}
