//! Random work, a stop of the machine at any point, and what is found afterwards.
//!
//! The model keeps what was promised and what was asked for; a recovered log must hold all of the
//! first and nothing outside the second.

use std::sync::Arc;

use mainstay_log::{
    DumpEnd, DumpValue, Fault, Files as _, LogStore as _, Recovered, SimFiles, Wal, read_all,
};
use mainstay_proto::raftpb::{Entry, HardState};
use proptest::prelude::*;

use crate::common::*;

const SEGMENT: u64 = 4096;

#[derive(Clone, Debug)]
enum Step {
    /// Append after the last entry, with or without a state that moves the commit.
    Append { count: u64, len: usize, commit: bool },
    /// A new leader replaces the uncommitted tail.
    Replace { back: u64, count: u64, len: usize },
    /// The commit alone.
    Commit,
    /// A snapshot mark at the commit, then release.
    Mark,
    /// A snapshot from the leader, beyond the end; entries may come in the same batch.
    Receive { beyond: u64, count: u64 },
    /// Close, or drop as a kill does, and open again.
    Reopen { close: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 0..100_usize, 2 => 400..1500_usize, 1 => 3000..9000_usize];
    let step = prop_oneof![
        6 => (1..5_u64, len.clone(), any::<bool>())
            .prop_map(|(count, len, commit)| Step::Append { count, len, commit }),
        2 => (0..4_u64, 0..4_u64, len)
            .prop_map(|(back, count, len)| Step::Replace { back, count, len }),
        2 => Just(Step::Commit),
        1 => Just(Step::Mark),
        1 => (1..20_u64, 0..4_u64).prop_map(|(beyond, count)| Step::Receive { beyond, count }),
        1 => any::<bool>().prop_map(|close| Step::Reopen { close }),
    ];
    prop::collection::vec(step, 1..25)
}

/// A log as it should be: entries `first..`, the state, the index of the mark that replay needs.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    /// Entries after `base`.
    base: u64,
    entries: Vec<Entry>,
    state: HardState,
}

impl Model {
    fn new() -> Self {
        Model { base: 0, entries: Vec::new(), state: state(0, 0, 0) }
    }

    fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    fn put(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.entries.truncate((entry.index() - self.base - 1) as usize);
            self.entries.push(entry.clone());
        }
    }

    /// The entries after an index.
    fn after(&self, index: u64) -> &[Entry] {
        &self.entries[(index - self.base) as usize..]
    }

    /// Whether a recovered log is this one. Replay may start at any mark within it.
    fn matches(&self, found: &Recovered) -> bool {
        let start = found.snapshot.index();
        found.hard_state == self.state
            && start >= self.base
            && start <= self.last()
            && found.entries == self.after(start)
    }
}

/// Runs the steps until one fails. Returns what was promised, and each log that may be found
/// instead, because the call that was to make it failed on the way.
struct Run {
    wal: Option<Wal>,
    disk: SimFiles,
    /// After the last call that returned with everything synced.
    promised: Model,
    /// What was asked for since, one batch after the other.
    possible: Vec<Model>,
    current: Model,
}

impl Run {
    fn start(disk: &SimFiles) -> Option<Run> {
        disk.create_dir(std::path::Path::new("/member")).ok()?;
        disk.sync_dir(std::path::Path::new("/")).ok()?;
        let files = Arc::new(disk.clone());
        let wal = Wal::create(files, &dir(), IDENTITY, options(SEGMENT)).ok()?;
        let model = Model::new();
        Some(Run {
            wal: Some(wal),
            disk: disk.clone(),
            promised: model.clone(),
            possible: Vec::new(),
            current: model,
        })
    }

    fn append(&mut self, entries: &[Entry], hard_state: Option<HardState>) -> bool {
        // A torn batch keeps some of its first records: each is a log that may be found.
        for entry in entries {
            self.current.put(std::slice::from_ref(entry));
            self.possible.push(self.current.clone());
        }
        let synced = !entries.is_empty()
            || hard_state.is_some_and(|state| {
                state.term() != self.current.state.term()
                    || state.vote() != self.current.state.vote()
            });
        if let Some(state) = hard_state {
            self.current.state = state;
            self.possible.push(self.current.clone());
        }
        let wal = self.wal.as_mut().expect("open between the steps");
        let done = wal.append(entries, hard_state.as_ref(), synced).is_ok();
        if done && synced {
            self.promise();
        }
        done
    }

