//! The way of every call: admitted, counted, answered, and logged when it was slow.
//!
//! Input: a request and the handler of its call. Output: the response with its trailers.
//! A unary call is one future: it reads the message, runs the handler and gives back a body that
//! is ready. A stream's response is given back at once; its body is polled by the connection.
//! **Invariant:** a call that started is counted as handled exactly once, also when its client
//! goes away in the middle.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::body::RequestBody;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use mainstay_net::{Body, BoxError, Connection};
use mainstay_proto::nested::TOO_DEEP;
use prost::Message;

use super::methods::{Kind, Method};
use super::receive::{HEADER, Messages};
use super::slow;
use super::status::{OK, Status, grpc_response, success_trailers};
use super::streams::Ticket;
use super::{Answer, Api};
use crate::auth::{By, Caller};
use crate::core::Core;
use crate::error::{Code, Error};

/// Where a client's token is.
const TOKEN: &str = "token";
/// A gateway's mark on the calls that it passes on.
const BEHIND_GATEWAY: &str = "grpcgateway-accept";

/// A request of a call that has one, and its response.
pub(crate) trait UnaryRequest: Message + Default + Send + 'static {
    type Response: Message + Send + 'static;

    /// Whether a learner answers it.
    fn served_by_learner(&self) -> bool {
        false
    }

    /// What the log says about it when it was slow.
    fn facts(&self, _response: Option<&Self::Response>) -> slow::Facts {
        slow::Facts::default()
    }
}

macro_rules! unary_requests {
    ($($request:ty => $response:ty,)*) => {
        $(impl $crate::rpc::call::UnaryRequest for $request { type Response = $response; })*
    };
}
pub(crate) use unary_requests;

/// Answers a call that has one request and one response.
pub(crate) fn unary<R, Handler, Handling>(
    api: &Arc<Api>,
    method: Method,
    request: Request<RequestBody>,
    handler: Handler,
) -> Answer
where
    R: UnaryRequest,
    Handler: FnOnce(Arc<Core>, By<R>) -> Handling + Send + 'static,
    Handling: Future<Output = Result<R::Response, Status>> + Send + 'static,
{
    let api = api.clone();
    Box::pin(async move {
        let started = Instant::now();
        let (head, body) = request.into_parts();
        let raw = match Messages::new(body, &head.headers, api.receive.clone()).only().await {
            Ok(raw) => raw,
            Err(status) => return status.into_response(),
        };
        let request = match R::decode(raw.clone()) {
            Ok(request) => request,
            Err(error) => return malformed(&error).into_response(),
        };
        let mut call = InFlight::start(api.clone(), method, started);
        api.received(method, raw.len());
        let result = match api.admit(Kind::Unary, &head.headers, request.served_by_learner()) {
            Err(status) => Err(status),
            Ok(()) => {
                let request = By::new(api.caller(&head), request);
                within(timeout(&head.headers), handler(api.core.clone(), request)).await
            }
        };
        let took = started.elapsed();
        if slow::is_wanted(took, api.slow_request) {
            let peer = head.extensions.get::<Connection>();
            slow::log::<R>(method, took, peer, &raw, result.as_ref().ok());
        }
        match result {
            Ok(response) => {
                let data = encode(&response);
                call.sent(data.len() - HEADER, 1);
                call.end(OK);
                grpc_response(UnaryBody { data: Some(data), trailers_due: true }.boxed_unsync())
            }
            Err(status) => {
                // etcd's counter takes the status for a message.
                call.sent(0, 1);
                call.end(status.code as usize);
                status.into_response()
            }
        }
    })
}

/// Answers a call with a stream: counts and admits it, then gives it to `respond`.
pub(crate) fn streaming<Responding>(
    api: &Arc<Api>,
    method: Method,
    request: Request<RequestBody>,
    respond: impl FnOnce(Messages<RequestBody>, StreamCall) -> Responding + Send + 'static,
) -> Answer
where
    Responding: Future<Output = Response<Body>> + Send + 'static,
{
    let api = api.clone();
    Box::pin(async move {
        let (head, body) = request.into_parts();
        let mut in_flight = InFlight::start(api.clone(), method, Instant::now());
        // The stream through which a learner can be saved.
        let for_learner = method == Method::Snapshot;
        let admitted = api.admit(method.kind(), &head.headers, for_learner);
        match admitted.and_then(|()| api.streams.open(needs_leader(&head.headers))) {
            Ok(ticket) => {
                let messages = Messages::new(body, &head.headers, api.receive.clone());
                let timeout = timeout(&head.headers);
                let caller = api.caller(&head);
                let call = StreamCall { api, method, caller, ticket, in_flight, timeout };
                respond(messages, call).await
            }
            Err(status) => {
                in_flight.end(status.code as usize);
                status.into_response()
            }
        }
    })
}

