//! Durations as Go's programs read them from flags and options.
//!
//! Input: a text. Output: the duration, or `None` for what Go refuses or what is below zero.

use std::time::Duration;

/// Reads `1h2m3.5s`: numbers with units, one after the other.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let seconds = match &rest[..unit_len] {
            "ns" => 1e-9,
            // Both signs that Go takes for micro.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[unit_len..];
    }
    Duration::try_from_secs_f64(total).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let ms = |text: &str| parse_duration(text).map(|duration| duration.as_millis());
        assert_eq!(ms("5m"), Some(300_000));
        assert_eq!(ms("1h2m3.5s"), Some(3_723_500));
        assert_eq!(ms("+100ms"), Some(100));
        assert_eq!(ms("0"), Some(0));
        for bad in ["", "5", "s", "5x", "m5", "1h5", "-5s", "1e3s"] {
            assert_eq!(ms(bad), None, "{bad}");
        }
    }
}
