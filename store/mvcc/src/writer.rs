//! One write request on its way into the overlay: puts and deletions that share a main revision.
//!
//! **Invariant:** the k-th change of a request gets sub k. A request without a change leaves the
//! store's revision alone.
//! **Invariant:** Key, Index, History and LeaseKey say the same about every key after each change.

use bytes::Bytes;
use mainstay_engine::Family;
use mainstay_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
};
use mainstay_proto::mvccpb::KeyValue;

use crate::buckets::Bucket;
use crate::event::{Event, EventKind, RevisionEvents};
use crate::keys::{IndexEntry, RowKey, history_key_to, history_value, lease_key};
use crate::overlay::Overlay;
use crate::range::{Count, Found, Life, collect, header, index_entry, read_pairs};
use crate::{Error, Fatal, KeySpan, ReadAt, Revision, kv};

/// A write request that is being executed.
pub(crate) struct Writer<'o, 'v> {
    pub(crate) overlay: &'o mut Overlay<'v>,
    /// Moment at which the request began.
    begin: ReadAt,
    events: Vec<Event>,
}

impl<'o, 'v> Writer<'o, 'v> {
    pub(crate) fn new(overlay: &'o mut Overlay<'v>, begin: ReadAt) -> Self {
        Self { overlay, begin, events: Vec::new() }
    }

    /// What a read sees at this point of the request.
    pub(crate) fn at(&self) -> ReadAt {
        let changed = i64::from(!self.events.is_empty());
        ReadAt { revision: self.begin.revision + changed, ..self.begin }
    }

    /// Ends the request: its events, if it changed anything.
    pub(crate) fn finish(self) -> Option<RevisionEvents> {
        let revision = self.begin.revision + 1;
        (!self.events.is_empty()).then(|| RevisionEvents { revision, events: self.events.into() })
    }

    /// Where the next change goes.
    fn next_revision(&self) -> Revision {
        Revision { main: self.begin.revision + 1, sub: self.events.len() as i64 }
    }

    /// Refuses what would make a put fail. Nothing is written.
    pub(crate) fn check_put(&self, request: &PutRequest) -> Result<(), Error> {
        if request.lease != 0 && !self.lease_exists(request.lease)? {
            return Err(Error::LeaseNotFound);
        }
        if request.ignore_value || request.ignore_lease {
            let entry = index_entry(self.overlay, &request.key)?;
            if entry.is_none_or(|entry| entry.tombstone) {
                return Err(Error::KeyNotFound);
            }
        }
        Ok(())
    }

    fn lease_exists(&self, lease: i64) -> Result<bool, Fatal> {
        use mainstay_engine::View as _;
        let key = Bucket::Lease.engine_key(&lease.to_be_bytes());
        Ok(self.overlay.get(Family::System, &key)?.is_some())
    }

    /// Executes a put that was checked.
    pub(crate) fn put_request(&mut self, request: &PutRequest) -> Result<PutResponse, Error> {
        let entry = index_entry(self.overlay, &request.key)?;
        let live = entry.filter(|entry| !entry.tombstone);
        let wants_prev = request.prev_kv || request.ignore_value;
        let prev = match live {
            Some(entry) if wants_prev => kv::kvs_at(self.overlay, &[entry.modified])?.pop(),
            _ => None,
        };
        let value = match &prev {
            Some(prev) if request.ignore_value => prev.value.clone(),
            _ => request.value.clone(),
        };
        let lease = match live {
            Some(entry) if request.ignore_lease => entry.lease,
            _ => request.lease,
        };
        self.put(request.key.clone(), value, lease, entry);
        Ok(PutResponse {
            header: header(self.begin.revision + 1),
            prev_kv: prev.filter(|_| request.prev_kv),
        })
    }

