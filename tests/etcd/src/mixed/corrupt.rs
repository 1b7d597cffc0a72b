//! One byte is made wrong on purpose: real members and ours must notice, with Mainstay as leader that
//! compares, as witness and as culprit.
//!
//! Input: which program each member runs. Output: what the members said.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mainstay_proto::etcdserverpb::{AlarmType, CompactionRequest, PutRequest};
use tonic::Code;

use super::{CHECKS, byte};
use crate::client::Client;
use crate::member::{Cluster, Member, Program};
use crate::ops::{PATIENCE, alarms, equal_hashes, member_id, move_leader, retry, settle};

const TEXT: &str = "this byte will be wrong: 0";

/// How the byte becomes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In the database file of a member that was shut down.
    Database,
    /// In the log of a member that was killed before it stored the entry elsewhere.
    Log,
}

fn flags(program: Program) -> Vec<String> {
    let mut flags: Vec<String> = CHECKS.iter().map(ToString::to_string).collect();
    if program == Program::Etcd {
        // Entries stay out of the database file, so that a killed member takes them from its log.
        flags.push("--backend-batch-interval=1h".to_string());
    }
    flags
}

async fn put(url: &str, key: &str, value: &str) -> Result<i64> {
    let put = PutRequest {
        key: key.to_string().into(),
        value: value.to_string().into(),
        ..Default::default()
    };
    let answer = Client::connect(url).await?.kv.put(put).await?.into_inner();
    answer.header.map(|header| header.revision).context("no header")
}

/// Starts a member that compares hashes at its start and must refuse to go on.
async fn must_refuse(member: &mut Member) -> Result<()> {
    match member.start().await {
        Ok(()) => bail!("{} did not notice that its data are wrong", member.name),
        Err(_) if member.log_tail().contains("found data inconsistency with peers") => {
            member.kill();
            Ok(())
        }
        Err(error) => Err(error.context("an inconsistency was expected")),
    }
}

/// One cluster, one wrong byte at one member; `checker` leads and compares.
async fn one(programs: &[Program], culprit: usize, way: Way, checker: usize) -> Result<String> {
    let mut cluster = Cluster::start_in(tempfile::tempdir()?, programs, flags).await?;
    settle(&cluster.members).await?;
    let id = member_id(&cluster.members[culprit].client_url).await?;
    for number in 0..20 {
        put(&cluster.members[0].client_url, &format!("key/{number}"), "a value").await?;
    }
    put(&cluster.members[0].client_url, "wrong", TEXT).await?;
    settle(&cluster.members).await?;
    let all: Vec<&Member> = cluster.members.iter().collect();
    equal_hashes(&all, 0, PATIENCE).await?;

    let member = &mut cluster.members[culprit];
    match way {
        Way::Database => {
            member.stop()?;
            byte::change_database(&member.data_dir, TEXT)?;
        }
        Way::Log => {
            member.kill();
            byte::change_log(&member.data_dir, TEXT)?;
        }
    }
    // A real member compares before it takes what its log has more than its database.
    let refuses = way == Way::Database || member.program == Program::Mainstay;
    if refuses {
        must_refuse(member).await?;
    }
    let unchecked =
        |flag: &String| flag.replace("InitialCorruptCheck=true", "InitialCorruptCheck=false");
    let flags = member.arguments().iter().map(unchecked).collect();
    member.set_arguments(flags);
    member.start().await?;
    settle(&cluster.members).await?;
    let all: Vec<&Member> = cluster.members.iter().collect();
    ensure!(
        equal_hashes(&all, 0, Duration::from_secs(1)).await.is_err(),
        "the wrong byte is not in the hash"
    );
    move_leader(&all, checker).await?;
    let revision = put(&cluster.members[0].client_url, "last", "put").await?;
    let compaction = CompactionRequest { revision, physical: true };
    Client::connect(&cluster.members[0].client_url).await?.kv.compact(compaction).await?;
    let ends = programs[culprit] == Program::Mainstay;
    for (at, member) in cluster.members.iter().enumerate() {
        if ends && at == culprit {
            continue;
        }
        retry("the alarm", PATIENCE, async || {
            let alarms = alarms(&member.client_url).await?;
            let kind = i32::from(AlarmType::Corrupt);
            let named = alarms.iter().any(|alarm| alarm.member_id == id && alarm.alarm == kind);
            ensure!(named, "{} lists {alarms:?}, {id:x} should be CORRUPT", member.name);
            Ok(())
        })
        .await?;
        let mut client = Client::connect(&member.client_url).await?;
        let put = PutRequest { key: "more".into(), ..Default::default() };
        match client.kv.put(put).await {
            Err(status)
                if status.code() == Code::DataLoss
                    && status.message() == "etcdserver: corrupt cluster" => {}
            other => bail!("{}: a put after CORRUPT answers {other:?}", member.name),
        }
    }
    let member = &mut cluster.members[culprit];
    if ends {
        let deadline = std::time::Instant::now() + PATIENCE;
        while member.is_running() {
            ensure!(std::time::Instant::now() < deadline, "{} goes on", member.name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let advice = format!("etcdctl member remove {id:x}");
        ensure!(member.log_tail().contains(&advice), "{}", member.log_tail());
    }
    let member = &cluster.members[culprit];
    Ok(format!(
        "{programs:?}: one byte wrong in the {way:?} of {} ({:?}): {}{} raises CORRUPT for it",
        member.name,
        member.program,
        if refuses { "refuses to start, " } else { "" },
        cluster.members[checker].name
    ))
}

/// Shows in several clusters that one wrong byte is noticed.
pub async fn show_corruption(tested: Program) -> Result<Vec<String>> {
    let etcd = Program::Etcd;
    let mut lines = Vec::new();
    for (programs, culprit, way, checker) in [
        ([tested, etcd, etcd], 1, Way::Database, 2),
        ([tested, etcd, etcd], 1, Way::Database, 0),
        ([tested, tested, etcd], 2, Way::Database, 2),
        ([tested, etcd, etcd], 0, Way::Log, 2),
        ([tested, tested, tested], 0, Way::Log, 2),
    ] {
        let what = format!("{programs:?}, {way:?} of m{culprit}, m{checker} leads");
        lines.push(one(&programs, culprit, way, checker).await.context(what)?);
        println!("{}", lines.last().map_or("", String::as_str));
    }
    Ok(lines)
}
