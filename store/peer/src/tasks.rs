//! Background tasks that end with whoever owns them.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Ends its task when dropped.
#[derive(Debug)]
pub(crate) struct TaskGuard(AbortHandle);

impl TaskGuard {
    pub(crate) fn spawn(
        runtime: &Handle,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> TaskGuard {
        TaskGuard(runtime.spawn(task).abort_handle())
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
