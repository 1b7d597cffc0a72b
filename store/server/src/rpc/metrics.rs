//! Counters of the RPC layer, with the names that etcd's dashboards read.
//!
//! **Invariant:** counting a call touches no lock and no label lookup: every series of a call is
//! made at the start, as etcd makes them, and held by its number.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use mainstay_watch::FrameKind;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry,
};

use super::methods::{Kind, Method};
use super::status::{CODE_NAMES, Status};
use crate::error::Code;
use crate::metrics::register::{Register, milliseconds};

/// Versions that clients may name in a label of their own; more are counted together.
const MAX_CLIENT_VERSIONS: usize = 64;
const OTHER_VERSIONS: &str = "other";

/// Series of one call.
pub(crate) struct MethodMetrics {
    pub(crate) started: IntCounter,
    pub(crate) received: IntCounter,
    pub(crate) sent: IntCounter,
    handled: Vec<IntCounter>,
    seconds: Option<Histogram>,
}

impl MethodMetrics {
    /// Counts a call that has ended.
    pub(crate) fn handled(&self, code: usize, took: Duration) {
        if let Some(handled) = self.handled.get(code) {
            handled.inc();
        }
        if let Some(seconds) = &self.seconds {
            seconds.observe(took.as_secs_f64());
        }
    }
}

/// Requests by the API version that the client names.
struct ClientRequests {
    vec: IntCounterVec,
    known: [ByVersion; 2],
}

#[derive(Default)]
struct ByVersion {
    /// Most clients of a server are alike: the last version needs no lock.
    last: ArcSwap<Option<(String, IntCounter)>>,
    all: Mutex<HashMap<String, IntCounter>>,
}

/// All counters of the RPC layer.
pub(crate) struct RpcMetrics {
    methods: Vec<MethodMetrics>,
    client_requests: ClientRequests,
    pub(crate) received_bytes: IntCounter,
    pub(crate) sent_bytes: IntCounter,
    stream_failures: IntCounterVec,
    pub(crate) watch: WatchSends,
}

/// What a chunk of watch responses holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    events: usize,
    control: bool,
}

impl Sent {
    pub(crate) fn add(&mut self, kind: FrameKind) {
        match kind {
            FrameKind::Events(events) => self.events += events,
            FrameKind::Control => self.control = true,
            FrameKind::Progress => {}
        }
    }
}

/// Durations of putting watch responses together, one for each chunk.
pub(crate) struct WatchSends {
    events: Histogram,
    per_event: Histogram,
    control: Histogram,
    progress: Histogram,
}

impl WatchSends {
    fn new(r: &Register<'_>) -> Self {
        let histogram = |name: &str, help: &str| {
            let name = format!("etcd_debugging_server_watch_send_loop_{name}_seconds");
            r.histogram(&name, help, milliseconds())
        };
        Self {
            events: histogram(
                "watch_stream_duration",
                "The total duration in seconds of running through the send loop watch stream response all events.",
            ),
            per_event: histogram(
                "watch_stream_duration_per_event",
                "The average duration in seconds of running through the send loop watch stream response, per event.",
            ),
            control: histogram(
                "control_stream_duration",
                "The total duration in seconds of running through the send loop control stream response.",
            ),
            progress: histogram(
                "progress_duration",
                "The total duration in seconds of running through the progress loop control stream response.",
            ),
        }
    }

    /// A chunk was put together.
    pub(crate) fn sent(&self, sent: Sent, took: Duration) {
        let seconds = took.as_secs_f64();
        if sent.events > 0 {
            self.events.observe(seconds);
            self.per_event.observe(seconds / sent.events as f64);
        } else if sent.control {
            self.control.observe(seconds);
        } else {
            self.progress.observe(seconds);
        }
    }
}

/// The collectors of one registry; made once, for a registry refuses a second set.
struct Collectors {
    started: IntCounterVec,
    handled: IntCounterVec,
    received: IntCounterVec,
    sent: IntCounterVec,
    seconds: Option<HistogramVec>,
}

const METHOD_LABELS: [&str; 3] = ["grpc_type", "grpc_service", "grpc_method"];

impl Collectors {
    fn new(extensive: bool) -> Result<Self, prometheus::Error> {
        let counter =
            |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &METHOD_LABELS);
        let handled = Opts::new(
            "grpc_server_handled_total",
            "Total number of RPCs completed on the server, regardless of success or failure.",
        );
        let seconds = HistogramOpts::new(
            "grpc_server_handling_seconds",
            "Histogram of response latency (seconds) of gRPC that had been application-level handled by the server.",
        );
        let [kind, service, method] = METHOD_LABELS;
        Ok(Self {
            started: counter(
                "grpc_server_started_total",
                "Total number of RPCs started on the server.",
            )?,
            handled: IntCounterVec::new(handled, &[kind, service, method, "grpc_code"])?,
            received: counter(
                "grpc_server_msg_received_total",
                "Total number of RPC stream messages received on the server.",
            )?,
            sent: counter(
                "grpc_server_msg_sent_total",
                "Total number of gRPC stream messages sent by the server.",
            )?,
            seconds: extensive.then(|| HistogramVec::new(seconds, &METHOD_LABELS)).transpose()?,
        })
    }

    fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        for vec in [&self.started, &self.handled, &self.received, &self.sent] {
            registry.register(Box::new(vec.clone()))?;
        }
        self.seconds.as_ref().map_or(Ok(()), |vec| registry.register(Box::new(vec.clone())))
    }

    fn of(&self, method: Method) -> MethodMetrics {
        let labels = [method.kind().label(), method.service(), method.name()];
        let [kind, service, name] = labels;
        MethodMetrics {
            started: self.started.with_label_values(&labels),
            received: self.received.with_label_values(&labels),
            sent: self.sent.with_label_values(&labels),
            handled: CODE_NAMES
                .iter()
                .map(|code| self.handled.with_label_values(&[kind, service, name, code]))
                .collect(),
            seconds: self.seconds.as_ref().map(|vec| vec.with_label_values(&labels)),
        }
    }
}

