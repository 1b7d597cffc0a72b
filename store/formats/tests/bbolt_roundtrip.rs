//! What the writer writes, the reader reads: rows, sizes, structure, and what is refused.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use common::Content;
use mainstay_formats::bbolt::{PAGE_SIZE, Plan, Reader, RowFn, Rows, RowsError, WriteError};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// Values of all sizes that make a difference: none, small, about a page, several pages.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        1 => Just(Vec::new()),
        6 => vec(any::<u8>(), 0..200),
        2 => (any::<u8>(), 900..9000usize).prop_map(|(byte, size)| vec![byte; size]),
        1 => (any::<u8>(), 30_000..200_000usize).prop_map(|(byte, size)| vec![byte; size]),
    ]
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        9 => vec(any::<u8>(), 1..30),
        1 => (vec(any::<u8>(), 1..4), 1000..32_000usize).prop_map(|(mut key, size)| {
            key.resize(size, b'k');
            key
        }),
    ]
}

fn content() -> impl Strategy<Value = Content> {
    let small = btree_map(key(), value(), 0..40);
    let many =
        (vec(any::<u8>(), 0..12), 0..3000u32, 0..400usize).prop_map(|(prefix, rows, value)| {
            (0..rows)
                .map(|row| {
                    let mut key = prefix.clone();
                    key.extend_from_slice(&row.to_be_bytes());
                    (key, vec![row as u8; value])
                })
                .collect::<BTreeMap<_, _>>()
        });
    btree_map("[a-z]{1,8}", prop_oneof![3 => small, 1 => many], 0..8).prop_map(Content)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_written_is_read(content in content(), absent in key()) {
        let file = content.file();
        prop_assert_eq!(file.len() as u64 % PAGE_SIZE, 0);
        let reader = Reader::open(file.as_slice()).unwrap();
        let report = reader.check().unwrap();
        prop_assert_eq!(report.free, 0);
        prop_assert_eq!(report.pages * PAGE_SIZE, file.len() as u64);
        prop_assert_eq!(report.buckets, content.0.len() as u64);
        prop_assert_eq!(report.rows, content.0.values().map(|rows| rows.len() as u64).sum::<u64>());
        prop_assert_eq!(&Content::read(&reader).unwrap(), &content);
        for (name, rows) in &content.0 {
            let bucket = reader.bucket(name.as_bytes()).unwrap().unwrap();
            for (key, value) in rows.iter().step_by(1 + rows.len() / 16) {
                let found = reader.get(&bucket, key).unwrap();
                prop_assert_eq!(found.as_deref(), Some(value.as_slice()));
            }
            let found = reader.get(&bucket, &absent).unwrap();
            prop_assert_eq!(found.as_deref(), rows.get(&absent).map(Vec::as_slice));
            let last = reader.last(&bucket).unwrap().map(|(key, value)| (key.to_vec(), value.to_vec()));
            prop_assert_eq!(last, rows.iter().next_back().map(|(k, v)| (k.clone(), v.clone())));
            let mut cursor = reader.cursor(&bucket);
            cursor.seek(&absent).unwrap();
            let mut after = Vec::new();
            while let Some(row) = cursor.next_row().unwrap() {
                after.push(row.key.to_vec());
            }
            let expected: Vec<_> = rows.range(absent.clone()..).map(|(key, _)| key.clone()).collect();
            prop_assert_eq!(after, expected);
        }
    }

    #[test]
    fn chunks_of_any_size_make_the_same_file(content in content(), chunk in 1usize..100_000) {
        let plan = Plan::measure(content.0.keys(), &content).unwrap();
        let mut file = Vec::new();
        let mut sizes = Vec::new();
        plan.write(&content, chunk, &mut |bytes| {
            sizes.push(bytes.len());
            file.extend_from_slice(&bytes);
            Ok::<(), Infallible>(())
        })
        .unwrap();
        prop_assert_eq!(&file, &content.file());
        let last = sizes.pop().unwrap();
        prop_assert!(last >= 1 && last <= chunk);
        prop_assert!(sizes.iter().all(|&size| size == chunk));
    }
}

#[test]
fn no_bucket_at_all() {
    let file = Content::default().file();
    assert_eq!(file.len() as u64, 3 * PAGE_SIZE);
    let reader = Reader::open(file.as_slice()).unwrap();
    assert_eq!(reader.buckets().unwrap(), Vec::<&[u8]>::new());
    assert!(reader.bucket(b"key").unwrap().is_none());
    reader.check().unwrap();
}

#[test]
fn many_buckets_make_a_tree_of_buckets() {
    let mut content = Content::default();
    for number in 0..2000 {
        content.0.entry(format!("bucket {number:05}")).or_default();
        content.put(&format!("bucket {number:05}"), "key", format!("{number}"));
    }
    let file = content.file();
    let reader = Reader::open(file.as_slice()).unwrap();
    assert!(reader.check().unwrap().branches > 0);
    assert_eq!(Content::read(&reader).unwrap(), content);
}

#[test]
fn long_keys_make_deep_trees_of_overflowing_branches() {
    let mut content = Content::default();
    for number in 0..200u32 {
        let mut key = number.to_be_bytes().to_vec();
        key.resize(32768, b'k');
        content.put("key", key, "v");
    }
    let file = content.file();
    let reader = Reader::open(file.as_slice()).unwrap();
    let report = reader.check().unwrap();
    assert!(report.depth >= 8, "{report:?}");
    assert_eq!(Content::read(&reader).unwrap(), content);
}

