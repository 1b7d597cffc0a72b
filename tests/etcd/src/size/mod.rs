//! Size: memory and restart with many keys, latency with many bytes, beside real etcd.
//!
//! Input: how many keys or bytes. Output: measurements of each program and their ratios. Both run
//! alone on the machine, one after the other, with the same requests and with fsync.

mod load;
mod probe;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use mainstay_proto::etcdserverpb::{CompactionRequest, DefragmentRequest, RangeRequest};

use crate::client::Client;
use crate::member::{Cluster, Member, Program};
use crate::ops::revision;
use load::{Keys, load};
use probe::{Latencies, Probe};

/// A member that writes less than this in this time rests.
const QUIET_BYTES: u64 = 1 << 20;
const QUIET_TIME: Duration = Duration::from_secs(10);

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// All that is resident.
    pub resident: u64,
    /// Of it: not backed by files.
    pub anonymous: u64,
}

impl Memory {
    fn of(member: &Member) -> Result<Self> {
        let pid = member.pid().context("the member does not run")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name));
            let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            number.map(|kib| kib * 1024).with_context(|| format!("no {name} in /proc"))
        };
        Ok(Memory { resident: field("VmRSS:")?, anonymous: field("RssAnon:")? })
    }
}

/// One program with many keys.
#[derive(Clone, Debug)]
pub struct Small {
    /// After the load and a rest.
    pub loaded: Memory,
    /// After a restart and a rest.
    pub restarted: Memory,
    /// From the start of the process to the first linearizable read, the median.
    pub restart: Duration,
    /// The same after `kill -9`.
    pub restart_killed: Duration,
    /// Puts per second of the load.
    pub rate: f64,
}

/// A run with many keys.
#[derive(Clone, Debug)]
pub struct SmallOptions {
    /// How many.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// How long a member rests before its memory is read.
    pub rest: Duration,
    /// How many restarts are timed.
    pub restarts: usize,
}

async fn count(url: &str) -> Result<i64> {
    let request = RangeRequest {
        key: b"\0".to_vec().into(),
        range_end: b"\0".to_vec().into(),
        count_only: true,
        ..Default::default()
    };
    Ok(Client::connect(url).await?.kv.range(request).await?.into_inner().count)
}

