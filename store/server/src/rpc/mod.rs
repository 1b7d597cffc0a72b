//! etcd's gRPC services over the [`Core`].
//!
//! Input: HTTP requests with gRPC's content type. Output: responses with their trailers.
//! Every call goes the same way (`call`): its message is read within limits (`receive`), it is
//! admitted, counted (`metrics`), handled by the file of its service, and its error told with
//! etcd's code and text (`status`). gRPC's framing is done here and not by a library, because the
//! texts of its faults are etcd's, and because watch responses come encoded.
//! **Invariant:** what is not served is answered as grpc-go answers it, never with silence.

mod auth;
pub(crate) mod body;
pub(crate) mod call;
mod cluster;
mod election;
mod health;
mod kv;
mod lease;
mod lock;
mod maintenance;
pub(crate) mod methods;
mod metrics;
pub(crate) mod receive;
mod recipe;
mod reflection;
mod slow;
pub(crate) mod status;
mod streams;
mod watch;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Method as HttpMethod, Request, Response, StatusCode};
use mainstay_net::{Body, BoxError};

use self::body::RequestBody;
use self::methods::Method;
use self::metrics::RpcMetrics;
use self::receive::ReceiveLimits;
use self::reflection::Reflection;
use self::status::Status;
use self::streams::Streams;
use crate::core::Core;
use crate::error::Code;
use crate::metrics::register::Register;

/// The response of a call, to come.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>>;

/// What the calls of one member share.
pub(crate) struct Api {
    core: Arc<Core>,
    metrics: RpcMetrics,
    receive: Arc<ReceiveLimits>,
    streams: Arc<Streams>,
    slow_request: Duration,
    draining: tokio::sync::watch::Sender<bool>,
    client_cert_auth: bool,
    reflection: Option<Reflection>,
}

/// What the calls are told at the start.
pub(crate) struct ApiOptions {
    pub(crate) max_request_bytes: usize,
    pub(crate) extensive_metrics: bool,
    pub(crate) slow_request: Duration,
    pub(crate) reflection: bool,
    pub(crate) client_cert_auth: bool,
}

impl Api {
    /// The services of a member. Fails when they were made for it before.
    pub(crate) fn new(core: Arc<Core>, options: &ApiOptions) -> Result<Self, BoxError> {
        let metrics = RpcMetrics::new(core.registry(), options.extensive_metrics)?;
        let receive = Arc::new(ReceiveLimits::new(options.max_request_bytes));
        let streams = Arc::<Streams>::default();
        let register = Register(core.registry());
        let (limits, open) = (receive.clone(), streams.clone());
        register.looked(
            "mainstay_rpc_receive_bytes",
            "Bytes of large requests that are being put together.",
            None,
            move || limits.used() as f64,
        );
        register.looked(
            "mainstay_rpc_streams",
            "Streams that are open, and calls that may wait without end.",
            None,
            move || open.count() as f64,
        );
        Ok(Self {
            metrics,
            receive,
            streams,
            slow_request: options.slow_request,
            draining: tokio::sync::watch::Sender::new(false),
            client_cert_auth: options.client_cert_auth,
            reflection: options.reflection.then(Reflection::new).transpose()?,
            core,
        })
    }

    /// Ends streams that need a leader when there is none for long. Runs as long as the member.
    pub(crate) fn watch_leader(&self) -> impl Future<Output = ()> + Send + 'static {
        let patience = 3 * self.core.config.election_timeout();
        streams::watch_leader(self.streams.clone(), self.core.leadership(), patience)
    }

    /// The largest message that is taken.
    pub(crate) fn max_message(&self) -> usize {
        self.receive.max_message()
    }

    /// Ends all streams and every call that waits without end.
    pub(crate) fn drain(&self) {
        self.draining.send_replace(true);
        self.streams.close();
    }
}

/// Whether a request is gRPC's.
pub(crate) fn is_grpc<B>(request: &Request<B>) -> bool {
    request.headers().get(http::header::CONTENT_TYPE).is_some_and(|kind| {
        let rest = kind.as_bytes().strip_prefix(b"application/grpc");
        rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    })
}

