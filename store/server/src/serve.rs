//! Serving clients: the sockets of a member, from the moment that it is ready until it is drained.
//!
//! Input: a running [`Store`] and bound listeners. Output: gRPC and HTTP on the client port, and
//! metrics with health on a port of their own, which answers before the member is ready.
//! **Invariant:** clients are let in when the member is ready, not before: until then they wait in
//! the backlog of the socket, as with etcd.
//! **Invariant:** after [`drain`] no request is answered and nothing of the store runs any more.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use mainstay_net::{Body, Connection, Handler, Listener, Options, Server};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::core::Core;
use crate::gateway;
use crate::gateway::access::{self, Access};
use crate::http::{HttpSide, Paths};
use crate::metrics::register::Register;
use crate::rpc::body::RequestBody;
use crate::rpc::{self, Api, ApiOptions};
use crate::store::Store;

/// What the serving side is told.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Largest entry of the log; a message may be half a MiB larger.
    pub max_request_bytes: usize,
    /// Streams that one connection may have open.
    pub max_concurrent_streams: u32,
    /// Time between pings to an idle client; `None`: never.
    pub keepalive_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub keepalive_timeout: Duration,
    /// Shortest time between two pings of a client with open streams; who pings more often is cut
    /// off.
    pub keepalive_min_time: Duration,
    /// Whether gRPC reflection is served.
    pub reflection: bool,
    /// Whether durations of calls are measured.
    pub extensive_metrics: bool,
    /// Unary requests that take longer are logged.
    pub slow_request: Duration,
    /// Whether clients must have a certificate, so that its common name says who they are.
    pub client_cert_auth: bool,
    /// Whether calls are served as JSON too.
    pub gateway: bool,
    /// Origins whose pages may use the HTTP side; empty, or with a `*`: all.
    pub cors: Vec<String>,
    /// Host headers that are answered without TLS; empty, or with a `*`: all.
    pub host_whitelist: Vec<String>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let net = Options::default();
        Self {
            max_request_bytes: 3 << 19,
            max_concurrent_streams: net.max_concurrent_streams,
            keepalive_interval: net.keepalive_interval,
            keepalive_timeout: net.keepalive_timeout,
            keepalive_min_time: Duration::from_secs(5),
            reflection: false,
            extensive_metrics: false,
            slow_request: Duration::from_millis(300),
            client_cert_auth: false,
            gateway: true,
            cors: Vec::new(),
            host_whitelist: Vec::new(),
        }
    }
}

