//! What goes on between members, under etcd's names and with its labels.
//!
//! Input: the rows that the peer protocol counts in. Output: families of the Prometheus model, made
//! when somebody asks.
//! **Invariant:** a series is there once there is something to count, as with etcd; alerts on
//! absent series work alike.

use std::sync::Arc;

use mainstay_peer::{Counter, Gauge, Histogram, PeerMetrics};
use prometheus::proto::{self, LabelPair, Metric, MetricFamily, MetricType};

/// One number of a row.
type Count = fn(&PeerMetrics) -> &Counter;
type Level = fn(&PeerMetrics) -> &Gauge;
type Past = fn(&PeerMetrics) -> u64;
type Durations = fn(&PeerMetrics) -> &Histogram;

/// Which label names the other member.
#[derive(Clone, Copy)]
enum Side {
    To,
    From,
    /// This member and the other one.
    Both,
}

const COUNTERS: [(&str, &str, Side, Count); 9] = [
    ("disconnected_peers_total", "The total number of disconnected peers.", Side::Both, |row| {
        &row.disconnected
    }),
    ("peer_sent_bytes_total", "The total number of bytes sent to peers.", Side::To, |row| {
        &row.sent_bytes
    }),
    (
        "peer_received_bytes_total",
        "The total number of bytes received from peers.",
        Side::From,
        |row| &row.received_bytes,
    ),
    (
        "peer_sent_failures_total",
        "The total number of send failures from peers.",
        Side::To,
        |row| &row.sent_failures,
    ),
    (
        "peer_received_failures_total",
        "The total number of receive failures from peers.",
        Side::From,
        |row| &row.received_failures,
    ),
    ("snapshot_send_success", "Total number of successful snapshot sends", Side::To, |row| {
        &row.snapshots_sent
    }),
    ("snapshot_send_failures", "Total number of snapshot send failures", Side::To, |row| {
        &row.snapshot_send_failures
    }),
    (
        "snapshot_receive_success",
        "Total number of successful snapshot receives",
        Side::From,
        |row| &row.snapshots_received,
    ),
    ("snapshot_receive_failures", "Total number of snapshot receive failures", Side::From, |row| {
        &row.snapshot_receive_failures
    }),
];

const HISTOGRAMS: [(&str, &str, Side, Durations); 3] = [
    ("peer_round_trip_time_seconds", "Round-Trip-Time histogram between peers", Side::To, |row| {
        &row.round_trip_seconds
    }),
    (
        "snapshot_send_total_duration_seconds",
        "Total latency distributions of v3 snapshot sends",
        Side::To,
        |row| &row.snapshot_send_seconds,
    ),
    (
        "snapshot_receive_total_duration_seconds",
        "Total latency distributions of v3 snapshot receives",
        Side::From,
        |row| &row.snapshot_receive_seconds,
    ),
];

/// The last is how often it was other than zero and is no more.
const GAUGES: [(&str, &str, Side, Level, Past); 3] = [
    (
        "active_peers",
        "The current number of active peer connections.",
        Side::Both,
        |row| &row.active,
        |row| row.disconnected.get(),
    ),
    (
        "snapshot_send_inflights_total",
        "Total number of inflight snapshot sends",
        Side::To,
        |row| &row.snapshots_sending,
        |row| row.snapshots_sent.get() + row.snapshot_send_failures.get(),
    ),
    (
        "snapshot_receive_inflights_total",
        "Total number of inflight snapshot receives",
        Side::From,
        |row| &row.snapshots_receiving,
        |row| row.snapshots_received.get() + row.snapshot_receive_failures.get(),
    ),
];

/// All families that have a series. `rows` is what is counted by member id; 0 stands for senders
/// that are no members.
pub(crate) fn families(own: u64, rows: &[(u64, Arc<PeerMetrics>)]) -> Vec<MetricFamily> {
    let mut families = Vec::new();
    let mut add = |name: &str, help: &str, kind, metrics: Vec<Metric>| {
        if !metrics.is_empty() {
            let mut family = MetricFamily::default();
            family.set_name(format!("etcd_network_{name}"));
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family.set_metric(metrics);
            families.push(family);
        }
    };
    for (name, help, side, count) in COUNTERS {
        let counted = rows.iter().map(|(id, row)| (*id, count(row).get()));
        let metrics = counted.filter(|(_, count)| *count > 0).map(|(id, count)| {
            let mut counter = proto::Counter::default();
            counter.set_value(count as f64);
            let mut metric = Metric::from_label(labels(own, id, side));
            metric.set_counter(counter);
            metric
        });
        add(name, help, MetricType::COUNTER, metrics.collect());
    }
    for (name, help, side, durations) in HISTOGRAMS {
        let seen = rows.iter().map(|(id, row)| (*id, durations(row)));
        let metrics = seen.filter(|(_, seen)| seen.count() > 0).map(|(id, seen)| {
            let mut metric = Metric::from_label(labels(own, id, side));
            metric.set_histogram(histogram(seen));
            metric
        });
        add(name, help, MetricType::HISTOGRAM, metrics.collect());
    }

    for (name, help, side, value, before) in GAUGES {
        let now = rows.iter().map(|(id, row)| (*id, value(row).get(), before(row)));
        let metrics =
            now.filter(|(_, now, before)| *now != 0 || *before != 0).map(|(id, now, _)| {
                let mut gauge = proto::Gauge::default();
                gauge.set_value(now as f64);
                let mut metric = Metric::from_label(labels(own, id, side));
                metric.set_gauge(gauge);
                metric
            });
        add(name, help, MetricType::GAUGE, metrics.collect());
    }
    families
}

fn labels(own: u64, id: u64, side: Side) -> Vec<LabelPair> {
    let pair = |name: &str, id: u64| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(format!("{id:x}"));
        pair
    };
    match side {
        Side::To => vec![pair("To", id)],
        Side::From => vec![pair("From", id)],
        Side::Both => vec![pair("Local", own), pair("Remote", id)],
    }
}

fn histogram(seen: &Histogram) -> proto::Histogram {
    let buckets = seen.cumulative().into_iter().map(|(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    });
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(seen.count());
    histogram.set_sample_sum(seen.sum());
    histogram
}
