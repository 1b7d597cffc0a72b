//! All peers of this member: who they are, and the way out for messages.
//!
//! Input: membership as applied, messages and snapshots from raft. Output: reports to the
//! [`Host`] about what could not be delivered.
//!
//! **Invariant:** [`Peers::send`] and [`Peers::send_snapshot`] never wait. They may be called from
//! any thread, the raft thread in particular.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use mainstay_proto::raftpb::{Message, MessageType};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;

use crate::client::Client;
use crate::codec::{StreamKind, check_outgoing};
use crate::config::Config;
use crate::headers::{Identity, hex};
use crate::host::{Host, Pinned};
use crate::http_client::HttpClient;
use crate::link::{Link, Shared};
use crate::metrics::Metrics;
use crate::outlet::Outlet;
use crate::pipeline::Pipeline;
use crate::serve::PeerService;
use crate::snapshot::{self, Report};
use crate::tasks::TaskGuard;
use crate::url::{PeerUrl, UrlError, parse_urls};
use crate::{inlet, probe};

/// Remotes kept at the same time. They come from request headers, so there must be an end.
const MAX_REMOTES: usize = 64;

/// The peers of a member. Clones share the same peers.
#[derive(Clone)]
pub struct Peers {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// Present between start and stop.
    host: Option<Arc<dyn Host>>,
    stopped: bool,
    /// Peers added before the start.
    waiting: HashMap<u64, Vec<PeerUrl>>,
    peers: HashMap<u64, Arc<Peer>>,
    remotes: HashMap<u64, Arc<Remote>>,
}

/// A member of the cluster.
pub(crate) struct Peer {
    link: Arc<Link>,
    app: Outlet,
    message: Outlet,
    pipeline: Pipeline,
    snapshot: Mutex<Option<TaskGuard>>,
    _tasks: [TaskGuard; 3],
}

/// Somebody of whom we know only what its requests say. It is answered by POST until the log tells
/// us that it is a member; without that a joiner that knows nobody could never catch up.
struct Remote {
    link: Arc<Link>,
    pipeline: Pipeline,
}

impl Peers {
    /// No peers yet. Tasks run on `runtime`; nothing is dialled before [`Peers::start`].
    pub fn new(config: Config, runtime: Handle) -> Self {
        let Config { local, cluster, version, peer_urls, dialer, timing } = config;
        let identity = Identity::new(local, cluster, version, &peer_urls);
        let http = Arc::new(HttpClient::new(dialer, timing.dial, runtime.clone()));
        let shared = Arc::new(Shared::new(identity, timing, http, runtime));
        Peers { inner: Arc::new(Inner { shared, state: RwLock::new(State::default()) }) }
    }

    /// Connects the peers to the member behind them, and starts dialling. Before this call
    /// messages are dropped and requests are answered with 503.
    pub fn start(&self, host: Arc<dyn Host>) {
        let mut state = self.write();
        if state.stopped || state.host.is_some() {
            return;
        }
        state.host = Some(host.clone());
        for (id, urls) in std::mem::take(&mut state.waiting) {
            state.peers.insert(id, Peer::start(id, urls, &self.inner.shared, host.clone()));
        }
    }

    /// Ends all connections and lets go of the host. Final.
    pub fn stop(&self) {
        // Dropped after the lock: the end of a peer reports to the host.
        let _ended = {
            let mut state = self.write();
            std::mem::replace(&mut *state, State { stopped: true, ..State::default() })
        };
    }

    /// Adds a member of the cluster. Does nothing for this member itself and for one that is there.
    pub fn add_peer<S: AsRef<str>>(&self, id: u64, urls: &[S]) -> Result<(), UrlError> {
        let urls = parse_urls(urls)?;
        if id == self.local() {
            return Ok(());
        }
        let (known, remote) = {
            let mut state = self.write();
            let remote = state.remotes.remove(&id);
            let known = state.peers.contains_key(&id) || state.waiting.contains_key(&id);
            match state.host.clone() {
                _ if known || state.stopped => {}
                Some(host) => {
                    let peer = Peer::start(id, urls.clone(), &self.inner.shared, host);
                    state.peers.insert(id, peer);
                }
                None => {
                    state.waiting.insert(id, urls.clone());
                }
            }
            (known, remote)
        };
        drop(remote);
        if !known {
            tracing::info!(peer = %hex(id), ?urls, "added remote peer");
        }
        Ok(())
    }

