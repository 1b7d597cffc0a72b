//! What a member does by itself: publish its attributes, watch over the cluster version, end
//! downgrades that are done, send read requests again, tell who is waited for, look at the disk.
//!
//! Input: time and leadership. Output: entries for the log.
//! **Invariant:** every task ends when the member stops: they all run inside [`run`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_mvcc::version::{SERVER_VERSION, Version};
use mainstay_proto::etcdserverpb::InternalRaftRequest;
use mainstay_proto::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest,
};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::{auto_compaction, corruption, disk, lease, version, waiting};

/// How often the leader asks all members for their versions.
const VERSION_INTERVAL: Duration = Duration::from_secs(4);
/// How often the engine is asked whether it is well.
const ENGINE_INTERVAL: Duration = Duration::from_secs(1);
/// How often rounds of reads are looked at.
const READ_TICK: Duration = Duration::from_millis(100);
/// Pause between two looks for connected peers after the start.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a starting member waits for connections before it lets its election timer be.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Runs all tasks until the member stops.
pub(crate) async fn run(core: Arc<Core>) {
    let all = async {
        tokio::join!(
            publish(core.clone()),
            watch_version(core.clone()),
            watch_downgrade(core.clone()),
            repeat_reads(core.clone()),
            advance_ticks(core.clone()),
            clean_tokens(core.clone()),
            lease::keep_leases(core.clone()),
            watch_engine(core.clone()),
            auto_compaction::run(core.clone()),
            waiting::run(core.clone()),
            corruption::run(core.clone()),
            disk::run(core.clone()),
        )
    };
    tokio::select! {
        _ = all => {}
        _ = core.stop.stopped() => {}
    }
}

/// Tells the cluster this member's name and client URLs, until it has heard of them.
async fn publish(core: Arc<Core>) {
    let own = core.identity.member_id;
    if let Err(error) = corruption::check_at_start(&core).await {
        if !matches!(error, Error::Stopped) {
            core.stop.fatal(error.to_string());
        }
        return;
    }
    let attributes = Attributes {
        name: core.config.name.clone(),
        client_urls: core.config.advertise_client_urls.clone(),
    };
    loop {
        let set = ClusterMemberAttrSetRequest {
            member_id: own,
            member_attributes: Some(attributes.clone()),
        };
        let request =
            InternalRaftRequest { cluster_member_attr_set: Some(set), ..Default::default() };
        let published = tokio::select! {
            result = core.propose(request) => result.map(drop),
            // The entry may be part of a snapshot that this member got; then nothing answers it.
            () = known(&core, &attributes) => Ok(()),
        };
        match published {
            Ok(()) => break,
            Err(Error::Stopped) => return,
            Err(error) => {
                tracing::warn!(%error, "failed to publish local member to cluster through raft");
                tokio::time::sleep(READ_TICK).await;
            }
        }
    }
    core.ready.send_replace(true);
    tracing::info!(
        member = format!("{own:x}"),
        cluster = format!("{:x}", core.identity.cluster_id),
        name = %core.config.name,
        "published local member to cluster through raft"
    );
}

/// Resolves when a snapshot was installed that knows these attributes.
async fn known(core: &Core, attributes: &Attributes) {
    let mut installed = core.installed.subscribe();
    while installed.changed().await.is_ok() {
        let published = core.published.load();
        let own = published.state.members.get(core.identity.member_id);
        if own.is_some_and(|member| {
            member.name == attributes.name && member.client_urls == attributes.client_urls
        }) {
            return;
        }
    }
    std::future::pending().await
}

/// As leader, keeps the cluster version at the lowest version of all members.
async fn watch_version(core: Arc<Core>) {
    let mut applied_term = core.applied_term.subscribe();
    let mut leadership = core.leadership.subscribe();
    // The term may have begun before this task did.
    applied_term.mark_changed();
    loop {
        // Right after the first entry of a term, and every few seconds. The news of the entry and
        // of the election that came before it are told by two threads, in any order.
        tokio::select! {
            _ = applied_term.changed() => {}
            _ = leadership.changed() => {}
            () = tokio::time::sleep(VERSION_INTERVAL) => {}
        }
        let in_office = *applied_term.borrow_and_update() == core.leadership.term();
        if !core.leadership.is_local() || !in_office {
            continue;
        }
        if let Err(error) = update_version(&core).await {
            tracing::warn!(%error, "failed to update the cluster version");
        }
    }
}

