//! Ends connections whose client pings too often, by the rules of grpc-go.
//!
//! Input: an accepted stream. Output: the same bytes. Frames of HTTP/2 are counted as they pass:
//! the `h2` crate answers pings without telling anybody.
//!
//! A ping is a strike when it comes sooner than the minimum after the last one, or within two
//! hours while no stream is open. What the server sends of headers and data takes all strikes
//! back. The third strike ends the connection with GOAWAY `too_many_pings`.
//!
//! **Invariants:** no byte changes; the GOAWAY stands between two frames, or is not sent at all;
//! whatever the bytes are, nothing here fails or panics. A connection that is not HTTP/2 is passed
//! through.

use std::collections::HashSet;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of what an HTTP/2 client sends first, and how it begins.
const PREFACE: (usize, &[u8; 4]) = (24, b"PRI ");
/// Strikes that are let pass.
const MAX_STRIKES: u8 = 2;
/// The minimum while no stream is open.
const IDLE_MIN_TIME: Duration = Duration::from_secs(2 * 60 * 60);
const ENHANCE_YOUR_CALM: u8 = 0xb;
const REASON: &[u8; 14] = b"too_many_pings";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
}

/// Where in a sequence of frames a direction is.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; 9],
    seen: usize,
    /// Bytes to pass before the next header.
    left: usize,
}

impl Frames {
    /// Takes in bytes, and tells of each frame that begins in them.
    fn pass(&mut self, mut bytes: &[u8], mut frame: impl FnMut(Frame)) {
        loop {
            let skipped = bytes.len().min(self.left);
            self.left -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let part = bytes.len().min(self.header.len() - self.seen);
            self.header[self.seen..self.seen + part].copy_from_slice(&bytes[..part]);
            self.seen += part;
            bytes = &bytes[part..];
            if self.seen == self.header.len() {
                let [high, middle, low, kind, flags, stream @ ..] = self.header;
                self.seen = 0;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                frame(Frame { kind, flags, stream: u32::from_be_bytes(stream) & (u32::MAX >> 1) });
            }
        }
    }

    fn is_between(&self) -> bool {
        self.seen == 0 && self.left == 0
    }
}

/// What is known of an HTTP/2 connection.
#[derive(Debug)]
struct Police {
    min_time: Duration,
    preface: usize,
    incoming: Frames,
    outgoing: Frames,
    open: HashSet<u32>,
    /// The newest stream of the client.
    newest: u32,
    last_ping: Option<Instant>,
    strikes: u8,
}

impl Police {
    /// Takes in what the client sent; whether the connection may go on being looked at.
    fn received(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) -> bool {
        let (whole, start) = PREFACE;
        if self.preface < whole {
            let known = self.preface.min(start.len());
            let expected = &start[known..];
            let compared = expected.len().min(bytes.len());
            if bytes[..compared] != expected[..compared] {
                return false;
            }
            let part = bytes.len().min(whole - self.preface);
            self.preface += part;
            bytes = &bytes[part..];
        }
        let Police { incoming, open, newest, last_ping, strikes, min_time, .. } = self;
        incoming.pass(bytes, |frame| match frame.kind {
            HEADERS if frame.stream > *newest => {
                *newest = frame.stream;
                open.insert(frame.stream);
            }
            RST_STREAM => {
                open.remove(&frame.stream);
            }
            PING if frame.flags & ACK == 0 => {
                let now = now();
                let min_time = if open.is_empty() { IDLE_MIN_TIME } else { *min_time };
                if last_ping.is_some_and(|last| now.duration_since(last) < min_time) {
                    *strikes = strikes.saturating_add(1);
                }
                *last_ping = Some(now);
            }
            _ => {}
        });
        true
    }

    /// Takes in what the server sent.
    fn sent(&mut self, bytes: &[u8]) {
        let Police { outgoing, open, strikes, .. } = self;
        outgoing.pass(bytes, |frame| match frame.kind {
            DATA | HEADERS => {
                *strikes = 0;
                if frame.flags & END_STREAM != 0 {
                    open.remove(&frame.stream);
                }
            }
            RST_STREAM => {
                open.remove(&frame.stream);
            }
            _ => {}
        });
    }

    fn goaway(&self) -> Vec<u8> {
        let mut frame = vec![0, 0, 8 + REASON.len() as u8, 7, 0, 0, 0, 0, 0];
        frame.extend(self.newest.to_be_bytes());
        frame.extend([0, 0, 0, ENHANCE_YOUR_CALM]);
        frame.extend(REASON);
        frame
    }
}

/// A stream that ends when its client pings too often.
#[derive(Debug)]
pub(crate) struct Policed<S> {
    inner: S,
    /// `None` if nothing is looked at.
    police: Option<Police>,
    /// What is sent before the end, and how much of it is sent.
    goodbye: Option<(Vec<u8>, usize)>,
}

impl<S> Policed<S> {
    /// `min_time` is the shortest time between two pings; `None` lets all pass.
    pub(crate) fn new(inner: S, min_time: Option<Duration>) -> Self {
        let police = min_time.map(|min_time| Police {
            min_time,
            preface: 0,
            incoming: Frames::default(),
            outgoing: Frames::default(),
            open: HashSet::new(),
            newest: 0,
            last_ping: None,
            strikes: 0,
        });
        Policed { inner, police, goodbye: None }
    }

