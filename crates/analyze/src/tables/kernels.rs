//! Lists device work by name, with its number, durations and launch shapes.
//!
//! Statistics refer to whole durations, also for work that an end of the window cuts.

mod name;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use schema::{CellType, TableRow};
use serde::Serialize;
use trace::store::{LaunchShape, Trace};

pub use name::{IN_PLACE, labels, plain_name, short_name};

use crate::facts::classify::WorkClass;
use crate::facts::distribution::{self, Durations, thousandths};
use crate::facts::scope::Scope;
use crate::percent::percent;
use crate::tables::breakdown;

const NONE: u32 = u32::MAX;

/// All device work of one rank with the same name and class.
#[derive(Clone, Debug, PartialEq, Serialize, TableRow)]
pub struct KernelRow {
    pub rank: u32,
    /// Name without types and arguments, extended if several kernels would have the same short
    /// name; see [`distinguish`].
    pub short_name: String,
    pub class: WorkClass,
    pub count: u64,
    /// Sum of the durations of all rows with this name.
    pub total_ns: i64,
    /// Share of the window's busy time, in percent. The shares exceed 100 together if streams
    /// overlap.
    pub busy_pct: Option<f64>,
    pub window_pct: Option<f64>,
    #[serde(flatten)]
    pub durations: Durations,
    /// The devices on which the kernel ran, written as `0 1`.
    pub devices: String,
    /// The streams on which the kernel ran, written as `7 22`.
    pub streams: String,
    /// Grid of the most frequent launch shape, written as `80x1x1`.
    pub grid: Option<String>,
    /// Block of the most frequent launch shape, written like the grid.
    pub block: Option<String>,
    /// Number of different launch shapes (grid and block).
    pub shape_count: u64,
    /// Registers per thread in the most frequent launch shape.
    pub registers: Option<u32>,
    /// Bytes of shared memory per block in the most frequent launch shape.
    pub shared_memory_bytes: Option<u32>,
    /// Occupancy estimated by the profiler, as a mean over time.
    pub occupancy_pct: Option<f64>,
    /// Blocks per multiprocessor, as a mean over time.
    pub blocks_per_sm: Option<f64>,
    pub bytes: Option<u64>,
    pub name: String,
}

/// One bin of the histogram of durations or bytes of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TableRow)]
pub struct HistogramRow {
    pub rank: u32,
    pub name: String,
    pub quantity: Quantity,
    /// Smallest value of the bin, which is 0 or a power of two.
    pub low: i64,
    /// Smallest value above the bin, which is 1 or a power of two.
    pub high: i64,
    pub count: u64,
    pub total: i64,
}

/// The quantity whose values a histogram counts, durations or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    DurationNs,
    Bytes,
}

/// The device rows of one name and class, from which a row of the table is computed.
struct KernelGroup {
    class: WorkClass,
    rows: Vec<u32>,
}

/// Lists the device work of a scope by name and class, sorted by time in descending order.
///
/// # Cost
/// The cost is `O(n log n)` in the device rows.
pub fn list_kernels(scope: &Scope<'_>) -> Vec<KernelRow> {
    let whole = breakdown::compute_breakdown(scope);
    let mut rows: Vec<KernelRow> = groups(scope)
        .iter()
        .map(|group| row(scope.trace, group, whole.busy_ns, whole.window_ns))
        .collect();
    rows.sort_by(|a, b| {
        b.total_ns.cmp(&a.total_ns).then_with(|| (&a.name, a.class).cmp(&(&b.name, b.class)))
    });
    rows
}

/// Extends the short names of a table's rows so that different names stay different; see
/// [`labels`].
///
/// # Cost
/// The cost is `O(n log n)` in the rows.
pub fn distinguish(rows: &mut [KernelRow]) {
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let labels: BTreeMap<String, String> =
        names.iter().map(|name| (*name).to_owned()).zip(labels(names.iter().copied())).collect();
    for row in rows {
        labels[&row.name].clone_into(&mut row.short_name);
    }
}

/// Computes histograms of durations, and of bytes where they are known, with powers of two as bins
/// and names as in [`list_kernels`].
pub fn histograms(scope: &Scope<'_>) -> Vec<HistogramRow> {
    let slices = &scope.trace.slices;
    let mut groups = groups(scope);
    groups.sort_by_cached_key(|group| (scope.trace.name(group.rows[0]), group.class));
    let mut found = Vec::new();
    for group in &groups {
        let durations = group.rows.iter().map(|row| slices.duration[*row as usize]);
        let bytes = group.rows.iter().filter_map(|row| slices.bytes.get(*row));
        let bytes = bytes.map(|bytes| i64::try_from(*bytes).unwrap_or(i64::MAX));
        let of_durations = (Quantity::DurationNs, distribution::histogram(durations));
        for (quantity, bins) in [of_durations, (Quantity::Bytes, distribution::histogram(bytes))] {
            found.extend(bins.into_iter().map(|bin| HistogramRow {
                rank: scope.trace.rank,
                name: scope.trace.name(group.rows[0]).to_owned(),
                quantity,
                low: bin.low,
                high: bin.high,
                count: bin.count,
                total: bin.total,
            }));
        }
    }
    found
}

