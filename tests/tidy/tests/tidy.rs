//! The house rules that a machine can check.

use std::fs;

use mainstay_tidy::{crates, root, tracked};

/// Rooms from the bottom up: a crate may only use crates of its own room or of one above it here.
const ROOMS: [(&str, &[&str]); 4] = [
    ("proto", &["proto"]),
    ("store", &["proto", "store"]),
    ("tests", &["proto", "store", "tests"]),
    // The binary wires everything; the load program is also one of its subcommands.
    ("", &["proto", "store", "tests"]),
];

/// What each crate of the store may use; the graph of ARCHITECTURE.md.
const STORE: [(&str, &[&str]); 9] = [
    ("store/engine", &[]),
    ("store/formats", &["proto"]),
    ("store/log", &["proto", "store/formats"]),
    ("store/mvcc", &["proto", "store/engine"]),
    ("store/watch", &["proto", "store/engine", "store/mvcc"]),
    ("store/consensus", &["proto", "store/log"]),
    ("store/peer", &["proto"]),
    ("store/net", &[]),
    (
        "store/server",
        &[
            "proto",
            "store/engine",
            "store/formats",
            "store/log",
            "store/mvcc",
            "store/watch",
            "store/consensus",
            "store/peer",
            "store/net",
        ],
    ),
];

fn room(folder: &str) -> &str {
    folder.split('/').next().unwrap_or_default()
}

#[test]
fn crates_depend_in_one_direction() {
    let crates = crates().unwrap();
    for (name, (folder, uses)) in &crates {
        for used in uses {
            let Some((target, _)) = crates.get(used) else { continue };
            let allowed = ROOMS.iter().find(|(from, _)| *from == room(folder)).unwrap().1;
            assert!(allowed.contains(&room(target)), "{name} ({folder}) must not use {used}");
            if let Some((_, allowed)) = STORE.iter().find(|(from, _)| from == folder) {
                assert!(allowed.contains(&target.as_str()), "{name} must not use {used}");
            }
        }
    }
}

#[test]
fn foreign_engines_are_used_in_one_crate_each() {
    let crates = crates().unwrap();
    for (foreign, home) in [
        ("rocksdb", "store/engine"),
        ("raft", "store/consensus"),
        ("protobuf", "store/consensus"),
        ("slog", "store/consensus"),
    ] {
        for (name, (folder, uses)) in &crates {
            let named = uses.iter().any(|used| used == foreign);
            assert!(!named || folder == home, "{name} must not use {foreign}");
        }
    }
}

#[test]
fn every_module_says_what_it_is() {
    for path in tracked().unwrap() {
        if path.ends_with(".rs") {
            let text = fs::read_to_string(root().join(&path)).unwrap();
            assert!(text.starts_with("//!"), "{path} does not open with a module comment");
        }
    }
}

#[test]
fn nothing_is_left_for_later_in_code() {
    // Put together here so that this file does not find itself.
    let words = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["#[ig", "nore"].concat()];
    for path in tracked().unwrap() {
        if !path.ends_with(".rs") && !path.ends_with(".proto") {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap();
        for word in &words {
            assert!(!text.contains(word.as_str()), "{path} contains {word}");
        }
    }
}

#[test]
fn links_between_documents_are_live() {
    for path in tracked().unwrap() {
        if !path.ends_with(".md") {
            continue;
        }
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let folder = root().join(&path).parent().unwrap().to_path_buf();
        for (at, _) in text.match_indices("](") {
            let target = text[at + 2..].split(')').next().unwrap_or_default();
            let target = target.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(folder.join(target).exists(), "{path} links to {target}, which is not there");
        }
    }
}
