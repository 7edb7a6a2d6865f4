//! The pass that fits transforms to the training data: means, standard deviations and vocabularies.
//!
//! Rows are taken in the order of the files, so the result does not depend on the number of
//! threads.

use std::path::PathBuf;

use schema::source::IdMode;

use crate::dataset::fitted::{Fitted, is_fitted};
use crate::error::Error;
use crate::parse::integer_columns::IntegerColumns;
use crate::parse::layout::WantedColumns;
use crate::parse::parsed_columns::ParsedColumns;
use crate::parse::parsed_row::ParsedRow;
use crate::parse::row_sink::RowSink;
use crate::prepare::vocabulary::CategoryCounter;
use crate::scan::progress::Pass;

/// The values of the fitted columns in one block.
pub(crate) struct FitSample<'a> {
    plan: &'a FitPlan,
    rows: usize,
    /// Values of each standardized column; NaN for missing values.
    dense: Vec<Vec<f64>>,
    /// For each categorical column, the categories that are present and the end of each row's
    /// categories.
    categories: Vec<(Vec<i64>, Vec<usize>)>,
}

/// The columns that have to be fitted, and the checks on rows while fitting.
pub(crate) struct FitPlan {
    /// Columns whose mean, or newest time, is fitted.
    standardized: Vec<usize>,
    counted: usize,
    /// Minimum number of occurrences of a category, per counted column.
    min_counts: Vec<u64>,
    categorical: CategoricalCheck,
}

/// The check that a row has exactly one category in every column without lists.
#[derive(Clone)]
pub(crate) struct CategoricalCheck {
    names: Vec<String>,
    pub is_list: Vec<bool>,
}

impl CategoricalCheck {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a String>, is_list: &[bool]) -> Self {
        Self { names: names.cloned().collect(), is_list: is_list.to_vec() }
    }

    /// Refuses a row that has no or several categories in a column without lists.
    pub(crate) fn check(&self, row: &ParsedRow) -> Result<(), String> {
        for (column, is_list) in self.is_list.iter().enumerate() {
            let count = row.column(column).len();
            if !is_list && count != 1 {
                let name = &self.names[column];
                return Err(format!("column {name:?}: expected one category, got {count}"));
            }
        }
        Ok(())
    }
}

impl FitPlan {
    /// Plans the fitting of everything that `fitted` lacks. Returns `None` if it lacks nothing.
    pub(crate) fn new(fitted: &Fitted, wanted: &WantedColumns, is_list: &[bool]) -> Option<Self> {
        let learns = |&column: &usize| is_fitted(&wanted.dense[column]);
        let standardized: Vec<usize> = (0..wanted.dense.len()).filter(learns).collect();
        let counted = if fitted.is_exact() { wanted.categorical.len() } else { 0 };
        let needed = !standardized.is_empty() || counted > 0;
        let usual = match fitted.ids {
            IdMode::Exact { min_count, .. } => min_count,
            IdMode::Modulo => 0,
        };
        let min_counts = wanted.categorical.iter().map(|c| c.min_count.unwrap_or(usual));
        let min_counts = min_counts.take(counted).collect();
        let names = wanted.categorical.iter().map(|column| &column.column);
        let categorical = CategoricalCheck::new(names, is_list);
        needed.then_some(Self { standardized, counted, min_counts, categorical })
    }

    pub(crate) fn categorical(&self) -> &CategoricalCheck {
        &self.categorical
    }

    /// Creates an empty sample of the fitted columns.
    pub(crate) fn sample(&self) -> FitSample<'_> {
        FitSample {
            plan: self,
            rows: 0,
            dense: vec![Vec::new(); self.standardized.len()],
            categories: vec![Default::default(); self.counted],
        }
    }
}