impl RpcMetrics {
    /// Makes all series and shows them in `registry`.
    pub(crate) fn new(registry: &Registry, extensive: bool) -> Result<Self, prometheus::Error> {
        let collectors = Collectors::new(extensive)?;
        collectors.register(registry)?;
        let client_requests = IntCounterVec::new(
            Opts::new(
                "etcd_server_client_requests_total",
                "The total number of client requests per client version.",
            ),
            &["type", "client_api_version"],
        )?;
        let received_bytes = IntCounter::new(
            "etcd_network_client_grpc_received_bytes_total",
            "The total number of bytes received from grpc clients.",
        )?;
        let sent_bytes = IntCounter::new(
            "etcd_network_client_grpc_sent_bytes_total",
            "The total number of bytes sent to grpc clients.",
        )?;
        let stream_failures = IntCounterVec::new(
            Opts::new(
                "etcd_network_server_stream_failures_total",
                "The total number of stream failures from the local server.",
            ),
            &["Type", "API"],
        )?;
        registry.register(Box::new(stream_failures.clone()))?;
        registry.register(Box::new(client_requests.clone()))?;
        registry.register(Box::new(received_bytes.clone()))?;
        registry.register(Box::new(sent_bytes.clone()))?;
        Ok(Self {
            methods: Method::ALL.iter().map(|method| collectors.of(*method)).collect(),
            client_requests: ClientRequests { vec: client_requests, known: Default::default() },
            received_bytes,
            sent_bytes,
            stream_failures,
            watch: WatchSends::new(&Register(registry)),
        })
    }

    /// Counts a request on a stream that could not be taken in, unless the client went away.
    pub(crate) fn not_received(&self, api: &str, status: Status) -> Status {
        if !matches!(status.code, Code::Canceled | Code::DeadlineExceeded) {
            self.stream_failures.with_label_values(&["receive", api]).inc();
        }
        status
    }

    /// The series of a call.
    pub(crate) fn of(&self, method: Method) -> &MethodMetrics {
        &self.methods[method as usize]
    }

    /// Counts a request of a client that names its API version.
    pub(crate) fn client_request(&self, kind: Kind, version: &str) {
        let (label, known) = match kind {
            Kind::Unary => ("unary", &self.client_requests.known[0]),
            _ => ("stream", &self.client_requests.known[1]),
        };
        if let Some((last, counter)) = &**known.last.load()
            && last == version
        {
            counter.inc();
            return;
        }
        // The map is whole after any panic: each change is one insert.
        let mut all = known.all.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if all.contains_key(version) || all.len() < MAX_CLIENT_VERSIONS {
            version
        } else {
            OTHER_VERSIONS
        };
        let counter = match all.get(name) {
            Some(counter) => counter.clone(),
            None => {
                let counter = self.client_requests.vec.with_label_values(&[label, name]);
                all.insert(name.to_owned(), counter.clone());
                counter
            }
        };
        counter.inc();
        if name == version {
            known.last.store(Arc::new(Some((version.to_owned(), counter))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn every_series_is_there_from_the_start() {
        let registry = Registry::new();
        let metrics = RpcMetrics::new(&registry, true).unwrap();
        let put = metrics.of(Method::Put);
        put.started.inc();
        put.handled(8, Duration::from_millis(20));
        let text = text(&registry);
        let labels = r#"grpc_method="Put",grpc_service="etcdserverpb.KV",grpc_type="unary""#;
        for line in [
            format!("grpc_server_started_total{{{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"ResourceExhausted\",{labels}}} 1"),
            format!("grpc_server_handled_total{{grpc_code=\"OK\",{labels}}} 0"),
            format!("grpc_server_handling_seconds_count{{{labels}}} 1"),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn clients_cannot_make_series_without_end() {
        let registry = Registry::new();
        let metrics = RpcMetrics::new(&registry, false).unwrap();
        for version in 0..1000 {
            metrics.client_request(Kind::Unary, &version.to_string());
        }
        metrics.client_request(Kind::BidiStream, "3.7");
        let text = text(&registry);
        let name = "etcd_server_client_requests_total{";
        assert_eq!(text.matches(name).count(), MAX_CLIENT_VERSIONS + 2);
        assert!(text.contains(r#"client_api_version="3.7",type="stream"} 1"#));
        assert!(text.contains(&format!(
            r#"client_api_version="other",type="unary"}} {}"#,
            1000 - MAX_CLIENT_VERSIONS
        )));
    }
}
