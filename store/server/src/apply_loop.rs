//! The apply thread: committed entries become state, and what waits for them is told.
//!
//! Input: [`Work`] from the raft thread. Output, in this order for each batch: one engine batch;
//! the published view and state; events to watchers; changes to leases and peers; the raised
//! applied index; answers.
//! Everything that waits is taken at once, so that one engine batch, one view and one wake-up of
//! watchers serve many entries. Between batches the deletions of compactions are written, in slices
//! that another thread has looked for.
//! **Invariant:** nothing is told to anybody before the state that it speaks of is published.
//! **Invariant:** after an error nothing more is applied: the member stops.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use mainstay_engine::{EngineError, Family};
use mainstay_mvcc::buckets::{Bucket, names};
use mainstay_mvcc::membership::MemberChange;
use mainstay_mvcc::version::V3_6;
use mainstay_mvcc::{Applied, Error, FoundSlice, Outcome, Response, StateMachine};
use mainstay_proto::etcdserverpb::{
    AlarmRequest, AlarmType, InternalRaftRequest, alarm_request::AlarmAction,
};
use mainstay_proto::raftpb::{Entry, Snapshot};
use mainstay_watch as watch;
use prost::Message as _;

use crate::background::Background;
use crate::core::{Answer, Core, Published};
use crate::engine_home::{EngineHome, Generation, HomeError};
use crate::fatal::StopReason;
use crate::quota;
use crate::snapshot::StagedSnapshots;
use crate::watch_view::WatchView;

/// Entries that are applied as one batch.
const BATCH_ENTRIES: usize = 4_096;
/// Bytes of entries that are applied as one batch.
const BATCH_BYTES: usize = 8 << 20;

/// What the apply thread is told.
pub(crate) enum Work {
    /// Committed entries, in order.
    Entries(Vec<Entry>),
    /// The state is replaced by a snapshot that is staged.
    Install(Snapshot),
    /// Deletions of a compaction that were found in this generation of the engine.
    Slice { found: FoundSlice, generation: Arc<Generation> },
    /// The raft thread has ended.
    Stop,
}

/// Why the apply thread cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyError {
    #[error(transparent)]
    State(#[from] mainstay_mvcc::Fatal),
    #[error("the engine failed: {0}")]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Home(#[from] HomeError),
    #[error(
        "the log says that the snapshot at index {0} was received, but its engine is not there; \
         the data directory was changed from outside"
    )]
    NotStaged(u64),
    #[error("panicked: {0}")]
    Panic(String),
}

/// The apply thread's own things.
pub(crate) struct ApplyLoop {
    pub(crate) core: Arc<Core>,
    pub(crate) work: Receiver<Work>,
    pub(crate) machine: StateMachine,
    pub(crate) home: Arc<EngineHome>,
    pub(crate) staged: Arc<StagedSnapshots>,
    pub(crate) background: Background,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Entries up to this one were committed before the start: the tokens that they assigned have
    /// died with the last run.
    pub(crate) replayed: u64,
    /// The index of the newest snapshot mark that was asked for.
    pub(crate) marked: u64,
    /// A slice of a compaction is being looked for.
    pub(crate) slicing: bool,
    /// When the deletions that are under way began.
    pub(crate) compacting_since: Option<Instant>,
}

impl ApplyLoop {
    /// Works until the raft thread has ended.
    pub(crate) fn run(mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let result =
            result.unwrap_or_else(|panic| Err(ApplyError::Panic(panic_text(panic.as_ref()))));
        match result {
            Ok(()) => {}
            Err(error) => self.core.stop.fatal(format!("applying the log failed: {error}")),
        }
        self.core.waiters.abandon_all();
        self.core.applied.abandon_all();
        self.core.compactions_done.abandon_all();
    }

