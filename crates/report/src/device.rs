//! The device tab of the page: device work by name over all ranks, with distributions, occupancy
//! and queues.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use analyze::distribution::Durations;
use analyze::kernels::{self, HistogramRow, KernelRow, Quantity};
use analyze::occupancy::{self, Occupancy};
use analyze::queue::{self, StreamQueue};
use analyze::{Scope, WorkClass};
use serde::Serialize;

/// Maximum number of listed kernel names. Those with the most time are listed, and the others are
/// summed.
const NAMES: usize = 120;

/// Device work of a job by name, with the occupancy of devices and the queues of streams.
#[derive(Clone, Debug, Serialize)]
pub struct DevicePart {
    /// Work by name and class, sorted by descending total time.
    pub kernels: Vec<KernelView>,
    pub left_out_names: u64,
    /// Number of device rows with the names that are left out.
    pub left_out_count: u64,
    pub left_out_ns: i64,
    pub occupancy: Vec<Occupancy>,
    pub queues: Vec<StreamQueue>,
}

/// Device work of one name and class, summed over all ranks.
#[derive(Clone, Debug, Serialize)]
pub struct KernelView {
    pub name: String,
    /// Name of the kernel without types and arguments.
    pub short_name: String,
    pub class: WorkClass,
    pub count: u64,
    /// Sum of the durations of all rows.
    pub total_ns: i64,
    /// Histogram of durations with bins at powers of two, as lower bound and count.
    pub durations: Vec<(i64, u64)>,
    /// Histogram of bytes with bins at powers of two, as lower bound and count. The histogram is
    /// empty for work without bytes.
    pub bytes: Vec<(i64, u64)>,
    /// Ranks that ran such work, in ascending order.
    pub ranks: Vec<KernelOfRank>,
}

/// The part of a [`KernelRow`] that ran on one rank.
#[derive(Clone, Debug, Serialize)]
pub struct KernelOfRank {
    pub rank: u32,
    pub count: u64,
    /// Sum of the durations of all rows on this rank.
    pub total_ns: i64,
    /// Share of the busy time in the window, in percent.
    pub busy_pct: Option<f64>,
    #[serde(flatten)]
    pub durations: Durations,
    pub streams: String,
    /// The most frequent launch grid.
    pub grid: Option<String>,
    pub block: Option<String>,
    pub shape_count: u64,
    pub registers: Option<u32>,
    /// Shared memory per block, in bytes.
    pub shared_memory_bytes: Option<u32>,
    /// Estimated occupancy, averaged over the kernel's time.
    pub occupancy_pct: Option<f64>,
    /// Number of blocks per multiprocessor, averaged over the kernel's time.
    pub blocks_per_sm: Option<f64>,
    /// Bytes that copies and memory sets wrote.
    pub bytes: Option<u64>,
}

pub(crate) fn build_part(scopes: &[Scope<'_>]) -> DevicePart {
    let mut rows: Vec<KernelRow> = scopes.iter().flat_map(kernels::list_kernels).collect();
    kernels::distinguish(&mut rows);
    let mut found: BTreeMap<(String, WorkClass), KernelView> = BTreeMap::new();
    for row in rows {
        let key = (row.name.clone(), row.class);
        let view = found.entry(key).or_insert_with(|| KernelView::new(&row));
        view.add(row);
    }
    let mut kernels: Vec<KernelView> = found.into_values().collect();
    kernels.sort_by(|a, b| {
        (Reverse(a.total_ns), &a.name, a.class).cmp(&(Reverse(b.total_ns), &b.name, b.class))
    });
    let rest = kernels.split_off(kernels.len().min(NAMES));
    for scope in scopes {
        add_histograms(&mut kernels, &kernels::histograms(scope));
    }
    DevicePart {
        kernels,
        left_out_names: rest.len() as u64,
        left_out_count: rest.iter().map(|view| view.count).sum(),
        left_out_ns: rest.iter().map(|view| view.total_ns).sum(),
        occupancy: scopes.iter().flat_map(occupancy::measure_occupancy).collect(),
        queues: scopes.iter().flat_map(queue::measure_queues).collect(),
    }
}

impl KernelView {
    fn new(row: &KernelRow) -> Self {
        Self {
            name: row.name.clone(),
            short_name: row.short_name.clone(),
            class: row.class,
            count: 0,
            total_ns: 0,
            durations: Vec::new(),
            bytes: Vec::new(),
            ranks: Vec::new(),
        }
    }

    fn add(&mut self, row: KernelRow) {
        self.count += row.count;
        self.total_ns = self.total_ns.saturating_add(row.total_ns);
        self.ranks.push(KernelOfRank {
            rank: row.rank,
            count: row.count,
            total_ns: row.total_ns,
            busy_pct: row.busy_pct,
            durations: row.durations,
            streams: row.streams,
            grid: row.grid,
            block: row.block,
            shape_count: row.shape_count,
            registers: row.registers,
            shared_memory_bytes: row.shared_memory_bytes,
            occupancy_pct: row.occupancy_pct,
            blocks_per_sm: row.blocks_per_sm,
            bytes: row.bytes,
        });
    }
}

/// Adds the histograms of one rank to the views with the same name. In the rare case that a name
/// has two classes, both views get all bins.
fn add_histograms(kernels: &mut [KernelView], rows: &[HistogramRow]) {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, view) in kernels.iter().enumerate() {
        places.entry(view.name.clone()).or_default().push(at);
    }
    for row in rows {
        for at in places.get(&row.name).into_iter().flatten() {
            let bins = match row.quantity {
                Quantity::DurationNs => &mut kernels[*at].durations,
                Quantity::Bytes => &mut kernels[*at].bytes,
            };
            match bins.binary_search_by_key(&row.low, |(low, _)| *low) {
                Ok(place) => bins[place].1 += row.count,
                Err(place) => bins.insert(place, (row.low, row.count)),
            }
        }
    }
}
