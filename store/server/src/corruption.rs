//! Whether all members hold the same: their hashes are compared, and who differs is named.
//!
//! Input: this member's hashes and, over etcd's peer protocol, those of the others. Output: CORRUPT
//! alarms in the log, which end all writes until an operator has acted, as in etcd; and the end of
//! a member that an alarm names.
//! Two checks run on the leader: of the hashes that every member keeps of each compaction, and, when
//! asked for, of all keys as they are. A third runs on a member that starts, before it serves.
//! **Invariant:** an alarm is raised only over hashes of the same compacted revision and of the same
//! revision; a member that does not answer raises none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use mainstay_mvcc::HashKv;
use mainstay_proto::etcdserverpb::{self as pb, AlarmType, alarm_request::AlarmAction};

use crate::core::Core;
use crate::error::{Error, Result};

/// The member id of an alarm when nobody knows which members are wrong.
const UNKNOWN: u64 = 0;
/// How often a member looks whether an alarm names it.
const ALARM_INTERVAL: Duration = Duration::from_secs(1);

/// What another member said about its keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerHash {
    /// Its newest revision.
    pub(crate) revision: i64,
    pub(crate) hash: HashKv,
}

/// What the comparison of one compaction's hashes came to.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// All members answered, and agree.
    Equal,
    /// Those that answered agree.
    Incomplete,
    /// These differ from the majority; `[UNKNOWN]` when there is none.
    Differ(Vec<u64>),
}

/// Compares the hash of one compaction on all members.
fn judge(own: u64, hash: HashKv, peers: &[(u64, Option<PeerHash>)]) -> Verdict {
    let mut groups: BTreeMap<u32, Vec<u64>> = BTreeMap::from([(hash.hash, vec![own])]);
    let mut compared = 0;
    for (id, answer) in peers {
        let Some(answer) = answer else { continue };
        if answer.hash.compact_revision == hash.compact_revision {
            groups.entry(answer.hash.hash).or_default().push(*id);
            compared += 1;
        }
    }
    if groups.len() == 1 {
        return if compared == peers.len() { Verdict::Equal } else { Verdict::Incomplete };
    }
    let members = peers.len() + 1;
    let quorum = members / 2 + 1;
    let majority = groups.iter().find(|(_, ids)| ids.len() >= quorum).map(|(hash, _)| *hash);
    let Some(majority) = majority else { return Verdict::Differ(vec![UNKNOWN]) };
    groups.remove(&majority);
    Verdict::Differ(groups.into_values().flatten().collect())
}

/// Compares everything as it was at `first`, with what the others said of that revision. `second` is
/// this member's hash after all of them answered, at its revision `now`. Answers who is wrong.
fn judge_all(
    own: u64,
    first: HashKv,
    second: HashKv,
    now: i64,
    peers: &[(u64, Option<PeerHash>)],
) -> Option<u64> {
    let same_place = |a: HashKv, b: HashKv| {
        (a.hash_revision, a.compact_revision) == (b.hash_revision, b.compact_revision)
    };
    if same_place(first, second) && first.hash != second.hash {
        return Some(own);
    }
    let answers = peers.iter().filter_map(|(id, answer)| Some((*id, (*answer)?)));
    let wrong = |answer: &PeerHash| {
        answer.revision > now
            || answer.hash.compact_revision > second.compact_revision
            || (answer.hash.compact_revision == first.compact_revision
                && answer.hash.hash != first.hash)
    };
    answers.filter(|(_, answer)| wrong(answer)).map(|(id, _)| id).next()
}

/// Runs all checks until the member stops.
pub(crate) async fn run(core: Arc<Core>) {
    tokio::join!(check_compactions(&core), check_contents(&core), end_when_named(&core));
}

/// Waits for the next check of a leader.
async fn next_check(core: &Core, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        if core.leadership.is_local() {
            return;
        }
    }
}

async fn check_compactions(core: &Core) {
    let interval = core.config.compact_hash_check_time;
    if interval.is_zero() {
        return;
    }
    let mut checked = 0;
    loop {
        next_check(core, interval).await;
        check_newest_compaction(core, &mut checked).await;
    }
}