async fn update_version(core: &Core) -> Result<()> {
    let versions = versions_of_members(core).await;
    let next = {
        let published = core.published.load();
        let state = &published.state;
        let downgrade =
            state.downgrade.enabled.then(|| state.downgrade.target_version.parse().ok());
        version::next_cluster_version(state.cluster_version, &versions, downgrade.flatten())
    };
    let Some(next) = next else { return Ok(()) };
    tracing::info!(version = %next, "setting the cluster version");
    let set = ClusterVersionSetRequest { ver: next.to_string() };
    let request = InternalRaftRequest { cluster_version_set: Some(set), ..Default::default() };
    core.propose(request).await.map(drop)
}

async fn versions_of_members(core: &Core) -> Vec<Option<Version>> {
    let members: Vec<_> = core.published.load().state.members.members().cloned().collect();
    let own = core.identity.member_id;
    let within = core.config.request_timeout();
    let ask = members.iter().map(|member| async move {
        if member.id == own {
            return Some(SERVER_VERSION);
        }
        let version = core.network.version_of(member, within).await;
        if version.is_some_and(|version| version > SERVER_VERSION) {
            tracing::warn!(
                member = format!("{:x}", member.id),
                "leader found higher-versioned member"
            );
        }
        version
    });
    futures_util::future::join_all(ask).await
}

/// As leader, ends a downgrade when all members run the target version.
async fn watch_downgrade(core: Arc<Core>) {
    if core.config.downgrade_check_time.is_zero() {
        return;
    }
    loop {
        tokio::time::sleep(core.config.downgrade_check_time).await;
        let downgrade = core.published.load().state.downgrade.clone();
        if !core.leadership.is_local() || !downgrade.enabled {
            continue;
        }
        let Ok(target) = downgrade.target_version.parse::<Version>() else { continue };
        let versions = versions_of_members(&core).await;
        let done = |version: &Option<Version>| version.is_some_and(|v| v.cluster() == target);
        if versions.iter().all(done) {
            tracing::info!(version = %target, "the cluster has been downgraded");
            if let Err(error) = core.cancel_downgrade().await {
                tracing::warn!(%error, "failed to end the downgrade");
            }
        }
    }
}

/// Notices an engine that failed in the background while nothing was written.
async fn watch_engine(core: Arc<Core>) {
    loop {
        tokio::time::sleep(ENGINE_INTERVAL).await;
        let generation = core.published.load().generation.clone();
        if let Err(error) = generation.engine().health() {
            core.stop.fatal(format!("the engine failed: {error}"));
        }
    }
}

/// Forgets tokens that nobody has used for their lifetime.
async fn clean_tokens(core: Arc<Core>) {
    loop {
        tokio::time::sleep(crate::auth::CLEAN_INTERVAL).await;
        core.tokens.clean();
    }
}

async fn repeat_reads(core: Arc<Core>) {
    let mut ticks = tokio::time::interval(READ_TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        core.reads.tick(Instant::now());
    }
}

/// Shortens the first election of a member that reaches others: a leader would be heard of before
/// the rest of the timeout is over. A member that is alone does not wait at all.
async fn advance_ticks(core: Arc<Core>) {
    if !core.config.initial_election_tick_advance || core.network.peers().is_none() {
        return;
    }
    let deadline = Instant::now() + CONNECT_WAIT;
    while Instant::now() < deadline {
        tokio::time::sleep(CONNECT_PAUSE).await;
        if core.network.active_peers() > 0 {
            if let Ok(raft) = core.raft.get() {
                // A raft thread that takes nothing more has ended.
                let _ = raft.advance_ticks(core.config.election_ticks.saturating_sub(2));
            }
            return;
        }
    }
}