    /// Executes a deletion.
    pub(crate) fn delete_request(
        &mut self,
        request: &DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Error> {
        let mut found = self.live(&KeySpan::new(&request.key, &request.range_end))?;
        let mut prev_kvs = Vec::new();
        if request.prev_kv {
            read_pairs(self.overlay, &mut found, |_| true)?;
            prev_kvs.extend(found.iter_mut().filter_map(|found| found.kv.take()));
        }
        let deleted = found.len() as i64;
        self.delete_found(found);
        Ok(DeleteRangeResponse { header: header(self.at().revision), deleted, prev_kvs })
    }

    /// Deletes a key if it is live.
    pub(crate) fn delete_key(&mut self, key: Bytes) -> Result<(), Fatal> {
        let found = self.live(&KeySpan::One(key))?;
        self.delete_found(found);
        Ok(())
    }

    /// The live keys of a span at this point of the request.
    fn live(&self, span: &KeySpan) -> Result<Vec<Found>, Fatal> {
        let revision = self.at().revision;
        Ok(collect(self.overlay, span, revision, usize::MAX, Count::All)?.0)
    }

    fn delete_found(&mut self, found: Vec<Found>) {
        for found in found {
            let Life { lease, .. } = found.life();
            self.delete(found.key, found.modified, lease);
        }
    }

    fn put(&mut self, key: Bytes, value: Bytes, lease: i64, entry: Option<IndexEntry>) {
        let revision = self.next_revision();
        let live = entry.filter(|entry| !entry.tombstone);
        let (created, version) = match live {
            Some(entry) => (entry.created, entry.version + 1),
            None => (revision.main, 1),
        };
        let old_lease = live.map_or(0, |entry| entry.lease);
        let prev = live.and_then(|entry| self.prev(&key, entry.modified));
        let pair = KeyValue {
            key: key.clone(),
            create_revision: created,
            mod_revision: revision.main,
            version,
            value,
            lease,
        };
        let size = pair.key.len() + pair.value.len() + 64;
        let row = self.overlay.encode(size, |out| kv::encode_to(&pair, out));
        let state = IndexEntry { modified: revision, created, version, lease, tombstone: false };
        self.record(key, row, state);
        if old_lease != lease {
            self.detach(old_lease, &pair.key);
            if lease != 0 {
                let key = lease_key(lease, &pair.key);
                self.overlay.put(Family::LeaseKey, key, Bytes::new());
            }
        }
        let prev = prev.filter(|_| created != revision.main);
        self.events.push(Event { kind: EventKind::Put, kv: pair, prev });
    }

    /// `modified` and `lease` are those of the pair that goes.
    fn delete(&mut self, key: Bytes, modified: Revision, lease: i64) {
        let revision = self.next_revision();
        let prev = self.prev(&key, modified);
        let row = self.overlay.encode(key.len() + 8, |out| kv::encode_tombstone_to(&key, out));
        self.record(key.clone(), row, IndexEntry::deleted(revision));
        self.detach(lease, &key);
        let pair = KeyValue { key, mod_revision: revision.main, ..Default::default() };
        self.events.push(Event { kind: EventKind::Delete, kv: pair, prev });
    }

    fn detach(&mut self, lease: i64, key: &[u8]) {
        if lease != 0 {
            self.overlay.delete(Family::LeaseKey, lease_key(lease, key));
        }
    }

    /// Writes the change of `key` to Key, History and Index.
    fn record(&mut self, key: Bytes, row: Bytes, entry: IndexEntry) {
        let IndexEntry { modified: revision, tombstone, .. } = entry;
        let row_key = self.overlay.encode(18, |out| RowKey { revision, tombstone }.encode_to(out));
        self.overlay.put(Family::Key, row_key, row);
        // Twice the key: each of its bytes may need an escape.
        let size = 2 * key.len() + 18;
        let past = self.overlay.encode(size, |out| history_key_to(&key, revision, out));
        self.overlay.put(Family::History, past, history_value(tombstone));
        let entry = self.overlay.encode(IndexEntry::LEN, |out| entry.encode_to(out));
        self.overlay.put(Family::Index, key, entry);
    }

    /// Where the pair before this request is, given where the present one is. A key that this
    /// request changed already has it in the first event.
    fn prev(&self, key: &[u8], modified: Revision) -> Option<Revision> {
        if modified.main <= self.begin.revision {
            return Some(modified);
        }
        self.events.iter().find(|event| event.kv.key == key)?.prev
    }
}
