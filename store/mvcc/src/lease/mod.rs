//! The lessor: which leases there are, and on the leader, when each of them expires.
//!
//! Input: lease changes as entries are applied, leadership changes, renewals, and `now`, a time
//! since any fixed start of this process. Output: leases to revoke and remaining times to note in
//! the log, as data; the caller proposes them. The keys of a lease are not known here.
//!
//! Only the leader's lessor is *primary* and knows expiries. All others know granted TTLs and the
//! remaining times that a former leader had noted (checkpoints).
//!
//! - **Invariant:** a primary never hands out a lease for revocation before its TTL has passed since
//!   the grant or since the last renewal that any leader acknowledged.
//! - **Invariant:** a lease past its expiry is not renewed any more by the primary that saw it
//!   expire, whether its revocation is under way or not.
//! - **Invariant:** no call looks at all leases but promotion, demotion and the list.
//!
//! What the first invariant needs from the caller:
//! - A leader is promoted only after it has applied the first entry of its own term: then no
//!   revocation or checkpoint of a former leader is still to come.
//! - It is demoted before it applies an entry of another term than its own.
//! - It is promoted with `extend` at least as long as a deposed leader may go on to acknowledge
//!   renewals: the election timeout, after which check-quorum has made it step down.
//! - What is handed out is proposed at once, in order, and only by this leader in this term: a
//!   follower must not pass such a proposal on to the next leader.

mod pace;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstay_proto::leasepb;

use self::pace::{Budget, spread};
use crate::LeaseChange;

/// Leases that are handed out for revocation in a second, at most.
pub const REVOCATIONS_PER_SECOND: u32 = 1000;

/// A revocation that was handed out and did not happen is handed out again after this time.
pub const REVOCATION_RETRY: Duration = Duration::from_secs(3);

/// Usual time between two checkpoints of a long lease.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// Checkpoints in one entry of the log, at most.
pub const CHECKPOINTS_PER_ENTRY: usize = 1000;

/// Leases that expire in a second after a promotion, at most. Below the rate of revocations, so
/// that leases which are granted meanwhile find room.
const EXPIRIES_PER_SECOND: usize = 750;

/// The shortest TTL that a lease can have, in whole seconds: one and a half election timeouts, so
/// that a lease survives one change of leaders. All members of a cluster must agree on it.
pub fn min_ttl(election_ticks: u32, tick: Duration) -> i64 {
    let shortest = tick * (election_ticks.saturating_mul(3) / 2);
    let seconds = shortest.as_secs() + u64::from(shortest.subsec_nanos() > 0);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// How a lessor is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LessorOptions {
    /// Leases of former configurations with a shorter TTL are raised to this; see [`min_ttl`].
    pub min_ttl: i64,
    /// Time between two checkpoints of a lease that is longer than that. `None`: no checkpoint is
    /// started, for a cluster with members that do not know them.
    pub checkpoint_interval: Option<Duration>,
}

/// Answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease has its whole TTL (in seconds) again.
    Renewed {
        /// The granted TTL in seconds.
        ttl: i64,
    },
    /// A checkpoint of the lease is in the log, so the next leader would not know of this renewal.
    /// Propose a checkpoint of this lease with remaining time 0, and ask again when it is applied.
    ClearCheckpoint,
    /// The lease has expired and waits to be revoked. Ask again when it was, or after a demotion.
    Expired,
    /// There is no such lease.
    NotFound,
    /// Ask the leader.
    NotPrimary,
}

/// What is known about a lease's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// Granted TTL in seconds.
    pub granted: i64,
    /// Whole seconds that remain, cut off; negative when the lease has been expired for a while.
    pub remaining: i64,
}

/// A remaining time to be noted in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The lease.
    pub id: i64,
    /// Seconds that remain; 0 takes the former checkpoint back.
    pub remaining: i64,
}

/// See the module.
#[derive(Debug)]
pub struct Lessor {
    options: LessorOptions,
    leases: BTreeMap<i64, Lease>,
    primary: Option<Primary>,
}

