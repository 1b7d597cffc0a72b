//! Real etcd and Mainstay in turn: etcd, Mainstay, etcd, Mainstay, …
//!
//! Both are kept running, so that neither gets a colder cache; the one that is not measured is
//! idle. The ratio of a workload is the median of the ratios of its rounds.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use mainstay_etcd_tests::member::{Cluster, Program};

use crate::load::{Workload, measure};
use crate::stats::{Outcome, median};

async fn start(program: Program, members: usize, dir: Option<&Path>) -> Result<Cluster> {
    let dir = match dir {
        Some(dir) => tempfile_in(dir)?,
        None => tempfile_in(&std::env::temp_dir())?,
    };
    // A quota would end a long run: each round writes hundreds of thousands of values.
    let quota = || vec!["--quota-backend-bytes=17179869184".to_string()];
    Cluster::start_in(dir, &vec![program; members], |_| quota()).await
}

fn tempfile_in(dir: &Path) -> Result<mainstay_etcd_tests::member::TempDir> {
    Ok(mainstay_etcd_tests::member::TempDir::new_in(dir)?)
}

pub(crate) async fn run(
    workloads: &[Workload],
    members: usize,
    rounds: usize,
    seconds: u64,
    dir: Option<&Path>,
) -> Result<()> {
    let etcd = start(Program::Etcd, members, dir).await?;
    let mainstay = start(Program::Mainstay, members, dir).await?;
    println!("{members} member(s), {rounds} rounds in turn of {seconds} s; median rates");
    println!(
        "{:<30} {:>12} {:>12} {:>7} {:>17} {:>17}",
        "workload", "etcd /s", "mainstay /s", "ratio", "p99 ms e / m", "ratios min..max"
    );
    for workload in workloads {
        let mut pairs: Vec<(Outcome, Outcome)> = Vec::new();
        for _ in 0..rounds {
            let time = Duration::from_secs(seconds);
            let theirs = measure(&etcd.client_urls(), *workload, time).await?;
            let ours = measure(&mainstay.client_urls(), *workload, time).await?;
            pairs.push((theirs, ours));
        }
        let of =
            |pick: &dyn Fn(&(Outcome, Outcome)) -> f64| median(pairs.iter().map(pick).collect());
        let ratios: Vec<f64> = pairs.iter().map(|(e, m)| m.rate / e.rate).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "{:<30} {:>12.0} {:>12.0} {:>7.2} {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            workload.name(),
            of(&|(e, _)| e.rate),
            of(&|(_, m)| m.rate),
            median(ratios.clone()),
            of(&|(e, _)| e.p99.as_secs_f64() * 1e3),
            of(&|(_, m)| m.p99.as_secs_f64() * 1e3),
            low,
            high
        );
    }
    for (name, cluster) in [("etcd", &etcd), ("mainstay", &mainstay)] {
        let resident: u64 = cluster.members.iter().filter_map(|m| m.resident_bytes()).sum();
        println!("resident memory of {name}: {} MiB", resident >> 20);
    }
    Ok(())
}
