//! The hub's threads: publishing from one, reading as a client on another.

use std::{
    pin::pin,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread,
};

use mainstay_watch::{
    CreateRequest, Driver, Frame, HubConfig, Limits, Published, StreamClosed, WatchHandle,
    WatchResponses, spawn,
};

use crate::support::{FakeStore, config, put, request};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn start(limits: Limits) -> (FakeStore, Driver, WatchHandle) {
    let store = FakeStore::default();
    let config = HubConfig { limits, ..config() };
    let on_fatal = |fatal| panic!("{fatal}");
    let (driver, handle) = spawn(config, store.view(), on_fatal).unwrap();
    (store, driver, handle)
}

fn publish(store: &FakeStore, handle: &WatchHandle, key: &str, value: &str) {
    let revisions = store.write(&[put(key, value)]).into_iter().collect();
    handle.publish(Published { view: store.view(), revisions });
}

fn next(responses: &mut WatchResponses) -> Frame {
    block_on(responses.recv()).expect("the stream is open")
}

#[test]
fn a_watch_opened_after_a_publish_sees_its_revision() {
    let (store, _driver, handle) = start(Limits::default());
    for n in 0..100 {
        publish(&store, &handle, "a", &n.to_string());
        let (mut requests, mut responses) = handle.open();
        block_on(requests.create(request("a", ""))).unwrap();
        assert_eq!(next(&mut responses).revision(), store.revision());
    }
}

#[test]
fn events_arrive_in_order_whether_read_live_or_from_history() {
    // The smallest limits make every path be taken: full queues, left out events, long reads.
    let limits = Limits {
        queue_responses: 2,
        batch_revisions: 7,
        near_revisions: 3,
        inbox_events: 4,
        ..Limits::default()
    };
    let (store, _driver, handle) = start(limits);
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (mut requests, mut responses) = handle.open();
            let start_revision = if number % 2 == 0 { 2 } else { 0 };
            let create = CreateRequest { start_revision, ..request("a", "b") };
            block_on(requests.create(create)).unwrap();
            assert_eq!(next(&mut responses).revision(), 1);
            thread::spawn(move || {
                let mut seen = Vec::new();
                while seen.len() < 2000 {
                    let message = next(&mut responses).to_message();
                    seen.extend(
                        message
                            .events
                            .iter()
                            .map(|event| event.kv.as_ref().expect("a pair").mod_revision),
                    );
                }
                drop(requests);
                seen
            })
        })
        .collect();
    for n in 0..2000 {
        publish(&store, &handle, "a", &n.to_string());
    }
    for client in clients {
        assert_eq!(client.join().unwrap(), (2..2002).collect::<Vec<i64>>());
    }
}

#[test]
fn a_full_stream_with_many_watchers_is_refilled_while_it_reads() {
    const WATCHERS: usize = 500;
    const EVENTS: usize = 20;
    let (store, _driver, handle) = start(Limits { queue_responses: 2, ..Limits::default() });
    let (mut requests, mut responses) = handle.open();
    for _ in 0..WATCHERS {
        block_on(requests.create(request("a", ""))).unwrap();
        next(&mut responses);
    }
    for n in 0..EVENTS {
        publish(&store, &handle, "a", &n.to_string());
    }
    // Nothing but reading moves the stream from here on.
    let mut seen = 0;
    while seen < WATCHERS * EVENTS {
        seen += next(&mut responses).event_count();
    }
    assert_eq!(seen, WATCHERS * EVENTS);
}

#[test]
fn what_streams_took_is_no_longer_pending() {
    let (store, _driver, handle) = start(Limits::default());
    let (mut requests, mut responses) = handle.open();
    block_on(requests.create(request("a", ""))).unwrap();
    publish(&store, &handle, "a", "1");
    assert_eq!(next(&mut responses).event_count(), 0);
    assert_eq!(next(&mut responses).event_count(), 1);
    // Asking for more is what says that the last one was dealt with.
    let more = Context::from_waker(Waker::noop());
    assert!(responses.poll_recv(&mut { more }).is_pending());
    loop {
        let metrics = handle.metrics();
        if metrics.pending_events == 0 && metrics.streams == 1 && metrics.events_total == 1 {
            break;
        }
        thread::yield_now();
    }
}

#[test]
fn requests_wait_while_their_answers_are_not_read() {
    let limits = Limits { open_requests: 2, ..Limits::default() };
    let (_store, _driver, handle) = start(limits);
    let (mut requests, mut responses) = handle.open();
    block_on(requests.create(request("a", ""))).unwrap();
    block_on(requests.create(request("a", ""))).unwrap();
    let third = thread::spawn(move || {
        block_on(requests.create(request("a", ""))).unwrap();
        requests
    });
    for id in 0..3 {
        assert_eq!(next(&mut responses).watch_id(), id);
    }
    let mut requests = third.join().unwrap();
    // Requests without an answer don't keep their place.
    for _ in 0..10 {
        block_on(requests.cancel(70)).unwrap();
    }
    block_on(requests.progress()).unwrap();
    assert_eq!(next(&mut responses).watch_id(), -1);
    block_on(requests.refuse("no".into())).unwrap();
    assert_eq!(next(&mut responses).to_message().cancel_reason, "no");
}

#[test]
fn streams_end_when_closed_and_when_the_driver_stops() {
    let (store, driver, handle) = start(Limits::default());
    let (mut requests, mut responses) = handle.open();
    block_on(requests.create(request("a", ""))).unwrap();
    next(&mut responses);
    requests.close();
    assert!(block_on(responses.recv()).is_none());

    let (mut requests, mut responses) = handle.open();
    drop(driver);
    assert!(block_on(responses.recv()).is_none());
    assert_eq!(block_on(requests.create(request("a", ""))), Err(StreamClosed));
    let (_, mut late) = handle.open();
    assert!(block_on(late.recv()).is_none());
    publish(&store, &handle, "a", "");
}

#[test]
fn a_broken_invariant_is_reported_and_ends_all_streams() {
    let store = FakeStore::default();
    let old = store.view();
    let (report, reported) = mpsc::channel();
    let on_fatal = move |fatal| report.send(fatal).expect("somebody listens");
    let (_driver, handle) = spawn(config(), store.view(), on_fatal).unwrap();
    let (_requests, mut responses) = handle.open();
    publish(&store, &handle, "a", "");
    let (mut requests, mut created) = handle.open();
    block_on(requests.create(request("a", ""))).unwrap();
    assert_eq!(next(&mut created).revision(), 2);
    handle.publish(Published { view: old, revisions: Vec::new() });
    let text = reported.recv().unwrap().to_string();
    assert_eq!(text, "a view at revision 1 was published after one at 2");
    assert!(block_on(responses.recv()).is_none());
}