#[test]
fn pages_are_at_least_three_quarters_full() {
    for value in [10, 300, 1000, 1300, 1500, 2100, 2800, 5000, 9000] {
        let mut content = Content::default();
        for row in 0..2000u64 {
            content.put("key", row.to_be_bytes(), vec![0; value]);
        }
        let bytes = 2000 * (value + 8 + 16);
        let size = content.file().len();
        assert!(bytes * 100 >= size * 72, "values of {value}: {bytes} bytes of rows in {size}");
    }
}

/// Counts, from row to row, how much of the output was handed on.
struct Fails {
    after: usize,
}

impl Rows for Fails {
    type Error = &'static str;

    fn for_each(&self, _: &str, row: &mut RowFn<'_>) -> Result<(), &'static str> {
        for number in 0..self.after as u64 {
            if row(&number.to_be_bytes(), b"value").is_break() {
                return Ok(());
            }
        }
        Err("engine closed")
    }
}

#[test]
fn errors_of_rows_and_receiver_come_through() {
    let error = Plan::measure(["key"], &Fails { after: 10 }).unwrap_err();
    assert_eq!(error.to_string(), "reading the rows: engine closed");

    let mut content = Content::default();
    for row in 0..10_000u64 {
        content.put("key", row.to_be_bytes(), "value");
    }
    let plan = Plan::measure(["key"], &content).unwrap();
    let mut left = 3;
    let error = plan
        .write(&content, 4096, &mut |_| {
            left -= 1;
            if left == 0 { Err("peer gone") } else { Ok(()) }
        })
        .unwrap_err();
    assert_eq!(error.to_string(), "handing on a chunk: peer gone");
    assert_eq!(left, 0, "nothing is handed on after the receiver gave up");
}

/// Rows in the order in which they stand here.
struct Listed(Vec<(Vec<u8>, Vec<u8>)>);

impl Rows for Listed {
    type Error = Infallible;

    fn for_each(&self, _: &str, row: &mut RowFn<'_>) -> Result<(), Infallible> {
        for (key, value) in &self.0 {
            if row(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[test]
fn what_bbolt_does_not_take_is_refused() {
    let refused = |keys: &[&[u8]]| {
        let rows = Listed(keys.iter().map(|key| (key.to_vec(), Vec::new())).collect());
        Plan::measure(["key"], &rows).unwrap_err()
    };
    assert!(matches!(refused(&[b"b", b"a"]), RowsError::KeyOrder { row: 1, .. }));
    assert!(matches!(refused(&[b"a", b"a"]), RowsError::KeyOrder { row: 1, .. }));
    assert!(matches!(refused(&[b""]), RowsError::KeySize { row: 0, size: 0, .. }));
    let long = vec![b'k'; 32769];
    assert!(matches!(refused(&[&long]), RowsError::KeySize { size: 32769, .. }));

    let none = Listed(Vec::new());
    for names in [vec!["b", "a"], vec!["a", "a"], vec![""]] {
        let error = Plan::measure(names, &none).unwrap_err();
        assert!(matches!(error, RowsError::BucketOrder(_)));
    }
}

#[test]
fn rows_that_change_between_the_passes_never_make_a_whole_file() {
    let mut before = Content::default();
    for row in 0..5000u64 {
        before.put("key", row.to_be_bytes(), vec![1; 100]);
    }
    let plan = Plan::measure(["key"], &before).unwrap();
    let mut changes: Vec<Content> = Vec::new();
    for row in [0u64, 2500, 4999] {
        let rows = |content: &mut Content| content.0.get_mut("key").unwrap().len();
        let mut other = before.clone();
        other.put("key", row.to_be_bytes(), vec![2; 100]);
        assert_eq!(rows(&mut other), 5000);
        changes.push(other);
        let mut longer = before.clone();
        longer.put("key", row.to_be_bytes(), vec![1; 101]);
        changes.push(longer);
        let mut fewer = before.clone();
        fewer.0.get_mut("key").unwrap().remove(row.to_be_bytes().as_slice());
        changes.push(fewer);
    }
    let mut more = before.clone();
    more.put("key", [0xFF], "");
    changes.push(more);
    for row in 5000..9000u64 {
        let last = changes.last_mut().unwrap();
        last.put("key", row.to_be_bytes(), vec![1; 100]);
    }
    changes.push(Content(BTreeMap::from([("key".to_owned(), BTreeMap::new())])));

    for (number, change) in changes.iter().enumerate() {
        for chunk in [1000, 4096, 1 << 20] {
            let mut written = 0;
            let error = plan
                .write(change, chunk, &mut |bytes| {
                    written += bytes.len() as u64;
                    Ok::<(), Infallible>(())
                })
                .unwrap_err();
            assert!(matches!(error, WriteError::RowsChanged(_)), "change {number}: {error}");
            assert!(written < plan.total_size(), "change {number}: {written} bytes");
        }
    }
}

#[test]
fn names_rise_bytewise() {
    let mut content = Content::default();
    let names: BTreeSet<&str> = ["key", "auth", "authUsers", "members_removed", "members"].into();
    for name in names {
        content.0.entry(name.to_owned()).or_default();
    }
    let file = content.file();
    let reader = Reader::open(file.as_slice()).unwrap();
    let found = reader.buckets().unwrap();
    assert_eq!(found, ["auth", "authUsers", "key", "members", "members_removed"]);
}