/// Compares the newest compaction that all members have finished and that is newer than `checked`.
async fn check_newest_compaction(core: &Core, checked: &mut i64) {
    let own = core.identity.member_id;
    let mut hashes = core.hashes.all();
    hashes.sort_by_key(|hash| std::cmp::Reverse(hash.hash_revision));
    for hash in hashes.into_iter().filter(|hash| hash.hash_revision > *checked) {
        let revision = hash.hash_revision;
        let peers = ask_all(core, revision).await;
        if peers.is_empty() {
            return;
        }
        match judge(own, hash, &peers) {
            Verdict::Equal => {
                tracing::info!(
                    number_of_peers_checked = peers.len(),
                    revision,
                    compact_revision = hash.compact_revision,
                    "successfully checked hash on whole cluster"
                );
                *checked = revision;
                return;
            }
            Verdict::Incomplete => {
                tracing::warn!(
                    number_of_peers = peers.len(),
                    revision,
                    "skipped revision in compaction hash check; was not able to check all peers"
                );
            }
            Verdict::Differ(ids) => {
                tracing::error!(
                    leader_id = format!("{own:x}"),
                    leader_revision = revision,
                    leader_compact_revision = hash.compact_revision,
                    leader_hash = hash.hash,
                    peer_ids = names(&ids),
                    quorum_exist = ids != [UNKNOWN],
                    "Detected compaction hash mismatch"
                );
                for id in ids {
                    raise(core, id).await;
                }
                return;
            }
        }
    }
}

async fn check_contents(core: &Core) {
    let interval = core.config.corrupt_check_time;
    if interval.is_zero() {
        return;
    }
    loop {
        next_check(core, interval).await;
        if let Err(error) = compare_contents(core).await {
            tracing::warn!(%error, "failed to check hash KV");
        }
    }
}

async fn compare_contents(core: &Core) -> Result<()> {
    let own = core.identity.member_id;
    let (first, _) = core.hash_at(0).await?;
    let peers = ask_all(core, first.hash_revision).await;
    core.catch_up().await?;
    let (second, now) = core.hash_at(0).await?;
    if let Some(wrong) = judge_all(own, first, second, now, &peers) {
        tracing::error!(
            member = format!("{wrong:x}"),
            leader_revision = first.hash_revision,
            leader_compact_revision = first.compact_revision,
            leader_hash = first.hash,
            "found hash mismatch"
        );
        raise(core, wrong).await;
    }
    let answered = peers.iter().filter(|(_, answer)| answer.is_some()).count();
    tracing::info!(number_of_peers_checked = answered, "finished peer corruption check");
    Ok(())
}

/// Compares this member with the others before it serves; the error says what differs.
pub(crate) async fn check_at_start(core: &Core) -> Result<()> {
    if !core.config.initial_corrupt_check {
        return Ok(());
    }
    let own = core.identity.member_id;
    tracing::info!(local_member_id = format!("{own:x}"), "starting initial corruption check");
    // What the log has and the engine has not is compared too.
    while let Err(error) = core.catch_up().await {
        if matches!(error, Error::Stopped) {
            return Err(error);
        }
        tracing::warn!(%error, "the initial corruption check waits for a leader");
    }
    let (hash, _) = core.hash_at(0).await?;
    let mut differ = Vec::new();
    for (id, answer) in ask_all(core, hash.hash_revision).await {
        let Some(answer) = answer else { continue };
        if answer.hash.hash == hash.hash {
            continue;
        }
        let same = answer.hash.compact_revision == hash.compact_revision;
        tracing::warn!(
            local_member_revision = hash.hash_revision,
            local_member_compact_revision = hash.compact_revision,
            local_member_hash = hash.hash,
            remote_peer_id = format!("{id:x}"),
            remote_peer_compact_revision = answer.hash.compact_revision,
            remote_peer_hash = answer.hash.hash,
            "found different {} from remote peer",
            if same { "hash values" } else { "compact revision values" }
        );
        if same {
            differ.push(id);
        }
    }
    if !differ.is_empty() {
        let text = format!(
            "{own:x} found data inconsistency with peers ({}): {}",
            names(&differ),
            replace(own)
        );
        return Err(Error::Raw(text.into()));
    }
    tracing::info!("initial corruption checking passed; no corruption");
    Ok(())
}

/// Ends this member when an alarm says that it is the one that differs: what it holds is wrong, and
/// others have it right.
async fn end_when_named(core: &Core) {
    let own = core.identity.member_id;
    loop {
        let named = core
            .alarms()
            .iter()
            .any(|alarm| alarm.member_id == own && alarm.alarm == i32::from(AlarmType::Corrupt));
        if named {
            let text = format!(
                "the CORRUPT alarm names this member: its keys differ from those that most others \
                 hold. {}",
                replace(own)
            );
            core.stop.fatal(text);
            return;
        }
        tokio::time::sleep(ALARM_INTERVAL).await;
    }
}

