//! A call's response, message by message.
//!
//! Input: a gRPC response. Output: its messages, and how it ended.

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body_util::BodyExt as _;
use mainstay_net::Body;

use crate::error::Code;
use crate::rpc::receive::HEADER;
use crate::rpc::status::Status;

/// The messages of a response.
pub(super) struct Frames {
    body: Body,
    buffer: BytesMut,
    /// How the call ended; said once.
    end: Option<Result<(), Status>>,
    ended: bool,
}

impl Frames {
    pub(super) fn new(response: Response<Body>) -> Self {
        let (head, body) = response.into_parts();
        let end = status(&head.headers);
        Self { body, buffer: BytesMut::new(), ended: end.is_some(), end }
    }

    /// The next message; `None` when the call has ended well.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(message) = self.take() {
                return Ok(Some(message));
            }
            if self.ended {
                return self.end.take().unwrap_or(Ok(())).map(|()| None);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.extend_from_slice(&data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.end = status(&trailers);
                    }
                },
                Some(Err(error)) => {
                    self.ended = true;
                    return Err(Status::new(Code::Internal, error.to_string()));
                }
                None => self.ended = true,
            }
        }
    }

    fn take(&mut self) -> Option<Bytes> {
        let length = self.buffer.get(1..HEADER)?.get_u32() as usize;
        if self.buffer.len() < HEADER + length {
            return None;
        }
        self.buffer.advance(HEADER);
        Some(self.buffer.split_to(length).freeze())
    }
}

/// The status that headers or trailers tell, if they tell one.
fn status(headers: &HeaderMap) -> Option<Result<(), Status>> {
    let number = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let Some(code) = code(number) else { return Some(Ok(())) };
    let text = headers.get("grpc-message").map(|text| percent_decoded(text.as_bytes()));
    Some(Err(Status::new(code, text.unwrap_or_default())))
}

/// The code of a number; `None` for success.
fn code(number: u16) -> Option<Code> {
    const CODES: [Code; 13] = [
        Code::Canceled,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];
    let known = CODES.into_iter().find(|code| *code as u16 == number);
    (number != 0).then(|| known.unwrap_or(Code::Unknown))
}

fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let code = text.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(|_| *byte == b'%') {
            Some(code) => {
                decoded.push(code);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[tokio::test]
    async fn a_status_comes_out_as_it_went_in() {
        let status = Status::new(Code::NotFound, "100 % \u{fc} gone");
        let mut frames = Frames::new(status.clone().into_response());
        assert_eq!(frames.next().await, Err(status));
        assert_eq!(frames.next().await, Ok(None));
        let status = Status::from(Error::Compacted);
        let mut frames = Frames::new(status.clone().into_response());
        assert_eq!(frames.next().await, Err(status));
    }
}
