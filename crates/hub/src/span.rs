//! Parses lengths of time that users write.

use std::time::Duration;

/// Parses a length of time with a unit: s, m, h or d.
///
/// # Errors
/// The reason if the text is not a number and a unit.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected a time such as 90m, 24h or 7d, got {text:?}");
    let unit_s = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3600,
        Some('d') => 86_400,
        _ => return Err(wrong()),
    };
    let number: Option<u64> = text[..text.len() - 1].parse().ok();
    let seconds = number.and_then(|number| number.checked_mul(unit_s));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}
