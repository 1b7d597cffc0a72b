//! What a single-step conf change makes of raft's configuration, as a pure function.
//!
//! The raft thread computes the same with its own library; the state machine needs the result in
//! the same batch as the data and cannot wait for it.

use mainstay_proto::raftpb::ConfState;

use super::ConfChangeKind;

/// The configuration after a change. Voters and learners are sorted.
pub fn next(state: &ConfState, kind: ConfChangeKind, id: u64) -> ConfState {
    let mut next = state.clone();
    let without = |ids: &mut Vec<u64>| ids.retain(|other| *other != id);
    match kind {
        ConfChangeKind::AddNode => {
            without(&mut next.learners);
            insert(&mut next.voters, id);
        }
        ConfChangeKind::AddLearnerNode => {
            without(&mut next.voters);
            insert(&mut next.learners, id);
        }
        ConfChangeKind::RemoveNode => {
            without(&mut next.voters);
            without(&mut next.learners);
        }
        ConfChangeKind::UpdateNode => {}
    }
    next.auto_leave = Some(false);
    next
}

fn insert(ids: &mut Vec<u64>, id: u64) {
    if !ids.contains(&id) {
        ids.push(id);
    }
    ids.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_steps() {
        let mut state = ConfState::default();
        let mut step = |kind, id| {
            state = next(&state, kind, id);
            (state.voters.clone(), state.learners.clone())
        };
        assert_eq!(step(ConfChangeKind::AddNode, 5), (vec![5], vec![]));
        assert_eq!(step(ConfChangeKind::AddNode, 2), (vec![2, 5], vec![]));
        assert_eq!(step(ConfChangeKind::AddLearnerNode, 3), (vec![2, 5], vec![3]));
        assert_eq!(step(ConfChangeKind::UpdateNode, 2), (vec![2, 5], vec![3]));
        assert_eq!(step(ConfChangeKind::AddNode, 3), (vec![2, 3, 5], vec![]));
        assert_eq!(step(ConfChangeKind::AddNode, 3), (vec![2, 3, 5], vec![]));
        assert_eq!(step(ConfChangeKind::RemoveNode, 5), (vec![2, 3], vec![]));
        assert_eq!(state.auto_leave, Some(false));
    }
}
