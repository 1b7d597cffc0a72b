//! A member without a log: who it is, in a cluster that begins or in one that runs.
//!
//! **Invariant:** ids are computed as etcd computes them, so members of both kinds agree on them.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstay_consensus::Start;
use mainstay_log::{LogStore as _, Metadata, Wal};
use mainstay_mvcc::StateMachine;
use mainstay_mvcc::membership::{Member, cluster_id, json, member_id};
use mainstay_mvcc::version::{SERVER_VERSION, Version};
use mainstay_peer::{Client, MemberInfo};
use mainstay_proto::raftpb::{ConfChange, ConfChangeType, Entry, EntryType, HardState};
use prost::Message as _;

use super::{Booted, Ground, StartError, describe};
use crate::config::{ClusterState, StoreConfig};
use crate::core::Identity;
use crate::engine_home::EngineHome;
use crate::version::MIN_CLUSTER_VERSION;

/// How long the others are asked whether this member was there before.
const ASK_BEFORE_BIRTH: Duration = Duration::from_secs(1);
/// How long a running member may take to list the members.
const ASK_TO_JOIN: Duration = Duration::from_secs(10);

/// Starts a member that has no log yet.
pub(super) async fn begin(
    config: &StoreConfig,
    home: EngineHome,
    ground: Ground,
    client: &Client,
) -> Result<Booted, StartError> {
    let traces = home.traces()?;
    if !traces.is_empty() {
        return Err(StartError::LogLost {
            engine: config.engine_dir(),
            found: traces.join(", "),
            log: config.wal_dir(),
            data: config.data_dir.clone(),
        });
    }
    let (identity, entries, remotes) = match config.initial_cluster_state {
        ClusterState::New => {
            let (identity, members) = new_cluster(config)?;
            refuse_if_known(config, client, identity).await?;
            (identity, first_entries(&members), Vec::new())
        }
        ClusterState::Existing => {
            let (identity, remotes) = join(config, client).await?;
            (identity, Vec::new(), remotes)
        }
    };
    let metadata = Metadata { node_id: identity.member_id, cluster_id: identity.cluster_id };
    let mut wal = Wal::create(ground.files.clone(), &config.wal_dir(), metadata, ground.log)?;
    let hard_state = write_first_entries(&mut wal, &entries)?;
    // From here on the member is born, and an engine without a log means that the log is lost.
    let generation = home.open()?;
    let machine = StateMachine::open(&**generation.engine(), ground.limits)?;
    tracing::info!(
        member = format!("{:x}", identity.member_id),
        cluster = format!("{:x}", identity.cluster_id),
        joins = config.initial_cluster_state == ClusterState::Existing,
        "starting local member"
    );
    let start = Start { hard_state, entries, ..Start::default() };
    Ok(Booted { identity, home, generation, machine, wal, start, remotes })
}

/// Writes the entries that a new cluster begins with; they are committed from the start.
pub(super) fn write_first_entries(
    wal: &mut Wal,
    entries: &[Entry],
) -> Result<HardState, StartError> {
    if entries.is_empty() {
        return Ok(HardState::default());
    }
    let commit = entries.len() as u64;
    let hard_state = HardState { term: Some(1), vote: Some(0), commit: Some(commit) };
    wal.append(entries, Some(&hard_state), true).map_err(StartError::FirstEntries)?;
    Ok(hard_state)
}

/// Whether the member of this id was there when its cluster began: the ids of those who join later
/// have the time in them.
pub(super) fn is_founder(config: &StoreConfig, member: u64) -> bool {
    config.founding_id() == member
}

/// The ids of the configured cluster and of this member in it.
pub(super) fn new_cluster(config: &StoreConfig) -> Result<(Identity, Vec<Member>), StartError> {
    let cluster = &config.initial_cluster;
    let name = &config.name;
    let Some(listed) = cluster.urls_of(name) else {
        return Err(StartError::NameNotInCluster {
            name: name.clone(),
            cluster: describe(cluster),
        });
    };
    let mut advertised = config.advertise_peer_urls.clone();
    advertised.sort();
    if listed != advertised {
        return Err(StartError::UrlsDiffer {
            name: name.clone(),
            listed: listed.join(","),
            advertised: advertised.join(","),
        });
    }
    let mut members = BTreeMap::new();
    for (name, urls) in cluster.iter() {
        let id = member_id(urls, &config.initial_cluster_token, None);
        members.insert(id, Member::new(id, name, urls.to_vec(), false));
    }
    if members.len() != cluster.len() || members.contains_key(&0) {
        return Err(StartError::SameId(describe(cluster)));
    }
    let ids: Vec<u64> = members.keys().copied().collect();
    let own = member_id(listed, &config.initial_cluster_token, None);
    let identity = Identity { cluster_id: cluster_id(&ids), member_id: own };
    Ok((identity, members.into_values().collect()))
}

/// What the log of a new cluster begins with: its members, in the order of their ids.
pub(super) fn first_entries(members: &[Member]) -> Vec<Entry> {
    let entry = |(at, member): (usize, &Member)| {
        let change = ConfChange {
            id: None,
            r#type: Some(ConfChangeType::ConfChangeAddNode as i32),
            node_id: Some(member.id),
            context: Some(json::member(member).into()),
        };
        Entry {
            r#type: Some(EntryType::EntryConfChange as i32),
            term: Some(1),
            index: Some(at as u64 + 1),
            data: Some(change.encode_to_vec().into()),
        }
    };
    members.iter().enumerate().map(entry).collect()
}

