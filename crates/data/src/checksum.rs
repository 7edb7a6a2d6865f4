//! XXH3 checksums as JSON files store them, and JSON texts that carry their own checksum ("sealed"
//! texts). This module does not read files or interpret the texts.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

/// An XXH3-64 value. The value is shown and saved as sixteen hexadecimal digits, because JSON
/// readers that keep numbers as f64 would round it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub u64);

/// An XXH3-128 value that identifies a content. Two contents with the same fingerprint are taken to
/// be equal. The value is shown and saved as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub u128);

const DIGITS: usize = 16;

impl Checksum {
    /// Computes the XXH3-64 checksum of `bytes`.
    #[must_use]
    pub fn compute(bytes: &[u8]) -> Self {
        Self(xxh3_64(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = u64::from_str_radix(text, 16).map(Self);
        match value {
            // Only the canonical spelling is accepted, so that damage to the digits is detected
            // too.
            Ok(checksum) if checksum.to_string() == text => Ok(checksum),
            _ => Err(format!("expected a checksum of 16 hexadecimal digits, got {text:?}")),
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = u128::from_str_radix(text, 16).map(Self);
        match value {
            Ok(fingerprint) if fingerprint.to_string() == text => Ok(fingerprint),
            _ => Err(format!("expected a fingerprint of 32 hexadecimal digits, got {text:?}")),
        }
    }
}

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(Error::custom)
    }
}

/// Result of comparing a sealed text with the checksum it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    Whole,
    /// The text does not begin with a checksum.
    Absent,
    Broken {
        expected: Checksum,
        got: Checksum,
    },
}

/// Serializes `content`, a JSON object, as one line whose first field is the checksum of the line.
/// The checksum is computed with sixteen zeros in the place of its digits.
///
/// # Errors
/// Returns an error if `content` cannot be serialized as JSON.
pub fn sealed(content: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    /// The serialized form of a sealed object, in which the checksum precedes all other fields.
    #[derive(serde::Serialize)]
    struct Sealed<'a, T> {
        checksum: Checksum,
        #[serde(flatten)]
        content: &'a T,
    }
    let mut text = serde_json::to_vec(&Sealed { checksum: Checksum(0), content })?;
    text.push(b'\n');
    fill(&mut text);
    Ok(text)
}

/// Computes the checksum of `text` and writes it into the first field, `checksum`, whose digits
/// must be zeros.
pub fn fill(text: &mut [u8]) {
    let checksum = Checksum::compute(text).to_string();
    if let Some((_, digits)) = stated(text) {
        text[digits].copy_from_slice(checksum.as_bytes());
    }
}

/// Compares a text with the checksum in its first field. Texts without that field are reported as
/// [`Seal::Absent`], so that callers can accept older files.
#[must_use]
pub fn check(text: &[u8]) -> Seal {
    let Some((expected, digits)) = stated(text) else { return Seal::Absent };
    let mut hash = Xxh3Default::new();
    hash.update(&text[..digits.start]);
    hash.update(&[b'0'; DIGITS]);
    hash.update(&text[digits.end..]);
    let got = Checksum(hash.digest());
    if got == expected { Seal::Whole } else { Seal::Broken { expected, got } }
}

/// Finds the checksum in the first field of a JSON object, and the range of its digits.
fn stated(text: &[u8]) -> Option<(Checksum, Range<usize>)> {
    const KEY: &[u8] = b"\"checksum\":";
    let start = text.iter().position(|&byte| byte == b'"')?;
    let rest = text[start..].strip_prefix(KEY)?.trim_ascii_start().strip_prefix(b"\"")?;
    let start = text.len() - rest.len();
    let digits = rest.get(..DIGITS).filter(|_| rest.get(DIGITS) == Some(&b'"'))?;
    let checksum = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((checksum, start..start + DIGITS))
}

#[cfg(test)]
mod tests {
    use super::{Seal, check, sealed};

    #[test]
    fn every_flipped_bit_of_a_sealed_text_is_detected() {
        let text = sealed(&serde_json::json!({"version": 2, "mean": 0.25})).unwrap();
        assert_eq!(check(&text), Seal::Whole);
        let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(value["mean"], 0.25);
        for bit in 0..8 * text.len() {
            let mut damaged = text.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(check(&damaged), Seal::Whole, "bit {bit}");
        }
        assert_ne!(check(&text[..text.len() - 1]), Seal::Whole);
    }

    #[test]
    fn a_pretty_text_is_sealed_as_well() {
        let mut text = b"{\n  \"checksum\": \"0000000000000000\",\n  \"a\": 1\n}\n".to_vec();
        super::fill(&mut text);
        assert_eq!(check(&text), Seal::Whole);
        assert_eq!(check(b"{\"a\": 1}"), Seal::Absent);
    }
}