    fn promise(&mut self) {
        self.promised = self.current.clone();
        self.possible.clear();
    }

    fn mark(&mut self, index: u64, term: u64) -> bool {
        let wal = self.wal.as_mut().expect("open between the steps");
        let done = wal.save_snapshot(&mark(index, term)).is_ok();
        if done {
            self.promise();
        }
        done
    }

    fn step(&mut self, step: &Step) -> bool {
        let model = self.current.clone();
        let (term, commit, last) = (model.state.term().max(1), model.state.commit(), model.last());
        match *step {
            Step::Append { count, len, commit: moves } => {
                let entries = entries(last + 1..=last + count, term, len);
                let next = state(term, 1, if moves { last } else { commit });
                self.append(&entries, (moves || model.state.term() == 0).then_some(next))
            }
            Step::Replace { back, count, len } => {
                let first = (last + 1).saturating_sub(back).max(commit + 1).max(model.base + 1);
                let entries: Vec<_> =
                    (first..first + count).map(|index| entry(index, term + 1, len)).collect();
                self.append(&entries, Some(state(term + 1, 2, commit)))
            }
            Step::Commit => self.append(&[], Some(state(term, model.state.vote(), last))),
            Step::Mark => {
                if commit <= model.base {
                    return true;
                }
                let term = model.after(commit - 1)[0].term();
                if !self.mark(commit, term) {
                    return false;
                }
                let wal = self.wal.as_mut().expect("open between the steps");
                wal.release_before(commit).is_ok()
            }
            Step::Receive { beyond, count } => {
                let index = last + beyond;
                let wal = self.wal.as_mut().expect("open between the steps");
                // Until the hard state is there too, the old log is still the one in force.
                if wal.save_snapshot(&mark(index, term)).is_err() {
                    return false;
                }
                self.promise();
                let before = self.current.clone();
                let received = Model { base: index, entries: Vec::new(), state: model.state };
                self.current = received;
                let entries = entries(index + 1..=index + count, term, 700);
                let done = self.append(&entries, Some(state(term + 1, 1, index)));
                if !done {
                    // All of the batch or the old log: nothing between is in force.
                    self.possible = vec![before, self.current.clone()];
                }
                done
            }
            Step::Reopen { close } => {
                let mut wal = self.wal.take().expect("open between the steps");
                if close && wal.close().is_err() {
                    return false;
                }
                if close {
                    self.promise();
                }
                drop(wal);
                match open(&self.disk, SEGMENT) {
                    Ok((wal, found)) => {
                        // A kill loses what was buffered, at most the commit.
                        let known = self.current.matches(&found)
                            || self.promised.matches(&found)
                            || self.possible.iter().any(|model| model.matches(&found));
                        assert!(known, "{found:?}\nis neither {:?}", self.promised);
                        self.current = Model { state: found.hard_state, ..self.current.clone() };
                        self.promise();
                        self.wal = Some(wal);
                        true
                    }
                    Err(mainstay_log::OpenError::Io { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    fn check(&self, found: &Recovered) -> Result<(), TestCaseError> {
        let known =
            self.promised.matches(found) || self.possible.iter().any(|model| model.matches(found));
        prop_assert!(
            known,
            "found {found:?}\npromised {:?}\npossible {:?}",
            self.promised,
            self.possible
        );
        Ok(())
    }
}

proptest! {
    // The message of a failure has all that is needed; a fixed fault becomes a test of its own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The machine stops at a random point.
    #[test]
    fn what_was_promised_survives_and_nothing_is_invented(
        steps in steps(), stop in any::<prop::sample::Index>(), seed in any::<u64>(),
    ) {
        let whole = SimFiles::new();
        if let Some(mut run) = Run::start(&whole) {
            for step in &steps {
                prop_assert!(run.step(step), "{step:?} fails without a fault");
            }
        }
        let stop = stop.index(whole.changes() as usize + 1) as u64;
        crash_at(&steps, stop, seed)?;
    }
}

/// The same work stopped at every single change of the disk, several ways each.
#[test]
fn a_stop_at_every_point_of_a_fixed_run() {
    let steps = [
        Step::Append { count: 3, len: 100, commit: false },
        Step::Append { count: 2, len: 1200, commit: true },
        Step::Commit,
        Step::Replace { back: 1, count: 2, len: 600 },
        Step::Append { count: 3, len: 1500, commit: true },
        Step::Mark,
        Step::Append { count: 1, len: 7000, commit: true },
        Step::Reopen { close: false },
        Step::Receive { beyond: 5, count: 3 },
        Step::Append { count: 4, len: 1000, commit: true },
        Step::Reopen { close: true },
        Step::Append { count: 4, len: 1000, commit: true },
        Step::Append { count: 4, len: 1000, commit: true },
        Step::Append { count: 4, len: 1000, commit: true },
        Step::Append { count: 4, len: 1000, commit: true },
        Step::Commit,
        Step::Mark,
        Step::Append { count: 1, len: 10, commit: true },
    ];
    let whole = SimFiles::new();
    let mut run = Run::start(&whole).expect("no fault");
    for step in &steps {
        assert!(run.step(step), "{step:?} fails without a fault");
    }
    assert!(whole.changes() > 60);
    for stop in 0..=whole.changes() {
        for seed in 0..12 {
            if let Err(error) = crash_at(&steps, stop, seed) {
                panic!("stopped at change {stop}, seed {seed}: {error}");
            }
        }
    }
}

fn crash_at(steps: &[Step], stop: u64, seed: u64) -> Result<(), TestCaseError> {
    let disk = SimFiles::new();
    disk.inject(Fault::PowerOff, stop);
    let run = Run::start(&disk).map(|mut run| {
        let all_done = steps.iter().all(|step| run.step(step));
        run.wal = None;
        (run, all_done)
    });
    // A xorshift: the disk's choices must not depend on how many steps ran before.
    let mut random = seed | 1;
    let mut choose = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let disk = disk.crash(&mut choose);
    let Some((run, _)) = run else {
        // Stopped while the log was made: it is there whole, or the next start makes it.
        return match open(&disk, SEGMENT) {
            Ok((_, found)) => {
                prop_assert!(Model::new().matches(&found));
                Ok(())
            }
            Err(mainstay_log::OpenError::NotFound { .. }) => {
                create(&disk, SEGMENT);
                Ok(())
            }
            Err(error) => Err(TestCaseError::fail(error.to_string())),
        };
    };
    let fail = |error: mainstay_log::OpenError| TestCaseError::fail(error.to_string());
    let (mut wal, found) = open(&disk, SEGMENT).map_err(fail)?;
    run.check(&found)?;
    // The log goes on from there, and survives the next stop too.
    let last = found.entries.last().map_or(found.snapshot.index(), Entry::index);
    // Of a torn batch entries of a new term may be left without the state that began it.
    let newest = found.entries.last().map_or(0, Entry::term);
    let term = found.hard_state.term().max(newest) + 1;
    let more = entries(last + 1..=last + 3, term, 300);
    wal.append(&more, Some(&state(term, 1, last)), true).unwrap();
    drop(wal);
    let disk = disk.crash(&mut choose);
    let (wal, again) = open(&disk, SEGMENT).map_err(fail)?;
    drop(wal);
    prop_assert!(again.repair.is_none(), "{:?}", again.repair);
    prop_assert_eq!(again.hard_state, state(term, 1, last));
    let mut expected = found.entries.clone();
    expected.extend(more);
    let newer = (again.snapshot.index() - found.snapshot.index()) as usize;
    prop_assert_eq!(&again.entries, &expected[newer..]);
    let (records, end) = read_all(&disk, &dir()).map_err(fail)?;
    prop_assert!(matches!(end, DumpEnd::Clean), "{:?}", end);
    prop_assert!(matches!(records[0].value, DumpValue::Crc));
    Ok(())
}
