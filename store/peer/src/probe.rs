//! Asking a peer now and then how long an answer takes and what time it has.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::{Method, StatusCode};
use serde::Deserialize;
use tokio::time::{MissedTickBehavior, interval};

use crate::body::PeerBody;
use crate::headers::{hex, plain_request};
use crate::http_client::finish_request;
use crate::link::Link;
use crate::timestamp;

/// Longest answer that is read.
const ANSWER_LIMIT: u64 = 4096;
/// Clocks further apart than this are worth a warning.
const DRIFT: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
struct Health {
    #[serde(rename = "OK")]
    ok: bool,
    #[serde(rename = "Now")]
    now: String,
}

/// Probes until its task is ended. The smoothed time of earlier probes counts for seven eighths.
pub(crate) async fn run(link: Arc<Link>) {
    let mut ticks = interval(link.shared.timing.probe);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    let mut smoothed: Option<Duration> = None;
    let mut healthy = true;
    loop {
        ticks.tick().await;
        let url = link.urls.pick();
        let started = Instant::now();
        let build =
            || finish_request(plain_request(Method::GET, &url, "/raft/probing"), PeerBody::empty());
        let answer =
            link.shared.http.request(&url, build, ANSWER_LIMIT, link.shared.timing.answer).await;
        let health = answer.map_err(|error| error.to_string()).and_then(|answer| {
            if answer.status != StatusCode::OK {
                return Err(format!("unexpected http status {}", answer.status));
            }
            let health: Health =
                serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
            if health.ok { Ok(health) } else { Err("the peer says that it is not well".to_owned()) }
        });
        let health = match health {
            Ok(health) => health,
            Err(error) => {
                if healthy {
                    tracing::warn!(peer = %hex(link.id), error, "prober detected unhealthy status");
                }
                healthy = false;
                continue;
            }
        };
        healthy = true;
        let sample = started.elapsed();
        let rtt = smoothed.map_or(sample, |smoothed| (smoothed * 7 + sample) / 8);
        smoothed = Some(rtt);
        link.metrics.round_trip_seconds.observe(rtt);
        if let Some(theirs) = timestamp::parse(&health.now) {
            let ours = SystemTime::now();
            let apart = ours.duration_since(theirs).unwrap_or_else(|error| error.duration());
            if apart.saturating_sub(rtt / 2) > DRIFT {
                tracing::warn!(
                    peer = %hex(link.id), drift = ?apart, ?rtt,
                    "prober found high clock drift",
                );
            }
        }
    }
}
