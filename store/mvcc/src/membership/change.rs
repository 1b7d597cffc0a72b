//! A committed conf change: is it allowed, and what becomes of the members.
//!
//! **Invariant:** the verdict depends on the membership and the change alone, so that every member
//! of the cluster, real etcd or not, reaches the same. A refused change has no effect on raft.

use mainstay_proto::raftpb::{ConfChange, ConfChangeType, ConfChangeV2};

use super::json::ChangeContext;
use super::{Member, Membership};
use crate::Error;

/// What a conf change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfChangeKind {
    /// A voter comes, or a learner becomes one.
    AddNode,
    /// A member goes.
    RemoveNode,
    /// Peer URLs change; raft is not concerned.
    UpdateNode,
    /// A learner comes.
    AddLearnerNode,
}

impl ConfChangeKind {
    /// The kind of a change; a change without a kind adds a node.
    pub fn of(change: &ConfChange) -> Option<Self> {
        Some(match ConfChangeType::try_from(change.r#type.unwrap_or_default()).ok()? {
            ConfChangeType::ConfChangeAddNode => Self::AddNode,
            ConfChangeType::ConfChangeRemoveNode => Self::RemoveNode,
            ConfChangeType::ConfChangeUpdateNode => Self::UpdateNode,
            ConfChangeType::ConfChangeAddLearnerNode => Self::AddLearnerNode,
        })
    }
}

/// What happened to which member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// The member is new.
    Added(Member),
    /// The learner is a voter now.
    Promoted(Member),
    /// The member has other peer URLs.
    Updated(Member),
    /// The member with this id is gone for good. It had these peer URLs.
    Removed {
        /// Its id.
        id: u64,
        /// Where it was.
        peer_urls: Vec<String>,
    },
}

impl MemberChange {
    /// The member that changed.
    pub fn id(&self) -> u64 {
        match self {
            Self::Added(member) | Self::Promoted(member) | Self::Updated(member) => member.id,
            Self::Removed { id, .. } => *id,
        }
    }
}

/// A change that was read and is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) kind: ConfChangeKind,
    pub(crate) id: u64,
    /// Context of an addition, promotion or update.
    pub(crate) context: ChangeContext,
}

/// Why a change does not happen.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// It is not allowed in this membership: a normal answer.
    NotAllowed(Error),
    /// It cannot be read; real members die of it.
    Malformed(String),
}

