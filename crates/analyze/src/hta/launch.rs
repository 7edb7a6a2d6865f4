//! Launches: `get_cuda_kernel_launch_stats`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{MICROSECOND, View, ViewRow};

/// The calls whose correlation ids are used; driver calls and AMD's are excluded.
const LAUNCHES: [&str; 5] = [
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "runFunction - job_prep_and_submit_for_execution",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
];

/// A row of `get_cuda_kernel_launch_stats`: a call and one of the rows it launched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    pub rank: u32,
    pub correlation: u64,
    pub call_ns: i64,
    pub device_ns: i64,
    /// `launch_delay`: from the call's end to the start on the device, negative ones taken as 0.
    pub delay_ns: i64,
}

/// What counts as an outlier; that tool's defaults are 50 µs and 100 µs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Longer calls are outliers.
    pub slow_call_ns: i64,
    /// Longer delays are outliers.
    pub late_ns: i64,
}

/// Sums over a rank's launches and the numbers of those that tool plots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaunchSummary {
    pub rank: u32,
    /// Pairs of a call and a row it launched.
    pub work_count: u64,
    pub call_ns: i64,
    pub device_ns: i64,
    pub delay_ns: i64,
    /// Shorter on the device than their call, which is no outlier.
    pub short_count: u64,
    /// Calls longer than the cut-off.
    pub slow_call_count: u64,
    /// Delays longer than the cut-off.
    pub late_count: u64,
}

impl Cutoffs {
    /// Those of `traceinsight` 0.6.1.
    pub const HTA: Self = Self { slow_call_ns: 50_000, late_ns: 100_000 };
}

/// `get_cuda_kernel_launch_stats(ranks=all)`, in the order of the calls.
///
/// Every host row of a launch's correlation id is paired with every device row of it. Rows without
/// an id, or of id 0, are no pairs; that tool would pair all of them with each other.
pub fn launches(views: &[View<'_>]) -> Vec<Launch> {
    views.iter().flat_map(launches_of).collect()
}

/// Sums up the launches of each rank; no row for a rank without any.
pub fn launch_summary(launches: &[Launch], cutoffs: Cutoffs) -> Vec<LaunchSummary> {
    let mut ranks: BTreeMap<u32, LaunchSummary> = BTreeMap::new();
    for launch in launches {
        let sum = ranks.entry(launch.rank).or_insert_with(|| LaunchSummary::new(launch.rank));
        let (cpu, gpu) = (launch.call_ns, launch.device_ns);
        sum.work_count += 1;
        sum.call_ns += cpu;
        sum.device_ns += gpu;
        sum.delay_ns += launch.delay_ns;
        sum.short_count += u64::from(cpu <= cutoffs.slow_call_ns && gpu < cpu);
        sum.slow_call_count += u64::from(cpu > cutoffs.slow_call_ns);
        let is_late = launch.delay_ns > cutoffs.late_ns;
        sum.late_count += u64::from(is_late);
    }
    ranks.into_values().collect()
}

impl LaunchSummary {
    fn new(rank: u32) -> Self {
        Self {
            rank,
            work_count: 0,
            call_ns: 0,
            device_ns: 0,
            delay_ns: 0,
            short_count: 0,
            slow_call_count: 0,
            late_count: 0,
        }
    }
}

fn launches_of(view: &View<'_>) -> Vec<Launch> {
    let id = |row: &ViewRow| view.trace.slices.correlation(row.row).filter(|id| *id != 0);
    let is_launch = |row: &&ViewRow| LAUNCHES.contains(&view.trace.name(row.row));
    let kept = view.host.iter().chain(&view.device);
    let mut launched: Vec<u64> = kept.filter(is_launch).filter_map(id).collect();
    launched.sort_unstable();
    let is_launched = |id: &u64| launched.binary_search(id).is_ok();
    let mut work: Vec<(u64, &ViewRow)> =
        view.device.iter().filter_map(|row| Some((id(row).filter(is_launched)?, row))).collect();
    work.sort_by_key(|(id, _)| *id);
    let mut launches = Vec::new();
    for call in &view.host {
        let Some(correlation) = id(call) else { continue };
        let from = work.partition_point(|(id, _)| *id < correlation);
        for (_, row) in work[from..].iter().take_while(|(id, _)| *id == correlation) {
            let delay = (row.start_us - call.end_us()).max(0);
            let launch = Launch {
                rank: view.rank(),
                correlation,
                call_ns: call.duration_us * MICROSECOND,
                device_ns: row.duration_us * MICROSECOND,
                delay_ns: delay * MICROSECOND,
            };
            launches.extend((0..call.copies * row.copies).map(|_| launch.clone()));
        }
    }
    launches
}
