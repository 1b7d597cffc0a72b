//! A disk that fills up, while a member is at work.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::fs::File;
use std::time::Duration;

use mainstay_etcd_tests::member::{Cluster, Program};
use mainstay_etcd_tests::ops::{connect, retry};
use mainstay_proto::etcdserverpb::{AlarmRequest, PutRequest, RangeRequest};
use rustix::fs::{FallocateFlags, fallocate, statvfs};

/// Other work may take or give this much meanwhile.
const SLACK: u64 = 400 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_almost_full_refuses_writes_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let room = statvfs(dir.path()).unwrap();
    let available = room.f_bavail * room.f_frsize;
    assert!(available > 3 * SLACK, "this test needs {} bytes of room", 3 * SLACK);
    let path = dir.path().join("filler");
    let flag = format!("--disk-reserve-bytes={}", available - SLACK);
    let cluster =
        Cluster::start_in(dir, &[Program::Mainstay], |_| vec![flag.clone()]).await.unwrap();
    let url = &cluster.members[0].client_url;
    let put = || async {
        let put = PutRequest { key: "key".into(), value: "value".into(), ..Default::default() };
        anyhow::Ok(connect(url).await?.kv.put(put).await?)
    };
    put().await.unwrap();

    let filler = File::create(&path).unwrap();
    fallocate(&filler, FallocateFlags::empty(), 0, 2 * SLACK).unwrap();
    let refused = retry("a refusal", Duration::from_secs(10), || async {
        match put().await {
            Ok(_) => anyhow::bail!("taken"),
            Err(error) => Ok(error.to_string()),
        }
    });
    let refused = refused.await.unwrap();
    assert!(refused.contains("etcdserver: mvcc: database space exceeded"), "{refused}");
    let mut client = connect(url).await.unwrap();
    let get = RangeRequest { key: "key".into(), ..Default::default() };
    assert_eq!(client.kv.range(get).await.unwrap().into_inner().kvs[0].value, "value");
    retry("the alarm", Duration::from_secs(10), || async {
        let alarms = connect(url).await?.maintenance.alarm(AlarmRequest::default()).await?;
        anyhow::ensure!(alarms.into_inner().alarms.len() == 1);
        Ok(())
    })
    .await
    .unwrap();

    // Room again: nobody has to do anything.
    drop(filler);
    std::fs::remove_file(&path).unwrap();
    retry("a put that is taken", Duration::from_secs(20), put).await.unwrap();
    let alarms = client.maintenance.alarm(AlarmRequest::default()).await.unwrap();
    assert!(alarms.into_inner().alarms.is_empty());
}
