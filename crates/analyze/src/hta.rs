//! The figures of Holistic Trace Analysis 0.6.1, for those who come from it: `--compat hta`.
//!
//! [`views`] selects, rounds and links the rows as that tool does, mistakes included; a function
//! per table turns views into rows that carry our field names. Times are whole microseconds there,
//! so all nanoseconds here end in `000`. [`explain`] says why our own analyses differ. Knows
//! nothing of those analyses.
//!
//! What is left out because that tool's own result depends on an unstable sort: means and
//! deviations of queue lengths, and which of two rows of one stream that begin in the same
//! microsecond comes first (we take the order of the file).
//!
//! What we cannot know: negative durations of the file itself, which readers take as 0; whether the
//! file's first event is a slice, as in all files of Kineto, or not. What we do not follow: its
//! other way of dropping steps for MTIA devices. Where that tool stops with an error a table has
//! no row, or the row it would have had.
//!
//! # Source
//! The behaviour of `traceinsight` 0.6.1 with pandas 2.3, observed and read; no code is taken.

mod breakdown;
mod explain;
mod idle;
mod kernel;
mod launch;
mod queue;
mod sweep;
mod view;

pub use breakdown::{KernelType, Overlap, Temporal, kernel_types, overlap, temporal};
pub use explain::{Difference, HtaTable, explain};
pub use idle::{IDLE_THRESHOLD_NS, Idle, IdleCause, idle};
pub use kernel::{HtaKernel, kernels};
pub use launch::{Cutoffs, Launch, LaunchSummary, launch_summary, launches};
pub use queue::{QueueSummary, queue};
pub use view::{View, ViewRow, views};

/// Nanoseconds of that tool's unit.
const MICROSECOND: i64 = 1000;

/// A value with that many decimals, halves to even: numpy's `round`. `None` of no number.
fn rounded(value: f64, decimals: i32) -> Option<f64> {
    let scale = 10f64.powi(decimals);
    value.is_finite().then(|| (value * scale).round_ties_even() / scale)
}