    /// Notes where somebody who is not a known member can be reached.
    pub fn add_remote<S: AsRef<str>>(&self, id: u64, urls: &[S]) -> Result<(), UrlError> {
        let urls = parse_urls(urls)?;
        let Some(host) = self.host() else { return Ok(()) };
        // Asked before the lock is taken: the host may look at its peers.
        if id == self.local() || host.is_removed(id) {
            return Ok(());
        }
        let mut state = self.write();
        let known = state.peers.contains_key(&id) || state.remotes.contains_key(&id);
        if known || state.stopped || state.remotes.len() >= MAX_REMOTES {
            return Ok(());
        }
        tracing::info!(peer = %hex(id), ?urls, "added new remote peer");
        let link = Link::new(id, urls, self.inner.shared.clone(), host);
        let pipeline = Pipeline::start(&link);
        state.remotes.insert(id, Arc::new(Remote { link, pipeline }));
        Ok(())
    }

    /// A member is reached elsewhere from now on. Connections that work are left alone.
    pub fn update_peer<S: AsRef<str>>(&self, id: u64, urls: &[S]) -> Result<(), UrlError> {
        let urls = parse_urls(urls)?;
        let mut state = self.write();
        if let Some(peer) = state.peers.get(&id) {
            tracing::info!(peer = %hex(id), ?urls, "updated remote peer");
            peer.link.urls.update(urls);
        } else if let Some(waiting) = state.waiting.get_mut(&id) {
            *waiting = urls;
        }
        Ok(())
    }

    /// Ends all connections with a member and forgets it.
    pub fn remove_peer(&self, id: u64) {
        let (peer, remote) = {
            let mut state = self.write();
            state.waiting.remove(&id);
            (state.peers.remove(&id), state.remotes.remove(&id))
        };
        if peer.is_some() {
            tracing::info!(peer = %hex(id), "removed remote peer");
        }
        drop((peer, remote));
    }

    /// Forgets all members: they are added anew after a snapshot is installed.
    pub fn remove_all_peers(&self) {
        let peers = {
            let mut state = self.write();
            state.waiting.clear();
            std::mem::take(&mut state.peers)
        };
        drop(peers);
    }

    /// Sends messages, each to the member that it names. One that can't be queued is dropped and
    /// reported as unreachable; one for nobody or for an unknown member is dropped.
    pub fn send(&self, messages: Vec<Message>) {
        for message in messages {
            let to = message.to();
            if to == 0 {
                continue;
            }
            if let Some(peer) = self.peer(to) {
                peer.send(message);
            } else if let Some(remote) = self.remote(to) {
                remote.send(message);
            } else {
                tracing::debug!(to = %hex(to), "dropped a message to an unknown peer");
            }
        }
    }

    /// Sends MsgSnap with the database that `pinned` holds. [`Host::report_snapshot`] tells how it
    /// ended. A newer snapshot for the same member ends the sending of an older one.
    pub fn send_snapshot(&self, message: Message, pinned: Pinned) {
        let to = message.to();
        let Some(host) = self.host() else { return };
        let report = Report::new(host, to);
        let Some(peer) = self.peer(to) else {
            tracing::warn!(to = %hex(to), "no such peer to send a snapshot to");
            return;
        };
        if peer.link.is_paused() {
            return;
        }
        let sending = snapshot::send(peer.link.clone(), message, pinned, report);
        let task = TaskGuard::spawn(&self.inner.shared.runtime, sending);
        let replaced = peer.lock_snapshot().replace(task);
        drop(replaced);
    }

    /// Since when the member can be reached; `None` when it can't.
    pub fn active_since(&self, id: u64) -> Option<Instant> {
        self.peer(id)?.link.status.active_since()
    }

    /// Whether the member has both of its streams open to us, so that nothing goes by single
    /// requests.
    pub fn is_streaming(&self, id: u64) -> bool {
        self.peer(id).is_some_and(|peer| peer.app.is_attached() && peer.message.is_attached())
    }

    /// How many members can be reached.
    pub fn active_peers(&self) -> usize {
        let state = self.read();
        state.peers.values().filter(|peer| peer.link.status.active_since().is_some()).count()
    }

    /// Drops all messages from and to a member, as if the network were cut, until resumed.
    pub fn pause(&self, id: u64) {
        self.set_paused(id, true);
    }

    /// Ends [`Peers::pause`].
    pub fn resume(&self, id: u64) {
        self.set_paused(id, false);
    }

