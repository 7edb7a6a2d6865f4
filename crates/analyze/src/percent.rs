//! Rounds shares to percent. Every table uses this function, so that equal shares are printed
//! alike.

/// Returns `100·part/whole` with four decimals, or `None` if `whole` is 0.
pub fn percent(part: i64, whole: i64) -> Option<f64> {
    let percent = 100.0 * part as f64 / whole as f64;
    (whole != 0).then(|| (percent * 1e4).round() / 1e4)
}
