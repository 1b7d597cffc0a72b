//! etcdctl, command by command: the same session against real etcd and against Mainstay.
//!
//! Input: a script of commands, an etcdctl, an output format, the size of the cluster. Output:
//! the steps whose output, errors or exit code differ, ids, times and sizes aside.

mod normalize;
mod script;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::client::Client;
use crate::member::Cluster;
use normalize::{Names, normalize};
pub use script::{Step, script};

/// One etcdctl with one way to print.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Path of the program.
    pub etcdctl: PathBuf,
    /// Whether it knows commands and options that came after 3.4.
    pub is_new: bool,
    /// `simple`, `json`, `fields`, `table` or `protobuf`.
    pub format: String,
}

/// What one command did.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Output {
    code: Option<i32>,
    text: String,
    errors: String,
}

struct Session<'a> {
    setting: &'a Setting,
    cluster: &'a mut Cluster,
    names: Names,
    /// Values that later steps need: `{lease}`, `{learner}`.
    captured: BTreeMap<&'static str, String>,
    scratch: PathBuf,
}

impl Session<'_> {
    fn fill(&self, argument: &str) -> String {
        let mut text = argument.to_string();
        for (name, value) in &self.captured {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        text.replace("{scratch}", &self.scratch.display().to_string())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.setting.etcdctl);
        let urls = self.cluster.client_urls();
        let all = arguments.contains(&"--cluster") || arguments.first() == Some(&"snapshot");
        let endpoints =
            if all { urls.first().cloned().unwrap_or_default() } else { urls.join(",") };
        command
            .env("ETCDCTL_API", "3")
            .env_remove("ETCDCTL_ENDPOINTS")
            .args(["--endpoints", &endpoints, "--command-timeout=10s"])
            .args(["-w", &self.setting.format])
            .args(arguments.iter().map(|argument| self.fill(argument)));
        command
    }

    fn run(&mut self, arguments: &[&str], input: Option<&str>) -> Result<Output> {
        let mut child = self
            .command(arguments)
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting etcdctl")?;
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            pipe.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        self.learn(arguments)?;
        Ok(Output {
            code: output.status.code(),
            text: normalize(&self.names, &self.setting.format, arguments, &output.stdout),
            errors: normalize(&self.names, "simple", arguments, &output.stderr),
        })
    }

    /// Runs a command that does not end by itself, the steps meanwhile, and ends it.
    fn run_beside(&mut self, arguments: &[&str], steps: &[Step]) -> Result<Vec<Output>> {
        let log = self.scratch.join("background");
        let mut child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(&log)?)
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(700));
        let mut outputs = Vec::new();
        for step in steps {
            outputs.extend(self.step(step)?);
        }
        std::thread::sleep(Duration::from_millis(700));
        let _ = child.kill();
        let _ = child.wait();
        let text = normalize(&self.names, &self.setting.format, arguments, &std::fs::read(&log)?);
        outputs.push(Output { code: None, text, errors: String::new() });
        Ok(outputs)
    }

    fn step(&mut self, step: &Step) -> Result<Vec<Output>> {
        match step {
            Step::Run(arguments) => Ok(vec![self.run(arguments, None)?]),
            Step::Feed(arguments, input) => {
                let input = self.fill(input);
                Ok(vec![self.run(arguments, Some(&input))?])
            }
            Step::Beside(arguments, steps) => self.run_beside(arguments, steps),
            Step::Wait(time) => {
                std::thread::sleep(*time);
                Ok(Vec::new())
            }
            Step::MoveLeader => self.move_leader(),
        }
    }

    /// Ids that are random, so that later steps can name them and outputs can be compared.
    fn learn(&mut self, arguments: &[&str]) -> Result<()> {
        if arguments.starts_with(&["lease", "grant"]) || arguments.starts_with(&["member", "add"]) {
            let urls = self.cluster.client_urls();
            let known = self.names.clone();
            let runtime = tokio::runtime::Handle::current();
            let url = urls.first().context("there is a member")?.clone();
            let (leases, members) = tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    let mut client = Client::connect(&url).await?;
                    let leases = client
                        .lease
                        .lease_leases(mainstay_proto::etcdserverpb::LeaseLeasesRequest {});
                    let leases = leases.await?.into_inner().leases;
                    let members = client.cluster.member_list(
                        mainstay_proto::etcdserverpb::MemberListRequest { linearizable: false },
                    );
                    anyhow::Ok((leases, members.await?.into_inner().members))
                })
            })?;
            for lease in leases {
                if known.is_new(lease.id as u64) {
                    self.names.add(lease.id as u64, "lease");
                    self.captured.insert("lease", format!("{:x}", lease.id));
                }
            }
            for member in members {
                if known.is_new(member.id) {
                    self.names.add(member.id, "member");
                    self.captured.insert("learner", format!("{:x}", member.id));
                }
            }
        }
        Ok(())
    }

    /// The leader differs between the clusters, so this asks the leader itself, for the others.
    fn move_leader(&mut self) -> Result<Vec<Output>> {
        let urls = self.cluster.client_urls();
        let runtime = tokio::runtime::Handle::current();
        let answers = tokio::task::block_in_place(|| {
            runtime.block_on(async {
                let mut ids = Vec::new();
                for url in &urls {
                    let mut client = Client::connect(url).await?;
                    let status = client
                        .maintenance
                        .status(mainstay_proto::etcdserverpb::StatusRequest {})
                        .await?
                        .into_inner();
                    let own = status.header.map_or(0, |header| header.member_id);
                    ids.push((own, status.leader));
                }
                anyhow::Ok(ids)
            })
        })?;
        let leader = answers.first().map_or(0, |(_, leader)| *leader);
        let target = answers.iter().map(|(own, _)| *own).find(|own| *own != leader);
        let Some(target) = target else { return Ok(Vec::new()) };
        let output = self.run(&["move-leader", &format!("{target:x}")], None)?;
        let text = output.text.replace("member-1", "member").replace("member-2", "member");
        let text = text.replace("member-0", "member");
        Ok(vec![Output { text, ..output }])
    }
}

/// Runs the script against both clusters; answers the differences as text.
pub async fn compare(
    setting: &Setting,
    reference: &mut Cluster,
    tested: &mut Cluster,
    scratch: &Path,
) -> Result<Vec<String>> {
    let steps = script(setting.is_new, reference.members.len());
    let mut sessions = Vec::new();
    for (name, cluster) in [("etcd", reference), ("mainstay", tested)] {
        let folder = scratch.join(name);
        std::fs::create_dir_all(&folder)?;
        let names = Names::of(cluster).await?;
        sessions.push(Session {
            setting,
            cluster,
            names,
            captured: BTreeMap::new(),
            scratch: folder,
        });
    }
    let mut differences = Vec::new();
    for step in &steps {
        let mut outputs = Vec::new();
        for session in &mut sessions {
            outputs.push(session.step(step).with_context(|| format!("{step:?}"))?);
        }
        if let [theirs, ours] = outputs.as_slice()
            && theirs != ours
        {
            differences.push(format!("{step:?}\n  etcd:     {theirs:?}\n  mainstay: {ours:?}"));
        }
    }
    Ok(differences)
}
