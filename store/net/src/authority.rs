//! Lets clients in whose `:authority` is a whole URL.
//!
//! Input: an accepted stream. Output: the same bytes, but for the values of `:authority` in
//! HTTP/2 requests that no authority has, which are mended in place. Clients of etcd 3.4 that dial
//! one endpoint (`etcdctl endpoint status`, `snapshot save`, `defrag`, ...) send the endpoint as
//! it was typed, `http://127.0.0.1:2379`. A server written in Go takes any text; the `h2` crate
//! resets the stream before a request is seen, so the text has to change below it:
//! `httpB--127.0.0.1:2379`. Nothing reads the name of the host of a gRPC request.
//!
//! The first request tells. If its authority is good, or the connection does not speak HTTP/2, the
//! rest is passed through as if this module were not there; else every later header block is
//! looked at too. Reads land in the reader's buffer and are mended there; only a header block that
//! arrives in pieces is held back until it is whole.
//!
//! **Invariants:** no length changes, of the stream, a frame, or a decoded header (see
//! [`crate::hpack`]); no byte but those of a bad authority changes; at most [`MAX_HELD`] bytes are
//! held, and all of them are handed on, at the end of the stream too; whatever the bytes are,
//! nothing here fails or panics. A block that goes on in CONTINUATION frames is mended only as far
//! as its first frame goes.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::hpack;

/// What an HTTP/2 client sends first.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longest payload of a HEADERS frame that is looked at; the server refuses longer ones.
const MAX_HELD: usize = 64 << 10;

/// Type of a HEADERS frame.
const HEADERS: u8 = 1;
/// Flag: the payload begins with a length of padding, which it ends with.
const PADDED: u8 = 0x8;
/// Flag: five bytes of priority come before the header block.
const PRIORITY: u8 = 0x20;

/// A stream whose reader sees authorities only.
#[derive(Debug)]
pub(crate) struct Mended<S> {
    inner: S,
    state: State,
    /// Whether an authority was bad.
    bad: bool,
}

/// What the next byte that is read belongs to.
#[derive(Debug)]
enum State {
    /// The preface, of which so many bytes were seen.
    Preface(usize),
    /// The header of a frame, of which so many bytes are here.
    Frame([u8; 9], usize),
    /// What is left of a payload that does not matter.
    Payload(usize),
    /// The payload of a HEADERS frame.
    Block(Block),
    /// A held payload that is handed out, from this byte on. Nothing is read meanwhile.
    Release(Vec<u8>, usize),
    /// Nothing is looked at any more.
    Through,
}

/// A header block that is not all here.
#[derive(Debug)]
struct Block {
    flags: u8,
    len: usize,
    held: Vec<u8>,
}

impl<S> Mended<S> {
    pub(crate) fn new(inner: S) -> Self {
        Mended { inner, state: State::Preface(0), bad: false }
    }

    /// Takes in what was read and mends the blocks that are whole. Returns how many bytes may be
    /// handed on; the others are held.
    fn scan(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &mut bytes[at..];
            match &mut self.state {
                State::Preface(seen) => {
                    let part = rest.len().min(PREFACE.len() - *seen);
                    if rest[..part] != PREFACE[*seen..*seen + part] {
                        self.state = State::Through;
                        continue;
                    }
                    *seen += part;
                    at += part;
                    if *seen == PREFACE.len() {
                        self.state = State::Frame([0; 9], 0);
                    }
                }
                State::Frame(header, seen) => {
                    let part = rest.len().min(header.len() - *seen);
                    header[*seen..*seen + part].copy_from_slice(&rest[..part]);
                    *seen += part;
                    at += part;
                    if *seen == header.len() {
                        self.state = payload(header);
                    }
                }
                State::Payload(left) => {
                    let part = rest.len().min(*left);
                    *left -= part;
                    at += part;
                    if *left == 0 {
                        self.state = State::Frame([0; 9], 0);
                    }
                }
                State::Block(block) if rest.len() < block.len => {
                    block.held.extend_from_slice(rest);
                    return at;
                }
                State::Block(block) => {
                    let (flags, len) = (block.flags, block.len);
                    self.state = self.mend(flags, &mut rest[..len]);
                    at += len;
                }
                // Nothing is read while a block is released.
                State::Release(..) | State::Through => return bytes.len(),
            }
        }
        at
    }

    /// Mends one whole payload; returns what comes after it.
    fn mend(&mut self, flags: u8, payload: &mut [u8]) -> State {
        if let Some(block) = header_block(flags, payload).map(|place| &mut payload[place])
            && let Some(field) = hpack::find_authority(block)
        {
            self.bad |= hpack::mend(&mut block[field.place], field.huffman);
        }
        if self.bad { State::Frame([0; 9], 0) } else { State::Through }
    }
}

