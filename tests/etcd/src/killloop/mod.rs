//! The kill loop: three members, clients and watchers, and `kill -9` all the time.
//!
//! Input: a program, a time. Output: a report with every contradiction: an acknowledged write that
//! is not there, a refused one that is, a read of a state that never was or was over, an event
//! that a watcher missed, saw twice or in the wrong order, members with different content.
//!
//! Nothing is compacted, so the history of the store is read at the end, and everything that
//! clients and watchers saw is compared with it exactly.

mod history;
mod operation;
mod verify;
mod watcher;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use mainstay_proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion,
};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;

use crate::member::{Cluster, Member, kill_all};
use crate::ops::{PATIENCE, connect, equal_hashes, settle};
use history::{Event, History};
use operation::{Answer, Operation, Outcome, Request};
use verify::{View, check_operations, check_watcher};
use watcher::{Plan, watch};
use writer::{SHARED_PREFIX, Shared, own_prefix, write};

/// A run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long members are killed.
    pub time: Duration,
    /// Time between two kills.
    pub every: Duration,
    /// Clients.
    pub clients: u32,
    /// Seed of all choices.
    pub seed: u64,
}

/// What came out.
#[derive(Debug, Default)]
pub struct Report {
    /// What happened, for people.
    pub summary: Vec<String>,
    /// Every contradiction.
    pub problems: Vec<String>,
}

/// Watchers of all kinds: bound to each member and free to roam, of everything and of parts.
fn plans(urls: &[String], clients: u32) -> Vec<Plan> {
    let plan = |name: String, urls: &[String], prefix: &str| Plan {
        view: View {
            name,
            prefix: Bytes::copy_from_slice(prefix.as_bytes()),
            with_previous: true,
            puts_only: false,
        },
        urls: urls.to_vec(),
        fragment: false,
        rest: Duration::ZERO,
    };
    let mut plans = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        let url = std::slice::from_ref(url);
        plans.push(plan(format!("all@m{at}"), url, ""));
        let mut puts = plan(format!("shared-puts@m{at}"), url, SHARED_PREFIX);
        puts.view.puts_only = true;
        puts.view.with_previous = false;
        plans.push(puts);
    }
    plans.push(plan("all@any".into(), urls, ""));
    plans.push(Plan { fragment: true, ..plan("fragments@any".into(), urls, "") });
    let slow = plan("slow@any".into(), urls, "");
    plans.push(Plan { rest: Duration::from_millis(200), ..slow });
    for client in [0, clients - 1] {
        let prefix = String::from_utf8_lossy(&own_prefix(client)).into_owned();
        plans.push(plan(format!("{prefix}@any"), urls, &prefix));
    }
    plans
}

/// Kills and restarts members until the time is over; answers how often each was killed.
async fn kill_members(
    cluster: &mut Cluster,
    options: &Options,
    shared: &Shared,
) -> Result<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let mut kills = vec![0; cluster.members.len()];
    let start = Instant::now();
    let mut said = start;
    let mut ticks = tokio::time::interval(options.every);
    ticks.tick().await;
    while start.elapsed() < options.time {
        ticks.tick().await;
        check_running(&mut cluster.members)?;
        let at = rng.random_range(0..cluster.members.len());
        cluster.members[at].kill();
        kills[at] += 1;
        let down = rng.random_range(Duration::ZERO..options.every / 2);
        tokio::time::sleep(down).await;
        cluster.members[at].spawn()?;
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            println!("{:4} s: {}", start.elapsed().as_secs(), progress(shared, &kills));
        }
    }
    Ok(kills)
}

fn progress(shared: &Shared, kills: &[u32]) -> String {
    let [acked, failed, unknown] = &shared.counts;
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    format!(
        "kills {kills:?}, operations {} acked {} refused {} unknown, revision {}, watch breaks {}",
        load(acked),
        load(failed),
        load(unknown),
        shared.seen.load(Ordering::Relaxed),
        load(&shared.breaks),
    )
}

fn check_running(members: &mut [Member]) -> Result<()> {
    for member in members {
        if !member.is_running() {
            bail!("{} ended by itself:\n{}", member.name, member.log_tail());
        }
    }
    Ok(())
}

/// All events of one member, from a watch of everything from revision 1.
async fn read_history(url: &str, until: i64) -> Result<Vec<Event>> {
    let mut client = connect(url).await?;
    let create = WatchCreateRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        start_revision: 1,
        ..Default::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let (requests, receiver) = tokio::sync::mpsc::channel(1);
    requests.send(request).await?;
    let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut responses = client.watch.watch(receiver).await?.into_inner();
    let mut events = Vec::new();
    while events.last().is_none_or(|event: &Event| event.revision < until) {
        let response = tokio::time::timeout(PATIENCE, responses.message())
            .await
            .with_context(|| format!("{url}: history stops after {:?}", events.last()))??
            .with_context(|| format!("{url}: history ends after {:?}", events.last()))?;
        if response.canceled {
            bail!("{url}: history canceled: {response:?}");
        }
        events.extend(response.events.iter().map(Event::new));
    }
    Ok(events)
}

/// Compares ranges of everything at a revision with the history.
async fn check_range(url: &str, revision: i64, history: &History) -> Result<Option<String>> {
    let mut client = connect(url).await?;
    let request = RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Bytes::from_static(b"\0"),
        revision,
        ..Default::default()
    };
    let kvs = client.kv.range(request).await?.into_inner().kvs;
    let kvs: Vec<_> = kvs.into_iter().map(|kv| (kv.key, kv.mod_revision, kv.value)).collect();
    let live = history.live(b"", revision);
    let live: Vec<_> =
        live.into_iter().map(|(key, held)| (key, held.revision, held.value)).collect();
    if kvs == live {
        return Ok(None);
    }
    let differs = kvs.iter().zip(&live).find(|(left, right)| left != right);
    Ok(Some(format!(
        "{url}: range at {revision} has {} keys, history {}, first difference {differs:?}",
        kvs.len(),
        live.len()
    )))
}