/// Why a store cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the store: {0}; a store is served once")]
pub struct ServeError(#[source] mainstay_net::BoxError);

/// The sockets of a member at work.
pub struct Serving {
    api: Arc<Api>,
    stop: watch::Sender<Option<Duration>>,
    servers: Vec<JoinHandle<()>>,
    leader: JoinHandle<()>,
}

impl Serving {
    /// Starts to serve. With `clients_http` the client listeners speak gRPC only.
    pub fn start(
        store: &Store,
        clients: Vec<Listener>,
        clients_http: Vec<Listener>,
        metrics: Vec<Listener>,
        options: ServeOptions,
    ) -> Result<Self, ServeError> {
        let core = store.core();
        let api_options = ApiOptions {
            max_request_bytes: options.max_request_bytes,
            extensive_metrics: options.extensive_metrics,
            slow_request: options.slow_request,
            reflection: options.reflection,
            client_cert_auth: options.client_cert_auth,
        };
        let api = Arc::new(Api::new(core.clone(), &api_options).map_err(ServeError)?);
        let http = Arc::new(HttpSide::new(core.clone()).map_err(ServeError)?);
        let net = Options {
            max_concurrent_streams: options.max_concurrent_streams,
            keepalive_interval: options.keepalive_interval,
            keepalive_timeout: options.keepalive_timeout,
            ping_min_time: Some(options.keepalive_min_time),
            ..Options::default()
        };
        let access = Arc::new(Access::new(options.cors, options.host_whitelist));
        let gateway = options.gateway;
        let refuse_named = options.client_cert_auth && options.gateway;
        let traffic = if clients_http.is_empty() { Traffic::Both } else { Traffic::Grpc };
        let stop = watch::Sender::new(None);
        let mut servers = Vec::new();
        for (name, listeners, traffic) in [
            ("client", clients, traffic),
            ("client-http", clients_http, Traffic::Http),
            ("metrics", metrics, Traffic::Metrics),
        ] {
            // Each has a limit of its own.
            let net = Options { open: Arc::default(), ..net.clone() };
            let open = net.open.clone();
            Register(core.registry()).looked(
                "mainstay_connections",
                "Connections that are open, by kind of listener.",
                Some(("listener", name)),
                move || open.load(Ordering::Relaxed) as f64,
            );
            if listeners.is_empty() {
                continue;
            }
            let wait_for = (traffic != Traffic::Metrics).then(|| core.clone());
            let (api, http, access) = (api.clone(), http.clone(), access.clone());
            let core = core.clone();
            let handler =
                Arc::new(Front { core, api, http, access, gateway, refuse_named, traffic });
            let serving = serve(listeners, handler, net, wait_for, stop.subscribe());
            servers.push(tokio::spawn(serving));
        }
        let leader = tokio::spawn(api.watch_leader());
        Ok(Self { api, stop, servers, leader })
    }

    /// Ends all streams with `Unavailable`; clients go to another member.
    pub fn end_streams(&self) {
        self.api.drain();
    }

    /// Ends streams, lets no new request in, waits for those that run, and cuts what is left at
    /// the deadline.
    pub async fn shutdown(self, deadline: Duration) {
        self.end_streams();
        self.leader.abort();
        self.stop.send_replace(Some(deadline));
        for server in self.servers {
            // A panic in there was reported there.
            let _ = server.await;
        }
    }
}

/// Ends a member without loss to its clients: another member becomes leader first, streams are
/// told to go elsewhere, running requests get their answers, and the store ends last.
pub async fn drain(store: Store, serving: Serving, deadline: Duration) {
    if tokio::time::timeout(deadline, store.hand_over()).await.is_err() {
        tracing::warn!("leadership was not handed over in time");
    }
    serving.shutdown(deadline).await;
    store.shutdown().await;
}

async fn serve(
    listeners: Vec<Listener>,
    handler: Arc<dyn Handler>,
    options: Options,
    wait_for: Option<Arc<Core>>,
    mut stop: watch::Receiver<Option<Duration>>,
) {
    if let Some(core) = wait_for {
        let mut ready = core.ready();
        tokio::select! {
            ready = ready.wait_for(|ready| *ready) => if ready.is_err() { return },
            _ = stop.wait_for(Option::is_some) => return,
        }
    }
    let server = Server::start(listeners, handler, options);
    let deadline = match stop.wait_for(Option::is_some).await {
        Ok(deadline) => deadline.unwrap_or_default(),
        // Nobody is left who could set one.
        Err(_) => Duration::ZERO,
    };
    server.shutdown(deadline).await;
}

/// What comes in through a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    Both,
    Grpc,
    Http,
    Metrics,
}

/// Splits gRPC, the gateway and the rest of HTTP.
struct Front {
    core: Arc<Core>,
    api: Arc<Api>,
    http: Arc<HttpSide>,
    access: Arc<Access>,
    gateway: bool,
    /// Whether the gateway refuses clients whose certificate has a name, which it would not heed.
    refuse_named: bool,
    traffic: Traffic,
}

impl Front {
    fn is_named(&self, request: &Request<Incoming>) -> bool {
        let connection = request.extensions().get::<Connection>();
        let identity = connection.and_then(|connection| connection.identity.as_ref());
        self.refuse_named
            && gateway::is_below(request.uri().path())
            && identity.is_some_and(|identity| !identity.common_name.is_empty())
            && self.core.auth_state().is_enabled()
    }
}

impl Handler for Front {
    fn call(
        &self,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
        let wire = |request: Request<Incoming>| request.map(RequestBody::Wire);
        match self.traffic {
            Traffic::Both if rpc::is_grpc(&request) => {
                return rpc::answer(&self.api, wire(request));
            }
            Traffic::Grpc => return rpc::answer_grpc_only(&self.api, wire(request)),
            Traffic::Metrics => {
                let http = self.http.clone();
                return Box::pin(async move { http.answer(Paths::Metrics, request).await });
            }
            Traffic::Both | Traffic::Http => {}
        }
        let named = self.is_named(&request);
        let (api, http, access) = (self.api.clone(), self.http.clone(), self.access.clone());
        let gateway = self.gateway && gateway::is_below(request.uri().path());
        Box::pin(async move {
            if named {
                return http.named(request).await;
            }
            // Only where no certificate names the host.
            let plain = !request.extensions().get::<Connection>().is_some_and(|on| on.secure);
            if let (true, Some(host)) = (plain, access.unknown_host(&request)) {
                return http.misdirected(&host, request).await;
            }
            let origin = access::origin(&request);
            let mut response = if request.method() == Method::OPTIONS {
                crate::http::drain(request.into_body()).await;
                Response::new(mainstay_net::full(""))
            } else if gateway {
                gateway::answer(&api, request).await
            } else {
                http.answer(Paths::Client, request).await
            };
            access.tell_origin(origin.as_ref(), response.headers_mut());
            response
        })
    }
}
