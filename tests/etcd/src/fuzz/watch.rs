//! The watch side of a run: one stream on each member, the same watchers on both.
//!
//! How events are packed into responses depends on timing, so what is compared is, per watcher,
//! the sequence of events, and the created and canceled answers. Whether a compaction overtakes a
//! watcher that still reads history depends on timing too, so every watcher is caught up before
//! the next step: a progress answer says so. Watchers that start in the future hold that answer
//! back, so they have a stream of their own.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use mainstay_proto::etcdserverpb::{
    PutRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse, watch_request,
};
use mainstay_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::run::Pair;
use crate::client::Client;

/// A key that no generated watcher but the sentinel and open ranges matches.
const SENTINEL: &[u8] = b"\xf0sentinel";
/// The sentinel's watch id; generated ids are below.
const SENTINEL_ID: i64 = 1000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Something that a watcher was told.
#[derive(Clone, Debug)]
struct Seen {
    text: String,
    /// The previous pair of an event, when it came along.
    previous: Option<String>,
}

impl Seen {
    fn plain(text: String) -> Self {
        Seen { text, previous: None }
    }

    /// Whether the tested member told the same. Real etcd reads the previous pair when it sends, and
    /// leaves it out when a compaction was faster; telling it all the same is right.
    fn allows(&self, tested: &Seen) -> bool {
        self.text == tested.text && (self.previous.is_none() || self.previous == tested.previous)
    }
}

struct Side {
    name: &'static str,
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    /// What each watcher has seen, as comparable texts.
    seen: BTreeMap<i64, Vec<Seen>>,
    /// Watchers, and whether they still live: a cancel of an ended one has no answer.
    created: BTreeMap<i64, bool>,
    /// Watchers that a compaction ended and that are not canceled yet.
    compacted: Vec<i64>,
    sentinel: bool,
}

impl Side {
    async fn open(name: &'static str, client: &mut Client) -> Result<Self> {
        let (requests, receiver) = mpsc::channel(16);
        let first = WatchRequest {
            request_union: Some(watch_request::RequestUnion::CreateRequest(WatchCreateRequest {
                key: SENTINEL.to_vec().into(),
                watch_id: SENTINEL_ID,
                ..Default::default()
            })),
        };
        requests.send(first).await?;
        let responses = client.watch.watch(ReceiverStream::new(receiver)).await?.into_inner();
        let mut side = Side {
            name,
            requests,
            responses,
            seen: BTreeMap::new(),
            created: BTreeMap::new(),
            compacted: Vec::new(),
            sentinel: false,
        };
        side.until(|response| response.created && response.watch_id == SENTINEL_ID).await?;
        Ok(side)
    }

    fn record(&mut self, response: &WatchResponse) {
        let id = response.watch_id;
        if response.canceled && response.created {
            return;
        }
        if response.canceled {
            if self.created.insert(id, false) == Some(false) {
                return;
            }
            if response.compact_revision != 0 {
                self.compacted.push(id);
            }
            let line = format!(
                "canceled compact_revision={} reason={:?}",
                response.compact_revision, response.cancel_reason
            );
            self.seen.entry(id).or_default().push(Seen::plain(line));
            return;
        }
        if response.created {
            self.created.insert(id, true);
        }
        for event in &response.events {
            if event.kv.as_ref().is_some_and(|kv| kv.key == SENTINEL) {
                // Open ranges see it too; whether before the end of the run is chance.
                self.sentinel |= id == SENTINEL_ID;
                continue;
            }
            let previous = event.prev_kv.as_ref().map(|kv| format!("{kv:?}"));
            let event = Event { prev_kv: None, ..event.clone() };
            self.seen.entry(id).or_default().push(Seen { text: format!("{event:?}"), previous });
        }
    }

    async fn next(&mut self) -> Result<WatchResponse> {
        let response = tokio::time::timeout(PATIENCE, self.responses.message())
            .await
            .with_context(|| format!("{}: no watch response in 20 s", self.name))??;
        let response = response.with_context(|| format!("{}: watch stream ended", self.name))?;
        self.record(&response);
        Ok(response)
    }

    async fn until(&mut self, wanted: impl Fn(&WatchResponse) -> bool) -> Result<WatchResponse> {
        loop {
            let response = self.next().await?;
            if wanted(&response) {
                return Ok(response);
            }
        }
    }

    async fn create(&mut self, request: &WatchCreateRequest) -> Result<String> {
        let request = watch_request::RequestUnion::CreateRequest(request.clone());
        self.requests.send(WatchRequest { request_union: Some(request) }).await?;
        let answer = self.until(|response| response.created).await?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        Ok(format!(
            "created id={} canceled={} reason={:?} revision={revision} compact={}",
            answer.watch_id, answer.canceled, answer.cancel_reason, answer.compact_revision
        ))
    }

