//! Measures memory, restart and latency with much data, beside real etcd:
//! `etcd-size` for a million keys, `etcd-size --gib 5` for many bytes.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use mainstay_etcd_tests::member::Program;
use mainstay_etcd_tests::size::{LargeOptions, SmallOptions, large, small};

#[derive(Parser)]
struct Arguments {
    /// Keys of 256 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Bytes of each of these keys' values.
    #[arg(long, default_value_t = 256)]
    value_bytes: usize,
    /// Seconds that a member rests before its memory is read.
    #[arg(long, default_value_t = 30)]
    rest: u64,
    /// Timed restarts.
    #[arg(long, default_value_t = 3)]
    restarts: usize,
    /// Load so many GiB instead, and measure latency during compaction and defragmentation.
    #[arg(long)]
    gib: Option<f64>,
    /// Seconds of each measurement of latency, at least.
    #[arg(long, default_value_t = 30)]
    window: u64,
    /// Puts per second while latency is measured.
    #[arg(long, default_value_t = 50)]
    puts: u32,
    /// Gets per second while latency is measured.
    #[arg(long, default_value_t = 200)]
    gets: u32,
    /// With --gib: leave out real etcd, which is only shown beside.
    #[arg(long)]
    alone: bool,
    /// Only real etcd: shows that the measurement works.
    #[arg(long)]
    reference_only: bool,
}

/// One measured ratio and its bound.
struct Ratio {
    what: &'static str,
    ours: f64,
    theirs: f64,
    bound: f64,
}

#[allow(clippy::print_stdout)]
fn judge(ratios: &[Ratio]) -> ExitCode {
    let mut is_bad = false;
    for Ratio { what, ours, theirs, bound } in ratios {
        let ratio = ours / theirs;
        let verdict = if ratio <= *bound { "ok" } else { "TOO MUCH" };
        is_bad |= ratio > *bound;
        println!("{what}: {ours:.3} / {theirs:.3} = {ratio:.2}, at most {bound}: {verdict}");
    }
    if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let tested = if arguments.reference_only { Program::Etcd } else { Program::Mainstay };
    let seconds = Duration::as_secs_f64;
    if let Some(gib) = arguments.gib {
        let options = LargeOptions {
            bytes: (gib * f64::from(1 << 30)) as u64,
            value_bytes: 4096,
            window: Duration::from_secs(arguments.window),
            puts: arguments.puts,
            gets: arguments.gets,
        };
        let theirs = if arguments.alone {
            None
        } else {
            Some((Program::Etcd, large(Program::Etcd, &options).await?))
        };
        let ours = large(tested, &options).await?;
        for (program, phases) in theirs.iter().map(|(p, l)| (*p, l)).chain([(tested, &ours)]) {
            let [before, after] = &phases.idle;
            println!("{program:?} idle       {before}");
            println!("{program:?} idle again {after}");
            println!("{program:?} compaction {}", phases.compaction);
            println!("{program:?} defragment {}", phases.defragment);
        }
        let [before, after] = &ours.idle;
        let all = [before, after, &ours.compaction, &ours.defragment];
        let errors: usize = all.iter().map(|phase| phase.errors()).sum();
        // The better of two: a disturbance of the machine must not make the bound loose.
        let idle_put = before.put_p99().min(after.put_p99());
        let idle_get = before.get_p99().min(after.get_p99());
        // Against its own idle time: real etcd is shown for comparison only.
        let ratio = |what, busy: Duration, idle: Duration| Ratio {
            what,
            ours: seconds(&busy) * 1000.0,
            theirs: seconds(&idle) * 1000.0,
            bound: 3.0,
        };
        let code = judge(&[
            ratio("put p99 ms, compaction / idle", ours.compaction.put_p99(), idle_put),
            ratio("get p99 ms, compaction / idle", ours.compaction.get_p99(), idle_get),
            ratio("put p99 ms, defragment / idle", ours.defragment.put_p99(), idle_put),
            ratio("get p99 ms, defragment / idle", ours.defragment.get_p99(), idle_get),
        ]);
        if errors > 0 {
            println!("{errors} requests failed");
            return Ok(ExitCode::FAILURE);
        }
        return Ok(code);
    }
    let options = SmallOptions {
        keys: arguments.keys,
        value_bytes: arguments.value_bytes,
        rest: Duration::from_secs(arguments.rest),
        restarts: arguments.restarts,
    };
    let theirs = small(Program::Etcd, &options).await?;
    let ours = small(tested, &options).await?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(judge(&[
        Ratio {
            what: "MiB resident after the load, ours / etcd",
            ours: mib(ours.loaded.resident),
            theirs: mib(theirs.loaded.resident),
            bound: 0.5,
        },
        Ratio {
            what: "MiB resident after a restart, ours / etcd",
            ours: mib(ours.restarted.resident),
            theirs: mib(theirs.restarted.resident),
            bound: 0.5,
        },
        Ratio {
            what: "seconds to serve after SIGTERM, ours / etcd",
            ours: seconds(&ours.restart),
            theirs: seconds(&theirs.restart),
            bound: 0.5,
        },
        Ratio {
            what: "seconds to serve after kill -9, ours / etcd",
            ours: seconds(&ours.restart_killed),
            theirs: seconds(&theirs.restart_killed),
            bound: 0.5,
        },
    ]))
}
