//! Newtypes for the quantities that must not be mixed up: ranks, tables, bytes, shares and
//! nanoseconds.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A participant of the training job, numbered `0..world_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// Returns the rank as an index into per-rank arrays.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Position of a table in [`crate::ModelConfig::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TableId(pub u32);

impl TableId {
    /// Returns the table as an index into [`crate::ModelConfig::tables`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Integer nanoseconds. Depending on the context, they are a point on a trace's clock or a
/// duration.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub i64);

/// A number of bytes of memory or traffic, which displays in binary units.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.1} {}", UNITS[unit])
    }
}

/// A part of a whole, from 0 to 1. A share displays as a percentage, and is parsed from `1%` or
/// `0.01`.
///
/// ```
/// use schema::Share;
///
/// assert_eq!("1%".parse(), Ok(Share(0.01)));
/// assert_eq!(Share::from_parts(1, 4).to_string(), "25 %");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(pub f64);

impl Share {
    /// Returns the share of `part` in `whole`. The share of nothing in nothing is 0.
    #[must_use]
    pub fn from_parts(part: u64, whole: u64) -> Self {
        Self(part as f64 / whole.max(1) as f64)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, scale) = match text.trim().strip_suffix('%') {
            Some(number) => (number.trim_end(), 0.01),
            None => (text.trim(), 1.0),
        };
        let value = number.parse::<f64>().ok().map(|number| number * scale);
        match value {
            // The text `1` is rejected, because it may mean 1 % or 100 %.
            Some(value) if scale == 1.0 && value == 1.0 => Err("write 1% or 100%".to_owned()),
            Some(value) if (0.0..=1.0).contains(&value) => Ok(Self(value)),
            _ => Err("expected a share from 0% to 100%, such as 1% or 0.01".to_owned()),
        }
    }
}

impl fmt::Display for Share {
    /// Formats a percentage with enough digits to distinguish 99.95 % from 100 %, and 1.001 % from
    /// 1 %.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100.0 * self.0;
        let is_told = |decimals: usize| {
            let shown: f64 = format!("{percent:.decimals$}").parse().unwrap_or(percent);
            // The error is relative to the distance from 0 % or 100 %, whichever is nearer.
            (shown - percent).abs() <= 5e-4 * percent.min(100.0 - percent)
        };
        let decimals = (0..6).find(|&decimals| is_told(decimals)).unwrap_or(6);
        write!(f, "{percent:.decimals$} %")
    }
}

/// Formats a number with commas between groups of three digits: `1234567` becomes `1,234,567`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun in singular or plural: `1 rank`, `2 ranks`, `1,234 processes`.
#[must_use]
pub fn counted(value: u64, noun: &str) -> String {
    let noun = if value == 1 { noun.to_owned() } else { plural(noun) };
    format!("{} {noun}", count(value))
}

/// Returns the plural of an English noun: `ranks`, `processes`, `launches`, `copies`. In a phrase
/// with `of`, the word before it takes the plural: `pieces of work`.
#[must_use]
pub fn plural(noun: &str) -> String {
    if let Some((head, rest)) = noun.split_once(" of ") {
        return format!("{} of {rest}", plural(head));
    }
    let is_vowel = |letter: char| "aeiou".contains(letter);
    match noun.strip_suffix('y') {
        Some(stem) if !stem.ends_with(is_vowel) => format!("{stem}ies"),
        _ if noun.ends_with(['s', 'x']) || noun.ends_with("ch") || noun.ends_with("sh") => {
            format!("{noun}es")
        }
        _ => format!("{noun}s"),
    }
}

/// Joins names with commas, and cuts the text where it would make a message too long. Files of a
/// wrong format can have thousands of columns with arbitrary names.
#[must_use]
pub fn listed(names: &[String]) -> String {
    const SHOWN: usize = 400;
    let mut text = String::new();
    let mut length = 0;
    for (at, name) in names.iter().enumerate() {
        let separator = if at == 0 { "" } else { ", " };
        for letter in separator.chars().chain(name.chars()) {
            if length == SHOWN {
                text += &format!("… ({} in all)", count(names.len() as u64));
                return text;
            }
            // Names from a binary file may contain control characters, which a terminal would
            // interpret.
            if letter.is_control() {
                text.extend(letter.escape_default());
            } else {
                text.push(letter);
            }
            length += 1;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Share};

    #[test]
    fn shares_are_read_and_shown_in_per_cent() {
        let read = |text: &str| text.parse::<Share>();
        assert_eq!(read("1%"), read("0.01"));
        assert_eq!([read("0"), read("100 %")], [Ok(Share(0.0)), Ok(Share(1.0))]);
        for wrong in ["1", "2", "-1%", "101%", "nan", "%", "x", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let shown = [(0, 1), (1, 100), (1, 3), (19_990, 20_000), (1_001, 100_000), (5, 5), (0, 0)];
        let shown = shown.map(|(part, whole)| Share::from_parts(part, whole).to_string());
        assert_eq!(shown, ["0 %", "1 %", "33.33 %", "99.95 %", "1.001 %", "100 %", "0 %"]);
    }

    #[test]
    fn bytes_read_in_binary_units() {
        let shown: Vec<String> =
            [0, 1023, 1024, 1 << 20, 104_583_479_296].map(|b| Bytes(b).to_string()).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "97.4 GiB"]);
    }
}