/// A member whose log is lost must not be born a second time while the others know it.
async fn refuse_if_known(
    config: &StoreConfig,
    client: &Client,
    identity: Identity,
) -> Result<(), StartError> {
    let others = config.initial_cluster.urls_of_others(&config.name);
    if others.is_empty() {
        return Ok(());
    }
    let asking = client.clone().within(ASK_BEFORE_BIRTH);
    // When nobody answers, all are about to be born.
    let Ok(found) = asking.fetch_members(&others).await else { return Ok(()) };
    let known = found.members.iter().find(|member| member.id == identity.member_id);
    match known {
        Some(known) if !known.client_urls.is_empty() => {
            Err(StartError::AlreadyBootstrapped { member: known.id })
        }
        _ => Ok(()),
    }
}

/// Finds this member among those of the running cluster.
async fn join(
    config: &StoreConfig,
    client: &Client,
) -> Result<(Identity, Vec<MemberInfo>), StartError> {
    let cluster = &config.initial_cluster;
    let Some(own_urls) = cluster.urls_of(&config.name) else {
        return Err(StartError::NameNotInCluster {
            name: config.name.clone(),
            cluster: describe(cluster),
        });
    };
    let others = cluster.urls_of_others(&config.name);
    let asking = client.clone().within(ASK_TO_JOIN);
    let found = asking
        .fetch_members(&others)
        .await
        .map_err(|error| StartError::NoMembersAnswer(error.to_string()))?;
    let differs = |reason: String| StartError::ClusterDiffers {
        reason,
        existing: found
            .members
            .iter()
            .map(|m| format!("{:x}={}", m.id, m.peer_urls.join(",")))
            .collect::<Vec<_>>()
            .join(" "),
        given: describe(cluster),
    };
    if found.members.len() != cluster.len() {
        return Err(differs("member count is unequal".to_owned()));
    }
    let mut own = None;
    for member in &found.members {
        let mut urls = member.peer_urls.clone();
        urls.sort();
        if !cluster.iter().any(|(_, listed)| listed == urls) {
            let text = format!("no match found for existing member {:x}", member.id);
            return Err(differs(text));
        }
        if urls == own_urls {
            own = Some(member);
        }
    }
    let own = own.ok_or_else(|| differs("this member was not added to the cluster".to_owned()))?;
    if !own.client_urls.is_empty() {
        return Err(StartError::AlreadyBootstrapped { member: own.id });
    }
    check_version(client, &found.members, own.id).await?;
    let identity = Identity { cluster_id: found.cluster, member_id: own.id };
    Ok((identity, found.members))
}

/// At least one member must be of a version that this one can live with, and none of another.
async fn check_version(
    client: &Client,
    members: &[MemberInfo],
    own: u64,
) -> Result<(), StartError> {
    let asking = client.clone().within(ASK_TO_JOIN);
    let ask = members.iter().filter(|member| member.id != own).map(|member| {
        let asking = &asking;
        async move { asking.fetch_versions(&member.peer_urls).await.ok() }
    });
    let mut met = false;
    for versions in futures_util::future::join_all(ask).await.into_iter().flatten() {
        let Ok(version) = versions.cluster.parse::<Version>() else { continue };
        if version < MIN_CLUSTER_VERSION || version > SERVER_VERSION.cluster() {
            return Err(StartError::IncompatibleVersion(version.to_string()));
        }
        met = true;
    }
    if met { Ok(()) } else { Err(StartError::IncompatibleVersion("not known yet".to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::urls::InitialCluster;

    fn config(cluster: &str, own: &str) -> StoreConfig {
        let mut config = StoreConfig::new("/unused");
        config.name = "m1".to_owned();
        config.initial_cluster = InitialCluster::parse(cluster).unwrap();
        config.advertise_peer_urls = vec![own.to_owned()];
        config
    }

    #[test]
    fn ids_are_those_of_etcd() {
        let url = "http://127.0.0.1:32380";
        let (identity, members) = new_cluster(&config(&format!("m1={url}"), url)).unwrap();
        assert_eq!(identity.member_id, 0x0628_170c_800d_bcee);
        assert_eq!(identity.cluster_id, 0xbabc_9795_b64f_03e3);
        let entries = first_entries(&members);
        let change = ConfChange::decode(entries[0].data.clone().unwrap()).unwrap();
        let context = change.context.unwrap();
        let expected =
            r#"{"id":443629905751424238,"peerURLs":["http://127.0.0.1:32380"],"name":"m1"}"#;
        assert_eq!(context, expected.as_bytes());
        assert_eq!(change.id, None);
    }

    #[test]
    fn entries_come_in_the_order_of_ids() {
        let list = "m1=http://a:1,m2=http://b:2,m3=http://c:3";
        let (_, members) = new_cluster(&config(list, "http://a:1")).unwrap();
        assert!(members.is_sorted_by_key(|member| member.id));
        let entries = first_entries(&members);
        assert_eq!(entries.iter().map(|e| e.index()).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn contradictions_are_named() {
        let missing = new_cluster(&config("m2=http://b:2", "http://b:2")).unwrap_err();
        assert!(missing.to_string().contains("couldn't find local name \"m1\""), "{missing}");
        let other = new_cluster(&config("m1=http://a:1", "http://a:2")).unwrap_err();
        assert!(other.to_string().contains("must name the same URLs"), "{other}");
    }
}
