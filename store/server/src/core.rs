//! The member itself: what its threads and tasks share, and the way through it of every request.
//!
//! Input: requests of the RPC services, of the embedding program and of peers. Output: responses
//! with filled headers, or an [`Error`] with etcd's code and text. The operations are in the files
//! `kv`, `lease`, `cluster` and `maintenance`; here is what all of them need.
//! **Invariant:** readers see only what is published: a view of the engine and the state that
//! belongs to it, swapped as one by the apply thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use mainstay_consensus::{Handle, Refused};
use mainstay_engine::{Usage, View};
use mainstay_mvcc::{Op, ReadAt, Response, StateView};
use mainstay_proto::etcdserverpb::{InternalRaftRequest, RequestHeader, ResponseHeader};
use mainstay_watch::{WatchHandle, WatchRequests, WatchResponses};
use prost::Message as _;
use tokio::sync::{Semaphore, watch};

use crate::applied::AppliedIndex;
use crate::auth::{By, Caller, Passwords, Tokens};
use crate::compaction::CompactionHashes;
use crate::config::StoreConfig;
use crate::engine_home::Generation;
use crate::error::{Error, Result};
use crate::fatal::{StopReason, StopState};
use crate::leadership::{Leadership, LeadershipCell};
use crate::lessor::LeaseBook;
use crate::metrics::Metrics;
use crate::network::Network;
use crate::peer_metrics;
use crate::read::{ReadIndexSource, ReadRounds};
use crate::request_id::RequestIds;
use crate::waiters::Waiters;

/// Most entries that may be committed and not applied before requests are refused.
const MAX_APPLY_LAG: u64 = 5_000;
/// The same for requests that relieve the store.
const MAX_APPLY_LAG_PRIORITY: u64 = 10_000;
/// Large reads that run at a time, on threads of their own.
const LARGE_READS: usize = 16;

/// The state after an applied batch, with the view of the engine that it describes.
pub(crate) struct Published {
    pub(crate) view: Arc<dyn View>,
    pub(crate) state: StateView,
    /// This member is the only voter.
    pub(crate) sole_voter: bool,
    /// Keeps the generation of the engine alive for as long as somebody reads from it.
    pub(crate) generation: Arc<Generation>,
}

impl Published {
    pub(crate) fn new(state: StateView, generation: Arc<Generation>, member_id: u64) -> Self {
        let view = generation.engine().snapshot();
        let sole_voter = state.conf_state.voters == [member_id];
        generation.view_opened();
        Self { view, state, sole_voter, generation }
    }

    pub(crate) fn at(&self) -> ReadAt {
        self.state.read_at()
    }

    pub(crate) fn revision(&self) -> i64 {
        self.state.revision
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.generation.view_closed();
    }
}

/// What the apply thread, or the raft thread, says about a proposal.
pub(crate) enum Answer {
    Applied(Box<Result<Response>>),
    Refused(Refused),
}

/// Ids of this member and its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: u64,
    /// This member.
    pub member_id: u64,
}

/// The way to the raft thread, which starts after those who speak to it were made.
#[derive(Clone, Default)]
pub(crate) struct RaftLink(Arc<OnceLock<Handle>>);

impl RaftLink {
    pub(crate) fn connect(&self, handle: Handle) {
        // There is one raft thread in the life of a member.
        let _ = self.0.set(handle);
    }

    pub(crate) fn get(&self) -> Result<&Handle> {
        self.0.get().ok_or(Error::Stopped)
    }
}

impl ReadIndexSource for RaftLink {
    fn request(&self, context: u64) -> Result<()> {
        self.get()?.read_index(context).map_err(refused)
    }
}

