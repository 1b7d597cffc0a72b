//! A member without a store: it notes what reaches it, and answers as it is told.

use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mainstay_peer::{
    AppliedVersions, Config, HashKv, Host, IncomingSnapshot, LeaseError, LeaseTimeToLive,
    MemberInfo, Peers, Pinned, PlainDialer, ProcessError, PromoteError, SnapshotBody, StageError,
    Timing, Version, parse_urls,
};
use mainstay_proto::raftpb::{ConfState, Entry, Message, MessageType, Snapshot, SnapshotMetadata};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub(crate) const CLUSTER: u64 = 0xc1;
/// Longer than anything takes on a busy machine; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What reached the member.
#[derive(Debug, PartialEq)]
pub(crate) enum Event {
    Message(Box<Message>),
    Unreachable(u64),
    SnapshotSent { to: u64, delivered: bool },
    Removed { told_by: u64 },
    Staged { message: Box<Message>, announced: Option<u64>, bytes: Bytes },
    StageFailed,
}

/// What the member answers.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) removed: HashSet<u64>,
    pub(crate) busy: bool,
    pub(crate) never_applied: bool,
    pub(crate) members: Vec<MemberInfo>,
    pub(crate) versions: AppliedVersions,
    pub(crate) refuse_snapshots: bool,
    pub(crate) lease: Option<Result<i64, LeaseError>>,
    pub(crate) lease_keys: Vec<Bytes>,
    pub(crate) promote: Option<PromoteError>,
    pub(crate) token: Option<String>,
    pub(crate) hash: Option<Result<HashKv, String>>,
    pub(crate) downgrade: Option<Result<bool, String>>,
    /// Announced length, if it is to differ from the real one.
    pub(crate) announce: Option<u64>,
}

pub(crate) struct FakeHost {
    pub(crate) script: Mutex<Script>,
    events: mpsc::UnboundedSender<Event>,
}

impl FakeHost {
    pub(crate) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<Event>) {
        let (events, seen) = mpsc::unbounded_channel();
        (Arc::new(FakeHost { script: Mutex::default(), events }), seen)
    }

    pub(crate) fn script(&self) -> std::sync::MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    fn note(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// The pinned state of the fake member: the bytes themselves, in pieces.
pub(crate) type Pieces = Vec<Bytes>;

impl Host for FakeHost {
    fn process(&self, message: Message) -> Result<(), ProcessError> {
        if self.script().busy {
            return Err(ProcessError::Busy);
        }
        self.note(Event::Message(Box::new(message)));
        Ok(())
    }

    fn is_removed(&self, id: u64) -> bool {
        self.script().removed.contains(&id)
    }

    fn report_unreachable(&self, id: u64) {
        self.note(Event::Unreachable(id));
    }

    fn report_snapshot(&self, id: u64, delivered: bool) {
        self.note(Event::SnapshotSent { to: id, delivered });
    }

    fn removed_from_cluster(&self, told_by: u64) {
        self.note(Event::Removed { told_by });
    }

    fn snapshot_body(
        &self,
        _message: &Message,
        pinned: Pinned,
    ) -> BoxFuture<'static, io::Result<SnapshotBody>> {
        let pieces = pinned.downcast::<Pieces>().unwrap();
        let real = pieces.iter().map(|piece| piece.len() as u64).sum();
        let len = self.script().announce.unwrap_or(real);
        let pieces: Vec<_> = pieces.iter().cloned().map(Ok).collect();
        let chunks = futures_util::stream::iter(pieces).boxed();
        async move { Ok(SnapshotBody { len, chunks }) }.boxed()
    }

    fn stage_snapshot(
        &self,
        message: Message,
        mut body: IncomingSnapshot,
    ) -> BoxFuture<'static, Result<(), StageError>> {
        let refuse = self.script().refuse_snapshots;
        let events = self.events.clone();
        async move {
            let mut bytes = Vec::new();
            while let Some(chunk) = body.chunks.next().await {
                match chunk {
                    Ok(chunk) => bytes.extend_from_slice(&chunk),
                    Err(error) => {
                        let _ = events.send(Event::StageFailed);
                        return Err(StageError::Save(error.to_string()));
                    }
                }
            }
            if refuse {
                let _ = events.send(Event::StageFailed);
                return Err(StageError::Save("disk is full".to_owned()));
            }
            let message = Box::new(message);
            let bytes = bytes.into();
            let _ = events.send(Event::Staged { message, announced: body.len, bytes });
            Ok(())
        }
        .boxed()
    }

    fn members(&self) -> Vec<MemberInfo> {
        self.script().members.clone()
    }

    fn versions(&self) -> AppliedVersions {
        self.script().versions.clone()
    }

    fn wait_applied(&self) -> BoxFuture<'static, ()> {
        if self.script().never_applied {
            std::future::pending().boxed()
        } else {
            std::future::ready(()).boxed()
        }
    }

    fn lease_renew(&self, _id: i64) -> BoxFuture<'static, Result<i64, LeaseError>> {
        let answer = self.script().lease.clone().unwrap_or(Err(LeaseError::NotFound));
        std::future::ready(answer).boxed()
    }

    fn lease_time_to_live(
        &self,
        _id: i64,
        keys: bool,
    ) -> BoxFuture<'static, Result<LeaseTimeToLive, LeaseError>> {
        let script = self.script();
        let answer = script.lease.clone().unwrap_or(Err(LeaseError::NotFound));
        let keys = if keys { script.lease_keys.clone() } else { Vec::new() };
        let answer = answer.map(|ttl| LeaseTimeToLive { ttl, granted_ttl: ttl + 1, keys });
        std::future::ready(answer).boxed()
    }

    fn promote(
        &self,
        _id: u64,
        token: Option<String>,
    ) -> BoxFuture<'static, Result<Vec<MemberInfo>, PromoteError>> {
        let mut script = self.script();
        script.token = token;
        let answer = match script.promote.clone() {
            Some(error) => Err(error),
            None => Ok(script.members.clone()),
        };
        std::future::ready(answer).boxed()
    }

    fn hash_kv(&self, _revision: i64) -> BoxFuture<'static, Result<HashKv, String>> {
        let answer = self.script().hash.clone().unwrap_or_else(|| Ok(HashKv::default()));
        std::future::ready(answer).boxed()
    }

    fn downgrade_enabled(&self) -> BoxFuture<'static, Result<bool, String>> {
        let answer = self.script().downgrade.clone().unwrap_or(Ok(false));
        std::future::ready(answer).boxed()
    }
}

