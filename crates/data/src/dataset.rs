//! A prepared dataset: a folder with Parquet files (parts) and the manifest `dataset.json`. The
//! module `load::loader` makes batches from it.

pub(crate) mod column_shape;
pub(crate) mod fitted;
pub(crate) mod manifest;
pub(crate) mod part;
pub(crate) mod prepared_rows;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use schema::source::HoldOut;

use crate::dataset::fitted::Fitted;
use crate::dataset::manifest::Manifest;
use crate::dataset::part::PartReader;
use crate::error::Error;

const LABELS_AT_ONCE: usize = 8192;

/// An opened dataset whose parts have been checked for their length. Clones are cheap and share the
/// footers that were read.
#[derive(Clone)]
pub struct Dataset {
    inner: Arc<Inner>,
}

/// The state that clones of a [`Dataset`] share.
struct Inner {
    dir: PathBuf,
    manifest: Manifest,
    /// Cumulative number of row groups, up to and including each part.
    group_ends: Vec<u64>,
    /// Readers of the parts. A footer is read on first use, because a process rarely reads all
    /// parts of a dataset that has thousands.
    parts: Vec<Mutex<Option<Arc<PartReader>>>>,
    /// Number of decompressed pages.
    pages: Arc<AtomicU64>,
}

impl std::fmt::Debug for Dataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dataset({}, {} rows)", self.inner.dir.display(), self.rows())
    }
}

