//! Carries raft-rs's log lines into `tracing`.
//!
//! **Invariant:** nothing below "info" comes through: raft-rs prints whole messages there, and with
//! them what users store.

use std::fmt::Write as _;

use slog::{Drain, KV, Level, Logger, Never, OwnedKVList, Record, o};

struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        let level = record.level();
        if !level.is_at_least(Level::Info) {
            return Ok(());
        }
        let mut line = Line(record.msg().to_string());
        // Writing to a String does not fail.
        let _ = record.kv().serialize(record, &mut line);
        let _ = values.serialize(record, &mut line);
        match level {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{}", line.0),
            Level::Warning => tracing::warn!(target: "raft", "{}", line.0),
            _ => tracing::info!(target: "raft", "{}", line.0),
        }
        Ok(())
    }
}

struct Line(String);

impl slog::Serializer for Line {
    fn emit_arguments(&mut self, key: slog::Key, value: &std::fmt::Arguments<'_>) -> slog::Result {
        // Ids are read in hexadecimal everywhere else, but raft-rs hands them over as text.
        write!(self.0, " {key}={value}").map_err(|_| slog::Error::Other)
    }
}

/// A logger for raft-rs.
pub(crate) fn raft_logger() -> Logger {
    Logger::root(ToTracing, o!())
}
