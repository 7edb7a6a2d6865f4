//! Estimates the hit rate of lookups in an LRU cache by Che's approximation.
//!
//! A row is assumed to stay in the cache for the number of lookups that touch as many distinct rows
//! as the cache holds. The first use of a row is a miss.

use schema::IndexDistribution;
use schema::distribution::ReuseHistogram;

/// How often the rows of a table are used, as classes of equally popular rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Popularity {
    /// Number of rows in each class, and the share of lookups that each single row of the class
    /// gets.
    classes: Vec<(f64, f64)>,
    draws: Draws,
}

/// How the uses of a row are distributed over a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Draws {
    /// Each lookup draws a row at random, with the row's share as its probability.
    Independent,
    /// A row is used exactly as often as its share implies, at random places of the batch.
    Counted,
}

impl Popularity {
    /// Computes the popularity of the rows of a table from the distribution of its ids.
    #[must_use]
    pub fn from_distribution(ids: &IndexDistribution, rows: u64) -> Self {
        match ids {
            IndexDistribution::Uniform => Self::uniform(rows),
            IndexDistribution::Zipf { exponent } => Self::zipf(rows, *exponent),
            IndexDistribution::Reuse(histogram) => Self::reuse(histogram),
        }
    }

    /// Returns the popularity within a random subset of the rows, such as a row shard.
    #[must_use]
    pub fn part(&self, share: f64) -> Self {
        let classes = self.classes.iter().map(|(rows, of_row)| (rows * share, of_row / share));
        Self { classes: classes.collect(), draws: self.draws }
    }

    /// Returns the share of lookups that select the most popular row.
    #[must_use]
    pub fn hottest(&self) -> f64 {
        self.classes.iter().map(|class| class.1).fold(0.0, f64::max).min(1.0)
    }

    /// Returns the row count of each class and the share of lookups per row.
    pub(super) fn classes(&self) -> &[(f64, f64)] {
        &self.classes
    }

    /// Creates a popularity in which all rows are equally likely.
    #[must_use]
    pub fn uniform(rows: u64) -> Self {
        Self { classes: vec![(rows as f64, 1.0 / rows as f64)], draws: Draws::Independent }
    }

    /// Creates a Zipf popularity: the row of rank `r` is used in proportion to `r^-exponent`.
    #[must_use]
    pub fn zipf(rows: u64, exponent: f64) -> Self {
        let mut classes: Vec<(f64, f64)> = Vec::new();
        let mut first = 1u64;
        while first <= rows {
            // A class spans a sixteenth of its first rank, so shares differ little within it.
            let end = (first + first.div_ceil(16)).min(rows + 1);
            let count = (end - first) as f64;
            let middle = (first as f64 * (end - 1) as f64).sqrt();
            classes.push((count, middle.powf(-exponent)));
            first = end;
        }
        let all: f64 = classes.iter().map(|(rows, share)| rows * share).sum();
        classes.iter_mut().for_each(|class| class.1 /= all);
        Self { classes, draws: Draws::Independent }
    }

    /// Creates a popularity from a measured reuse histogram, for any number of lookups.
    #[must_use]
    pub fn reuse(histogram: &ReuseHistogram) -> Self {
        let uses = histogram.uses as f64;
        let class = |at: usize| {
            let per_row = histogram.uses_per_row[at];
            (uses * histogram.use_shares[at] / per_row.max(1.0), per_row / uses)
        };
        let classes = (0..histogram.uses_per_row.len())
            .map(class)
            .filter(|class| class.0 > 0.0 && class.1 > 0.0);
        Self { classes: classes.collect(), draws: Draws::Counted }
    }

    /// Returns the expected number of distinct rows that `lookups` lookups use.
    #[must_use]
    pub fn rows_used(&self, lookups: f64) -> f64 {
        self.rows_used_within(lookups, lookups)
    }

    /// Returns the expected number of distinct rows within a stretch of the lookups.
    fn rows_used_within(&self, stretch: f64, lookups: f64) -> f64 {
        self.classes.iter().map(|(rows, share)| rows * self.used(*share, stretch, lookups)).sum()
    }

    /// Returns the probability that a row is used within a stretch of the lookups.
    fn used(&self, share: f64, stretch: f64, lookups: f64) -> f64 {
        match self.draws {
            Draws::Independent => -(-share * stretch).exp_m1(),
            Draws::Counted => 1.0 - (1.0 - stretch / lookups).max(0.0).powf(share * lookups),
        }
    }

    /// Returns the share of `lookups` that hit if each row stays for `stays` lookups after its use.
    fn hits_within(&self, stays: f64, lookups: f64) -> f64 {
        let hits = |&(rows, share): &(f64, f64)| {
            let used = self.used(share, stays, lookups);
            rows * match self.draws {
                // Count the hits before the row is first evicted, and then the hits of all later
                // lookups.
                Draws::Independent => share * (stays - used / share + (lookups - stays) * used),
                // Every use but the first one hits if the previous use is recent enough.
                Draws::Counted => (share * lookups - 1.0).max(0.0) * used,
            }
        };
        (self.classes.iter().map(hits).sum::<f64>() / lookups).clamp(0.0, 1.0)
    }
}

/// Number of sampled points of a [`HitCurve`].
const POINTS: usize = 24;

/// Hit rate as a function of cache size for one number of lookups, sampled for repeated queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitCurve {
    /// Numbers of cached rows and their hit rates, both in ascending order.
    points: [(f64, f64); POINTS],
}

impl HitCurve {
    /// Samples the curve at residence times that halve from point to point.
    #[must_use]
    pub fn new(popularity: &Popularity, lookups: f64) -> Self {
        let mut points = [(0.0, 0.0); POINTS];
        if lookups > 0.0 {
            let mut stays = lookups;
            for point in points.iter_mut().rev() {
                let rows = popularity.rows_used_within(stays, lookups);
                *point = (rows, popularity.hits_within(stays, lookups));
                stays /= 2.0;
            }
        }
        Self { points }
    }

    /// Interpolates the hit rate with `cached_rows` rows in the cache.
    #[must_use]
    pub fn at(&self, cached_rows: f64) -> f64 {
        let at = self.points.partition_point(|point| point.0 <= cached_rows);
        let before = at.checked_sub(1).map_or((0.0, 0.0), |last| self.points[last]);
        let Some(after) = self.points.get(at) else { return before.1 };
        let within = (cached_rows - before.0) / (after.0 - before.0);
        before.1 + within * (after.1 - before.1)
    }
}
