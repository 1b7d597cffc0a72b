//! Messages out of a request body: gRPC's frames with their limits.
//!
//! Input: the body as it comes from the connection. Output: one `Bytes` per message, which shares
//! the connection's buffer when the message came in one piece.
//! **Invariant:** a message above the limit is refused when its header has come, before its body.
//! **Invariant:** a message that was begun and is not finished in time ends the call; messages that
//! are put together from many pieces hold no more than a common budget.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use super::status::Status;
use crate::error::Code;

/// Length of a frame's header: one flag, four bytes of length.
pub(crate) const HEADER: usize = 5;
/// Messages up to this size are put together without asking the budget.
const SMALL: usize = 64 << 10;
/// Bytes of larger messages that are put together at one time.
const BUDGET: usize = 256 << 20;
/// How long one message may take to come.
const PATIENCE: Duration = Duration::from_secs(30);
/// The compression that is understood; answers are not compressed.
const GZIP: &str = "gzip";
/// What a request may be larger than the limit for log entries.
const OVERHEAD: usize = 512 << 10;

/// What a member takes from its clients.
pub(crate) struct ReceiveLimits {
    max_message: usize,
    /// In KiB.
    budget: Semaphore,
    /// The whole budget, in KiB.
    all: usize,
    patience: Duration,
}

impl ReceiveLimits {
    /// For entries of `max_request_bytes`.
    pub(crate) fn new(max_request_bytes: usize) -> Self {
        let max_message = max_request_bytes.saturating_add(OVERHEAD);
        // One message of any allowed size must fit.
        let all = (BUDGET.max(max_message) >> 10) + 1;
        Self { max_message, budget: Semaphore::new(all), all, patience: PATIENCE }
    }
}

impl ReceiveLimits {
    /// Bytes of the budget that are taken.
    pub(crate) fn used(&self) -> usize {
        (self.all - self.budget.available_permits()) << 10
    }

    /// The largest message that is taken.
    pub(crate) fn max_message(&self) -> usize {
        self.max_message
    }
}

/// The messages of one request body.
pub(crate) struct Messages<B> {
    body: B,
    /// What came and belongs to the next message.
    rest: Bytes,
    /// The compression that the client names, if it names one.
    encoding: Option<String>,
    limits: Arc<ReceiveLimits>,
}