/// A running member.
pub struct Core {
    pub(crate) config: StoreConfig,
    pub(crate) identity: Identity,
    pub(crate) ids: Arc<RequestIds>,
    pub(crate) raft: RaftLink,
    pub(crate) waiters: Arc<Waiters<Answer>>,
    pub(crate) published: ArcSwap<Published>,
    pub(crate) applied: AppliedIndex,
    /// The term of the last applied entry.
    pub(crate) applied_term: watch::Sender<u64>,
    pub(crate) committed: AtomicU64,
    pub(crate) leadership: LeadershipCell,
    pub(crate) reads: ReadRounds<RaftLink>,
    pub(crate) leases: LeaseBook,
    pub(crate) tokens: Tokens,
    pub(crate) passwords: Passwords,
    pub(crate) watch: WatchHandle,
    pub(crate) network: Network,
    /// Compactions whose deletion is done, by revision.
    pub(crate) compactions_done: AppliedIndex,
    pub(crate) hashes: CompactionHashes,
    pub(crate) large_reads: Arc<Semaphore>,
    /// Whether the disk is almost full.
    pub(crate) disk_low: AtomicBool,
    /// Whether this run has published its name and URLs to the cluster.
    pub(crate) ready: watch::Sender<bool>,
    /// Counts snapshots that replaced the state.
    pub(crate) installed: watch::Sender<u64>,
    pub(crate) stop: Arc<StopState>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Core {
    pub(crate) fn disk_is_low(&self) -> bool {
        self.disk_low.load(Ordering::Relaxed)
    }

    pub(crate) fn set_disk_low(&self, low: bool) {
        self.disk_low.store(low, Ordering::Relaxed);
    }

    /// How many large reads may run at a time.
    pub(crate) fn large_reads() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(LARGE_READS))
    }

    /// How many large reads run now.
    pub(crate) fn large_reads_running(&self) -> usize {
        LARGE_READS.saturating_sub(self.large_reads.available_permits())
    }

    /// Ids of this member and its cluster.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The configuration that the member runs with.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The header of a response that is made now.
    pub fn header(&self) -> ResponseHeader {
        self.header_at(self.published.load().revision())
    }

    /// The header of responses about members, which carry no revision.
    pub fn header_without_revision(&self) -> ResponseHeader {
        self.header_at(0)
    }

    pub(crate) fn header_at(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.leadership.term(),
        }
    }

    /// Completes a header of which the state machine knows the revision alone.
    pub(crate) fn complete(&self, header: &mut Option<ResponseHeader>) {
        let revision = match header {
            Some(header) if header.revision != 0 => header.revision,
            _ => self.published.load().revision(),
        };
        *header = Some(self.header_at(revision));
    }

    /// The leader as this member sees it, and its changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// The current leader's id.
    pub fn leader(&self) -> Option<u64> {
        Some(self.leadership.leader()).filter(|leader| *leader != 0)
    }

    /// Whether this member leads, as far as it knows.
    pub fn is_leader(&self) -> bool {
        self.leadership.is_local()
    }

    /// How long there has been no leader; `None` while there is one. A stream that requires a
    /// leader is to be refused or cut after three election timeouts.
    pub fn without_leader_for(&self) -> Option<Duration> {
        self.leadership.now().lost_since.map(|since| since.elapsed())
    }

    /// Refuses what a learner does not serve: everything but serializable ranges, status, and the
    /// snapshot stream.
    pub fn refuse_on_learner(&self) -> Result<()> {
        if self.is_learner() { Err(Error::NotSupportedForLearner) } else { Ok(()) }
    }

    /// Whether this member is a learner. A member that has not yet heard of itself is not.
    pub fn is_learner(&self) -> bool {
        let published = self.published.load();
        let own = published.state.members.get(self.identity.member_id);
        own.is_some_and(|member| member.is_learner)
    }

    /// Resolves to `true` when the member has published itself, which is when it is ready for
    /// clients.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Resolves when the member stops, with the reason.
    pub async fn stopped(&self) -> StopReason {
        self.stop.stopped().await
    }

    /// Why the member has stopped, if it has.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop.reason().cloned()
    }

    /// Opens a watch stream: one side takes requests, the other gives encoded responses. Watchers
    /// are served from what this member has applied.
    pub fn watch_stream(&self) -> (WatchRequests, WatchResponses) {
        self.watch.open()
    }

    /// Metrics in the Prometheus text format.
    pub fn metrics_text(&self) -> String {
        self.refresh_metrics();
        let rows = self.network.peers().map(|peers| peers.metrics().rows()).unwrap_or_default();
        self.metrics.render(peer_metrics::families(self.identity.member_id, &rows))
    }

    /// The registry, for metrics of the RPC layer.
    pub fn registry(&self) -> &prometheus::Registry {
        self.metrics.registry()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.published.load().generation.engine().usage()
    }

    /// Ends the member if an engine failed; what the client gets then is that it stopped.
    pub(crate) fn guard<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(Error::Broken(fatal)) => {
                self.stop.fatal(fatal.to_string());
                Err(Error::Stopped)
            }
            other => other,
        }
    }

    /// Returns when everything that was acknowledged before this call is published here.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        if self.stop.is_stopped() {
            return Err(Error::Stopped);
        }
        if self.leads_alone() {
            return Ok(());
        }
        let index = self.reads.read_index().await?;
        if self.applied.wait(index).await { Ok(()) } else { Err(Error::Stopped) }
    }

    /// Whether the published state is current without asking anybody: this member leads, is the
    /// only voter, and has applied an entry of its own term, so all that came before its start or
    /// election too.
    ///
    /// The only voter is its own quorum: nothing can be acknowledged but by this member's apply
    /// thread, which publishes first. Should others become voters or leader, this member publishes
    /// the change before it lets its raft thread act on it, and records the loss of leadership
    /// before it answers the vote that causes it.
    fn leads_alone(&self) -> bool {
        let term = self.leadership.term();
        // In this order: what is published must not be older than the look at leadership.
        self.leadership.is_local() && {
            let published = self.published.load();
            published.sole_voter && published.state.applied.term == term
        }
    }

    /// Returns when a quorum has confirmed that this member leads, after the call.
    pub(crate) async fn confirm_leadership(&self) -> Result<()> {
        if !self.leadership.is_local() {
            return Err(Error::NotLeader);
        }
        if !self.leads_alone() {
            self.reads.read_index().await?;
        }
        if self.leadership.is_local() { Ok(()) } else { Err(Error::NotLeader) }
    }

    /// Returns when all that is known to be committed is applied.
    pub(crate) async fn wait_committed_applied(&self) -> Result<()> {
        let index = self.committed.load(Ordering::SeqCst);
        let waiting = self.applied.wait(index);
        match tokio::time::timeout(self.config.request_timeout(), waiting).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Stopped),
            Err(_) => Err(Error::TimeoutWaitAppliedIndex),
        }
    }

    /// Proposes a request and waits until this member has applied it.
    pub(crate) async fn propose(&self, by: impl Into<By<InternalRaftRequest>>) -> Result<Response> {
        self.timed(by.into(), |data, handle, deadline, refused| {
            handle.propose(data, deadline, refused)
        })
        .await
    }

    /// Proposes what only the leader of `term` may decide. It is not passed on to another leader.
    pub(crate) async fn propose_as_leader(
        &self,
        request: InternalRaftRequest,
        term: u64,
    ) -> Result<Response> {
        self.timed(request.into(), |data, handle, deadline, refused| {
            handle.propose_as_leader(data, term, deadline, refused)
        })
        .await
    }

    /// Puts a request into the log and counts how long its answer took.
    async fn timed(
        &self,
        by: By<InternalRaftRequest>,
        propose: impl FnOnce(Bytes, &Handle, Instant, OnRefused) -> Result<(), Refused>,
    ) -> Result<Response> {
        let By { request, caller } = by;
        self.refuse_when_behind(&request)?;
        let header = self.entry_header(&request, &caller).await?;
        let mut timed = Timed::new(&self.metrics, Op::of(&request));
        let (id, data) = self.encode(request, header)?;
        let answer = self
            .answer_of(id, |handle, deadline, refused| propose(data, handle, deadline, refused));
        let answer = answer.await?;
        timed.answered = true;
        answer
    }

    fn refuse_when_behind(&self, request: &InternalRaftRequest) -> Result<()> {
        let behind = self.committed.load(Ordering::Relaxed).saturating_sub(self.applied.get());
        let relieves = request.lease_revoke.is_some();
        if behind > if relieves { MAX_APPLY_LAG_PRIORITY } else { MAX_APPLY_LAG } {
            self.metrics.own.apply_lag_refused.inc();
            return Err(Error::TooManyRequests);
        }
        Ok(())
    }

    /// What is said of an entry: its id, and on whose behalf it is, by which it is checked when it
    /// is applied. Who authenticates is nobody yet.
    async fn entry_header(
        &self,
        request: &InternalRaftRequest,
        caller: &Caller,
    ) -> Result<RequestHeader> {
        let who = match request.authenticate {
            Some(_) => None,
            None => self.identify(caller).await?,
        };
        let who = who.unwrap_or_default();
        Ok(RequestHeader { id: self.ids.next(), username: who.user, auth_revision: who.revision })
    }

    /// The entry of a request and the id under which it is answered.
    fn encode(
        &self,
        mut request: InternalRaftRequest,
        header: RequestHeader,
    ) -> Result<(u64, Bytes)> {
        let id = header.id;
        request.header = Some(header);
        if request.encoded_len() > self.config.max_request_bytes {
            return Err(Error::RequestTooLarge);
        }
        Ok((id, request.encode_to_vec().into()))
    }

    /// Puts something into the log under `id` and waits until this member has applied it.
    pub(crate) async fn enter_log(
        &self,
        id: u64,
        propose: impl FnOnce(&Handle, Instant, OnRefused) -> Result<(), Refused>,
    ) -> Result<Response> {
        self.answer_of(id, propose).await?
    }

    /// What the apply thread answers, or why there is no answer.
    async fn answer_of(
        &self,
        id: u64,
        propose: impl FnOnce(&Handle, Instant, OnRefused) -> Result<(), Refused>,
    ) -> Result<Result<Response>> {
        if self.stop.is_stopped() {
            return Err(Error::Stopped);
        }
        let started = Instant::now();
        let deadline = started + self.config.request_timeout();
        let mut waiter = self.waiters.register(id);
        let waiters = self.waiters.clone();
        let on_refused = move |reason| waiters.answer(id, Answer::Refused(reason));
        let handle = self.raft.get()?;
        let mut pending = Pending::new(&self.metrics);
        propose(handle, deadline, Box::new(on_refused)).map_err(refused)?;
        match tokio::time::timeout_at(deadline.into(), waiter.wait()).await {
            Ok(Some(Answer::Applied(result))) => {
                pending.failed = false;
                Ok(self.guard(*result))
            }
            Ok(Some(Answer::Refused(reason))) => Err(refused(reason)),
            Ok(None) => {
                pending.failed = false;
                Err(Error::Stopped)
            }
            Err(_) => Err(self.timeout_since(started)),
        }
    }

    /// The text for a request that got no answer since `started`.
    fn timeout_since(&self, started: Instant) -> Error {
        let now = self.leadership.now();
        let window = 2 * self.config.election_timeout();
        if let Some(elected) = now.elected_at
            && started < elected
            && elected.checked_sub(window).is_none_or(|lost| started > lost)
        {
            return Error::TimeoutLeaderFail;
        }
        let connected = match now.leader {
            None => true,
            Some(_) if now.is_local => self.has_quorum_since(started),
            Some(leader) => self.network.connected_since(leader, started),
        };
        if connected { Error::Timeout } else { Error::TimeoutConnectionLost }
    }

    fn has_quorum_since(&self, since: Instant) -> bool {
        let published = self.published.load();
        let members = &published.state.members;
        self.connected(members.members().map(|member| member.id), since) > members.len() / 2
    }

    /// How many of these members are this one, or were connected to it since `since`.
    pub(crate) fn connected(&self, ids: impl Iterator<Item = u64>, since: Instant) -> usize {
        let own = self.identity.member_id;
        ids.filter(|id| *id == own || self.network.connected_since(*id, since)).count()
    }
}

