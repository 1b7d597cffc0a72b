//! A store for tests: the state machine over the engine in memory, fed entry by entry.

use mainstay_engine::{Engine, Family, MemEngine, Scan, View};
use mainstay_mvcc::{
    Applied, CompactSlice, Error, Fatal, Limits, Outcome, Response, StateMachine, StateView,
};
use mainstay_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RangeRequest, RangeResponse, RequestHeader, TxnRequest,
};
use mainstay_proto::raftpb::{ConfChange, Entry, EntryType};
use prost::Message;

pub(crate) struct Store {
    pub(crate) engine: MemEngine,
    pub(crate) machine: StateMachine,
    pub(crate) log: Vec<Entry>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let engine = MemEngine::new();
        let machine = StateMachine::open(&engine, Limits::default()).unwrap();
        Self { engine, machine, log: Vec::new() }
    }

    /// Starts again on what the engine holds.
    pub(crate) fn reopen(&mut self) {
        self.machine = StateMachine::open(&self.engine, Limits::default()).unwrap();
    }

    pub(crate) fn state(&self) -> StateView {
        self.machine.status()
    }

    /// Appends an entry to the log and applies it.
    pub(crate) fn try_entry(&mut self, kind: EntryType, data: Vec<u8>) -> Result<Applied, Fatal> {
        let entry = Entry {
            r#type: Some(kind as i32),
            term: Some(2),
            index: Some(self.state().applied.index + 1),
            data: Some(data.into()),
        };
        self.log.push(entry.clone());
        let mut applied = self.machine.apply(&self.engine, &[entry])?;
        self.engine.write(std::mem::take(&mut applied.batch)).unwrap();
        Ok(applied)
    }

    pub(crate) fn apply(&mut self, request: InternalRaftRequest) -> Applied {
        self.try_entry(EntryType::EntryNormal, encode(self.log.len() as u64 + 1, request)).unwrap()
    }

    pub(crate) fn conf_change(&mut self, change: &ConfChange) -> Applied {
        self.try_entry(EntryType::EntryConfChange, change.encode_to_vec()).unwrap()
    }

    pub(crate) fn answer(&mut self, request: InternalRaftRequest) -> Result<Response, Error> {
        outcome(self.apply(request)).result
    }

    pub(crate) fn put(&mut self, key: &str, value: &str) {
        self.answer(put(key, value)).unwrap();
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.answer(delete(key, "")).unwrap();
    }

    pub(crate) fn compact(&mut self, revision: i64) -> Result<(), Error> {
        self.answer(compact(revision)).map(|_| ())
    }

    /// One slice of a compaction.
    pub(crate) fn slice(&mut self, rows: usize) -> Option<i64> {
        let slice = self.machine.compact_slice(&self.engine, rows).unwrap();
        let CompactSlice { batch, finished, .. } = slice?;
        self.engine.write(batch).unwrap();
        finished
    }

    /// All slices that are left.
    pub(crate) fn finish_compaction(&mut self) {
        while self.machine.compacting().is_some() {
            self.slice(3);
        }
    }

    pub(crate) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Error> {
        mainstay_mvcc::range(&*self.engine.snapshot(), self.state().read_at(), request)
    }

    pub(crate) fn hash(&self, revision: i64) -> Result<u32, Error> {
        let view = self.engine.snapshot();
        Ok(mainstay_mvcc::hash_kv(&*view, self.state().read_at(), revision)?.hash)
    }

    pub(crate) fn rows(&self, family: Family) -> Vec<(Vec<u8>, Vec<u8>)> {
        rows(&self.engine, family)
    }
}

pub(crate) fn rows(view: &dyn View, family: Family) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut out = Vec::new();
    let mut cursor = view.cursor(family, Scan::all()).unwrap();
    cursor.seek_to_first();
    while cursor.valid() {
        out.push((cursor.key().to_vec(), cursor.value().to_vec()));
        cursor.next();
    }
    cursor.status().unwrap();
    out
}

pub(crate) fn outcome(mut applied: Applied) -> Outcome {
    assert_eq!(applied.outcomes.len(), 1);
    applied.outcomes.pop().unwrap()
}

pub(crate) fn encode(id: u64, mut request: InternalRaftRequest) -> Vec<u8> {
    request.header = Some(RequestHeader { id, ..Default::default() });
    request.encode_to_vec()
}

macro_rules! request {
    ($field:ident, $value:expr) => {
        InternalRaftRequest { $field: Some($value), ..Default::default() }
    };
}
pub(crate) use request;

pub(crate) fn put(key: &str, value: &str) -> InternalRaftRequest {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    request!(put, PutRequest { key, value, ..Default::default() })
}

pub(crate) fn delete(key: &str, range_end: &str) -> InternalRaftRequest {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    request!(delete_range, DeleteRangeRequest { key, range_end, ..Default::default() })
}

pub(crate) fn compact(revision: i64) -> InternalRaftRequest {
    request!(compaction, CompactionRequest { revision, ..Default::default() })
}

pub(crate) fn txn(txn: TxnRequest) -> InternalRaftRequest {
    request!(txn, txn)
}

pub(crate) fn grant(id: i64, ttl: i64) -> InternalRaftRequest {
    request!(lease_grant, LeaseGrantRequest { id, ttl })
}

pub(crate) fn revoke(id: i64) -> InternalRaftRequest {
    request!(lease_revoke, LeaseRevokeRequest { id })
}
