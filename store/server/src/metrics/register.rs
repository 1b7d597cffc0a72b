//! Making series: each name is registered once, and what is looked up by label on the way of a
//! request is looked up once.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{self, MetricFamily, MetricType};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

/// Bounds of buckets, each twice the one before.
pub(crate) fn buckets(start: f64, count: usize) -> Vec<f64> {
    prometheus::exponential_buckets(start, 2.0, count).expect("positive start, factor and count")
}

/// etcd's buckets for what takes milliseconds.
pub(crate) fn milliseconds() -> Vec<f64> {
    buckets(0.001, 14)
}

/// Adds series to a registry. Names and labels are constants of this crate.
pub(crate) struct Register<'a>(pub(crate) &'a Registry);

impl Register<'_> {
    pub(crate) fn add<C: Collector + Clone + 'static>(&self, collector: C) -> C {
        self.0.register(Box::new(collector.clone())).expect("each name is registered once");
        collector
    }
    pub(crate) fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help).expect("the name is a valid one"))
    }
    pub(crate) fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels).expect("valid names"))
    }
    pub(crate) fn kept(&self, name: &str, help: &str) -> Kept {
        Kept::of(self.counter(name, help))
    }
    pub(crate) fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help).expect("the name is a valid one"))
    }
    pub(crate) fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels).expect("valid names"))
    }
    pub(crate) fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> Histogram {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        self.add(Histogram::with_opts(options).expect("the name is a valid one"))
    }
    pub(crate) fn durations(
        &self,
        name: &str,
        help: &str,
        buckets: Vec<f64>,
        labels: &[&str],
        rows: usize,
    ) -> Durations {
        let options = HistogramOpts::new(name, help).buckets(buckets);
        let vec = self.add(HistogramVec::new(options, labels).expect("valid names"));
        let series = std::iter::repeat_with(<[OnceLock<Histogram>; 2]>::default);
        Durations { vec, series: series.take(rows).collect() }
    }
    /// A gauge that is looked at when somebody asks.
    pub(crate) fn looked(
        &self,
        name: &str,
        help: &str,
        label: Option<(&str, &str)>,
        look: impl Fn() -> f64 + Send + Sync + 'static,
    ) {
        let label = label.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let labels = label.into_iter().collect();
        let desc = Desc::new(name.to_owned(), help.to_owned(), Vec::new(), labels);
        let looked = Looked { desc: desc.expect("the name is a valid one"), look: Box::new(look) };
        self.0.register(Box::new(looked)).expect("each name is registered once");
    }
}

/// A count that is kept elsewhere, taken over when somebody asks.
pub(crate) struct Kept {
    counter: IntCounter,
    seen: AtomicU64,
}

impl Kept {
    pub(crate) fn of(counter: IntCounter) -> Self {
        Self { counter, seen: AtomicU64::new(0) }
    }

    /// The count is `now`. Counts of two scrapes at a time may come in the wrong order.
    pub(crate) fn set(&self, now: u64) {
        let seen = self.seen.fetch_max(now, Ordering::Relaxed);
        self.counter.inc_by(now.saturating_sub(seen));
    }
}

/// Durations by a kind and by success. A series is there once there was such a duration, as with
/// etcd; it is then found by its number, without a lock.
pub(crate) struct Durations {
    vec: HistogramVec,
    series: Vec<[OnceLock<Histogram>; 2]>,
}

impl Durations {
    /// Counts a duration. `row` is the number of its kind, `labels` makes the labels of its series
    /// from the text for success.
    pub(crate) fn observe<'l, const N: usize>(
        &self,
        row: usize,
        success: bool,
        took: Duration,
        labels: impl FnOnce(&'static str) -> [&'l str; N],
    ) {
        let series = self.series[row][usize::from(success)].get_or_init(|| {
            self.vec.with_label_values(&labels(if success { "true" } else { "false" }))
        });
        series.observe(took.as_secs_f64());
    }
}

struct Looked {
    desc: Desc,
    look: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl Collector for Looked {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut gauge = proto::Gauge::default();
        gauge.set_value((self.look)());
        let mut metric = proto::Metric::from_label(self.desc.const_label_pairs.clone());
        metric.set_gauge(gauge);
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::GAUGE);
        family.set_metric(vec![metric]);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_elsewhere_is_taken_over_once() {
        let registry = Registry::new();
        let kept = Register(&registry).kept("a", "b");
        for now in [3, 3, 10, 8, 11] {
            kept.set(now);
        }
        assert_eq!(kept.counter.get(), 11);
    }

    #[test]
    fn a_series_is_there_once_it_is_used() {
        let registry = Registry::new();
        let register = Register(&registry);
        let seconds = register.durations("d", "e", buckets(1.0, 2), &["op", "success"], 2);
        register.looked("l", "m", Some(("a", "b")), || 7.0);
        register.looked("l", "m", Some(("a", "c")), || 8.0);
        let text = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(!text().contains("# TYPE d histogram"));
        seconds.observe(1, true, Duration::from_secs(2), |success| ["x", success]);
        seconds.observe(1, true, Duration::from_secs(3), |success| ["x", success]);
        assert!(text().contains("d_bucket{op=\"x\",success=\"true\",le=\"2\"} 1\n"), "{}", text());
        assert!(text().contains("d_count{op=\"x\",success=\"true\"} 2\n"));
        assert!(text().contains("# HELP l m\n# TYPE l gauge\nl{a=\"b\"} 7\nl{a=\"c\"} 8\n"));
    }
}
