//! Tests of the lessor: single behaviours, and random histories of a cluster of lessors on one log.
//!
//! The random test keeps, for each lease, the time up to which some leader promised it to a client,
//! and lets leaders change, go on unaware of their successor, restart, and lose proposals.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const EXTEND: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_secs(10);

fn options() -> LessorOptions {
    LessorOptions { min_ttl: 2, checkpoint_interval: Some(INTERVAL) }
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn primary(leases: &[(i64, i64)], now: Duration) -> Lessor {
    let mut lessor = Lessor::new(options());
    lessor.promote(EXTEND, now);
    for (id, ttl) in leases {
        lessor.apply(&LeaseChange::Granted { id: *id, ttl: *ttl }, now);
    }
    lessor
}

#[test]
fn min_ttl_is_etcds() {
    assert_eq!(min_ttl(10, ms(100)), 2);
    assert_eq!(min_ttl(10, ms(10)), 1);
    // Half a tick is cut off before the multiplication.
    assert_eq!(min_ttl(5, s(1)), 7);
}

#[test]
fn a_lease_expires_after_its_ttl_and_is_handed_out_again() {
    let mut lessor = primary(&[(7, 5)], s(100));
    assert_eq!(lessor.next_due(), Some(s(105)));
    assert!(lessor.expired(s(105) - ms(1), 10).is_empty());
    assert_eq!(lessor.expired(s(105), 10), [7]);
    assert!(lessor.expired(s(106), 10).is_empty());
    assert_eq!(lessor.renew(7, s(106)), Renewal::Expired);
    assert_eq!(lessor.time_to_live(7, s(106)), Ok(TimeToLive { granted: 5, remaining: -1 }));
    assert_eq!(lessor.expired(s(108), 10), [7]);
    lessor.apply(&LeaseChange::Revoked { id: 7 }, s(109));
    assert!(lessor.expired(s(200), 10).is_empty());
    assert_eq!(lessor.renew(7, s(200)), Renewal::NotFound);
    assert_eq!(lessor.next_due(), None);
}

#[test]
fn a_renewal_starts_the_ttl_again() {
    let mut lessor = primary(&[(7, 5), (8, 5)], s(100));
    assert_eq!(lessor.renew(7, s(104)), Renewal::Renewed { ttl: 5 });
    let left = lessor.time_to_live(7, s(105) + ms(1));
    assert_eq!(left, Ok(TimeToLive { granted: 5, remaining: 3 }));
    assert_eq!(lessor.list(), [8, 7]);
    assert_eq!(lessor.expired(s(108), 10), [8]);
    assert_eq!(lessor.expired(s(109), 10), [7]);
}

#[test]
fn only_the_primary_knows_expiries() {
    let stored = [leasepb::Lease { id: 3, ttl: 1, remaining_ttl: 0 }];
    let mut lessor = Lessor::recover(options(), stored);
    lessor.apply(&LeaseChange::Granted { id: -4, ttl: 60 }, s(0));
    assert_eq!(lessor.granted_ttl(3), Some(2), "raised to the minimum");
    assert_eq!(lessor.list(), [-4, 3]);
    assert_eq!(lessor.renew(3, s(1)), Renewal::NotPrimary);
    assert_eq!(lessor.time_to_live(3, s(1)), Err(Renewal::NotPrimary));
    assert!(lessor.expired(s(1_000_000), 10).is_empty());
    lessor.promote(EXTEND, s(50));
    assert_eq!(lessor.list(), [3, -4]);
    assert_eq!(lessor.expired(s(53), 10), [3]);
    lessor.demote();
    assert_eq!(lessor.renew(3, s(54)), Renewal::NotPrimary);
    // The revocation did not come through: a new leader begins from the start.
    lessor.promote(EXTEND, s(55));
    assert_eq!(lessor.renew(3, s(56)), Renewal::Renewed { ttl: 2 });
}

#[test]
fn checkpoints_carry_the_remaining_time_over() {
    let mut lessor = primary(&[(7, 60), (8, 10)], s(0));
    assert!(lessor.checkpoints(s(9), 10).is_empty());
    let noted = lessor.checkpoints(s(10) + ms(1), 10);
    assert_eq!(noted, [Checkpoint { id: 7, remaining: 50 }], "short leases are not noted");
    lessor.apply(&LeaseChange::Checkpoint { id: 7, remaining: 50 }, s(11));
    let stored = [leasepb::Lease { id: 7, ttl: 60, remaining_ttl: 50 }];
    let mut next = Lessor::recover(options(), stored);
    next.promote(EXTEND, s(20));
    assert!(next.expired(s(71) - ms(1), 10).is_empty());
    assert_eq!(next.expired(s(71), 10), [7]);
}

#[test]
fn a_renewal_takes_checkpoints_back_first() {
    let mut lessor = primary(&[(7, 60)], s(0));
    let noted = LeaseChange::Checkpoint { id: 7, remaining: 50 };
    let cleared = LeaseChange::Checkpoint { id: 7, remaining: 0 };
    assert_eq!(lessor.checkpoints(s(10), 10).len(), 1);
    // Handed out but not applied yet: it is in the log before the one that takes it back.
    assert_eq!(lessor.renew(7, s(11)), Renewal::ClearCheckpoint);
    lessor.apply(&noted, s(12));
    assert_eq!(lessor.renew(7, s(13)), Renewal::ClearCheckpoint);
    assert!(lessor.checkpoints(s(25), 10).is_empty(), "none while one is taken back");
    lessor.apply(&cleared, s(26));
    assert_eq!(lessor.renew(7, s(27)), Renewal::Renewed { ttl: 60 });
    assert_eq!(lessor.time_to_live(7, s(27)), Ok(TimeToLive { granted: 60, remaining: 60 }));
    // A proposal that was lost does not lock the lease.
    assert_eq!(lessor.checkpoints(s(37), 10).len(), 1);
    assert_eq!(lessor.renew(7, s(38)), Renewal::ClearCheckpoint);
    lessor.apply(&cleared, s(39));
    assert_eq!(lessor.renew(7, s(40)), Renewal::Renewed { ttl: 60 });
}

#[test]
fn a_checkpoint_that_breaks_a_promise_is_taken_back() {
    let mut lessor = primary(&[(7, 60)], s(0));
    assert_eq!(lessor.renew(7, s(5)), Renewal::Renewed { ttl: 60 });
    // From a former leader, through a proposal that was passed on.
    lessor.apply(&LeaseChange::Checkpoint { id: 7, remaining: 20 }, s(6));
    assert_eq!(lessor.checkpoints(s(6), 10), [Checkpoint { id: 7, remaining: 0 }]);
    lessor.apply(&LeaseChange::Checkpoint { id: 7, remaining: 0 }, s(7));
    assert!(lessor.checkpoints(s(9), 10).is_empty());
}

#[test]
fn checkpoints_can_be_off() {
    let mut lessor = Lessor::new(LessorOptions { checkpoint_interval: None, ..options() });
    lessor.promote(EXTEND, s(0));
    lessor.apply(&LeaseChange::Granted { id: 7, ttl: 9_000_000_000 }, s(0));
    assert!(lessor.checkpoints(s(1_000_000), 10).is_empty());
    assert_eq!(lessor.renew(7, s(1_000_000)), Renewal::Renewed { ttl: 9_000_000_000 });
}

#[test]
fn a_hundred_thousand_leases_expire_at_a_bounded_rate() {
    const COUNT: i64 = 100_000;
    let stored = (1..=COUNT).map(|id| leasepb::Lease { id, ttl: 10, remaining_ttl: 0 });
    let mut lessor = Lessor::recover(options(), stored);
    lessor.promote(EXTEND, s(0));
    let mut now = s(0);
    let mut seconds: BTreeMap<u64, usize> = BTreeMap::new();
    while !lessor.is_empty() {
        now += ms(100);
        for id in lessor.expired(now, usize::MAX) {
            assert!(now >= s(11));
            *seconds.entry(now.as_secs()).or_default() += 1;
            lessor.apply(&LeaseChange::Revoked { id }, now);
        }
    }
    assert!(seconds.values().all(|count| *count <= EXPIRIES_PER_SECOND + 100), "{seconds:?}");
    assert!(now <= s(11 + COUNT as u64 / EXPIRIES_PER_SECOND as u64 + 2));
}

#[test]
fn a_storm_without_promotion_is_held_to_the_rate() {
    let leases: Vec<_> = (1..=5000).map(|id| (id, 10)).collect();
    let mut lessor = primary(&leases, s(0));
    let mut total = 0;
    for tick in 0..4 {
        let ids = lessor.expired(s(10) + ms(500) * tick, usize::MAX);
        assert_eq!(ids.len(), 500, "half a second's worth");
        total += ids.len();
        for id in ids {
            lessor.apply(&LeaseChange::Revoked { id }, s(12));
        }
    }
    assert_eq!(lessor.len() + total, 5000);
}

proptest! {
    #[test]
    fn spreading_only_delays_and_keeps_the_rate(
        mut times in vec(0_u64..3000, 0..200), rate in 1_usize..20,
    ) {
        times.sort_unstable();
        let before: Vec<_> = times.iter().zip(0..).map(|(time, id)| (ms(*time), id)).collect();
        let mut after = before.clone();
        spread(&mut after, rate);
        prop_assert!(after.is_sorted());
        for (old, new) in before.iter().zip(&after) {
            prop_assert!(old.0 <= new.0 && old.1 == new.1);
        }
        for window in after.windows(rate + 1) {
            prop_assert!(window[rate].0 - window[0].0 >= s(1));
        }
    }
}

const MEMBERS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Sleep(u64),
    Grant {
        id: i64,
        ttl: i64,
    },
    Revoke(i64),
    /// A client renews with a member that believes to be the leader.
    Renew {
        member: usize,
        id: i64,
    },
    /// A member asks for what is due and proposes it; `lost`: the proposals vanish.
    Poll {
        member: usize,
        lost: bool,
    },
    /// Everybody applies what is committed.
    Apply,
    /// Another member leads. The old one finds out within the election timeout.
    Elect(usize),
    Restart(usize),
}

