//! The way to the other members, or none for a member that has no peer port.
//!
//! Input: messages of the raft thread, changes of members, requests for the leader. Output: the
//! peer protocol, with its errors turned into the store's.
//! **Invariant:** a member without peers drops everything that is addressed to others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_consensus::{Pinned, Transport};
use mainstay_mvcc::membership::{Member, MemberChange};
use mainstay_mvcc::version::Version;
use mainstay_mvcc::{HashKv, StateView};
use mainstay_peer::{
    Client, ClientError, LeaseError, LeaseTimeToLive, MemberInfo, Peers, PromoteError,
};
use mainstay_proto::etcdserverpb as pb;
use mainstay_proto::raftpb::Message;

use crate::corruption::PeerHash;
use crate::error::{Error, NOT_PRIMARY, Result};

/// The other members as this one reaches them.
#[derive(Clone)]
pub(crate) struct Network {
    peers: Option<Peers>,
}

impl Network {
    /// No way to anybody.
    pub(crate) fn alone() -> Self {
        Self { peers: None }
    }

    pub(crate) fn of(peers: Peers) -> Self {
        Self { peers: Some(peers) }
    }

    pub(crate) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// Since when the member is reached; `None` when it is not.
    pub(crate) fn active_since(&self, id: u64) -> Option<Instant> {
        self.peers.as_ref()?.active_since(id)
    }

    /// Whether the member was reached all the time since `since`.
    pub(crate) fn connected_since(&self, id: u64, since: Instant) -> bool {
        self.active_since(id).is_some_and(|active| active <= since)
    }

    pub(crate) fn active_peers(&self) -> usize {
        self.peers.as_ref().map_or(0, Peers::active_peers)
    }

    /// Those of `voters` that are reached, first the one that has been for the longest time.
    pub(crate) fn longest_connected(&self, voters: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut reached: Vec<_> =
            voters.filter_map(|id| Some((self.active_since(id)?, id))).collect();
        reached.sort_unstable();
        reached.into_iter().map(|(_, id)| id).collect()
    }

    /// Takes over all members of a state that replaced another one.
    pub(crate) fn set_members(&self, state: &StateView) {
        let Some(peers) = &self.peers else { return };
        peers.remove_all_peers();
        for member in state.members.members() {
            self.add(member);
        }
    }

    fn add(&self, member: &Member) {
        if let Some(peers) = &self.peers
            && let Err(error) = peers.add_peer(member.id, member.peer_urls())
        {
            tracing::warn!(member = format!("{:x}", member.id), %error, "a peer cannot be reached");
        }
    }

    /// Follows one applied change of members.
    pub(crate) fn follow(&self, change: &MemberChange, own: u64) {
        let Some(peers) = &self.peers else { return };
        match change {
            MemberChange::Added(member) => self.add(member),
            MemberChange::Promoted(_) => {}
            MemberChange::Updated(member) => {
                if let Err(error) = peers.update_peer(member.id, member.peer_urls()) {
                    let member = format!("{:x}", member.id);
                    tracing::warn!(member, %error, "a peer cannot be reached any more");
                }
            }
            // The others must be told of it before the connections go, so it is the end of this
            // member's life that ends them.
            MemberChange::Removed { id, .. } if *id == own => {}
            MemberChange::Removed { id, .. } => peers.remove_peer(*id),
        }
    }

    fn client(&self, within: Duration) -> Result<Client> {
        let peers = self.peers.as_ref().ok_or(Error::NoLeader)?;
        Ok(peers.client().within(within))
    }

    fn until(&self, deadline: Instant) -> Result<Client> {
        self.client(deadline.saturating_duration_since(Instant::now()))
    }

    /// The version that a member runs.
    pub(crate) async fn version_of(&self, member: &Member, within: Duration) -> Option<Version> {
        let client = self.client(within).ok()?;
        match client.fetch_versions(member.peer_urls()).await {
            Ok(versions) => versions.server.parse().ok(),
            Err(error) => {
                tracing::warn!(member = format!("{:x}", member.id), %error, "failed to get version");
                None
            }
        }
    }

    /// What a member's hash is at a revision; `None` when it does not say.
    pub(crate) async fn hash_of(
        &self,
        member: &Member,
        cluster: u64,
        revision: i64,
        within: Duration,
    ) -> Option<PeerHash> {
        let client = self.client(within).ok()?;
        match client.hash_kv(member.peer_urls(), cluster, revision).await {
            Ok(answer) => Some(PeerHash {
                revision: answer.revision,
                hash: HashKv {
                    hash: answer.hash,
                    compact_revision: answer.compact_revision,
                    hash_revision: answer.hash_revision,
                },
            }),
            Err(error) => {
                let member = format!("{:x}", member.id);
                tracing::warn!(member, revision, %error, "failed hash kv request");
                None
            }
        }
    }

    /// Lets the leader promote a learner.
    pub(crate) async fn promote(
        &self,
        leader: &[String],
        id: u64,
        deadline: Instant,
    ) -> Result<Vec<pb::Member>> {
        match self.until(deadline)?.promote(leader, id, None).await {
            Ok(members) => Ok(members.into_iter().map(to_proto).collect()),
            Err(ClientError::Promote(PromoteError::NotFound)) => Err(Error::MemberNotFound),
            Err(ClientError::Promote(PromoteError::NotLearner)) => Err(Error::MemberNotLearner),
            Err(ClientError::Promote(PromoteError::NotReady)) => Err(Error::LearnerNotReady),
            Err(error) => Err(Error::Raw(error.to_string().into())),
        }
    }

    /// Lets the leader renew a lease.
    pub(crate) async fn renew_lease(
        &self,
        leader: &[String],
        id: i64,
        deadline: Instant,
    ) -> Result<i64> {
        let renewed = self.until(deadline)?.renew_lease(leader, id).await;
        renewed.map_err(lease_error)
    }

    /// Asks the leader how long a lease has left.
    pub(crate) async fn lease_time_to_live(
        &self,
        leader: &[String],
        id: i64,
        keys: bool,
        deadline: Instant,
    ) -> Result<LeaseTimeToLive> {
        let left = self.until(deadline)?.lease_time_to_live(leader, id, keys).await;
        left.map_err(lease_error)
    }

    pub(crate) fn stop(&self) {
        if let Some(peers) = &self.peers {
            peers.stop();
        }
    }
}

fn lease_error(error: ClientError) -> Error {
    match error {
        ClientError::Lease(LeaseError::NotFound) => Error::LeaseNotFound,
        ClientError::Lease(LeaseError::NotPrimary) => NOT_PRIMARY,
        other => Error::Raw(other.to_string().into()),
    }
}

fn to_proto(member: MemberInfo) -> pb::Member {
    pb::Member {
        id: member.id,
        name: member.name,
        peer_ur_ls: member.peer_urls,
        client_ur_ls: member.client_urls,
        is_learner: member.is_learner,
    }
}

impl Transport for Network {
    fn send(&self, messages: Vec<Message>) {
        if let Some(peers) = &self.peers {
            peers.send(messages);
        }
    }

    fn send_snapshot(&self, message: Message, state: Pinned) {
        if let Some(peers) = &self.peers {
            peers.send_snapshot(message, state);
        }
    }
}

/// The network as the raft thread holds it.
pub(crate) fn transport(network: &Network) -> Arc<dyn Transport> {
    Arc::new(network.clone())
}
