//! The threads and tasks of a member: how they start, in which order, and how they end.
//!
//! Input: the configuration. Output: a [`Core`] that works, and a [`Member`] that can end it.
//!
//! | thread | inbox | ends when |
//! |---|---|---|
//! | `raft` | bounded, see consensus | it is told to stop |
//! | `apply` | what the raft thread commits; bounded by the overload rule | the raft thread has ended |
//! | `flush`, `hash` | one job for each mark and compaction | the apply thread has ended |
//! | `watch`, `watch-read` | bounded, see watch | the driver is dropped |
//! | tokio | sockets, timers, requests | the member stops |
//!
//! **Invariant:** they end in this order, so nothing is lost between two of them.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use mainstay_consensus::Handle;
use mainstay_log::Observer;
use mainstay_mvcc::lease::LessorOptions;
use mainstay_mvcc::version::SERVER_VERSION;
use mainstay_net::Listener;
use mainstay_peer::{Client, Dialer, Peers};
use mainstay_watch::{Driver, HubConfig};
use tokio::sync::watch;
use tokio::task::JoinHandle as Task;

use crate::applied::AppliedIndex;
use crate::apply_loop::ApplyLoop;
use crate::auth::{Passwords, Tokens, valid_cost};
use crate::background::Background;
use crate::bootstrap::{Booted, Ground, StartError, boot};
use crate::compaction::CompactionHashes;
use crate::config::StoreConfig;
use crate::core::{Core, Published, RaftLink};
use crate::fatal::{FatalHook, StopReason, StopState};
use crate::leadership::LeadershipCell;
use crate::lessor::LeaseBook;
use crate::metrics::Metrics;
use crate::network::{Network, transport};
use crate::peer_host::PeerHost;
use crate::peer_port;
use crate::read::ReadRounds;
use crate::request_id::RequestIds;
use crate::sink::{CoreSink, PublishedSnapshots};
use crate::snapshot::StagedSnapshots;
use crate::tasks;
use crate::watch_view::WatchView;

/// A member that runs. Dropped without [`Member::shutdown`] it ends by itself soon after, with
/// nothing flushed.
pub(crate) struct Member {
    pub(crate) core: Arc<Core>,
    running: Option<Running>,
}

/// What has to be ended.
struct Running {
    raft: Handle,
    apply: JoinHandle<()>,
    background: Vec<JoinHandle<()>>,
    watch: Driver,
    tasks: Vec<Task<()>>,
}

/// The log's observer: durations for metrics.
struct LogTimes(Arc<Metrics>);

impl Observer for LogTimes {
    fn fsync(&self, took: Duration) {
        self.0.wal_fsync.observe(took.as_secs_f64());
    }

    fn write(&self, bytes: usize, took: Duration) {
        self.0.wal_bytes.add(bytes as i64);
        self.0.wal_write.observe(took.as_secs_f64());
    }
}

impl Member {
    /// Starts a member. `listeners` are the bound peer port, if it has one, and `dialer` is the
    /// way to the others.
    pub(crate) async fn start(
        config: StoreConfig,
        listeners: Vec<Listener>,
        dialer: Arc<dyn Dialer>,
        hook: FatalHook,
    ) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Handle::current();
        let tokens = Tokens::new(&config.auth_token, config.auth_token_ttl)?;
        let passwords = Passwords::new(valid_cost(config.bcrypt_cost));
        let metrics = Arc::new(Metrics::new());
        let client = Client::new(dialer.clone(), runtime.clone());
        let ground = Ground::new(&config, Arc::new(LogTimes(metrics.clone())));
        let limits = ground.limits;
        let Booted { identity, home, generation, machine, wal, start, remotes } =
            boot(&config, &client, ground).await?;
        metrics.set_member(identity.member_id);

