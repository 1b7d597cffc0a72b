//! Points in time as text (RFC 3339, nanoseconds), as the probes of etcd write them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 60 * 60;
/// Days from the first day of the civil era used below (1 March of year 0) to 1 January 1970.
const ERA_TO_UNIX: i64 = 719_468;
/// Days in 400 years.
const ERA_DAYS: i64 = 146_097;

/// Writes a time in UTC. Times before 1970 are written as 1970.
pub(crate) fn format(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let nanos = since.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Reads a time with any offset and any number of fraction digits. Only times since 1970 are read.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    let (date, time) = text.split_once('T')?;
    let mut date = date.splitn(3, '-').map(number);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (clock, offset) = match time.strip_suffix(['Z', 'z']) {
        Some(clock) => (clock, 0),
        None => {
            let at = time.rfind(['+', '-'])?;
            let (hours, minutes) = time[at + 1..].split_once(':')?;
            let seconds = (number(hours)? * 60 + number(minutes)?) * 60;
            (&time[..at], if time[at..].starts_with('-') { -seconds } else { seconds })
        }
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, ""));
    let mut parts = clock.splitn(3, ':').map(number);
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    if hour > 23 || minute > 59 || second > 60 || fraction.len() > 9 {
        return None;
    }
    let nanos = if fraction.is_empty() { 0 } else { number(&format!("{fraction:0<9}"))? };
    let days = days_from_civil(year, month, day);
    let seconds = days * DAY as i64 + hour * 3600 + minute * 60 + second - offset;
    let seconds = u64::try_from(seconds).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos as u32))
}

fn number(text: &str) -> Option<i64> {
    let digits_only =
        !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
    if digits_only { text.parse().ok() } else { None }
}

/// Year, month and day of a day since 1970, counted in years that begin in March, so that the day
/// that leap years add is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + ERA_TO_UNIX;
    let (era, day_of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * ERA_DAYS + day_of_era - ERA_TO_UNIX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64, nanos: u32) -> SystemTime {
        UNIX_EPOCH + Duration::new(seconds, nanos)
    }

    #[test]
    fn known_times() {
        assert_eq!(format(at(0, 0)), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(format(at(951_782_400, 5)), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(format(at(1_796_083_199, 0)), "2026-11-30T23:59:59.000000000Z");
        let expected = Some(at(1_796_083_199, 250_000_000));
        for text in [
            "2026-11-30T23:59:59.25Z",
            "2026-12-01T01:29:59.25+01:30",
            "2026-11-30T15:59:59.250000-08:00",
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for text in [
            "",
            "T",
            "2026-11-30",
            "2026-11-30T23:59:59",
            "2026-13-30T23:59:59Z",
            "2026-11-30T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0u64..253_402_300_800, nanos in 0u32..1_000_000_000) {
            let time = at(seconds, nanos);
            prop_assert_eq!(parse(&format(time)), Some(time));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9TZ:.+-]{0,40}") {
            let _ = parse(&text);
        }
    }
}
