//! Newtypes for the quantities that must not be mixed up: ranks, tables, bytes and nanoseconds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A participant of the training job, `0..world_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into per-rank arrays.
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
    /// The table as an index into [`crate::ModelConfig::tables`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Integer nanoseconds: a point on a trace's clock or a duration, by context.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub i64);

/// An amount of memory or traffic; displays in binary units.
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

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn bytes_read_in_binary_units() {
        let shown: Vec<String> =
            [0, 1023, 1024, 1 << 20, 104_583_479_296].map(|b| Bytes(b).to_string()).into();
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "97.4 GiB"]);
    }
}
