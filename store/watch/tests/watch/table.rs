//! The watch stream as a real etcd was seen to answer it, step by step, and the rules behind it.

use std::{sync::Arc, time::Duration};

use crate::support::{Rig, config, delete, put, request};
use mainstay_proto::{etcdserverpb::WatchResponse, mvccpb::event::EventType};
use mainstay_watch::{CreateRequest, Filters, HubConfig, Limits, Published, Reach, StreamId};

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

fn revision(response: &WatchResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// `id flags rev N [reason]`, in short.
fn shape(response: &WatchResponse) -> String {
    let mut text = format!("id {}", response.watch_id);
    for (flag, name) in [(response.created, "created"), (response.canceled, "canceled")] {
        if flag {
            text += &format!(" {name}");
        }
    }
    text += &format!(" rev {}", revision(response));
    if response.compact_revision != 0 {
        text += &format!(" compact {}", response.compact_revision);
    }
    if !response.cancel_reason.is_empty() {
        text += &format!(" reason {}", response.cancel_reason);
    }
    if response.fragment {
        text += " fragment";
    }
    for event in &response.events {
        let kv = event.kv.as_ref().unwrap();
        let kind = if event.r#type == EventType::Put as i32 { "put" } else { "del" };
        let text_of = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        text += &format!(" {kind} {}={}@{}", text_of(&kv.key), text_of(&kv.value), kv.mod_revision);
        if let Some(prev) = &event.prev_kv {
            text += &format!("<{}@{}", text_of(&prev.value), prev.mod_revision);
        }
    }
    text
}

fn said(rig: &mut Rig, stream: StreamId) -> Vec<String> {
    rig.receive(stream).iter().map(shape).collect()
}

/// Revision 23, compacted 2, as in the recorded session: `a` has been written at 21, 22 and 23.
fn recorded() -> (Rig, StreamId) {
    let mut rig = Rig::new(config());
    for _ in 2..=20 {
        rig.write(&[put("filler", "x")]);
    }
    for value in ["1", "2", "3"] {
        rig.write(&[put("a", value)]);
    }
    rig.compact(2);
    assert_eq!(rig.hub.revision(), 23);
    let stream = rig.open(1);
    (rig, stream)
}

#[test]
fn the_recorded_session() {
    let (mut rig, s) = recorded();

    assert!(!rig.hub.progress(s));
    assert_eq!(said(&mut rig, s), [""; 0]);

    rig.hub.create(s, request("a", ""));
    assert_eq!(said(&mut rig, s), ["id 0 created rev 23"]);

    assert!(rig.hub.progress(s));
    assert_eq!(said(&mut rig, s), ["id -1 rev 23"]);

    rig.hub.create(s, CreateRequest { start_revision: 1, ..request("a", "") });
    assert_eq!(said(&mut rig, s), ["id 1 created rev 23", "id 1 canceled rev 0 compact 2"]);

    rig.hub.create(s, CreateRequest { start_revision: -1, ..request("a", "") });
    let refused = format!("id -1 created canceled rev 23 reason {COMPACTED}");
    assert_eq!(said(&mut rig, s), [refused]);

    rig.hub.create(s, CreateRequest { start_revision: 1000, ..request("a", "") });
    assert_eq!(said(&mut rig, s), ["id 2 created rev 23"]);
    assert!(!rig.hub.progress(s));

    rig.hub.create(s, CreateRequest { watch_id: 1, ..request("a", "") });
    let duplicate = "id -1 created canceled rev 23 reason mvcc: duplicate watch ID provided on the \
                     WatchStream";
    assert_eq!(said(&mut rig, s), [duplicate]);

    rig.hub.create(s, CreateRequest { watch_id: 7, prev_kv: true, ..request("b", "") });
    assert_eq!(said(&mut rig, s), ["id 7 created rev 23"]);

    rig.hub.create(s, request("z", "a"));
    let empty = "id -1 created canceled rev 23 reason mvcc: watcher range is empty";
    assert_eq!(said(&mut rig, s), [empty]);

    rig.hub.create(s, CreateRequest { watch_id: -3, ..request("a", "") });
    assert_eq!(said(&mut rig, s), ["id -3 created rev 23"]);

    rig.hub.create(s, request("", "\0"));
    assert_eq!(said(&mut rig, s), ["id 3 created rev 23"]);

    for (write, for_all, for_seven) in [
        (put("b", "1"), "id 3 rev 24 put b=1@24", "id 7 rev 24 put b=1@24"),
        (put("b", "2"), "id 3 rev 25 put b=2@25", "id 7 rev 25 put b=2@25<1@24"),
        (delete("b"), "id 3 rev 26 del b=@26", "id 7 rev 26 del b=@26<2@25"),
    ] {
        rig.write(&[write]);
        let mut got = said(&mut rig, s);
        got.sort();
        assert_eq!(got, [for_all, for_seven]);
    }

    assert!(rig.hub.cancel(s, 7));
    assert_eq!(said(&mut rig, s), ["id 7 canceled rev 26"]);
    assert!(!rig.hub.cancel(s, 70));
    assert_eq!(said(&mut rig, s), [""; 0]);

    let filters = Filters { no_delete: true, no_put: false };
    let past = CreateRequest { start_revision: 21, prev_kv: true, filters, ..request("a", "") };
    rig.hub.create(s, past);
    let events = "id 4 rev 26 put a=1@21 put a=2@22<1@21 put a=3@23<2@22";
    assert_eq!(said(&mut rig, s), ["id 4 created rev 26", events]);
}

#[test]
fn headers_carry_who_answers_and_the_term() {
    let (mut rig, s) = recorded();
    rig.hub.set_term(9);
    rig.hub.create(s, CreateRequest { start_revision: 1, ..request("a", "") });
    for response in rig.receive(s) {
        let header = response.header.unwrap();
        assert_eq!((header.cluster_id, header.member_id, header.raft_term), (77, 5, 9));
    }
}

#[test]
fn a_compacted_watcher_is_cancelled_once_more_when_the_client_asks_and_its_id_is_free_then() {
    let (mut rig, s) = recorded();
    rig.hub.create(s, CreateRequest { start_revision: 1, watch_id: 9, ..request("a", "") });
    said(&mut rig, s);
    assert!(!rig.hub.progress(s), "a cancelled watcher is not synced");
    assert!(rig.hub.cancel(s, 9));
    rig.hub.create(s, CreateRequest { watch_id: 9, ..request("a", "") });
    assert_eq!(said(&mut rig, s), ["id 9 canceled rev 23", "id 9 created rev 23"]);
    assert!(rig.hub.progress(s));
}

#[test]
fn ids_of_the_counter_skip_those_in_use_and_are_not_given_twice() {
    let mut rig = Rig::new(config());
    let s = rig.open(1);
    rig.hub.create(s, CreateRequest { watch_id: 1, ..request("a", "") });
    rig.hub.create(s, request("a", ""));
    rig.hub.create(s, request("a", ""));
    rig.hub.cancel(s, 0);
    rig.hub.create(s, request("a", ""));
    let ids: Vec<i64> = rig.receive(s).iter().map(|response| response.watch_id).collect();
    assert_eq!(ids, [1, 0, 2, 0, 3]);
}

#[test]
fn a_start_in_the_future_gets_neither_events_nor_progress_before_it() {
    let mut rig = Rig::new(HubConfig { progress_interval: Duration::from_secs(1), ..config() });
    let s = rig.open(1);
    let future = CreateRequest { start_revision: 4, progress_notify: true, ..request("a", "") };
    rig.hub.create(s, future);
    assert_eq!(said(&mut rig, s), ["id 0 created rev 1"]);
    rig.write(&[put("a", "1")]);
    rig.write(&[put("a", "2")]);
    rig.now += Duration::from_secs(1);
    rig.hub.tick(rig.now);
    assert!(!rig.hub.progress(s));
    assert_eq!(said(&mut rig, s), [""; 0]);
    rig.write(&[put("a", "3")]);
    assert_eq!(said(&mut rig, s), ["id 0 rev 4 put a=3@4"]);
    assert!(rig.hub.progress(s));
}

#[test]
fn a_start_at_the_compacted_revision_is_served_and_below_it_is_not() {
    let mut rig = Rig::new(config());
    let s = rig.open(1);
    rig.write(&[put("a", "1")]);
    rig.write(&[put("a", "2")]);
    rig.write(&[delete("a")]);
    rig.compact(4);
    // The tombstone at the compacted revision is still told; its predecessor is gone.
    let at = CreateRequest { start_revision: 4, prev_kv: true, ..request("a", "") };
    rig.hub.create(s, at);
    assert_eq!(said(&mut rig, s), ["id 0 created rev 4", "id 0 rev 4 del a=@4"]);
    rig.hub.create(s, CreateRequest { start_revision: 3, ..request("a", "") });
    assert_eq!(said(&mut rig, s), ["id 1 created rev 4", "id 1 canceled rev 0 compact 4"]);
}

#[test]
fn a_transaction_is_one_response_and_filters_leave_nothing_empty() {
    let mut rig = Rig::new(config());
    let s = rig.open(1);
    rig.write(&[put("p/gone", "0")]);
    rig.hub.create(s, request("p/", "p0"));
    let filters = Filters { no_put: true, no_delete: false };
    rig.hub.create(s, CreateRequest { filters, ..request("p/", "p0") });
    let nothing = Filters { no_put: true, no_delete: true };
    rig.hub.create(s, CreateRequest { filters: nothing, ..request("p/", "p0") });
    said(&mut rig, s);
    rig.write(&[put("p/a", "1"), put("q", "1"), delete("p/gone"), put("p/b", "2")]);
    rig.write(&[put("p/a", "3")]);
    let mut got = said(&mut rig, s);
    got.sort();
    let want = [
        "id 0 rev 3 put p/a=1@3 del p/gone=@3 put p/b=2@3",
        "id 0 rev 4 put p/a=3@4",
        "id 1 rev 3 del p/gone=@3",
    ];
    assert_eq!(got, want);
}

#[test]
fn history_comes_in_batches_cut_between_revisions_and_the_last_one_names_the_present() {
    let limits = Limits { batch_revisions: 3, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let s = rig.open(1);
    for n in 0..4 {
        rig.write(&[put("a", &n.to_string()), put("b", &n.to_string())]);
    }
    rig.write(&[put("other", "")]);
    rig.hub.create(s, CreateRequest { start_revision: 2, ..request("a", "c") });
    let want = [
        "id 0 created rev 6",
        "id 0 rev 4 put a=0@2 put b=0@2 put a=1@3 put b=1@3 put a=2@4 put b=2@4",
        "id 0 rev 6 put a=3@5 put b=3@5",
    ];
    assert_eq!(said(&mut rig, s), want);
}

#[test]
fn a_batch_is_bounded_by_the_previous_values_too() {
    let limits = Limits { batch_bytes: 10_000, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let s = rig.open(1);
    for n in 0..10 {
        rig.write(&[put(&n.to_string(), &"x".repeat(8000))]);
    }
    for n in 0..10 {
        rig.write(&[delete(&n.to_string())]);
    }
    let past = CreateRequest { start_revision: 12, prev_kv: true, ..request("", "\0") };
    rig.hub.create(s, past);
    let responses = rig.receive(s);
    let sizes: Vec<usize> = responses[1..].iter().map(|response| response.events.len()).collect();
    assert_eq!(sizes, [2; 5]);
}

#[test]
fn fragments_stay_below_the_limit_and_are_marked() {
    let mut rig = Rig::new(HubConfig { fragment_bytes: 250, ..config() });
    let s = rig.open(1);
    rig.hub.create(s, CreateRequest { fragment: true, ..request("", "\0") });
    rig.hub.create(s, request("", "\0"));
    said(&mut rig, s);
    let value = "x".repeat(80);
    let writes: Vec<_> = ["a", "b", "c", "d", "e"].map(|key| put(key, &value)).into();
    rig.write(&writes);
    // Read back from history it is cut alike.
    rig.hub.create(s, CreateRequest { fragment: true, start_revision: 2, ..request("", "\0") });
    let responses = rig.receive(s);
    let back = responses.iter().filter(|r| r.watch_id == 2 && !r.created);
    let counts: Vec<_> = back.map(|r| (r.events.len(), r.fragment)).collect();
    assert_eq!(counts, [(2, true), (2, true), (1, false)]);
    let responses: Vec<_> = responses.into_iter().filter(|r| r.watch_id != 2).collect();
    let (cut, whole): (Vec<_>, Vec<_>) = responses.iter().partition(|r| r.watch_id == 0);
    let counts: Vec<_> = cut.iter().map(|r| (r.events.len(), r.fragment)).collect();
    assert_eq!(counts, [(2, true), (2, true), (1, false)]);
    assert!(cut.iter().all(|r| prost::Message::encoded_len(*r) < 250 && revision(r) == 2));
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].events.len(), 5);
    assert!(!whole[0].fragment);
}

#[test]
fn progress_for_one_comes_when_an_interval_was_quiet() {
    let mut rig = Rig::new(HubConfig { progress_interval: Duration::from_secs(10), ..config() });
    let s = rig.open(1);
    rig.hub.create(s, CreateRequest { progress_notify: true, ..request("a", "") });
    rig.hub.create(s, request("a", ""));
    said(&mut rig, s);
    let pass = |rig: &mut Rig, seconds| {
        rig.now += Duration::from_secs(seconds);
        rig.hub.tick(rig.now);
        said(rig, s)
    };
    assert_eq!(pass(&mut rig, 9), [""; 0]);
    assert_eq!(pass(&mut rig, 1), ["id 0 rev 1"]);
    rig.write(&[put("b", "")]);
    assert_eq!(pass(&mut rig, 10), ["id 0 rev 2"]);
    rig.write(&[put("a", "")]);
    assert_eq!(pass(&mut rig, 10), ["id 0 rev 3 put a=@3", "id 1 rev 3 put a=@3"]);
    assert_eq!(pass(&mut rig, 10), ["id 0 rev 3"]);
    assert_eq!(rig.hub.next_deadline(), Some(Duration::from_secs(50)));
}

#[test]
fn progress_for_all_waits_until_the_last_watcher_has_caught_up() {
    let limits = Limits { batch_revisions: 1, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let s = rig.open(1);
    rig.write(&[put("a", "1")]);
    rig.write(&[put("a", "2")]);
    rig.hub.create(s, request("b", ""));
    rig.hub.create(s, CreateRequest { start_revision: 2, ..request("a", "") });
    assert!(!rig.hub.progress(s));
    let first = rig.hub.next_job(Reach::Any).unwrap();
    assert!(!rig.hub.progress(s), "being read for is not synced");
    rig.hub.finish(first.run().unwrap());
    assert!(!rig.hub.progress(s));
    rig.catch_up();
    assert!(rig.hub.progress(s));
    let got = said(&mut rig, s);
    let want = ["id 1 rev 2 put a=1@2", "id 1 rev 3 put a=2@3", "id -1 rev 3"];
    assert_eq!(got[2..], want);
}

#[test]
fn progress_never_overtakes_events_of_a_full_stream() {
    let limits = Limits { queue_responses: 1, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let s = rig.open(1);
    rig.hub.create(s, request("a", ""));
    for n in 0..5 {
        rig.write(&[put("a", &n.to_string())]);
    }
    assert!(!rig.hub.progress(s));
    assert_eq!(rig.hub.metrics().slow_watchers, 1);
    let want = [
        "id 0 created rev 1",
        "id 0 rev 2 put a=0@2",
        "id 0 rev 6 put a=1@3 put a=2@4 put a=3@5 put a=4@6",
    ];
    assert_eq!(said(&mut rig, s), want);
    assert!(rig.hub.progress(s));
    assert_eq!(rig.hub.metrics().slow_watchers, 0);
}

#[test]
fn a_slow_watcher_that_compaction_overtakes_is_cancelled() {
    let limits = Limits { queue_responses: 1, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let s = rig.open(1);
    rig.hub.create(s, request("a", ""));
    for n in 0..5 {
        rig.write(&[put("a", &n.to_string())]);
    }
    rig.compact(5);
    let want = ["id 0 created rev 1", "id 0 rev 2 put a=0@2", "id 0 canceled rev 0 compact 5"];
    assert_eq!(said(&mut rig, s), want);
    rig.write(&[put("a", "after")]);
    assert_eq!(said(&mut rig, s), [""; 0]);
}

#[test]
fn a_gap_in_what_is_published_is_read_from_history() {
    let mut rig = Rig::new(config());
    let s = rig.open(1);
    rig.hub.create(s, request("a", ""));
    rig.hub.create(s, CreateRequest { start_revision: 9, ..request("a", "") });
    said(&mut rig, s);
    for n in 0..4 {
        rig.store.write(&[put("a", &n.to_string())]);
    }
    let revisions = rig.store.revisions_from(4);
    rig.hub.publish(Published { view: rig.store.view(), revisions }).unwrap();
    let want = ["id 0 rev 5 put a=0@2 put a=1@3 put a=2@4 put a=3@5"];
    assert_eq!(said(&mut rig, s), want);
    // Known revisions are not told again.
    let revisions = rig.store.revisions_from(2);
    rig.hub.publish(Published { view: rig.store.view(), revisions }).unwrap();
    assert_eq!(said(&mut rig, s), [""; 0]);
}

#[test]
fn a_view_that_goes_backwards_is_fatal() {
    let mut rig = Rig::new(config());
    let old = rig.store.view();
    rig.write(&[put("a", "")]);
    assert!(rig.hub.publish(Published { view: old, revisions: Vec::new() }).is_err());
}

#[test]
fn closing_a_stream_forgets_all_of_it() {
    let limits = Limits { queue_responses: 1, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let (s, other) = (rig.open(1), rig.open(2));
    rig.write(&[put("a", "")]);
    for start_revision in [0, 2, 9] {
        rig.hub.create(s, CreateRequest { start_revision, ..request("a", "b") });
    }
    rig.hub.create(other, request("a", "b"));
    for n in 0..5 {
        rig.write(&[put("a", &n.to_string())]);
    }
    let job = rig.hub.next_job(Reach::Any).unwrap();
    rig.hub.close(s);
    rig.hub.finish(job.run().unwrap());
    let metrics = rig.hub.metrics();
    assert_eq!((metrics.streams, metrics.watchers, metrics.slow_watchers), (1, 1, 1));
    rig.receive(other);
    rig.hub.close(other);
    let metrics = rig.hub.metrics();
    assert_eq!((metrics.streams, metrics.watchers, metrics.slow_watchers), (0, 0, 0));
    assert_eq!(metrics.pending_events, 0);
    assert!(rig.hub.next_job(Reach::Any).is_none());
    assert_eq!(rig.hub.next_deadline(), None);
}

#[test]
fn who_may_not_read_any_more_is_told_so_and_nothing_else() {
    const REASON: &str =
        "reason rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    let mut rig = Rig::new(config());
    let s = rig.open(1);
    let of =
        |owner: &str, key, end| CreateRequest { owner: Some(owner.into()), ..request(key, end) };
    // Without rules everybody watches.
    rig.hub.create(s, of("ann", "a", "c"));
    rig.hub.create(s, of("bob", "a", ""));
    rig.hub.create(s, of("", "a", "\0"));
    rig.hub.create(s, request("a", ""));
    // Behind, so that it waits for a read when the rules come.
    rig.write(&[put("a", "1")]);
    rig.hub.create(s, CreateRequest { start_revision: 2, ..of("bob", "a", "") });
    said(&mut rig, s);

    let rules = |owner: &str, key: &[u8], end: &[u8]| {
        assert!(!owner.is_empty() || (key, end) == (b"a", b"\0"));
        owner == "ann" && (key, end) != (b"a", b"")
    };
    rig.hub.set_rules(Arc::new(rules));
    let mut ended = said(&mut rig, s);
    ended.sort();
    let expected: Vec<String> =
        [1, 2, 4].iter().map(|id| format!("id {id} canceled rev 2 {REASON}")).collect();
    assert_eq!(ended, expected);
    assert_eq!(rig.hub.metrics().watchers, 2);
    assert_eq!(rig.hub.metrics().slow_watchers, 0);

    // What is published after the rules is told to those who are left.
    rig.write(&[put("a", "2")]);
    let mut told = said(&mut rig, s);
    told.sort();
    assert_eq!(told, ["id 0 rev 3 put a=2@3", "id 3 rev 3 put a=2@3"]);
    // The rules hold for new watchers too, and the server itself has none.
    rig.hub.create(s, of("ann", "a", ""));
    assert_eq!(said(&mut rig, s), [format!("id -1 created canceled rev 3 {REASON}")]);
    rig.hub.create(s, request("a", ""));
    assert_eq!(said(&mut rig, s), ["id 5 created rev 3"]);
    // Ids of ended watchers are free again.
    assert!(!rig.hub.cancel(s, 1));
    rig.hub.create(s, CreateRequest { watch_id: 1, ..of("ann", "b", "c") });
    assert_eq!(said(&mut rig, s), ["id 1 created rev 3"]);
}
