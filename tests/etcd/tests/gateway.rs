//! The JSON gateway beside that of real etcd: the same requests by curl, the same answers.
//!
//! Compared are the status, the headers that clients read, and the body, in which the ids of
//! cluster and member and the raft term are left out.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::process::Command;

use anyhow::{Context, Result, ensure};
use mainstay_etcd_tests::member::{Cluster, Program};
use regex::Regex;

/// What one request came to.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: String,
    headers: Vec<String>,
    body: String,
}

/// Asks one member. Streams that do not end by themselves are left after a second.
fn ask(url: &str, path: &str, arguments: &[&str]) -> Result<Answer> {
    let output = Command::new("curl")
        .args(["-s", "-i", "-m", "1"])
        .args(arguments)
        .arg(format!("{url}{path}"))
        .output()
        .context("curl is missing: apt-get install curl")?;
    let text = String::from_utf8(output.stdout)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default().to_owned();
    let compared = ["content-type", "grpc-metadata", "access-control", "www-authenticate"];
    let mut headers: Vec<String> = lines
        .map(str::to_lowercase)
        .filter(|line| compared.iter().any(|prefix| line.starts_with(prefix)))
        .collect();
    headers.sort();
    let ids = Regex::new(r#""(cluster_id|member_id|raft_term|memberID|leader)":"\d+",?"#)?;
    // Go's JSON sometimes has a space where none is needed; its position is chosen per build.
    let body = ids.replace_all(body, "").replace(",}", "}").replace("\u{a0}", " ");
    Ok(Answer { status, headers, body })
}

#[tokio::test]
async fn answers_are_those_of_real_etcd() -> Result<()> {
    let ours = Cluster::start(&[Program::Mainstay], &[]).await?;
    let theirs = Cluster::start(&[Program::Etcd], &[]).await?;
    let mut asked = 0;
    let mut compare = |path: &str, arguments: &[&str]| -> Result<Answer> {
        let [ours, theirs] = [&ours, &theirs].map(|cluster| cluster.members[0].client_url.clone());
        let (ours, theirs) = (ask(&ours, path, arguments)?, ask(&theirs, path, arguments)?);
        ensure!(ours == theirs, "{path} {arguments:?}\nours:   {ours:#?}\ntheirs: {theirs:#?}");
        asked += 1;
        Ok(ours)
    };
    for (path, bodies) in [
        (
            "/v3/kv/put",
            &[
                r#"{"key":"Zm9v","value":"YmFy"}"#,
                r#"{"key":"Zm9v","value":"YmF6","prev_kv":true}"#,
                r#"{"key":"Zm9vMg==","value":""}"#,
                r#"{"key":"_-8","value":"_-8="}"#,
                r#"{"key":"","value":"YmFy"}"#,
                r#"{"key":"Zm9v","lease":"99"}"#,
                r#"{"key":"Zm9v","lease":1e400}"#,
            ][..],
        ),
        (
            "/v3/kv/range",
            &[
                r#"{"key":"Zm9v"}"#,
                r#"{"key":"AA==","range_end":"AA==","sort_order":"DESCEND","sortTarget":"MOD"}"#,
                r#"{"key":"AA==","rangeEnd":"AA==","limit":1,"keys_only":true}"#,
                r#"{"key":"AA==","rangeEnd":"AA==","limit":"1","count_only":true}"#,
                r#"{"key":"Zm9v","limit":"5","unknown":{"a":[1,{}]}}"#,
                r#"{"key":"Zm9v","sort_order":"BAD"}"#,
                r#"{"key":"Zm9v","sort_order":7}"#,
                r#"{"key":"Zm9v","revision":null}"#,
                r#"{"key":"Zm9v","revision":"99"}"#,
                r#"{"key":"Zm9v","limit":"x"}"#,
                r#"{"key":"Zm9v","limit":1.5}"#,
                r#"{"key":"Zm9v","serializable":"true"}"#,
                r#"{"key":"!!!"}"#,
                r#"{"key":5}"#,
                r#"{"key":{"a":1}}"#,
                r#"{"key":["a"]}"#,
                r#"{"key":"Zm9v","key":"Zm9v"}"#,
                r#"{"key":"Zm9v","limit":"1","limit":2}"#,
                r#"{"key":"Zm9v"} {"key":"a"}"#,
                r#"{"key":"Zm9v"} nonsense"#,
                r#"{"key":"Zm9v""#,
                r#"{"key":"Zm9v",}"#,
                r#"{"key" "Zm9v"}"#,
                r#"{'key':1}"#,
                r#""text""#,
                "[]",
                "7",
                "null",
                "true",
                "nul",
                "xx",
                "",
                "{}",
                " \n{\n\"key\":\n\"?\"}",
            ],
        ),
        (
            "/v3/kv/txn",
            &[
                r#"{"compare":[{"key":"Zm9v","target":"VALUE","value":"YmF6"}],
                "success":[{"request_range":{"key":"Zm9v"}},{"requestPut":{"key":"YQ==","value":"Yg=="}}],
                "failure":[{"request_delete_range":{"key":"Zm9v"}}]}"#,
                r#"{"compare":[{"key":"Zm9v","result":"GREATER","target":"VERSION","version":"90"}],
                "failure":[{"request_txn":{"success":[{"request_range":{"key":"Zm9v"}}]}}]}"#,
                r#"{"success":[{"request_put":{"key":"YQ=="}},{"request_put":{"key":"YQ=="}}]}"#,
                r#"{"success":[{"request_put":{"key":"YQ=="},"request_range":{"key":"YQ=="}}]}"#,
                r#"{"success":{"request_put":{"key":"YQ=="}}}"#,
                r#"{"success":[1]}"#,
                r#"{"success":[null]}"#,
                r#"{}"#,
            ],
        ),
        ("/v3/kv/deleterange", &[r#"{"key":"YQ==","prev_kv":true}"#, r#"{"key":""}"#]),
        (
            "/v3/lease/grant",
            &[r#"{"TTL":60,"ID":7}"#, r#"{"TTL":"60","ID":"7"}"#, r#"{"TTL":0,"ID":6}"#],
        ),
        ("/v3/lease/keepalive", &[r#"{"ID":"7"}"#, r#"{"ID":"8"}"#, r#"{"ID":7}{"ID":9}"#, "{}"]),
        ("/v3/lease/leases", &["{}"]),
        ("/v3/kv/lease/leases", &["{}"]),
        ("/v3/lease/timetolive", &[r#"{"ID":8,"keys":true}"#]),
        ("/v3/kv/lease/timetolive", &[r#"{"ID":8,"keys":true}"#]),
        ("/v3/lease/revoke", &[r#"{"ID":7}"#, r#"{"ID":7}"#]),
        ("/v3/kv/lease/revoke", &[r#"{"ID":7}"#]),
        ("/v3/cluster/member/promote", &[r#"{"ID":5}"#]),
        ("/v3/cluster/member/remove", &[r#"{"ID":5}"#]),
        ("/v3/cluster/member/add", &[r#"{"peerURLs":["nonsense"]}"#]),
        (
            "/v3/maintenance/alarm",
            &[
                "{}",
                r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#,
                r#"{"action":"GET"}"#,
                r#"{"action":2,"alarm":1}"#,
            ],
        ),
        ("/v3/maintenance/defragment", &["{}"]),
        ("/v3/maintenance/transfer-leadership", &[r#"{"targetID":5}"#]),
        ("/v3/maintenance/downgrade", &[r#"{"action":"VALIDATE","version":"1.0"}"#]),
        ("/v3/maintenance/hashkv", &[r#"{"revision":3}"#]),
        ("/v3/auth/status", &["{}"]),
        ("/v3/lock/lock", &[r#"{"name":"YQ==","lease":"5"}"#]),
        ("/v3/lock/unlock", &[r#"{"key":"YQ=="}"#, "{}"]),
        ("/v3/election/leader", &[r#"{"name":"YQ=="}"#]),
        ("/v3/election/proclaim", &[r#"{"value":"YQ=="}"#]),
        ("/v3/election/resign", &["{}"]),
        (
            "/v3/kv/compaction",
            &[r#"{"revision":"99"}"#, r#"{"revision":"3","physical":true}"#, r#"{"revision":"3"}"#],
        ),
        ("/v3/kv/range", &[r#"{"key":"Zm9v","revision":"1"}"#]),
        (
            "/v3/watch",
            &[
                r#"{"create_request":{"key":"AA==","range_end":"AA==","start_revision":"4"}}"#,
                r#"{"create_request":{"key":"Zm9v","start_revision":1}}"#,
                r#"{"create_request":{"key":"Zm9v"}}{"create_request":{"key":"Zm9v"}}"#,
                r#"{"create_request":{"key":"Zm9v","watch_id":7}} {"cancel_request":{"watch_id":7}}"#,
                r#"{"create_request":{"key":"Zm9v"}} nonsense"#,
                r#"{"progress_request":{}}"#,
                "xx",
                "{}",
            ],
        ),
        ("/v3beta/kv/range", &[r#"{"key":"Zm9v"}"#]),
        ("/v3/kv/nope", &["{}"]),
        ("/v3/kv/range/", &["{}"]),
        ("/v3/", &["{}"]),
        ("/v3/kv/range?x=y", &[r#"{"key":"Zm9v"}"#]),
        ("/v2/keys", &["{}"]),
    ] {
        for body in bodies {
            compare(path, &["-d", body])?;
        }
    }
    for (path, arguments) in [
        ("/v3/kv/range", &[][..]),
        ("/v3/kv/range", &["-X", "PUT", "-d", "{}"]),
        ("/v3/kv/range", &["-X", "OPTIONS"]),
        ("/nothing", &["-X", "OPTIONS"]),
        ("/nothing", &[]),
        ("/health", &["-H", "Origin: http://a"]),
        ("/v3/kv/range", &["-H", "Grpc-Metadata-hasleader: true", "-d", r#"{"key":"Zm9v"}"#]),
        ("/v3/kv/range", &["-H", "Transfer-Encoding: chunked", "-d", r#"{"key":"Zm9v"}"#]),
    ] {
        compare(path, arguments)?;
    }
    let stored = compare("/v3/kv/range", &["--json", r#"{"key":"Zm9v"}"#])?;
    ensure!(stored.body.contains(r#""value":"YmF6""#), "{stored:?}");
    println!("{asked} requests, each answered as by real etcd");
    Ok(())
}

#[tokio::test]
async fn hosts_and_origins_are_those_that_were_allowed() -> Result<()> {
    let arguments =
        ["--cors", "http://a.example:80", "--host-whitelist", "127.0.0.1,known.example"];
    let ours = Cluster::start(&[Program::Mainstay], &arguments).await?;
    let theirs = Cluster::start(&[Program::Etcd], &arguments).await?;
    for (path, arguments) in [
        ("/health", &["-H", "Host: known.example:99"][..]),
        ("/version", &["-H", "Host: evil.example:99"]),
        ("/v3/kv/range", &["-H", "Host: evil.example", "-d", r#"{"key":"YQ=="}"#]),
        ("/v3/kv/range", &["-H", "Origin: http://a.example:80", "-d", r#"{"key":""}"#]),
        ("/v3/kv/range", &["-H", "Origin: http://b.example", "-d", r#"{"key":""}"#]),
        ("/v3/kv/range", &["-H", "Origin: http://a.example:80", "-X", "OPTIONS"]),
    ] {
        let [ours, theirs] = [&ours, &theirs].map(|cluster| cluster.members[0].client_url.clone());
        let (ours, theirs) = (ask(&ours, path, arguments)?, ask(&theirs, path, arguments)?);
        ensure!(ours == theirs, "{path} {arguments:?}\nours:   {ours:#?}\ntheirs: {theirs:#?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_gateway_can_be_switched_off() -> Result<()> {
    let arguments = ["--enable-grpc-gateway=false"];
    let ours = Cluster::start(&[Program::Mainstay], &arguments).await?;
    let theirs = Cluster::start(&[Program::Etcd], &arguments).await?;
    let [ours, theirs] = [&ours, &theirs].map(|cluster| cluster.members[0].client_url.clone());
    let arguments = ["-d", r#"{"key":"YQ=="}"#];
    let ours = ask(&ours, "/v3/kv/range", &arguments)?;
    ensure!(ours.status.contains("404"), "{ours:?}");
    ensure!(ours == ask(&theirs, "/v3/kv/range", &arguments)?, "{ours:?}");
    Ok(())
}
