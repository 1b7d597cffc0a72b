//! One call through the gateway: its values become the messages of a gRPC request, and the
//! messages of the response become JSON.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use mainstay_net::{Body, BoxError, Connection};
use prost_reflect::MessageDescriptor;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::decode::decode;
use super::encode::encode;
use super::frames::Frames;
use super::scan::{Fault, Values};
use super::{JSON, failure, http_status, push_status, reply, types};
use crate::error::Code;
use crate::rpc::body::RequestBody;
use crate::rpc::call::put_header;
use crate::rpc::methods::Method;
use crate::rpc::receive::HEADER;
use crate::rpc::status::{GRPC, Status};
use crate::rpc::{self, Api};

/// Messages of a client's stream that may wait for the call.
const AHEAD: usize = 16;
/// How many bytes of JSON stand for a byte of a message at most: a whole text may be `\uXXXX`.
const EXPANSION: usize = 6;
/// Prefix of the headers that become metadata of the call.
const METADATA: &str = "grpc-metadata-";
/// What etcd's gateway passes on of the call behind it.
const CALL_TYPE: HeaderName = HeaderName::from_static("grpc-metadata-content-type");

/// A call that is to be made.
pub(super) struct Call {
    api: Arc<Api>,
    method: Method,
    input: MessageDescriptor,
    output: MessageDescriptor,
    headers: HeaderMap,
    connection: Option<Connection>,
}

impl Call {
    /// `None` when the protocol's descriptors do not have it.
    pub(super) fn new(api: &Arc<Api>, method: Method, request: &Request<Incoming>) -> Option<Self> {
        let service = types().get_service_by_name(method.service())?;
        let described = service.methods().find(|described| described.name() == method.name())?;
        Some(Self {
            api: api.clone(),
            method,
            input: described.input(),
            output: described.output(),
            headers: metadata(request.headers()),
            // A certificate is not an identity here: etcd's gateway has a connection of its own.
            connection: request
                .extensions()
                .get()
                .map(|connection: &Connection| Connection { identity: None, ..connection.clone() }),
        })
    }

    /// One value to one value.
    pub(super) async fn unary(self, body: Incoming) -> Response<Body> {
        let result = async {
            let message = self.only(body).await?;
            let mut frames = self.send(RequestBody::Given(Full::new(message))).await;
            let message = frames.next().await?.unwrap_or_default();
            // The status comes after the message.
            frames.next().await?;
            let mut text = String::new();
            encode(&self.output, message, &mut text).map_err(|error| unwritable(&error))?;
            Ok(text)
        };
        match result.await {
            Ok(text) => {
                let mut response = reply(text);
                response.headers_mut().insert(CALL_TYPE, GRPC);
                response
            }
            Err(status) => failure(&status),
        }
    }

    /// One value to a stream of lines.
    pub(super) async fn server_stream(self, body: Incoming) -> Response<Body> {
        match self.only(body).await {
            Ok(message) => {
                let frames = self.send(RequestBody::Given(Full::new(message))).await;
                self.lines(frames, None).await
            }
            Err(status) => failure(&status),
        }
    }

    /// A stream of values to a stream of lines.
    pub(super) async fn both_ways(self, body: Incoming) -> Response<Body> {
        let (sender, messages) = mpsc::channel(AHEAD);
        let feeding = feed(body, self.input.clone(), self.api.max_message(), sender);
        let feeding = Feeding(tokio::spawn(feeding).abort_handle());
        let frames = self.send(RequestBody::Fed(messages)).await;
        self.lines(frames, Some(feeding)).await
    }

