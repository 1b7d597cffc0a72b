//! What the checks of the house need: the workspace's files, its crate graph, and the licences of
//! what it uses.
//!
//! Input: the checkout. Output: paths and names. The checks themselves are in `tests/`.

pub mod notice;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The root of the checkout.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
}

/// All files that git tracks, relative to the root.
pub fn tracked() -> Result<Vec<String>> {
    let output = Command::new("git").args(["ls-files"]).current_dir(root()).output()?;
    anyhow::ensure!(output.status.success(), "git ls-files failed");
    let names = String::from_utf8(output.stdout)?;
    // A file that is deleted and not committed yet is still listed.
    Ok(names.lines().filter(|name| root().join(name).exists()).map(str::to_string).collect())
}

/// Crates of the workspace by name: the folder of each, and the crates that it uses outside tests.
pub fn crates() -> Result<BTreeMap<String, (String, Vec<String>)>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(root())
        .output()?;
    anyhow::ensure!(output.status.success(), "cargo metadata failed");
    let tree: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = tree["packages"].as_array().context("packages")?;
    let root = root();
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().context("name")?;
            let manifest = package["manifest_path"].as_str().context("manifest_path")?;
            let folder = Path::new(manifest)
                .parent()
                .and_then(|folder| folder.strip_prefix(&root).ok())
                .context("folder")?;
            let uses = package["dependencies"]
                .as_array()
                .context("dependencies")?
                .iter()
                .filter(|dependency| dependency["kind"].is_null())
                .filter_map(|dependency| dependency["name"].as_str())
                .map(str::to_string)
                .collect();
            Ok((name.to_string(), (folder.display().to_string(), uses)))
        })
        .collect()
}