fn steps() -> impl Strategy<Value = Step> {
    let id = || 1_i64..4;
    let member = || 0..MEMBERS;
    prop_oneof![
        6 => prop_oneof![Just(100_u64), Just(500), Just(1000), Just(4000), 0_u64..20_000]
            .prop_map(Step::Sleep),
        3 => (id(), 2_i64..40).prop_map(|(id, ttl)| Step::Grant { id, ttl }),
        1 => id().prop_map(Step::Revoke),
        6 => (member(), id()).prop_map(|(member, id)| Step::Renew { member, id }),
        6 => (member(), proptest::bool::weighted(0.2))
            .prop_map(|(member, lost)| Step::Poll { member, lost }),
        4 => Just(Step::Apply),
        2 => member().prop_map(Step::Elect),
        1 => member().prop_map(Step::Restart),
    ]
}

/// A cluster of lessors that apply one log. Its rules are those that the module asks of its caller.
struct Cluster {
    now: Duration,
    /// Term and change.
    log: Vec<(u64, LeaseChange)>,
    /// Lessor, number of applied entries, term in which it led last.
    members: Vec<(Lessor, usize, u64)>,
    leader: usize,
    term: u64,
    /// Leaders that were replaced and do not know it yet, with the time when they find out.
    deposed: Vec<(usize, Duration)>,
    /// Until when each living lease was promised.
    promised: BTreeMap<i64, (Duration, i64)>,
    renewals: usize,
}