/// Puts one last key; answers its revision.
async fn put_marker(url: &str, operations: &mut Vec<Operation>, shared: &Shared) -> Result<i64> {
    let (key, value) = (Bytes::from_static(b"zz/end"), Bytes::from_static(b"the end"));
    let floor = shared.seen.load(Ordering::SeqCst);
    let put = PutRequest { key: key.clone(), value: value.clone(), ..Default::default() };
    let answer = connect(url).await?.kv.put(put).await?.into_inner();
    let revision = answer.header.map_or(0, |header| header.revision);
    operations.push(Operation {
        client: u32::MAX,
        floor,
        request: Request::Put { key, value },
        outcome: Outcome::Acked { revision, answer: Answer::Put(None) },
    });
    Ok(revision)
}

/// Runs it on a cluster that serves.
pub async fn run(cluster: &mut Cluster, options: &Options) -> Result<Report> {
    let urls = cluster.client_urls();
    let shared = Arc::new(Shared { seen: AtomicI64::new(1), ..Default::default() });
    let (end, ended) = watch::channel(i64::MAX);
    let watchers: Vec<_> = plans(&urls, options.clients)
        .into_iter()
        .map(|plan| tokio::spawn(watch(plan, shared.clone(), ended.clone(), PATIENCE)))
        .collect();
    let writers: Vec<_> = (0..options.clients)
        .map(|client| {
            let mut urls = urls.clone();
            let members = urls.len();
            urls.rotate_left(client as usize % members);
            tokio::spawn(write(client, options.seed, urls, shared.clone()))
        })
        .collect();

    let kills = kill_members(cluster, options, &shared).await?;
    println!("kill -9 of all {} members at once", cluster.members.len());
    kill_all(&mut cluster.members);
    for member in &mut cluster.members {
        member.spawn()?;
    }
    settle(&cluster.members).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    shared.stop.store(true, Ordering::Relaxed);
    let mut operations = Vec::new();
    for writer in writers {
        operations.extend(writer.await?);
    }
    settle(&cluster.members).await?;
    // A write with an unknown end may still be on its way; a quiet second makes the last key last.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let revision = put_marker(&urls[0], &mut operations, &shared).await?;
    end.send(revision)?;
    let mut report = Report::default();
    println!("{}; waiting for watchers", progress(&shared, &kills));
    let mut watched = Vec::new();
    for watcher in watchers {
        watched.push(watcher.await?);
    }
    check_running(&mut cluster.members)?;

    println!("reading the history up to revision {revision}");
    let readers: Vec<_> = urls
        .iter()
        .map(|url| {
            let url = url.clone();
            tokio::spawn(async move { read_history(&url, revision).await })
        })
        .collect();
    let mut histories = Vec::new();
    for reader in readers {
        histories.push(reader.await??);
    }
    let events = histories.remove(0);
    for (url, other) in urls.iter().skip(1).zip(histories) {
        if other != events {
            let at = events.iter().zip(&other).take_while(|(left, right)| left == right).count();
            report.problems.push(format!(
                "histories of {} and {url} differ at event {at}: {:?} and {:?}",
                urls[0],
                events.get(at),
                other.get(at)
            ));
        }
    }
    println!("comparing {} operations with {} events", operations.len(), events.len());
    let history = History::new(events);
    report.problems.extend(history.problems.iter().cloned());
    report.problems.extend(check_operations(&operations, &history));
    for watched in &watched {
        report.problems.extend(watched.problems.iter().cloned());
        report.problems.extend(check_watcher(&watched.view, &watched.observed, &history));
    }
    println!("comparing old states and hashes");
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed + 1);
    let mut revisions: Vec<i64> = (0..100).map(|_| rng.random_range(1..=revision)).collect();
    revisions.push(revision);
    for at in &revisions {
        let url = urls.choose(&mut rng).context("no members")?;
        report.problems.extend(check_range(url, *at, &history).await?);
    }
    let members: Vec<&Member> = cluster.members.iter().collect();
    for at in [0].iter().chain(revisions.iter().rev().take(10)) {
        if let Err(error) = equal_hashes(&members, *at, PATIENCE).await {
            report.problems.push(format!("{error:#}"));
        }
    }
    report.summary = summary(&operations, &shared, &kills, &watched, &history);
    Ok(report)
}

fn summary(
    operations: &[Operation],
    shared: &Shared,
    kills: &[u32],
    watched: &[watcher::Watched],
    history: &History,
) -> Vec<String> {
    let mut lines = vec![progress(shared, kills)];
    let acked = operations.iter().filter(|operation| {
        operation.request.writes() && matches!(operation.outcome, Outcome::Acked { .. })
    });
    lines.push(format!(
        "{} acknowledged writes and comparisons, {} events in {} revisions, {} watchers saw {} events",
        acked.count(),
        history.events().len(),
        history.revision() - 1,
        watched.len(),
        watched.iter().map(|watched| watched.observed.len()).sum::<usize>(),
    ));
    let mut errors: BTreeMap<String, u64> = BTreeMap::new();
    for operation in operations {
        match &operation.outcome {
            Outcome::Failed(text) => *errors.entry(format!("refused: {text}")).or_default() += 1,
            Outcome::Unknown(text) => *errors.entry(format!("unknown: {text}")).or_default() += 1,
            Outcome::Acked { .. } => {}
        }
    }
    let mut errors: Vec<_> = errors.into_iter().collect();
    errors.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    lines.extend(errors.into_iter().take(12).map(|(text, count)| format!("{count:7} {text}")));
    lines
}
