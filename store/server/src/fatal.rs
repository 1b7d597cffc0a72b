//! How a member ends: by request, by removal, or because something that must hold does not.
//!
//! Input are reports from every thread of the member; output is one state that is set once and
//! never taken back, and one call of the hook that the embedding program gave.
//! **Invariant:** after the first fatal report nothing is acknowledged any more: waiters are told
//! that the server stopped, and the apply thread does not continue.

use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

/// Why a member stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// It was asked to.
    Shutdown,
    /// The cluster removed it. Its data is of no use to this cluster any more.
    Removed,
    /// A write or fsync failed, or an invariant is broken; the text names it.
    Fatal(String),
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shutdown => f.write_str("shut down"),
            Self::Removed => {
                f.write_str("the member has been permanently removed from the cluster")
            }
            Self::Fatal(message) => f.write_str(message),
        }
    }
}

/// Called once when the member cannot go on. A server ends its process here; an embedding program
/// may do with the text what it wants, the store stays in its error state.
pub type FatalHook = Arc<dyn Fn(&str) + Send + Sync>;

/// The one place where a member's end is recorded.
pub(crate) struct StopState {
    hook: FatalHook,
    reason: OnceLock<StopReason>,
    seen: watch::Sender<bool>,
}

impl StopState {
    pub(crate) fn new(hook: FatalHook) -> Self {
        Self { hook, reason: OnceLock::new(), seen: watch::Sender::new(false) }
    }

    /// Records the reason if none was recorded before.
    pub(crate) fn stop(&self, reason: StopReason) {
        let fatal = match &reason {
            StopReason::Fatal(message) => Some(message.clone()),
            _ => None,
        };
        if self.reason.set(reason).is_ok() {
            self.seen.send_replace(true);
            if let Some(message) = fatal {
                tracing::error!(reason = %message, "fatal error; the member stops");
                (self.hook)(&message);
            }
        }
    }

    pub(crate) fn fatal(&self, message: impl Into<String>) {
        self.stop(StopReason::Fatal(message.into()));
    }

    pub(crate) fn reason(&self) -> Option<&StopReason> {
        self.reason.get()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.reason.get().is_some()
    }

    /// Resolves when the member has a reason to stop.
    pub(crate) async fn stopped(&self) -> StopReason {
        let mut seen = self.seen.subscribe();
        // The sender lives as long as `self`.
        let _ = seen.wait_for(|seen| *seen).await;
        self.reason.get().cloned().unwrap_or(StopReason::Shutdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[tokio::test]
    async fn the_first_reason_stays_and_the_hook_is_called_once() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let state = StopState::new(Arc::new(move |m| seen.lock().unwrap().push(m.to_owned())));
        assert!(!state.is_stopped());
        state.fatal("fsync failed");
        state.fatal("something later");
        state.stop(StopReason::Shutdown);
        assert_eq!(state.stopped().await, StopReason::Fatal("fsync failed".into()));
        assert_eq!(*calls.lock().unwrap(), ["fsync failed"]);
    }
}
