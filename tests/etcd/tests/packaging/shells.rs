//! Completions in the shells that read them, and manual pages in the formatter that renders them.

use std::process::Command;

use mainstay_etcd_tests::member::mainstay_binary;

use crate::{output, run};

fn mainstay(arguments: &[&str]) -> String {
    output(Command::new(mainstay_binary().unwrap()).args(arguments))
}

/// What bash offers for the last of some words.
fn bash(words: &[&str]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("mainstay");
    std::fs::write(&script, mainstay(&["completion", "bash"])).unwrap();
    output(Command::new("bash").arg("-n").arg(&script));
    // As the shell calls it; compopt can only be asked for by a completion that the shell started.
    let call = r#"
        set -u
        compopt() { :; }
        source "$1"; shift
        complete -p "$1" > /dev/null || exit 1
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _mainstay
        printf '%s\n' "${COMPREPLY[@]-}"
    "#;
    std::fs::create_dir(dir.path().join("certificates")).unwrap();
    std::fs::write(dir.path().join("cert.pem"), "").unwrap();
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", call, "bash"]).arg(&script).args(words).current_dir(&dir);
    let offers = output(&mut command);
    let mut offers: Vec<_> = offers.lines().filter(|line| !line.is_empty()).collect();
    offers.sort_unstable();
    offers.into_iter().map(str::to_owned).collect()
}

#[test]
fn bash_completes() {
    assert_eq!(bash(&["mainstay", "etcd"]), ["etcd", "etcdutl"]);
    for etcd in [&["mainstay", "etcd"][..], &["etcd"]] {
        let after = |words: &[&str]| bash(&[etcd, words].concat());
        assert_eq!(
            after(&["--auto-comp"]),
            ["--auto-compaction-mode", "--auto-compaction-retention"]
        );
        assert_eq!(after(&["--name", "x", "--wal"]), ["--wal-dir"]);
        assert_eq!(after(&["--auto-compaction-mode", ""]), ["periodic", "revision"]);
        assert_eq!(after(&["--auto-compaction-mode", "=", "r"]), ["revision"]);
        assert_eq!(after(&["--auto-tls", "="]), ["false", "true"]);
        assert_eq!(after(&["--cert-file", "cert"]), ["cert.pem", "certificates"]);
        assert_eq!(after(&["--data-dir", "cert"]), ["certificates"]);
        assert_eq!(after(&["--name", ""]), [""; 0]);
    }
    assert_eq!(bash(&["mainstay", "etcdutl", "snapshot", ""]), ["status"]);
    assert_eq!(bash(&["etcdutl", "snapshot", "status", "cert."]), ["cert.pem"]);
    assert_eq!(bash(&["mainstay", "completion", ""]), ["bash", "fish", "zsh"]);
}

#[test]
fn fish_completes() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("mainstay.fish");
    std::fs::write(&script, mainstay(&["completion", "fish"])).unwrap();
    let offers = |line: &str| {
        let call = format!("source {}; complete -C '{line}'", script.display());
        let mut command = Command::new("fish");
        // Nothing of the user's own.
        command.args(["--no-config", "-c", &call]).env("HOME", dir.path());
        let offers = output(&mut command);
        let words = offers.lines().map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    assert_eq!(offers("mainstay etcdu"), ["etcdutl"]);
    for etcd in ["mainstay etcd", "etcd"] {
        assert_eq!(offers(&format!("{etcd} --wal")), ["--wal-dir"]);
        let mut modes = offers(&format!("{etcd} --auto-compaction-mode "));
        modes.sort();
        assert_eq!(modes, ["periodic", "revision"]);
    }
    assert_eq!(offers("etcdutl snapshot "), ["status"]);
}

#[test]
fn zsh_reads_its_completions() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("_mainstay");
    std::fs::write(&script, mainstay(&["completion", "zsh"])).unwrap();
    output(Command::new("zsh").arg("-fn").arg(&script));
    // The completion system finds the file by its first line and defines its functions.
    let call = r#"
        fpath=($1 $fpath)
        autoload -Uz compinit && compinit -D -u
        [[ $_comps[mainstay] == _mainstay && $_comps[etcd] == _mainstay ]] || exit 1
        autoload -Uz +X _mainstay && source $1/_mainstay && (( $+functions[_mainstay_flags] ))
    "#;
    output(Command::new("zsh").args(["-fc", call, "zsh"]).arg(dir.path()));
}

#[test]
fn manual_pages_render() {
    let help = mainstay(&["etcd", "--help"]);
    for page in ["mainstay", "etcd", "etcdutl"] {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("page");
        std::fs::write(&source, mainstay(&["man", page])).unwrap();
        let mut command = Command::new("groff");
        // Every warning, and text without overstrikes.
        command.args(["-man", "-Tascii", "-ww", "-P-cbou", "-rLL=200n"]).arg(&source);
        let rendered = run(&mut command);
        assert_eq!(String::from_utf8_lossy(&rendered.stderr), "", "{page}");
        let rendered = String::from_utf8(rendered.stdout).unwrap();
        assert!(rendered.contains("SYNOPSIS"), "{rendered}");
        if page == "etcd" {
            let flags = help.lines().filter_map(|line| line.strip_prefix("  --"));
            let names: Vec<_> = flags.map(|line| line.split(['=', ' ']).next().unwrap()).collect();
            assert!(names.len() > 100, "{help}");
            for name in names {
                assert!(rendered.contains(&format!("--{name}")), "{name}\n{rendered}");
            }
        }
    }
}

#[test]
fn what_is_not_known_is_refused() {
    for arguments in [&["completion"][..], &["completion", "csh"], &["man", "etcdctl"]] {
        let refused = run(Command::new(mainstay_binary().unwrap()).args(arguments));
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("one of"), "{arguments:?}");
    }
}