/// Starts a stopped member; answers the time to the first linearizable read of a key.
async fn time_start(member: &mut Member, key: &[u8]) -> Result<Duration> {
    let start = Instant::now();
    member.spawn()?;
    let request = RangeRequest { key: key.to_vec().into(), ..Default::default() };
    loop {
        if let Ok(mut client) = Client::connect(&member.client_url).await
            && let Ok(Ok(answer)) =
                tokio::time::timeout(Duration::from_secs(1), client.kv.range(request.clone())).await
        {
            ensure!(answer.into_inner().kvs.len() == 1, "a loaded key is not there");
            return Ok(start.elapsed());
        }
        ensure!(member.is_running(), "{} ended:\n{}", member.name, member.log_tail());
        ensure!(start.elapsed() < Duration::from_secs(300), "no answer in 300 s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Loads many keys into one member and measures it.
pub async fn small(program: Program, options: &SmallOptions) -> Result<Small> {
    let mut cluster = Cluster::start(&[program], &["--quota-backend-bytes=8589934592"]).await?;
    let url = cluster.members[0].client_url.clone();
    let keys = Keys { count: options.keys, value_bytes: options.value_bytes };
    let start = Instant::now();
    load(&url, &keys, 0..options.keys).await?;
    let rate = options.keys as f64 / start.elapsed().as_secs_f64();
    println!("{program:?}: {} keys loaded, {rate:.0} puts/s", options.keys);
    tokio::time::sleep(options.rest).await;
    let loaded = Memory::of(&cluster.members[0])?;
    println!("{program:?}: at rest {loaded:?}");

    let member = &mut cluster.members[0];
    let key = keys.key(options.keys / 2);
    let (mut stopped, mut killed) = (Vec::new(), Vec::new());
    for _ in 0..options.restarts {
        member.kill();
        killed.push(time_start(member, &key).await?);
        member.stop()?;
        stopped.push(time_start(member, &key).await?);
    }
    println!("{program:?}: restarts {stopped:?}, after kill -9 {killed:?}");
    tokio::time::sleep(options.rest).await;
    let restarted = Memory::of(member)?;
    println!("{program:?}: at rest after a restart {restarted:?}");
    let found = count(&url).await?;
    ensure!(found as u64 == options.keys, "{found} keys after the restart");
    Ok(Small { loaded, restarted, restart: median(stopped), restart_killed: median(killed), rate })
}

/// One program with many bytes.
#[derive(Clone, Debug)]
pub struct Large {
    /// Latencies while nothing else happens, before and after the rest.
    pub idle: [Latencies; 2],
    /// While old revisions are deleted.
    pub compaction: Latencies,
    /// While space is reclaimed.
    pub defragment: Latencies,
}

/// A run with many bytes.
#[derive(Clone, Debug)]
pub struct LargeOptions {
    /// Bytes of all values.
    pub bytes: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Measured at least so long in each phase.
    pub window: Duration,
    /// Puts per second while measuring.
    pub puts: u32,
    /// Gets per second while measuring.
    pub gets: u32,
}

/// Loads many bytes into one member and measures it while it compacts and defragments.
pub async fn large(program: Program, options: &LargeOptions) -> Result<Large> {
    let flags = ["--quota-backend-bytes=68719476736"];
    let cluster = Cluster::start(&[program], &flags).await?;
    let url = cluster.members[0].client_url.clone();
    let count = options.bytes / options.value_bytes as u64;
    let keys = Keys { count, value_bytes: options.value_bytes };
    let start = Instant::now();
    load(&url, &keys, 0..count).await?;
    // Old values, so that the compaction has work.
    load(&url, &keys, 0..count / 2).await?;
    println!(
        "{program:?}: {count} keys of {} bytes loaded and half of them twice in {} s",
        options.value_bytes,
        start.elapsed().as_secs()
    );
    quiet(&cluster.members[0]).await?;
    let probe = Probe::start(&url, keys, options.puts, options.gets).await?;
    tokio::time::sleep(options.window).await;
    let before = probe.take();
    println!("{program:?}: idle {before}");

    let request = CompactionRequest { revision: revision(&url).await?, physical: true };
    let start = Instant::now();
    Client::connect(&url).await?.kv.compact(request).await?;
    let time = start.elapsed();
    // A program that works in the background is measured while it does.
    tokio::time::sleep(options.window.saturating_sub(time)).await;
    let compaction = probe.take();
    println!("{program:?}: compaction ({time:.1?}) {compaction}");

    let start = Instant::now();
    Client::connect(&url).await?.maintenance.defragment(DefragmentRequest {}).await?;
    let time = start.elapsed();
    tokio::time::sleep(options.window.saturating_sub(time)).await;
    let defragment = probe.take();
    println!("{program:?}: defragment ({time:.1?}) {defragment}");
    probe.stop().await?;
    quiet(&cluster.members[0]).await?;
    let probe = Probe::start(&url, keys, options.puts, options.gets).await?;
    tokio::time::sleep(options.window).await;
    let after = probe.take();
    println!("{program:?}: idle again {after}");
    probe.stop().await?;
    println!("{program:?}: {:?}", Memory::of(&cluster.members[0])?);
    Ok(Large { idle: [before, after], compaction, defragment })
}

/// Waits until a member does not write any more: what a load leaves behind is not idle.
async fn quiet(member: &Member) -> Result<()> {
    let pid = member.pid().context("the member does not run")?;
    let written = || -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        Ok(line.context("no write_bytes in /proc")?.trim().parse()?)
    };
    let start = Instant::now();
    let mut before = written()?;
    loop {
        tokio::time::sleep(QUIET_TIME).await;
        let now = written()?;
        if now - before < QUIET_BYTES {
            println!("quiet after {} s", start.elapsed().as_secs());
            return Ok(());
        }
        ensure!(start.elapsed() < Duration::from_secs(600), "writes still after ten minutes");
        before = now;
    }
}
