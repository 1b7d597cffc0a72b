//! One byte is made wrong on purpose: real members must notice, with Mainstay as witness and as
//! culprit.
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
    let mut flags: Vec<String> = Vec::new();
    if program == Program::Etcd {
        flags.extend(CHECKS.iter().map(ToString::to_string));
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

/// One cluster, one wrong byte at one member.
async fn one(programs: &[Program], culprit: usize, way: Way) -> Result<String> {
    let mut cluster = Cluster::start_in(tempfile::tempdir()?, programs, flags).await?;
    settle(&cluster.members).await?;
    let id = member_id(&cluster.members[culprit].client_url).await?;
    // The leader compares; only real members do so.
    let checker = (0..programs.len())
        .rev()
        .find(|at| programs[*at] == Program::Etcd && (*at != culprit || way == Way::Database))
        .context("no real member")?;
    for number in 0..20 {
        put(&cluster.members[0].client_url, &format!("key/{number}"), "a value").await?;
    }
    put(&cluster.members[0].client_url, "wrong", TEXT).await?;
    settle(&cluster.members).await?;
    let all: Vec<&Member> = cluster.members.iter().collect();
    equal_hashes(&all, 0, PATIENCE).await?;

    let refused;
    let member = &mut cluster.members[culprit];
    match way {
        Way::Database => {
            member.stop()?;
            byte::change_database(&member.data_dir, TEXT)?;
            must_refuse(member).await?;
            refused = "refuses to start, ";
            let flags = member
                .arguments()
                .iter()
                .map(|flag| flag.replace("InitialCorruptCheck=true", "InitialCorruptCheck=false"));
            let flags = flags.collect();
            member.set_arguments(flags);
        }
        Way::Log => {
            member.kill();
            byte::change_log(&member.data_dir, TEXT)?;
            refused = "";
        }
    }
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
    for member in &cluster.members {
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
    let member = &cluster.members[culprit];
    Ok(format!(
        "{programs:?}: one byte wrong in the {way:?} of {} ({:?}): {refused}{} raises CORRUPT for it",
        member.name, member.program, cluster.members[checker].name
    ))
}

/// Shows in several clusters that one wrong byte is noticed.
pub async fn show_corruption(tested: Program) -> Result<Vec<String>> {
    let etcd = Program::Etcd;
    let mut lines = Vec::new();
    for (programs, culprit, way) in [
        ([tested, etcd, etcd], 1, Way::Database),
        ([tested, tested, etcd], 2, Way::Database),
        ([tested, etcd, etcd], 0, Way::Log),
    ] {
        let what = format!("{programs:?}, {way:?} of m{culprit}");
        lines.push(one(&programs, culprit, way).await.context(what)?);
        println!("{}", lines.last().map_or("", String::as_str));
    }
    Ok(lines)
}
