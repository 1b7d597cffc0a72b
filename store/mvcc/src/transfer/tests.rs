//! Export and import: random stores come back row by row; damaged files are named.

use std::collections::BTreeMap;

use mainstay_engine::MemEngine;
use mainstay_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest,
    LeaseRevokeRequest, PutRequest, RequestHeader,
};
use mainstay_proto::raftpb::{Entry, EntryType};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Limits, StateMachine, hash_all, hash_kv};

#[derive(Clone, Debug)]
enum Step {
    Put { key: Vec<u8>, lease: i64 },
    Delete { key: Vec<u8>, end: Vec<u8> },
    Grant(i64),
    Revoke(i64),
    Compact { back: i64 },
    Slice(usize),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(prop::sample::select(vec![0_u8, b'a', 0xff]), 1..4)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (key(), 0_i64..3).prop_map(|(key, lease)| Step::Put { key, lease }),
        3 => (key(), prop_oneof![Just(Vec::new()), key()])
            .prop_map(|(key, end)| Step::Delete { key, end }),
        1 => (1_i64..3).prop_map(Step::Grant),
        1 => (1_i64..3).prop_map(Step::Revoke),
        1 => (0_i64..10).prop_map(|back| Step::Compact { back }),
        2 => (1_usize..8).prop_map(Step::Slice),
    ]
}

struct Store {
    engine: MemEngine,
    machine: StateMachine,
}

impl Store {
    fn new(engine: MemEngine) -> Self {
        let machine = StateMachine::open(&engine, Limits::default()).unwrap();
        Self { engine, machine }
    }

    fn run(&mut self, step: &Step) {
        let mut request = InternalRaftRequest::default();
        match step.clone() {
            Step::Put { key, lease } => {
                let value = vec![b'v'; key.len() * 3].into();
                request.put =
                    Some(PutRequest { key: key.into(), value, lease, ..Default::default() });
            }
            Step::Delete { key, end } => {
                request.delete_range = Some(DeleteRangeRequest {
                    key: key.into(),
                    range_end: end.into(),
                    ..Default::default()
                });
            }
            Step::Grant(id) => request.lease_grant = Some(LeaseGrantRequest { id, ttl: 60 }),
            Step::Revoke(id) => request.lease_revoke = Some(LeaseRevokeRequest { id }),
            Step::Compact { back } => {
                let revision = (self.machine.status().revision - back).max(1);
                request.compaction = Some(CompactionRequest { revision, ..Default::default() });
            }
            Step::Slice(rows) => {
                if let Some(slice) = self.machine.compact_slice(&self.engine, rows).unwrap() {
                    self.engine.write(slice.batch).unwrap();
                }
                return;
            }
        }
        let index = self.machine.status().applied.index + 1;
        request.header = Some(RequestHeader { id: index, ..Default::default() });
        let entry = Entry {
            r#type: Some(EntryType::EntryNormal as i32),
            term: Some(2),
            index: Some(index),
            data: Some(request.encode_to_vec().into()),
        };
        // Refused requests (a lease that is not there, …) are part of the history.
        let applied = self.machine.apply(&self.engine, &[entry]).unwrap();
        self.engine.write(applied.batch).unwrap();
    }

    fn finish_compaction(&mut self) {
        while self.machine.compacting().is_some() {
            self.run(&Step::Slice(7));
        }
    }
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn family(view: &dyn View, family: Family) -> Rows {
    let mut rows = Vec::new();
    let mut cursor = view.cursor(family, Scan::all()).unwrap();
    cursor.seek_to_first();
    while cursor.valid() {
        rows.push((cursor.key().to_vec(), cursor.value().to_vec()));
        cursor.next();
    }
    rows
}

fn export(view: &dyn View) -> BTreeMap<&'static str, Rows> {
    let rows = |bucket| {
        let mut rows = Rows::new();
        for_each_row(view, bucket, &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        rows
    };
    Bucket::ALL.into_iter().map(|bucket| (bucket.name(), rows(bucket))).collect()
}

fn import(file: &BTreeMap<&'static str, Rows>) -> Result<(MemEngine, Imported), ImportError> {
    let engine = MemEngine::new();
    let mut importer = Importer::new(&engine, |_| {})?;
    for (name, rows) in file {
        let bucket = Importer::bucket(name.as_bytes())?;
        for (key, value) in rows {
            importer.row(bucket, key, value)?;
        }
    }
    let imported = importer.finish()?;
    Ok((engine.after_crash(), imported))
}

proptest! {
    #[test]
    fn a_store_comes_back_row_by_row(script in vec(step(), 0..80)) {
        let mut store = Store::new(MemEngine::new());
        for step in &script {
            store.run(step);
        }
        let file = export(&store.engine);
        let (engine, imported) = import(&file).unwrap();
        let finished = Bucket::Meta.engine_key(names::FINISHED_COMPACT);
        prop_assert_eq!(imported.compaction_pending, store.machine.compacting().is_some());
        prop_assert_eq!(imported.read.rows, file.values().map(|rows| rows.len() as u64).sum::<u64>());
        for name in Family::ALL {
            let mut wanted = family(&store.engine, name);
            if imported.compaction_pending && name == Family::System {
                wanted.retain(|(key, _)| key[..] != finished[..]);
            }
            prop_assert_eq!(family(&engine, name), wanted, "{}", name.name());
        }
        // Both go on alike, through the end of a compaction that was under way.
        let mut copy = Store::new(engine);
        for store in [&mut store, &mut copy] {
            store.finish_compaction();
        }
        let state = store.machine.status();
        prop_assert_eq!(&copy.machine.status(), &state);
        for name in Family::ALL {
            prop_assert_eq!(family(&copy.engine, name), family(&store.engine, name));
        }
        prop_assert_eq!(hash_all(&copy.engine).unwrap(), hash_all(&store.engine).unwrap());
        prop_assert_eq!(
            hash_kv(&copy.engine, state.read_at(), 0).unwrap(),
            hash_kv(&store.engine, state.read_at(), 0).unwrap()
        );
    }

    #[test]
    fn another_members_half_done_pass_is_done_again(
        script in vec(step(), 0..80), parts in vec(0_usize..6, 10),
    ) {
        let mut store = Store::new(MemEngine::new());
        for step in &script {
            store.run(step);
        }
        store.run(&Step::Compact { back: 2 });
        let mut file = export(&store.engine);
        store.finish_compaction();
        let keep: BTreeSet<_> =
            family(&store.engine, Family::Key).into_iter().map(|(row, _)| row).collect();
        // A pass removes the rows of a key from the oldest on; it may be anywhere with each key.
        let mut parts = parts.into_iter().cycle();
        let mut left: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        file.get_mut("key").unwrap().retain(|(row, value)| {
            let key = crate::user_key(row, value).unwrap().to_vec();
            let left = left.entry(key).or_insert_with(|| parts.next().unwrap());
            let gone = !keep.contains(row) && *left > 0;
            *left -= usize::from(gone);
            !gone
        });
        let (engine, _) = import(&file).unwrap();
        let mut copy = Store::new(engine);
        copy.finish_compaction();
        for name in Family::ALL {
            prop_assert_eq!(family(&copy.engine, name), family(&store.engine, name));
        }
    }
}

fn small_file() -> BTreeMap<&'static str, Rows> {
    let mut store = Store::new(MemEngine::new());
    for step in [
        Step::Grant(1),
        Step::Put { key: b"a".to_vec(), lease: 1 },
        Step::Put { key: b"b".to_vec(), lease: 0 },
        Step::Delete { key: b"a".to_vec(), end: Vec::new() },
        Step::Put { key: b"c".to_vec(), lease: 1 },
    ] {
        store.run(&step);
    }
    export(&store.engine)
}

