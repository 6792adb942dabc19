//! The time in front of a line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells the time that has passed since 1970 began, in UTC.
pub(super) type Clock = fn() -> Duration;

/// The [`Clock`] of this host.
pub(super) fn now() -> Duration {
    // A clock that is set before 1970 shows that.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A time as RFC 3339 has it, in UTC and to the millisecond: 24 bytes up to the year 9999, which
/// sort as the times do.
pub(super) fn written(since_1970: Duration) -> String {
    const SECONDS_OF_DAY: u64 = 24 * 60 * 60;
    const DAYS_OF_ERA: u64 = 400 * 365 + 97;
    /// From 1 March of the year 0 to 1 January 1970.
    const DAYS_BEFORE: u64 = 719_468;
    let seconds = since_1970.as_secs();
    // Years that begin in March have their leap day at the end, and 400 of them, an era, always as
    // many days.
    let days = seconds / SECONDS_OF_DAY + DAYS_BEFORE;
    let (era, day) = (days / DAYS_OF_ERA, days % DAYS_OF_ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Of five months, from March and from August, 153 days.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (year, second) = (era * 400 + year + next, seconds % SECONDS_OF_DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let milliseconds = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        // Seconds as `date -u -d TIME +%s` has them.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000Z"),
        ] {
            assert_eq!(written(Duration::from_secs(seconds)), text);
        }
        assert_eq!(written(Duration::from_micros(7_999)), "1970-01-01T00:00:00.007Z");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let day = |number: u64| written(Duration::from_secs(number * 86_400))[..10].to_owned();
        let mut before = day(0);
        // To the year 2400, with leap years and those that are none.
        for number in 1..157_000 {
            let next = day(number);
            let of = |text: &str, part: std::ops::Range<usize>| text[part].parse::<u32>().unwrap();
            let parts = |text: &str| (of(text, 0..4), of(text, 5..7), of(text, 8..10));
            let ((year, month, date), then) = (parts(&before), parts(&next));
            let leaps = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u32::from(leaps),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match (date == length, month) {
                (false, _) => (year, month, date + 1),
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
            };
            assert_eq!(then, expected, "after {before}");
            before = next;
        }
    }
}
