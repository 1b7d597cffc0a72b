//! Messages on their way out of the node.
//!
//! **Invariant:** every MsgSnap has the state that belongs to its index.

use mainstay_proto::raftpb::Message;

use crate::seam::Pinned;

/// Messages to send, in order.
#[derive(Default)]
pub struct Outbox {
    /// Everything but snapshots.
    pub messages: Vec<Message>,
    /// Snapshots, each with the state to stream behind it.
    pub snapshots: Vec<(Message, Pinned)>,
}

impl Outbox {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.snapshots.is_empty()
    }
}

const MSG_APP: Option<i32> = Some(3);

/// Drops appends that say nothing which a later one to the same member does not say too. A pass
/// that advances the commit index and takes proposals makes two appends for each follower: an
/// empty one that carries the commit index, and one with entries that carries it again.
pub(crate) fn coalesce(messages: &mut Vec<Message>) {
    if messages.len() < 2 {
        return;
    }
    let covers = |later: &Message, empty: &Message| {
        later.r#type == MSG_APP
            && later.to == empty.to
            && later.term == empty.term
            && later.index == empty.index
            && later.log_term == empty.log_term
            && later.commit >= empty.commit
    };
    let mut at = 0;
    while at < messages.len() {
        let (empty, rest) = messages[at..].split_first().expect("at is inside");
        let superseded = empty.r#type == MSG_APP
            && empty.entries.is_empty()
            && rest.iter().any(|later| covers(later, empty));
        if superseded {
            messages.remove(at);
        } else {
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_proto::raftpb::Entry;

    use super::*;

    fn append(to: u64, index: u64, commit: u64, entries: usize) -> Message {
        Message {
            r#type: MSG_APP,
            to: Some(to),
            term: Some(1),
            index: Some(index),
            log_term: Some(1),
            commit: Some(commit),
            entries: vec![Entry::default(); entries],
            ..Default::default()
        }
    }

    #[test]
    fn an_append_with_entries_carries_the_commit_index_too() {
        let mut messages = vec![
            append(2, 5, 5, 0),
            append(3, 4, 5, 0),
            append(2, 5, 5, 1),
            append(3, 5, 5, 1),
            append(2, 6, 5, 0),
        ];
        coalesce(&mut messages);
        // Member 3 was probed at another index, which is another question.
        let left: Vec<_> = messages.iter().map(|m| (m.to(), m.index())).collect();
        assert_eq!(left, [(3, 4), (2, 5), (3, 5), (2, 6)]);
    }
}
