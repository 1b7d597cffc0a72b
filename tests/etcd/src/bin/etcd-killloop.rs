//! Kills members of a cluster under load and checks that nothing is lost:
//! `etcd-killloop --minutes 10`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use mainstay_etcd_tests::killloop::{Options, run};
use mainstay_etcd_tests::member::{Cluster, Program};

#[derive(Parser)]
struct Arguments {
    /// How long members are killed.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seconds between two kills.
    #[arg(long, default_value_t = 2.0)]
    every: f64,
    /// Clients that write.
    #[arg(long, default_value_t = 32)]
    clients: u32,
    /// Seed of all choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Entries between two snapshots; few make killed members need one.
    #[arg(long, default_value_t = 1000)]
    snapshot_count: u64,
    /// Entries that the leader keeps for slow followers.
    #[arg(long, default_value_t = 300)]
    catchup_entries: u64,
    /// Run on real etcd: shows that the checks are fair.
    #[arg(long)]
    reference_only: bool,
}

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let program = if arguments.reference_only { Program::Etcd } else { Program::Mainstay };
    let flags = [
        format!("--snapshot-count={}", arguments.snapshot_count),
        format!("--snapshot-catchup-entries={}", arguments.catchup_entries),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(&[program; 3], &flags).await?;
    println!("three members of {program:?} in {}", cluster.dir.path().display());
    let options = Options {
        time: Duration::from_secs_f64(arguments.minutes * 60.0),
        every: Duration::from_secs_f64(arguments.every),
        clients: arguments.clients,
        seed: arguments.seed,
    };
    let result = run(&mut cluster, &options).await;
    let problems = match result {
        Ok(report) => {
            for line in &report.summary {
                println!("{line}");
            }
            report.problems
        }
        Err(error) => vec![format!("{error:#}")],
    };
    if problems.is_empty() {
        println!("nothing lost, nothing doubled, nothing reordered, all members equal");
        return Ok(ExitCode::SUCCESS);
    }
    for problem in problems.iter().take(50) {
        println!("PROBLEM: {problem}");
    }
    // Members are ended by their handles; what they wrote stays for a look.
    cluster.dir.disable_cleanup(true);
    eprintln!("{} problems; data and logs are in {}", problems.len(), cluster.dir.path().display());
    Ok(ExitCode::FAILURE)
}
