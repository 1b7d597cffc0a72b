//! What operators install: the Debian package, the completions, the manual pages and the manifest
//! for kubeadm, all from the binary under test and tried in the programs that read them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

mod kubeadm;
mod package;
mod shells;

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use mainstay_etcd_tests::member::peers_dir;
use rustix::process::{Pid, Signal, kill_process};

/// How long a member may take to say that it serves, or to end.
const SOON: Duration = Duration::from_secs(60);

/// The root of the checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

/// Runs a program that has to be there.
fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("{:?}: {error}; `make deps-test` installs it", command.get_program())
    })
}

/// The standard output of a program that has to succeed.
fn output(command: &mut Command) -> String {
    let output = run(command);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The text of a file of the checkout.
fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// A member as a service manager runs it: it is told nothing but its command and variables, and says
/// through a socket how it is.
struct Service {
    child: Child,
    socket: UnixDatagram,
    log: PathBuf,
}

impl Service {
    fn start(command: &mut Command, dir: &Path) -> Self {
        let path = dir.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let log = dir.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let child = command
            .env("NOTIFY_SOCKET", &path)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Service { child, socket, log }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// What the member tells its service manager next.
    fn told(&mut self) -> String {
        let start = Instant::now();
        self.socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut buffer = [0; 256];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => return String::from_utf8_lossy(&buffer[..length]).into_owned(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && start.elapsed() < SOON, "{ended:?}: {}", self.said());
        }
    }

    /// Stops it as a service manager does; answers its exit code.
    fn stop(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert_eq!(self.told(), "STOPPING=1");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Real etcdctl.
fn etcdctl() -> Command {
    let mut command = Command::new(peers_dir().unwrap().join("etcdctl"));
    command.args(["--command-timeout=10s", "--dial-timeout=5s"]);
    command
}
