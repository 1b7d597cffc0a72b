//! Members as processes: real etcd or Mainstay, alone or as a cluster on loopback ports.
//!
//! **Invariant:** a member that was started here is killed when its handle goes.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
pub use tempfile::TempDir;

/// Which program a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Real etcd 3.7.3.
    Etcd,
    /// The binary under test.
    Mainstay,
}

/// The directory with etcd, etcdctl and etcdutl.
pub fn peers_dir() -> Result<PathBuf> {
    let dir = std::env::var_os("MAINSTAY_PEERS")
        .context("MAINSTAY_PEERS is not set: run `make test`, which builds etcd and sets it")?;
    Ok(PathBuf::from(dir))
}

/// The binary under test: `MAINSTAY_BIN`, or the one that cargo built beside this test.
pub fn mainstay_binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("MAINSTAY_BIN") {
        return Ok(PathBuf::from(path));
    }
    let test = std::env::current_exe()?;
    let built = test.ancestors().skip(1).take(2).map(|dir| dir.join("mainstay"));
    built.into_iter().find(|path| path.exists()).with_context(|| {
        format!("no mainstay binary beside {}: run `cargo build --bin mainstay`", test.display())
    })
}

/// A TCP port that was free a moment ago, and that this process has not asked for lately.
///
/// It lies below the range of outgoing connections: otherwise a client's own connection could take
/// the port of a member that is down, or even connect to itself.
pub fn free_port() -> Result<u16> {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static TURN: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(rand::random()));
    (0..200)
        .map(|_| (FIRST + TURN.fetch_add(1, Ordering::Relaxed) % COUNT) as u16)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("no free TCP port between 10000 and 32000")
}

/// One member.
#[derive(Debug)]
pub struct Member {
    /// Which program it is.
    pub program: Program,
    /// Its name.
    pub name: String,
    /// `http://127.0.0.1:PORT` of the client port.
    pub client_url: String,
    /// `http://127.0.0.1:PORT` of the peer port.
    pub peer_url: String,
    /// Its data directory.
    pub data_dir: PathBuf,
    /// Its output.
    pub log_path: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Member {
    /// A member that is not started yet.
    pub fn new(program: Program, name: &str, dir: &Path) -> Result<Self> {
        Ok(Member {
            program,
            name: name.to_string(),
            client_url: format!("http://127.0.0.1:{}", free_port()?),
            peer_url: format!("http://127.0.0.1:{}", free_port()?),
            data_dir: dir.join(name),
            log_path: dir.join(format!("{name}.log")),
            arguments: Vec::new(),
            child: None,
        })
    }

    /// The same member with TLS on both ports.
    #[must_use]
    pub fn with_tls(mut self) -> Self {
        for url in [&mut self.client_url, &mut self.peer_url] {
            *url = url.replace("http:", "https:");
        }
        self
    }

    /// The arguments that come after the usual ones.
    pub fn arguments(&self) -> &[String] {
        &self.arguments
    }

    /// Replaces the arguments that come after the usual ones.
    pub fn set_arguments(&mut self, arguments: Vec<String>) {
        self.arguments = arguments;
    }

    /// Starts the process; does not wait.
    pub fn spawn(&mut self) -> Result<()> {
        let mut command = match self.program {
            Program::Etcd => Command::new(peers_dir()?.join("etcd")),
            Program::Mainstay => {
                let mut command = Command::new(mainstay_binary()?);
                command.arg("etcd");
                command
            }
        };
        let log = File::options().create(true).append(true).open(&self.log_path)?;
        command
            .args(["--name", &self.name])
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--listen-client-urls", &self.client_url])
            .args(["--advertise-client-urls", &self.client_url])
            .args(["--listen-peer-urls", &self.peer_url])
            .args(["--initial-advertise-peer-urls", &self.peer_url])
            .args(&self.arguments)
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null());
        self.child = Some(command.spawn().with_context(|| format!("starting {command:?}"))?);
        Ok(())
    }

    /// How often the member said that it serves.
    fn ready_lines(&self) -> usize {
        let log = std::fs::read_to_string(&self.log_path).unwrap_or_default();
        log.matches("ready to serve client requests").count()
    }

    /// Starts the process and waits until it says that it serves.
    pub async fn start(&mut self) -> Result<()> {
        let before = self.ready_lines();
        self.spawn()?;
        self.wait_ready(before).await
    }

    /// Waits for one more ready line than `before`.
    pub async fn wait_ready(&mut self, before: usize) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.ready_lines() <= before {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok()?) {
                bail!("{} ended with {status}:\n{}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{} did not get ready in 60 s:\n{}", self.name, self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// The last lines of the member's output.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log_path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(15)..).unwrap_or_default().join("\n")
    }

    /// The process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid as i32)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM, then waits for the end; answers the exit status.
    pub fn stop(&mut self) -> Result<std::process::ExitStatus> {
        self.signal(Signal::TERM);
        let mut child = self.child.take().context("the member does not run")?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                bail!("{} did not end in 20 s after SIGTERM", self.name);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()?)).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
    }
}

/// `kill -9` of all at the same moment.
pub fn kill_all(members: &mut [Member]) {
    for member in members.iter() {
        member.signal(Signal::KILL);
    }
    for member in members {
        member.kill();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.resume();
        self.kill();
    }
}

/// Members that know each other, in one temporary directory.
#[derive(Debug)]
pub struct Cluster {
    /// The members, in the order they were asked for.
    pub members: Vec<Member>,
    /// Where all their data is.
    pub dir: TempDir,
}

impl Cluster {
    /// Founds a cluster of the given programs and waits until all serve.
    pub async fn start(programs: &[Program], arguments: &[&str]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, programs, |_| {
            arguments.iter().map(|a| a.to_string()).collect()
        })
        .await
    }

    /// The same in a given directory, with arguments for each program.
    pub async fn start_in(
        dir: TempDir,
        programs: &[Program],
        arguments: impl Fn(Program) -> Vec<String>,
    ) -> Result<Self> {
        let mut members = Vec::new();
        for (at, program) in programs.iter().enumerate() {
            members.push(Member::new(*program, &format!("m{at}"), dir.path())?);
        }
        Self::found(dir, members, arguments).await
    }

    /// The same with TLS on all ports, which the arguments have to give certificates for.
    pub async fn start_secure(
        dir: TempDir,
        programs: &[Program],
        arguments: impl Fn(Program) -> Vec<String>,
    ) -> Result<Self> {
        let mut members = Vec::new();
        for (at, program) in programs.iter().enumerate() {
            members.push(Member::new(*program, &format!("m{at}"), dir.path())?.with_tls());
        }
        Self::found(dir, members, arguments).await
    }

    async fn found(
        dir: TempDir,
        mut members: Vec<Member>,
        arguments: impl Fn(Program) -> Vec<String>,
    ) -> Result<Self> {
        let list: Vec<String> =
            members.iter().map(|member| format!("{}={}", member.name, member.peer_url)).collect();
        let list = list.join(",");
        for member in &mut members {
            let mut all = vec!["--initial-cluster".to_string(), list.clone()];
            all.extend(["--initial-cluster-token".to_string(), "test".to_string()]);
            all.extend(arguments(member.program));
            member.set_arguments(all);
            member.spawn()?;
        }
        for member in &mut members {
            member.wait_ready(0).await?;
        }
        Ok(Cluster { members, dir })
    }

    /// Client URLs of all members.
    pub fn client_urls(&self) -> Vec<String> {
        self.members.iter().map(|member| member.client_url.clone()).collect()
    }
}
