//! The KV service: range, put, delete, transactions, compaction.
//!
//! Input: requests as they come from the wire. Output: responses with headers.
//! Writes are checked, held against the quota and proposed; reads are answered from the published
//! state, large ones on threads of their own so that they don't hold up small ones.

use std::sync::Arc;
use std::time::Instant;

use mainstay_mvcc as mvcc;
use mainstay_mvcc::{Access, Op as Kind, RangeChunks, Response};
use mainstay_proto::etcdserverpb::request_op::Request as Op;
use mainstay_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, CompactionResponse, DeleteRangeRequest,
    DeleteRangeResponse, InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, TxnRequest, TxnResponse, alarm_request::AlarmAction,
};
use tokio::sync::mpsc;

use crate::auth::By;
use crate::core::{Core, Published, Timed};
use crate::error::{Error, Result};
use crate::quota;

/// A range that asks for more keys than this may take long.
const SMALL_RANGE: i64 = 64;
/// Chunks of a stream that are read ahead of the client.
const CHUNKS_AHEAD: usize = 2;

/// Takes the expected response, or ends the member: an entry was answered as another kind.
macro_rules! expect_response {
    ($core:expr, $response:expr, $kind:ident) => {
        match $response {
            Response::$kind(response) => response,
            other => return Err($core.unexpected(&other)),
        }
    };
}
pub(crate) use expect_response;

impl Core {
    /// An answer of the wrong kind means that two entries had one id: nobody can be trusted to
    /// have got the right answer.
    pub(crate) fn unexpected(&self, response: &Response) -> Error {
        // Without the answer itself, which may hold a token.
        let kind = format!("{response:?}");
        let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        self.stop.fatal(format!(
            "a request was answered with the result of another one ({kind}); request ids of two \
             members collide"
        ));
        Error::Stopped
    }

    /// Reads keys.
    pub async fn range(&self, by: impl Into<By<RangeRequest>>) -> Result<RangeResponse> {
        let By { request, caller } = by.into();
        mvcc::check_range(&request)?;
        let mut timed = Timed::new(&self.metrics, Kind::Range);
        if !request.serializable {
            self.catch_up().await?;
        }
        let who = self.identify(&caller).await?;
        let large = is_large(&request);
        let read = move |at: &Published| {
            at.permit(&who, |auth, who| {
                auth.check(who, Access::Read, &request.key, &request.range_end)
            })?;
            let started = Instant::now();
            let response = mvcc::range(&*at.view, at.at(), &request);
            Ok((response, started.elapsed()))
        };
        let (response, took) = self.read(large, read).await?;
        self.metrics.range(response.is_ok(), took);
        let mut response = self.guard(response)?;
        self.complete(&mut response.header);
        timed.answered = true;
        Ok(response)
    }

