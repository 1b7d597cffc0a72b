//! Members that find each other through another etcd.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::collections::BTreeSet;

use mainstay_etcd_tests::member::{Cluster, Member, Program};
use mainstay_etcd_tests::ops::{connect, settle};
use mainstay_proto::etcdserverpb::{MemberListRequest, PutRequest};
use mainstay_test_pki::{Ca, Leaf};

async fn put(url: &str, key: &str, value: &str) {
    let put = PutRequest {
        key: key.to_owned().into(),
        value: value.to_owned().into(),
        ..Default::default()
    };
    connect(url).await.unwrap().kv.put(put).await.unwrap();
}

fn members(programs: &[Program], service: &Cluster, token: &str, more: &[String]) -> Vec<Member> {
    let of = |(at, program): (usize, &Program)| {
        let name = format!("{token}{at}");
        let mut member = Member::new(*program, &name, service.dir.path()).unwrap();
        let mut flags = vec![
            format!("--discovery-token={token}"),
            format!("--discovery-endpoints={}", service.members[0].client_url),
        ];
        flags.extend_from_slice(more);
        member.set_arguments(flags);
        member
    };
    programs.iter().enumerate().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_ours_and_real_ones_find_each_other() {
    let service = Cluster::start(&[Program::Etcd], &[]).await.unwrap();
    put(&service.members[0].client_url, "/_etcd/registry/tok/_config/size", "3").await;
    let programs = [Program::Mainstay, Program::Etcd, Program::Mainstay];
    let mut found = members(&programs, &service, "tok", &[]);
    for member in &mut found {
        member.spawn().unwrap();
    }
    for member in &mut found {
        member.wait_ready(0).await.unwrap();
    }
    settle(&found).await.unwrap();
    for member in &found {
        let mut client = connect(&member.client_url).await.unwrap();
        let list = client.cluster.member_list(MemberListRequest { linearizable: true });
        let names: BTreeSet<_> = list
            .await
            .unwrap()
            .into_inner()
            .members
            .into_iter()
            .map(|member| member.name)
            .collect();
        assert_eq!(names, ["tok0", "tok1", "tok2"].map(str::to_owned).into());
    }
    // One more has no place, and says so.
    let mut late = members(&programs[..1], &service, "tok", &[]);
    late[0].name = "late".to_owned();
    late[0].data_dir = service.dir.path().join("late");
    late[0].log_path = service.dir.path().join("late.log");
    let refused = late[0].start().await.unwrap_err().to_string();
    assert!(refused.contains("discovery: cluster is full"), "{refused}");
    // A member that has its log needs the service no more.
    drop(service.members);
    found[0].stop().unwrap();
    found[0].start().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_may_ask_for_a_certificate() {
    let ca = Ca::new("tests");
    let (cert, key) = ca.issue("all", Leaf { cn: "all", ..Leaf::default() });
    let flag = |name: &str, path: &std::path::Path| format!("--{name}={}", path.display());
    let mut flags = Vec::new();
    for side in ["", "peer-"] {
        flags.push(flag(&format!("{side}cert-file"), &cert));
        flags.push(flag(&format!("{side}key-file"), &key));
        flags.push(flag(&format!("{side}trusted-ca-file"), &ca.file));
    }
    let dir = tempfile::tempdir().unwrap();
    let service = Cluster::start_secure(dir, &[Program::Etcd], |_| flags.clone()).await.unwrap();
    let credentials = [
        flag("discovery-cert", &cert),
        flag("discovery-key", &key),
        flag("discovery-cacert", &ca.file),
        "--discovery-insecure-transport=false".to_owned(),
    ];
    // Nobody has put the size there.
    let mut alone = members(&[Program::Mainstay], &service, "tls", &credentials);
    let refused = alone[0].start().await.unwrap_err().to_string();
    assert!(refused.contains("size key not found"), "{refused}");
}
