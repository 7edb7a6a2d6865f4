//! Where the time goes: `get_temporal_breakdown`, `get_comm_comp_overlap` and the types of
//! `get_gpu_kernel_breakdown`.

use serde::Serialize;

use super::sweep::{UnionSpan, length, merged, sweep};
use super::{MICROSECOND, View, rounded};
use crate::facts::classify::{ClassRule, Classifier, WorkClass};

/// The classes of a sweep, the weight 1 first.
const CLASSES: [(WorkClass, &str); 3] = [
    (WorkClass::Compute, "compute"),
    (WorkClass::Communication, "communication"),
    (WorkClass::Memory, "memory"),
];

/// A row of `get_temporal_breakdown`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Temporal {
    pub rank: u32,
    /// `kernel_time(us)`: from the first start to the end of the last part of the union.
    pub window_ns: i64,
    /// `idle_time(us)`: the window less the union of all device rows, waits among them.
    pub idle_ns: i64,
    /// `compute_time(us)`: the union of the rows whose names say computation.
    pub compute_ns: i64,
    /// `non_compute_time(us)`: what is left. That tool stops with an assertion where it is
    /// negative, which rounding can make it.
    pub non_compute_ns: i64,
    pub idle_pct: Option<f64>,
    pub compute_pct: Option<f64>,
    pub non_compute_pct: Option<f64>,
}

/// A row of `get_comm_comp_overlap`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    pub rank: u32,
    /// The union of the rows whose names say communication; not printed there.
    pub communication_ns: i64,
    /// Time in which computation runs as well; not printed there.
    pub overlap_ns: i64,
    /// `comp_comm_overlap_pctg`: overlap over communication, two decimals; `None` without any.
    pub overlap_pct: Option<f64>,
}

/// A row of the first table of `get_gpu_kernel_breakdown(include_memory_kernels=True)`, which adds
/// up the ranks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelType {
    /// `kernel_type`: the classes that run and no other, joined by `+` where that tool writes
    /// ` overlapping `. A set that never lasts a microsecond is left out.
    pub classes: String,
    pub exclusive_ns: i64,
    /// `percentage`: of the sum over the rows, one decimal.
    pub busy_pct: Option<f64>,
}

/// `get_temporal_breakdown`; no row for a rank without device rows, where that tool fails.
pub fn temporal(views: &[View<'_>]) -> Vec<Temporal> {
    views.iter().filter_map(temporal_of).collect()
}

/// `get_comm_comp_overlap`.
pub fn overlap(views: &[View<'_>]) -> Vec<Overlap> {
    views.iter().map(overlap_of).collect()
}

/// The types of `get_gpu_kernel_breakdown(include_memory_kernels=True)`, the longest first, then by
/// name.
pub fn kernel_types(views: &[View<'_>]) -> Vec<KernelType> {
    let mut sums = [0; 1 << CLASSES.len()];
    for view in views {
        let unions = unions(view);
        let weighted: Vec<(i64, &[UnionSpan])> =
            unions.iter().enumerate().map(|(bit, union)| (1 << bit, union.as_slice())).collect();
        for (open, length) in sweep(&weighted).into_iter().filter(|(open, _)| *open > 0) {
            sums[open as usize % sums.len()] += length;
        }
    }
    let total: i64 = sums.iter().sum();
    let mut rows: Vec<KernelType> = (1..sums.len())
        .filter(|set| sums[*set] != 0)
        .map(|set| KernelType {
            classes: names(set),
            exclusive_ns: sums[set] * MICROSECOND,
            busy_pct: rounded(sums[set] as f64 / total as f64 * 100.0, 1),
        })
        .collect();
    rows.sort_by(|a, b| (b.exclusive_ns, &a.classes).cmp(&(a.exclusive_ns, &b.classes)));
    rows
}

/// The class of each device row.
pub(super) fn classes(view: &View<'_>) -> Vec<WorkClass> {
    let rows: Vec<u32> = view.device.iter().map(|row| row.row).collect();
    Classifier::new(ClassRule::Hta).classes(view.trace, &rows)
}

fn temporal_of(view: &View<'_>) -> Option<Temporal> {
    let all = merged(view.device.iter().copied());
    let window = all.last()?.1 - all.first()?.0;
    let idle = window - length(&all);
    let [compute, ..] = unions(view);
    let compute = length(&compute);
    let non_compute = window - compute - idle;
    let percent = |part: i64| rounded(100.0 * (part as f64 / window as f64), 2);
    Some(Temporal {
        rank: view.rank(),
        window_ns: window * MICROSECOND,
        idle_ns: idle * MICROSECOND,
        compute_ns: compute * MICROSECOND,
        non_compute_ns: non_compute * MICROSECOND,
        idle_pct: percent(idle),
        compute_pct: percent(compute),
        non_compute_pct: percent(non_compute),
    })
}

fn overlap_of(view: &View<'_>) -> Overlap {
    let [compute, communication, _] = unions(view);
    let stretches = sweep(&[(1, &communication), (2, &compute)]);
    let both = stretches.iter().filter(|(open, _)| *open == 3);
    let overlap: i64 = both.map(|(_, length)| length).sum();
    let communication = length(&communication);
    Overlap {
        rank: view.rank(),
        communication_ns: communication * MICROSECOND,
        overlap_ns: overlap * MICROSECOND,
        overlap_pct: rounded(100.0 * (overlap as f64 / communication as f64), 2),
    }
}

/// The union of each of [`CLASSES`].
fn unions(view: &View<'_>) -> [Vec<UnionSpan>; CLASSES.len()] {
    let classes = classes(view);
    CLASSES.map(|(wanted, _)| {
        let rows = view.device.iter().zip(&classes);
        merged(rows.filter(|(_, class)| **class == wanted).map(|(row, _)| *row))
    })
}

fn names(set: usize) -> String {
    let bits = CLASSES.iter().enumerate().filter(|(bit, _)| set & (1 << bit) != 0);
    bits.map(|(_, (_, name))| *name).collect::<Vec<_>>().join("+")
}