/// Tells the proposer that his proposal is not in the log.
type OnRefused = Box<dyn FnOnce(Refused) + Send>;

/// A proposal that waits for its answer; without one, or when nobody waits any more, it failed.
struct Pending<'m> {
    metrics: &'m Metrics,
    failed: bool,
}

impl<'m> Pending<'m> {
    fn new(metrics: &'m Metrics) -> Self {
        metrics.proposals_pending.inc();
        Self { metrics, failed: true }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.metrics.proposals_pending.dec();
        if self.failed {
            self.metrics.proposals_failed.inc();
        }
    }
}

/// A request whose answer is waited for; dropping it counts the time.
pub(crate) struct Timed<'m> {
    metrics: &'m Metrics,
    op: Op,
    started: Instant,
    pub(crate) answered: bool,
}

impl<'m> Timed<'m> {
    pub(crate) fn new(metrics: &'m Metrics, op: Op) -> Self {
        Self { metrics, op, started: Instant::now(), answered: false }
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.metrics.request(self.op, self.answered, self.started.elapsed());
    }
}

/// What a client is told when the raft thread did not take his request.
pub(crate) fn refused(reason: Refused) -> Error {
    match reason {
        // The proposal waited for a leader for as long as a request may take.
        Refused::NoLeader | Refused::Transferring | Refused::ConfChangePending => Error::Timeout,
        Refused::NotLeader => Error::NotLeader,
        Refused::TransferFailed => Error::TimeoutLeaderTransfer,
        Refused::Full | Refused::Uncommitted => Error::TooManyRequests,
        Refused::NotVoter(_) => Error::BadLeaderTransferee,
        Refused::Removed | Refused::Stopped => Error::Stopped,
        Refused::Malformed => Error::Raw(reason.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;
    use crate::config::EngineKind;
    use mainstay_proto::etcdserverpb::AuthUserAddRequest;
    use std::sync::Mutex;

    /// An entry that this version cannot apply as the others do ends the member before anything
    /// after it is applied, here and after a restart.
    #[tokio::test]
    async fn an_entry_that_cannot_be_applied_ends_the_member() {
        let dir = tempfile::tempdir().unwrap();
        let config = || {
            let mut config = StoreConfig::new(dir.path());
            config.engine = EngineKind::Memory;
            config
        };
        let told = Arc::new(Mutex::new(Vec::new()));
        let hook = told.clone();
        let builder = Builder::new(config());
        let hook = move |reason: &str| hook.lock().unwrap().push(reason.to_owned());
        let store = builder.on_fatal(hook).open().await.unwrap();
        // As a server older than 3.5 wrote it: each member would hash it in its own way.
        let add = AuthUserAddRequest {
            name: "ann".into(),
            password: "plain-secret".into(),
            ..Default::default()
        };
        let request = InternalRaftRequest { auth_user_add: Some(add), ..Default::default() };
        let answer = store.core().propose(request).await;
        assert_eq!(answer.unwrap_err(), Error::Stopped);
        let StopReason::Fatal(reason) = store.stopped().await else { panic!("not fatal") };
        assert!(reason.contains("a password that is not hashed"), "{reason}");
        assert!(!reason.contains("plain-secret"), "{reason}");
        assert_eq!(*told.lock().unwrap(), [reason]);
        assert_eq!(store.put("a", "1").await.unwrap_err(), Error::Stopped);
        assert_eq!(store.get("a").await.unwrap_err(), Error::Stopped);
        store.shutdown().await;
        let again = Builder::new(config()).open().await.unwrap();
        assert!(matches!(again.stopped().await, StopReason::Fatal(_)));
        again.shutdown().await;
    }

    #[tokio::test]
    async fn a_dropped_store_ends_and_lets_go_of_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = StoreConfig::new(dir.path());
        config.engine = EngineKind::Memory;
        let store = Builder::new(config.clone()).open().await.unwrap();
        store.put("a", "1").await.unwrap();
        let core = store.core().clone();
        drop(store);
        assert_eq!(core.stopped().await, StopReason::Shutdown);
        // Its threads end soon after; until then the log is locked.
        let start = Instant::now();
        let again = loop {
            match Builder::new(config.clone()).open().await {
                Ok(store) => break store,
                Err(error) => assert!(start.elapsed().as_secs() < 20, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert_eq!(again.get("a").await.unwrap().unwrap().value, "1");
        again.shutdown().await;
    }
}