impl<B> Messages<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    pub(crate) fn new(body: B, headers: &HeaderMap, limits: Arc<ReceiveLimits>) -> Self {
        let encoding = headers.get("grpc-encoding").and_then(|value| value.to_str().ok());
        let encoding = encoding.filter(|name| *name != "identity").map(str::to_owned);
        Self { body, rest: Bytes::new(), encoding, limits }
    }

    /// The next message; `None` when the client has sent its last one. Waits without end for a
    /// message to begin.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        while self.rest.is_empty() {
            match self.data().await? {
                Some(data) => self.rest = data,
                None => return Ok(None),
            }
        }
        if let Some(message) = self.take_whole()? {
            return Ok(Some(message));
        }
        let patience = self.limits.patience;
        match tokio::time::timeout(patience, self.put_together()).await {
            Ok(message) => message.map(Some),
            Err(_) => Err(too_slow(patience)),
        }
    }

    /// The first message of a call that has one, which must come soon.
    pub(crate) async fn only(&mut self) -> Result<Bytes, Status> {
        let patience = self.limits.patience;
        match tokio::time::timeout(patience, self.next()).await {
            Ok(message) => message?.ok_or_else(|| {
                Status::new(Code::Internal, "grpc: the call ended without a request message")
            }),
            Err(_) => Err(too_slow(patience)),
        }
    }

    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                // The client reset the stream, or the connection broke.
                Some(Err(_)) => return Err(Status::canceled()),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Ok(Some(data)),
                    // Trailers, which say nothing in a request.
                    Err(_) => {}
                },
            }
        }
    }

    /// The length of the message that `header` begins.
    fn length(&self, header: &[u8; HEADER]) -> Result<usize, Status> {
        let [_, length @ ..] = *header;
        let length = u32::from_be_bytes(length) as usize;
        let max = self.limits.max_message;
        if length > max {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("grpc: received message larger than max ({length} vs. {max})"),
            ));
        }
        Ok(length)
    }

    /// What a frame's payload is as a message.
    fn open(&self, flag: u8, payload: Bytes) -> Result<Bytes, Status> {
        match (flag, self.encoding.as_deref()) {
            (0, _) => Ok(payload),
            (1, None) => Err(Status::new(
                Code::Internal,
                "grpc: compressed flag set with identity or empty encoding",
            )),
            (1, Some(GZIP)) => self.unzip(&payload),
            (1, Some(encoding)) => Err(Status::new(
                Code::Unimplemented,
                format!("grpc: Decompressor is not installed for grpc-encoding {encoding:?}"),
            )),
            (other, _) => Err(Status::new(
                Code::Internal,
                format!("grpc: received unexpected payload format {other}"),
            )),
        }
    }

    /// Unpacks no more than a message may be large.
    fn unzip(&self, payload: &[u8]) -> Result<Bytes, Status> {
        let max = self.limits.max_message;
        let mut message = Vec::new();
        let mut unpacked = flate2::read::GzDecoder::new(payload).take(max as u64 + 1);
        if let Err(error) = unpacked.read_to_end(&mut message) {
            let text = format!("grpc: failed to read decompressed data: {error}");
            return Err(Status::new(Code::Internal, text));
        }
        if message.len() > max {
            let text = format!("grpc: received message after decompression larger than max {max}");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        Ok(message.into())
    }

    /// The message that is in `rest`, if it is there whole.
    fn take_whole(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(header) = self.rest.first_chunk::<HEADER>() else { return Ok(None) };
        let length = self.length(header)?;
        let flag = header[0];
        if self.rest.len() - HEADER < length {
            return Ok(None);
        }
        self.rest.advance(HEADER);
        let payload = self.rest.split_to(length);
        self.open(flag, payload).map(Some)
    }

    async fn put_together(&mut self) -> Result<Bytes, Status> {
        let limits = self.limits.clone();
        let mut buffer = BytesMut::with_capacity(self.rest.len());
        let mut permit = None;
        loop {
            let wanted = match buffer.first_chunk::<HEADER>() {
                None => HEADER,
                Some(header) => HEADER + self.length(header)?,
            };
            if buffer.len() == wanted {
                break;
            }
            if wanted > SMALL && permit.is_none() {
                let kib = u32::try_from(wanted >> 10).unwrap_or(u32::MAX);
                // The semaphore is never closed.
                permit = limits.budget.acquire_many(kib).await.ok();
            }
            if self.rest.is_empty() {
                let Some(data) = self.data().await? else {
                    return Err(Status::new(Code::Internal, "unexpected EOF"));
                };
                self.rest = data;
            }
            let more = (wanted - buffer.len()).min(self.rest.len());
            buffer.extend_from_slice(&self.rest.split_to(more));
        }
        let flag = buffer[0];
        buffer.advance(HEADER);
        self.open(flag, buffer.freeze())
    }
}

