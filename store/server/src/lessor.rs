//! The lessor among threads: the pure lessor behind a lock, with the clock.
//!
//! Input: lease changes from the apply thread, leadership from the lease task, renewals. Output:
//! answers, and wake-ups for those who wait for a lease to be revoked.
//! **Invariant:** the lessor is primary for one term only. It is demoted before an entry of another
//! term is applied, whoever notices the change of terms first.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mainstay_engine::View;
use mainstay_mvcc::lease::{Checkpoint, Lessor, LessorOptions, Renewal, TimeToLive};
use mainstay_mvcc::{Fatal, LeaseChange, stored_leases};
use tokio::sync::watch;

struct Book {
    lessor: Lessor,
    /// The term that the lessor is primary for.
    term: u64,
}

/// The leases of a member.
pub(crate) struct LeaseBook {
    options: LessorOptions,
    started: Instant,
    book: Mutex<Book>,
    /// Counts revocations and demotions.
    changes: watch::Sender<u64>,
}

impl LeaseBook {
    /// The leases that are stored.
    pub(crate) fn open(view: &dyn View, options: LessorOptions) -> Result<Self, Fatal> {
        let lessor = Lessor::recover(options, stored_leases(view)?);
        Ok(Self {
            options,
            started: Instant::now(),
            book: Mutex::new(Book { lessor, term: 0 }),
            changes: watch::Sender::new(0),
        })
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic under this lock ends the member; what is read until then is whole.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Entries of the term `term` are about to be applied.
    pub(crate) fn before_entries_of(&self, term: u64) {
        let mut book = self.book();
        if book.lessor.is_primary() && book.term != term {
            book.lessor.demote();
            drop(book);
            self.changed();
        }
    }

    /// Takes note of what applied entries did.
    pub(crate) fn follow(&self, changes: &[LeaseChange]) {
        if changes.is_empty() {
            return;
        }
        let now = self.now();
        let mut book = self.book();
        for change in changes {
            book.lessor.apply(change, now);
        }
        drop(book);
        if changes.iter().any(|change| matches!(change, LeaseChange::Revoked { .. })) {
            self.changed();
        }
    }

    /// The state was replaced: so are the leases.
    pub(crate) fn reload(&self, view: &dyn View) -> Result<(), Fatal> {
        let lessor = Lessor::recover(self.options, stored_leases(view)?);
        self.book().lessor = lessor;
        self.changed();
        Ok(())
    }

    /// This member leads in `term`, has applied an entry of it, and a quorum has confirmed it.
    pub(crate) fn promote(&self, term: u64, extend: Duration) {
        let now = self.now();
        let mut book = self.book();
        book.term = term;
        book.lessor.promote(extend, now);
    }

    /// This member does not lead any more.
    pub(crate) fn demote(&self) {
        self.book().lessor.demote();
        self.changed();
    }

    pub(crate) fn is_primary_in(&self, term: u64) -> bool {
        let book = self.book();
        book.lessor.is_primary() && book.term == term
    }

    pub(crate) fn knows(&self, id: i64) -> bool {
        self.book().lessor.granted_ttl(id).is_some()
    }

    pub(crate) fn renew(&self, id: i64) -> Renewal {
        let now = self.now();
        self.book().lessor.renew(id, now)
    }

    pub(crate) fn time_to_live(&self, id: i64) -> Result<TimeToLive, Renewal> {
        let now = self.now();
        self.book().lessor.time_to_live(id, now)
    }

    pub(crate) fn list(&self) -> Vec<i64> {
        self.book().lessor.list()
    }

    pub(crate) fn expired(&self, limit: usize) -> Vec<i64> {
        let now = self.now();
        self.book().lessor.expired(now, limit)
    }

    pub(crate) fn checkpoints(&self, limit: usize) -> Vec<Checkpoint> {
        let now = self.now();
        self.book().lessor.checkpoints(now, limit)
    }

    /// Time until there is something to propose; `None` while there will be nothing.
    pub(crate) fn next_due_in(&self) -> Option<Duration> {
        let due = self.book().lessor.next_due()?;
        Some(due.saturating_sub(self.now()))
    }

    /// Tells of revocations and demotions.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
