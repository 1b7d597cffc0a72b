//! What happens to a mixed cluster between two requests.
//!
//! **Invariant:** two of three members always run, and the member that is asked is not touched
//! while its watchers live.

use anyhow::{Context, Result};

use super::Mixed;
use crate::member::Cluster;
use crate::ops::{leader, move_leader, settle};

/// A disturbance. All but the last two begin in the middle of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Leadership moves to a member.
    Move(usize),
    /// A member is killed, and started again at the end of the session.
    Kill(usize),
    /// A member is stopped by a signal that it cannot see, and goes on at the end of the session.
    Pause(usize),
    /// A member is killed and stays away for the following sessions, so that its log gap becomes
    /// longer than what the others keep.
    Leave(usize),
    /// The member that was left out comes back.
    Return(usize),
    /// The asked member is killed and started again after the session.
    Restart,
}

impl Mixed {
    async fn leader_position(&self) -> Result<usize> {
        let up = self.up();
        let name = &up[leader(&up).await?].name;
        let all = self.cluster.members.iter();
        all.into_iter().position(|member| member.name == *name).context("unknown leader")
    }

    /// Who stays away from a session on: each member in its turn.
    pub(super) fn leaver(&self, number: usize) -> usize {
        number / 10 % self.running.len()
    }

    /// The disturbance of a session: all kinds in turn, so that a short run has them all.
    pub(super) async fn choose(&mut self, number: usize, asked: usize) -> Result<Disturbance> {
        let others = self.others(asked);
        if let Some(away) = self.running.iter().position(|up| !up) {
            // Left at 3.
            if number % 10 == 7 {
                return Ok(Disturbance::Return(away));
            }
            return Ok(Disturbance::Move(self.pick(&others)?));
        }
        let lead = self.leader_position().await?;
        let follower: Vec<usize> = others.iter().copied().filter(|at| *at != lead).collect();
        Ok(match number % 10 {
            0 => Disturbance::Pause(self.pick(&follower)?),
            1 => Disturbance::Kill(self.pick(&follower)?),
            // The leader dies, unless it is the one that is asked.
            2 if others.contains(&lead) => Disturbance::Kill(lead),
            3 => Disturbance::Leave(self.leaver(number)),
            8 => Disturbance::Restart,
            9 if others.contains(&lead) => Disturbance::Pause(lead),
            at => Disturbance::Move((at + number / 10) % self.running.len()),
        })
    }

    /// In the middle of a session.
    pub(super) async fn begin(&mut self, disturbance: Disturbance) -> Result<()> {
        match disturbance {
            Disturbance::Move(to) => {
                self.count("moves of the leader");
                let name = self.cluster.members[to].name.clone();
                let up = self.up();
                let to = up.iter().position(|member| member.name == name).context("not up")?;
                move_leader(&up, to).await?;
            }
            Disturbance::Kill(at) | Disturbance::Leave(at) => {
                self.count("kills");
                self.running[at] = false;
                self.cluster.members[at].kill();
            }
            Disturbance::Pause(at) => {
                self.count("pauses");
                self.running[at] = false;
                self.cluster.members[at].pause();
            }
            Disturbance::Return(away) => {
                // Each of the others in its turn is the one that sends the snapshot.
                let others = self.others(away);
                let returns = self.done.get("returns").copied().unwrap_or(0);
                let to = others[(returns / self.running.len()) % others.len()];
                self.count("returns");
                let name = self.cluster.members[to].name.clone();
                let up = self.up();
                let to = up.iter().position(|member| member.name == name).context("not up")?;
                move_leader(&up, to).await?;
            }
            Disturbance::Restart => {}
        }
        self.settled().await
    }

    /// After a session.
    pub(super) async fn end(&mut self, disturbance: Disturbance, asked: usize) -> Result<()> {
        match disturbance {
            Disturbance::Move(_) | Disturbance::Leave(_) => return Ok(()),
            Disturbance::Kill(at) | Disturbance::Return(at) => {
                self.cluster.members[at].start().await?;
                self.running[at] = true;
            }
            Disturbance::Pause(at) => {
                self.cluster.members[at].resume();
                self.running[at] = true;
            }
            Disturbance::Restart => {
                self.count("restarts of the asked member");
                self.cluster.members[asked].kill();
                self.cluster.members[asked].start().await?;
            }
        }
        settle(self.up()).await?;
        self.compare_revisions().await
    }
}

/// How many snapshots each member says that it received and sent.
pub(super) fn snapshots(cluster: &Cluster) -> Vec<(usize, usize)> {
    let members = cluster.members.iter();
    let logs = members.map(|member| std::fs::read_to_string(&member.log_path).unwrap_or_default());
    let count = |log: &str, line: &str| log.matches(line).count();
    logs.map(|log| {
        let received = count(&log, "\"received and saved database snapshot\"");
        (received, count(&log, "\"sent database snapshot\""))
    })
    .collect()
}
