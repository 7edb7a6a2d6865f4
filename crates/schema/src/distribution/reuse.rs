//! Histograms of the number of uses per row in a batch. The histograms have 17 classes of rows,
//! like the statistics that Meta published for its tables (`dlrm_datasets`).

use serde::{Deserialize, Serialize};

use crate::random::{CounterRng, mix};

/// Number of classes. The class of a row follows from its number of uses: 1, 2, 3–4, 5–8, … and
/// above 32,768.
pub const CLASSES: usize = 17;

/// The rows of a batch, classified by their number of uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReuseHistogram {
    /// Number of uses, which are looked-up ids, in a batch over all tables.
    pub uses: u64,
    /// Share of all uses that falls on the rows of each class.
    pub use_shares: [f64; CLASSES],
    /// Mean number of uses per row in each class. The mean lies within the bounds of its class.
    pub uses_per_row: [f64; CLASSES],
}

/// Error of a text that is not a valid reuse histogram.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReuseError {
    /// The text does not contain any section of statistics.
    #[error(
        "expected locality statistics as dlrm_datasets publishes them, sections of a name and then \
         a line \"Locality stats …\"; got {got}"
    )]
    Format {
        /// Description of what the text contains instead.
        got: &'static str,
    },
    /// The text has no section with the requested name.
    #[error("no section {name:?}; there are {known}")]
    NoSection { name: String, known: String },
    /// A section is incomplete or invalid.
    #[error("section {section:?}: expected {expected}")]
    Section {
        section: String,
        /// Description of the part that is missing or invalid.
        expected: &'static str,
    },
}

impl ReuseHistogram {
    /// Parses the section `name` of a published text, or its first section if `name` is `None`.
    ///
    /// # Errors
    /// Returns a [`ReuseError`] that describes the missing or invalid part.
    pub fn parse(text: &str, name: Option<&str>) -> Result<Self, ReuseError> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let starts: Vec<usize> = (1..lines.len())
            .filter(|&at| lines[at].starts_with("Locality stats"))
            .map(|at| at - 1)
            .collect();
        if starts.is_empty() {
            let empty = text.trim().is_empty();
            return Err(ReuseError::Format { got: if empty { "no text" } else { "other text" } });
        }
        let start = match name {
            None => 0,
            Some(name) => starts.iter().position(|&at| lines[at] == name).ok_or_else(|| {
                let known: Vec<&str> = starts.iter().map(|&at| lines[at]).collect();
                ReuseError::NoSection { name: name.to_owned(), known: known.join(", ") }
            })?,
        };
        let end = starts.get(start + 1).copied().unwrap_or(lines.len());
        let section = &lines[starts[start]..end];
        Self::from_section(section)
            .map_err(|expected| ReuseError::Section { section: section[0].to_owned(), expected })
    }

    fn from_section(lines: &[&str]) -> Result<Self, &'static str> {
        let number = |label: &str| -> Option<u64> {
            lines.iter().find_map(|line| line.strip_prefix(label)?.trim().parse().ok())
        };
        let uses = number("Avg # of indices:").filter(|&uses| uses > 0);
        let uses = uses.ok_or("\"Avg # of indices:\" above 0")?;
        let rows = number("Avg # of unique cols:").filter(|&rows| rows > 0);
        let rows = rows.ok_or("\"Avg # of unique cols:\" above 0")?;
        let row_shares = shares(lines, "Histogram of col sizes:")?;
        let use_shares = shares(lines, "Ratio of index distribution")?;
        let total: f64 = use_shares.iter().sum();
        if !(0.9..1.1).contains(&total) {
            return Err("ratios that add up to 1");
        }
        let mut uses_per_row = [1.0; CLASSES];
        for (class, mean) in uses_per_row.iter_mut().enumerate() {
            let (least, most) = bounds(class);
            // The published shares have three digits, which is too imprecise to divide by the share
            // of a class with under 1 % of the rows. A class of so few rows gets the mean of a 1/x
            // distribution.
            *mean = if row_shares[class] >= 0.01 {
                use_shares[class] / row_shares[class] * uses as f64 / rows as f64
            } else {
                f64::from(1u32 << class) * std::f64::consts::LOG2_E / 2.0
            };
            *mean = mean.clamp(least, most);
        }
        Ok(Self { uses, use_shares: use_shares.map(|share| share / total), uses_per_row })
    }

    /// Applies the histogram to a table of `rows` rows, which determines how often each row is
    /// used.
    #[must_use]
    pub fn on(&self, rows: u64) -> ReusedRows {
        let rows_per_use: f64 =
            self.use_shares.iter().zip(&self.uses_per_row).map(|(share, mean)| share / mean).sum();
        // A window of this many uses needs all rows of the table; a larger window would need rows
        // that do not exist.
        let window = (rows as f64 / rows_per_use) as u64;
        let window = window.clamp(1, self.uses.max(1));
        let mut classes = Vec::with_capacity(CLASSES);
        let (mut use_end, mut row, mut share) = (0, 0, 0.0);
        for class in (0..CLASSES).rev() {
            share += self.use_shares[class];
            let first_use = use_end;
            // The last class takes the uses that rounding left over, so that the classes cover the
            // window.
            use_end = if class == 0 { window } else { (share * window as f64).round() as u64 };
            use_end = use_end.clamp(first_use, window);
            let uses_per_row = self.uses_per_row[class];
            classes.push(ReuseClass { first_use, first_row: row, uses_per_row });
            row += ((use_end - first_use) as f64 / uses_per_row).ceil() as u64;
        }
        ReusedRows { rows, window, classes }
    }
}

