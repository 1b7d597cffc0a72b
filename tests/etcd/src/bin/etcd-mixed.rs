//! Runs mixed clusters beside real etcd: `etcd-mixed --compactions 100`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use mainstay_etcd_tests::member::Program;
use mainstay_etcd_tests::mixed::{Options, run, show_corruption};

#[derive(Parser)]
struct Arguments {
    /// Compactions with a comparison of hashes, for each cluster.
    #[arg(long, default_value_t = 100)]
    compactions: usize,
    /// Requests between two compactions.
    #[arg(long, default_value_t = 60)]
    requests: usize,
    /// Seed of everything.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many of the three members are Mainstay.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    ours: Vec<usize>,
    /// Leave out the runs with a wrong byte.
    #[arg(long)]
    no_corruption: bool,
    /// Only real etcd: shows that the comparison is fair.
    #[arg(long)]
    reference_only: bool,
}

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let tested = if arguments.reference_only { Program::Etcd } else { Program::Mainstay };
    let options = Options {
        compactions: arguments.compactions,
        requests: arguments.requests,
        seed: arguments.seed,
    };
    let mut report = Vec::new();
    let mut is_bad = false;
    for ours in &arguments.ours {
        let mut programs = [Program::Etcd; 3];
        programs.iter_mut().take(*ours).for_each(|program| *program = tested);
        match run(&programs, &options).await {
            Ok(lines) => report.extend(lines),
            Err(error) => {
                is_bad = true;
                report.push(format!("PROBLEM: {programs:?}: {error:#}"));
            }
        }
    }
    if !arguments.no_corruption {
        match show_corruption(tested).await {
            Ok(lines) => report.extend(lines),
            Err(error) => {
                is_bad = true;
                report.push(format!("PROBLEM: {error:#}"));
            }
        }
    }
    for line in report {
        println!("{line}");
    }
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
