//! Ids of requests in the log: etcd's numbering, one generator for each process.
//!
//! Input is the member id and the wall clock once at start; output are ids that never repeat.
//! **Invariant:** ids of two members differ in their top 16 bits, ids of two runs of one member
//! differ in the milliseconds that follow, ids of one run count up. Real members wake a waiting
//! client by this number, so a collision would answer the client of another member.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SUFFIX_BITS: u32 = 48;
const MILLISECOND_BITS: u32 = 40;

/// Hands out request ids.
#[derive(Debug)]
pub(crate) struct RequestIds {
    prefix: u64,
    suffix: AtomicU64,
}

impl RequestIds {
    /// A generator for the member `member`, started at `since_epoch` by the wall clock.
    pub(crate) fn new(member: u64, since_epoch: Duration) -> Self {
        let milliseconds = since_epoch.as_millis() as u64;
        let suffix =
            (milliseconds & low_bits(MILLISECOND_BITS)) << (SUFFIX_BITS - MILLISECOND_BITS);
        Self { prefix: (member & 0xffff) << SUFFIX_BITS, suffix: AtomicU64::new(suffix) }
    }

    /// The next id; never 0 and never given before.
    pub(crate) fn next(&self) -> u64 {
        let suffix = self.suffix.fetch_add(1, Ordering::Relaxed) + 1;
        self.prefix | (suffix & low_bits(SUFFIX_BITS))
    }

    /// The next id for a lease that the client did not number: positive and not 0.
    pub(crate) fn next_lease(&self) -> i64 {
        loop {
            let id = (self.next() & i64::MAX as u64) as i64;
            if id != 0 {
                return id;
            }
        }
    }
}

const fn low_bits(count: u32) -> u64 {
    u64::MAX >> (64 - count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_member_milliseconds_counter() {
        let ids = RequestIds::new(0x0001_0203_0405_1234, Duration::from_millis(0x01_0203_0405));
        assert_eq!(ids.next(), 0x1234_0102_0304_0501);
        assert_eq!(ids.next(), 0x1234_0102_0304_0502);
    }

    #[test]
    fn lease_ids_are_positive() {
        let ids = RequestIds::new(0xffff, Duration::from_millis(7));
        assert!((0..1000).all(|_| ids.next_lease() > 0));
    }
}
