//! Conf changes, publications and what cannot be applied.

use mainstay_engine::{Engine, Family, View};
use mainstay_mvcc::buckets::Bucket;
use mainstay_mvcc::membership::{Member, MemberChange, json};
use mainstay_mvcc::{Error, Fatal, Response};
use mainstay_proto::etcdserverpb::{self as pb, InternalRaftRequest};
use mainstay_proto::membershippb as mpb;
use mainstay_proto::raftpb::{
    ConfChange, ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType,
};
use prost::Message;

use crate::store::{Store, outcome, put, request, rows};

fn change(kind: ConfChangeType, id: u64, context: String) -> ConfChange {
    let context = (!context.is_empty()).then(|| context.into());
    ConfChange { id: Some(id + 1000), r#type: Some(kind as i32), node_id: Some(id), context }
}

fn add(id: u64, name: &str, learner: bool) -> ConfChange {
    let member = Member::new(id, name, vec![format!("http://h:{id}")], learner);
    let kind = if learner {
        ConfChangeType::ConfChangeAddLearnerNode
    } else {
        ConfChangeType::ConfChangeAddNode
    };
    change(kind, id, json::member(&member))
}

fn attributes(id: u64, name: &str, url: &str) -> InternalRaftRequest {
    request!(
        cluster_member_attr_set,
        mpb::ClusterMemberAttrSetRequest {
            member_id: id,
            member_attributes: Some(mpb::Attributes {
                name: name.into(),
                client_urls: vec![url.into()],
            }),
        }
    )
}

fn row(store: &Store, bucket: Bucket, key: &str) -> Option<String> {
    let row = store.engine.get(Family::System, &bucket.engine_key(key.as_bytes())).unwrap();
    row.map(|row| String::from_utf8(row.to_vec()).unwrap())
}

#[test]
fn life_of_a_cluster() {
    let mut store = Store::new();
    let applied = store.conf_change(&add(0xa1, "m1", false));
    let [conf_change] = &applied.conf_changes[..] else { panic!("one conf change") };
    assert_eq!(conf_change.conf_state.voters, [0xa1]);
    assert!(matches!(&conf_change.member, Some(MemberChange::Added(member)) if member.id == 0xa1));
    let outcome = outcome(applied);
    assert_eq!(outcome.request_id, 0xa1 + 1000);
    let Ok(Response::Members(members)) = outcome.result else { panic!("members") };
    assert_eq!(members[0].peer_ur_ls, ["http://h:161"]);
    assert_eq!(
        row(&store, Bucket::Members, "a1").unwrap(),
        r#"{"id":161,"peerURLs":["http://h:161"],"name":"m1"}"#
    );
    let state = r#"{"voters":[161],"auto_leave":false}"#;
    assert_eq!(row(&store, Bucket::Meta, "confState").unwrap(), state);

    store.answer(attributes(0xa1, "m1", "http://c:1")).unwrap();
    assert_eq!(
        row(&store, Bucket::Members, "a1").unwrap(),
        r#"{"id":161,"peerURLs":["http://h:161"],"name":"m1","clientURLs":["http://c:1"]}"#
    );

    store.conf_change(&add(0xa2, "", true));
    let learner = r#"{"id":162,"peerURLs":["http://h:162"],"isLearner":true}"#;
    assert_eq!(row(&store, Bucket::Members, "a2").unwrap(), learner);
    let state = r#"{"voters":[161],"learners":[162],"auto_leave":false}"#;
    assert_eq!(row(&store, Bucket::Meta, "confState").unwrap(), state);

    let refused = store.conf_change(&add(0xa3, "", true));
    assert_eq!(refused.conf_changes[0].change, None);
    assert_eq!(refused.conf_changes[0].conf_state.learners, [0xa2]);
    assert_eq!(outcome_of(refused), Err(Error::TooManyLearners));

    let kind = ConfChangeType::ConfChangeAddNode;
    store.conf_change(&change(kind, 0xa2, json::promote_context(0xa2)));
    let promoted = r#"{"id":162,"peerURLs":["http://h:162"]}"#;
    assert_eq!(row(&store, Bucket::Members, "a2").unwrap(), promoted);
    assert_eq!(store.state().conf_state.voters, [0xa1, 0xa2]);

    let kind = ConfChangeType::ConfChangeUpdateNode;
    let context = json::update_context(0xa2, vec!["http://new:1".into()]);
    let applied = store.conf_change(&change(kind, 0xa2, context));
    assert!(matches!(applied.conf_changes[0].member, Some(MemberChange::Updated(_))));
    let updated = r#"{"id":162,"peerURLs":["http://new:1"]}"#;
    assert_eq!(row(&store, Bucket::Members, "a2").unwrap(), updated);

    let kind = ConfChangeType::ConfChangeRemoveNode;
    store.conf_change(&change(kind, 0xa2, String::new()));
    assert_eq!(row(&store, Bucket::Members, "a2"), None);
    assert_eq!(row(&store, Bucket::MembersRemoved, "a2").unwrap(), "removed");
    let again = store.conf_change(&change(kind, 0xa2, String::new()));
    assert_eq!(outcome_of(again), Err(Error::MemberNotFound));
    assert_eq!(outcome_of(store.conf_change(&add(0xa2, "", false))), Err(Error::MemberNotFound));
    let late = store.answer(attributes(0xa2, "late", "u"));
    assert_eq!(late, Ok(Response::MemberAttributes { id: 0xa2, known: false }));

    let before = store.state();
    store.reopen();
    assert_eq!(store.state(), before);
    assert!(before.members.is_removed(0xa2));
}

fn outcome_of(applied: mainstay_mvcc::Applied) -> Result<Response, Error> {
    outcome(applied).result
}

#[test]
fn a_conf_change_of_the_second_form_counts_if_it_is_a_single_step() {
    let mut store = Store::new();
    let single = ConfChangeSingle { r#type: None, node_id: Some(1) };
    let context = Some(json::member(&Member::new(1, "m", vec!["http://h:1".into()], false)).into());
    let change = ConfChangeV2 { transition: None, changes: vec![single], context };
    let kind = EntryType::EntryConfChangeV2;
    let applied = store.try_entry(kind, change.encode_to_vec()).unwrap();
    assert_eq!(applied.conf_changes[0].change.as_ref().unwrap().node_id, Some(1));
    assert_eq!(store.state().conf_state.voters, [1]);
    let several = ConfChangeV2 { changes: vec![single, single], ..Default::default() };
    let error = store.try_entry(kind, several.encode_to_vec()).unwrap_err();
    assert!(error.to_string().contains("entry 2"), "{error}");
}

#[test]
fn what_cannot_be_applied_as_real_members_do_stops_the_member() {
    let (name, password) = ("u".into(), "plain".into());
    let add_user =
        request!(auth_user_add, pb::AuthUserAddRequest { name, password, ..Default::default() });
    let newer =
        request!(cluster_version_set, mpb::ClusterVersionSetRequest { ver: "3.8.0".into() });
    let cases: Vec<(EntryType, Vec<u8>, &str)> = vec![
        (EntryType::EntryNormal, vec![0xff, 0xff], "does not decode"),
        (EntryType::EntryNormal, put("a", "1").encode_to_vec(), "without a header"),
        (EntryType::EntryNormal, crate::store::encode(1, add_user), "not hashed"),
        (EntryType::EntryNormal, crate::store::encode(1, Default::default()), "unknown kind"),
        (EntryType::EntryNormal, crate::store::encode(1, attributes(5, "m", "u")), "member 5"),
        (EntryType::EntryNormal, crate::store::encode(1, newer), "3.8.0"),
        (EntryType::EntryConfChange, vec![0x08], "conf change"),
    ];
    for (kind, data, found) in cases {
        let mut store = Store::new();
        let error = store.try_entry(kind, data).unwrap_err().to_string();
        assert!(error.contains(found), "{error}");
        assert!(rows(&store.engine, Family::System).is_empty());
    }
    let mut store = Store::new();
    store.conf_change(&add(1, "m", false));
    let last = change(ConfChangeType::ConfChangeRemoveNode, 1, String::new());
    let error = store.try_entry(EntryType::EntryConfChange, last.encode_to_vec()).unwrap_err();
    assert!(error.to_string().contains("no voter"), "{error}");
}

#[test]
fn entries_are_applied_once_and_without_gaps() {
    let mut store = Store::new();
    store.put("a", "1");
    store.put("a", "2");
    let again = store.machine.apply(&store.engine, &store.log).unwrap();
    assert!(again.is_empty() && again.batch.is_empty() && again.events.is_empty());
    assert_eq!(store.state().revision, 3);
    let entry = |index| Entry { index: Some(index), term: Some(2), ..Default::default() };
    assert!(matches!(
        store.machine.apply(&store.engine, &[entry(4)]),
        Err(Fatal::Entry { index: 4, .. })
    ));
    let empty = store.machine.apply(&store.engine, &[entry(2), entry(3)]).unwrap();
    assert_eq!(empty.outcomes.len(), 1);
    assert_eq!(empty.outcomes[0].result, Ok(Response::Empty));
    assert_eq!(store.state().applied.index, 3);
}

#[test]
fn what_entries_do_is_counted() {
    let mut store = Store::new();
    let sum = |applied: mainstay_mvcc::Applied| {
        let t = applied.tally;
        assert_eq!(applied.outcomes[0].op.is_some(), t != Default::default());
        (t.puts, t.put_bytes, t.deletes, t.ranges, t.txns)
    };
    assert_eq!(sum(store.apply(crate::store::put("a", "123"))), (1, 4, 0, 0, 0));
    assert_eq!(sum(store.apply(crate::store::delete("b", ""))), (0, 0, 1, 0, 0));
    let put = pb::PutRequest { key: "c".into(), lease: 7, ..Default::default() };
    let range = pb::RangeRequest { key: "a".into(), ..Default::default() };
    let ops =
        [pb::request_op::Request::RequestPut(put), pb::request_op::Request::RequestRange(range)];
    let success = ops.map(|op| pb::RequestOp { request: Some(op) }).to_vec();
    let compare = vec![pb::Compare { key: "a".into(), ..Default::default() }];
    let txn = request!(txn, pb::TxnRequest { compare, failure: success, ..Default::default() });
    // The lease is not there: nothing was done.
    let refused = store.apply(txn.clone());
    assert!(refused.outcomes[0].result.is_err());
    assert_eq!(refused.tally, Default::default());
    store.apply(request!(lease_grant, pb::LeaseGrantRequest { id: 7, ttl: 10 }));
    assert_eq!(sum(store.apply(txn)), (1, 1, 0, 2, 1));
    assert_eq!(store.state().live_keys, 2);
    let revoke = request!(lease_revoke, pb::LeaseRevokeRequest { id: 7 });
    assert_eq!(sum(store.apply(revoke)), (0, 0, 1, 0, 0));
    let put = pb::PutRequest { key: "a".into(), prev_kv: true, ..Default::default() };
    assert_eq!(sum(store.apply(request!(put, put))), (1, 1, 0, 1, 1));
    assert_eq!(store.state().live_keys, 1);
}

#[test]
fn ranges_are_left_out_where_nobody_waits() {
    let mut store = Store::new();
    store.put("a", "1");
    let range = pb::RangeRequest { key: "a".into(), ..Default::default() };
    let op = pb::request_op::Request::RequestRange(range);
    let put = pb::PutRequest { key: "b".into(), ..Default::default() };
    let put = pb::request_op::Request::RequestPut(put);
    let success = [op, put].map(|op| pb::RequestOp { request: Some(op) }).to_vec();
    let data =
        crate::store::encode(9, request!(txn, pb::TxnRequest { success, ..Default::default() }));
    let entry =
        Entry { index: Some(2), term: Some(2), data: Some(data.into()), ..Default::default() };
    let mut applied = store.machine.apply_for(&store.engine, &[entry], &|_| false).unwrap();
    store.engine.write(std::mem::take(&mut applied.batch)).unwrap();
    let Ok(Response::Txn(txn)) = outcome_of(applied) else { panic!("a transaction") };
    let Some(pb::response_op::Response::ResponseRange(range)) = &txn.responses[0].response else {
        panic!("a range")
    };
    assert!(range.kvs.is_empty());
    assert_eq!(store.state().revision, 3);
}
