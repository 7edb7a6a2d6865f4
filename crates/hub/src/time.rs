//! Lengths of time in configurations and options, and moments.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::DateTime;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Seconds of a day.
pub const DAY_S: u64 = 86_400;

/// Returns the current time in seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Formats a time in seconds since 1970 as UTC.
pub fn describe_moment(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|second| DateTime::from_timestamp(second, 0));
    time.map_or("-".to_owned(), |time| time.format("%Y-%m-%d %H:%M UTC").to_string())
}

/// Parses a length of time with a unit: s, m, h, d or y, which is 365 days.
///
/// # Errors
/// A text that says what was expected.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a time such as 90m, 24h, 7d or 2y, got {text:?}");
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => DAY_S,
        Some('y') => 365 * DAY_S,
        _ => return Err(wrong()),
    };
    let number: Option<u64> = text[..text.len() - 1].parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(unit_s));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// Reads a length of time in a configuration.
///
/// # Errors
/// If the value is not such a text.
pub fn deserialize_time<'de, D: Deserializer<'de>>(
    source: D,
) -> Result<Option<Duration>, D::Error> {
    deserialize_span(source).map(Some)
}

/// Reads a length of time that a configuration must have.
///
/// # Errors
/// If the value is not such a text.
pub fn deserialize_span<'de, D: Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(source)?;
    parse_time(&text).map_err(D::Error::custom)
}