/// Returns the minimum and maximum uses of a row in a class.
fn bounds(class: usize) -> (f64, f64) {
    let most = f64::from(1u32 << class);
    match class {
        0 => (1.0, 1.0),
        // The last class has no upper bound, so a factor of eight is assumed to keep its mean
        // finite.
        _ if class == CLASSES - 1 => (most / 2.0 + 1.0, most * 8.0),
        _ => (most / 2.0 + 1.0, most),
    }
}

fn shares(lines: &[&str], title: &str) -> Result<[f64; CLASSES], &'static str> {
    let at = lines.iter().position(|line| line.starts_with(title));
    let at = at.ok_or("\"Histogram of col sizes:\" and \"Ratio of index distribution …:\"")?;
    let mut shares = [0.0; CLASSES];
    for (class, share) in shares.iter_mut().enumerate() {
        let value = lines.get(at + 1 + class).and_then(|line| line.rsplit_once(':'));
        let value: Option<f64> = value.and_then(|(_, value)| value.trim().parse().ok());
        *share = value.filter(|v| (0.0..=1.0).contains(v)).ok_or("17 shares from 0 to 1")?;
    }
    Ok(shares)
}

/// A histogram applied to the rows of one table. In every window of uses, each row is used as often
/// as its class prescribes. Rows are ranked by their number of uses, highest first.
#[derive(Clone, Debug, PartialEq)]
pub struct ReusedRows {
    rows: u64,
    window: u64,
    /// Classes from the most used rows to the rows that are used once.
    classes: Vec<ReuseClass>,
}

/// Consecutive rows that are used equally often, with the index of their first use and of their
/// first row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ReuseClass {
    first_use: u64,
    first_row: u64,
    uses_per_row: f64,
}

impl ReusedRows {
    /// Returns the number of uses in one window. The window has as many uses as the histogram's
    /// batch, or less if the table has too few rows for it.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Returns the frequency rank of the row that use `number` of a stream looks up. Each window of
    /// the stream is a separate random permutation of the same uses.
    ///
    /// # Cost
    /// A call takes about 20 ns. The result depends only on `number` and `rng`, so any part of a
    /// stream can be generated independently.
    #[must_use]
    pub fn rank(&self, number: u64, rng: CounterRng) -> u64 {
        let order = rng.child(number / self.window);
        self.rank_of_use(permuted(number % self.window, self.window, order))
    }

    /// Returns the frequency rank at the quantile `u` in `[0, 1)`.
    #[must_use]
    pub fn rank_at(&self, u: f64) -> u64 {
        self.rank_of_use(((u * self.window as f64) as u64).min(self.window - 1))
    }

    fn rank_of_use(&self, at: u64) -> u64 {
        let class = self.classes.partition_point(|class| class.first_use <= at) - 1;
        let ReuseClass { first_use, first_row, uses_per_row } = self.classes[class];
        let row = first_row + ((at - first_use) as f64 / uses_per_row) as u64;
        row.min(self.rows - 1)
    }

    /// Returns the share of all uses that falls on the row with this frequency rank.
    #[must_use]
    pub fn share(&self, rank: u64) -> f64 {
        let window = self.window as f64;
        // The last row takes the remaining uses, so that the shares of all rows sum to 1.
        let end = if rank + 1 < self.rows { self.first_use_of(rank + 1) } else { window };
        (end - self.first_use_of(rank)) / window
    }