/// A call that answers with a stream, and has not answered yet.
pub(crate) struct StreamCall {
    pub(crate) api: Arc<Api>,
    pub(crate) method: Method,
    pub(crate) caller: Caller,
    pub(crate) ticket: Ticket,
    in_flight: InFlight,
    timeout: Option<Duration>,
}

impl StreamCall {
    /// Reads the one request of a call that has one.
    pub(crate) async fn request<R: Message + Default>(
        &self,
        mut messages: Messages<RequestBody>,
    ) -> Result<By<R>, Status> {
        let raw = messages.only().await?;
        Ok(By::new(self.caller.clone(), self.api.decode(self.method, raw)?))
    }

    /// Ends the call before anything was sent.
    pub(crate) fn refuse(mut self, status: Status) -> Response<Body> {
        self.in_flight.end(status.code as usize);
        status.into_response()
    }

    /// Gives the stream to the connection.
    pub(crate) fn respond(
        self,
        stream: impl Stream<Item = Result<Chunk, Status>> + Send + Unpin + 'static,
    ) -> Response<Body> {
        let deadline = self.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        let (ticket, in_flight) = (self.ticket, self.in_flight);
        let body = StreamBody { stream, ticket, in_flight, deadline, done: false };
        grpc_response(body.boxed_unsync())
    }
}

impl Api {
    /// Decodes and counts a message of a stream.
    pub(crate) fn decode<R: Message + Default>(
        &self,
        method: Method,
        raw: Bytes,
    ) -> Result<R, Status> {
        self.received(method, raw.len());
        R::decode(raw).map_err(|error| malformed(&error))
    }

    fn received(&self, method: Method, bytes: usize) {
        self.metrics.received_bytes.inc_by(bytes as u64);
        self.metrics.of(method).received.inc();
    }
}

/// Encoded messages, ready for the connection.
pub(crate) struct Chunk {
    pub(crate) data: Bytes,
    /// How many messages these are.
    pub(crate) messages: usize,
}

impl Chunk {
    /// One message.
    pub(crate) fn one(message: &impl Message) -> Self {
        Self { data: encode(message), messages: 1 }
    }
}

/// A message in its frame.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut buffer = BytesMut::with_capacity(HEADER + length);
    put_header(length, &mut buffer);
    message.encode(&mut buffer).expect("the buffer is as large as the message");
    buffer.freeze()
}