    /// Makes the call.
    async fn send(&self, body: RequestBody) -> Frames {
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = http::Uri::from_static(self.method.path());
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, GRPC);
        if let Some(connection) = &self.connection {
            request.extensions_mut().insert(connection.clone());
        }
        Frames::new(rpc::answer(&self.api, request).await)
    }

    /// The first value of a body, as a frame; what follows it is not looked at. An empty body is an
    /// empty message.
    async fn only(&self, mut body: Incoming) -> Result<Bytes, Status> {
        let limit = self.api.max_message().saturating_mul(EXPANSION);
        let mut values = Values::new();
        let mut found = None;
        while let Some(piece) = piece(&mut body).await? {
            // The rest is read all the same, so that the connection can be used again.
            if found.is_none() {
                values.push(&piece);
                found = values.next().map_err(invalid)?;
                if values.held() > limit {
                    return Err(too_large(values.held(), limit));
                }
            }
        }
        if found.is_none() {
            found = values.finish().map_err(invalid)?;
        }
        let message = match found {
            Some(value) => decode(&self.input, &value).map_err(invalid)?,
            None => Vec::new(),
        };
        Ok(frame(&message))
    }

    /// Answers with a line for each message. Waits for the first, since its absence is an answer
    /// of another kind.
    async fn lines(self, mut frames: Frames, feeding: Option<Feeding>) -> Response<Body> {
        let first = frames.next().await;
        let status = first.as_ref().err().map(|status| http_status(status.code));
        let lines = stream::unfold(
            (Some(first), frames, feeding, self.output),
            async |(first, mut frames, feeding, output)| {
                let next = match first {
                    Some(first) => first,
                    None => frames.next().await,
                };
                let mut line = String::new();
                let next = next.and_then(|message| {
                    let Some(message) = message else { return Ok(false) };
                    line.push_str("{\"result\":");
                    encode(&output, message, &mut line).map_err(|error| unwritable(&error))?;
                    Ok(true)
                });
                match next {
                    Ok(false) => return None,
                    Ok(true) => {}
                    Err(status) => {
                        line.clear();
                        line.push_str("{\"error\":");
                        push_status(&status, &mut line);
                    }
                }
                line.push_str("}\n");
                let frame = Frame::data(Bytes::from(line));
                Some((Ok::<_, BoxError>(frame), (None, frames, feeding, output)))
            },
        );
        let body = StreamBody::new(Lines(Box::pin(lines))).boxed_unsync();
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        match status {
            Some(status) => *response.status_mut() = status,
            None => {
                response.headers_mut().insert(CALL_TYPE, GRPC);
            }
        }
        response
    }
}

/// Lines to come.
struct Lines<S>(Pin<Box<S>>);

impl<S: Stream> Stream for Lines<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

/// The task that reads a client's values; ends with the answer that it is for.
struct Feeding(AbortHandle);

impl Drop for Feeding {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Turns values into messages of a call until the body ends or a value is wrong; then the call
/// gets no more, as with etcd.
async fn feed(
    mut body: Incoming,
    input: MessageDescriptor,
    max_message: usize,
    sender: mpsc::Sender<Bytes>,
) {
    let limit = max_message.saturating_mul(EXPANSION);
    let mut values = Values::new();
    let result = async {
        while let Some(piece) = piece(&mut body).await? {
            values.push(&piece);
            while let Some(value) = values.next().map_err(invalid)? {
                let message = decode(&input, &value).map_err(invalid)?;
                if sender.send(frame(&message)).await.is_err() {
                    return Ok(());
                }
            }
            if values.held() > limit {
                return Err(too_large(values.held(), limit));
            }
        }
        if let Some(value) = values.finish().map_err(invalid)? {
            let message = decode(&input, &value).map_err(invalid)?;
            // Nobody listens any more when the call has ended.
            let _ = sender.send(frame(&message)).await;
        }
        Ok::<(), Status>(())
    };
    if let Err(status) = result.await {
        tracing::debug!(error = %status.message, "a stream of the gateway gets no more requests");
    }
}

async fn piece(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Status::canceled())?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER + message.len());
    put_header(message.len(), &mut frame);
    frame.put_slice(message);
    frame.freeze()
}

/// What a client may tell the call: who it is, how long it waits, and metadata by their prefix.
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for (name, value) in headers {
        let name = match name.as_str() {
            "authorization" => AUTHORIZATION,
            "grpc-timeout" => name.clone(),
            other => match other.strip_prefix(METADATA).map(|name| name.parse::<HeaderName>()) {
                Some(Ok(name)) if !is_of_grpc(&name) => name,
                _ => continue,
            },
        };
        passed.append(name, HeaderValue::clone(value));
    }
    passed
}

/// Whether a header is gRPC's own, which the gateway sets itself.
fn is_of_grpc(name: &HeaderName) -> bool {
    *name == CONTENT_TYPE || name.as_str().starts_with("grpc-") || name.as_str() == "te"
}

fn invalid(fault: Fault) -> Status {
    Status::new(Code::InvalidArgument, fault.0)
}

fn too_large(held: usize, limit: usize) -> Status {
    let text = format!("grpc: received message larger than max ({held} vs. {limit})");
    Status::new(Code::ResourceExhausted, text)
}

fn unwritable(error: &prost::DecodeError) -> Status {
    Status::new(Code::Internal, format!("the answer cannot be written as JSON: {error}"))
}
