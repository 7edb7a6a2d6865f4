//! Counts categories for exact ids, in memory while they fit and in sorted runs on disk beyond
//! that.
//!
//! The result is the same either way: the categories that occur at least `min_count` times, in the
//! order of their first appearance.
//!
//! # Cost
//! Counting takes about 50 bytes of memory per distinct category. Beyond the limit, categories are
//! sorted and written with 24 bytes for each distinct category of a run. A merge adds up the
//! counts, and the categories that are kept are sorted by first appearance, again on disk if they
//! do not fit. The finished vocabulary takes 8 bytes per category, and its index takes as many.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::path::{Path, PathBuf};

use schema::Bytes;

use crate::dataset::fitted::{MixHasher, RareCategories};
use crate::error::Error;
use crate::prepare::runs::{RECORD_BYTES, Runs, Scratch, SortRecord};
use crate::scan::progress::Pass;

/// Number of bytes per category of a finished vocabulary, including its index.
const KEPT_BYTES: u64 = 16;
/// Number of bytes per category while counting, averaged over the sizes of a growing table.
const COUNTED_BYTES: u64 = 96;
/// Number of input bytes after which the needed disk space is predicted. Reading them takes less
/// than a second.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Estimates the bytes for counting so many categories and for the resulting vocabularies.
pub(crate) fn memory(categories: u64, allowed: u64) -> u64 {
    categories.saturating_mul(COUNTED_BYTES).min(allowed)
}

/// Category counts of several columns that share a memory limit.
pub(crate) struct CategoryCounter {
    columns: Vec<CategoryCounts>,
    /// Memory limit for all columns, in bytes.
    memory: u64,
    folder: PathBuf,
    scratch: Option<Scratch>,
    forecast: Forecast,
}

/// State of the prediction of disk space, made from the first part of the input.
#[derive(Clone, Copy, Debug)]
enum Forecast {
    /// Less than half of the sample has been read.
    Unknown,
    /// Counts at the middle of the sample.
    Half(DistinctSample),
    /// The prediction has been made.
    Done,
}

/// Number of distinct categories in the first `share` of the input.
#[derive(Clone, Copy, Debug)]
struct DistinctSample {
    share: f64,
    count: u64,
}

impl DistinctSample {
    /// Predicts the share of the input that has `count` distinct categories, by a power law (Heaps'
    /// law) through `self` and the smaller sample `half`. The result is above 1 if the input has
    /// fewer.
    fn share_with(self, half: Self, count: u64) -> f64 {
        let ln = |value: f64| value.max(f64::MIN_POSITIVE).ln();
        let counts = ln(self.count as f64) - ln(half.count as f64);
        let power = counts / (ln(self.share) - ln(half.share));
        // The number of distinct categories grows at most linearly with the input.
        let power = power.clamp(1e-9, 1.0);
        self.share * (count as f64 / self.count.max(1) as f64).powf(1.0 / power)
    }
}

impl CategoryCounter {
    /// Counts one column per entry of `min_counts` in about `memory` bytes. Runs are written to
    /// `folder`, which is created when needed.
    pub(crate) fn new(min_counts: &[u64], memory: u64, folder: PathBuf) -> Self {
        let column = |&min_count: &u64| CategoryCounts { min_count, ..CategoryCounts::default() };
        let columns = min_counts.iter().map(column).collect();
        let forecast = Forecast::Unknown;
        Self { columns, memory, folder, scratch: None, forecast }
    }