/// What follows the header of a frame.
fn payload(header: &[u8; 9]) -> State {
    let [high, middle, low, kind, flags, ..] = *header;
    let len = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    match (kind, len) {
        (_, 0) => State::Frame([0; 9], 0),
        (HEADERS, 1..=MAX_HELD) => State::Block(Block { flags, len, held: Vec::new() }),
        (HEADERS, _) => State::Through,
        _ => State::Payload(len),
    }
}

/// Where the header block is in the payload of a HEADERS frame.
fn header_block(flags: u8, payload: &[u8]) -> Option<Range<usize>> {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        start += 1;
        end = end.checked_sub(usize::from(*payload.first()?))?;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    (start <= end).then_some(start..end)
}

impl<S: AsyncRead + Unpin> AsyncRead for Mended<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Without room, an empty read would look like the end of the stream below.
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match &mut this.state {
                State::Through => return Pin::new(&mut this.inner).poll_read(cx, buf),
                State::Release(block, from) => {
                    let part = buf.remaining().min(block.len() - *from);
                    buf.put_slice(&block[*from..*from + part]);
                    *from += part;
                    if *from == block.len() {
                        this.state =
                            if this.bad { State::Frame([0; 9], 0) } else { State::Through };
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Block(block) if !block.held.is_empty() => {
                    // The buffer lends room; its content is held, not handed on.
                    let mut part = buf.take(block.len - block.held.len());
                    ready!(Pin::new(&mut this.inner).poll_read(cx, &mut part))?;
                    let ended = part.filled().is_empty();
                    block.held.extend_from_slice(part.filled());
                    if ended || block.held.len() == block.len {
                        let (flags, whole) = (block.flags, block.held.len() == block.len);
                        let mut held = std::mem::take(&mut block.held);
                        if whole {
                            this.mend(flags, &mut held);
                        }
                        this.state = State::Release(held, 0);
                    }
                }
                _ => {
                    let before = buf.filled().len();
                    ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
                    let fresh = &mut buf.filled_mut()[before..];
                    if fresh.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    let passed = this.scan(fresh);
                    buf.set_filled(before + passed);
                    if passed > 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mended<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
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
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hpack::tests::literal;
    use proptest::prelude::*;
    use std::task::Waker;

    /// One frame of stream 1.
    pub(crate) fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        let mut frame = vec![len[1], len[2], len[3], kind, flags, 0, 0, 0, 1];
        frame.extend(payload);
        frame
    }

    /// The header block of a GET request.
    pub(crate) fn request(authority: &str, huffman: bool) -> Vec<u8> {
        let mut block = vec![0x82, 0x86];
        block.extend(literal(0x40, 4, "/path", huffman));
        block.extend(literal(0x40, 1, authority, huffman));
        block.extend(literal(0x40, 58, "grpc-go/1.26.0", huffman));
        block
    }

    /// A connection with the given payloads of HEADERS frames between others.
    fn connection(requests: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = PREFACE.to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        for (flags, payload) in requests {
            bytes.extend(frame(HEADERS, *flags, payload));
            // A payload that looks like a request.
            bytes.extend(frame(0, 1, &request("http://data:1", false)));
        }
        bytes
    }

    /// Gives the bytes in reads of the given lengths (in a circle), pending before each.
    struct Pieces<'a> {
        bytes: &'a [u8],
        lengths: std::iter::Cycle<std::slice::Iter<'a, usize>>,
        pending: bool,
    }

    impl AsyncRead for Pieces<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.pending = !self.pending;
            if self.pending {
                return Poll::Pending;
            }
            let len = *self.lengths.next().unwrap();
            let (now, later) = self.bytes.split_at(len.min(self.bytes.len()).min(buf.remaining()));
            buf.put_slice(now);
            self.bytes = later;
            Poll::Ready(Ok(()))
        }
    }

    /// What a reader with a buffer of `room` sees, and whether looking went on to the end.
    fn read_all(bytes: &[u8], lengths: &[usize], room: usize) -> (Vec<u8>, bool) {
        let pieces = Pieces { bytes, lengths: lengths.iter().cycle(), pending: false };
        let mut stream = Mended::new(pieces);
        let mut cx = Context::from_waker(Waker::noop());
        let mut out = Vec::new();
        let mut space = vec![0; room];
        loop {
            let mut buf = ReadBuf::new(&mut space);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
                Poll::Pending => {}
                Poll::Ready(result) => {
                    result.unwrap();
                    if buf.filled().is_empty() {
                        return (out, !matches!(stream.state, State::Through));
                    }
                    out.extend(buf.filled());
                }
            }
        }
    }

    const BAD: &str = "http://127.0.0.1:2379";
    const GOOD: &str = "httpB--127.0.0.1:2379";

    #[test]
    fn bad_authorities_are_mended_in_every_frame_and_split() {
        for huffman in [false, true] {
            let padded = |authority| {
                let mut payload = vec![3, 0, 0, 0, 0, 9];
                payload.extend(request(authority, huffman));
                payload.extend([0; 3]);
                payload
            };
            let requests = |authority| {
                connection(&[
                    (0x5, request(authority, huffman)),
                    (0x5 | PADDED | PRIORITY, padded(authority)),
                    (0x4, vec![0x88]),
                    (0x4, request(authority, huffman)),
                ])
            };
            let (sent, expected) = (requests(BAD), requests(GOOD));
            for split in 1..sent.len() {
                let lengths = [split, sent.len()];
                assert_eq!(read_all(&sent, &lengths, 4096), (expected.clone(), true));
            }
            assert_eq!(read_all(&sent, &[1], 4096), (expected.clone(), true));
            assert_eq!(read_all(&sent, &[4096], 1), (expected, true));
        }
    }

    #[test]
    fn a_good_first_request_ends_the_looking() {
        let sent = connection(&[(0x5, request("a:1", true)), (0x5, request(BAD, true))]);
        assert_eq!(read_all(&sent, &[4096], 4096), (sent.clone(), false));
        assert_eq!(read_all(&sent, &[1], 4096), (sent.clone(), false));
        let http1 = b"PRI-VATE / HTTP/1.1\r\nHost: http://x:1\r\n\r\n".to_vec();
        assert_eq!(read_all(&http1, &[7], 4096), (http1.clone(), false));
    }

    #[test]
    fn a_block_too_long_to_hold_ends_the_looking() {
        let mut payload = request(BAD, false);
        payload.resize(MAX_HELD + 1, 0x82);
        let sent = connection(&[(0x5, payload)]);
        assert_eq!(read_all(&sent, &[1000], 4096), (sent.clone(), false));
    }

    #[test]
    fn a_held_piece_is_handed_on_at_the_end() {
        let sent = connection(&[(0x5, request(BAD, true))]);
        let cut = sent.len() - frame(0, 1, &request("http://data:1", false)).len() - 3;
        let (out, _) = read_all(&sent[..cut], &[5], 4096);
        assert_eq!(out, &sent[..cut]);
    }

    proptest! {
        #[test]
        fn only_authorities_change(
            authorities in proptest::collection::vec("[a-z0-9:/.]{1,40}", 1..6),
            huffman: bool,
            lengths in proptest::collection::vec(1usize..60, 1..8),
            room in 1usize..100,
        ) {
            let flags = 0x5;
            let bad = |text: &str| http::uri::Authority::try_from(text).is_err();
            let sent = connection(
                &authorities.iter().map(|a| (flags, request(a, huffman))).collect::<Vec<_>>(),
            );
            let fixed = |text: &String| {
                let last = text.rfind(':');
                text.char_indices()
                    .map(|(at, c)| match c {
                        '/' => '-',
                        ':' if Some(at) != last => 'B',
                        other => other,
                    })
                    .collect::<String>()
            };
            let scanned = bad(&authorities[0]);
            let expected = connection(
                &authorities
                    .iter()
                    .map(|a| if scanned && bad(a) { fixed(a) } else { a.clone() })
                    .map(|a| (flags, request(&a, huffman)))
                    .collect::<Vec<_>>(),
            );
            prop_assert_eq!(read_all(&sent, &lengths, room), (expected, scanned));
        }

        #[test]
        fn garbage_keeps_its_length(
            garbage in proptest::collection::vec(any::<u8>(), 0..400),
            flags: u8,
            lengths in proptest::collection::vec(1usize..60, 1..8),
            room in 1usize..100,
        ) {
            // No preface: unchanged.
            prop_assert_eq!(&read_all(&garbage, &lengths, room).0, &garbage);
            // Frames of garbage, and a garbled request.
            let mut frames = PREFACE.to_vec();
            frames.extend(&garbage);
            prop_assert_eq!(read_all(&frames, &lengths, room).0.len(), frames.len());
            let sent = connection(&[(0x5, request(BAD, true)), (flags, garbage)]);
            prop_assert_eq!(read_all(&sent, &lengths, room).0.len(), sent.len());
        }
    }
}
