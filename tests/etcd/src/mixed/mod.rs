//! Mixed clusters: real etcd and Mainstay as members of one cluster, compared with etcd alone.
//!
//! Input: which program each member runs, how many compactions. Output: a report. The same random
//! requests go to the cluster, through a member that changes, and to one real etcd; every answer
//! must be equal while leadership moves and members are killed, paused and left behind. What
//! disturbs happens between two requests, and the next one waits until the members are settled, so
//! answers can be compared exactly.

mod byte;
mod corrupt;
mod disturb;
mod lease;
mod wal;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use mainstay_proto::etcdserverpb::{CompactionRequest, HashKvRequest, PutRequest};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::client::Client;
use crate::fuzz::generate::{Generator, Step};
use crate::fuzz::{Pair, Session};
use crate::member::{Cluster, Member, Program};
use crate::ops::{alarms, describe_hashes, equal_hashes, hash_kv, leader, revision, settle};

pub use corrupt::show_corruption;

/// What real members run with: they compare hashes at each compaction and at their start.
const CHECKS: [&str; 2] = [
    "--feature-gates=CompactHashCheck=true,InitialCorruptCheck=true",
    "--compact-hash-check-time=5s",
];
/// Members that were away for more entries than this need a snapshot.
const SNAPSHOTS: [&str; 2] = ["--snapshot-count=100", "--snapshot-catchup-entries=50"];
/// Time for background deletions to end.
const HASH_TIME: Duration = Duration::from_secs(20);

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Compactions, each with a comparison of hashes.
    pub compactions: usize,
    /// Requests between two compactions.
    pub requests: usize,
    /// Seed of everything.
    pub seed: u64,
}

/// A mixed cluster and its reference.
struct Mixed {
    cluster: Cluster,
    reference: Cluster,
    generator: Generator,
    rng: ChaCha8Rng,
    seed: u64,
    /// Which members run and are not paused.
    running: Vec<bool>,
    /// How often each member was seen to lead.
    led: BTreeMap<String, usize>,
    /// How often something happened.
    done: BTreeMap<&'static str, usize>,
    leases: i64,
}

/// Flags of a member of a mixed cluster.
fn flags(program: Program) -> Vec<String> {
    let checks: &[&str] = if program == Program::Etcd { &CHECKS } else { &[] };
    checks.iter().chain(&SNAPSHOTS).map(ToString::to_string).collect()
}

impl Mixed {
    async fn start(programs: &[Program], seed: u64) -> Result<Self> {
        Ok(Mixed {
            cluster: Cluster::start_in(tempfile::tempdir()?, programs, flags).await?,
            reference: Cluster::start(&[Program::Etcd], &["--unsafe-no-fsync"]).await?,
            generator: Generator::new(seed),
            rng: ChaCha8Rng::seed_from_u64(seed),
            seed,
            running: vec![true; programs.len()],
            led: BTreeMap::new(),
            done: BTreeMap::new(),
            leases: 0,
        })
    }

    /// Members that run.
    fn up(&self) -> Vec<&Member> {
        let members = self.cluster.members.iter().zip(&self.running);
        members.filter(|(_, up)| **up).map(|(member, _)| member).collect()
    }

    /// Positions of members that run, without one.
    fn others(&self, but: usize) -> Vec<usize> {
        (0..self.running.len()).filter(|at| self.running[*at] && *at != but).collect()
    }

