//! One stream that a peer reads from us: it dials, we write.
//!
//! Input: messages from raft, through a bounded queue that exists while the peer is connected.
//! Output: frames in the body of the peer's request. A new request of the same peer replaces the
//! one before.
//!
//! **Invariant:** queue and encoder live as long as one connection. What was queued for a
//! connection that ended is dropped and reported as unreachable, so raft sends it anew.

use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use mainstay_proto::raftpb::Message;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::body::PeerBody;
use crate::codec::{Encoder, StreamKind};
use crate::headers::hex;
use crate::link::Link;
use crate::tasks::TaskGuard;

/// Messages that wait for one stream.
const QUEUE: usize = 4096;
/// Messages are put together up to this many bytes.
const BATCH: usize = 256 << 10;
/// Bytes handed to the connection at once; each such piece has the whole write time for itself.
const PIECE: usize = 64 << 10;

pub(crate) struct Outlet {
    kind: StreamKind,
    writer: Mutex<Option<Writer>>,
}

struct Writer {
    queue: mpsc::Sender<Box<Message>>,
    _task: TaskGuard,
}

impl Outlet {
    pub(crate) fn new(kind: StreamKind) -> Self {
        Outlet { kind, writer: Mutex::new(None) }
    }

    /// Queues a message. `Closed` gives it back when no peer is connected.
    pub(crate) fn try_send(&self, message: Box<Message>) -> Result<(), TrySendError<Box<Message>>> {
        let mut slot = self.lock();
        let Some(writer) = slot.as_ref() else { return Err(TrySendError::Closed(message)) };
        let result = writer.queue.try_send(message);
        if let Err(TrySendError::Closed(_)) = result {
            *slot = None;
        }
        result
    }

    /// Starts writing to a peer that has just asked for the stream; gives the body of the answer.
    pub(crate) fn attach(&self, link: &Arc<Link>) -> PeerBody {
        let (queue, messages) = mpsc::channel(QUEUE);
        let (pieces, body) = mpsc::channel(1);
        let task = write(link.clone(), self.kind, messages, pieces);
        let task = TaskGuard::spawn(&link.shared.runtime, task);
        link.status.activate();
        tracing::info!(
            peer = %hex(link.id), stream = self.kind.name(),
            "established TCP streaming connection with remote peer",
        );
        let replaced = self.lock().replace(Writer { queue, _task: task });
        if replaced.is_some_and(|old| old.queue.capacity() < QUEUE && !old.queue.is_closed()) {
            link.lost();
        }
        PeerBody::channel(body)
    }

    /// Whether a peer is connected.
    pub(crate) fn is_attached(&self) -> bool {
        self.lock().as_ref().is_some_and(|writer| !writer.queue.is_closed())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Writer>> {
        self.writer.lock().expect("no code panics while it holds a stream writer")
    }
}

async fn write(
    link: Arc<Link>,
    kind: StreamKind,
    mut messages: mpsc::Receiver<Box<Message>>,
    pieces: mpsc::Sender<Bytes>,
) {
    let reason = pump(&link, kind, &mut messages, &pieces).await;
    messages.close();
    link.status.deactivate(kind.name(), &reason);
    tracing::warn!(
        peer = %hex(link.id), stream = kind.name(), %reason,
        "lost TCP streaming connection with remote peer",
    );
    link.lost();
}

/// Writes until it cannot go on; gives the reason.
async fn pump(
    link: &Link,
    kind: StreamKind,
    messages: &mut mpsc::Receiver<Box<Message>>,
    pieces: &mpsc::Sender<Bytes>,
) -> String {
    let mut encoder = Encoder::new(kind, link.shared.identity.local, link.id);
    #[cfg(debug_assertions)]
    let mut mirror = mirror::Mirror::new(kind, link.shared.identity.local, link.id);
    let mut heartbeat = interval(link.shared.timing.heartbeat);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat.reset();
    let mut buffer = BytesMut::new();
    loop {
        tokio::select! {
            _ = pieces.closed() => return "closed by the peer".to_owned(),
            _ = heartbeat.tick() => {
                encoder.heartbeat(&mut buffer);
                #[cfg(debug_assertions)]
                mirror.check(None, &buffer[..]);
            }
            message = messages.recv() => {
                let Some(first) = message else { return "replaced by a new connection".to_owned() };
                let mut next = Some(first);
                while let Some(message) = next.take() {
                    #[cfg(debug_assertions)]
                    let start = buffer.len();
                    encoder.encode(&message, &mut buffer);
                    #[cfg(debug_assertions)]
                    mirror.check(Some(&message), &buffer[start..]);
                    if buffer.len() < BATCH {
                        next = messages.try_recv().ok();
                    }
                }
            }
        }
        while !buffer.is_empty() {
            let piece = buffer.split_to(buffer.len().min(PIECE)).freeze();
            let len = piece.len() as u64;
            match timeout(link.shared.timing.write, pieces.send(piece)).await {
                Ok(Ok(())) => link.metrics.sent_bytes.add(len),
                Ok(Err(_)) => return "closed by the peer".to_owned(),
                Err(_) => {
                    return format!("the peer took no bytes for {:?}", link.shared.timing.write);
                }
            }
        }
    }
}

/// Debug builds read back all that they write: a frame that a real member cannot read ends that
/// member's process, so it must never get as far as the socket.
#[cfg(debug_assertions)]
mod mirror {
    use bytes::BytesMut;
    use mainstay_proto::raftpb::Message;

    use crate::codec::{Decoder, Frame, StreamKind, is_link_heartbeat};

    pub(super) struct Mirror(Decoder);

    impl Mirror {
        pub(super) fn new(kind: StreamKind, local: u64, remote: u64) -> Self {
            Mirror(Decoder::new(kind, remote, local))
        }

        pub(super) fn check(&mut self, sent: Option<&Message>, bytes: &[u8]) {
            let mut bytes = BytesMut::from(bytes);
            let frame = self.0.decode(&mut bytes).expect("what was written can be read");
            assert!(bytes.is_empty(), "one message is one frame");
            match (sent, frame.expect("the frame is whole")) {
                (None, Frame::Heartbeat) => {}
                (Some(sent), Frame::Message(read)) => {
                    assert!(!is_link_heartbeat(sent));
                    assert_eq!(explicit(sent), explicit(&read));
                }
                (sent, read) => panic!("wrote {sent:?}, read {read:?}"),
            }
        }
    }

    /// Absent and zero mean the same to raft; the short form makes zeros explicit.
    fn explicit(message: &Message) -> Message {
        Message {
            term: Some(message.term()),
            log_term: Some(message.log_term()),
            index: Some(message.index()),
            commit: Some(message.commit()),
            reject: Some(message.reject()),
            reject_hint: Some(message.reject_hint()),
            vote: Some(message.vote()),
            context: Some(message.context().to_vec().into()),
            ..message.clone()
        }
    }
}
