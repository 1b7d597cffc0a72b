//! What can go wrong below the state machine. None of these is an answer to a client: whoever gets
//! one while it applies entries ends the process.

use std::path::PathBuf;

/// Result of an engine call.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;

/// A failure of the engine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// A write, a flush or a background job failed; what is in memory may never reach the disk.
    /// The only way out is to end the process and to replay the log.
    #[error("engine failed and takes no more work: {0}")]
    Poisoned(String),
    /// Bytes on disk are not what was written.
    #[error("engine data is damaged: {0}")]
    Corrupt(String),
    /// Another process (or another engine of this process) has the directory.
    #[error("engine directory {path} is in use by another process")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be opened, created or removed.
    #[error("engine directory {path}: {reason}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was found there.
        reason: String,
    },
    /// The engine was closed, or opened for reading only and asked to write.
    #[error("engine is {0}")]
    Refused(&'static str),
}