fn groups(scope: &Scope<'_>) -> Vec<KernelGroup> {
    const CLASSES: usize = 4;
    let mut place = vec![NONE; scope.trace.strings.len() * CLASSES];
    let mut groups: Vec<KernelGroup> = Vec::new();
    for (&row, &class) in scope.device_rows.iter().zip(&scope.classes) {
        let name = scope.trace.slices.name[row as usize].0 as usize;
        let place = &mut place[name * CLASSES + class as usize];
        if *place == NONE {
            *place = groups.len() as u32;
            groups.push(KernelGroup { class, rows: Vec::new() });
        }
        groups[*place as usize].rows.push(row);
    }
    groups
}

fn row(trace: &Trace, group: &KernelGroup, busy_ns: i64, window_ns: i64) -> KernelRow {
    let slices = &trace.slices;
    let mut durations: Vec<i64> =
        group.rows.iter().map(|row| slices.duration[*row as usize]).collect();
    let spread = distribution::describe_values(&mut durations);
    let devices: BTreeSet<i32> = group.rows.iter().map(|row| trace.device(*row)).collect();
    let streams: BTreeSet<i32> = group.rows.iter().map(|row| trace.stream(*row)).collect();
    let shapes = shapes(trace, &group.rows);
    let usual = shapes.usual;
    let bytes = || group.rows.iter().filter_map(|row| slices.bytes.get(*row));
    let name = trace.name(group.rows[0]);
    KernelRow {
        rank: trace.rank,
        short_name: short_name(name).to_owned(),
        class: group.class,
        count: spread.count,
        total_ns: spread.total,
        // Work that overlaps on several streams may sum to more than the busy time, so shares are
        // capped at 100 %.
        busy_pct: percent(spread.total.min(busy_ns), busy_ns),
        window_pct: percent(spread.total.min(window_ns), window_ns),
        durations: spread.into(),
        devices: joined(devices, " "),
        streams: joined(streams, " "),
        grid: usual.map(|shape| joined(shape.grid, "x")),
        block: usual.map(|shape| joined(shape.block, "x")),
        shape_count: shapes.count,
        registers: usual.map(|shape| shape.registers),
        shared_memory_bytes: usual.map(|shape| shape.shared_memory),
        occupancy_pct: shapes.occupancy_pct,
        blocks_per_sm: shapes.blocks_per_sm,
        bytes: bytes().copied().reduce(u64::saturating_add),
        name: name.to_owned(),
    }
}

fn joined<T: ToString>(values: impl IntoIterator<Item = T>, between: &str) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(between)
}

/// The most frequent launch shape of some rows, the number of different shapes, and means over
/// time.
struct LaunchShapes {
    usual: Option<LaunchShape>,
    count: u64,
    occupancy_pct: Option<f64>,
    blocks_per_sm: Option<f64>,
}

fn shapes(trace: &Trace, rows: &[u32]) -> LaunchShapes {
    let mut counts: BTreeMap<([u32; 3], [u32; 3]), (u64, LaunchShape)> = BTreeMap::new();
    let (mut occupancy, mut blocks) = ((0.0, 0.0), (0.0, 0.0));
    for row in rows {
        let Some(shape) = trace.slices.launch_shape.get(*row) else { continue };
        counts.entry((shape.grid, shape.block)).or_insert((0, *shape)).0 += 1;
        let weight = trace.slices.duration[*row as usize] as f64;
        for (sum, value) in
            [(&mut occupancy, shape.occupancy_pct), (&mut blocks, shape.blocks_per_sm)]
        {
            if value.is_finite() {
                sum.0 += weight * f64::from(value);
                sum.1 += weight;
            }
        }
    }
    // If several launch shapes are equally frequent, the smallest one is taken.
    let usual = counts.values().rev().max_by_key(|(count, _)| *count).map(|(_, shape)| *shape);
    let mean = |(sum, weight): (f64, f64)| (weight > 0.0).then(|| thousandths(sum / weight));
    LaunchShapes {
        usual,
        count: counts.len() as u64,
        occupancy_pct: mean(occupancy),
        blocks_per_sm: mean(blocks),
    }
}
