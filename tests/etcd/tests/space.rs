//! A member that ran into its quota, and what an operator does about it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mainstay_etcd_tests::client::Client;
use mainstay_etcd_tests::member::{Cluster, Program};
use mainstay_etcd_tests::ops::connect;
use mainstay_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, DefragmentRequest, PutRequest, StatusRequest,
    alarm_request::AlarmAction,
};

const VALUE: usize = 1 << 20;

async fn put(client: &mut Client, key: &str, value: usize) -> Result<i64> {
    let put = PutRequest {
        key: key.to_owned().into(),
        // Nothing that shrinks when it is compressed.
        value: (0..value).map(|_| rand::random::<u8>()).collect::<Vec<u8>>().into(),
        ..Default::default()
    };
    Ok(client.kv.put(put).await?.into_inner().header.context("no header")?.revision)
}

async fn member(quota: u64) -> (Cluster, Client) {
    let flag = format!("--quota-backend-bytes={quota}");
    let cluster = Cluster::start(&[Program::Mainstay], &[&flag]).await.unwrap();
    let client = connect(&cluster.members[0].client_url).await.unwrap();
    (cluster, client)
}

async fn size(client: &mut Client) -> i64 {
    client.maintenance.status(StatusRequest {}).await.unwrap().into_inner().db_size
}

#[tokio::test(flavor = "multi_thread")]
async fn compacting_defragmenting_and_disarming_frees_a_full_member() {
    let (_cluster, mut client) = member(48 << 20).await;
    let mut revision = 0;
    let full = loop {
        match put(&mut client, &format!("k{}", revision % 8), VALUE).await {
            Ok(written) => revision = written,
            Err(error) => break error,
        }
    };
    assert!(full.to_string().contains("database space exceeded"), "{full}");
    client.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
    client.maintenance.defragment(DefragmentRequest {}).await.unwrap();
    let alarms = client.maintenance.alarm(AlarmRequest::default()).await.unwrap();
    for alarm in alarms.into_inner().alarms {
        let disarm = AlarmRequest {
            action: AlarmAction::Deactivate as i32,
            member_id: alarm.member_id,
            alarm: alarm.alarm,
        };
        client.maintenance.alarm(disarm).await.unwrap();
    }
    let freed = size(&mut client).await;
    assert!(freed < 16 << 20, "8 MiB are alive, and the size is {freed}");
    for at in 0..20 {
        let put = put(&mut client, &format!("k{}", at % 8), VALUE).await;
        assert!(put.is_ok(), "put {at} at {} bytes: {put:?}", size(&mut client).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn giving_back_space_does_not_look_like_using_it() {
    let (_cluster, mut client) = member(96 << 20).await;
    for at in 0..64 {
        put(&mut client, &format!("k{at}"), VALUE).await.unwrap();
    }
    let before = size(&mut client).await;
    let mut operator = client.clone();
    let defragmenting = tokio::spawn(async move {
        operator.maintenance.defragment(DefragmentRequest {}).await.unwrap();
    });
    let mut most = before;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        put(&mut client, "small", 8).await.unwrap();
        most = most.max(size(&mut client).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    defragmenting.await.unwrap();
    assert!(most < before + (4 << 20), "the size went from {before} to {most}");
}
