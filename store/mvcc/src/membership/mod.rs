//! The members of the cluster: who they are, how their ids come about, which change is allowed.
//!
//! Pure: the state machine keeps a [`Membership`] in step with the buckets `members` and
//! `members_removed`; the RPC side asks it whether a change may be proposed.
//!
//! - [`json`]: the JSON of the bucket rows and of the contexts in conf changes;
//! - [`change`]: validation of a committed conf change and its effect;
//! - [`conf_state`]: raft's view of a change, as a pure function;
//! - [`urls`]: peer URLs and ids.

pub mod change;
pub mod conf_state;
pub mod json;
pub mod urls;

use std::collections::{BTreeMap, BTreeSet};

use mainstay_proto::etcdserverpb as pb;
use serde::{Deserialize, Serialize};

use crate::Error;

pub use change::{ConfChangeKind, MemberChange};
pub use urls::{cluster_id, member_id, parse_peer_urls};

/// A member of the cluster. Serializes to etcd's JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id within the cluster, never 0.
    #[serde(default)]
    pub id: u64,
    /// Where other members reach it. `None` is JSON's `null`, which a promotion's context has.
    #[serde(rename = "peerURLs", default)]
    pub peer_urls: Option<Vec<String>>,
    /// Whether it gets the log without a vote.
    #[serde(rename = "isLearner", default, skip_serializing_if = "is_false")]
    pub is_learner: bool,
    /// Its name; empty until it has published itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where clients reach it; empty until it has published itself.
    #[serde(
        rename = "clientURLs",
        default,
        deserialize_with = "json::null_to_empty",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub client_urls: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Member {
    /// A member that is about to be added.
    pub fn new(id: u64, name: &str, peer_urls: Vec<String>, is_learner: bool) -> Self {
        let (peer_urls, client_urls) = (Some(peer_urls), Vec::new());
        Self { id, peer_urls, is_learner, name: name.to_owned(), client_urls }
    }

    /// Where other members reach it.
    pub fn peer_urls(&self) -> &[String] {
        self.peer_urls.as_deref().unwrap_or_default()
    }

    /// Whether the member has published itself.
    pub fn is_started(&self) -> bool {
        !self.name.is_empty()
    }

    /// As clients see it.
    pub fn to_proto(&self) -> pb::Member {
        pb::Member {
            id: self.id,
            name: self.name.clone(),
            peer_ur_ls: self.peer_urls().to_vec(),
            client_ur_ls: self.client_urls.clone(),
            is_learner: self.is_learner,
        }
    }
}

/// All members, and the ids that may not come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    members: BTreeMap<u64, Member>,
    removed: BTreeSet<u64>,
}

impl Membership {
    /// A membership from the content of the two buckets.
    pub fn new(
        members: impl IntoIterator<Item = Member>,
        removed: impl IntoIterator<Item = u64>,
    ) -> Self {
        let members = members.into_iter().map(|member| (member.id, member)).collect();
        Self { members, removed: removed.into_iter().collect() }
    }

    /// Members in the order of their ids.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// Members that vote, in the order of their ids.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members().filter(|member| !member.is_learner)
    }

    /// The member with this id.
    pub fn get(&self, id: u64) -> Option<&Member> {
        self.members.get(&id)
    }

    /// Whether this id was a member's and is not any more.
    pub fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    /// Removed ids.
    pub fn removed(&self) -> impl Iterator<Item = u64> {
        self.removed.iter().copied()
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// As clients see them.
    pub fn to_proto(&self) -> Vec<pb::Member> {
        self.members().map(Member::to_proto).collect()
    }

    /// Whether another voter may be proposed under strict reconfiguration: started voters must
    /// make a quorum of the grown cluster. Growing from one to two is always allowed.
    pub fn check_add_voter(&self) -> Result<(), Error> {
        let (started, voters) = self.count_voters(None);
        if (started == 1 && voters == 1) || is_quorum(started, voters + 1) {
            Ok(())
        } else {
            Err(Error::NotEnoughStartedMembers)
        }
    }

    /// Whether the removal of this member may be proposed under strict reconfiguration.
    pub fn check_remove(&self, id: u64) -> Result<(), Error> {
        if self.get(id).is_some_and(|member| member.is_learner) {
            return Ok(());
        }
        let (started, voters) = self.count_voters(Some(id));
        if is_quorum(started, voters) { Ok(()) } else { Err(Error::NotEnoughStartedMembers) }
    }

    /// Whether a promotion may be proposed under strict reconfiguration. The learner counts as
    /// started.
    pub fn check_promote(&self) -> Result<(), Error> {
        let (started, voters) = self.count_voters(None);
        if is_quorum(started + 1, voters + 1) {
            Ok(())
        } else {
            Err(Error::NotEnoughStartedMembers)
        }
    }

    /// Started voters, and voters.
    fn count_voters(&self, without: Option<u64>) -> (usize, usize) {
        let voters = || self.voters().filter(|member| Some(member.id) != without);
        (voters().filter(|member| member.is_started()).count(), voters().count())
    }

    pub(crate) fn insert(&mut self, member: Member) {
        self.members.insert(member.id, member);
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.members.remove(&id);
        self.removed.insert(id);
    }
}

fn is_quorum(started: usize, voters: usize) -> bool {
    started > voters / 2
}

/// A member id as key of a bucket row: hexadecimal without padding.
pub fn bucket_key(id: u64) -> String {
    format!("{id:x}")
}

/// Reads the key of a bucket row.
pub fn parse_bucket_key(key: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(key).ok()?;
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(started: usize, silent: usize, learners: usize) -> Membership {
        let member = |id: usize, name: &str, learner| Member::new(id as u64, name, vec![], learner);
        let voters = (1..=started).map(|id| member(id, "m", false));
        let silent = (started + 1..=started + silent).map(|id| member(id, "", false));
        let learners = (100..100 + learners).map(|id| member(id, "l", true));
        Membership::new(voters.chain(silent).chain(learners).collect::<Vec<_>>(), [])
    }

    #[test]
    fn strict_reconfiguration() {
        let refused = Err(Error::NotEnoughStartedMembers);
        assert_eq!(cluster(1, 0, 0).check_add_voter(), Ok(()));
        assert_eq!(cluster(1, 1, 0).check_add_voter(), refused);
        assert_eq!(cluster(3, 0, 0).check_add_voter(), Ok(()));
        assert_eq!(cluster(2, 1, 0).check_add_voter(), refused);
        assert_eq!(cluster(1, 0, 0).check_remove(1), refused);
        assert_eq!(cluster(1, 1, 0).check_remove(2), Ok(()));
        assert_eq!(cluster(1, 1, 0).check_remove(1), refused);
        assert_eq!(cluster(1, 0, 1).check_remove(100), Ok(()));
        assert_eq!(cluster(1, 0, 1).check_promote(), Ok(()));
        assert_eq!(cluster(1, 1, 1).check_promote(), Ok(()));
        assert_eq!(cluster(1, 2, 1).check_promote(), refused);
    }

    #[test]
    fn bucket_keys() {
        assert_eq!(bucket_key(0x0628_170c_800d_bcee), "628170c800dbcee");
        assert_eq!(parse_bucket_key(b"628170c800dbcee"), Some(0x0628_170c_800d_bcee));
        assert_eq!(parse_bucket_key(b"+1"), None);
        assert_eq!(parse_bucket_key(b""), None);
    }
}