/// Times that fit a test: long enough for a busy machine, short enough to wait for.
pub(crate) fn timing() -> Timing {
    Timing {
        redial: Duration::from_millis(20),
        heartbeat: Duration::from_millis(200),
        read: Duration::from_secs(2),
        write: Duration::from_secs(1),
        probe: Duration::from_millis(100),
        lease_wait: Duration::from_millis(200),
        ..Timing::default()
    }
}

/// A member with a peer port.
pub(crate) struct Node {
    pub(crate) id: u64,
    pub(crate) peers: Peers,
    pub(crate) host: Arc<FakeHost>,
    pub(crate) events: mpsc::UnboundedReceiver<Event>,
    pub(crate) address: SocketAddr,
    server: Option<JoinSet<()>>,
}

impl Node {
    pub(crate) async fn start(id: u64) -> Node {
        Node::start_with(id, CLUSTER, timing()).await
    }

    pub(crate) async fn start_with(id: u64, cluster: u64, timing: Timing) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Node::start_on(listener, id, cluster, timing)
    }

    pub(crate) fn start_on(listener: TcpListener, id: u64, cluster: u64, timing: Timing) -> Node {
        let address = listener.local_addr().unwrap();
        let config = Config {
            local: id,
            cluster,
            version: Version::new(3, 7, 3),
            peer_urls: parse_urls(&[format!("http://{address}")]).unwrap(),
            dialer: Arc::new(PlainDialer),
            timing,
        };
        let peers = Peers::new(config, Handle::current());
        let (host, events) = FakeHost::new();
        peers.start(host.clone());
        let server = Some(serve(listener, peers.clone()));
        Node { id, peers, host, events, address, server }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn knows(&self, other: &Node) {
        self.peers.add_peer(other.id, &[other.url()]).unwrap();
    }

    /// Closes the port and all its connections.
    pub(crate) async fn stop_serving(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.shutdown().await;
        }
    }

    /// Opens the port again, where it was.
    pub(crate) async fn serve_again(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.server = Some(serve(listener, self.peers.clone()));
    }

    /// The next event that `pick` wants; others are skipped.
    pub(crate) async fn next<T>(&mut self, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        let wait = async {
            loop {
                if let Some(found) = pick(self.events.recv().await.unwrap()) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the event comes")
    }

    pub(crate) async fn next_message(&mut self) -> Message {
        self.next(|event| match event {
            Event::Message(message) => Some(*message),
            _ => None,
        })
        .await
    }
}

fn serve(listener: TcpListener, peers: Peers) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            stream.set_nodelay(true).unwrap();
            let service = peers.service();
            connections.spawn(async move {
                let answer = service_fn(|request| {
                    let service = service.clone();
                    async move { Ok::<_, Infallible>(service.call(request).await) }
                });
                let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                let _ = serving.await;
            });
        }
    });
    tasks
}

/// Waits for something that has no event.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Two members with all four streams between them.
pub(crate) async fn pair() -> (Node, Node) {
    let (a, b) = (Node::start(0xa).await, Node::start(0xb).await);
    a.knows(&b);
    b.knows(&a);
    connected(&a, &b).await;
    (a, b)
}

pub(crate) async fn connected(a: &Node, b: &Node) {
    until("streams are open", || a.peers.is_streaming(b.id) && b.peers.is_streaming(a.id)).await;
}

pub(crate) fn message(kind: MessageType, from: u64, to: u64) -> Message {
    Message {
        r#type: Some(kind as i32),
        from: Some(from),
        to: Some(to),
        term: Some(3),
        ..Message::default()
    }
}

/// The append that carries entry `index` of term 3.
pub(crate) fn append(from: u64, to: u64, index: u64, data: Bytes) -> Message {
    Message {
        log_term: Some(3),
        index: Some(index - 1),
        commit: Some(index - 1),
        entries: vec![Entry {
            r#type: Some(0),
            term: Some(3),
            index: Some(index),
            data: Some(data),
        }],
        ..message(MessageType::MsgApp, from, to)
    }
}

pub(crate) fn snapshot_message(from: u64, to: u64, index: u64) -> Message {
    let conf_state = ConfState { voters: vec![from, to], ..ConfState::default() };
    let metadata =
        SnapshotMetadata { conf_state: Some(conf_state), index: Some(index), term: Some(3) };
    Message {
        snapshot: Some(Snapshot { data: None, metadata: Some(metadata) }),
        ..message(MessageType::MsgSnap, from, to)
    }
}