impl RowSink for FitSample<'_> {
    fn accept_row(&mut self, row: &ParsedRow) -> Result<(), String> {
        self.plan.categorical.check(row)?;
        for (values, &column) in self.dense.iter_mut().zip(&self.plan.standardized) {
            values.push(row.dense[column]);
        }
        for (column, (values, ends)) in self.categories.iter_mut().enumerate() {
            values.extend(row.column(column).iter().flatten());
            ends.push(values.len());
        }
        self.rows += 1;
        Ok(())
    }

    fn accept_columns(&mut self, given: &ParsedColumns<'_>) -> bool {
        if !given.has_lists(&self.plan.categorical.is_list) {
            return false;
        }
        for (values, &column) in self.dense.iter_mut().zip(&self.plan.standardized) {
            values.extend_from_slice(&given.dense[column]);
        }
        for ((values, ends), given) in self.categories.iter_mut().zip(&given.categorical) {
            let before = values.len();
            if let Some(given_ends) = &given.ends {
                values.extend_from_slice(&given.values);
                ends.extend(given_ends.iter().map(|&end| before + end as usize));
                continue;
            }
            for category in given.single() {
                values.extend(category);
                ends.push(values.len());
            }
        }
        self.rows += given.len();
        true
    }

    fn accept_integers(&mut self, columns: &mut IntegerColumns) {
        for (values, &column) in self.dense.iter_mut().zip(&self.plan.standardized) {
            values.extend(columns.dense_column(column).map(|v| v.map_or(f64::NAN, f64::from)));
        }
        for (column, (values, ends)) in self.categories.iter_mut().enumerate() {
            for category in columns.category_column(column) {
                values.extend(category);
                ends.push(values.len());
            }
        }
        self.rows += columns.len();
    }
}

/// Running statistics of the training rows seen so far.
pub(crate) struct Fitter {
    moments: Vec<RunningMoments>,
    counting: CategoryCounter,
    /// Number of training rows that have not been read yet.
    rows_left: u64,
    rows: u64,
}

impl Fitter {
    /// Prepares to fit on the first `rows` rows. Counts that do not fit in memory are written to
    /// `folder`.
    pub(crate) fn new(plan: &FitPlan, ids: IdMode, rows: u64, folder: PathBuf) -> Self {
        let memory_mib = match ids {
            IdMode::Exact { memory_mib, .. } => memory_mib,
            IdMode::Modulo => 0,
        };
        let memory = memory_mib.saturating_mul(1 << 20);
        Self {
            moments: vec![RunningMoments::default(); plan.standardized.len()],
            counting: CategoryCounter::new(&plan.min_counts, memory, folder),
            rows_left: rows,
            rows: 0,
        }
    }

    /// Adds the rows of a block that belong to the training part.
    pub(crate) fn take(&mut self, sample: &FitSample<'_>, pass: &Pass) -> Result<(), Error> {
        let rows = usize::try_from(self.rows_left).unwrap_or(usize::MAX).min(sample.rows);
        self.rows_left -= rows as u64;
        self.rows += rows as u64;
        for (moments, values) in self.moments.iter_mut().zip(&sample.dense) {
            values[..rows].iter().filter(|value| !value.is_nan()).for_each(|v| moments.add(*v));
        }
        if rows > 0 {
            let categories = sample.categories.iter();
            self.counting.add(categories.map(|(values, ends)| &values[..ends[rows - 1]]));
        }
        self.counting.make_room(pass)
    }

    /// Writes the fitted values into `fitted`.
    pub(crate) fn finish(self, plan: &FitPlan, fitted: &mut Fitted) -> Result<(), Error> {
        for (moments, &column) in self.moments.iter().zip(&plan.standardized) {
            let dense = &mut fitted.dense[column];
            (dense.mean, dense.deviation) = moments.finish();
            if dense.part.is_some() {
                dense.mean = moments.greatest;
            }
        }
        let vocabularies = self.counting.finish(self.rows)?;
        for ((vocabulary, rare), column) in vocabularies.into_iter().zip(&mut fitted.categorical) {
            column.vocabulary = Some(vocabulary);
            fitted.rare.push(rare);
        }
        Ok(())
    }
}

/// Mean and sum of squared differences (Welford's algorithm) in f64.
#[derive(Clone, Copy, Default)]
struct RunningMoments {
    count: u64,
    mean: f64,
    squares: f64,
    greatest: f64,
}

impl RunningMoments {
    fn add(&mut self, value: f64) {
        self.greatest = if self.count == 0 { value } else { self.greatest.max(value) };
        self.count += 1;
        let before = value - self.mean;
        self.mean += before / self.count as f64;
        self.squares += before * (value - self.mean);
    }

    /// Returns mean and population standard deviation; a constant column gets 1, which keeps its
    /// scale.
    fn finish(&self) -> (f64, f64) {
        let deviation = (self.squares / self.count.max(1) as f64).sqrt();
        (self.mean, if deviation > 0.0 { deviation } else { 1.0 })
    }
}
