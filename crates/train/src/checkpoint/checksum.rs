//! XXH3-64 as it is written in manifests: sixteen hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

/// An XXH3-64 value. Shown and saved as sixteen hexadecimal digits: JSON readers that keep numbers
/// as f64 would round it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum(pub u64);

impl Checksum {
    /// Of some bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(bytes))
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
            Ok(checksum) if checksum.to_string() == text => Ok(checksum),
            _ => Err(format!("expected a checksum of 16 hexadecimal digits, got {text:?}")),
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
