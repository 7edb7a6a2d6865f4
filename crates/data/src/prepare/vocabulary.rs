//! Counting categories for exact ids: in memory while they fit, beyond it in sorted runs on disk.
//!
//! The result is the same either way: the categories seen at least `threshold` times in the order
//! of their first appearance.
//!
//! # Cost
//! In memory some 50 bytes per distinct category. What exceeds the limit is sorted by category and
//! written, 24 bytes for each category that differs within what fits at once; a merge adds the
//! counts up, and those kept are sorted by first appearance, on disk again where they do not fit.
//! The finished vocabulary is held in memory, 8 bytes per category and as many for its index.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::path::{Path, PathBuf};

use schema::Bytes;

use crate::dataset::fitted::{MixHasher, RareCategories};
use crate::error::Error;
use crate::prepare::runs::{RECORD_BYTES, Runs, Scratch, SortRecord};
use crate::scan::progress::Pass;

/// Bytes of a category in a finished vocabulary, its index included.
const KEPT_BYTES: u64 = 16;
/// Bytes of a category while it is counted, on average over the sizes of a growing column.
const COUNTED_BYTES: u64 = 96;
/// Bytes of input after which the need for disk is foretold: less than a second's reading.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Bytes that counting, and the vocabularies found, take where there are so many categories.
pub(crate) fn memory(categories: u64, allowed: u64) -> u64 {
    categories.saturating_mul(COUNTED_BYTES).min(allowed)
}

/// Counts of several columns.
pub(crate) struct Counting {
    columns: Vec<CategoryCounts>,
    /// Bytes all may use.
    memory: u64,
    folder: PathBuf,
    scratch: Option<Scratch>,
    forecast: Forecast,
}

/// How many categories differed in the first part of the input.
#[derive(Clone, Copy, Debug)]
enum Forecast {
    /// Not half of the sample has been read.
    Unknown,
    /// Of the first half.
    Half(Distinct),
    /// What follows was foretold.
    Done,
}

/// Categories that differ in the first `share` of the input.
#[derive(Clone, Copy, Debug)]
struct Distinct {
    share: f64,
    count: u64,
}

impl Distinct {
    /// The share of the input that has `count` different ones, by the power law through `self` and
    /// a smaller one (Heaps' law); above 1 where the input has fewer.
    fn share_with(self, half: Self, count: u64) -> f64 {
        let ln = |value: f64| value.max(f64::MIN_POSITIVE).ln();
        let counts = ln(self.count as f64) - ln(half.count as f64);
        let power = counts / (ln(self.share) - ln(half.share));
        // At most each one is another.
        let power = power.clamp(1e-9, 1.0);
        self.share * (count as f64 / self.count.max(1) as f64).powf(1.0 / power)
    }
}

impl Counting {
    /// Counts a column for each of `min_counts` in about `memory` bytes; runs go to `folder`, made
    /// when needed.
    pub(crate) fn new(min_counts: &[u64], memory: u64, folder: PathBuf) -> Self {
        let column = |&min_count: &u64| CategoryCounts { min_count, ..CategoryCounts::default() };
        let columns = min_counts.iter().map(column).collect();
        let forecast = Forecast::Unknown;
        Self { columns, memory, folder, scratch: None, forecast }
    }

