//! Leases that end, while leadership moves.
//!
//! Both stores get the same lease with a key; it is renewed through changing members while each
//! member leads in turn, then left alone. It must never end early, must end in both in the end,
//! and the stores must be at the same revision afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use mainstay_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest,
};
use tokio_stream::StreamExt;

use super::Mixed;
use super::disturb::Disturbance;
use crate::client::Client;

const TTL: Duration = Duration::from_secs(6);
/// A new leader starts the time of a lease anew, and looks for ended ones only now and then.
const LATE: Duration = Duration::from_secs(20);

async fn grant(client: &mut Client, id: i64, key: &Bytes) -> Result<()> {
    let request = LeaseGrantRequest { id, ttl: TTL.as_secs() as i64 };
    client.lease.lease_grant(request).await?;
    let put = PutRequest { key: key.clone(), lease: id, ..Default::default() };
    client.kv.put(put).await?;
    Ok(())
}

async fn renew(client: &mut Client, id: i64) -> Result<i64> {
    let request = tokio_stream::once(LeaseKeepAliveRequest { id });
    let mut answers = client.lease.lease_keep_alive(request).await?.into_inner();
    let answer = answers.next().await.context("no answer to a keep-alive")??;
    Ok(answer.ttl)
}

async fn exists(client: &mut Client, key: &Bytes) -> Result<bool> {
    let request = RangeRequest { key: key.clone(), count_only: true, ..Default::default() };
    Ok(client.kv.range(request).await?.into_inner().count > 0)
}

impl Mixed {
    async fn any(&mut self) -> Result<(String, Client)> {
        let up = self.others(usize::MAX);
        let at = self.pick(&up)?;
        let member = &self.cluster.members[at];
        Ok((member.name.clone(), Client::connect(&member.client_url).await?))
    }

    /// One lease, renewed while every running member leads once, then left to end.
    pub(super) async fn leases(&mut self) -> Result<()> {
        self.leases += 1;
        let id = 7000 + self.leases;
        let key = Bytes::from(format!("lease/{id}"));
        let mut reference = Client::connect(&self.reference.members[0].client_url).await?;
        let mut renewed = Instant::now();
        grant(&mut self.any().await?.1, id, &key).await?;
        grant(&mut reference, id, &key).await?;
        for to in self.others(usize::MAX) {
            self.begin(Disturbance::Move(to)).await?;
            for _ in 0..3 {
                let (name, mut client) = self.any().await?;
                let started = Instant::now();
                let ttl = renew(&mut client, id).await.with_context(|| format!("asked {name}"))?;
                ensure!(
                    ttl == TTL.as_secs() as i64 || renewed.elapsed() >= TTL,
                    "{name}: keep-alive of {id} answers {ttl}, {:?} after the last one",
                    renewed.elapsed()
                );
                ensure!(ttl > 0, "this machine is too slow: no keep-alive in {TTL:?}");
                ensure!(renew(&mut reference, id).await? > 0, "the reference lost the lease");
                renewed = started;
            }
        }
        let to = self.others(usize::MAX);
        let to = self.pick(&to)?;
        self.begin(Disturbance::Move(to)).await?;
        loop {
            let (name, mut client) = self.any().await?;
            let gone = !exists(&mut client, &key).await?;
            let age = renewed.elapsed();
            if gone {
                ensure!(age >= TTL, "{name}: lease {id} ended after {age:?}, its TTL is {TTL:?}");
                break;
            }
            ensure!(age < TTL + LATE, "{name}: lease {id} lives {age:?} after its last renewal");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        while exists(&mut reference, &key).await? {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (name, mut client) = self.any().await?;
        let request = LeaseTimeToLiveRequest { id, keys: true };
        let answer = client.lease.lease_time_to_live(request).await?.into_inner();
        ensure!(answer.ttl == -1, "{name}: the ended lease answers {answer:?}");
        self.compare_revisions().await?;
        self.count("leases that ended");
        Ok(())
    }
}
