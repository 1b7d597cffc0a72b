//! `mainstay`: one binary for the store and the tools around it.
//!
//! Input: the command line. Output: the exit code. This file only chooses the subcommand, by the
//! name that the binary was called by or by the first argument.

mod etcd;
mod etcdutl;
mod flags;
mod logging;

use std::process::ExitCode;

/// glibc's allocator keeps freed memory of short-lived values for itself; jemalloc returns it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const USAGE: &str = "\
mainstay: an etcd-compatible consensus store

Usage:
  mainstay etcd [flags]      serve a member (also when the binary is called `etcd`)
  mainstay etcdutl COMMAND   look at data files offline (also as `etcdutl`)
  mainstay bench COMMAND     put load on any etcd v3 server, or compare with real etcd
  mainstay version           print the version

`mainstay etcd --help` lists all flags.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let called = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    match called.rsplit('/').next().unwrap_or_default() {
        "etcd" => return etcd::main(&rest),
        "etcdutl" => return etcdutl::main(&rest),
        _ => {}
    }
    match rest.split_first() {
        Some((first, rest)) if first == "etcd" => etcd::main(rest),
        Some((first, rest)) if first == "etcdutl" => etcdutl::main(rest),
        Some((first, rest)) if first == "bench" => mainstay_bench::main(rest),
        Some((first, _)) if matches!(first.as_str(), "version" | "--version") => {
            print(&format!("mainstay {}\n", env!("CARGO_PKG_VERSION")));
            ExitCode::SUCCESS
        }
        Some((first, _)) if matches!(first.as_str(), "help" | "--help" | "-h") => {
            print(USAGE);
            ExitCode::SUCCESS
        }
        Some((first, _)) => {
            complain(&format!("mainstay: unknown command {first:?}\n\n{USAGE}"));
            ExitCode::from(2)
        }
        None => {
            complain(USAGE);
            ExitCode::from(2)
        }
    }
}

/// Writes to standard output; a closed pipe is no error of ours.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Writes to standard error.
fn complain(text: &str) {
    use std::io::Write;
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