    /// Counts categories of each column.
    pub(crate) fn add<'a>(&mut self, categories: impl Iterator<Item = &'a [i64]>) {
        for (column, categories) in self.columns.iter_mut().zip(categories) {
            categories.iter().for_each(|&category| column.add(category));
        }
    }

    /// Writes what does not fit; early on, and before the first time, looks whether the disk holds
    /// what is to come. A part of the memory is left for what is read meanwhile.
    pub(crate) fn make_room(&mut self, pass: &Pass) -> Result<(), Error> {
        self.foretell(pass)?;
        let bytes: u64 = self.columns.iter().map(CategoryCounts::bytes).sum();
        if bytes <= self.memory / 8 * 5 {
            return Ok(());
        }
        if self.scratch.is_none() {
            self.forecast = Forecast::Done;
            self.check_disk(self.distinct(pass), pass)?;
            self.scratch = Some(Scratch::create(self.folder.clone())?);
        }
        let Some(scratch) = &mut self.scratch else { return Ok(()) };
        self.columns.iter_mut().try_for_each(|column| column.spill(scratch))
    }

    fn distinct(&self, pass: &Pass) -> Distinct {
        let count = self.columns.iter().map(|column| column.seen.len() as u64).sum();
        Distinct { share: pass.share(), count }
    }

    /// Checks the disk as soon as a sample shows when memory will be full, if ever.
    fn foretell(&mut self, pass: &Pass) -> Result<(), Error> {
        match self.forecast {
            Forecast::Unknown if pass.bytes() >= SAMPLE_BYTES / 2 => {
                self.forecast = Forecast::Half(self.distinct(pass));
            }
            Forecast::Half(half) if pass.bytes() >= SAMPLE_BYTES => {
                self.forecast = Forecast::Done;
                let count = self.memory / 8 * 5 / COUNTED_BYTES;
                let share = self.distinct(pass).share_with(half, count);
                if share < 1.0 {
                    self.check_disk(Distinct { share, count }, pass)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs like this first one until the end of the input, and once more when they are sorted by
    /// first appearance.
    fn check_disk(&self, first: Distinct, pass: &Pass) -> Result<(), Error> {
        let needed = 2.0 * (first.count * RECORD_BYTES as u64) as f64 / first.share.max(1e-9);
        let needed = Bytes(needed as u64);
        pass.state_temporary(needed);
        match available(&self.folder) {
            Some(available) if available < needed => {
                Err(Error::Disk { folder: self.folder.clone(), needed, available })
            }
            _ => Ok(()),
        }
    }

    /// The vocabulary of each column, and what is too rare for it.
    ///
    /// # Errors
    /// [`Error::VocabularyMemory`] where the finished vocabularies alone exceed the memory.
    pub(crate) fn finish(mut self, rows: u64) -> Result<Vec<Vocabulary>, Error> {
        let mut vocabularies: Vec<Vocabulary> = Vec::with_capacity(self.columns.len());
        let mut kept = 0;
        for column in std::mem::take(&mut self.columns) {
            let (vocabulary, rare) = match &mut self.scratch {
                Some(scratch) => {
                    let left = self.memory.saturating_sub(kept * KEPT_BYTES);
                    column.merged(left / 2, scratch)?
                }
                None => column.kept(),
            };
            kept += vocabulary.len() as u64;
            if kept * KEPT_BYTES > self.memory {
                return Err(Error::VocabularyMemory {
                    allowed_mib: self.memory >> 20,
                    needed_mib: (kept * KEPT_BYTES).div_ceil(1 << 20),
                    categories: kept,
                    rows,
                });
            }
            vocabularies.push((vocabulary, rare));
        }
        Ok(vocabularies)
    }
}

/// Categories in the order of their ids, and what is too rare to be among them.
pub(crate) type Vocabulary = (Vec<i64>, RareCategories);

/// Bytes an ordinary user may still write beside `folder`, if known.
fn available(folder: &Path) -> Option<Bytes> {
    let absolute = std::path::absolute(folder).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Categories of one column in the order of their first appearance, with counts.
#[derive(Default)]
struct CategoryCounts {
    seen: Vec<SeenCategory>,
    index: HashMap<i64, usize, BuildHasherDefault<MixHasher>>,
    /// Categories taken so far, repeated ones included: the time of the next.
    time: u64,
    min_count: u64,
    runs: Runs,
}

struct SeenCategory {
    category: i64,
    count: u64,
    first: u64,
}

impl CategoryCounts {
    fn add(&mut self, category: i64) {
        let next = self.seen.len();
        let at = *self.index.entry(category).or_insert(next);
        if at == next {
            self.seen.push(SeenCategory { category, count: 0, first: self.time });
        }
        self.seen[at].count += 1;
        self.time += 1;
    }

    /// Bytes held, with the old copy that exists while a container grows.
    fn bytes(&self) -> u64 {
        // A slot is key, value and a control byte; 7 of 8 slots are usable.
        let slots = self.index.capacity() as u64 * 8 / 7;
        let held = slots * 17 + self.seen.capacity() as u64 * 24;
        held + held / 2
    }

    fn spill(&mut self, scratch: &mut Scratch) -> Result<(), Error> {
        self.index = HashMap::default();
        let seen = std::mem::take(&mut self.seen).into_iter();
        // Of the same size, so that the records take the place of what was seen.
        let mut records: Vec<SortRecord> =
            seen.map(|seen| [seen.category.cast_unsigned(), seen.first, seen.count]).collect();
        self.runs.spill(&mut records, scratch)
    }

    fn kept(self) -> Vocabulary {
        let mut rare = RareCategories { all_ids: self.time, ..RareCategories::default() };
        for seen in self.seen.iter().filter(|seen| seen.count < self.min_count) {
            rare.categories += 1;
            rare.ids += seen.count;
        }
        let kept = self.seen.into_iter().filter(|seen| seen.count >= self.min_count);
        (kept.map(|seen| seen.category).collect(), rare)
    }

    /// Like [`Self::kept`] of everything that was written, in `memory` bytes beside the result.
    fn merged(mut self, memory: u64, scratch: &mut Scratch) -> Result<Vocabulary, Error> {
        let mut rare = RareCategories { all_ids: self.time, ..RareCategories::default() };
        self.spill(scratch)?;
        let most = (memory as usize / RECORD_BYTES).max(1);
        let (mut kept, mut by_first): (Vec<SortRecord>, _) = (Vec::new(), Runs::default());
        let mut current: Option<SortRecord> = None;
        let mut keep = |[category, first, count]: SortRecord, scratch: &mut Scratch| {
            if count >= self.min_count {
                kept.push([first, category, 0]);
            } else {
                rare.categories += 1;
                rare.ids += count;
            }
            if kept.len() == most { by_first.spill(&mut kept, scratch) } else { Ok(()) }
        };
        self.runs.merge(memory / 2, |[category, first, count]| match &mut current {
            // The runs of a category come in the order of time.
            Some(current) if current[0] == category => {
                current[2] += count;
                Ok(())
            }
            other => match other.replace([category, first, count]) {
                Some(done) => keep(done, scratch),
                None => Ok(()),
            },
        })?;
        if let Some(done) = current {
            keep(done, scratch)?;
        }
        if by_first.is_empty() {
            kept.sort_unstable();
            return Ok((kept.into_iter().map(|record| record[1].cast_signed()).collect(), rare));
        }
        by_first.spill(&mut kept, scratch)?;
        let mut vocabulary = Vec::new();
        by_first.merge(memory, |[_, category, _]| {
            vocabulary.push(category.cast_signed());
            Ok(())
        })?;
        Ok((vocabulary, rare))
    }
}

#[cfg(test)]
mod tests {
    use super::Distinct;

    #[test]
    fn memory_is_full_where_the_power_law_says() {
        let law = |share: f64| Distinct { share, count: (1e6 * share.sqrt()) as u64 };
        let full = law(0.02).share_with(law(0.01), 500_000);
        assert!((full - 0.25).abs() < 1e-3, "{full}");
        assert!(law(0.02).share_with(law(0.01), 1_100_000) > 1.0);
        // All differ.
        let linear = |share: f64| Distinct { share, count: (1e6 * share) as u64 };
        let full = linear(0.02).share_with(linear(0.01), 500_000);
        assert!((full - 0.5).abs() < 1e-3, "{full}");
        // None is new, and none is there at all.
        let few = Distinct { share: 0.02, count: 10 };
        assert!(few.share_with(Distinct { share: 0.01, ..few }, 1000) > 1.0);
        let none = Distinct { share: 0.02, count: 0 };
        assert!(none.share_with(Distinct { share: 0.01, ..none }, 1000) > 1.0);
    }
}