    /// Adds the categories of a block, column by column.
    pub(crate) fn add<'a>(&mut self, categories: impl Iterator<Item = &'a [i64]>) {
        for (column, categories) in self.columns.iter_mut().zip(categories) {
            categories.iter().for_each(|&category| column.add(category));
        }
    }

    /// Writes the counts to disk if they exceed the memory limit. Checks early, and before the
    /// first write, whether the disk has enough space. Part of the memory is reserved for rows that
    /// are read meanwhile.
    pub(crate) fn make_room(&mut self, pass: &Pass) -> Result<(), Error> {
        self.predict_disk(pass)?;
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

    fn distinct(&self, pass: &Pass) -> DistinctSample {
        let count = self.columns.iter().map(|column| column.seen.len() as u64).sum();
        DistinctSample { share: pass.share(), count }
    }

    /// Checks the disk space as soon as a sample shows when memory will be full, if at all.
    fn predict_disk(&mut self, pass: &Pass) -> Result<(), Error> {
        match self.forecast {
            Forecast::Unknown if pass.bytes() >= SAMPLE_BYTES / 2 => {
                self.forecast = Forecast::Half(self.distinct(pass));
            }
            Forecast::Half(half) if pass.bytes() >= SAMPLE_BYTES => {
                self.forecast = Forecast::Done;
                // Part of the memory is reserved for rows that are read meanwhile.
                let count = self.memory / 8 * 5 / COUNTED_BYTES;
                let share = self.distinct(pass).share_with(half, count);
                if share < 1.0 {
                    self.check_disk(DistinctSample { share, count }, pass)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Predicts the disk space and checks that it is available. Runs like the first one are written
    /// until the end of the input, and again when they are sorted by first appearance.
    fn check_disk(&self, first: DistinctSample, pass: &Pass) -> Result<(), Error> {
        // The factor is two, because the records are written again when they are sorted by first
        // appearance.
        let needed = 2.0 * (first.count * RECORD_BYTES as u64) as f64 / first.share.max(1e-9);
        let needed = Bytes(needed as u64);
        pass.report_temporary(needed);
        match free_disk_space(&self.folder) {
            Some(available) if available < needed => {
                Err(Error::Disk { folder: self.folder.clone(), needed, available })
            }
            _ => Ok(()),
        }
    }

    /// Returns the vocabulary of each column and statistics of its rare categories.
    ///
    /// # Errors
    /// Returns [`Error::VocabularyMemory`] if the finished vocabularies alone exceed the memory
    /// limit.
    pub(crate) fn finish(mut self, rows: u64) -> Result<Vec<Vocabulary>, Error> {
        let mut vocabularies: Vec<Vocabulary> = Vec::with_capacity(self.columns.len());
        let mut kept = 0;
        for column in std::mem::take(&mut self.columns) {
            let (vocabulary, rare) = match &mut self.scratch {
                Some(scratch) => {
                    // Finished vocabularies stay in memory, so later columns have less for their
                    // merge.
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

/// Categories in the order of their ids, and statistics of those too rare to be included.
pub(crate) type Vocabulary = (Vec<i64>, RareCategories);

/// Returns the free disk space for ordinary users beside `folder`, if known.
fn free_disk_space(folder: &Path) -> Option<Bytes> {
    // The folder may not exist yet. The nearest existing ancestor of the folder is on the same
    // disk.
    let absolute = std::path::absolute(folder).ok()?;
    let existing = absolute.ancestors().find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// Counts of the categories of one column, in the order of their first appearance.
#[derive(Default)]
struct CategoryCounts {
    seen: Vec<SeenCategory>,
    index: HashMap<i64, usize, BuildHasherDefault<MixHasher>>,
    /// Categories counted so far, including repeated ones; the time stamp of the next one.
    time: u64,
    min_count: u64,
    runs: Runs,
}

/// A category with its count and the time of its first appearance.
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

    /// Estimates the bytes held, including the old copy that exists while a container grows.
    fn bytes(&self) -> u64 {
        // A slot holds key, value and a control byte, and 7 of 8 slots are usable.
        let slots = self.index.capacity() as u64 * 8 / 7;
        let held = slots * 17 + self.seen.capacity() as u64 * 24;
        // While a container grows, its old copy stays in memory until all values have moved to the
        // new one.
        held + held / 2
    }

    fn spill(&mut self, scratch: &mut Scratch) -> Result<(), Error> {
        // The index is freed before the records are sorted, because both together could exceed the
        // limit.
        self.index = HashMap::default();
        let seen = std::mem::take(&mut self.seen).into_iter();
        // Records have the same size as the entries, so `collect` reuses the allocation.
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

    /// Like [`Self::kept`] for counts that were written to disk, in `memory` bytes besides the
    /// result.
    fn merged(mut self, memory: u64, scratch: &mut Scratch) -> Result<Vocabulary, Error> {
        let mut rare = RareCategories { all_ids: self.time, ..RareCategories::default() };
        self.spill(scratch)?;
        let most = (memory as usize / RECORD_BYTES).max(1);
        let (mut kept, mut by_first): (Vec<SortRecord>, _) = (Vec::new(), Runs::default());
        let mut current: Option<SortRecord> = None;
        let mut keep = |[category, first, count]: SortRecord, scratch: &mut Scratch| {
            if count >= self.min_count {
                // The first appearance comes first in the record, because records are sorted by
                // their first number.
                kept.push([first, category, 0]);
            } else {
                rare.categories += 1;
                rare.ids += count;
            }
            if kept.len() == most { by_first.spill(&mut kept, scratch) } else { Ok(()) }
        };
        self.runs.merge(memory / 2, |[category, first, count]| match &mut current {
            // Records of the same category arrive in the order of time.
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
    use super::DistinctSample;

    #[test]
    fn the_power_law_predicts_when_memory_is_full() {
        let law = |share: f64| DistinctSample { share, count: (1e6 * share.sqrt()) as u64 };
        let full = law(0.02).share_with(law(0.01), 500_000);
        assert!((full - 0.25).abs() < 1e-3, "{full}");
        assert!(law(0.02).share_with(law(0.01), 1_100_000) > 1.0);
        // In this input, all categories are distinct.
        let linear = |share: f64| DistinctSample { share, count: (1e6 * share) as u64 };
        let full = linear(0.02).share_with(linear(0.01), 500_000);
        assert!((full - 0.5).abs() < 1e-3, "{full}");
        // These inputs have no new category in the second half, or no categories at all.
        let few = DistinctSample { share: 0.02, count: 10 };
        assert!(few.share_with(DistinctSample { share: 0.01, ..few }, 1000) > 1.0);
        let none = DistinctSample { share: 0.02, count: 0 };
        assert!(none.share_with(DistinctSample { share: 0.01, ..none }, 1000) > 1.0);
    }
}
