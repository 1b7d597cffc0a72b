//! Tokens: how long they live, on which members, and what command-line clients make of it.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::ensure;
use mainstay_etcd_tests::member::{Cluster, Program, peers_dir};
use mainstay_etcd_tests::ops::{retry, settle};
use mainstay_proto::authpb::UserAddOptions;
use mainstay_proto::etcdserverpb as pb;
use tonic::Code;

use crate::caller::{Caller, PATIENCE, enable, outcome, read, set_up, single, tested};

#[tokio::test(flavor = "multi_thread")]
async fn tokens_die_with_their_user_their_password_and_the_process() {
    let mut told = Vec::new();
    for program in [tested(), Program::Etcd] {
        let (mut cluster, nobody) = single(program).await;
        let root = nobody.as_user("root", "root-secret").await.unwrap();
        let ann = nobody.as_user("ann", "ann-secret").await.unwrap();
        let mut said = vec![read(&ann).await];
        root.change_password("ann", "new-secret").await.unwrap();
        said.push(read(&ann).await);
        said.push(outcome(nobody.as_user("ann", "ann-secret").await.map(|_| ()), false));
        let ann = nobody.as_user("ann", "new-secret").await.unwrap();
        said.push(read(&ann).await);
        root.delete_user("ann").await.unwrap();
        said.push(read(&ann).await);
        said.push(read(&root).await);
        let member = &mut cluster.members[0];
        member.kill();
        member.start().await.unwrap();
        let root = Caller { channel: Caller::at(member).await.channel, ..root };
        said.push(read(&root).await);
        let nobody = Caller { token: None, ..root };
        said.push(read(&nobody).await);
        said.push(read(&nobody.as_user("root", "root-secret").await.unwrap()).await);
        told.push(said);
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0].first().map(String::as_str), Some("ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_hold_on_members_of_both_kinds() {
    let programs = [tested(), Program::Etcd, tested()];
    let cluster = Cluster::start(&programs, &[]).await.unwrap();
    settle(&cluster.members).await.unwrap();
    let mut callers = Vec::new();
    for member in &cluster.members {
        callers.push(Caller::at(member).await);
    }
    set_up(&callers[0]).await.unwrap();
    enable(&callers[1]).await.unwrap();
    for giver in &callers {
        let ann = giver.as_user("ann", "ann-secret").await.unwrap();
        for taker in &callers {
            let ann = taker.with(ann.token.as_ref().unwrap());
            retry("a read with a token of another member", PATIENCE, || async {
                let said = read(&ann).await;
                ensure!(said == "ok", "{said}");
                Ok(())
            })
            .await
            .unwrap();
            let denied = ann.put("z", "", 0).await.unwrap_err();
            assert_eq!(denied.code(), Code::PermissionDenied);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_gives_name_and_password() {
    let (cluster, _) = single(tested()).await;
    let ctl = |user: &str, arguments: &[&str]| {
        let output = Command::new(peers_dir().unwrap().join("etcdctl"))
            .args(["--endpoints", &cluster.members[0].client_url, "--user", user])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    assert_eq!(ctl("ann:ann-secret", &["put", "a1", "v"]).1.trim(), "OK");
    assert!(!ctl("ann:ann-secret", &["put", "z", "v"]).0);
    assert!(ctl("root:root-secret", &["user", "list"]).1.contains("bare"));
    let wrong = ctl("ann:wrong", &["get", "a1"]);
    assert!(!wrong.0 && wrong.1.contains("authentication failed"), "{}", wrong.1);
    assert!(ctl("root:root-secret", &["auth", "disable"]).0);
    assert!(ctl("ann:any", &["get", "a1"]).1.contains('v'));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lives_as_long_as_it_is_used() {
    let pause = Duration::from_secs(2);
    let mut told = Vec::new();
    for program in [tested(), Program::Etcd] {
        let cluster = Cluster::start(&[program], &["--auth-token-ttl", "3"]).await.unwrap();
        let nobody = Caller::at(&cluster.members[0]).await;
        set_up(&nobody).await.unwrap();
        enable(&nobody).await.unwrap();
        let ann = nobody.as_user("ann", "ann-secret").await.unwrap();
        let mut said = Vec::new();
        for wait in [pause, pause, pause, 3 * pause] {
            tokio::time::sleep(wait).await;
            said.push(read(&ann).await);
        }
        told.push(said);
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(told[0][..3], ["ok", "ok", "ok"]);
}

/// Also where everything is logged.
#[tokio::test(flavor = "multi_thread")]
async fn neither_passwords_nor_tokens_are_logged() {
    let arguments = ["--log-level", "debug", "--warning-unary-request-duration", "1ns"];
    let cluster = Cluster::start(&[tested()], &arguments).await.unwrap();
    let nobody = Caller::at(&cluster.members[0]).await;
    set_up(&nobody).await.unwrap();
    enable(&nobody).await.unwrap();
    let ann = nobody.as_user("ann", "ann-secret").await.unwrap();
    let root = nobody.as_user("root", "root-secret").await.unwrap();
    assert_eq!(read(&ann).await, "ok");
    root.change_password("ann", "new-secret").await.unwrap();
    nobody.as_user("ann", "wrong-secret").await.map(|_| ()).unwrap_err();
    read(&ann).await;
    let bearer = nobody.with("Bearer made-up-secret.1");
    read(&bearer).await;
    // A password that is too long, and one that nobody asked for.
    let add = |password: String, no_password| pb::AuthUserAddRequest {
        name: "new".into(),
        password,
        options: Some(UserAddOptions { no_password }),
        ..Default::default()
    };
    let path = "/etcdserverpb.Auth/UserAdd";
    for add in [add("long-secret".repeat(7), false), add("idle-secret".into(), true)] {
        let _ = root.call::<_, pb::AuthUserAddResponse>(path, add).await;
    }
    let log = std::fs::read_to_string(&cluster.members[0].log_path).unwrap();
    assert!(log.contains("/etcdserverpb.Auth/Authenticate"), "requests are logged");
    assert!(!log.contains("-secret"), "a password is in the log");
    for token in [ann.token.unwrap(), root.token.unwrap()] {
        assert!(!log.contains(&token), "a token is in the log");
    }
    // Nor is one in what is kept: the log of entries and the engine.
    for entry in files_below(&cluster.members[0].data_dir) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let found = bytes.windows(7).any(|window| window == b"-secret");
        assert!(!found, "a password is in {}", entry.display());
    }
}

fn files_below(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files_below(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}
