//! How many malformed rows an input may have, and how early it is known that there are too many.
//!
//! # The rule
//! All inputs of a request count together. More than the allowed share of their rows is an error;
//! a single malformed row never is, unless none is allowed: a header that nobody expected, or the
//! half line at the end of a file, says nothing of the others.
//!
//! Reading stops before the end only where the rest cannot bring the share down any more, even if
//! every byte of it belonged to a good row, and those rows were as short as they can be. How long a
//! compressed rest is nobody knows: it is taken to be twice what its bytes gave so progress. A bad
//! beginning alone refuses nothing.

use schema::Share;

use crate::error::Error;
use crate::loss::Losses;

/// Malformed rows from which on the end may be foretold: fewer are read to the end at once, and the
/// message then has the final numbers.
const FORETOLD_FROM: u64 = 100_000;
/// How much longer the rest may be than what was read says, where its length is not known.
const SLACK: f64 = 2.0;

/// What a malformed record does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strictness {
    /// It is counted and skipped, unless they are more than this share of all rows.
    AtMost(Share),
    /// It ends the reading with an error.
    Stop,
}

impl Strictness {
    /// The share of rows that may be malformed where nothing else was said.
    pub const DEFAULT_MAX: Share = Share(0.01);

    /// Counts and skips without a limit.
    pub const ANY: Self = Self::AtMost(Share(1.0));

    fn max(self) -> Share {
        match self {
            Self::AtMost(max) => max,
            Self::Stop => Share(0.0),
        }
    }

    /// Refuses more malformed rows than are allowed among them and `rows` good ones.
    ///
    /// # Errors
    /// [`Error::TooManyMalformed`].
    pub fn check(self, rows: u64, losses: &Losses) -> Result<(), Error> {
        if self.allows(losses.malformed_lines, rows as f64) {
            return Ok(());
        }
        Err(self.too_many(rows, losses, None))
    }

    fn allows(self, malformed: u64, good: f64) -> bool {
        let max = self.max().0;
        let single = malformed == 1 && max > 0.0;
        single || malformed as f64 <= max * (malformed as f64 + good)
    }

    fn too_many(self, rows: u64, losses: &Losses, read: Option<Share>) -> Error {
        Error::TooManyMalformed { rows, losses: Box::new(losses.clone()), max: self.max(), read }
    }
}

/// How far reading has come when a block ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadProgress {
    /// Bytes of the inputs taken so far, of all of them.
    pub bytes: u64,
    /// Bytes of all inputs; 0 where unknown.
    pub bytes_total: u64,
    /// Bytes of decompressed text in the blocks so far; 0 where rows are no text.
    pub text: u64,
    /// The least bytes a row of text can have.
    pub row_bytes_least: u64,
}

impl ReadProgress {
    /// The most rows that can still come; `None` if unknown.
    fn rows_left(&self, rows: u64) -> Option<f64> {
        if self.bytes_total == 0 || self.bytes == 0 {
            return None;
        }
        let left = self.bytes_total.saturating_sub(self.bytes) as f64;
        let per_byte = |count: u64| count as f64 / self.bytes as f64;
        if self.text == 0 {
            return Some(left * per_byte(rows) * SLACK);
        }
        // What was read ahead makes plain text look shorter than its bytes.
        let unpacked = match per_byte(self.text) {
            packed if packed > 1.0 => left * packed * SLACK,
            _ => left + (self.bytes.saturating_sub(self.text)) as f64,
        };
        Some(unpacked / self.row_bytes_least.max(1) as f64)
    }
}

/// Refuses what can no longer meet the limit, `rows` good ones and `losses` into reading.
pub(crate) fn check_early(
    strictness: Strictness,
    rows: u64,
    losses: &Losses,
    progress: &ReadProgress,
) -> Result<(), Error> {
    let malformed = losses.malformed_lines;
    if malformed < FORETOLD_FROM {
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
    fn one_row_in_a_hundred_may_be_malformed_and_one_row_always() {
        let strictness = Strictness::AtMost(Strictness::DEFAULT_MAX);
        let allowed = |good, bad| strictness.check(good, &lost(bad)).is_ok();
        assert!(allowed(99, 1) && allowed(1, 1) && allowed(19_800, 200));
        assert!(!allowed(19_799, 201) && !allowed(48, 2) && !allowed(0, 2));
        assert!(Strictness::ANY.check(1, &lost(1 << 40)).is_ok());
        let none = Strictness::AtMost(Share(0.0));
        assert!(none.check(5, &lost(0)).is_ok() && none.check(1 << 40, &lost(1)).is_err());
    }

    /// Bad rows of 250 bytes from the beginning; a row has 40 bytes at least.
    #[test]
    fn a_bad_beginning_is_refused_once_the_rest_cannot_make_up_for_it() {
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
        assert!(!stops(1 << 40, 0, 1), "of standard input nothing is known");
    }
}
