//! The one body type of this crate, for requests and answers alike.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::{Duration, Sleep};

/// A body: known at once, a stream without end, or a file of known length.
pub struct PeerBody(Kind);

enum Kind {
    Full(Option<Bytes>),
    Channel(mpsc::Receiver<Bytes>),
    /// `last` is held back until the stream has ended.
    Sized {
        left: u64,
        chunks: BoxStream<'static, io::Result<Bytes>>,
        last: Option<Bytes>,
    },
}

impl PeerBody {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        PeerBody(Kind::Full(None))
    }

    /// These bytes.
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        PeerBody(Kind::Full(if bytes.is_empty() { None } else { Some(bytes) }))
    }

    /// Whatever comes out of the channel until its sender is gone.
    pub(crate) fn channel(chunks: mpsc::Receiver<Bytes>) -> Self {
        PeerBody(Kind::Channel(chunks))
    }

    /// Exactly `len` bytes. When the stream gives fewer or more, the body fails and with it the
    /// connection, so the receiver never takes a cut file for a whole one.
    pub(crate) fn sized(len: u64, chunks: BoxStream<'static, io::Result<Bytes>>) -> Self {
        PeerBody(Kind::Sized { left: len, chunks: chunks.fuse().boxed(), last: None })
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            Kind::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Channel(chunks) => {
                chunks.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
            }
            Kind::Sized { left, chunks, last } => loop {
                match std::task::ready!(chunks.poll_next_unpin(cx)).transpose()? {
                    Some(chunk) if chunk.is_empty() => {}
                    Some(chunk) => {
                        let len = chunk.len() as u64;
                        if len > *left {
                            let error = io::Error::other("body is longer than announced");
                            return Poll::Ready(Some(Err(error)));
                        }
                        *left -= len;
                        if *left > 0 {
                            return Poll::Ready(Some(Ok(Frame::data(chunk))));
                        }
                        *last = Some(chunk);
                    }
                    None if *left > 0 => return Poll::Ready(Some(Err(cut(*left)))),
                    None => {
                        return Poll::Ready(last.take().map(|chunk| Ok(Frame::data(chunk))));
                    }
                }
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Kind::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::Channel(_) => SizeHint::default(),
            Kind::Sized { left, last, .. } => {
                SizeHint::with_exact(*left + last.as_ref().map_or(0, Bytes::len) as u64)
            }
        }
    }
}

fn cut(missing: u64) -> io::Error {
    let text = format!("body ended {missing} bytes early");
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

/// A body that is being received, with a limit on silence.
pub(crate) struct Chunks {
    body: Incoming,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
}

impl Chunks {
    pub(crate) fn new(body: Incoming, idle: Duration) -> Self {
        Chunks { body, idle, timer: Box::pin(tokio::time::sleep(idle)) }
    }

    /// The next bytes; `None` at the proper end.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Bytes>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(frame) => {
                    self.timer.as_mut().reset(tokio::time::Instant::now() + self.idle);
                    match frame {
                        None => return Poll::Ready(None),
                        Some(Err(error)) => return Poll::Ready(Some(Err(io::Error::other(error)))),
                        Some(Ok(frame)) => match frame.into_data() {
                            Ok(data) if !data.is_empty() => return Poll::Ready(Some(Ok(data))),
                            // Trailers and empty pieces say nothing.
                            _ => continue,
                        },
                    }
                }
                Poll::Pending => {
                    std::task::ready!(self.timer.poll_unpin(cx));
                    let text = format!("nothing was received for {:?}", self.idle);
                    return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, text))));
                }
            }
        }
    }

    /// Everything up to the end, unless it is more than `limit` bytes.
    pub(crate) async fn collect(mut self, limit: u64) -> Result<Bytes, CollectError> {
        let mut all = bytes::BytesMut::new();
        while let Some(chunk) = self.next().await {
            let chunk = chunk.map_err(CollectError::Io)?;
            if all.len() as u64 + chunk.len() as u64 > limit {
                return Err(CollectError::TooLarge(limit));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }
}

impl futures_util::Stream for Chunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Chunks::poll_next(&mut self, cx)
    }
}

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error("body exceeds {0} bytes")]
    TooLarge(u64),
    #[error(transparent)]
    Io(io::Error),
}
