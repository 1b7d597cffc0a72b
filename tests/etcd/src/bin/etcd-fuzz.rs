//! Runs the differential fuzz: `etcd-fuzz --seeds 100 --requests 2000`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use mainstay_etcd_tests::client::Client;
use mainstay_etcd_tests::fuzz::{Pair, run_seed};
use mainstay_etcd_tests::member::{Cluster, Program};

#[derive(Parser)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Requests per seed.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Compare real etcd with itself: shows that the comparison is fair.
    #[arg(long)]
    reference_only: bool,
}

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let tested = if options.reference_only { Program::Etcd } else { Program::Mainstay };
    let mut differences = 0;
    for seed in options.from..options.from + options.seeds {
        let arguments = ["--unsafe-no-fsync"];
        let reference = Cluster::start(&[Program::Etcd], &arguments).await?;
        let tested = Cluster::start(&[tested], &arguments).await?;
        let mut pair = Pair {
            reference: Client::connect(&reference.client_urls()[0]).await?,
            tested: Client::connect(&tested.client_urls()[0]).await?,
        };
        match run_seed(&mut pair, seed, options.requests).await? {
            None => println!("seed {seed}: {} requests, equal", options.requests),
            Some(difference) => {
                differences += 1;
                println!("{difference}");
            }
        }
    }
    if differences > 0 {
        eprintln!("{differences} of {} seeds differ", options.seeds);
        return Ok(ExitCode::FAILURE);
    }
    println!("{} seeds of {} requests: no difference", options.seeds, options.requests);
    Ok(ExitCode::SUCCESS)
}
