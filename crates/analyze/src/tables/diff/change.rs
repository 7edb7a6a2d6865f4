//! Defines changes between two recordings of a job, by subject.

use schema::{CellType, TableRow};
use serde::Serialize;

use super::unit::RankUnits;

/// One part of the unit's time, with its values on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct PartChange {
    pub part: &'static str,
    /// Median over the units of the recording before.
    pub before_ns: i64,
    /// Median over the units of the recording after.
    pub after_ns: i64,
    pub delta_ns: i64,
    /// Mean over the units of the recording before. Only means add up to the mean unit, whereas
    /// medians do not.
    pub before_mean_ns: i64,
    /// Mean over the units of the recording after.
    pub after_mean_ns: i64,
    pub mean_delta_ns: i64,
    /// Share of the total length of the windows before, in percent.
    pub before_pct: Option<f64>,
    /// Share of the total length of the windows after, in percent.
    pub after_pct: Option<f64>,
    /// Share of the time from the first to the last device work of each rank before, in percent.
    /// Unlike the share of the window, this share does not include idle time before the first and
    /// after the last device work.
    pub before_span_pct: Option<f64>,
    pub after_span_pct: Option<f64>,
    /// `mean_delta_ns` relative to the change of the mean unit, in percent.
    pub explained_pct: Option<f64>,
    /// A change smaller than this many nanoseconds may be chance. The noise is `None` if a side has
    /// fewer than two units.
    pub noise_ns: Option<i64>,
    /// Whether `delta_ns` does not exceed `noise_ns`.
    pub is_noise: bool,
}

/// The kind of thing (kernel, operator, call) whose time is compared by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum DiffSubject {
    /// Device work by name and shape, where the shape is the grid and block of a kernel or the
    /// bytes of a copy or memset. The time is that on the device.
    Kernel,
    /// Operators by name. The time is that on the device of the work that the operators launched
    /// themselves.
    Operator,
    /// Operators by their path in the call tree. The time is measured as for operators by name.
    Path,
    /// Operators by name, measured on the host. The time is that on the host outside the operators
    /// and calls inside them.
    Host,
    /// Calls of the device's runtime and driver by name. The time is that on the host.
    Call,
}

/// Whether a thing occurs on both sides or on only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Both,
    Added,
    Removed,
}

/// Time spent on one thing (a kernel, an operator or a call) on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct SpentChange {
    /// The kind of thing, which decides whether its device time or its host time counts.
    pub subject: DiffSubject,
    /// Name of the kernel, operator or call. For a path, it lists all operators from the outermost
    /// to the innermost.
    pub name: String,
    /// Launch shape or bytes; empty for things without a shape.
    pub shape: String,
    pub presence: Presence,
    /// Number of occurrences in all windows of the recording before.
    pub before_count: u64,
    /// Number of occurrences in all windows of the recording after.
    pub after_count: u64,
    /// Number of occurrences per unit before, rounded to three decimals.
    pub before_per_unit: f64,
    /// Number of occurrences per unit after, rounded to three decimals.
    pub after_per_unit: f64,
    /// Mean time per unit before.
    pub before_ns: i64,
    /// Mean time per unit after.
    pub after_ns: i64,
    pub delta_ns: i64,
    /// `delta_ns` relative to the mean unit before, in percent.
    pub unit_pct: Option<f64>,
    /// A change smaller than this many nanoseconds may be chance. The noise is `None` if a side has
    /// fewer than two units.
    pub noise_ns: Option<i64>,
    /// Whether `delta_ns` does not exceed `noise_ns`.
    pub is_noise: bool,
}
/// Change of a mean between the two recordings, with the noise below which the change may be
/// chance.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Shift {
    pub before_ns: i64,
    pub after_ns: i64,
    pub delta_ns: i64,
    pub noise_ns: Option<i64>,
    pub is_noise: bool,
}

impl Shift {
    /// Computes the change from the values of the units on each side.
    ///
    /// # Numerics
    /// Noise is twice the standard error of the difference of means (Welch), so about one in twenty
    /// changes that are chance is taken for real.
    pub fn new(before: &[i64], after: &[i64]) -> Self {
        let [before_ns, after_ns] = [before, after].map(|side| mean(side).round() as i64);
        let noise_ns = squared_error(before).zip(squared_error(after)).map(|(before, after)| {
            let error: f64 = before + after;
            (2.0 * error.sqrt()).ceil() as i64
        });
        let delta_ns = after_ns - before_ns;
        let mut shift = Self { before_ns, after_ns, delta_ns, noise_ns, is_noise: false };
        shift.is_noise = shift.is_noise_of(delta_ns);
        shift
    }

    /// Returns whether a change may be chance.
    pub fn is_noise_of(&self, delta_ns: i64) -> bool {
        delta_ns == 0 || self.noise_ns.is_some_and(|noise| delta_ns.abs() <= noise)
    }
}

pub(super) fn mean(values: &[i64]) -> f64 {
    let sum: i128 = values.iter().map(|value| i128::from(*value)).sum();
    sum as f64 / values.len().max(1) as f64
}

/// Returns the square of the standard error of a mean, or `None` if there are fewer than two
/// values.
fn squared_error(values: &[i64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let (mean, count) = (mean(values), values.len() as f64);
    let squares: f64 = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
    Some(squares / (count - 1.0) / count)
}

/// Returns the lengths of all units of a side.
pub(super) fn lengths(samples: &[RankUnits<'_>]) -> Vec<i64> {
    let units = samples.iter().flat_map(|sample| &sample.units);
    units.map(|(start, end)| end - start).collect()
}
