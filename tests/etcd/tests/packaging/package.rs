//! The Debian package: what is in it, and a member that starts from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use mainstay_etcd_tests::member::{free_port, mainstay_binary};
use tempfile::TempDir;

use crate::{Service, etcdctl, output, root, run, text};

/// Builds the package with a Debian revision.
fn build(dir: &Path, revision: &str) -> PathBuf {
    let path = output(
        Command::new(root().join("packaging/deb.sh"))
            .arg(mainstay_binary().unwrap())
            .arg(dir)
            .arg(revision)
            // The binary of a debug build is large, and is not kept.
            .env("DEB_COMPRESSION", "none"),
    );
    PathBuf::from(path.trim())
}

fn extracted() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let package = build(dir.path(), "1");
    let files = dir.path().join("files");
    output(Command::new("dpkg-deb").arg("-R").arg(&package).arg(&files));
    (dir, files)
}

/// The settings of `/etc/default/mainstay` that are in force.
fn settings() -> BTreeMap<String, String> {
    let text = text("packaging/systemd/default");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn the_package_holds_what_an_operator_expects() {
    let dir = tempfile::tempdir().unwrap();
    let package = build(dir.path(), "1");
    let version = env!("CARGO_PKG_VERSION");
    let field = |name: &str| {
        output(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name)).trim().to_owned()
    };
    assert_eq!(field("Package"), "mainstay");
    assert_eq!(field("Version"), format!("{version}-1"));
    let depends = field("Depends");
    assert!(depends.starts_with("adduser, "), "{depends}");
    // What the linker says, and no other library.
    let needed = output(Command::new("ldd").arg(mainstay_binary().unwrap()));
    for (package, library) in
        [("libc6", "libc.so.6"), ("libstdc++6", "libstdc++.so.6"), ("libgcc-s1", "libgcc_s.so.1")]
    {
        let wanted = depends.contains(&format!("{package} (>= "));
        assert_eq!(wanted, needed.contains(library), "{depends}\n{needed}");
    }

    let listing = output(Command::new("dpkg-deb").arg("-c").arg(&package));
    let files: BTreeMap<String, String> = listing
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[1], "root/root", "{line}");
            (words[5..].join(" "), words[0].to_owned())
        })
        .collect();
    for (path, mode) in [
        ("./usr/bin/mainstay", "-rwxr-xr-x"),
        ("./usr/lib/mainstay/bin/etcd -> ../../../bin/mainstay", "lrwxrwxrwx"),
        ("./usr/lib/mainstay/bin/etcdutl -> ../../../bin/mainstay", "lrwxrwxrwx"),
        ("./lib/systemd/system/mainstay.service", "-rw-r--r--"),
        ("./etc/default/mainstay", "-rw-r--r--"),
        ("./usr/share/bash-completion/completions/mainstay", "-rw-r--r--"),
        ("./usr/share/zsh/vendor-completions/_mainstay", "-rw-r--r--"),
        ("./usr/share/fish/vendor_completions.d/mainstay.fish", "-rw-r--r--"),
        ("./usr/share/man/man1/mainstay.1.gz", "-rw-r--r--"),
        ("./usr/share/man/man1/mainstay-etcd.1.gz", "-rw-r--r--"),
        ("./usr/share/man/man1/mainstay-etcdutl.1.gz", "-rw-r--r--"),
        ("./usr/share/doc/mainstay/copyright", "-rw-r--r--"),
        ("./usr/share/doc/mainstay/NOTICE.gz", "-rw-r--r--"),
        ("./usr/share/doc/mainstay/changelog.gz", "-rw-r--r--"),
        ("./usr/share/doc/mainstay/changelog.Debian.gz", "-rw-r--r--"),
    ] {
        assert_eq!(files.get(path).map(String::as_str), Some(mode), "{path} in\n{listing}");
    }
    // Debian's etcd-server and etcd-client can be installed beside it.
    assert!(!listing.contains("./usr/bin/etcd"), "{listing}");

    let control = |name: &str| output(Command::new("dpkg-deb").arg("-I").arg(&package).arg(name));
    assert_eq!(control("conffiles"), "/etc/default/mainstay\n");
    let later = build(dir.path(), "2");
    let order = [field("Version"), format!("{version}-2")];
    assert!(later.exists());
    output(Command::new("dpkg").args(["--compare-versions", &order[0], "lt", &order[1]]));
}

