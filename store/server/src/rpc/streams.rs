//! Open streams, and other calls that may wait without end: who they are and how they are told to
//! stop.
//!
//! Input: calls that begin and end, the loss of the leader, the end of service. Output: one status
//! for each call that has to end.
//! **Invariant:** after [`Streams::close`] no call is open that was not told to end.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::status::Status;
use crate::error::Error;
use crate::leadership::Leadership;

struct Open {
    needs_leader: bool,
    end: oneshot::Sender<Status>,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Open>,
    last: u64,
    closed: bool,
}

/// All open streams of a member.
#[derive(Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
}

impl Streams {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one insert or remove, so the state is whole after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream in. With `needs_leader` it ends when there is no leader for long.
    pub(crate) fn open(self: &Arc<Self>, needs_leader: bool) -> Result<Ticket, Status> {
        let (end, ended) = oneshot::channel();
        let mut state = self.state();
        if state.closed {
            return Err(Error::Stopped.into());
        }
        state.last += 1;
        let id = state.last;
        state.open.insert(id, Open { needs_leader, end });
        drop(state);
        Ok(Ticket { streams: self.clone(), id, ended })
    }

    /// How many streams and waiting calls are open.
    pub(crate) fn count(&self) -> usize {
        self.state().open.len()
    }

    fn end(&self, id: u64, status: Status) {
        let open = self.state().open.remove(&id);
        if let Some(open) = open {
            // The stream may have ended in this moment.
            let _ = open.end.send(status);
        }
    }

    /// Ends every stream that needs a leader.
    pub(crate) fn end_leaderless(&self) {
        let mut state = self.state();
        let ended: Vec<Open> =
            state.open.extract_if(|_, open| open.needs_leader).map(|(_, open)| open).collect();
        drop(state);
        for open in ended {
            let _ = open.end.send(Error::NoLeader.into());
        }
    }

    /// Ends every stream and lets no new one in.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let ended = std::mem::take(&mut state.open);
        drop(state);
        for open in ended.into_values() {
            let _ = open.end.send(Error::Stopped.into());
        }
    }
}

/// A stream's place among the open ones. Dropping it gives the place up.
pub(crate) struct Ticket {
    streams: Arc<Streams>,
    id: u64,
    ended: oneshot::Receiver<Status>,
}

impl Ticket {
    /// Ready when the stream has to end.
    pub(crate) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        match Pin::new(&mut self.ended).poll(context) {
            Poll::Ready(Ok(status)) => Poll::Ready(status),
            // Whoever takes the sender out sends.
            Poll::Ready(Err(_)) => Poll::Ready(Error::Stopped.into()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Resolves when the call has to end.
    pub(crate) async fn ended(&mut self) -> Status {
        std::future::poll_fn(|context| self.poll_ended(context)).await
    }

    /// A way to end this stream from elsewhere.
    pub(crate) fn ender(&self) -> Ender {
        Ender { streams: self.streams.clone(), id: self.id }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.streams.state().open.remove(&self.id);
    }
}

/// Ends one stream.
pub(crate) struct Ender {
    streams: Arc<Streams>,
    id: u64,
}

impl Ender {
    pub(crate) fn end(&self, status: Status) {
        self.streams.end(self.id, status);
    }
}

/// Ends the streams that need a leader when there was none for `patience`, again and again. New
/// ones are refused at once; those that are open cost more to come back, so they get more time.
pub(crate) async fn watch_leader(
    streams: Arc<Streams>,
    mut leadership: watch::Receiver<Leadership>,
    patience: Duration,
) {
    while leadership.wait_for(|state| state.leader.is_none()).await.is_ok() {
        let found = leadership.wait_for(|state| state.leader.is_some());
        match tokio::time::timeout(patience, found).await {
            Ok(Ok(_)) => continue,
            Ok(Err(_)) => return,
            Err(_) => streams.end_leaderless(),
        }
        if leadership.wait_for(|state| state.leader.is_some()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn state(leader: Option<u64>) -> Leadership {
        Leadership {
            leader,
            is_local: false,
            term: 1,
            lost_since: leader.is_none().then(Instant::now),
            changes: 0,
            elected_at: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_long_loss_of_the_leader_ends_streams_and_only_those_that_need_one() {
        let streams = Arc::new(Streams::default());
        let sender = watch::Sender::new(state(Some(1)));
        let patience = Duration::from_secs(3);
        tokio::spawn(watch_leader(streams.clone(), sender.subscribe(), patience));
        let mut needs = streams.open(true).unwrap();
        let mut free = streams.open(false).unwrap();
        sender.send_replace(state(None));
        tokio::time::sleep(patience / 2).await;
        sender.send_replace(state(Some(2)));
        tokio::time::sleep(patience * 2).await;
        sender.send_replace(state(None));
        let lost = tokio::time::Instant::now();
        assert_eq!(needs.ended().await, Status::from(Error::NoLeader));
        assert!(lost.elapsed() >= patience);
        assert!(tokio::time::timeout(patience, free.ended()).await.is_err());
    }

    #[tokio::test]
    async fn closing_ends_all_and_lets_nobody_in() {
        let streams = Arc::new(Streams::default());
        drop(streams.open(false).unwrap());
        assert!(streams.state().open.is_empty());
        let mut one = streams.open(false).unwrap();
        assert_eq!(streams.count(), 1);
        let mut other = streams.open(true).unwrap();
        other.ender().end(Status::canceled());
        streams.close();
        assert_eq!(one.ended().await, Status::from(Error::Stopped));
        assert_eq!(other.ended().await, Status::canceled());
        assert!(streams.open(false).is_err());
    }
}
