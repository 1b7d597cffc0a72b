//! Nobody is starved by somebody else's backlog, and nothing is read more often than needed.

use mainstay_watch::{CreateRequest, HubConfig, Limits, Reach};

use crate::support::{Rig, config, put, request};

fn rig(limits: Limits) -> Rig {
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    for n in 0..2000 {
        rig.write(&[put("a", &n.to_string())]);
    }
    rig
}

#[test]
fn who_is_little_behind_does_not_wait_for_who_is_far_behind() {
    let mut rig = rig(Limits { batch_revisions: 10, batch_rows: 50, ..Limits::default() });
    let far = rig.open(1);
    for n in 0..10 {
        rig.hub.create(far, CreateRequest { start_revision: 2 + 100 * n, ..request("a", "") });
    }
    let near = rig.open(2);
    rig.hub.create(near, CreateRequest { start_revision: 1995, ..request("a", "") });
    // One round serves everybody once.
    for _ in 0..11 {
        let job = rig.hub.next_job(Reach::Any).unwrap();
        rig.hub.finish(job.run().unwrap());
    }
    let got: usize = rig.read(near, 100).iter().map(|frame| frame.event_count()).sum();
    assert_eq!(got, 7, "created, and all seven events");
    let frames = rig.read(far, 1000);
    for id in 0..10 {
        let events: usize =
            frames.iter().filter(|frame| frame.watch_id() == id).map(|f| f.event_count()).sum();
        assert_eq!(events, 10, "watcher {id} was served once");
    }
}

#[test]
fn who_joined_a_read_that_did_not_reach_it_keeps_its_turn() {
    let mut rig = rig(Limits { batch_revisions: 10, batch_rows: 50, ..Limits::default() });
    let stream = rig.open(1);
    for start_revision in [2, 22, 1000] {
        rig.hub.create(stream, CreateRequest { start_revision, ..request("a", "") });
    }
    let mut served = Vec::new();
    for _ in 0..4 {
        let job = rig.hub.next_job(Reach::Any).unwrap();
        served.push((rig.hub.revision() + 1 - job.span(), job.watchers()));
        rig.hub.finish(job.run().unwrap());
    }
    assert_eq!(served, [(2, 2), (22, 1), (1000, 1), (12, 2)]);
}

#[test]
fn short_reads_pass_by_long_ones() {
    let mut rig = rig(Limits { batch_revisions: 10, ..Limits::default() });
    let stream = rig.open(1);
    rig.hub.create(stream, CreateRequest { start_revision: 2, ..request("a", "") });
    rig.hub.create(stream, CreateRequest { start_revision: 1999, ..request("a", "") });
    let job = rig.hub.next_job(Reach::Near).unwrap();
    assert_eq!((job.watchers(), job.span()), (1, 3));
    rig.hub.finish(job.run().unwrap());
    assert!(rig.hub.next_job(Reach::Near).is_none());
    assert_eq!(rig.hub.metrics().slow_watchers, 1);
}

#[test]
fn watchers_at_one_position_share_one_scan_and_its_bytes() {
    let mut rig = rig(Limits::default());
    for id in 0..100 {
        let stream = rig.open(id);
        for _ in 0..10 {
            rig.hub.create(stream, CreateRequest { start_revision: 2, ..request("a", "b") });
        }
    }
    assert_eq!(rig.catch_up(), 2, "two batches of a thousand revisions");
    assert_eq!(*rig.store.rows.lock().unwrap(), 2000);
    assert_eq!(rig.hub.metrics().slow_watchers, 0);
    assert_eq!(rig.hub.metrics().events_total, 1000 * 2000);
}

#[test]
fn a_stream_that_does_not_read_costs_nobody_anything() {
    let mut rig = rig(Limits { queue_responses: 3, ..Limits::default() });
    let (stuck, other) = (rig.open(1), rig.open(2));
    for _ in 0..20 {
        rig.hub.create(stuck, CreateRequest { start_revision: 2, ..request("a", "") });
    }
    rig.hub.create(other, request("a", ""));
    rig.receive(other);
    rig.catch_up();
    for n in 0..100 {
        rig.write(&[put("a", &n.to_string())]);
        assert_eq!(rig.read(other, 10).len(), 1, "live all the time");
        // After the stuck stream is full, its watchers are not read for again.
        rig.catch_up();
    }
    rig.flush();
    assert!(rig.queues[&mainstay_watch::StreamId(1)].len() <= 3 + 20 + 20);
    assert!(*rig.store.rows.lock().unwrap() <= 3 * 2100);
    // And it gets everything once it reads.
    let responses = rig.receive(stuck);
    for id in 0..20 {
        let mine = responses.iter().filter(|response| response.watch_id == id);
        assert_eq!(mine.map(|response| response.events.len()).sum::<usize>(), 2100);
    }
    assert_eq!(rig.hub.metrics().slow_watchers, 0);
}

#[test]
fn thousands_of_watchers_of_one_key_on_one_stream_stay_live() {
    let mut rig = Rig::new(config());
    let stream = rig.open(1);
    for _ in 0..5000 {
        rig.hub.create(stream, request("a", ""));
    }
    rig.receive(stream);
    let value = "x".repeat(100_000);
    rig.write(&[put("a", &value)]);
    assert_eq!(rig.hub.metrics().slow_watchers, 0, "their shared value counts once");
    assert_eq!(rig.read(stream, usize::MAX).len(), 5000);
}

#[test]
fn when_all_streams_together_hold_too_much_each_may_hold_little() {
    let limits = Limits { total_bytes: 40_000, pressed_bytes: 2_000, ..Limits::default() };
    let mut rig = Rig::new(HubConfig { limits, ..config() });
    let streams: Vec<_> = (0..20).map(|id| rig.open(id)).collect();
    for stream in &streams {
        rig.hub.create(*stream, request("a", ""));
    }
    for n in 0..100 {
        rig.write(&[put("a", &format!("{n:0>1000}"))]);
        rig.catch_up();
    }
    rig.flush();
    let held: usize = rig.queues.values().flatten().map(|frame| frame.encoded_len()).sum();
    assert!(held < 60_000, "{held} bytes held");
    for stream in streams {
        let events =
            rig.receive(stream).iter().map(|response| response.events.len()).sum::<usize>();
        assert_eq!(events, 100);
    }
}