    fn first_use_of(&self, row: u64) -> f64 {
        let class = self.classes.partition_point(|class| class.first_row <= row) - 1;
        let end = self.classes.get(class + 1).map_or(self.window, |next| next.first_use);
        let ReuseClass { first_use, first_row, uses_per_row } = self.classes[class];
        (first_use as f64 + (row - first_row) as f64 * uses_per_row).min(end as f64)
    }
}

/// Applies a random permutation of `0..size` to `at`. A Feistel network permutes the next even
/// number of bits, and is repeated until the result is in range, at most four times on average.
fn permuted(mut at: u64, size: u64, rng: CounterRng) -> u64 {
    const ROUNDS: u64 = 4;
    let half = (64 - (size - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ mix(right ^ rng.bits(round)) & mask);
        }
        at = left << half | right;
        if at < size {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, ReuseHistogram, permuted};
    use crate::random::CounterRng;

    const TEXT: &str = include_str!("reuse/example.txt");

    #[test]
    fn permutation_is_a_bijection() {
        for size in [1, 2, 3, 64, 65, 1000] {
            let rng = CounterRng::new(size, 1);
            let mut places: Vec<u64> = (0..size).map(|at| permuted(at, size, rng)).collect();
            assert!(size < 64 || places.windows(2).any(|pair| pair[0] > pair[1]));
            places.sort_unstable();
            assert!(places.into_iter().eq(0..size));
        }
    }

    /// Computes the shares of the uses in one window by the class of the used row.
    fn drawn(histogram: &ReuseHistogram, rows: u64, window: u64) -> [f64; CLASSES] {
        let reused = histogram.on(rows);
        let length = reused.window();
        let mut counts = vec![0u64; rows as usize];
        for number in window * length..(window + 1) * length {
            counts[reused.rank(number, CounterRng::new(5, 1)) as usize] += 1;
        }
        let mut shares = [0.0; CLASSES];
        for &count in counts.iter().filter(|&&count| count > 0) {
            let class = (64 - (count - 1).leading_zeros()).min(CLASSES as u32 - 1);
            shares[class as usize] += count as f64 / length as f64;
        }
        shares
    }

    #[test]
    fn every_window_matches_the_histogram() {
        let histogram = ReuseHistogram::parse(TEXT, None).unwrap();
        for window in [0, 3] {
            let got = drawn(&histogram, 1_000_000, window);
            for (class, (got, expected)) in got.iter().zip(histogram.use_shares).enumerate() {
                // The number of rows per class is rounded up, so shares differ slightly from the
                // histogram.
                assert!((got - expected).abs() < 0.012, "class {class}: {got} for {expected}");
            }
            let distance: f64 =
                got.iter().zip(histogram.use_shares).map(|(a, b)| (a - b).abs()).sum();
            assert!(distance < 0.04, "{distance}");
        }
    }

    #[test]
    fn small_tables_stay_in_range_and_shares_sum_to_one() {
        let histogram = ReuseHistogram::parse(TEXT, None).unwrap();
        for rows in [1, 2, 3, 100, 5000] {
            let reused = histogram.on(rows);
            let rng = CounterRng::new(1, 1);
            let uses = 3 * reused.window().min(100_000);
            assert!((0..uses).all(|number| reused.rank(number, rng) < rows));
            let total: f64 = (0..rows).map(|rank| reused.share(rank)).sum();
            assert!((total - 1.0).abs() < 1e-9, "{rows} rows: {total}");
        }
    }

    #[test]
    fn sections_are_found_by_name_and_defects_are_errors() {
        let second = ReuseHistogram::parse(TEXT, Some("second.pt")).unwrap();
        assert_eq!(second.uses, 500);
        let said = |text: &str, name| ReuseHistogram::parse(text, name).unwrap_err().to_string();
        assert_eq!(
            said(TEXT, Some("third.pt")),
            "no section \"third.pt\"; there are first.pt, second.pt"
        );
        let cut = TEXT.replace("(4, 8]: 0.112", "(4, 8]: many");
        assert_eq!(said(&cut, None), "section \"first.pt\": expected 17 shares from 0 to 1");
        for (text, got) in
            [("", "; got no text"), (" \n", "; got no text"), ("a", "; got other text")]
        {
            let said = said(text, Some("first.pt"));
            assert!(
                said.starts_with("expected locality statistics") && said.ends_with(got),
                "{said}"
            );
        }
    }
}