impl Dataset {
    /// Opens the dataset in `dir`. Reads the manifest and checks the length of every part.
    ///
    /// # Errors
    /// Returns [`Error::Open`], [`Error::Manifest`] or [`Error::PartSize`].
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let manifest = Manifest::read(dir)?;
        let mut groups = 0;
        let mut group_ends = Vec::with_capacity(manifest.parts.len());
        for part in &manifest.parts {
            let path = dir.join(&part.file);
            let got = std::fs::metadata(&path).map_err(Error::open(&path))?.len();
            if got != part.bytes {
                return Err(Error::PartSize { path, expected: part.bytes, got });
            }
            groups += part.rows.div_ceil(manifest.row_group_rows);
            group_ends.push(groups);
        }
        let parts = manifest.parts.iter().map(|_| Mutex::default()).collect();
        let (dir, pages) = (dir.to_owned(), Arc::default());
        Ok(Self { inner: Arc::new(Inner { dir, manifest, group_ends, parts, pages }) })
    }

    /// Returns the number of rows of all parts.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.inner.manifest.rows
    }

    /// Returns the number of row groups of all parts.
    #[must_use]
    pub fn row_groups(&self) -> u64 {
        self.inner.group_ends.last().copied().unwrap_or(0)
    }

    /// Returns the number of Parquet pages that this process has decompressed from the dataset so
    /// far, dictionaries included.
    #[must_use]
    pub fn pages_read(&self) -> u64 {
        self.inner.pages.load(Ordering::Relaxed)
    }

    /// Returns the folder from which the dataset was opened.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Returns the manifest as it was read from `dataset.json`.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    /// Returns the transforms and vocabularies that were applied to the rows.
    #[must_use]
    pub fn fitted(&self) -> &Fitted {
        &self.inner.manifest.fitted
    }

    /// Divides the rows into a training range and, at the end, a held-out range. If preparation
    /// split the rows by time, that split is used. Otherwise `hold_out` is the share of held-out
    /// rows.
    #[must_use]
    pub fn split(&self, hold_out: f64) -> (Range<u64>, Range<u64>) {
        let held_out = match self.inner.manifest.held_out {
            Some(rows) if hold_out > 0.0 => rows.min(self.rows()),
            _ => held_out_rows(self.rows(), hold_out),
        };
        let cut = self.rows() - held_out;
        (0..cut, cut..self.rows())
    }

    /// Divides `held_out` rows of [`Self::split`] into rows for validation and, after them, rows
    /// for a test.
    #[must_use]
    pub fn split_held_out(
        &self,
        held_out: Range<u64>,
        shares: HoldOut,
    ) -> (Range<u64>, Range<u64>) {
        let validation = match self.inner.manifest.validation {
            _ if shares.test == 0.0 => u64::MAX,
            Some(rows) if shares.validation > 0.0 => rows,
            _ => held_out_rows(self.rows(), shares.validation),
        };
        let cut = held_out.start.saturating_add(validation).min(held_out.end);
        (held_out.start..cut, cut..held_out.end)
    }

    /// Counts the ids of each categorical column over all rows.
    ///
    /// # Errors
    /// Returns any [`Error`] of opening the parts.
    pub(crate) fn ids(&self) -> Result<Vec<u64>, Error> {
        let columns = &self.inner.manifest.columns;
        let first = 1 + columns.dense.len();
        let mut ids = vec![0; columns.categorical.len()];
        // Without lists, every column has exactly one id per row, so no footer has to be read.
        if columns.categorical.iter().all(|column| !column.is_list) {
            ids.fill(self.rows());
            return Ok(ids);
        }
        for index in 0..self.inner.parts.len() {
            let values = self.open_part(index)?.values(first + ids.len());
            ids.iter_mut().zip(&values[first..]).for_each(|(sum, values)| *sum += values);
        }
        Ok(ids)
    }

    /// Finds the greatest id of a categorical column that stores integers as they are. Returns
    /// `None` for a column without ids.
    ///
    /// # Errors
    /// Returns [`Error::MissingColumn`], or any [`Error`] of reading the dataset.
    pub fn greatest_id(&self, column: &str) -> Result<Option<u64>, Error> {
        let columns = &self.inner.manifest.columns;
        let Some(at) = columns.categorical.iter().position(|entry| entry.name == column) else {
            let available = columns.categorical.iter().map(|entry| entry.name.clone()).collect();
            let (path, column) = (self.inner.dir.clone(), column.to_owned());
            return Err(Error::MissingColumn { path, column, available });
        };
        let (mut greatest, dense) = (None, columns.dense.len());
        for group in 0..self.row_groups() {
            let (part, index) = self.part_of(group)?;
            let rows = part.rows_of(index);
            for batch in part.read(index, 0..rows, dense, &[at], rows)? {
                let batch = batch?;
                let values = part::id_bags(&batch, 1 + dense).values.iter().filter(|&&id| id >= 0);
                greatest = greatest.max(values.max().map(|id| id.cast_unsigned()));
            }
        }
        Ok(greatest)
    }

    /// Returns the label that all of `rows` share, or `None` if there are several labels or no
    /// rows. Stops reading at the first label that differs.
    ///
    /// # Errors
    /// Returns any [`Error`] of reading the dataset.
    pub fn only_label(&self, rows: Range<u64>) -> Result<Option<f32>, Error> {
        let size = self.inner.manifest.row_group_rows;
        let mut only = None;
        for group in rows.start / size..rows.end.min(self.rows()).div_ceil(size) {
            let (part, index) = self.part_of(group)?;
            let within =
                |row: u64| row.saturating_sub(group * size).min(part.rows_of(index) as u64);
            let within = within(rows.start) as usize..within(rows.end) as usize;
            for batch in part.read(index, within, 0, &[], LABELS_AT_ONCE)? {
                for &label in part::float_values(&batch?, 0) {
                    if *only.get_or_insert(label) != label {
                        return Ok(None);
                    }
                }
            }
        }
        Ok(only)
    }

    /// Returns the part that holds row group `group`, and the group's index within that part.
    pub(crate) fn part_of(&self, group: u64) -> Result<(Arc<PartReader>, usize), Error> {
        let inner = &*self.inner;
        let index = inner.group_ends.partition_point(|&end| end <= group);
        let first = if index == 0 { 0 } else { inner.group_ends[index - 1] };
        let mut slot = inner.parts[index].lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &*slot {
            Some(reader) => Arc::clone(reader),
            None => Arc::clone(slot.insert(Arc::new(self.open_part(index)?))),
        };
        Ok((reader, (group - first) as usize))
    }

    fn open_part(&self, index: usize) -> Result<PartReader, Error> {
        let manifest = &self.inner.manifest;
        let part = &manifest.parts[index];
        let path = self.inner.dir.join(&part.file);
        let reader = PartReader::open(&path, part, &manifest.columns, &self.inner.pages)?;
        // Rows are located by division, so every row group of a part but the last must be full.
        let mut left = part.rows;
        for (group, got) in reader.group_rows().into_iter().enumerate() {
            let expected = left.min(manifest.row_group_rows);
            if got != expected {
                let problem = format!("row group {group}: expected {expected} rows, got {got}");
                return Err(Error::Manifest { path, problem });
            }
            left -= expected;
        }
        if left > 0 {
            let problem = format!("expected {} rows, got {}", part.rows, part.rows - left);
            return Err(Error::Manifest { path, problem });
        }
        Ok(reader)
    }
}

/// Rounds the share `hold_out` of `rows` to a number of rows.
pub(crate) fn held_out_rows(rows: u64, hold_out: f64) -> u64 {
    ((rows as f64 * hold_out).round() as u64).min(rows)
}
