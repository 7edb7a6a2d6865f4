//! Formats numbers for use in sentences: times, sizes, and counts with their nouns.

use schema::unit::plural;

/// Formats a time with three digits, such as `812 ns`, `1.50 µs`, `13.0 ms` or `4.21 s`.
pub(crate) fn time(ns: i64) -> String {
    let ns = ns as f64;
    let (value, unit) = match ns.abs() {
        size if size < 1e3 => return format!("{ns:.0} ns"),
        size if size < 1e6 => (ns / 1e3, "µs"),
        size if size < 1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = match value.abs() {
        size if size < 9.995 => 2,
        size if size < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Formats a size, such as `12 B`, `64 KiB` or `38 MiB`.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.0} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Formats a count per step, such as `3` or `0.5`.
pub(crate) fn each(count: f64) -> String {
    if count.fract() == 0.0 || count >= 10.0 {
        format!("{count:.0}")
    } else {
        format!("{count:.1}")
    }
}

/// Formats a count, per step or in total, with its noun, such as `1 time`, `2 times` or `0.5
/// times`.
pub(crate) fn counted(count: f64, noun: &str) -> String {
    let noun = if is_one(count) { noun.to_owned() } else { plural(noun) };
    format!("{} {noun}", each(count))
}

/// Chooses the verb that agrees with a count: `one` for a count of 1, and `other` otherwise.
pub(crate) fn agreeing<'a>(count: f64, one: &'a str, other: &'a str) -> &'a str {
    if is_one(count) { one } else { other }
}

fn is_one(count: f64) -> bool {
    each(count) == "1"
}

#[cfg(test)]
mod tests {
    use super::{agreeing, counted};

    #[test]
    fn nouns_and_verbs_agree_with_their_count() {
        assert_eq!(counted(1.0, "time"), "1 time");
        assert_eq!(counted(0.5, "copy"), "0.5 copies");
        assert_eq!(counted(12.0, "piece of device work"), "12 pieces of device work");
        assert_eq!(counted(2.0, "launch"), "2 launches");
        assert_eq!((agreeing(1.0, "is", "are"), agreeing(1.04, "is", "are")), ("is", "are"));
    }
}