/// Appends the header of a frame.
pub(crate) fn put_header(length: usize, buffer: &mut BytesMut) {
    buffer.put_u8(0);
    // Nobody can receive more than 4 GiB in one message; such a frame cannot be written.
    buffer.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn malformed(error: &prost::DecodeError) -> Status {
    let text = error.to_string();
    if text.ends_with(TOO_DEEP) {
        // Each level counts as an operation.
        return Error::TooManyOps.into();
    }
    Status::new(Code::Internal, format!("grpc: error unmarshalling request: {text}"))
}

async fn within<T>(
    timeout: Option<Duration>,
    handling: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match timeout {
        None => handling.await,
        Some(timeout) => match tokio::time::timeout(timeout, handling).await {
            Ok(result) => result,
            Err(_) => Err(Status::deadline()),
        },
    }
}

/// The client's deadline, from a header like `5S` or `100m`.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Whether the client wants no answer from a member without a leader.
fn needs_leader(headers: &HeaderMap) -> bool {
    headers.get("hasleader").is_some_and(|value| value == "true")
}

impl Api {
    /// What a call says of its caller. The token is looked for where etcd looks for it; a
    /// certificate counts where clients must have one, and not behind a gateway, whose own it is.
    fn caller(&self, head: &Parts) -> Caller {
        let token = head.headers.get(TOKEN).or_else(|| head.headers.get(AUTHORIZATION));
        let counts = self.client_cert_auth && !head.headers.contains_key(BEHIND_GATEWAY);
        let connection = head.extensions.get::<Connection>().filter(|_| counts);
        Caller::Client {
            token: token.cloned(),
            certificate: connection.and_then(|connection| connection.identity.clone()),
        }
    }

    /// The checks that come before those of the call itself, in etcd's order.
    fn admit(&self, kind: Kind, headers: &HeaderMap, for_learner: bool) -> Result<(), Status> {
        if !for_learner {
            self.core.refuse_on_learner()?;
        }
        let version = match headers.get("client-api-version") {
            None => "unknown",
            Some(value) => std::str::from_utf8(value.as_bytes())
                .map_err(|_| Status::from(Error::InvalidClientApiVersion))?,
        };
        self.metrics.client_request(kind, version);
        if needs_leader(headers) && self.core.leader().is_none() {
            return Err(Error::NoLeader.into());
        }
        Ok(())
    }
}

/// A call that is counted as started; dropping it counts it as handled.
struct InFlight {
    api: Arc<Api>,
    method: Method,
    started: Instant,
    code: usize,
}

impl InFlight {
    fn start(api: Arc<Api>, method: Method, started: Instant) -> Self {
        api.metrics.of(method).started.inc();
        Self { api, method, started, code: Code::Canceled as usize }
    }

    fn sent(&self, bytes: usize, messages: usize) {
        let metrics = &self.api.metrics;
        metrics.sent_bytes.inc_by(bytes as u64);
        metrics.of(self.method).sent.inc_by(messages as u64);
    }

    /// Sets how the call ended; otherwise its client has gone.
    fn end(&mut self, code: usize) {
        self.code = code;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.api.metrics.of(self.method).handled(self.code, self.started.elapsed());
    }
}

/// A body of one message that is ready.
struct UnaryBody {
    data: Option<Bytes>,
    trailers_due: bool,
}

impl http_body::Body for UnaryBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match self.data.take() {
            Some(data) => Some(Frame::data(data)),
            None if std::mem::take(&mut self.trailers_due) => {
                Some(Frame::trailers(success_trailers()))
            }
            None => None,
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        !self.trailers_due
    }
}

/// A body that sends what a stream gives, until the stream or the ticket says that it has to end.
struct StreamBody<S> {
    stream: S,
    ticket: Ticket,
    in_flight: InFlight,
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    done: bool,
}

impl<S> StreamBody<S> {
    /// Ready when something else than the stream ends the call.
    fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if let Poll::Ready(status) = self.ticket.poll_ended(context) {
            return Poll::Ready(status);
        }
        match &mut self.deadline {
            Some(deadline) => deadline.as_mut().poll(context).map(|()| Status::deadline()),
            None => Poll::Pending,
        }
    }
}

impl<S> http_body::Body for StreamBody<S>
where
    S: Stream<Item = Result<Chunk, Status>> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.done {
            return Poll::Ready(None);
        }
        let end = match self.poll_ended(context) {
            Poll::Ready(status) => Err(status),
            Poll::Pending => match Pin::new(&mut self.stream).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(chunk))) => {
                    let payload = chunk.data.len() - HEADER * chunk.messages;
                    self.in_flight.sent(payload, chunk.messages);
                    return Poll::Ready(Some(Ok(Frame::data(chunk.data))));
                }
                Poll::Ready(Some(Err(status))) => Err(status),
                Poll::Ready(None) => Ok(()),
            },
        };
        self.done = true;
        let (code, trailers) = match end {
            Ok(()) => (OK, success_trailers()),
            Err(status) => (status.code as usize, status.trailers()),
        };
        self.in_flight.end(code);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            timeout(&headers)
        };
        assert_eq!(read("5S"), Some(Duration::from_secs(5)));
        assert_eq!(read("4999984u"), Some(Duration::from_micros(4_999_984)));
        assert_eq!(read("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "5", "S", "-1S", "123456789S", "5s"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn frames_are_a_flag_a_length_and_the_message() {
        let message =
            mainstay_proto::etcdserverpb::RangeRequest { key: "abc".into(), ..Default::default() };
        assert_eq!(&encode(&message)[..], b"\0\0\0\0\x05\x0a\x03abc");
    }
}