        let own = identity.member_id;
        let network = network(&config, identity, &listeners, dialer, &runtime)?;
        let (home, generation) = (Arc::new(home), Arc::new(generation));
        let snap_dir = config.snap_dir();
        let state = machine.status();
        let applied = state.applied.index;
        let staged = StagedSnapshots::new(home.clone(), snap_dir, limits, applied, metrics.clone());
        let staged = Arc::new(staged);
        let published = Arc::new(Published::new(state.clone(), generation, own));
        let on_fatal = Arc::new(StopState::new(hook));
        let (watch, handle) = start_watch(&config, identity, &published, &on_fatal)?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ids = Arc::new(RequestIds::new(own, since_epoch));
        let raft_link = RaftLink::default();
        let contexts = ids.clone();
        let reads =
            ReadRounds::new(raft_link.clone(), move || contexts.next(), config.request_timeout());
        let options = LessorOptions {
            min_ttl: config.min_lease_ttl(),
            checkpoint_interval: config
                .lease_checkpoint
                .then_some(config.lease_checkpoint_interval),
        };
        let term = start.hard_state.term();
        tokens.resume(state.auth.is_enabled(), false);
        let core = Arc::new(Core {
            tokens,
            passwords,
            identity,
            ids,
            raft: raft_link.clone(),
            waiters: Arc::default(),
            leases: LeaseBook::open(&*published.view, options)?,
            published: ArcSwap::new(published.clone()),
            applied: AppliedIndex::new(state.applied.index),
            applied_term: watch::Sender::new(state.applied.term),
            committed: AtomicU64::new(start.hard_state.commit().max(state.applied.index)),
            leadership: LeadershipCell::new(own, term, Instant::now()),
            reads,
            watch: handle,
            network: network.clone(),
            compactions_done: AppliedIndex::new(state.compact_finished.max(0).unsigned_abs()),
            hashes: CompactionHashes::default(),
            large_reads: Core::large_reads(),
            disk_low: AtomicBool::new(false),
            installed: watch::Sender::new(0),
            ready: watch::Sender::new(false),
            stop: on_fatal,
            metrics,
            config,
        });
        core.tell_rules();
        let system = |doing| move |source| StartError::System { doing, source };

        // Before the apply thread, which from then on is the one that changes them.
        network.set_members(&state);
        let (work, inbox) = mpsc::channel();
        let sink = CoreSink { core: core.clone(), work: work.clone() };
        let source = Arc::new(PublishedSnapshots(core.clone()));
        let marked = start.snapshot.index();
        let raft = mainstay_consensus::spawn(
            raft_config(&core.config, own),
            start,
            Box::new(wal),
            transport(&network),
            source,
            Box::new(sink),
        )?;
        raft_link.connect(raft.clone());
        let (background, threads) =
            Background::spawn(&core, work).map_err(system("starting the background threads"))?;
        let apply = ApplyLoop {
            core: core.clone(),
            work: inbox,
            machine,
            home,
            staged: staged.clone(),
            background,
            runtime: runtime.clone(),
            replayed: core.committed.load(std::sync::atomic::Ordering::SeqCst),
            marked,
            slicing: false,
            compacting_since: None,
        };
        let apply = std::thread::Builder::new()
            .name("apply".into())
            .spawn(move || apply.run())
            .map_err(system("starting the apply thread"))?;

        let mut tasks = vec![
            runtime.spawn(tasks::run(core.clone())),
            runtime.spawn(stop_with(core.clone(), raft.clone())),
        ];
        if let Some(peers) = network.peers() {
            peers.start(Arc::new(PeerHost { core: core.clone(), staged }));
            for remote in remotes.iter().filter(|remote| remote.id != own) {
                if let Err(error) = peers.add_remote(remote.id, &remote.peer_urls) {
                    tracing::warn!(%error, "a member of the cluster cannot be reached");
                }
            }
            tasks.push(runtime.spawn(peer_port::serve(core.clone(), listeners, peers.service())));
        }
        let running = Some(Running { raft, apply, background: threads, watch, tasks });
        Ok(Self { core, running })
    }

    /// Hands leadership over if this member leads, then ends everything.
    pub(crate) async fn shutdown(mut self) {
        self.hand_over().await;
        self.core.stop.stop(StopReason::Shutdown);
        if let Some(running) = self.running.take() {
            end(&self.core, running).await;
        }
    }

    pub(crate) async fn hand_over(&self) {
        let core = &self.core;
        if !core.leadership.is_local() || core.stop.is_stopped() {
            return;
        }
        let own = core.identity.member_id;
        let others = {
            let published = core.published.load();
            let voters = published.state.members.voters().map(|member| member.id);
            voters.filter(|id| *id != own).collect::<Vec<_>>()
        };
        if others.is_empty() {
            return;
        }
        let reached = core.network.longest_connected(others.into_iter());
        if reached.is_empty() {
            tracing::warn!("leadership transfer failed: no other voter is reached");
        }
        for to in reached {
            if let Err(error) = core.transfer_leadership(to).await {
                tracing::warn!(%error, to = format!("{to:x}"), "leadership transfer failed");
            }
            if !core.leadership.is_local() {
                return;
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            self.core.stop.stop(StopReason::Shutdown);
            stop(&self.core, &running.raft);
        }
    }
}