    fn set_paused(&self, id: u64, paused: bool) {
        if let Some(peer) = self.peer(id) {
            peer.link.set_paused(paused);
        }
    }

    /// The counters.
    pub fn metrics(&self) -> Arc<Metrics> {
        self.inner.shared.metrics.clone()
    }

    /// What answers requests on the peer port.
    pub fn service(&self) -> PeerService {
        PeerService::new(self.clone())
    }

    /// A client for single requests to peers; it shares connections with these peers.
    pub fn client(&self) -> Client {
        Client::over(self.inner.shared.http.clone())
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn host(&self) -> Option<Arc<dyn Host>> {
        self.read().host.clone()
    }

    pub(crate) fn peer(&self, id: u64) -> Option<Arc<Peer>> {
        self.read().peers.get(&id).cloned()
    }

    fn remote(&self, id: u64) -> Option<Arc<Remote>> {
        self.read().remotes.get(&id).cloned()
    }

    fn local(&self) -> u64 {
        self.inner.shared.identity.local
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.inner.state.read().expect("no code panics while it holds the peers")
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State> {
        self.inner.state.write().expect("no code panics while it holds the peers")
    }
}

impl Peer {
    fn start(id: u64, urls: Vec<PeerUrl>, shared: &Arc<Shared>, host: Arc<dyn Host>) -> Arc<Self> {
        let link = Link::new(id, urls, shared.clone(), host);
        let spawn = |kind| TaskGuard::spawn(&shared.runtime, inlet::run(link.clone(), kind));
        let tasks = [
            spawn(StreamKind::MsgApp),
            spawn(StreamKind::Message),
            TaskGuard::spawn(&shared.runtime, probe::run(link.clone())),
        ];
        Arc::new(Peer {
            app: Outlet::new(StreamKind::MsgApp),
            message: Outlet::new(StreamKind::Message),
            pipeline: Pipeline::start(&link),
            snapshot: Mutex::new(None),
            link,
            _tasks: tasks,
        })
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn outlet(&self, kind: StreamKind) -> &Outlet {
        match kind {
            StreamKind::MsgApp => &self.app,
            StreamKind::Message => &self.message,
        }
    }

    /// MsgApp goes by its own stream if that is open, everything by the message stream, and by
    /// single requests when there is no stream. A full queue is not a reason to go another way.
    fn send(&self, message: Message) {
        if self.link.is_paused() || !fit(&self.link, &message) {
            return;
        }
        let mut message = Box::new(message);
        if message.r#type() == MessageType::MsgApp {
            match self.app.try_send(message) {
                Ok(()) => return,
                Err(TrySendError::Full(message)) => return dropped(&self.link, &message),
                Err(TrySendError::Closed(back)) => message = back,
            }
        }
        match self.message.try_send(message) {
            Ok(()) => return,
            Err(TrySendError::Full(message)) => return dropped(&self.link, &message),
            Err(TrySendError::Closed(back)) => message = back,
        }
        if let Err(message) = self.pipeline.try_send(message) {
            dropped(&self.link, &message);
        }
    }

    fn lock_snapshot(&self) -> std::sync::MutexGuard<'_, Option<TaskGuard>> {
        self.snapshot.lock().expect("no code panics while it holds a snapshot task")
    }
}

impl Drop for Peer {
    /// The tasks end a little later; what they still do must not count.
    fn drop(&mut self) {
        self.link.set_paused(true);
        self.link.status.close();
    }
}

impl Remote {
    fn send(&self, message: Message) {
        if !fit(&self.link, &message) {
            return;
        }
        if let Err(message) = self.pipeline.try_send(Box::new(message)) {
            dropped(&self.link, &message);
        }
    }
}

/// Nothing unfit leaves this member, whatever raft says: real members may not survive it.
fn fit(link: &Link, message: &Message) -> bool {
    let unfit = if message.r#type() == MessageType::MsgSnap {
        link.host.report_snapshot(link.id, false);
        "a snapshot needs its database: send_snapshot".to_owned()
    } else {
        match check_outgoing(message, link.id) {
            Ok(()) => return true,
            Err(error) => error.to_string(),
        }
    };
    tracing::error!(peer = %hex(link.id), error = unfit, "did not send an unfit raft message");
    false
}

fn dropped(link: &Link, message: &Message) {
    tracing::debug!(
        peer = %hex(link.id), kind = message.r#type().as_str_name(),
        "dropped a raft message since the sending queue is full",
    );
    link.lost();
}