    fn sent(&mut self, bytes: &[u8]) {
        if let Some(police) = &mut self.police {
            police.sent(bytes);
        }
    }
}

fn too_many() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client pings too often")
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Policed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.goodbye.is_none() {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            let Some(police) = &mut this.police else { return Poll::Ready(Ok(())) };
            if !police.received(&buf.filled()[before..], Instant::now) {
                this.police = None;
                return Poll::Ready(Ok(()));
            }
            if police.strikes <= MAX_STRIKES {
                return Poll::Ready(Ok(()));
            }
            tracing::debug!("got too many pings from a client");
            let between = police.outgoing.is_between();
            this.goodbye = Some((if between { police.goaway() } else { Vec::new() }, 0));
        }
        if let Some((frame, sent)) = &mut this.goodbye {
            while *sent < frame.len() {
                *sent += match ready!(Pin::new(&mut this.inner).poll_write(cx, &frame[*sent..]))? {
                    0 => break,
                    part => part,
                };
            }
        }
        ready!(Pin::new(&mut this.inner).poll_flush(cx))?;
        Poll::Ready(Err(too_many()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Policed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.goodbye.is_some() {
            return Poll::Ready(Err(too_many()));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.sent(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.goodbye.is_some() {
            return Poll::Ready(Err(too_many()));
        }
        let written = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        let mut left = written;
        for buf in bufs {
            let part = left.min(buf.len());
            this.sent(&buf[..part]);
            left -= part;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const MIN_TIME: Duration = Duration::from_secs(5);

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend(payload);
        frame
    }

    /// Runs what a client and a server send, byte by byte, and counts strikes.
    struct Line {
        police: Police,
        now: Cell<Instant>,
    }

    impl Line {
        fn new() -> Self {
            let policed = Policed::new((), Some(MIN_TIME));
            let mut line = Line { police: policed.police.unwrap(), now: Cell::new(Instant::now()) };
            line.client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            line
        }

        fn client(&mut self, bytes: &[u8]) -> u8 {
            for byte in bytes {
                let now = self.now.get();
                assert!(self.police.received(&[*byte], || now));
            }
            self.police.strikes
        }

        fn ping(&mut self, after: Duration) -> u8 {
            self.now.set(self.now.get() + after);
            self.client(&frame(PING, 0, 0, &[0; 8]))
        }

        fn server(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.police.sent(&[*byte]);
            }
        }
    }

    #[test]
    fn pings_without_streams_need_two_hours_between_them() {
        let mut line = Line::new();
        assert_eq!(line.ping(Duration::ZERO), 0);
        assert_eq!(line.ping(Duration::from_secs(60)), 1);
        assert_eq!(line.ping(IDLE_MIN_TIME), 1);
        // Acknowledgements are none.
        assert_eq!(line.client(&frame(PING, ACK, 0, &[0; 8])), 1);
        assert_eq!(line.ping(Duration::from_secs(60)), 2);
    }

    #[test]
    fn with_a_stream_the_minimum_counts_and_data_takes_strikes_back() {
        let mut line = Line::new();
        line.client(&frame(HEADERS, 4, 1, &[0x82]));
        assert_eq!(line.ping(Duration::ZERO), 0);
        assert_eq!(line.ping(MIN_TIME), 0);
        assert_eq!(line.ping(MIN_TIME / 2), 1);
        line.server(&frame(PING, ACK, 0, &[0; 8]));
        assert_eq!(line.ping(MIN_TIME / 2), 2);
        line.server(&frame(DATA, 0, 1, &[1, 2, 3]));
        assert_eq!(line.ping(MIN_TIME / 2), 1);
        // The server ends the stream; trailers of a client do not open it again.
        line.server(&frame(HEADERS, END_STREAM | 4, 1, &[0x88]));
        line.client(&frame(HEADERS, END_STREAM | 4, 1, &[0x82]));
        assert_eq!(line.ping(MIN_TIME), 1);
    }

    #[tokio::test]
    async fn the_third_strike_ends_the_connection_with_a_reason() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut server = Policed::new(server, Some(MIN_TIME));
        client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        for _ in 0..4 {
            client.write_all(&frame(PING, 0, 0, &[0; 8])).await.unwrap();
        }
        let mut bytes = vec![0; 1024];
        assert!(server.read(&mut bytes).await.is_err());
        assert!(server.write(b"more").await.is_err());
        drop(server);
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent[..9], [0, 0, 22, 7, 0, 0, 0, 0, 0]);
        assert!(sent.ends_with(b"\0\0\0\x0btoo_many_pings"));
    }

    #[tokio::test]
    async fn http_1_passes() {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut server = Policed::new(server, Some(MIN_TIME));
        client.write_all(b"PUT / HTTP/1.1\r\n\r\n").await.unwrap();
        drop(client);
        let mut text = String::new();
        server.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "PUT / HTTP/1.1\r\n\r\n");
    }
}