    fn pick(&mut self, from: &[usize]) -> Result<usize> {
        from.choose(&mut self.rng).copied().context("no member to choose from")
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// Waits for health; remembers who leads.
    async fn settled(&mut self) -> Result<()> {
        for (member, up) in self.cluster.members.iter_mut().zip(&self.running) {
            if *up && !member.is_running() {
                bail!("{} ended by itself:\n{}", member.name, member.log_tail());
            }
        }
        let up = self.up();
        settle(up.iter().copied()).await.with_context(|| self.log_tails())?;
        let up = self.up();
        let name = up[leader(&up).await?].name.clone();
        *self.led.entry(name).or_default() += 1;
        Ok(())
    }

    fn log_tails(&self) -> String {
        let tails = self.cluster.members.iter();
        tails.map(|member| format!("{}:\n{}\n", member.name, member.log_tail())).collect()
    }

    /// A step that answers alike on a member that was started again: hashes that were stored at
    /// compactions are gone there.
    fn step(&mut self) -> Step {
        match self.generator.step() {
            Step::HashKv(HashKvRequest { revision })
                if (1..=self.generator.compacted).contains(&revision) =>
            {
                Step::HashKv(HashKvRequest { revision: 0 })
            }
            step => step,
        }
    }

    async fn pair(&self, asked: usize) -> Result<Pair> {
        Ok(Pair {
            reference: Client::connect(&self.reference.members[0].client_url).await?,
            tested: Client::connect(&self.cluster.members[asked].client_url).await?,
        })
    }

    /// Requests through one member with a disturbance in the middle, then a compaction and the
    /// comparison of hashes.
    async fn session(&mut self, number: usize, requests: usize) -> Result<()> {
        let leaver = if number % 10 == 3 { self.leaver(number) } else { usize::MAX };
        let asked = self.pick(&self.others(leaver))?;
        self.settled().await?;
        let mut pair = self.pair(asked).await?;
        let mut session = Session::open(&mut pair, self.seed).await?;
        self.generator.forget_watchers();
        let disturbance = self.choose(number, asked).await?;
        for at in 0..requests {
            if at == requests / 2 {
                self.begin(disturbance).await?;
            }
            let step = self.step();
            self.execute(&mut session, &mut pair, &step, asked).await?;
        }
        // Something to compact, if all was compacted a moment ago.
        let put = PutRequest { key: "b".into(), ..Default::default() };
        self.execute(&mut session, &mut pair, &Step::Put(put), asked).await?;
        let newest = self.generator.revision;
        let compaction = CompactionRequest {
            revision: self.rng.random_range(self.generator.compacted + 1..=newest),
            physical: true,
        };
        self.execute(&mut session, &mut pair, &Step::Compact(compaction), asked).await?;
        if let Some(difference) = session.finish(&mut pair).await? {
            bail!("asked {}: {difference}", self.cluster.members[asked].name);
        }
        self.compare_hashes(compaction.revision).await?;
        self.end(disturbance, asked).await?;
        for member in self.up() {
            let alarms = alarms(&member.client_url).await?;
            ensure!(alarms.is_empty(), "{} lists alarms: {alarms:?}", member.name);
        }
        println!(
            "compaction {}: {requests} requests through {} ({:?}), {disturbance:?}, revision {}",
            number + 1,
            self.cluster.members[asked].name,
            self.cluster.members[asked].program,
            self.generator.revision
        );
        Ok(())
    }

    async fn execute(
        &mut self,
        session: &mut Session,
        pair: &mut Pair,
        step: &Step,
        asked: usize,
    ) -> Result<()> {
        let answer = session.step(pair, &mut self.generator, step).await;
        let member = &self.cluster.members[asked];
        let answer = answer.with_context(|| format!("asked {}: {step:?}", member.name))?;
        if let Some(difference) = answer {
            bail!("asked {} ({:?}): {difference}", member.name, member.program);
        }
        Ok(())
    }

    /// The hash that was stored at a compaction and the one of now: equal on all members and on
    /// the reference.
    async fn compare_hashes(&mut self, compaction: i64) -> Result<()> {
        let reference = self.reference.members[0].client_url.clone();
        for at in [compaction, 0] {
            // Members that were away may know of the compaction by a snapshot, without its hash.
            let hash = equal_hashes(&self.up(), at, HASH_TIME).await?;
            let expected = hash_kv(&reference, at).await?;
            if hash != (expected.hash, expected.compact_revision) {
                let members = describe_hashes(&self.up(), at).await;
                bail!("HashKV({at}): etcd alone says {expected:?}, members say\n{members}");
            }
        }
        self.count("comparisons of hashes");
        Ok(())
    }

    /// Both stores are at the same revision.
    async fn compare_revisions(&self) -> Result<()> {
        let expected = revision(&self.reference.members[0].client_url).await?;
        for member in self.up() {
            let found = revision(&member.client_url).await?;
            ensure!(found == expected, "{}: revision {found}, etcd {expected}", member.name);
        }
        Ok(())
    }

    /// Lines of all logs that say that something is broken.
    fn complaints(&self) -> Vec<String> {
        let mut found = Vec::new();
        for member in &self.cluster.members {
            let log = std::fs::read_to_string(&member.log_path).unwrap_or_default();
            let bad = ["panic", "\"level\":\"fatal\"", "CORRUPT", "hash mismatch", "inconsistency"];
            let lines = log.lines().filter(|line| bad.iter().any(|word| line.contains(word)));
            found.extend(lines.take(5).map(|line| format!("{}: {line}", member.name)));
        }
        found
    }
}

/// Runs the comparison on a cluster of the given programs; answers what happened.
pub async fn run(programs: &[Program], options: &Options) -> Result<Vec<String>> {
    let start = Instant::now();
    let mut mixed = Mixed::start(programs, options.seed).await?;
    println!("{programs:?} in {}", mixed.cluster.dir.path().display());
    let result = run_all(&mut mixed, options).await;
    if result.is_err() {
        mixed.cluster.dir.disable_cleanup(true);
        mixed.reference.dir.disable_cleanup(true);
        println!("data and logs are in {}", mixed.cluster.dir.path().display());
    }
    let entries = result?;
    let snapshots = disturb::snapshots(&mixed.cluster);
    // In 60 sessions every member lags twice, and every other one helps it once.
    if options.compactions >= 60 && options.requests >= 60 {
        let all = snapshots.iter().all(|(received, sent)| *received > 0 && *sent > 0);
        ensure!(all, "not every member received and sent a snapshot: {snapshots:?}");
    }
    Ok(vec![
        format!("{programs:?}: {} s", start.elapsed().as_secs()),
        format!("  leaders seen: {:?}", mixed.led),
        format!("  {:?}", mixed.done),
        format!("  snapshots that each member received and sent: {snapshots:?}"),
        format!("  {entries} log entries equal on all members, byte by byte"),
    ])
}

async fn run_all(mixed: &mut Mixed, options: &Options) -> Result<usize> {
    for number in 0..options.compactions {
        let session = mixed.session(number, options.requests).await;
        session.with_context(|| format!("session {number}"))?;
        if number % 10 == 9 || number + 1 == options.compactions {
            mixed.leases().await.with_context(|| format!("leases after session {number}"))?;
        }
    }
    // The last compaction is checked by the leader within its interval.
    tokio::time::sleep(Duration::from_secs(6)).await;
    for member in mixed.up() {
        let alarms = alarms(&member.client_url).await?;
        ensure!(alarms.is_empty(), "{} lists alarms: {alarms:?}", member.name);
    }
    mixed.compare_revisions().await?;
    for member in &mut mixed.cluster.members {
        let status = member.stop()?;
        println!("{} ended with {status} after SIGTERM", member.name);
    }
    let complaints = mixed.complaints();
    ensure!(complaints.is_empty(), "logs complain:\n{}", complaints.join("\n"));
    for member in &mixed.cluster.members {
        ensure!(mixed.led.contains_key(&member.name), "{} never led", member.name);
    }
    wal::compare(&mixed.cluster.members)
}
