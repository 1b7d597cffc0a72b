//! Load for any etcd v3 server (`mainstay bench load`), and the comparison with real etcd on this
//! machine (`mainstay bench compare`).
//!
//! Input: endpoints, or the two binaries. Output: operations per second and latencies per
//! workload; for a comparison the ratio of each, from rounds in turn, so that a noisy machine
//! disturbs both alike. Numbers of one run are comparable, those of two runs are not.
#![allow(clippy::print_stdout)]

mod compare;
mod load;
mod stats;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use load::Workload;

#[derive(Parser, Debug)]
#[command(name = "mainstay bench", about = "Load for any etcd v3 server")]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run workloads against a server that serves already.
    Load {
        /// Client URLs, comma-separated.
        #[arg(long, default_value = "http://127.0.0.1:2379", value_delimiter = ',')]
        endpoints: Vec<String>,
        /// Workloads; all when empty.
        #[arg(long, value_delimiter = ',')]
        workloads: Vec<Workload>,
        /// Seconds per workload.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Start real etcd and Mainstay in turn on this machine and compare them.
    Compare {
        /// Workloads; all when empty.
        #[arg(long, value_delimiter = ',')]
        workloads: Vec<Workload>,
        /// Members of each cluster.
        #[arg(long, default_value_t = 1)]
        members: usize,
        /// Rounds of each program.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Seconds per workload and round.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Where the data directories go; the temporary directory when not given.
        #[arg(long)]
        dir: Option<std::path::PathBuf>,
    },
}

/// Runs the command line (without the program's name).
pub fn main(arguments: &[String]) -> ExitCode {
    let words = std::iter::once("mainstay bench".to_string()).chain(arguments.iter().cloned());
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match options.command {
            Command::Load { endpoints, workloads, seconds } => {
                load::run(&endpoints, &or_all(workloads), seconds).await
            }
            Command::Compare { workloads, members, rounds, seconds, dir } => {
                compare::run(&or_all(workloads), members, rounds, seconds, dir.as_deref()).await
            }
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn or_all(workloads: Vec<Workload>) -> Vec<Workload> {
    if workloads.is_empty() { Workload::ALL.to_vec() } else { workloads }
}