impl Cluster {
    fn new() -> Self {
        let mut cluster = Self {
            now: s(1000),
            log: Vec::new(),
            members: (0..MEMBERS).map(|_| (Lessor::new(options()), 0, 0)).collect(),
            leader: 0,
            term: 0,
            deposed: Vec::new(),
            promised: BTreeMap::new(),
            renewals: 0,
        };
        cluster.members[0].0.promote(EXTEND, cluster.now);
        cluster
    }

    fn sleep(&mut self, time: Duration) {
        self.now += time;
        let (late, unaware): (Vec<_>, _) =
            self.deposed.iter().copied().partition(|(_, until)| *until <= self.now);
        self.deposed = unaware;
        for (member, _) in late {
            self.members[member].0.demote();
        }
    }

    fn apply(&mut self, member: usize) {
        let (lessor, applied, led) = &mut self.members[member];
        for (term, change) in &self.log[*applied..] {
            if term != led {
                lessor.demote();
            }
            lessor.apply(change, self.now);
        }
        *applied = self.log.len();
    }

    fn propose(&mut self, change: LeaseChange) {
        self.log.push((self.term, change));
    }

    /// Whether a lease is there once the log is applied.
    fn granted(&self, wanted: i64) -> bool {
        self.log.iter().rev().find_map(|(_, change)| match change {
            LeaseChange::Granted { id, .. } if *id == wanted => Some(true),
            LeaseChange::Revoked { id } if *id == wanted => Some(false),
            _ => None,
        }) == Some(true)
    }

    fn revoke(&mut self, id: i64) {
        if self.granted(id) {
            self.propose(LeaseChange::Revoked { id });
            self.promised.remove(&id);
        }
    }

    fn renew(&mut self, member: usize, id: i64) {
        if self.members[member].0.renew(id, self.now) == Renewal::ClearCheckpoint {
            if member != self.leader {
                return;
            }
            self.propose(LeaseChange::Checkpoint { id, remaining: 0 });
            self.apply(member);
            self.note(member, id);
        } else {
            self.note(member, id);
        }
    }

