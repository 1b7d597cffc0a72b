//! Runs the etcdctl session in every format against real etcd and Mainstay, one and three
//! members: `etcd-matrix [--old /usr/bin/etcdctl] [--reference-only]`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use mainstay_etcd_tests::matrix::{Setting, compare};
use mainstay_etcd_tests::member::{Cluster, Program, peers_dir};

#[derive(Parser)]
struct Options {
    /// Debian's etcdctl 3.4.
    #[arg(long, default_value = "/usr/bin/etcdctl")]
    old: PathBuf,
    /// Sizes of clusters.
    #[arg(long, value_delimiter = ',', default_value = "1,3")]
    members: Vec<usize>,
    /// Output formats.
    #[arg(long, value_delimiter = ',', default_value = "simple,json,fields,table,protobuf")]
    formats: Vec<String>,
    /// Compare real etcd with itself: shows that the comparison is fair.
    #[arg(long)]
    reference_only: bool,
}

#[tokio::main]
#[allow(clippy::print_stdout)]
async fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let tested = if options.reference_only { Program::Etcd } else { Program::Mainstay };
    let mut total = 0;
    for members in &options.members {
        for (etcdctl, is_new) in
            [(peers_dir()?.join("etcdctl"), true), (options.old.clone(), false)]
        {
            for format in &options.formats {
                let setting = Setting { etcdctl: etcdctl.clone(), is_new, format: format.clone() };
                let flags = ["--unsafe-no-fsync"];
                let mut theirs = Cluster::start(&vec![Program::Etcd; *members], &flags).await?;
                let mut ours = Cluster::start(&vec![tested; *members], &flags).await?;
                let scratch = tempfile::tempdir()?;
                let found = compare(&setting, &mut theirs, &mut ours, scratch.path()).await?;
                let which = if is_new { "3.7" } else { "3.4" };
                println!(
                    "etcdctl {which}, {format}, {members} member(s): {} differences",
                    found.len()
                );
                for difference in &found {
                    println!("{difference}");
                }
                total += found.len();
            }
        }
    }
    Ok(if total == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