/// Checks a change against the members.
pub(crate) fn validate(
    members: &Membership,
    change: &ConfChange,
    max_learners: usize,
) -> Result<Allowed, Refusal> {
    let id = change.node_id.unwrap_or_default();
    let refuse = |error| Err(Refusal::NotAllowed(error));
    if members.is_removed(id) {
        return refuse(Error::MemberNotFound);
    }
    let kind = ConfChangeKind::of(change)
        .ok_or_else(|| Refusal::Malformed(format!("conf change of type {:?}", change.r#type)))?;
    let existing = members.get(id);
    let context = match kind {
        ConfChangeKind::AddNode | ConfChangeKind::AddLearnerNode => {
            let context = parse_context(change)?;
            if context.is_promote {
                match existing {
                    None => return refuse(Error::MemberNotFound),
                    Some(member) if !member.is_learner => return refuse(Error::MemberNotLearner),
                    Some(_) => {}
                }
            } else {
                if existing.is_some() {
                    return refuse(Error::MemberExists);
                }
                if uses_a_url_of(members, None, &context.member) {
                    return refuse(Error::PeerUrlExists);
                }
                if context.member.is_learner && kind == ConfChangeKind::AddLearnerNode {
                    let learners = members.members().filter(|member| member.is_learner).count();
                    if learners + 1 > max_learners {
                        return refuse(Error::TooManyLearners);
                    }
                }
            }
            context
        }
        ConfChangeKind::RemoveNode => {
            if existing.is_none() {
                return refuse(Error::MemberNotFound);
            }
            ChangeContext::default()
        }
        ConfChangeKind::UpdateNode => {
            if existing.is_none() {
                return refuse(Error::MemberNotFound);
            }
            let context = parse_context(change)?;
            if uses_a_url_of(members, Some(id), &context.member) {
                return refuse(Error::PeerUrlExists);
            }
            context
        }
    };
    if kind != ConfChangeKind::RemoveNode && context.member.id != id {
        return Err(Refusal::Malformed(format!(
            "conf change of member {id:x} with a context that names member {:x}",
            context.member.id
        )));
    }
    Ok(Allowed { kind, id, context })
}

fn parse_context(change: &ConfChange) -> Result<ChangeContext, Refusal> {
    let json = change.context.as_deref().unwrap_or_default();
    serde_json::from_slice(json).map_err(|error| {
        Refusal::Malformed(format!("conf change with context {}: {error}", json.escape_ascii()))
    })
}

fn uses_a_url_of(members: &Membership, but: Option<u64>, member: &Member) -> bool {
    members
        .members()
        .filter(|other| Some(other.id) != but)
        .flat_map(Member::peer_urls)
        .any(|url| member.peer_urls().contains(url))
}

/// Carries an allowed change out.
pub(crate) fn carry_out(members: &mut Membership, allowed: Allowed) -> MemberChange {
    let Allowed { kind, id, context } = allowed;
    let known = "validation has seen the member";
    match kind {
        ConfChangeKind::AddNode | ConfChangeKind::AddLearnerNode if context.is_promote => {
            let member = members.get_mut(id).expect(known);
            member.is_learner = false;
            MemberChange::Promoted(member.clone())
        }
        ConfChangeKind::AddNode | ConfChangeKind::AddLearnerNode => {
            members.insert(context.member.clone());
            MemberChange::Added(context.member)
        }
        ConfChangeKind::UpdateNode => {
            let member = members.get_mut(id).expect(known);
            member.peer_urls = context.member.peer_urls;
            MemberChange::Updated(member.clone())
        }
        ConfChangeKind::RemoveNode => {
            let member = members.get(id).expect(known);
            let peer_urls = member.peer_urls().to_vec();
            members.remove(id);
            MemberChange::Removed { id, peer_urls }
        }
    }
}

/// A change of the second form as one of the first; `None` unless it is a single step.
pub(crate) fn from_v2(change: ConfChangeV2) -> Option<ConfChange> {
    let [single] = change.changes[..] else { return None };
    Some(ConfChange {
        id: None,
        r#type: single.r#type,
        node_id: single.node_id,
        context: change.context,
    })
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    fn change(kind: ConfChangeType, id: u64, context: String) -> ConfChange {
        ConfChange {
            id: Some(1),
            r#type: Some(kind as i32),
            node_id: Some(id),
            context: Some(context.into()),
        }
    }

    fn url(port: u16) -> Vec<String> {
        vec![format!("http://h:{port}")]
    }

    fn members() -> Membership {
        let voter = Member::new(1, "m1", url(1), false);
        let learner = Member::new(2, "", url(2), true);
        Membership::new([voter, learner], [9])
    }

    fn verdict(change: &ConfChange) -> Result<MemberChange, Error> {
        let mut members = members();
        match validate(&members, change, 1) {
            Ok(allowed) => Ok(carry_out(&mut members, allowed)),
            Err(Refusal::NotAllowed(error)) => Err(error),
            Err(Refusal::Malformed(what)) => panic!("{what}"),
        }
    }

    #[test]
    fn additions() {
        use ConfChangeType::{ConfChangeAddLearnerNode as Learner, ConfChangeAddNode as Voter};
        let add = |kind, id, port| {
            let member = Member::new(id, "", url(port), kind == Learner);
            verdict(&change(kind, id, json::member(&member)))
        };
        let added = Member::new(3, "", url(3), false);
        assert_eq!(add(Voter, 3, 3), Ok(MemberChange::Added(added)));
        assert_eq!(add(Voter, 1, 3), Err(Error::MemberExists));
        assert_eq!(add(Voter, 3, 1), Err(Error::PeerUrlExists));
        assert_eq!(add(Voter, 9, 3), Err(Error::MemberNotFound));
        assert_eq!(add(Learner, 3, 3), Err(Error::TooManyLearners));
    }

    #[test]
    fn promotions_keep_the_urls() {
        let promote =
            |id| verdict(&change(ConfChangeType::ConfChangeAddNode, id, json::promote_context(id)));
        let promoted = Member::new(2, "", url(2), false);
        assert_eq!(promote(2), Ok(MemberChange::Promoted(promoted)));
        assert_eq!(promote(1), Err(Error::MemberNotLearner));
        assert_eq!(promote(3), Err(Error::MemberNotFound));
    }

    #[test]
    fn updates_and_removals() {
        let update = |id, port| {
            let context = json::update_context(id, url(port));
            verdict(&change(ConfChangeType::ConfChangeUpdateNode, id, context))
        };
        let updated = Member::new(1, "m1", url(7), false);
        assert_eq!(update(1, 7), Ok(MemberChange::Updated(updated)));
        assert!(update(1, 1).is_ok(), "its own URL again");
        assert_eq!(update(1, 2), Err(Error::PeerUrlExists));
        assert_eq!(update(3, 7), Err(Error::MemberNotFound));
        let remove = |id| verdict(&change(ConfChangeType::ConfChangeRemoveNode, id, String::new()));
        assert_eq!(remove(2), Ok(MemberChange::Removed { id: 2, peer_urls: url(2) }));
        assert_eq!(remove(9), Err(Error::MemberNotFound));
        assert_eq!(remove(3), Err(Error::MemberNotFound));
    }

    #[test]
    fn what_cannot_be_read_is_not_an_answer() {
        let bad = [
            change(ConfChangeType::ConfChangeAddNode, 3, "{".into()),
            change(ConfChangeType::ConfChangeAddNode, 3, json::update_context(4, url(3))),
            ConfChange { r#type: Some(7), node_id: Some(3), ..Default::default() },
        ];
        for change in bad {
            assert!(matches!(validate(&members(), &change, 1), Err(Refusal::Malformed(_))));
        }
    }
}
