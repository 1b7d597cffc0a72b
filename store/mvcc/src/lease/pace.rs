//! Rates: how many leases expire, and how many are handed out, in a second.

use std::time::Duration;

/// Moves expiries (sorted, with lease ids) later, so that no more than `rate` fall into any one
/// second. None is moved earlier; the order stays.
pub(super) fn spread(expiries: &mut [(Duration, i64)], rate: usize) {
    for at in rate..expiries.len() {
        let earliest = expiries[at - rate].0 + Duration::from_secs(1);
        expiries[at].0 = expiries[at].0.max(earliest);
    }
}

/// A limit on a rate, which lets half a second's worth pass at once after a quiet time.
#[derive(Debug)]
pub(super) struct Budget {
    /// Time that one unit takes.
    step: Duration,
    /// Time at which all that was taken is paid for.
    paid: Duration,
}

impl Budget {
    const BURST: Duration = Duration::from_millis(500);

    pub(super) fn new(per_second: u32) -> Self {
        Self { step: Duration::from_secs(1) / per_second.max(1), paid: Duration::ZERO }
    }

    fn start(&self, now: Duration) -> Duration {
        self.paid.max(now.saturating_sub(Self::BURST))
    }

    /// What can be taken now.
    pub(super) fn available(&self, now: Duration) -> usize {
        let free = now.saturating_sub(self.start(now));
        usize::try_from(free.as_nanos() / self.step.as_nanos()).unwrap_or(usize::MAX)
    }

    /// Takes `count`.
    pub(super) fn take(&mut self, count: usize, now: Duration) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.paid = self.start(now) + self.step * count;
    }
}