    fn serve(&mut self) -> Result<(), ApplyError> {
        let mut held = VecDeque::new();
        // A compaction may have been cut short by the last stop.
        self.find_slice();
        while let Some(first) = held.pop_front().or_else(|| self.work.recv().ok()) {
            match first {
                Work::Stop => break,
                Work::Install(snapshot) => self.install(&snapshot)?,
                Work::Slice { found, generation } => self.take_slice(found, &generation)?,
                Work::Entries(entries) => {
                    let entries = self.gather(entries, &mut held);
                    self.apply(&entries)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the entries that wait behind `entries`, up to the limits of a batch.
    fn gather(&self, mut entries: Vec<Entry>, held: &mut VecDeque<Work>) -> Vec<Entry> {
        let size = |entries: &[Entry]| entries.iter().map(|e| e.data().len()).sum::<usize>();
        let mut bytes = size(&entries);
        while entries.len() < BATCH_ENTRIES && bytes < BATCH_BYTES {
            match self.work.try_recv() {
                Ok(Work::Entries(mut more)) => {
                    bytes += size(&more);
                    entries.append(&mut more);
                }
                Ok(other) => {
                    held.push_back(other);
                    break;
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        entries
    }

    fn apply(&mut self, entries: &[Entry]) -> Result<(), ApplyError> {
        let started = Instant::now();
        let generation = self.core.published.load().generation.clone();
        let engine = generation.engine();
        let waiters = &self.core.waiters;
        if let Some(last) = entries.last() {
            self.core.leases.before_entries_of(last.term());
        }
        let metrics = &self.core.metrics;
        let mut before = started;
        let mut observe = |outcome: &Outcome| {
            let now = Instant::now();
            metrics.applied_entry(outcome, now - before);
            before = now;
        };
        let waited = |id| waiters.is_waiting(id);
        let mut applied = self.machine.apply_observed(&**engine, entries, &waited, &mut observe)?;
        if applied.is_empty() {
            return Ok(());
        }
        self.follow_storage_version(&generation, &mut applied)?;
        let over_quota = self.over_quota(&generation, entries, &applied);
        let writing = Instant::now();
        engine.write(std::mem::take(&mut applied.batch))?;
        metrics.committed(writing.elapsed());
        // Before the new rules: a deleted user's token must not be that of a new one of its name.
        self.core.tokens.follow(&applied.auth_effects, self.replayed);
        let rules = self.core.auth_state();
        let published = self.publish(generation);

        metrics.applied(&applied);
        if !Arc::ptr_eq(&rules, &published.state.auth) {
            self.core.tell_rules();
        }
        self.tell_watchers(&published, &mut applied);
        self.core.leases.follow(&applied.lease_changes);
        for compaction in &applied.compactions {
            self.hash_compaction(&published, compaction);
        }
        self.find_slice();
        let removed = self.follow_members(&applied);
        let index = published.state.applied.index;
        self.advance(&published);
        let changes = applied.conf_changes.iter().map(|c| (c.index, c.change.clone())).collect();
        if let Ok(raft) = self.core.raft.get() {
            // Before the answers: who changes members one after the other must not meet a raft
            // thread that has not heard of the first change.
            raft.applied(index, changes);
        }
        self.answer(applied.outcomes, &over_quota);
        self.mark_if_due(&published);
        let (took, expected) = (started.elapsed(), self.core.config.warning_apply_duration);
        if took > expected {
            tracing::warn!(
                took = format!("{took:?}"),
                "expected-duration" = format!("{expected:?}"),
                entries = entries.len(),
                index,
                "apply request took too long"
            );
        }
        self.core.metrics.applied_batch(index, took, took > expected);
        if removed {
            self.leave();
        }
        Ok(())
    }

    /// Makes the state after a batch visible.
    fn publish(&self, generation: Arc<Generation>) -> Arc<Published> {
        let member = self.core.identity.member_id;
        let published = Arc::new(Published::new(self.machine.status(), generation, member));
        self.core.published.store(published.clone());
        published
    }

    /// Lets readers know how far the published state is.
    fn advance(&self, published: &Published) {
        let applied = published.state.applied;
        self.core.applied.advance(applied.index);
        if *self.core.applied_term.borrow() != applied.term {
            self.core.applied_term.send_replace(applied.term);
        }
    }

    fn tell_watchers(&self, published: &Arc<Published>, applied: &mut Applied) {
        if applied.events.is_empty() && applied.compactions.is_empty() {
            return;
        }
        let revisions = std::mem::take(&mut applied.events);
        let view = Arc::new(WatchView::new(published.clone()));
        self.core.watch.publish(watch::Published { view, revisions });
    }

    /// The layout of the data follows the cluster version. It is not part of the replicated state:
    /// each member writes it by itself, as in etcd.
    fn follow_storage_version(
        &self,
        generation: &Generation,
        applied: &mut Applied,
    ) -> Result<(), ApplyError> {
        let decided = applied.outcomes.iter().rev().find_map(|outcome| match outcome.result {
            Ok(Response::ClusterVersion { version, .. }) => Some(version),
            _ => None,
        });
        let Some(version) = decided else { return Ok(()) };
        if version.cluster() < V3_6 {
            return Ok(());
        }
        let key = Bucket::Meta.engine_key(names::STORAGE_VERSION);
        let text = version.cluster().to_string();
        if generation.engine().get(Family::System, &key)?.as_deref() != Some(text.as_bytes()) {
            applied.batch.put(Family::System, key, text);
        }
        Ok(())
    }

    /// The ids of entries that did not fit into the quota. They are applied all the same, since
    /// other members may have the room; but who asked is told, and the alarm is raised.
    fn over_quota(
        &self,
        generation: &Generation,
        entries: &[Entry],
        applied: &Applied,
    ) -> Vec<u64> {
        let Some(quota) = self.core.config.quota() else { return Vec::new() };
        let size = generation.engine().usage().total_bytes;
        let most: u64 = entries.iter().map(|entry| 1_024 + entry.data().len() as u64).sum();
        if size + most < quota {
            return Vec::new();
        }
        let first = applied.outcomes.first().map_or(u64::MAX, |outcome| outcome.index);
        let requests = entries.iter().filter(|entry| entry.index() >= first);
        let requests =
            requests.filter_map(|entry| InternalRaftRequest::decode(entry.data.clone()?).ok());
        let exceeding = requests.filter(|request| {
            let cost = quota::cost_of_entry(request);
            cost > 0 && size + cost >= quota
        });
        exceeding.filter_map(|request| request.header.map(|header| header.id)).collect()
    }

    /// Answers who waits for these entries.
    fn answer(&self, outcomes: Vec<Outcome>, over_quota: &[u64]) {
        let mut refused = Vec::new();
        for Outcome { request_id, result, .. } in outcomes {
            if request_id == 0 {
                continue;
            }
            if result.is_ok() && over_quota.contains(&request_id) {
                refused.push(request_id);
                continue;
            }
            self.core.waiters.answer(request_id, Answer::Applied(Box::new(result)));
        }
        if refused.is_empty() {
            return;
        }
        // The alarm first, so that who is told that there is no space finds it raised.
        let core = self.core.clone();
        self.runtime.spawn(async move {
            let own = core.identity.member_id;
            let raised = core
                .alarms()
                .iter()
                .any(|alarm| alarm.member_id == own && alarm.alarm == AlarmType::Nospace as i32);
            if !raised {
                tracing::warn!(
                    "an entry exceeds the quota of the engine; raising the alarm NOSPACE"
                );
                let alarm = AlarmRequest {
                    action: AlarmAction::Activate as i32,
                    member_id: own,
                    alarm: AlarmType::Nospace as i32,
                };
                if let Err(error) = core.alarm(alarm).await {
                    tracing::warn!(%error, "failed to raise the alarm NOSPACE");
                }
            }
            for id in refused {
                core.waiters.answer(id, Answer::Applied(Box::new(Err(Error::NoSpace))));
            }
        });
    }

    /// Follows changes of members; tells whether this member was removed.
    fn follow_members(&self, applied: &Applied) -> bool {
        let own = self.core.identity.member_id;
        let mut removed = false;
        for change in applied.conf_changes.iter().filter_map(|change| change.member.as_ref()) {
            removed |= matches!(change, MemberChange::Removed { id, .. } if *id == own);
            self.core.network.follow(change, own);
        }
        removed
    }

    /// This member was removed. It stays a moment, so that the others hear of the commit.
    fn leave(&self) {
        let core = self.core.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            core.stop.stop(StopReason::Removed);
        });
    }

    fn hash_compaction(
        &self,
        published: &Arc<Published>,
        compaction: &mainstay_mvcc::AcceptedCompaction,
    ) {
        self.core.hashes.expect(compaction.revision);
        if compaction.previous_finished {
            self.background.hash(published.clone(), *compaction);
        } else {
            self.core.hashes.give_up(compaction.revision);
        }
    }

    /// Every `snapshot_count` entries the log is told how far the engine holds everything.
    fn mark_if_due(&mut self, published: &Arc<Published>) {
        let index = published.state.applied.index;
        if !self.home.is_durable()
            || index.saturating_sub(self.marked) <= self.core.config.entries_between_marks()
        {
            return;
        }
        self.marked = index;
        self.background.mark(published.clone());
    }

    /// Has the next slice of a compaction looked for, if there is one and nobody looks yet.
    fn find_slice(&mut self) {
        if let (false, Some(pass)) = (self.slicing, self.machine.compacting()) {
            self.slicing = true;
            self.compacting_since.get_or_insert_with(Instant::now);
            self.background.find_slice(self.core.published.load_full(), pass);
        }
    }

    /// Writes the deletions of a slice.
    fn take_slice(
        &mut self,
        found: FoundSlice,
        generation: &Arc<Generation>,
    ) -> Result<(), ApplyError> {
        self.slicing = false;
        let started = Instant::now();
        let current = self.core.published.load().generation.clone();
        // What was found in an engine that was replaced since says nothing about this one.
        if Arc::ptr_eq(generation, &current)
            && let Some(slice) = self.machine.take_slice(&**current.engine(), found)?
        {
            current.engine().write(slice.batch)?;
            let metrics = &self.core.metrics.compaction;
            metrics.slice(slice.rows, started.elapsed());
            if let Some(revision) = slice.finished {
                let since = self.compacting_since.take().unwrap_or(started);
                metrics.finished(since.elapsed());
                let published = self.publish(current);
                // The hub's view is the last one from before the deletions: as long as it has it,
                // no space is given back.
                let view = Arc::new(WatchView::new(published));
                self.core.watch.publish(watch::Published { view, revisions: Vec::new() });
                self.core.compactions_done.advance(revision.unsigned_abs());
                tracing::info!(revision, "finished a compaction");
            }
        }
        self.find_slice();
        Ok(())
    }

    /// Replaces the state by the staged one.
    fn install(&mut self, snapshot: &Snapshot) -> Result<(), ApplyError> {
        let index = snapshot.metadata.as_ref().map_or(0, |metadata| metadata.index());
        let old = self.core.published.load_full();
        tracing::info!(
            from = old.state.applied.index,
            to = index,
            "replacing the state by a snapshot of the leader"
        );
        self.core.metrics.snapshot_installing.set(1);
        let staged = self.staged.take(index)?.ok_or(ApplyError::NotStaged(index))?;
        let generation = Arc::new(staged.install(&self.home)?);
        self.machine = StateMachine::open(&**generation.engine(), self.machine.limits())?;
        self.marked = index;
        let auth = &self.machine.status().auth;
        let as_before = auth.revision() == old.state.auth.revision();
        self.core.tokens.resume(auth.is_enabled(), as_before);
        let published = self.publish(generation);
        self.core.tell_rules();
        old.generation.retire();
        drop(old);
        self.core.hashes.clear();
        let view = Arc::new(WatchView::new(published.clone()));
        self.core.watch.publish(watch::Published { view, revisions: Vec::new() });
        self.core.leases.reload(&*published.view)?;
        self.core.network.set_members(&published.state);
        let finished = published.state.compact_finished.max(0).unsigned_abs();
        self.core.compactions_done.advance(finished);
        self.advance(&published);
        if let Ok(raft) = self.core.raft.get() {
            raft.applied(index, Vec::new());
        }
        self.core.installed.send_modify(|count| *count += 1);
        self.compacting_since = None;
        self.find_slice();
        self.core.metrics.snapshot_installing.set(0);
        tracing::info!(index, revision = published.revision(), "replaced the state by a snapshot");
        Ok(())
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    match (panic.downcast_ref::<String>(), panic.downcast_ref::<&str>()) {
        (Some(text), _) => text.clone(),
        (_, Some(text)) => (*text).to_owned(),
        _ => "no message".to_owned(),
    }
}
