//! One watcher that resumes after every break where it stopped, as client libraries do.
//!
//! Input: what to watch and where. Output: the events that it saw, in order, and everything in
//! the stream itself that a client could not live with.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use mainstay_proto::etcdserverpb::{
    WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse, watch_create_request,
    watch_request::RequestUnion,
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::history::{Event, digest};
use super::operation::Version;
use super::verify::View;
use super::writer::{Shared, prefix_end};
use crate::ops::connect;

const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// How a watcher goes about it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What it watches.
    pub(super) view: View,
    /// Members that it may ask, in turn; one means that it waits for that one.
    pub(super) urls: Vec<String>,
    /// Large answers may come in pieces.
    pub(super) fragment: bool,
    /// Rests after each answer, so that the server has to queue.
    pub(super) rest: Duration,
}

/// What a watcher saw.
#[derive(Debug)]
pub(super) struct Watched {
    /// What it watched.
    pub(super) view: View,
    /// Revision and digest of each event.
    pub(super) observed: Vec<(i64, u64)>,
    /// Broken promises of the stream.
    pub(super) problems: Vec<String>,
}

struct Watcher {
    plan: Plan,
    shared: Arc<Shared>,
    /// The revision to resume from.
    next: i64,
    observed: Vec<(i64, u64)>,
    /// Events of an answer whose other pieces are still to come.
    pieces: Vec<(i64, u64)>,
    problems: Vec<String>,
}

impl Watcher {
    fn problem(&mut self, what: String) {
        if self.problems.len() < 20 {
            self.problems.push(format!("watcher {}: {what}", self.plan.view.name));
        }
    }

    fn take(&mut self, response: &WatchResponse) -> Result<()> {
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        if response.canceled {
            if response.compact_revision != 0 {
                self.problem(format!("compacted, though nothing compacts: {response:?}"));
            }
            bail!("canceled: {}", response.cancel_reason);
        }
        if response.created {
            return Ok(());
        }
        for event in &response.events {
            let with_previous = self.plan.view.with_previous;
            let previous = event
                .prev_kv
                .clone()
                .map(|kv| Version { revision: kv.mod_revision, value: kv.value });
            if previous.is_some() && !with_previous {
                self.problem(format!("a previous value that was not asked for: {event:?}"));
            }
            let event = Event::new(event);
            if event.revision < self.next || event.revision > revision {
                let next = self.next;
                self.problem(format!("in [{next}, {revision}] expected, got {event:?}"));
            }
            self.pieces.push((event.revision, digest(&event, previous.as_ref())));
        }
        if response.fragment {
            return Ok(());
        }
        let is_progress = self.pieces.is_empty();
        if is_progress && revision + 1 < self.next {
            self.problem(format!("progress at {revision}, after events up to {}", self.next - 1));
            return Ok(());
        }
        let newest = self.pieces.last().map_or(revision, |(revision, _)| *revision);
        self.next = self.next.max(newest + 1);
        self.observed.append(&mut self.pieces);
        self.shared.seen.fetch_max(newest, Ordering::SeqCst);
        Ok(())
    }

    /// One stream: until it breaks, or until the watcher is past the end.
    async fn stream(&mut self, url: &str, end: &mut watch::Receiver<i64>) -> Result<()> {
        self.pieces.clear();
        let mut client = connect(url).await?;
        let (requests, receiver) = mpsc::channel(4);
        let mut filters = Vec::new();
        if self.plan.view.puts_only {
            filters.push(watch_create_request::FilterType::Nodelete.into());
        }
        let prefix = self.plan.view.prefix.clone();
        let create = WatchCreateRequest {
            range_end: if prefix.is_empty() {
                Bytes::from_static(b"\0")
            } else {
                prefix_end(&prefix)
            },
            key: if prefix.is_empty() { Bytes::from_static(b"\0") } else { prefix },
            start_revision: self.next,
            prev_kv: self.plan.view.with_previous,
            fragment: self.plan.fragment,
            filters,
            ..Default::default()
        };
        let send = |request| WatchRequest { request_union: Some(request) };
        requests.send(send(RequestUnion::CreateRequest(create))).await?;
        let opened = client.watch.watch(ReceiverStream::new(receiver));
        let mut responses =
            tokio::time::timeout(Duration::from_secs(5), opened).await??.into_inner();
        let mut progress = tokio::time::interval(PROGRESS_EVERY);
        let mut quiet = 0;
        while self.next <= *end.borrow() {
            tokio::select! {
                response = responses.message() => {
                    quiet = 0;
                    self.take(&response?.context("the stream ended")?)?;
                    if *end.borrow() == i64::MAX {
                        tokio::time::sleep(self.plan.rest).await;
                    }
                }
                _ = progress.tick() => {
                    // A member that was cut off is silent; a client has a keep-alive for that.
                    quiet += 1;
                    if quiet > 40 {
                        bail!("silent for {:?}", PROGRESS_EVERY * 40);
                    }
                    let request = send(RequestUnion::ProgressRequest(WatchProgressRequest {}));
                    let _ = requests.try_send(request);
                }
                _ = end.changed() => {}
            }
        }
        Ok(())
    }
}

/// Watches from revision 1 until it has everything up to `end`.
pub(super) async fn watch(
    plan: Plan,
    shared: Arc<Shared>,
    mut end: watch::Receiver<i64>,
    patience: Duration,
) -> Watched {
    let mut watcher = Watcher {
        plan,
        shared,
        next: 1,
        observed: Vec::new(),
        pieces: Vec::new(),
        problems: Vec::new(),
    };
    let mut stream_end = end.clone();
    let late = async {
        let _ = end.wait_for(|end| *end != i64::MAX).await;
        tokio::time::sleep(patience).await;
    };
    tokio::pin!(late);
    let mut turn = 0;
    let mut last_error = String::new();
    loop {
        let url = watcher.plan.urls[turn % watcher.plan.urls.len()].clone();
        turn += 1;
        let result = tokio::select! {
            result = watcher.stream(&url, &mut stream_end) => result,
            () = &mut late => {
                let next = watcher.next;
                watcher.problem(format!("not caught up in {patience:?}: at {next}, {last_error}"));
                break;
            }
        };
        match result {
            Ok(()) => break,
            Err(error) => last_error = format!("{error:#}"),
        }
        watcher.shared.breaks.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Watched { view: watcher.plan.view, observed: watcher.observed, problems: watcher.problems }
}
