//! The JSON gateway under auth: where a token may stand, and what is said without one.

use std::process::Command;

use mainstay_etcd_tests::member::{Cluster, Program};
use regex::Regex;

use crate::caller::{Caller, enable, set_up, tested};

/// Status and body of an answer, without what differs between clusters.
fn ask(url: &str, path: &str, body: &str, header: Option<&str>) -> String {
    let mut curl = Command::new("curl");
    curl.args(["-s", "-m", "10", "-w", "\n===%{http_code} %{header_json}", "-d", body]);
    if let Some(header) = header {
        curl.args(["-H", header]);
    }
    let output = curl.arg(format!("{url}{path}")).output().expect("curl is installed");
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, rest) = text.rsplit_once("\n===").expect("curl tells the status");
    let ids = Regex::new(r#""(cluster_id|member_id|raft_term)":"\d+",?|\s"#).unwrap();
    let body = ids.replace_all(body, "").replace(",}", "}");
    let challenged = rest.contains("www-authenticate");
    format!("{} {challenged} {body}", &rest[..3])
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_passes_tokens_on() {
    let mut told = Vec::new();
    let token_in = Regex::new(r#""token":"([a-zA-Z]{16}\.\d+)""#).unwrap();
    for program in [tested(), Program::Etcd] {
        let cluster = Cluster::start(&[program], &[]).await.unwrap();
        let nobody = Caller::at(&cluster.members[0]).await;
        set_up(&nobody).await.unwrap();
        enable(&nobody).await.unwrap();
        let url = &cluster.members[0].client_url;
        let login = r#"{"name":"ann","password":"ann-secret"}"#;
        let answer = ask(url, "/v3/auth/authenticate", login, None);
        let token = token_in.captures(&answer).expect(&answer)[1].to_owned();
        let mut said = vec![answer.replace(&token, "TOKEN")];
        let headers = [
            None,
            Some(format!("Authorization: {token}")),
            Some(format!("Authorization: Bearer {token}")),
            Some(format!("Grpc-Metadata-Token: {token}")),
            Some(format!("Token: {token}")),
            Some("Authorization: wrong".to_owned()),
            Some("Grpc-Metadata-Token: x.1".to_owned()),
        ];
        for header in &headers {
            for (path, body) in [
                ("/v3/kv/range", r#"{"key":"YTE="}"#),
                ("/v3/kv/range", r#"{"key":"eg=="}"#),
                ("/v3/kv/put", r#"{"key":"YTE="}"#),
                ("/v3/auth/user/list", "{}"),
                ("/v3/auth/user/get", r#"{"name":"ann"}"#),
                ("/v3/auth/status", "{}"),
                ("/v3/lock/lock", r#"{"name":"ei1sb2Nr"}"#),
            ] {
                let answer = ask(url, path, body, header.as_deref());
                let shown = header.as_deref().unwrap_or("none").replace(&token, "TOKEN");
                said.push(format!("{shown} {path} {body}: {answer}"));
            }
        }
        told.push(said);
    }
    let differ: Vec<_> = told[0].iter().zip(&told[1]).filter(|(ours, real)| ours != real).collect();
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(told[0].iter().any(|line| line.contains("Bearer TOKEN") && line.contains(": 200")));
}
