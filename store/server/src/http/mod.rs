//! The HTTP side of the client port: version, health, metrics.
//!
//! Input: requests that are not gRPC's. Output: answers with etcd's paths, texts and codes.
//! **Invariant:** a path that is not served is a 404 with Go's text, and a method that is not
//! served there a 405 that names the right one.

mod go;
mod health;
mod process;
mod query;

use std::sync::Arc;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use mainstay_mvcc::version::SERVER_VERSION;
use mainstay_net::{Body, BoxError, full};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use self::health::HealthChecks;
use self::query::Query;
use crate::core::Core;
use crate::gateway::access;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_UTF8: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
const METRICS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const NO_SNIFF: (HeaderName, HeaderValue) =
    (http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// Bounds of [`drain`]. Go reads as much behind an answered request.
const DRAINED_BYTES: usize = 256 << 10;
const DRAINED_FOR: Duration = Duration::from_secs(1);

/// Which paths a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paths {
    /// All of them.
    Client,
    /// Metrics and health alone.
    Metrics,
}

/// The HTTP side of one member.
pub(crate) struct HttpSide {
    core: Arc<Core>,
    health: HealthChecks,
    scrapes: Scrapes,
}

/// What is counted of scrapes, as Go programs count them.
struct Scrapes {
    running: IntGauge,
    done: IntCounter,
}

impl Scrapes {
    fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let running = IntGauge::new(
            "promhttp_metric_handler_requests_in_flight",
            "Current number of scrapes being served.",
        )?;
        let codes = IntCounterVec::new(
            Opts::new(
                "promhttp_metric_handler_requests_total",
                "Total number of scrapes by HTTP status code.",
            ),
            &["code"],
        )?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(codes.clone()))?;
        // No scrape fails here; the series are there all the same.
        let [done, _, _] = ["200", "500", "503"].map(|code| codes.with_label_values(&[code]));
        Ok(Self { running, done })
    }
}

impl HttpSide {
    /// For a member. Fails when it was made before.
    pub(crate) fn new(core: Arc<Core>) -> Result<Self, BoxError> {
        let registry = core.registry();
        Ok(Self { health: HealthChecks::new(registry)?, scrapes: Scrapes::new(registry)?, core })
    }

    /// Answers a request. Its body is of no interest to any path.
    pub(crate) async fn answer(&self, paths: Paths, request: Request<Incoming>) -> Response<Body> {
        let response = self.look_up(paths, &request).await;
        drain(request.into_body()).await;
        response
    }

    async fn look_up(&self, paths: Paths, request: &Request<Incoming>) -> Response<Body> {
        let query = Query::parse(request.uri().query().unwrap_or_default());
        let all = paths == Paths::Client;
        match request.uri().path() {
            "/metrics" => {
                self.scrapes.running.inc();
                let text = self.core.metrics_text() + &process::metrics();
                self.scrapes.running.dec();
                self.scrapes.done.inc();
                reply(StatusCode::OK, METRICS, text)
            }
            "/health" => self.get(request, || self.health.health(&self.core, &query)).await,
            "/version" if all => self.get(request, || std::future::ready(self.version())).await,
            "/debug/vars" if all => self.get(request, || std::future::ready(variables())).await,
            path => match self.health.find(path) {
                Some(checks) => {
                    self.get(request, || self.health.run(&self.core, checks, &query)).await
                }
                None => error(StatusCode::NOT_FOUND, "404 page not found"),
            },
        }
    }

    /// Refuses a request whose Host header is not a known one.
    pub(crate) async fn misdirected(
        &self,
        host: &str,
        request: Request<Incoming>,
    ) -> Response<Body> {
        drain(request.into_body()).await;
        tracing::warn!(host, "rejecting HTTP request to prevent DNS rebinding attacks");
        error(StatusCode::MISDIRECTED_REQUEST, &access::refusal(host))
    }

    /// Refuses a request to the gateway whose certificate has a name.
    pub(crate) async fn named(&self, request: Request<Incoming>) -> Response<Body> {
        drain(request.into_body()).await;
        error(
            StatusCode::BAD_REQUEST,
            "CommonName of client sending a request against gateway will be ignored and not used \
             as expected",
        )
    }

    async fn get<F: Future<Output = Response<Body>>>(
        &self,
        request: &Request<Incoming>,
        answer: impl FnOnce() -> F,
    ) -> Response<Body> {
        if request.method() == Method::GET {
            return answer().await;
        }
        let mut refusal = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        refusal
    }

    fn version(&self) -> Response<Body> {
        let cluster = self.core.cluster_version();
        let storage = self.core.storage_version();
        let text = format!(
            r#"{{"etcdserver":"{SERVER_VERSION}","etcdcluster":"{}","storage":"{}"}}"#,
            cluster.as_deref().unwrap_or("not_decided"),
            storage.as_deref().unwrap_or("unknown"),
        );
        reply(StatusCode::OK, JSON, text)
    }
}

/// Reads what a client still sends with a request that is answered without it. A body that is
/// dropped before the answer resets an HTTP/2 stream, and the client never sees the answer. What is
/// too long or too slow is dropped all the same.
pub(crate) async fn drain(body: Incoming) {
    let mut body = Limited::new(body, DRAINED_BYTES);
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    // Late or not, the answer follows.
    let _ = tokio::time::timeout(DRAINED_FOR, reading).await;
}

/// What Go programs publish of themselves; the command line is what there is of it here.
fn variables() -> Response<Body> {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let text = format!("{{\n\"cmdline\": {}\n}}\n", serde_json::json!(arguments));
    reply(StatusCode::OK, JSON_UTF8, text)
}

fn reply(status: StatusCode, kind: HeaderValue, text: impl Into<bytes::Bytes>) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A failure in the form of Go's `http.Error`.
fn error(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = reply(status, TEXT, format!("{text}\n"));
    response.headers_mut().insert(NO_SNIFF.0, NO_SNIFF.1);
    response
}
