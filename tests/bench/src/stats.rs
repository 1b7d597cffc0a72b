//! Latencies and rates of one run.

use std::time::Duration;

/// What one workload gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Operations (or delivered events) per second.
    pub(crate) rate: f64,
    /// Median latency.
    pub(crate) p50: Duration,
    /// 99th percentile.
    pub(crate) p99: Duration,
}

impl Outcome {
    /// From the latencies of all operations that ended within `elapsed`.
    pub(crate) fn of(mut latencies: Vec<Duration>, elapsed: Duration) -> Self {
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = (latencies.len() as f64 * share) as usize;
            latencies.get(index.min(latencies.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        Outcome {
            rate: latencies.len() as f64 / elapsed.as_secs_f64(),
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values.get(n / 2).copied().unwrap_or_default(),
        n => values.iter().skip(n / 2 - 1).take(2).sum::<f64>() / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_and_medians() {
        let latencies = (1..=100).map(Duration::from_millis).collect();
        let outcome = Outcome::of(latencies, Duration::from_secs(2));
        assert_eq!(outcome.rate, 50.0);
        assert_eq!(outcome.p50, Duration::from_millis(51));
        assert_eq!(outcome.p99, Duration::from_millis(100));
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![1.0, 3.0]), 2.0);
    }
}
