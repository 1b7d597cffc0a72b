//! While nobody leads: which members are waited for, and how many are needed.
//!
//! Input: leadership, the members of the applied state, the connections to them. Output: lines of
//! the log.
//! **Invariant:** an election that takes its usual time is not worth a line, and one that lasts is
//! not worth many.

use std::sync::Arc;
use std::time::Duration;

use mainstay_mvcc::membership::Member;
use tokio::sync::watch;

use crate::core::Core;
use crate::leadership::Leadership;

/// How long there is no leader before it is told.
const FIRST: Duration = Duration::from_secs(2);
/// How often it is told again.
const AGAIN: Duration = Duration::from_secs(10);

/// Tells who is waited for, whenever there is no leader for a while.
pub(crate) async fn run(core: Arc<Core>) {
    while_leaderless(core.leadership.subscribe(), |is_first| tell(&core, is_first)).await;
}

/// Calls `tell` while there is no leader, with whether it is the first time since there was one.
async fn while_leaderless(mut leadership: watch::Receiver<Leadership>, mut tell: impl FnMut(bool)) {
    while leadership.wait_for(|state| state.leader.is_none()).await.is_ok() {
        let mut pause = FIRST;
        loop {
            let elected = leadership.wait_for(|state| state.leader.is_some());
            match tokio::time::timeout(pause, elected).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => return,
                Err(_) => tell(pause == FIRST),
            }
            pause = AGAIN;
        }
    }
}

fn tell(core: &Core, is_first: bool) {
    let published = core.published.load();
    let own = core.identity.member_id;
    let voters: Vec<&Member> = published.state.members.voters().collect();
    if voters.is_empty() {
        let others = core.config.initial_cluster.urls_of_others(&core.config.name);
        tracing::warn!(
            waiting_for = %others.join(", "),
            "no leader yet: a member that joins waits until the leader of its cluster reaches it; \
             check that the running members reach this one's --initial-advertise-peer-urls"
        );
        return;
    }
    let is_missing =
        |member: &&&Member| member.id != own && core.network.active_since(member.id).is_none();
    let missing: Vec<String> =
        voters.iter().filter(is_missing).map(|member| describe(member)).collect();
    let (voters, reached) = (voters.len(), voters.len() - missing.len());
    let needed = voters / 2 + 1;
    let waiting_for = missing.join(", ");
    if reached < needed {
        tracing::warn!(
            %waiting_for,
            needed,
            voters,
            reached,
            "no leader: waiting for other members. {needed} of {voters} voting members are needed \
             to elect a leader, and {reached} can be reached (with this one); start the others, \
             and check their peer URLs and the network between"
        );
    } else if !is_first {
        tracing::warn!(
            %waiting_for,
            needed,
            voters,
            reached,
            "no leader, although {reached} of {voters} voting members can be reached and {needed} \
             are enough to elect one; see what the others say, and compare --election-timeout \
             with the time that messages take between them"
        );
    }
}

/// `NAME (id ID, URLS)`.
fn describe(member: &Member) -> String {
    let name = match member.name.as_str() {
        "" => "a member that never started",
        name => name,
    };
    let urls = member.peer_urls.as_deref().unwrap_or_default().join(", ");
    format!("{name} (id {:x}, {urls})", member.id)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::Instant;

    use super::*;
    use crate::leadership::LeadershipCell;

    #[tokio::test(start_paused = true)]
    async fn it_is_told_late_and_seldom_and_only_without_a_leader() {
        let cell = LeadershipCell::new(1, 1, std::time::Instant::now());
        let start = Instant::now();
        let told = RefCell::new(Vec::new());
        let telling = while_leaderless(cell.subscribe(), |is_first| {
            told.borrow_mut().push((start.elapsed().as_secs(), is_first));
        });
        let life = async {
            let at = |second| tokio::time::sleep_until(start + Duration::from_secs(second));
            let record = |leader, term| cell.record(leader, false, term, std::time::Instant::now());
            at(25).await;
            record(2, 2);
            at(100).await;
            // A change of leaders.
            record(0, 3);
            at(101).await;
            record(3, 3);
            at(200).await;
            record(0, 4);
            at(203).await;
        };
        tokio::select! {
            () = telling => panic!("the sender is there"),
            () = life => {}
        }
        assert_eq!(told.into_inner(), [(2, true), (12, false), (22, false), (202, true)]);
    }

    #[test]
    fn members_are_named_with_their_urls() {
        let urls = vec!["http://b:2380".to_owned(), "http://c:2380".to_owned()];
        let member = Member::new(0xab, "two", urls, false);
        assert_eq!(describe(&member), "two (id ab, http://b:2380, http://c:2380)");
        let nameless = Member::new(0xab, "", vec!["http://b:2380".to_owned()], false);
        assert_eq!(describe(&nameless), "a member that never started (id ab, http://b:2380)");
    }
}
