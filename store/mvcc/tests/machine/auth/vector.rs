//! A log that a real member (etcd 3.7.3, alone in its cluster) wrote for random requests of some
//! users: what it answered to each, and the rows that it had in the end.
//!
//! Lines of the file, with tabs between their parts: `entry`, term, type, data in hex, and what the
//! client was told (nothing where the entry was not its own), as code and text or `ok` and what was
//! listed; `row`, bucket, key and value in hex.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use mainstay_engine::Engine;
use mainstay_mvcc::transfer::for_each_row;
use mainstay_proto::raftpb::Entry;

use super::*;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

const LOG: &str = include_str!("etcd-3.7.3.txt");

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn told(result: Result<Response, Error>) -> String {
    let listed = match result {
        Err(error) => return format!("{} {error}", error.code() as i32),
        Ok(Response::AuthUserGet(response)) => response.roles.join(","),
        Ok(Response::AuthUserList(response)) => response.users.join(","),
        Ok(Response::AuthRoleList(response)) => response.roles.join(","),
        Ok(Response::AuthRoleGet(response)) => {
            let permissions = response.perm.iter().map(|permission| {
                let Permission { perm_type, key, range_end } = permission;
                format!("{perm_type}:{}:{}", hex(key), hex(range_end))
            });
            permissions.collect::<Vec<_>>().join(",")
        }
        // The first part of a token is random.
        Ok(Response::Authenticate(mut response)) => response.token.split_off(16),
        Ok(_) => String::new(),
    };
    if listed.is_empty() { "ok".into() } else { format!("ok {listed}") }
}

#[test]
fn the_log_of_a_real_member_has_its_answers_and_rows() {
    let mut store = Store::new();
    let mut expected: BTreeMap<&str, Rows> = BTreeMap::new();
    let mut answers = 0;
    for line in LOG.lines() {
        match line.split('\t').collect::<Vec<_>>()[..] {
            ["entry", term, kind, data, answer] => {
                let index = store.state().applied.index + 1;
                let entry = Entry {
                    r#type: Some(kind.parse().unwrap()),
                    term: Some(term.parse().unwrap()),
                    index: Some(index),
                    data: Some(unhex(data).into()),
                };
                let mut applied = store.machine.apply(&store.engine, &[entry]).unwrap();
                store.engine.write(std::mem::take(&mut applied.batch)).unwrap();
                let told = told(outcome(applied).result);
                if !answer.is_empty() {
                    answers += 1;
                    assert_eq!(told, answer, "entry {index}");
                }
            }
            ["row", bucket, key, value] => {
                expected.entry(bucket).or_default().push((unhex(key), unhex(value)));
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!((answers, expected.len()), (233, 4));
    for (bucket, expected) in expected {
        let bucket = Bucket::from_name(bucket.as_bytes()).unwrap();
        let mut rows = Rows::new();
        for_each_row(&store.engine, bucket, &mut |key, value| {
            rows.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(rows, expected, "bucket {}", bucket.name());
    }
    let before = store.state();
    store.reopen();
    assert_eq!(store.state(), before);
}
