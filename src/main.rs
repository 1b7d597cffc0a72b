//! `mainstay`: one binary for the store and the tools around it.
//!
//! Input: the command line. Output: the exit code. This file only chooses the subcommand, by the
//! name that the binary was called by or by the first argument.

mod commands;
mod completion;
mod etcd;
mod etcdutl;
mod flags;
mod logging;
mod man;

use std::process::ExitCode;

/// glibc's allocator keeps freed memory of short-lived values for itself; jemalloc returns it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
            print(&commands::usage());
            ExitCode::SUCCESS
        }
        Some((first, rest)) if first == "completion" => {
            made(rest.first().and_then(|shell| completion::script(shell)), "bash, zsh or fish")
        }
        Some((first, rest)) if first == "man" => {
            let name = rest.first().map_or("mainstay", String::as_str);
            made(man::page(name), "mainstay, etcd or etcdutl")
        }
        Some((first, _)) => {
            complain(&format!("mainstay: unknown command {first:?}\n\n{}", commands::usage()));
            ExitCode::from(2)
        }
        None => {
            complain(&commands::usage());
            ExitCode::from(2)
        }
    }
}

/// Prints what was made of the tables, or says what can be asked for.
fn made(text: Option<String>, known: &str) -> ExitCode {
    match text {
        Some(text) => {
            print(&text);
            ExitCode::SUCCESS
        }
        None => {
            complain(&format!("mainstay: this takes one of {known}\n"));
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
