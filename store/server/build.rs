//! Tells the crate which compiler builds it, for the metrics page.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=RUSTC");
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    // "rustc 1.88.0 (6b00bc388 2025-06-23)"
    let version = text.ok().and_then(|text| text.split_whitespace().nth(1).map(str::to_owned));
    println!("cargo::rustc-env=MAINSTAY_RUST={}", version.as_deref().unwrap_or("unknown"));
}
