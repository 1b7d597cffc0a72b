//! The hub on the real state machine: what watchers read back is what they were told live.

use std::sync::Arc;

use bytes::Bytes;
use mainstay_engine::{Engine, MemEngine};
use mainstay_mvcc::{Limits, StateMachine};
use mainstay_proto::{
    etcdserverpb::{
        CompactionRequest, DeleteRangeRequest, InternalRaftRequest, PutRequest, RequestHeader,
        RequestOp, TxnRequest, WatchResponse, request_op::Request,
    },
    raftpb,
};
use mainstay_watch::{CreateRequest, Published, Reach, StoreView, StreamId};
use prost::Message as _;

use crate::support::{Rig, config, request};

struct Store {
    engine: MemEngine,
    machine: StateMachine,
    index: u64,
    rig: Rig,
}

fn put(key: &str, value: &str) -> PutRequest {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    PutRequest { key: bytes(key), value: bytes(value), ..Default::default() }
}

impl Store {
    fn new() -> Self {
        let engine = MemEngine::new();
        let machine = StateMachine::open(&engine, Limits::default()).unwrap();
        let view = Arc::new(StoreView::new(engine.snapshot(), machine.status().read_at()));
        let mut rig = Rig::new(config());
        rig.hub = mainstay_watch::Hub::new(config(), view);
        Self { engine, machine, index: 0, rig }
    }

    fn apply(&mut self, mut request: InternalRaftRequest) {
        self.index += 1;
        request.header = Some(RequestHeader { id: self.index, ..Default::default() });
        let entry = raftpb::Entry {
            term: Some(1),
            index: Some(self.index),
            data: Some(request.encode_to_vec().into()),
            ..Default::default()
        };
        let applied = self.machine.apply(&self.engine, &[entry]).unwrap();
        assert!(applied.outcomes[0].result.is_ok());
        self.engine.write(applied.batch).unwrap();
        while let Some(slice) = self.machine.compact_slice(&self.engine, 10).unwrap() {
            self.engine.write(slice.batch).unwrap();
        }
        let at = self.machine.status().read_at();
        let view = Arc::new(StoreView::new(self.engine.snapshot(), at));
        self.rig.hub.publish(Published { view, revisions: applied.events }).unwrap();
    }

    fn watch(&mut self, id: u64, start_revision: i64) -> StreamId {
        let stream = self.rig.open(id);
        let create = CreateRequest { start_revision, prev_kv: true, ..request("a", "d") };
        self.rig.hub.create(stream, create);
        self.rig.receive(stream);
        stream
    }
}

fn events(responses: &[WatchResponse]) -> Vec<mainstay_proto::mvccpb::Event> {
    responses.iter().flat_map(|response| response.events.clone()).collect()
}

#[test]
fn history_reads_back_as_it_was_told_live() {
    let mut store = Store::new();
    let live = store.watch(1, 0);
    for n in 0..30 {
        let put = |key: &str| Some(put(key, &n.to_string()));
        let delete = DeleteRangeRequest { key: "a".into(), range_end: "c".into(), prev_kv: false };
        let op = |request| RequestOp { request: Some(request) };
        let request = match n % 5 {
            0 => InternalRaftRequest { put: put("a"), ..Default::default() },
            1 => InternalRaftRequest { put: put("elsewhere"), ..Default::default() },
            2 | 3 => {
                let puts =
                    ["b", "c", "elsewhere"].map(|key| Request::RequestPut(put(key).unwrap()));
                let txn = TxnRequest { success: puts.map(op).into(), ..Default::default() };
                InternalRaftRequest { txn: Some(txn), ..Default::default() }
            }
            _ => InternalRaftRequest { delete_range: Some(delete), ..Default::default() },
        };
        store.apply(request);
    }
    let told = store.rig.receive(live);
    assert_eq!(told.len(), 24, "one response for each revision with keys of the range");
    let told = events(&told);
    assert_eq!(told.len(), 6 * (1 + 2 + 2 + 2));
    assert_eq!(told.iter().filter(|event| event.prev_kv.is_some()).count(), 6 * 4 + 5);

    let stream = store.rig.open(2);
    let create = CreateRequest { start_revision: 2, prev_kv: true, ..request("a", "d") };
    store.rig.hub.create(stream, create);
    assert!(store.rig.hub.has_work(Reach::Near));
    let responses = store.rig.receive(stream);
    assert_eq!(responses.len(), 2);
    assert_eq!(events(&responses), told);

    // From the compacted revision on all is there, but what was before it.
    let compaction = CompactionRequest { revision: 16, physical: false };
    store.apply(InternalRaftRequest { compaction: Some(compaction), ..Default::default() });
    let stream = store.rig.open(3);
    let create = CreateRequest { start_revision: 16, prev_kv: true, ..request("a", "d") };
    store.rig.hub.create(stream, create);
    let rest = events(&store.rig.receive(stream));
    let mut want: Vec<_> = told
        .iter()
        .filter(|event| event.kv.as_ref().unwrap().mod_revision >= 16)
        .cloned()
        .collect();
    for event in want.iter_mut().filter(|event| event.kv.as_ref().unwrap().mod_revision == 16) {
        event.prev_kv = None;
    }
    assert_eq!(rest, want);
    assert_eq!(rest[0].kv.as_ref().unwrap().mod_revision, 16);

    let stream = store.rig.open(4);
    store.rig.hub.create(stream, CreateRequest { start_revision: 15, ..request("a", "d") });
    assert_eq!(store.rig.receive(stream)[1].compact_revision, 16);
}
