//! RangeStream: the answer of a Range in chunks of bounded size, all at one revision.
//!
//! Input: a request that passed [`crate::check_range_stream`] and a pinned view. Output: one
//! [`RangeResponse`] per call; header, `more` and `count` are on the last one alone.

use bytes::{BufMut, Bytes, BytesMut};
use mainstay_engine::View;
use mainstay_proto::etcdserverpb::{RangeRequest, RangeResponse};
use prost::Message;

use crate::range::{chunk, count, header, resolve_revision};
use crate::{Error, KeySpan, ReadAt};

/// Pairs of the first chunk, before anything is known of their size.
const FIRST_CHUNK: usize = 10;

/// A Range that is answered piece by piece.
#[derive(Debug)]
pub struct RangeChunks {
    request: RangeRequest,
    at: ReadAt,
    revision: i64,
    /// Pairs that may still be sent.
    left: usize,
    /// Pairs of the next chunk.
    size: usize,
    sent: i64,
    target_bytes: usize,
    done: bool,
}

impl RangeChunks {
    /// Prepares the answer to `request`; chunks aim at `target_bytes` each (`--max-request-bytes`).
    pub fn new(at: ReadAt, request: RangeRequest, target_bytes: usize) -> Result<Self, Error> {
        let revision = resolve_revision(at, request.revision)?;
        let left = match usize::try_from(request.limit) {
            Ok(limit) if limit > 0 => limit,
            _ => usize::MAX,
        };
        let size = FIRST_CHUNK.min(left);
        Ok(Self { request, at, revision, left, size, sent: 0, target_bytes, done: false })
    }

    /// The next chunk, read from the view that `at` describes; `None` after the last one.
    pub fn next(&mut self, view: &dyn View) -> Result<Option<RangeResponse>, Error> {
        if self.done {
            return Ok(None);
        }
        let span = KeySpan::new(&self.request.key, &self.request.range_end);
        if self.request.count_only {
            self.done = true;
            let count = count(view, &span, self.revision)?;
            let header = header(self.at.revision);
            return Ok(Some(RangeResponse { header, count, ..Default::default() }));
        }
        let (kvs, more) = chunk(view, &span, self.revision, self.size, &self.request)?;
        self.sent += kvs.len() as i64;
        self.left -= kvs.len();
        let next = more.then(|| kvs.last().map(|kv| after(&kv.key))).flatten();
        let mut response = RangeResponse { kvs, ..Default::default() };
        match next {
            Some(next) if self.left > 0 => {
                self.resize(response.encoded_len());
                self.request.key = next;
            }
            next => {
                self.done = true;
                response.header = header(self.at.revision);
                response.more = more;
                response.count = self.sent;
                if let Some(next) = next {
                    let rest = KeySpan::new(&next, &self.request.range_end);
                    response.count += count(view, &rest, self.revision)?;
                }
            }
        }
        Ok(Some(response))
    }

    /// Doubles or halves the chunk when the last one missed the target by more than half.
    fn resize(&mut self, bytes: usize) {
        if bytes < self.target_bytes / 2 {
            self.size = self.size.saturating_mul(2);
        } else if bytes > self.target_bytes.saturating_mul(2) {
            self.size /= 2;
        }
        self.size = self.size.clamp(1, self.left);
    }
}

/// The first key behind `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