fn too_slow(patience: Duration) -> Status {
    Status::new(
        Code::DeadlineExceeded,
        format!("grpc: the request message did not come within {patience:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::StreamBody;
    use proptest::prelude::*;

    type Piece = Result<http_body::Frame<Bytes>, std::convert::Infallible>;

    fn frame(flag: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![flag];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn messages(
        pieces: Vec<Vec<u8>>,
        headers: &HeaderMap,
        limits: ReceiveLimits,
    ) -> Messages<impl Body<Data = Bytes> + Unpin + use<>> {
        let pieces = pieces.into_iter().map(|p| Piece::Ok(http_body::Frame::data(p.into())));
        let body = StreamBody::new(futures_util::stream::iter(pieces));
        Messages::new(body, headers, Arc::new(limits))
    }

    fn small_limits(max_message: usize) -> ReceiveLimits {
        ReceiveLimits { max_message, ..ReceiveLimits::new(0) }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(future)
    }

    proptest! {
        #[test]
        fn messages_come_out_however_they_are_cut(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5),
            cuts in proptest::collection::vec(0usize..60, 0..8),
        ) {
            let mut bytes: Vec<u8> = payloads.iter().flat_map(|p| frame(0, p)).collect();
            let mut pieces = Vec::new();
            for cut in cuts {
                let tail = bytes.split_off(cut.min(bytes.len()));
                pieces.push(std::mem::replace(&mut bytes, tail));
            }
            pieces.push(bytes);
            let mut messages = messages(pieces, &HeaderMap::new(), small_limits(40));
            let mut found = Vec::new();
            while let Some(message) = run(messages.next()).unwrap() {
                found.push(message.to_vec());
            }
            prop_assert_eq!(found, payloads);
        }
    }

    #[test]
    fn too_large_is_said_at_the_header_as_etcd_says_it() {
        let header = [&[0u8][..], &3_000_008u32.to_be_bytes()].concat();
        for pieces in [vec![header.clone()], vec![header[..3].to_vec(), header[3..].to_vec()]] {
            let limits = ReceiveLimits::new(1_572_864);
            let mut messages = messages(pieces, &HeaderMap::new(), limits);
            let status = run(messages.only()).unwrap_err();
            assert_eq!(status.code, Code::ResourceExhausted);
            assert_eq!(
                status.message,
                "grpc: received message larger than max (3000008 vs. 2097152)"
            );
        }
    }

    #[test]
    fn faults_have_the_texts_of_grpc() {
        let mut snappy = HeaderMap::new();
        snappy.insert("grpc-encoding", "snappy".parse().unwrap());
        let none = HeaderMap::new();
        let cases = [
            (frame(1, b"x"), &none, "grpc: compressed flag set with identity or empty encoding"),
            (
                frame(1, b"x"),
                &snappy,
                "grpc: Decompressor is not installed for grpc-encoding \"snappy\"",
            ),
            (frame(7, b"x"), &none, "grpc: received unexpected payload format 7"),
            (frame(0, b"xyz")[..6].to_vec(), &none, "unexpected EOF"),
            (Vec::new(), &none, "grpc: the call ended without a request message"),
        ];
        for (bytes, headers, text) in cases {
            let mut messages = messages(vec![bytes], headers, small_limits(40));
            assert_eq!(run(messages.only()).unwrap_err().message, text);
        }
    }

    #[test]
    fn gzip_is_unpacked_up_to_the_limit() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-encoding", "gzip".parse().unwrap());
        let zip = |payload: &[u8]| {
            let mut packed = Vec::new();
            let level = flate2::Compression::best();
            flate2::read::GzEncoder::new(payload, level).read_to_end(&mut packed).unwrap();
            frame(1, &packed)
        };
        let first = |bytes: Vec<u8>| {
            let mut messages = messages(vec![bytes], &headers, small_limits(1000));
            run(messages.only())
        };
        assert_eq!(first(zip(b"hello")).unwrap(), "hello");
        assert_eq!(first(frame(0, b"plain")).unwrap(), "plain");
        let bomb = first(zip(&[0; 100_000])).unwrap_err();
        assert_eq!(bomb.code, Code::ResourceExhausted);
        assert_eq!(bomb.message, "grpc: received message after decompression larger than max 1000");
        assert_eq!(first(frame(1, b"no gzip")).unwrap_err().code, Code::Internal);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_ends_the_call() {
        let silence = futures_util::stream::pending::<Piece>();
        let started = StreamBody::new(futures_util::StreamExt::chain(
            futures_util::stream::iter([Piece::Ok(http_body::Frame::data(Bytes::from_static(&[
                0, 0, 0, 0, 9, 1,
            ])))]),
            silence,
        ));
        let limits = Arc::new(ReceiveLimits::new(0));
        let mut messages = Messages::new(started, &HeaderMap::new(), limits.clone());
        let status = messages.next().await.unwrap_err();
        assert_eq!(status.code, Code::DeadlineExceeded);
        let nothing = StreamBody::new(futures_util::stream::pending::<Piece>());
        let mut messages = Messages::new(nothing, &HeaderMap::new(), limits);
        assert_eq!(messages.only().await.unwrap_err().code, Code::DeadlineExceeded);
    }
}