fn refusal(change: impl FnOnce(&mut BTreeMap<&'static str, Rows>)) -> String {
    let mut file = small_file();
    change(&mut file);
    import(&file).map(|(_, imported)| imported).unwrap_err().to_string()
}

#[test]
fn leases_get_their_keys() {
    let (engine, imported) = import(&small_file()).unwrap();
    assert_eq!(imported.leased_keys, 1);
    assert_eq!(crate::attached_keys(&engine, 1).unwrap(), [&b"c"[..]]);
    let mut file = small_file();
    file.get_mut("lease").unwrap().clear();
    let (engine, imported) = import(&file).unwrap();
    assert_eq!(imported.leased_keys, 0, "the lease is not there");
    assert!(family(&engine, Family::LeaseKey).is_empty());
}

#[test]
fn impossible_rows_are_named() {
    let text = refusal(|file| {
        file.insert("zoo", Rows::new());
    });
    assert!(text.contains("\"zoo\""), "{text}");
    let text = refusal(|file| file.get_mut("key").unwrap()[1].0[8] = b'-');
    assert!(text.contains("bucket key") && text.contains("not a revision"), "{text}");
    let text = refusal(|file| file.get_mut("key").unwrap()[1].1 = vec![0x0a, 200]);
    assert!(text.contains("bucket key") && text.contains("\\x03_"), "{text}");
    let text = refusal(|file| file.get_mut("key").unwrap().swap(0, 1));
    assert!(text.contains("order"), "{text}");
    let text = refusal(|file| file.get_mut("lease").unwrap()[0].0[7] = 9);
    assert!(text.contains("lease of another id"), "{text}");
    let text = refusal(|file| {
        file.get_mut("meta").unwrap().push((b"scheduledCompactRev".to_vec(), b"5".to_vec()));
        file.get_mut("meta").unwrap().sort();
    });
    assert!(text.contains("scheduledCompactRev") && text.contains("not a revision"), "{text}");
}

#[test]
fn only_an_empty_engine_is_filled() {
    let engine = MemEngine::new();
    let mut batch = Batch::new();
    batch.put(Family::LeaseKey, "k", "");
    engine.write(batch).unwrap();
    let error = Importer::new(&engine, |_| {}).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("lease_key"), "{error}");
}

#[test]
fn an_import_reports_progress_and_writes_in_parts() {
    let engine = MemEngine::new();
    let mut seen = Vec::new();
    let mut importer = Importer::new(&engine, |progress| seen.push(progress)).unwrap();
    let value = KeyValue {
        key: "k".into(),
        value: vec![1; 1 << 20].into(),
        create_revision: 2,
        mod_revision: 2,
        version: 1,
        lease: 0,
    }
    .encode_to_vec();
    for main in 2..20 {
        let row = RowKey { revision: crate::Revision::new(main, 0), tombstone: false };
        importer.row(Bucket::Key, &row.encode(), &value).unwrap();
    }
    let imported = importer.finish().unwrap();
    assert!(seen.len() > 4, "{seen:?}");
    assert!(seen.is_sorted_by_key(|progress| progress.rows));
    assert_eq!(*seen.last().unwrap(), imported.read);
    assert_eq!(imported.read.rows, 18);
}

#[test]
fn buckets_have_etcds_names_in_order() {
    let names: Vec<_> = bucket_names().collect();
    assert_eq!(names.len(), 10);
    assert!(names.is_sorted());
}
