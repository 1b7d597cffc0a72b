//! Snapshots on their way to followers, whose entries must stay in memory.
//!
//! A follower that has installed a snapshot needs the entries after it. If they went away while the
//! snapshot was being sent, it would need another one, and so on for ever.
//!
//! Input: snapshots sent, reports of their arrival, ticks. Output: the lowest index to hold.
//! **Invariant:** at most one hold for a member.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long the entries stay after the snapshot has arrived: as long as in etcd.
const AFTER_ARRIVAL: Duration = Duration::from_secs(30);

struct Hold {
    index: u64,
    /// Ticks left, once the snapshot has arrived.
    left: Option<u64>,
}

/// See the module.
pub(crate) struct Holds {
    after_arrival: u64,
    holds: BTreeMap<u64, Hold>,
}

impl Holds {
    pub(crate) fn new(tick: Duration) -> Self {
        let ticks = AFTER_ARRIVAL.as_nanos() / tick.as_nanos().max(1);
        Self { after_arrival: ticks as u64, holds: BTreeMap::new() }
    }

    pub(crate) fn sent(&mut self, to: u64, index: u64) {
        self.holds.insert(to, Hold { index, left: None });
    }

    pub(crate) fn report(&mut self, id: u64, arrived: bool) {
        if !arrived {
            self.holds.remove(&id);
        } else if let Some(hold) = self.holds.get_mut(&id) {
            hold.left = Some(self.after_arrival);
        }
    }

    pub(crate) fn tick(&mut self) {
        self.holds.retain(|_, hold| match &mut hold.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        });
    }

    pub(crate) fn lowest(&self) -> Option<u64> {
        self.holds.values().map(|hold| hold.index).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_ends_some_time_after_the_arrival() {
        let mut holds = Holds::new(Duration::from_secs(10));
        holds.sent(2, 50);
        holds.sent(3, 40);
        assert_eq!(holds.lowest(), Some(40));
        holds.report(3, false);
        assert_eq!(holds.lowest(), Some(50));
        for _ in 0..100 {
            holds.tick();
        }
        assert_eq!(holds.lowest(), Some(50));
        holds.report(2, true);
        for _ in 0..3 {
            holds.tick();
            assert_eq!(holds.lowest(), Some(50));
        }
        holds.tick();
        assert_eq!(holds.lowest(), None);
    }
}
