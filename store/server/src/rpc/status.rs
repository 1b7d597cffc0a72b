//! How a call ends when it does not end well: a gRPC code with etcd's exact text.
//!
//! Input: the store's [`Error`], or a fault of the call itself. Output: a [`Status`] and the
//! headers or trailers that carry it.
//! **Invariant:** code and text of a store error reach the client unchanged, since clients compare
//! the texts.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body_util::{BodyExt, Empty};
use mainstay_net::Body;

use crate::error::{Code, Error};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Names of all gRPC codes by their numbers, as metrics spell them.
pub(crate) const CODE_NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The number of success.
pub(crate) const OK: usize = 0;

/// The end of a call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: Cow<'static, str>,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    /// What etcd's lock and election services make of any error: their texts come from its client
    /// library, which keeps no code.
    pub(crate) fn without_code(error: Error) -> Self {
        Self { code: Code::Unknown, message: error.text() }
    }

    /// The client gave up.
    pub(crate) fn canceled() -> Self {
        Self::new(Code::Canceled, "context canceled")
    }

    /// The client's deadline is over.
    pub(crate) fn deadline() -> Self {
        Self::new(Code::DeadlineExceeded, "context deadline exceeded")
    }

    /// A response that is nothing but this status.
    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response =
            grpc_response(Empty::new().map_err(|never| match never {}).boxed_unsync());
        self.write(response.headers_mut());
        response
    }

    /// The trailers that end a response with this status.
    pub(crate) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        self.write(&mut trailers);
        trailers
    }

    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::from_bytes(&percent_encoded(&self.message)) {
            headers.insert(GRPC_MESSAGE, message);
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self { code: error.code(), message: error.text() }
    }
}

/// The trailers of a call that succeeded.
pub(crate) fn success_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// A gRPC response with this body.
pub(crate) fn grpc_response(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// Printable ASCII stays, everything else becomes `%XX`.
fn percent_encoded(text: &str) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            encoded.push(byte);
        } else {
            encoded.extend([b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_grpc_wants_them() {
        assert_eq!(percent_encoded("a b%\n\u{fc}~"), b"a b%25%0A%C3%BC~");
    }

    #[test]
    fn a_status_is_in_the_headers_of_a_response_without_body() {
        let response = Status::from(Error::EmptyKey).into_response();
        assert_eq!(response.headers()["grpc-status"], "3");
        assert_eq!(response.headers()["grpc-message"], "etcdserver: key is not provided");
        assert!(http_body::Body::is_end_stream(response.body()));
    }

    #[test]
    fn code_names_are_at_their_numbers() {
        assert_eq!(CODE_NAMES[Code::Unauthenticated as usize], "Unauthenticated");
        assert_eq!(CODE_NAMES[Code::OutOfRange as usize], "OutOfRange");
        assert_eq!(CODE_NAMES[OK], "OK");
    }
}