    /// Reads keys piece by piece, all at one revision. The stream ends early if the receiver is
    /// dropped.
    pub async fn range_stream(
        self: &Arc<Self>,
        by: impl Into<By<RangeRequest>>,
    ) -> Result<mpsc::Receiver<Result<RangeResponse>>> {
        let By { request, caller } = by.into();
        mvcc::check_range_stream(&request)?;
        if !request.serializable {
            self.catch_up().await?;
        }
        let who = self.identify(&caller).await?;
        let published = self.published.load_full();
        published.permit(&who, |auth, who| {
            auth.check(who, Access::Read, &request.key, &request.range_end)
        })?;
        let mut chunks = RangeChunks::new(published.at(), request, self.config.max_request_bytes)?;
        let permit = self.large_read().await?;
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD);
        let core = self.clone();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            loop {
                let started = Instant::now();
                let chunk = core.guard(chunks.next(&*published.view));
                if !matches!(chunk, Ok(None)) {
                    core.metrics.range(chunk.is_ok(), started.elapsed());
                }
                let chunk = match chunk {
                    Ok(None) => break,
                    Ok(Some(mut chunk)) => {
                        if chunk.header.is_some() {
                            core.complete(&mut chunk.header);
                        }
                        Ok(chunk)
                    }
                    Err(error) => Err(error),
                };
                let failed = chunk.is_err();
                if sender.blocking_send(chunk).is_err() || failed {
                    break;
                }
            }
        });
        Ok(receiver)
    }

    /// Writes a key.
    pub async fn put(&self, by: impl Into<By<PutRequest>>) -> Result<PutResponse> {
        let By { request, caller } = by.into();
        mvcc::check_put(&request)?;
        self.check_quota(quota::cost_of_put(&request)).await?;
        let entry = InternalRaftRequest { put: Some(request), ..Default::default() };
        let answer = self.propose(By::new(caller, entry)).await?;
        let mut response = expect_response!(self, answer, Put);
        self.complete(&mut response.header);
        Ok(response)
    }

    /// Deletes keys.
    pub async fn delete_range(
        &self,
        by: impl Into<By<DeleteRangeRequest>>,
    ) -> Result<DeleteRangeResponse> {
        let By { request, caller } = by.into();
        mvcc::check_delete_range(&request)?;
        let entry = InternalRaftRequest { delete_range: Some(request), ..Default::default() };
        let answer = self.propose(By::new(caller, entry)).await?;
        let mut response = expect_response!(self, answer, DeleteRange);
        self.complete(&mut response.header);
        Ok(response)
    }

    /// Compares, then reads and writes, as one step.
    pub async fn txn(&self, by: impl Into<By<TxnRequest>>) -> Result<TxnResponse> {
        let By { request, caller } = by.into();
        mvcc::check_txn(&request, self.config.max_txn_ops)?;
        self.check_quota(quota::cost_of_txn(&request)).await?;
        let mut response = if mvcc::is_read_only_txn(&request) {
            if !mvcc::is_serializable_txn(&request) {
                self.catch_up().await?;
            }
            let who = self.identify(&caller).await?;
            let large = ops(&request).any(|op| matches!(op, Op::RequestRange(r) if is_large(r)));
            let (started, compares) = (Instant::now(), request.compare.len());
            let read = move |at: &Published| {
                at.permit(&who, |auth, who| auth.check_txn(who, &*at.view, &request))?;
                mvcc::read_txn(&*at.view, at.at(), &request)
            };
            let response = self.read(large, read).await;
            let ranges =
                response.as_ref().map_or(0, |response| compares + response.responses.len());
            self.metrics.read_txn(ranges, response.is_ok(), started.elapsed());
            response?
        } else {
            let entry = InternalRaftRequest { txn: Some(request), ..Default::default() };
            expect_response!(self, self.propose(By::new(caller, entry)).await?, Txn)
        };
        self.complete(&mut response.header);
        Ok(response)
    }

    /// Gives up the history before a revision. With `physical` the answer waits until the records
    /// are deleted on this member.
    pub async fn compact(&self, request: CompactionRequest) -> Result<CompactionResponse> {
        let (physical, revision) = (request.physical, request.revision);
        let request = InternalRaftRequest { compaction: Some(request), ..Default::default() };
        let mut response = expect_response!(self, self.propose(request).await?, Compaction);
        if physical && !self.compactions_done.wait(revision.unsigned_abs()).await {
            return Err(Error::Stopped);
        }
        response.header = Some(self.header());
        Ok(response)
    }

    /// Reads from the published state: here when the answer is small, else on a thread of its own.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        large: bool,
        read: impl FnOnce(&Published) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.stop.is_stopped() {
            return Err(Error::Stopped);
        }
        if !large {
            return self.guard(read(&self.published.load()));
        }
        let permit = self.large_read().await?;
        let published = self.published.load_full();
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            read(&published)
        });
        match reading.await {
            Ok(result) => self.guard(result),
            Err(error) => {
                self.stop.fatal(format!("a read panicked: {error}"));
                Err(Error::Stopped)
            }
        }
    }

    async fn large_read(&self) -> Result<tokio::sync::OwnedSemaphorePermit> {
        self.large_reads.clone().acquire_owned().await.map_err(|_| Error::Stopped)
    }

    /// Whether a request of this cost does not fit into the quota.
    pub(crate) fn is_over_quota(&self, cost: u64) -> bool {
        let quota = self.config.quota();
        cost > 0 && quota.is_some_and(|quota| self.usage().total_bytes + cost >= quota)
    }

    /// Refuses a request that would not fit any more, and raises the alarm that makes every
    /// member refuse writes.
    pub(crate) async fn check_quota(&self, cost: u64) -> Result<()> {
        if cost > 0 && self.disk_is_low() {
            self.metrics.own.disk_refused.inc();
            return Err(Error::NoSpace);
        }
        if !self.is_over_quota(cost) {
            return Ok(());
        }
        self.metrics.own.quota_refused.inc();
        let alarm = AlarmRequest {
            action: AlarmAction::Activate as i32,
            member_id: self.identity.member_id,
            alarm: AlarmType::Nospace as i32,
        };
        // Whether the alarm was raised or not, this request does not fit.
        if let Err(error) = self.alarm(alarm).await {
            tracing::warn!(%error, "failed to raise the alarm NOSPACE");
        }
        Err(Error::NoSpace)
    }
}

fn is_large(request: &RangeRequest) -> bool {
    let bounded = (1..=SMALL_RANGE).contains(&request.limit) && request.sort_order == 0;
    !request.range_end.is_empty() && (request.count_only || !bounded)
}

fn ops(request: &TxnRequest) -> impl Iterator<Item = &Op> {
    let all = request.success.iter().chain(&request.failure);
    all.filter_map(|op: &RequestOp| op.request.as_ref())
}
