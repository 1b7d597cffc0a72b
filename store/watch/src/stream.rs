//! One client's stream, as its RPC sees it: requests go in, frames come out.
//!
//! Input: requests from the client's task, frames from the hub's thread. Output: the same frames
//! to the task that writes them, and feedback to the hub about what was written.
//! **Invariant:** a frame counts as queued until the next one is asked for after it, so what is
//! being written is part of the bound.
//! **Invariant:** at most `open_requests` requests wait for their answer to be read; a client
//! that does not read its answers cannot fill the queue with them.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use crate::{
    encode::Frame,
    hub::{Drained, StreamId},
    inbox::{Inbox, Message, lock},
    request::CreateRequest,
};

/// Frames that are moved to the reader at a time; the rest stays, so that the hub can refill
/// while these are written.
const CHUNK: usize = 128;

#[derive(Default)]
struct QueueState {
    frames: VecDeque<Frame>,
    /// Taken since the hub last heard of it.
    taken: Drained,
    /// The hub wants to hear of it at once.
    waits_for_room: bool,
    closed: bool,
    reader: Option<Waker>,
    open_requests: usize,
    writer: Option<Waker>,
}

/// What the hub's thread and the stream share.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
}

impl Queue {
    /// Appends frames; gives what was taken since the last time.
    pub(crate) fn extend(&self, frames: Vec<Frame>, waits_for_room: bool) -> Drained {
        let mut state = lock(&self.state);
        state.frames.extend(frames);
        let taken = std::mem::take(&mut state.taken);
        // Stays set until the hub says otherwise: one report may not make room enough.
        state.waits_for_room = waits_for_room;
        let reader = if state.frames.is_empty() { None } else { state.reader.take() };
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        taken
    }

    /// A request was dealt with and has no answer.
    pub(crate) fn release_request(&self) {
        let mut state = lock(&self.state);
        state.open_requests = state.open_requests.saturating_sub(1);
        let writer = state.writer.take();
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    /// Ends the stream after what is queued.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// The stream was closed, or the hub has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the watch stream is closed")]
pub struct StreamClosed;

/// The requesting side of a stream. Dropping it leaves the watchers as they are.
pub struct WatchRequests {
    id: StreamId,
    inbox: Arc<Inbox>,
    queue: Arc<Queue>,
}

impl WatchRequests {
    pub(crate) fn new(id: StreamId, inbox: Arc<Inbox>, queue: Arc<Queue>) -> Self {
        Self { id, inbox, queue }
    }

    /// Waits until few enough requests are open.
    async fn send(&mut self, message: Message) -> Result<(), StreamClosed> {
        poll_fn(|context| {
            let mut state = lock(&self.queue.state);
            if state.closed {
                return Poll::Ready(Err(StreamClosed));
            }
            if state.open_requests < self.inbox.open_requests {
                state.open_requests += 1;
                return Poll::Ready(Ok(()));
            }
            state.writer = Some(context.waker().clone());
            Poll::Pending
        })
        .await?;
        self.inbox.push(message).map_err(|_| StreamClosed)
    }

    /// Creates a watcher; the answer comes on the stream.
    pub async fn create(&mut self, request: CreateRequest) -> Result<(), StreamClosed> {
        self.send(Message::Create(self.id, request)).await
    }

    /// Answers a create request with a refusal, for example for want of permission.
    pub async fn refuse(&mut self, reason: String) -> Result<(), StreamClosed> {
        self.send(Message::Refuse(self.id, reason)).await
    }

    /// Cancels a watcher. There is no answer if there is no such watcher.
    pub async fn cancel(&mut self, watch_id: i64) -> Result<(), StreamClosed> {
        self.send(Message::Cancel(self.id, watch_id)).await
    }

    /// Asks for the revision up to which everything was told. There is no answer if a watcher of
    /// the stream is not there yet.
    pub async fn progress(&mut self) -> Result<(), StreamClosed> {
        self.send(Message::Progress(self.id)).await
    }

    /// Drops all watchers; the responses end after what is queued.
    pub fn close(self) {
        // If the hub has stopped, the stream has ended anyway.
        let _ = self.inbox.push(Message::Close(self.id));
    }
}

/// The responding side of a stream. Dropping it closes the stream.
pub struct WatchResponses {
    id: StreamId,
    inbox: Arc<Inbox>,
    queue: Arc<Queue>,
    /// Moved here from the queue, and what these came to.
    chunk: VecDeque<Frame>,
    moved: Drained,
}

impl WatchResponses {
    pub(crate) fn new(id: StreamId, inbox: Arc<Inbox>, queue: Arc<Queue>) -> Self {
        Self { id, inbox, queue, chunk: VecDeque::new(), moved: Drained::default() }
    }

    /// The next frame; `None` when the stream has ended.
    pub async fn recv(&mut self) -> Option<Frame> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// The next frame, for use in a `Stream`.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        if let Some(frame) = self.chunk.pop_front() {
            return Poll::Ready(Some(frame));
        }
        let mut state = lock(&self.queue.state);
        let moved = std::mem::take(&mut self.moved);
        state.taken.merge(moved);
        let (waits, idle) = (state.waits_for_room, state.frames.is_empty());
        let mut report = Drained::default();
        if waits || idle {
            report = std::mem::take(&mut state.taken);
        }
        let some = state.frames.len().min(CHUNK);
        self.chunk.extend(state.frames.drain(..some));
        let mut writer = None;
        for frame in &self.chunk {
            self.moved.add(frame);
            if frame.answer {
                state.open_requests = state.open_requests.saturating_sub(1);
                writer = writer.or(state.writer.take());
            }
        }
        let next = match self.chunk.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None if state.closed => Poll::Ready(None),
            None => {
                state.reader = Some(context.waker().clone());
                Poll::Pending
            }
        };
        drop(state);
        if let Some(writer) = writer {
            writer.wake();
        }
        if waits && !report.is_empty() {
            // If the hub has stopped, nobody counts any more.
            let _ = self.inbox.push(Message::Drained(self.id, report));
        } else if !report.is_empty() {
            self.inbox.push_later(Message::Drained(self.id, report));
        }
        next
    }
}

impl Drop for WatchResponses {
    fn drop(&mut self) {
        self.queue.close();
        // If the hub has stopped, it has forgotten the stream already.
        let _ = self.inbox.push(Message::Close(self.id));
    }
}