#[derive(Debug)]
struct Lease {
    /// Granted, in seconds.
    ttl: i64,
    /// Last checkpoint, in seconds; 0 for none.
    checkpoint: i64,
    /// **Invariant:** there exactly while the lessor is primary.
    clock: Option<Clock>,
}

/// What the primary knows of a lease.
#[derive(Clone, Copy, Debug)]
struct Clock {
    expiry: Duration,
    /// When to hand the lease out: at its expiry, later on at the time of the next try.
    /// **Invariant:** never before `expiry`, and in `Primary::due`.
    due: Duration,
    /// When to note the remaining time. **Invariant:** in `Primary::checkpoints` if there.
    checkpoint_due: Option<Duration>,
    /// A checkpoint was handed out and may still come to be applied.
    exposed: bool,
    /// A renewal waits for the checkpoint to be taken back.
    clearing: bool,
    /// A checkpoint of unknown origin promises less than this primary did: to be taken back.
    wrong: bool,
}

/// Queues of the primary: a time and the lease that has something to do then.
#[derive(Debug)]
struct Primary {
    due: BTreeSet<(Duration, i64)>,
    checkpoints: BTreeSet<(Duration, i64)>,
    budget: Budget,
}

impl Lease {
    /// What a new leader grants: the noted remainder, or all of it. In seconds.
    fn known_ttl(&self) -> i64 {
        if self.checkpoint > 0 { self.checkpoint } else { self.ttl }
    }

    fn set_due(&mut self, queue: &mut BTreeSet<(Duration, i64)>, id: i64, due: Duration) {
        if let Some(clock) = &mut self.clock {
            queue.remove(&(clock.due, id));
            clock.due = due;
            queue.insert((due, id));
        }
    }

    fn set_checkpoint(
        &mut self,
        queue: &mut BTreeSet<(Duration, i64)>,
        id: i64,
        due: Option<Duration>,
    ) {
        if let Some(clock) = &mut self.clock {
            if let Some(old) = clock.checkpoint_due {
                queue.remove(&(old, id));
            }
            clock.checkpoint_due = due;
            queue.extend(due.map(|due| (due, id)));
        }
    }
}

impl Lessor {
    /// A lessor without leases, not primary.
    pub fn new(options: LessorOptions) -> Self {
        Self { options, leases: BTreeMap::new(), primary: None }
    }

    /// A lessor with the leases that are stored, not primary.
    pub fn recover(
        options: LessorOptions,
        stored: impl IntoIterator<Item = leasepb::Lease>,
    ) -> Self {
        let mut lessor = Self::new(options);
        for lease in stored {
            let ttl = lease.ttl.max(options.min_ttl);
            let checkpoint = lease.remaining_ttl.max(0);
            lessor.leases.insert(lease.id, Lease { ttl, checkpoint, clock: None });
        }
        lessor
    }