/// Tells everything to end.
fn stop(core: &Core, raft: &Handle) {
    core.reads.stop();
    core.network.stop();
    raft.stop();
}

/// A member that cannot go on, or was removed, must not vote or lead any more either.
async fn stop_with(core: Arc<Core>, raft: Handle) {
    core.stop.stopped().await;
    stop(&core, &raft);
}

/// Ends the threads in their order. The log has all that is to be kept; a flush at the end saves
/// the next start the replay.
async fn end(core: &Core, running: Running) {
    stop(core, &running.raft);
    let Running { raft, apply, background, watch, tasks } = running;
    let ending = tokio::task::spawn_blocking(move || {
        raft.join();
        // A panic in there was reported there.
        let _ = apply.join();
        for thread in background {
            let _ = thread.join();
        }
        drop(watch);
    });
    let _ = ending.await;
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    if matches!(core.stop.reason(), Some(StopReason::Fatal(_))) {
        return;
    }
    let generation = core.published.load().generation.clone();
    let flushed = tokio::task::spawn_blocking(move || generation.engine().flush()).await;
    if let Ok(Err(error)) = flushed {
        tracing::warn!(%error, "the engine could not be flushed; the next start replays the log");
    }
}

fn network(
    config: &StoreConfig,
    identity: crate::core::Identity,
    listeners: &[Listener],
    dialer: Arc<dyn Dialer>,
    runtime: &tokio::runtime::Handle,
) -> Result<Network, StartError> {
    if listeners.is_empty() {
        return Ok(Network::alone());
    }
    let urls = mainstay_peer::parse_urls(&config.advertise_peer_urls).map_err(|error| {
        StartError::System {
            doing: "reading the advertised peer URLs",
            source: std::io::Error::other(error),
        }
    })?;
    let version = SERVER_VERSION;
    let peers = mainstay_peer::Config {
        local: identity.member_id,
        cluster: identity.cluster_id,
        version: mainstay_peer::Version::new(version.major, version.minor, version.patch),
        peer_urls: urls,
        dialer,
        timing: mainstay_peer::Timing::default(),
    };
    Ok(Network::of(Peers::new(peers, runtime.clone())))
}

fn start_watch(
    config: &StoreConfig,
    identity: crate::core::Identity,
    published: &Arc<Published>,
    stop: &Arc<StopState>,
) -> Result<(Driver, mainstay_watch::WatchHandle), StartError> {
    let mut hub = HubConfig::new(identity.cluster_id, identity.member_id);
    hub.progress_interval = config.watch_progress_notify_interval;
    hub.fragment_bytes = config.max_request_bytes + (512 << 10);
    let stop = stop.clone();
    let on_fatal = move |fatal: mainstay_watch::Fatal| {
        stop.fatal(format!("watchers can no longer be served: {fatal}"));
    };
    mainstay_watch::spawn(hub, Arc::new(WatchView::new(published.clone())), on_fatal)
        .map_err(|source| StartError::System { doing: "starting the watch threads", source })
}

fn raft_config(config: &StoreConfig, id: u64) -> mainstay_consensus::Config {
    mainstay_consensus::Config {
        election_ticks: config.election_ticks,
        tick: config.tick,
        pre_vote: config.pre_vote,
        never_lead: config.never_lead,
        initial_election_tick_advance: true,
        catch_up_entries: config.entries_kept(),
        ..mainstay_consensus::Config::new(id)
    }
}