    /// Waits until all watchers of the stream are caught up.
    async fn caught_up(&mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            // A watcher that a compaction ended holds progress back until the client cancels it.
            while let Some(id) = self.compacted.pop() {
                let cancel =
                    watch_request::RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id });
                self.requests.send(WatchRequest { request_union: Some(cancel) }).await?;
                self.until(|answer| answer.canceled && answer.watch_id == id).await?;
            }
            let progress = watch_request::RequestUnion::ProgressRequest(WatchProgressRequest {});
            self.requests.send(WatchRequest { request_union: Some(progress) }).await?;
            let answer = self.until(|response| {
                response.watch_id == -1 && !response.created && !response.canceled
            });
            match tokio::time::timeout(Duration::from_millis(20), answer).await {
                Ok(answer) => return answer.map(|_| ()),
                Err(_) if tokio::time::Instant::now() > deadline => {
                    bail!("{}: watchers are not caught up after 20 s", self.name)
                }
                Err(_) => {}
            }
        }
    }

    async fn cancel(&mut self, request: &WatchCancelRequest) -> Result<String> {
        if self.created.get(&request.watch_id) != Some(&true) {
            return Ok("unknown watcher".to_string());
        }
        let id = request.watch_id;
        let request = watch_request::RequestUnion::CancelRequest(*request);
        self.requests.send(WatchRequest { request_union: Some(request) }).await?;
        let answer = self.until(|response| response.canceled && response.watch_id == id).await?;
        Ok(format!("canceled id={id} reason={:?}", answer.cancel_reason))
    }
}

/// The streams of both members.
pub(super) struct WatchPair {
    present: [Side; 2],
    future: [Side; 2],
}

impl WatchPair {
    pub(super) async fn open(pair: &mut Pair) -> Result<Self> {
        Ok(WatchPair {
            present: [
                Side::open("etcd", &mut pair.reference).await?,
                Side::open("mainstay", &mut pair.tested).await?,
            ],
            future: [
                Side::open("etcd", &mut pair.reference).await?,
                Side::open("mainstay", &mut pair.tested).await?,
            ],
        })
    }

    pub(super) async fn create(
        &mut self,
        request: &WatchCreateRequest,
        revision: i64,
    ) -> Result<(String, String)> {
        if request.start_revision > revision {
            let [reference, tested] = &mut self.future;
            return Ok((reference.create(request).await?, tested.create(request).await?));
        }
        let [reference, tested] = &mut self.present;
        let answers = (reference.create(request).await?, tested.create(request).await?);
        reference.caught_up().await?;
        tested.caught_up().await?;
        Ok(answers)
    }

    pub(super) async fn cancel(
        &mut self,
        request: &WatchCancelRequest,
    ) -> Result<(String, String)> {
        let [reference, tested] = &mut self.present;
        // Events that are under way may not be cut off by the cancel.
        reference.caught_up().await?;
        tested.caught_up().await?;
        Ok((reference.cancel(request).await?, tested.cancel(request).await?))
    }

    /// Puts a last key, waits until the streams are past it, and compares all events.
    pub(super) async fn finish(mut self, pair: &mut Pair) -> Result<Option<(String, String)>> {
        let put = PutRequest { key: SENTINEL.to_vec().into(), ..Default::default() };
        pair.reference.kv.put(put.clone()).await?;
        pair.tested.kv.put(put).await?;
        for [reference, tested] in [&mut self.present, &mut self.future] {
            for side in [&mut *reference, &mut *tested] {
                while !side.sentinel {
                    side.next().await?;
                }
            }
        }
        let [reference, tested] = &mut self.present;
        reference.caught_up().await?;
        tested.caught_up().await?;
        for [reference, tested] in [&self.present, &self.future] {
            let ids = reference.seen.keys().chain(tested.seen.keys());
            for id in ids {
                let empty = Vec::new();
                let left = reference.seen.get(id).unwrap_or(&empty);
                let right = tested.seen.get(id).unwrap_or(&empty);
                let at = left.iter().zip(right).take_while(|(l, r)| l.allows(r)).count();
                if at != left.len() || at != right.len() {
                    let show = |seen: &Vec<Seen>| {
                        format!("watcher {id}: {} events, at {at}: {:?}", seen.len(), seen.get(at))
                    };
                    return Ok(Some((show(left), show(right))));
                }
            }
        }
        Ok(None)
    }
}