    /// Whether this lessor decides about expiries.
    pub fn is_primary(&self) -> bool {
        self.primary.is_some()
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there are no leases.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Granted TTL of a lease, in seconds.
    pub fn granted_ttl(&self, id: i64) -> Option<i64> {
        self.leases.get(&id).map(|lease| lease.ttl)
    }

    /// All leases, next to expire first; by id where no expiry is known.
    pub fn list(&self) -> Vec<i64> {
        let mut all: Vec<_> = self
            .leases
            .iter()
            .map(|(id, lease)| (lease.clock.map(|clock| clock.expiry), *id))
            .collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
    }

    /// What remains of a lease. `Err` with [`Renewal::NotFound`] or [`Renewal::NotPrimary`].
    pub fn time_to_live(&self, id: i64, now: Duration) -> Result<TimeToLive, Renewal> {
        if self.primary.is_none() {
            return Err(Renewal::NotPrimary);
        }
        let lease = self.leases.get(&id).ok_or(Renewal::NotFound)?;
        let clock = lease.clock.ok_or(Renewal::NotPrimary)?;
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let remaining = match clock.expiry.checked_sub(now) {
            Some(left) => seconds(left),
            None => -seconds(now - clock.expiry),
        };
        Ok(TimeToLive { granted: lease.ttl, remaining })
    }

    /// Takes note of what an applied entry did.
    pub fn apply(&mut self, change: &LeaseChange, now: Duration) {
        match *change {
            LeaseChange::Granted { id, ttl } => self.granted(id, ttl, now),
            LeaseChange::Revoked { id } => self.revoked(id),
            LeaseChange::Checkpoint { id, remaining } => self.checkpointed(id, remaining, now),
        }
    }

    fn granted(&mut self, id: i64, ttl: i64, now: Duration) {
        let interval = self.options.checkpoint_interval;
        let mut lease = Lease { ttl, checkpoint: 0, clock: None };
        if let Some(primary) = &mut self.primary {
            start(primary, &mut lease, id, now + seconds(ttl), now, interval);
        }
        self.leases.insert(id, lease);
    }

    fn revoked(&mut self, id: i64) {
        if let (Some(lease), Some(primary)) = (self.leases.remove(&id), &mut self.primary)
            && let Some(clock) = lease.clock
        {
            primary.due.remove(&(clock.due, id));
            if let Some(due) = clock.checkpoint_due {
                primary.checkpoints.remove(&(due, id));
            }
        }
    }

    fn checkpointed(&mut self, id: i64, remaining: i64, now: Duration) {
        let interval = self.options.checkpoint_interval;
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.checkpoint = remaining.max(0);
        let (Some(primary), Some(clock)) = (&mut self.primary, &mut lease.clock) else { return };
        if lease.checkpoint == 0 {
            clock.clearing = false;
            if std::mem::take(&mut clock.wrong) {
                let left = clock.expiry.saturating_sub(now);
                let due = interval.filter(|interval| left > *interval);
                let due = due.map(|interval| now + interval);
                lease.set_checkpoint(&mut primary.checkpoints, id, due);
            }
            return;
        }
        clock.exposed = false;
        // One of our own was rounded up, and no renewal was acknowledged since.
        if clock.expiry > now + seconds(remaining) {
            clock.wrong = true;
            lease.set_checkpoint(&mut primary.checkpoints, id, Some(now));
        }
    }

    /// Makes this lessor primary: every lease gets what is known of its TTL, and `extend` on top.
    /// Where many would expire together, some get more.
    pub fn promote(&mut self, extend: Duration, now: Duration) {
        let interval = self.options.checkpoint_interval;
        let mut expiries: Vec<_> = self
            .leases
            .iter()
            .map(|(id, lease)| (now + extend + seconds(lease.known_ttl()), *id))
            .collect();
        expiries.sort_unstable();
        spread(&mut expiries, EXPIRIES_PER_SECOND);
        let mut primary = Primary {
            due: BTreeSet::new(),
            checkpoints: BTreeSet::new(),
            budget: Budget::new(REVOCATIONS_PER_SECOND),
        };
        for (expiry, id) in expiries {
            if let Some(lease) = self.leases.get_mut(&id) {
                start(&mut primary, lease, id, expiry, now, interval);
            }
        }
        self.primary = Some(primary);
    }

    /// Makes this lessor forget all expiries.
    pub fn demote(&mut self) {
        self.primary = None;
        for lease in self.leases.values_mut() {
            lease.clock = None;
        }
    }

    /// Gives a lease its whole TTL again, from `now` on.
    pub fn renew(&mut self, id: i64, now: Duration) -> Renewal {
        let interval = self.options.checkpoint_interval;
        let Some(primary) = &mut self.primary else { return Renewal::NotPrimary };
        let Some(lease) = self.leases.get_mut(&id) else { return Renewal::NotFound };
        let Some(clock) = &mut lease.clock else { return Renewal::NotPrimary };
        if clock.expiry <= now {
            return Renewal::Expired;
        }
        if lease.checkpoint > 0 || clock.exposed || clock.clearing {
            // What was handed out so far is in the log before the checkpoint that takes it back.
            clock.exposed = false;
            clock.clearing = true;
            return Renewal::ClearCheckpoint;
        }
        // A lease that was spread out may have more left than its TTL.
        clock.expiry = clock.expiry.max(now + seconds(lease.ttl));
        let (expiry, scheduled) = (clock.expiry, clock.checkpoint_due.is_some());
        lease.set_due(&mut primary.due, id, expiry);
        if !scheduled {
            let due = interval.filter(|interval| expiry - now > *interval);
            lease.set_checkpoint(&mut primary.checkpoints, id, due.map(|interval| now + interval));
        }
        Renewal::Renewed { ttl: lease.ttl }
    }

    /// Leases to be revoked now, longest expired first: at most `limit`, and at most
    /// [`REVOCATIONS_PER_SECOND`]. One that is not revoked within [`REVOCATION_RETRY`] is handed
    /// out again. Nothing unless primary.
    pub fn expired(&mut self, now: Duration, limit: usize) -> Vec<i64> {
        let Some(primary) = &mut self.primary else { return Vec::new() };
        let mut ids = Vec::new();
        let limit = limit.min(primary.budget.available(now));
        while ids.len() < limit {
            let Some((due, id)) = primary.due.first().copied() else { break };
            if due > now {
                break;
            }
            ids.push(id);
            let lease = self.leases.get_mut(&id).expect("queues hold only leases that exist");
            lease.set_due(&mut primary.due, id, now + REVOCATION_RETRY);
        }
        primary.budget.take(ids.len(), now);
        ids
    }

    /// Remaining times to be noted in the log now, at most `limit` of them. Nothing unless primary.
    pub fn checkpoints(&mut self, now: Duration, limit: usize) -> Vec<Checkpoint> {
        let interval = self.options.checkpoint_interval;
        let Some(primary) = &mut self.primary else { return Vec::new() };
        let mut checkpoints = Vec::new();
        while checkpoints.len() < limit {
            let Some((due, id)) = primary.checkpoints.first().copied() else { break };
            if due > now {
                break;
            }
            let lease = self.leases.get_mut(&id).expect("queues hold only leases that exist");
            let ttl = lease.ttl;
            let clock = lease.clock.as_mut().expect("a primary's leases have clocks");
            let left = clock.expiry.saturating_sub(now);
            // Rounded up: a new leader may give more than there was, never less.
            let remaining = i64::try_from(left.as_secs()).unwrap_or(i64::MAX)
                + i64::from(left.subsec_nanos() > 0);
            if clock.wrong {
                clock.exposed = false;
                checkpoints.push(Checkpoint { id, remaining: 0 });
            } else if interval.is_some() && !clock.clearing && remaining > 0 && remaining < ttl {
                clock.exposed = true;
                checkpoints.push(Checkpoint { id, remaining });
            }
            let next = if clock.wrong { Some(REVOCATION_RETRY) } else { interval };
            let next = next.filter(|interval| left > *interval).map(|interval| now + interval);
            lease.set_checkpoint(&mut primary.checkpoints, id, next);
        }
        checkpoints
    }

    /// When [`Lessor::expired`] or [`Lessor::checkpoints`] have something to hand out next, but for
    /// the limits on their rates. `None`: not without a change.
    pub fn next_due(&self) -> Option<Duration> {
        let primary = self.primary.as_ref()?;
        let first = |queue: &BTreeSet<(Duration, i64)>| queue.first().map(|(due, _)| *due);
        first(&primary.due).into_iter().chain(first(&primary.checkpoints)).min()
    }
}

/// Starts the clock of a lease on a primary.
fn start(
    primary: &mut Primary,
    lease: &mut Lease,
    id: i64,
    expiry: Duration,
    now: Duration,
    interval: Option<Duration>,
) {
    lease.clock = Some(Clock {
        expiry,
        due: expiry,
        checkpoint_due: None,
        exposed: false,
        clearing: false,
        wrong: false,
    });
    primary.due.insert((expiry, id));
    let due = interval.filter(|interval| expiry.saturating_sub(now) > *interval);
    lease.set_checkpoint(&mut primary.checkpoints, id, due.map(|interval| now + interval));
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
