//! Connections that misbehave, beside real etcd: the same bytes to both, the same end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails here")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use mainstay_etcd_tests::member::{Cluster, Program};

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

const GOAWAY: u8 = 7;
const PING: u8 = 6;

/// Pings one after the other; how many are answered, and how the server takes its leave.
fn ping_until_the_end(client_url: &str, most: usize) -> (usize, Option<Vec<u8>>) {
    let mut stream = TcpStream::connect(client_url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    let mut answered = 0;
    while answered < most {
        // The server may be gone already.
        let _ = stream.write_all(&frame(PING, 0, 0, &[7; 8]));
        loop {
            let mut header = [0; 9];
            if stream.read_exact(&mut header).is_err() {
                return (answered, None);
            }
            let mut payload =
                vec![0; u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize];
            stream.read_exact(&mut payload).unwrap();
            match header[3] {
                PING => break,
                GOAWAY => return (answered, Some(payload)),
                _ => {}
            }
        }
        answered += 1;
    }
    (answered, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_pings_too_often_is_told_so_and_cut_off() {
    let ours = Cluster::start(&[Program::Mainstay], &[]).await.unwrap();
    let real = Cluster::start(&[Program::Etcd], &[]).await.unwrap();
    let end = |cluster: &Cluster| ping_until_the_end(&cluster.members[0].client_url, 20);
    let (mine, theirs) = (end(&ours), end(&real));
    let goodbye = mine.1.clone().unwrap();
    assert!(goodbye.ends_with(b"too_many_pings"), "{goodbye:?}");
    assert_eq!(mine.1, theirs.1);
    // Real etcd answers the last ping too, if it is quick.
    assert!(theirs.0.abs_diff(mine.0) <= 1, "{mine:?}, {theirs:?}");
    // The member serves on.
    assert_eq!(end(&ours).1, Some(goodbye));
}
