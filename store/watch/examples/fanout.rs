//! Measures the hub alone: how many events a second it matches, encodes once and queues.
//!
//! `cargo run --release -p mainstay-watch --example fanout`
#![allow(clippy::print_stdout)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use mainstay_mvcc::{CatchUp, CatchUpLimits, Event, EventKind, Revision, RevisionEvents};
use mainstay_proto::mvccpb::KeyValue;
use mainstay_watch::{
    CreateRequest, Drained, Filters, History, HistoryError, Hub, HubConfig, KeyRange, Published,
    RangeEnd, StreamId,
};

/// Nobody falls behind here, so nothing is read but previous values.
struct Present(i64);

impl History for Present {
    fn revision(&self) -> i64 {
        self.0
    }
    fn compacted(&self) -> i64 {
        0
    }
    fn scan(
        &self,
        from: i64,
        _: CatchUpLimits,
        _: bool,
        _: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<CatchUp, HistoryError> {
        Err(HistoryError(format!("a watcher fell behind at {from}").into()))
    }
    fn pairs(&self, places: &[Revision]) -> Result<Vec<Option<KeyValue>>, HistoryError> {
        Ok(vec![None; places.len()])
    }
}

fn request(range: KeyRange) -> CreateRequest {
    CreateRequest {
        range,
        start_revision: 0,
        progress_notify: false,
        filters: Filters::default(),
        prev_kv: false,
        fragment: false,
        watch_id: 0,
        owner: None,
    }
}

struct Shape {
    name: &'static str,
    streams: u64,
    watchers: u64,
    range: fn(u64) -> KeyRange,
    key: fn(u64) -> String,
    events: u64,
    batch: u64,
}

fn measure(shape: &Shape) {
    let mut hub = Hub::new(HubConfig::new(1, 2), Arc::new(Present(1)));
    for stream in 0..shape.streams {
        hub.open(StreamId(stream), Duration::ZERO, Duration::ZERO);
    }
    let begin = Instant::now();
    for watcher in 0..shape.watchers {
        hub.create(StreamId(watcher % shape.streams), request((shape.range)(watcher)));
    }
    let creating = begin.elapsed();
    drain(&mut hub, &mut BytesMut::new());

    let value = Bytes::from(vec![b'x'; 512]);
    let (mut hub_time, mut bytes, mut frames) = (Duration::ZERO, 0, 0);
    let mut wire_time = Duration::ZERO;
    let mut buffer = BytesMut::new();
    for batch in 0..shape.events / shape.batch {
        let step = |n: u64| {
            let revision = (batch * shape.batch + n + 2) as i64;
            let kv = KeyValue {
                key: (shape.key)(batch * shape.batch + n).into(),
                value: value.clone(),
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease: 0,
            };
            let events = Arc::from([Event { kind: EventKind::Put, kv, prev: None }]);
            RevisionEvents { revision, events }
        };
        let revisions: Vec<_> = (0..shape.batch).map(step).collect();
        let view = Arc::new(Present((batch * shape.batch + shape.batch + 1) as i64));
        let begin = Instant::now();
        hub.publish(Published { view, revisions }).expect("nothing is read");
        hub_time += begin.elapsed();
        let begin = Instant::now();
        let sent = drain(&mut hub, &mut buffer);
        (frames, bytes) = (frames + sent.0, bytes + sent.1);
        wire_time += begin.elapsed();
    }
    assert_eq!(hub.metrics().slow_watchers, 0, "everybody kept up");
    let per_second = shape.events as f64 / hub_time.as_secs_f64();
    println!(
        "{:<44} created in {:>7.1?}; {:>9.0} events/s matched and queued; {:>8} frames, \
         {:>6.0} ns each to queue, {:>4.0} ns each to write ({} MB)",
        shape.name,
        creating,
        per_second,
        frames,
        hub_time.as_nanos() as f64 / f64::from(frames.max(1)),
        wire_time.as_nanos() as f64 / f64::from(frames.max(1)),
        bytes >> 20,
    );
}

fn drain(hub: &mut Hub, buffer: &mut BytesMut) -> (u32, usize) {
    let (mut frames, mut bytes) = (0, 0);
    for output in hub.take_outputs() {
        let mut drained = Drained::default();
        for frame in &output.frames {
            buffer.clear();
            frame.encode(buffer);
            bytes += buffer.len();
            frames += 1;
            drained.add(frame);
        }
        hub.drained(output.stream, drained);
    }
    (frames, bytes)
}

fn prefix(text: String) -> KeyRange {
    let mut end = text.clone().into_bytes();
    *end.last_mut().expect("not empty") += 1;
    KeyRange::Span(text.into(), RangeEnd::Before(end.into()))
}

fn main() {
    measure(&Shape {
        name: "200 prefixes, 200 streams (Kubernetes)",
        streams: 200,
        watchers: 200,
        range: |n| prefix(format!("/registry/kind{n:03}/")),
        key: |n| format!("/registry/kind{:03}/default/object-{n}", n % 200),
        events: 200_000,
        batch: 10,
    });
    measure(&Shape {
        name: "10,000 keys, 100 streams",
        streams: 100,
        watchers: 10_000,
        range: |n| KeyRange::Point(format!("key-{n:05}").into()),
        key: |n| format!("key-{:05}", n * 7919 % 10_000),
        events: 200_000,
        batch: 10,
    });
    measure(&Shape {
        name: "10,000 distinct ranges, 100 streams",
        streams: 100,
        watchers: 10_000,
        range: |n| prefix(format!("range-{n:05}/")),
        key: |n| format!("range-{:05}/x", n * 7919 % 10_000),
        events: 200_000,
        batch: 10,
    });
    measure(&Shape {
        name: "10,000 nested ranges, none of them hit",
        streams: 100,
        watchers: 10_000,
        range: |n| {
            let (from, to) = (format!("a{n:05}"), format!("b{n:05}"));
            KeyRange::Span(from.into(), RangeEnd::Before(to.into()))
        },
        key: |n| format!("c{n:05}"),
        events: 200_000,
        batch: 10,
    });
    measure(&Shape {
        name: "10,000 watchers of one key, 10 streams",
        streams: 10,
        watchers: 10_000,
        range: |_| KeyRange::Point(Bytes::from_static(b"hot")),
        key: |_| "hot".into(),
        events: 300,
        batch: 1,
    });
    measure(&Shape {
        name: "5,000 watchers of one key, 5,000 streams",
        streams: 5_000,
        watchers: 5_000,
        range: |_| KeyRange::Point(Bytes::from_static(b"hot")),
        key: |_| "hot".into(),
        events: 300,
        batch: 1,
    });
}