#[test]
fn its_scripts_are_read_and_its_sums_are_right() {
    let (_dir, files) = extracted();
    for script in ["postinst", "prerm", "postrm"] {
        output(Command::new("sh").arg("-n").arg(files.join("DEBIAN").join(script)));
    }
    let sums = files.join("DEBIAN/md5sums");
    output(Command::new("md5sum").arg("--quiet").arg("-c").arg(&sums).current_dir(&files));
    let sums = std::fs::read_to_string(sums).unwrap();
    assert!(sums.contains("  usr/bin/mainstay\n"), "{sums}");
    assert!(!sums.contains("DEBIAN"), "{sums}");
}

#[test]
fn every_setting_is_a_flag() {
    let help = output(Command::new(mainstay_binary().unwrap()).args(["etcd", "--help"]));
    let mut seen = 0;
    for file in ["packaging/systemd/default", "packaging/systemd/mainstay.service"] {
        for line in text(file).lines() {
            let line = line.trim_start_matches('#').trim_start_matches("Environment=");
            let Some((variable, _)) = line.split_once('=') else { continue };
            let Some(name) = variable.strip_prefix("ETCD_") else { continue };
            let flag = format!("  --{}", name.to_lowercase().replace('_', "-"));
            let known = |line: &str| {
                line.strip_prefix(&flag).is_some_and(|rest| rest.starts_with(['=', ' ']))
            };
            assert!(help.lines().any(known), "{file}: {variable}");
            seen += 1;
        }
    }
    assert!(seen > 10, "{seen}");
}

#[test]
fn a_member_starts_from_the_package() {
    let (dir, files) = extracted();
    let mut settings = settings();
    // Where the package stores its data only its own user may write, and ports can be taken.
    let data = dir.path().join("data");
    assert_eq!(
        settings.insert("ETCD_DATA_DIR".to_owned(), data.display().to_string()).as_deref(),
        Some("/var/lib/mainstay")
    );
    let mut urls = Vec::new();
    for (port, names) in [
        (2379, ["ETCD_LISTEN_CLIENT_URLS", "ETCD_ADVERTISE_CLIENT_URLS"]),
        (2380, ["ETCD_LISTEN_PEER_URLS", "ETCD_INITIAL_ADVERTISE_PEER_URLS"]),
    ] {
        let url = format!("http://127.0.0.1:{}", free_port().unwrap());
        for name in names {
            let was = settings.insert(name.to_owned(), url.clone());
            assert_eq!(was, Some(format!("http://127.0.0.1:{port}")));
        }
        urls.push(url);
    }
    let unit = text("packaging/systemd/mainstay.service");
    let word = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    let mut words = word("ExecStart=").split(' ');
    let program = words.next().unwrap();
    let mut command = Command::new(files.join(program.trim_start_matches('/')));
    command.args(words).env_clear().env("ETCD_NAME", "a-host").envs(&settings);
    let mut service = Service::start(&mut command, dir.path());
    assert_eq!(word("Type="), "notify");
    assert_eq!(service.told(), "READY=1");
    assert!(service.said().contains("ready to serve client requests"));
    assert!(!service.said().contains("unrecognized environment variable"), "{}", service.said());
    let answer = output(etcdctl().args(["--endpoints", &urls[0], "put", "greeting", "hello"]));
    assert_eq!(answer, "OK\n");
    let members = output(etcdctl().args(["--endpoints", &urls[0], "member", "list"]));
    assert!(members.contains("a-host"), "{members}");
    // The service manager takes the end by its signal for a success.
    let code = service.stop().unwrap().to_string();
    assert!(word("SuccessExitStatus=").split(' ').any(|known| known == code), "{code}");
    assert!(data.join("member").is_dir());

    // By its link, the binary is etcd.
    let link = Command::new(files.join("usr/lib/mainstay/bin/etcd")).arg("--version").output();
    assert!(String::from_utf8(link.unwrap().stdout).unwrap().starts_with("etcd Version: 3."));
}

#[test]
fn the_notice_has_the_licences_of_what_is_linked() {
    let (_dir, files) = extracted();
    let notice = output(Command::new("zcat").arg(files.join("usr/share/doc/mainstay/NOTICE.gz")));
    for named in ["\nlibrocksdb-sys ", "\ntokio ", "\ntikv-jemalloc-sys ", "\naws-lc-sys "] {
        assert!(notice.contains(named), "{named}");
    }
    for text in ["Facebook, Inc.", "Apache License", "LZ4 Library\nCopyright", "Tokio Contributors"]
    {
        assert!(notice.contains(text), "{text}");
    }
}

#[test]
fn an_archive_of_a_binary_that_needs_libraries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(root().join("packaging/archive.sh"));
    let refused = run(command.arg(mainstay_binary().unwrap()).arg(dir.path()));
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("linked dynamically"), "{said}");
}
