//! The limit on malformed rows, and the decision to stop early when it can no longer be met.
//!
//! # The rule
//! All inputs of a request count together. Reading fails if more than the allowed share of their
//! rows is malformed. A single malformed row is always accepted unless none is allowed, because an
//! unexpected header or a cut line at the end of a file says nothing about the other rows.
//!
//! Reading stops early only if the rest cannot bring the share down to the limit, even if it
//! consisted entirely of valid rows of the shortest possible length. The uncompressed length of a
//! compressed rest is unknown and assumed to be twice what the bytes read so far suggest. A bad
//! beginning alone is never an error.

use schema::Share;

use crate::error::Error;
use crate::loss::Losses;

/// Number of malformed rows from which on reading may stop early. With fewer, the inputs are read
/// to the end, and the message has the final numbers.
const EARLY_STOP_FROM: u64 = 100_000;
/// Safety factor for the length of the unread rest where that length is unknown.
const SLACK: f64 = 2.0;

/// The treatment of malformed records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strictness {
    /// Malformed records are counted and skipped, up to this share of all rows.
    AtMost(Share),
    /// The first malformed record is an error.
    Stop,
}

impl Strictness {
    /// The allowed share of malformed rows unless the user sets another.
    pub const DEFAULT_MAX: Share = Share(0.01);

    /// Accepts any number of malformed records.
    pub const ANY: Self = Self::AtMost(Share(1.0));

    fn max(self) -> Share {
        match self {
            Self::AtMost(max) => max,
            Self::Stop => Share(0.0),
        }
    }

    /// Fails if more rows are malformed than allowed, given `rows` valid ones.
    ///
    /// # Errors
    /// Returns [`Error::TooManyMalformed`] with the share and examples.
    pub fn check(self, rows: u64, losses: &Losses) -> Result<(), Error> {
        if self.allows(losses.malformed_lines, rows as f64) {
            return Ok(());
        }
        Err(self.too_many(rows, losses, None))
    }

    fn allows(self, malformed: u64, good: f64) -> bool {
        let max = self.max().0;
        // In a small file, a single malformed row would exceed every share.
        let single = malformed == 1 && max > 0.0;
        single || malformed as f64 <= max * (malformed as f64 + good)
    }

    fn too_many(self, rows: u64, losses: &Losses, read: Option<Share>) -> Error {
        Error::TooManyMalformed { rows, losses: Box::new(losses.clone()), max: self.max(), read }
    }
}

/// Progress of reading at the end of a block, from which the rest is estimated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadProgress {
    /// Bytes read from all inputs so far.
    pub bytes: u64,
    /// Bytes of all inputs; 0 if unknown.
    pub bytes_total: u64,
    /// Bytes of decompressed text in the blocks so far; 0 for binary formats.
    pub text: u64,
    /// Shortest possible row of text, in bytes.
    pub row_bytes_least: u64,
}

impl ReadProgress {
    /// Estimates the largest number of rows still to come; `None` if unknown.
    fn rows_left(&self, rows: u64) -> Option<f64> {
        if self.bytes_total == 0 || self.bytes == 0 {
            return None;
        }
        let left = self.bytes_total.saturating_sub(self.bytes) as f64;
        let per_byte = |count: u64| count as f64 / self.bytes as f64;
        if self.text == 0 {
            // Binary formats have no minimum length of a row, so the rows so far are extrapolated.
            return Some(left * per_byte(rows) * SLACK);
        }
        // Bytes that were read ahead are not counted as text yet, so this ratio is at most 1 for
        // plain text.
        let unpacked = match per_byte(self.text) {
            packed if packed > 1.0 => left * packed * SLACK,
            _ => left + (self.bytes.saturating_sub(self.text)) as f64,
        };
        Some(unpacked / self.row_bytes_least.max(1) as f64)
    }
}

/// Fails if the limit can no longer be met after `rows` valid rows and `losses`.
pub(crate) fn check_early(
    strictness: Strictness,
    rows: u64,
    losses: &Losses,
    progress: &ReadProgress,
) -> Result<(), Error> {
    let malformed = losses.malformed_lines;
    // With few malformed rows, reading to the end costs little and gives the exact numbers.
    if malformed < EARLY_STOP_FROM {
        return Ok(());
    }
    match progress.rows_left(rows + malformed) {
        Some(left) if !strictness.allows(malformed, rows as f64 + left) => {
            let read = Share::from_parts(progress.bytes, progress.bytes_total);
            Err(strictness.too_many(rows, losses, Some(read)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadProgress, Share, Strictness, check_early};
    use crate::loss::Losses;

    fn lost(malformed_lines: u64) -> Losses {
        Losses { malformed_lines, ..Losses::default() }
    }

    #[test]
    fn one_percent_or_one_row_may_be_malformed() {
        let strictness = Strictness::AtMost(Strictness::DEFAULT_MAX);
        let allowed = |good, bad| strictness.check(good, &lost(bad)).is_ok();
        assert!(allowed(99, 1) && allowed(1, 1) && allowed(19_800, 200));
        assert!(!allowed(19_799, 201) && !allowed(48, 2) && !allowed(0, 2));
        assert!(Strictness::ANY.check(1, &lost(1 << 40)).is_ok());
        let none = Strictness::AtMost(Share(0.0));
        assert!(none.check(5, &lost(0)).is_ok() && none.check(1 << 40, &lost(1)).is_err());
    }

    /// The inputs have malformed rows of 250 bytes from the start, and a row has at least 40 bytes.
    #[test]
    fn reading_stops_once_the_rest_cannot_meet_the_limit() {
        let strictness = Strictness::AtMost(Strictness::DEFAULT_MAX);
        let stops = |bad: u64, bytes_total, text_per_byte| {
            let text = bad * 250;
            let bytes = text / text_per_byte;
            let progress = ReadProgress { bytes, bytes_total, text, row_bytes_least: 40 };
            check_early(strictness, 0, &lost(bad), &progress).is_err()
        };
        let plain = 45_000_000_000;
        assert!(!stops(1_000_000, plain, 1), "the rest may have 1,100 million rows");
        assert!(stops(12_000_000, plain, 1));
        assert!(!stops(12_000_000, plain, 3) && stops(80_000_000, plain, 3));
        assert!(!stops(99_999, 25_000_000, 1), "read to the end");
        assert!(!stops(1 << 40, 0, 1), "the length of standard input is unknown");
    }
}
