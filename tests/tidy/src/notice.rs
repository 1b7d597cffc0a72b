//! The licences of everything that is linked into the binary.
//!
//! Input: the crate graph, and the licence files beside each crate's manifest. Output: one text with
//! all names, versions and licences, and each licence text once.
//! **Invariant:** a crate that is linked is named, even if it ships no text.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::root;

/// How deep below a manifest licence files are looked for: C libraries and their parts lie there.
const DEPTH: usize = 3;
/// Folders of C libraries from which nothing is linked; their licences can be others.
const NOT_LINKED: [&str; 6] = ["build", "contrib", "examples", "ossfuzz", "programs", "tests"];
/// How a licence file's name begins.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// One crate that is linked.
#[derive(Debug)]
pub struct Linked {
    /// `NAME VERSION`.
    pub name: String,
    /// Its licences, as it states them.
    pub licence: String,
    /// Their texts.
    pub texts: Vec<String>,
}

/// All crates that are linked into the binary, but those of the workspace, by name.
pub fn linked() -> Result<Vec<Linked>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version=1"])
        .args(["--filter-platform", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)])
        .current_dir(root())
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let tree: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let packages: BTreeMap<_, _> = list(&tree["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let nodes: BTreeMap<_, _> =
        list(&tree["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let is_macro = |id: &String| {
        list(&packages[id]["targets"])
            .iter()
            .any(|target| list(&target["kind"]).contains(&"proc-macro".into()))
    };

    let binary = packages.iter().find(|(_, package)| package["name"] == "mainstay");
    let mut queue = VecDeque::from([binary.context("no package mainstay")?.0.clone()]);
    let mut seen = BTreeSet::new();
    while let Some(id) = queue.pop_front() {
        if is_macro(&id) || !seen.insert(id.clone()) {
            continue;
        }
        for dependency in list(&nodes[&id]["deps"]) {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                queue.push_back(text(&dependency["pkg"]));
            }
        }
    }
    let mut linked = Vec::new();
    for package in
        seen.iter().map(|id| &packages[id]).filter(|package| !package["source"].is_null())
    {
        let manifest = text(&package["manifest_path"]);
        let mut texts = Vec::new();
        collect(Path::new(&manifest).parent().context("manifest")?, DEPTH, &mut texts)?;
        linked.push(Linked {
            name: format!("{} {}", text(&package["name"]), text(&package["version"])),
            licence: text(&package["license"]),
            texts,
        });
    }
    linked.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(linked)
}

fn collect(dir: &Path, depth: usize, texts: &mut Vec<String>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let named = |start: &str| {
        entries.iter().any(|entry| entry.file_name().to_string_lossy().starts_with(start))
    };
    // RocksDB may be had under the GPL or the Apache License; it is taken under the second.
    let choice = named("LICENSE.Apache");
    for entry in &entries {
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_dir() {
            if depth > 1 && !NOT_LINKED.iter().any(|folder| name.eq_ignore_ascii_case(folder)) {
                collect(&entry.path(), depth - 1, texts)?;
            }
        } else if NAMES.iter().any(|start| name.starts_with(start))
            && !(choice && name == "COPYING")
        {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).trim().to_string();
            // Sources of a module about licences are not one.
            if !name.ends_with(".RS") && !text.is_empty() && !texts.contains(&text) {
                texts.push(text);
            }
        }
    }
    Ok(())
}

/// The notice: a list, then the texts.
pub fn notice() -> Result<String> {
    let linked = linked()?;
    let mut notice = String::from("Mainstay is linked with the following packages.\n\n");
    let mut texts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &linked {
        notice.push_str(&format!("{}: {}\n", package.name, package.licence));
        for text in &package.texts {
            texts.entry(text).or_default().push(&package.name);
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by_key(|(_, users)| users.clone());
    let line = "-".repeat(80);
    for (text, users) in texts {
        notice.push_str(&format!("\n{line}\n{}:\n\n{text}\n", users.join(", ")));
    }
    Ok(notice)
}