    fn note(&mut self, member: usize, id: i64) {
        let of_id = |(_, change): &(u64, LeaseChange)| matches!(change, LeaseChange::Granted { id: granted, .. } if *granted == id);
        let granted_at = self.log.iter().rposition(of_id);
        // A member that lags may know a lease of this id that is gone.
        let knows = granted_at.is_some_and(|at| self.members[member].1 > at);
        match self.members[member].0.renew(id, self.now) {
            Renewal::Renewed { ttl } => {
                if let Some((until, granted)) = self.promised.get_mut(&id)
                    && knows
                {
                    assert_eq!(ttl, *granted);
                    *until = (*until).max(self.now + seconds(ttl));
                    self.renewals += 1;
                }
            }
            Renewal::ClearCheckpoint => panic!("cleared, and still to be cleared"),
            Renewal::Expired | Renewal::NotFound | Renewal::NotPrimary => {}
        }
    }

    fn poll(&mut self, member: usize, lost: bool) {
        let lessor = &mut self.members[member].0;
        let checkpoints = lessor.checkpoints(self.now, 10);
        let expired = lessor.expired(self.now, 10);
        if lost || member != self.leader {
            return;
        }
        for Checkpoint { id, remaining } in checkpoints {
            self.propose(LeaseChange::Checkpoint { id, remaining });
        }
        for id in expired {
            if let Some((until, _)) = self.promised.get(&id) {
                assert!(
                    *until <= self.now,
                    "{id} was promised until {until:?}, now {:?}",
                    self.now
                );
            }
            self.revoke(id);
        }
    }

    fn elect(&mut self, member: usize) {
        if member == self.leader {
            return;
        }
        self.deposed.retain(|(deposed, _)| *deposed != member);
        self.deposed.push((self.leader, self.now + EXTEND));
        self.leader = member;
        self.term += 1;
        self.members[member].0.demote();
        self.apply(member);
        self.members[member].0.promote(EXTEND, self.now);
        self.members[member].2 = self.term;
    }

    fn restart(&mut self, member: usize) {
        let applied = self.members[member].1;
        let mut stored: BTreeMap<i64, leasepb::Lease> = BTreeMap::new();
        for (_, change) in &self.log[..applied] {
            match *change {
                LeaseChange::Granted { id, ttl } => {
                    stored.insert(id, leasepb::Lease { id, ttl, remaining_ttl: 0 });
                }
                LeaseChange::Revoked { id } => {
                    stored.remove(&id);
                }
                LeaseChange::Checkpoint { id, remaining } => {
                    if let Some(lease) = stored.get_mut(&id) {
                        lease.remaining_ttl = remaining;
                    }
                }
            }
        }
        self.members[member].0 = Lessor::recover(options(), stored.into_values());
        self.deposed.retain(|(deposed, _)| *deposed != member);
        if member == self.leader {
            let next = (member + 1) % MEMBERS;
            self.elect(next);
            self.deposed.retain(|(deposed, _)| *deposed != member);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Sleep(millis) => self.sleep(ms(millis)),
            Step::Grant { id, ttl } => {
                if !self.granted(id) {
                    self.propose(LeaseChange::Granted { id, ttl });
                    self.apply(self.leader);
                    self.promised.insert(id, (self.now + seconds(ttl), ttl));
                }
            }
            Step::Revoke(id) => self.revoke(id),
            Step::Renew { member, id } => self.renew(member, id),
            Step::Poll { member, lost } => self.poll(member, lost),
            Step::Apply => (0..MEMBERS).for_each(|member| self.apply(member)),
            Step::Elect(member) => self.elect(member),
            Step::Restart(member) => self.restart(member),
        }
    }

    fn check(&self) {
        for (lessor, ..) in &self.members {
            let Some(primary) = &lessor.primary else {
                assert!(lessor.leases.values().all(|lease| lease.clock.is_none()));
                continue;
            };
            let clocks = lessor.leases.iter().map(|(id, lease)| (*id, lease.clock.unwrap()));
            let (mut due, mut checkpoints) = (BTreeSet::new(), BTreeSet::new());
            for (id, clock) in clocks {
                assert!(clock.due >= clock.expiry);
                due.insert((clock.due, id));
                checkpoints.extend(clock.checkpoint_due.map(|due| (due, id)));
            }
            assert_eq!((&due, &checkpoints), (&primary.due, &primary.checkpoints));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn never_early_and_in_the_end_always(script in vec(steps(), 1..120)) {
        let mut cluster = Cluster::new();
        for step in &script {
            cluster.step(step);
            cluster.check();
        }
        // A quiet cluster: what is there expires within its TTL, the extension and a few polls.
        let last = cluster.now + s(40) + EXTEND + REVOCATION_RETRY + s(2);
        while cluster.now < last {
            cluster.sleep(ms(500));
            cluster.poll(cluster.leader, false);
            cluster.apply(cluster.leader);
        }
        prop_assert!(cluster.promised.is_empty(), "left: {:?}", cluster.promised);
        prop_assert!(cluster.members[cluster.leader].0.is_empty());
    }
}