/// Answers a request on a port that has gRPC alone.
pub(crate) fn answer_grpc_only(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    if is_grpc(&request) {
        return answer(api, request);
    }
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    let kind = kind.map(|kind| String::from_utf8_lossy(kind.as_bytes())).unwrap_or_default();
    let text = format!("invalid gRPC request content-type {kind:?}");
    let mut response = Status::new(Code::InvalidArgument, text).into_response();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Box::pin(std::future::ready(response))
}

/// Answers a gRPC request.
pub(crate) fn answer(api: &Arc<Api>, request: Request<RequestBody>) -> Answer {
    if request.method() != HttpMethod::POST {
        let mut response = Status::new(
            Code::Internal,
            format!(
                "Received a HEADERS frame with :method {:?} which should be POST",
                request.method().as_str()
            ),
        )
        .into_response();
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return Box::pin(std::future::ready(response));
    }
    let Some(method) = Method::find(request.uri().path()) else {
        return unknown(api, request);
    };
    match method {
        Method::Range => kv::range(api, request),
        Method::RangeStream => kv::range_stream(api, request),
        Method::Put => kv::put(api, request),
        Method::DeleteRange => kv::delete_range(api, request),
        Method::Txn => kv::txn(api, request),
        Method::Compact => kv::compact(api, request),
        Method::Watch => watch::watch(api, request),
        Method::LeaseGrant => lease::grant(api, request),
        Method::LeaseRevoke => lease::revoke(api, request),
        Method::LeaseKeepAlive => lease::keep_alive(api, request),
        Method::LeaseTimeToLive => lease::time_to_live(api, request),
        Method::LeaseLeases => lease::leases(api, request),
        Method::MemberAdd => cluster::add(api, request),
        Method::MemberRemove => cluster::remove(api, request),
        Method::MemberUpdate => cluster::update(api, request),
        Method::MemberList => cluster::list(api, request),
        Method::MemberPromote => cluster::promote(api, request),
        Method::Alarm => maintenance::alarm(api, request),
        Method::Status => maintenance::status(api, request),
        Method::Defragment => maintenance::defragment(api, request),
        Method::Hash => maintenance::hash(api, request),
        Method::HashKv => maintenance::hash_kv(api, request),
        Method::Snapshot => maintenance::snapshot(api, request),
        Method::MoveLeader => maintenance::move_leader(api, request),
        Method::Downgrade => maintenance::downgrade(api, request),
        Method::Lock => lock::lock(api, request),
        Method::Unlock => lock::unlock(api, request),
        Method::Campaign => election::campaign(api, request),
        Method::Proclaim => election::proclaim(api, request),
        Method::Leader => election::leader(api, request),
        Method::Observe => election::observe(api, request),
        Method::Resign => election::resign(api, request),
        Method::HealthCheck => health::check(api, request),
        Method::HealthWatch => health::watch(api, request),
        Method::AuthEnable => auth::enable(api, request),
        Method::AuthDisable => auth::disable(api, request),
        Method::AuthStatus => auth::status(api, request),
        Method::Authenticate => auth::authenticate(api, request),
        Method::UserAdd => auth::user_add(api, request),
        Method::UserGet => auth::user_get(api, request),
        Method::UserList => auth::user_list(api, request),
        Method::UserDelete => auth::user_delete(api, request),
        Method::UserChangePassword => auth::user_change_password(api, request),
        Method::UserGrantRole => auth::user_grant_role(api, request),
        Method::UserRevokeRole => auth::user_revoke_role(api, request),
        Method::RoleAdd => auth::role_add(api, request),
        Method::RoleGet => auth::role_get(api, request),
        Method::RoleList => auth::role_list(api, request),
        Method::RoleDelete => auth::role_delete(api, request),
        Method::RoleGrantPermission => auth::role_grant_permission(api, request),
        Method::RoleRevokePermission => auth::role_revoke_permission(api, request),
    }
}

fn unknown(api: &Api, request: Request<RequestBody>) -> Answer {
    let path = request.uri().path();
    if let Some(serve) = api.reflection.as_ref().and_then(|reflection| reflection.find(path)) {
        return serve(request);
    }
    let text = methods::unknown(path);
    Box::pin(std::future::ready(Status::new(Code::Unimplemented, text).into_response()))
}
