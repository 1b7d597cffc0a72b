//! The load program on its own; `mainstay bench` is the same.

fn main() -> std::process::ExitCode {
    mainstay_bench::main(&std::env::args().skip(1).collect::<Vec<_>>())
}