fn replace(own: u64) -> String {
    format!(
        "Replace it: `etcdctl member remove {own:x}`, then `etcdctl member add`, start it with an \
         empty data directory, and end the alarm with `etcdctl alarm disarm`"
    )
}

fn names(ids: &[u64]) -> String {
    ids.iter().map(|id| format!("{id:x}")).collect::<Vec<_>>().join(" ")
}

/// Raises the alarm for a member, unless it rings already.
async fn raise(core: &Core, member_id: u64) {
    let corrupt = i32::from(AlarmType::Corrupt);
    let alarm = pb::AlarmMember { member_id, alarm: corrupt };
    if core.alarms().contains(&alarm) {
        return;
    }
    let activate = i32::from(AlarmAction::Activate);
    let request = pb::AlarmRequest { action: activate, member_id, alarm: corrupt };
    if let Err(error) = core.alarm(request).await {
        tracing::error!(member = format!("{member_id:x}"), %error, "the alarm could not be raised");
    }
}

/// Asks all other members for their hash at a revision, all at once.
async fn ask_all(core: &Core, revision: i64) -> Vec<(u64, Option<PeerHash>)> {
    let own = core.identity.member_id;
    let members: Vec<_> = core.published.load().state.members.members().cloned().collect();
    let asking = members.iter().filter(|member| member.id != own).map(|member| async move {
        let within = core.config.request_timeout();
        let cluster = core.identity.cluster_id;
        (member.id, core.network.hash_of(member, cluster, revision, within).await)
    });
    join_all(asking).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(hash: u32, compact_revision: i64) -> HashKv {
        HashKv { hash, compact_revision, hash_revision: 9 }
    }

    fn peers(answers: &[Option<(u32, i64)>]) -> Vec<(u64, Option<PeerHash>)> {
        let answer = |(value, compacted)| PeerHash { revision: 9, hash: hash(value, compacted) };
        answers.iter().enumerate().map(|(at, said)| (at as u64 + 2, said.map(answer))).collect()
    }

    #[test]
    fn the_minority_is_named() {
        let own = hash(7, 3);
        for (answers, verdict) in [
            (&[Some((7, 3)), Some((7, 3))][..], Verdict::Equal),
            (&[Some((7, 3)), None], Verdict::Incomplete),
            (&[None, None], Verdict::Incomplete),
            (&[Some((7, 3)), Some((8, 2))], Verdict::Incomplete),
            (&[Some((7, 3)), Some((8, 3))], Verdict::Differ(vec![3])),
            (&[Some((8, 3)), Some((8, 3))], Verdict::Differ(vec![1])),
            (&[Some((8, 3)), Some((9, 3))], Verdict::Differ(vec![UNKNOWN])),
            (&[Some((8, 3)), None], Verdict::Differ(vec![UNKNOWN])),
            (&[Some((8, 3))], Verdict::Differ(vec![UNKNOWN])),
            (
                &[Some((7, 3)), Some((7, 3)), Some((8, 3)), Some((9, 3))],
                Verdict::Differ(vec![4, 5]),
            ),
        ] {
            assert_eq!(judge(1, own, &peers(answers)), verdict, "{answers:?}");
        }
    }

    #[test]
    fn who_is_ahead_of_the_leader_or_differs_at_its_revision_is_wrong() {
        let (first, second) = (hash(7, 3), hash(7, 3));
        let judge = |now, second, said: &[Option<(u32, i64)>]| {
            judge_all(1, first, second, now, &peers(said))
        };
        assert_eq!(judge(9, second, &[Some((7, 3)), Some((7, 3))]), None);
        assert_eq!(judge(9, second, &[Some((7, 3)), None]), None);
        assert_eq!(judge(9, second, &[Some((7, 3)), Some((8, 3))]), Some(3));
        assert_eq!(judge(8, second, &[Some((7, 3))]), Some(2), "newer than the leader");
        assert_eq!(judge(9, second, &[Some((7, 4))]), Some(2), "compacted further");
        assert_eq!(judge(9, second, &[Some((8, 2))]), None, "compacted less: not comparable");
        assert_eq!(judge(9, hash(8, 3), &[]), Some(1), "this member's own hash changed");
    }
}
