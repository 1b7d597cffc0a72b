//! Compaction without being asked: what is older than a retention is given up.
//!
//! Input: the current revision at regular times, and whether this member leads. Output: the
//! revision to compact to, which the task proposes like any client's request.
//! As in etcd every member keeps watch, so that a new leader knows the past, and only the leader
//! acts.
//! **Invariant:** with a period, nothing is given up that was current within it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_proto::etcdserverpb::CompactionRequest;

use crate::config::AutoCompaction;
use crate::core::Core;
use crate::error::Error;

const HOUR: Duration = Duration::from_secs(3600);
/// Revisions are noted so many times in a period, or in an hour of a longer one.
const NOTES: u32 = 10;
/// How often the number of revisions is looked at.
const REVISIONS_INTERVAL: Duration = Duration::from_secs(300);

/// Decides when and to what.
enum Keeper {
    Periodic {
        period: Duration,
        /// Noted one after the other; the first one was current a period ago when there are enough.
        notes: VecDeque<i64>,
        /// Time from the last compaction, or the start, to the next one.
        wait: Duration,
        last: (Instant, i64),
    },
    Revisions {
        keep: i64,
        last: i64,
    },
}

impl Keeper {
    fn new(mode: AutoCompaction, now: Instant) -> Option<Self> {
        match mode {
            AutoCompaction::Off => None,
            AutoCompaction::Periodic(period) if period < NOTES * Duration::from_millis(1) => None,
            AutoCompaction::Revisions(keep) if keep <= 0 => None,
            AutoCompaction::Periodic(period) => {
                let notes = VecDeque::new();
                Some(Self::Periodic { period, notes, wait: period, last: (now, 0) })
            }
            AutoCompaction::Revisions(keep) => Some(Self::Revisions { keep, last: 0 }),
        }
    }

    /// Time between two notes.
    fn interval(&self) -> Duration {
        match self {
            Self::Periodic { period, .. } => (*period).min(HOUR) / NOTES,
            Self::Revisions { .. } => REVISIONS_INTERVAL,
        }
    }

    /// Notes the revision that is current now.
    fn note(&mut self, revision: i64) {
        let interval = self.interval();
        if let Self::Periodic { period, notes, .. } = self {
            let enough = (period.as_nanos() / interval.as_nanos().max(1)) as usize + 1;
            notes.push_back(revision);
            if notes.len() > enough {
                notes.pop_front();
            }
        }
    }

    /// What is to be compacted to now.
    fn due(&self, now: Instant, current: i64) -> Option<i64> {
        match self {
            Self::Periodic { notes, wait, last, .. } => {
                let revision = *notes.front()?;
                let waited = now.duration_since(last.0) >= *wait;
                (waited && revision != last.1).then_some(revision)
            }
            Self::Revisions { keep, last } => {
                Some(current - keep).filter(|revision| *revision > 0 && revision != last)
            }
        }
    }

    /// It was done.
    fn compacted(&mut self, now: Instant, revision: i64) {
        match self {
            Self::Periodic { period, wait, last, .. } => {
                *last = (now, revision);
                *wait = (*period).min(HOUR);
            }
            Self::Revisions { last, .. } => *last = revision,
        }
    }
}

/// Compacts now and then, as long as this member leads.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(mut keeper) = Keeper::new(core.config.auto_compaction, Instant::now()) else { return };
    loop {
        keeper.note(core.published.load().revision());
        tokio::time::sleep(keeper.interval()).await;
        if !core.leadership.is_local() {
            continue;
        }
        let current = core.published.load().revision();
        let Some(revision) = keeper.due(Instant::now(), current) else { continue };
        tracing::info!(revision, "starting auto compaction");
        match core.compact(CompactionRequest { revision, physical: false }).await {
            Ok(_) | Err(Error::Compacted) => keeper.compacted(Instant::now(), revision),
            Err(error) => tracing::warn!(revision, %error, "failed auto compaction"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compactions of `hours`, when every minute makes one revision: hour and revision.
    fn compactions(period: Duration, hours: u64) -> Vec<(f64, i64)> {
        let start = Instant::now();
        let mut keeper = Keeper::new(AutoCompaction::Periodic(period), start).unwrap();
        let (mut now, mut out) = (start, Vec::new());
        while now < start + hours as u32 * HOUR {
            let revision = |now: Instant| (now - start).as_secs() as i64 / 60;
            keeper.note(revision(now));
            now += keeper.interval();
            if let Some(due) = keeper.due(now, revision(now)) {
                keeper.compacted(now, due);
                out.push(((now - start).as_secs_f64() / 3600.0, due));
            }
        }
        out
    }

    #[test]
    fn an_hour_is_kept_and_compacted_each_hour() {
        let found = compactions(HOUR, 5);
        assert_eq!(found.len(), 4, "{found:?}");
        for (at, revision) in found {
            let age = at * 60.0 - revision as f64;
            assert!((60.0..=67.0).contains(&age), "{age} min at {at} h");
        }
    }

    #[test]
    fn a_day_is_kept_and_compacted_each_hour() {
        let found = compactions(24 * HOUR, 30);
        assert!(found[0].0 >= 24.0, "{found:?}");
        assert!(found.len() >= 5);
        assert!(found.iter().all(|(at, revision)| at * 60.0 - *revision as f64 >= 1440.0));
    }

    #[test]
    fn an_idle_store_is_left_alone() {
        let start = Instant::now();
        let mut keeper = Keeper::new(AutoCompaction::Periodic(HOUR), start).unwrap();
        for _ in 0..20 {
            keeper.note(7);
        }
        assert_eq!(keeper.due(start + HOUR / 2, 7), None);
        assert_eq!(keeper.due(start + HOUR, 7), Some(7));
        keeper.compacted(start + HOUR, 7);
        assert_eq!(keeper.due(start + 3 * HOUR, 7), None);
    }

    #[test]
    fn revisions_are_kept_by_number() {
        let start = Instant::now();
        let mut keeper = Keeper::new(AutoCompaction::Revisions(100), start).unwrap();
        assert_eq!(keeper.due(start, 100), None);
        assert_eq!(keeper.due(start, 150), Some(50));
        keeper.compacted(start, 50);
        assert_eq!(keeper.due(start, 150), None);
        assert_eq!(keeper.due(start, 151), Some(51));
    }
}
