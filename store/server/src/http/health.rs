//! `/health`, `/livez` and `/readyz`: what probes ask.
//!
//! `/health` is the older one: alarms, a leader, a read. `/livez` asks whether a restart would
//! help, `/readyz` whether requests should come; their checks can be left out or asked for alone.

use http::{Response, StatusCode};
use mainstay_net::Body;
use mainstay_proto::etcdserverpb::{AlarmType, RangeRequest};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::query::Query;
use super::{NO_SNIFF, TEXT, error, reply};
use crate::core::Core;
use crate::error::Result;

/// One thing that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    DataCorruption,
    SerializableRead,
    LinearizableRead,
    NonLearner,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::DataCorruption => "data_corruption",
            Self::SerializableRead => "serializable_read",
            Self::LinearizableRead => "linearizable_read",
            Self::NonLearner => "non_learner",
        }
    }

    /// Why it fails, if it does.
    async fn run(self, core: &Core) -> Option<String> {
        match self {
            Self::DataCorruption => {
                let corrupt = AlarmType::Corrupt;
                let raised = core.published.load().state.alarms.is_raised(corrupt);
                raised.then(|| format!("alarm activated: {}", corrupt.as_str_name()))
            }
            Self::SerializableRead => read(core, true).await.err().map(|e| e.to_string()),
            Self::LinearizableRead => read(core, false).await.err().map(|e| e.to_string()),
            Self::NonLearner => core.is_learner().then(|| "not supported for learner".to_owned()),
        }
    }
}

/// The checks that one path runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checks {
    kind: &'static str,
    list: &'static [Check],
    /// Named by the path, so they can't be left out.
    alone: bool,
}

const LIVEZ: &[Check] = &[Check::SerializableRead];
const READYZ: &[Check] =
    &[Check::DataCorruption, Check::SerializableRead, Check::LinearizableRead, Check::NonLearner];

/// The checks and what is counted of them.
pub(super) struct HealthChecks {
    success: IntCounter,
    failures: IntCounter,
    last: IntGaugeVec,
    total: IntCounterVec,
}

impl HealthChecks {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let checks = Self {
            success: IntCounter::new(
                "etcd_server_health_success",
                "The total number of successful health checks",
            )?,
            failures: IntCounter::new(
                "etcd_server_health_failures",
                "The total number of failed health checks",
            )?,
            last: IntGaugeVec::new(
                Opts::new("etcd_server_healthcheck", "The result of each kind of healthcheck."),
                &["type", "name"],
            )?,
            total: IntCounterVec::new(
                Opts::new(
                    "etcd_server_healthchecks_total",
                    "The total number of each kind of healthcheck.",
                ),
                &["type", "name", "status"],
            )?,
        };
        registry.register(Box::new(checks.success.clone()))?;
        registry.register(Box::new(checks.failures.clone()))?;
        registry.register(Box::new(checks.last.clone()))?;
        registry.register(Box::new(checks.total.clone()))?;
        Ok(checks)
    }

    /// `/health`.
    pub(super) async fn health(&self, core: &Core, query: &Query) -> Response<Body> {
        let excluded: Vec<&str> = query.all("exclude").collect();
        let serializable = query.first("serializable") == Some("true");
        let Some(reason) = unhealthy(core, &excluded, serializable).await else {
            self.success.inc();
            return reply(StatusCode::OK, TEXT, r#"{"health":"true","reason":""}"#);
        };
        self.failures.inc();
        let output = serde_json::json!({"health": "false", "reason": reason}).to_string();
        tracing::warn!(output, "status-code" = 503, "/health error");
        error(StatusCode::SERVICE_UNAVAILABLE, &output)
    }

    /// The checks that a path names.
    pub(super) fn find(&self, path: &str) -> Option<Checks> {
        let (kind, list, name) = match path.strip_prefix("/livez") {
            Some(name) => ("livez", LIVEZ, name),
            None => ("readyz", READYZ, path.strip_prefix("/readyz")?),
        };
        if name.is_empty() {
            return Some(Checks { kind, list, alone: false });
        }
        let name = name.strip_prefix('/')?;
        let at = list.iter().position(|check| check.name() == name)?;
        Some(Checks { kind, list: &list[at..=at], alone: true })
    }

    /// Runs the checks of a path.
    pub(super) async fn run(&self, core: &Core, checks: Checks, query: &Query) -> Response<Body> {
        let excluded: Vec<&str> = query.all("exclude").filter(|name| !name.is_empty()).collect();
        let known = |name: &&&str| checks.list.iter().any(|check| check.name() == **name);
        if !checks.alone && !excluded.iter().all(|name| known(&name)) {
            tracing::warn!(?excluded, "some health checks cannot be excluded");
        }
        let (mut text, mut failed) = (String::new(), false);
        for check in checks.list {
            let name = check.name();
            if !checks.alone && excluded.contains(&name) {
                continue;
            }
            let reason = check.run(core).await;
            let status = if reason.is_none() { "success" } else { "error" };
            self.last.with_label_values(&[checks.kind, name]).set(i64::from(reason.is_none()));
            self.total.with_label_values(&[checks.kind, name, status]).inc();
            match reason {
                None => text.push_str(&format!("[+]{name} ok\n")),
                Some(reason) => {
                    failed = true;
                    text.push_str(&format!("[-]{name} failed: {reason}\n"));
                }
            }
        }
        if failed {
            tracing::error!(path = checks.kind, reason = text, "Health check error");
            return error(StatusCode::SERVICE_UNAVAILABLE, &text);
        }
        if query.first("verbose").is_none() {
            text.clear();
        }
        text.push_str("ok\n");
        let mut response = reply(StatusCode::OK, TEXT, text);
        response.headers_mut().insert(NO_SNIFF.0, NO_SNIFF.1);
        response
    }
}

/// Why `/health` fails, if it does.
async fn unhealthy(core: &Core, excluded: &[&str], serializable: bool) -> Option<String> {
    for alarm in core.alarms() {
        let name = AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |kind| kind.as_str_name());
        if !excluded.contains(&name) {
            return Some(format!("ALARM {name}"));
        }
    }
    if !serializable && core.leader().is_none() {
        return Some("RAFT NO LEADER".to_owned());
    }
    read(core, serializable).await.err().map(|error| format!("RANGE ERROR:{error}"))
}

/// Reads a key, whether it is there or not.
async fn read(core: &Core, serializable: bool) -> Result<()> {
    let request = RangeRequest {
        key: "health".into(),
        keys_only: true,
        limit: 1,
        serializable,
        ..Default::default()
    };
    core.range(request).await.map(drop)
}
