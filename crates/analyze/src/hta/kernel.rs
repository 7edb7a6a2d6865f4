//! Durations by name: the second table of `get_gpu_kernel_breakdown`, never cut to "others".

use std::collections::BTreeMap;

use serde::Serialize;
use trace::store::StringId;

use super::{MICROSECOND, View, ViewRow, breakdown};
use crate::facts::classify::WorkClass;

/// A row of `get_gpu_kernel_breakdown`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HtaKernel {
    pub name: String,
    /// `kernel_type`, decided by the name alone. Rows of no type are not in the table.
    pub class: WorkClass,
    pub rank: u32,
    /// How many rows; not printed there.
    pub count: u64,
    /// `sum (us)`.
    pub total_ns: i64,
    /// `max (us)`.
    pub max_ns: i64,
    /// `min (us)`: may be negative.
    pub min_ns: i64,
    /// `mean (us)`.
    pub mean_ns: f64,
    /// `stddev`: of a sample, 0 of one row.
    pub std_ns: f64,
}

/// `get_gpu_kernel_breakdown(include_memory_kernels=True, num_kernels=∞)`, by class, name, rank.
///
/// With more than `num_kernels` names of a class that tool puts the total of each name in the
/// columns max, min and mean as well. This is the table before that.
///
/// # Numerics
/// Deviations are accumulated row by row in double precision (Welford), in the order of the file.
pub fn kernels(views: &[View<'_>]) -> Vec<HtaKernel> {
    let mut rows: Vec<HtaKernel> = views.iter().flat_map(kernels_of).collect();
    rows.sort_by(|a, b| (kind(a.class), &a.name, a.rank).cmp(&(kind(b.class), &b.name, b.rank)));
    rows
}

/// Sum and spread of durations in microseconds.
#[derive(Clone, Copy)]
struct DurationMoments {
    class: WorkClass,
    count: u64,
    sum: i64,
    max: i64,
    min: i64,
    mean: f64,
    squares: f64,
}

fn kernels_of(view: &View<'_>) -> Vec<HtaKernel> {
    let mut by_name: BTreeMap<StringId, DurationMoments> = BTreeMap::new();
    for (row, class) in view.device.iter().zip(breakdown::classes(view)) {
        if class != WorkClass::Other {
            let name = view.trace.slices.name[row.row as usize];
            by_name.entry(name).or_insert_with(|| DurationMoments::new(class)).add(row);
        }
    }
    let microsecond = MICROSECOND as f64;
    by_name
        .into_iter()
        .map(|(name, moments)| HtaKernel {
            name: view.trace.strings.get(name).to_owned(),
            class: moments.class,
            rank: view.rank(),
            count: moments.count,
            total_ns: moments.sum * MICROSECOND,
            max_ns: moments.max * MICROSECOND,
            min_ns: moments.min * MICROSECOND,
            mean_ns: moments.sum as f64 / moments.count as f64 * microsecond,
            std_ns: moments.deviation() * microsecond,
        })
        .collect()
}

impl DurationMoments {
    fn new(class: WorkClass) -> Self {
        Self { class, count: 0, sum: 0, max: i64::MIN, min: i64::MAX, mean: 0.0, squares: 0.0 }
    }

    fn add(&mut self, row: &ViewRow) {
        let (duration, copies) = (row.duration_us, row.copies as f64);
        self.count += row.copies;
        self.sum += duration * row.copies as i64;
        self.max = self.max.max(duration);
        self.min = self.min.min(duration);
        let off = duration as f64 - self.mean;
        self.mean += copies * off / self.count as f64;
        self.squares += copies * (duration as f64 - self.mean) * off;
    }

    fn deviation(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

/// Place of a class in that tool's order, by its names: COMMUNICATION, COMPUTATION, MEMORY.
fn kind(class: WorkClass) -> u8 {
    match class {
        WorkClass::Communication => 0,
        WorkClass::Compute => 1,
        WorkClass::Memory => 2,
        WorkClass::Other => 3,
    }
}
