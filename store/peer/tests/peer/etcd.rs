//! A real etcd process, and raw HTTP to ask it and ourselves the same.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake::PATIENCE;

/// A member of its own; ends with the value.
pub(crate) struct Etcd {
    child: Child,
    directory: TempDir,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
}

fn program() -> PathBuf {
    let directory = std::env::var_os("MAINSTAY_PEERS").unwrap_or_else(|| {
        panic!("MAINSTAY_PEERS does not name a directory with real etcd; run `make test`, which builds it")
    });
    Path::new(&directory).join("etcd")
}

pub(crate) async fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

impl Etcd {
    /// Starts a new cluster of this member and of others at the given addresses. Serves clients
    /// when this returns, if it has a majority.
    pub(crate) async fn start(others: &[SocketAddr]) -> Etcd {
        let directory = tempfile::tempdir().unwrap();
        let (client, peer) = (free_address().await, free_address().await);
        let mut cluster = format!("real=http://{peer}");
        for (i, other) in others.iter().enumerate() {
            cluster += &format!(",other{i}=http://{other}");
        }
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(program())
            .args(["--name", "real", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(["--listen-client-urls", &format!("http://{client}")])
            .args(["--advertise-client-urls", &format!("http://{client}")])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .args(["--initial-cluster", &cluster, "--unsafe-no-fsync"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("real etcd starts");
        let mut etcd = Etcd { child, directory, client, peer };
        etcd.wait_for(etcd.peer).await;
        if others.is_empty() {
            etcd.wait_for(etcd.client).await;
        }
        etcd
    }

    async fn wait_for(&mut self, address: SocketAddr) {
        let open = async {
            while TcpStream::connect(address).await.is_err() {
                self.assert_alive();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, open).await.expect("etcd listens");
    }

    /// Real members end on some malformed input; this one must not have.
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "etcd ended: {}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn peer_url(&self) -> String {
        format!("http://{}", self.peer)
    }

    /// One call of the client API in its JSON form. Retries while there is no leader.
    pub(crate) async fn call(&self, path: &str, body: Value) -> Value {
        let body = body.to_string();
        let end = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reply = ask(self.client, "POST", path, &[], body.as_bytes()).await;
            if reply.status == 200 {
                return serde_json::from_slice(&reply.body).unwrap();
            }
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            assert!(tokio::time::Instant::now() < end, "{path}: {} {text}", reply.status);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Writes the key `k`, `count` times.
    pub(crate) async fn put(&self, count: usize) {
        for _ in 0..count {
            self.call("/v3/kv/put", json!({ "key": "aw==", "value": "dg==" })).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer; status 0 stands for a connection that was closed without one.
#[derive(Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Sends one request as it is and reads the answer, of a stream only the head.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &[u8],
) -> Reply {
    let mut request =
        format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("Content-Length: {}\r\n\r\n", body.len());
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The other side may answer and close before it has read everything.
        let _ = stream.write_all(&request).await;
        read_reply(&mut stream).await
    };
    tokio::time::timeout(PATIENCE, exchange).await.expect("an answer comes")
}

async fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => bytes.extend_from_slice(&piece[..read]),
            _ => return Reply { status: 0, headers: BTreeMap::new(), body: bytes },
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let status: u16 = lines.next().unwrap()[9..12].parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = bytes[head_end + 4..].to_vec();
    let is_stream = status == 200 && headers.contains_key("x-server-version");
    if is_stream {
        body.clear();
        return Reply { status, headers, body };
    }
    // Not simply up to the end of the connection: real members take up to 5 s for that.
    let len = headers.get("content-length").and_then(|len| len.parse().ok());
    let chunked = headers.contains_key("transfer-encoding");
    while len.is_none_or(|len: usize| body.len() < len)
        && !(chunked && body.ends_with(b"0\r\n\r\n"))
        && status != 204
    {
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => body.extend_from_slice(&piece[..read]),
            _ => break,
        }
    }
    if chunked {
        body = without_chunks(&body);
    }
    Reply { status, headers, body }
}

/// What the chunks of a body hold; the last may be missing when the connection was dropped.
fn without_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        rest = &rest[at + 2..];
        body.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
    body
}
