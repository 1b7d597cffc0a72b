//! What an operator does with a running cluster: wait for health, find and move the leader,
//! compare hashes, look for alarms.
//!
//! Input: members. Output: their answers. **Invariant:** every wait ends; what was waited for and
//! the last answer are in the error.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use mainstay_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, HashKvRequest, HashKvResponse, MoveLeaderRequest,
    RangeRequest, StatusRequest, StatusResponse, alarm_request,
};

use crate::client::Client;
use crate::member::Member;

/// How long one small request may take.
const REQUEST_TIME: Duration = Duration::from_secs(3);
/// How long members may take to agree.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A client, if the member accepts a connection within a second.
pub async fn connect(url: &str) -> Result<Client> {
    tokio::time::timeout(Duration::from_secs(1), Client::connect(url))
        .await
        .with_context(|| format!("{url}: no connection in 1 s"))?
}

/// Asks one member; a hanging one is an error.
async fn within<T>(
    what: &str,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T> {
    let answer = tokio::time::timeout(REQUEST_TIME, answer)
        .await
        .with_context(|| format!("{what}: no answer in {REQUEST_TIME:?}"))?;
    let answer = answer.map_err(|status| anyhow!("{what}: {status}"))?;
    Ok(answer.into_inner())
}

/// Repeats until `attempt` succeeds.
pub async fn retry<T, F>(
    what: &str,
    patience: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let deadline = Instant::now() + patience;
    loop {
        match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > deadline => {
                return Err(error.context(format!("{what}: not within {patience:?}")));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Maintenance.Status of one member.
pub async fn status(url: &str) -> Result<StatusResponse> {
    let mut client = connect(url).await?;
    within(url, client.maintenance.status(StatusRequest {})).await
}

/// The store's revision by a linearizable read through one member.
pub async fn revision(url: &str) -> Result<i64> {
    let mut client = connect(url).await?;
    let request = RangeRequest { key: b"\0".to_vec().into(), ..Default::default() };
    let answer = within(url, client.kv.range(request)).await?;
    answer.header.map(|header| header.revision).context("answer without header")
}

/// Member id of a running member.
pub async fn member_id(url: &str) -> Result<u64> {
    status(url).await?.header.map(|header| header.member_id).context("status without header")
}

/// Waits until all given members serve linearizable reads and name the same leader; answers its
/// member id.
pub async fn settle<'a>(members: impl IntoIterator<Item = &'a Member>) -> Result<u64> {
    let urls: Vec<String> = members.into_iter().map(|member| member.client_url.clone()).collect();
    retry("members serve and agree on a leader", PATIENCE, || async {
        let mut leader = None;
        for url in &urls {
            revision(url).await?;
            let named = status(url).await?.leader;
            if named == 0 || leader.is_some_and(|known| known != named) {
                bail!("{url} names leader {named:x}, another {leader:x?}");
            }
            leader = Some(named);
        }
        leader.context("no member is asked")
    })
    .await
}

/// Position of the leader among running members.
pub async fn leader(members: &[&Member]) -> Result<usize> {
    let id = settle(members.iter().copied()).await?;
    for (at, member) in members.iter().enumerate() {
        if member_id(&member.client_url).await? == id {
            return Ok(at);
        }
    }
    bail!("leader {id:x} is none of the running members")
}

/// Moves leadership to a member and waits until all members know.
pub async fn move_leader(members: &[&Member], to: usize) -> Result<()> {
    let target = member_id(&members[to].client_url).await?;
    // A transfer may fail for a good reason: the leader changed meanwhile, or the target lags.
    retry("move the leader", PATIENCE, || async {
        let from = leader(members).await?;
        if from == to {
            return Ok(());
        }
        let mut client = connect(&members[from].client_url).await?;
        let request = MoveLeaderRequest { target_id: target };
        let _ = within("MoveLeader", client.maintenance.move_leader(request)).await;
        let now = leader(members).await?;
        if now != to {
            bail!("leader is {} instead of {}", members[now].name, members[to].name);
        }
        Ok(())
    })
    .await
}

/// HashKV of one member; revision 0 asks for the newest.
pub async fn hash_kv(url: &str, revision: i64) -> Result<HashKvResponse> {
    let mut client = connect(url).await?;
    let request = HashKvRequest { revision };
    tokio::time::timeout(PATIENCE, client.maintenance.hash_kv(request))
        .await
        .with_context(|| format!("{url}: no HashKV in {PATIENCE:?}"))?
        .map(tonic::Response::into_inner)
        .map_err(|status| anyhow!("{url}: HashKV({revision}): {status}"))
}

/// One line per member: what HashKV says.
pub async fn describe_hashes(members: &[&Member], revision: i64) -> String {
    let mut lines = Vec::new();
    for member in members {
        lines.push(match hash_kv(&member.client_url, revision).await {
            Ok(answer) => format!(
                "  {} ({:?}): hash {} compact_revision {} hash_revision {} revision {}",
                member.name,
                member.program,
                answer.hash,
                answer.compact_revision,
                answer.hash_revision,
                answer.header.map_or(0, |header| header.revision),
            ),
            Err(error) => format!("  {} ({:?}): {error:#}", member.name, member.program),
        });
    }
    lines.join("\n")
}

/// Waits until HashKV at a revision is equal on all members; answers hash and compact revision.
///
/// Members delete compacted records in the background, which shows in their hashes for a moment:
/// only a lasting difference is an error.
pub async fn equal_hashes(
    members: &[&Member],
    revision: i64,
    patience: Duration,
) -> Result<(u32, i64)> {
    let attempt = retry("HashKV is equal on all members", patience, || async {
        let mut first = None;
        for member in members {
            let answer = hash_kv(&member.client_url, revision).await?;
            let seen = (answer.hash, answer.compact_revision, answer.hash_revision);
            if *first.get_or_insert(seen) != seen {
                bail!("{} differs", member.name);
            }
        }
        first.map(|(hash, compacted, _)| (hash, compacted)).context("no member is asked")
    });
    match attempt.await {
        Ok(hash) => Ok(hash),
        Err(error) => Err(error
            .context(format!("HashKV({revision}):\n{}", describe_hashes(members, revision).await))),
    }
}

/// All alarms that a member lists.
pub async fn alarms(url: &str) -> Result<Vec<AlarmMember>> {
    let mut client = connect(url).await?;
    let request = AlarmRequest {
        action: alarm_request::AlarmAction::Get.into(),
        member_id: 0,
        alarm: AlarmType::None.into(),
    };
    Ok(within(url, client.maintenance.alarm(request)).await?.alarms)
}
