//! Compares the steps of a sweep and marks those that no other step beats in speed, memory and
//! number of ranks.

use schema::TableRow;
use serde::Serialize;

use super::StepPrice;
use crate::prediction::Binds;

/// One configuration of a sweep, with its predicted step.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct SweepRow {
    pub model: String,
    pub hardware: String,
    pub batch_size: usize,
    pub ranks: u32,
    pub step_ns: f64,
    pub low_ns: f64,
    pub high_ns: f64,
    pub binds: Binds,
    pub samples_per_s: f64,
    /// Memory of the rank that uses most.
    pub peak_bytes: u64,
    pub fits: bool,
    /// Whether no other fitting step of the model is at least as good in speed, memory per rank and
    /// number of ranks, and better in one of them.
    pub is_best: bool,
    /// Share of the step time that is based on measured kernels of this device.
    pub measured_pct: f64,
}

impl SweepRow {
    /// Creates a row from a priced step. [`mark_best`] later compares it with other rows.
    #[must_use]
    pub fn new(
        model: &str,
        hardware: &str,
        batch_size: usize,
        price: &StepPrice,
        binds: Binds,
    ) -> Self {
        Self {
            model: model.to_owned(),
            hardware: hardware.to_owned(),
            batch_size,
            ranks: price.ranks.len() as u32,
            step_ns: price.cost.step.mean_ns,
            low_ns: price.cost.step.low_ns,
            high_ns: price.cost.step.high_ns,
            binds,
            samples_per_s: price.samples_per_s,
            peak_bytes: price.cost.peak_bytes,
            fits: price.cost.fits,
            is_best: false,
            measured_pct: price.domain.measured_pct,
        }
    }
}

/// Marks the fitting steps of each model that no other step beats.
pub fn mark_best(rows: &mut [SweepRow]) {
    let beats = |other: &SweepRow, row: &SweepRow| {
        let is_as_good = other.samples_per_s >= row.samples_per_s
            && other.peak_bytes <= row.peak_bytes
            && other.ranks <= row.ranks;
        let is_better = other.samples_per_s > row.samples_per_s
            || other.peak_bytes < row.peak_bytes
            || other.ranks < row.ranks;
        other.model == row.model && other.fits && is_as_good && is_better
    };
    let best: Vec<bool> =
        rows.iter().map(|row| row.fits && !rows.iter().any(|other| beats(other, row))).collect();
    rows.iter_mut().zip(best).for_each(|(row, is_best)| row.is_best = is_best);
}
