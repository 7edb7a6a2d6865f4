//! The charts of each tab: values over time from rows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::facts::{DoctorFacts, GpuCell, HostCell, StepCell};
use super::finding::DoctorTab;

/// Largest number of points of a line.
const POINTS_MAX: u64 = 240;
/// Largest number of lines by place. Of more places, the chart has the lowest, median and highest.
const LINES_MAX: usize = 6;

/// A chart with its lines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoctorChart {
    pub tab: DoctorTab,
    pub title: &'static str,
    /// `share`, `s`, `bytes`, `bytes/s`, `W`, `°C` or `1/s`.
    pub unit: &'static str,
    /// Time between two points. Points of times without rows are missing.
    pub step_s: u64,
    pub lines: Vec<DoctorLine>,
}

/// A line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoctorLine {
    pub name: String,
    /// Times in seconds since 1970, and values.
    pub points: Vec<[f64; 2]>,
}

/// Values of one place by the start of a cell.
type PlaceValues = BTreeMap<u64, f64>;
/// A value per GPU, host or run in a cell; `None` if it was not observed.
enum CellValue {
    Gpu(fn(&GpuCell) -> Option<f64>),
    Host(fn(&HostCell) -> Option<f64>),
    Run(fn(&StepCell) -> Option<f64>),
}

/// The tab, title and unit of a chart, and its values.
struct ChartKind(DoctorTab, &'static str, &'static str, CellValue);

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn pressure(host: &HostCell, resource: &str) -> Option<f64> {
    ratio(*host.pressure_s.get(resource)?, host.observed_s)
}

fn rate(host: &HostCell, name: &str) -> Option<f64> {
    ratio(*host.bytes.get(name)? as f64, host.observed_s)
}

const CHARTS: [ChartKind; 21] = {
    use CellValue::{Gpu, Host, Run};
    use DoctorTab::{Application, Cpu, Gpu as OfGpu, Memory, Network};
    [
        ChartKind(Cpu, "CPUs busy", "share", Host(|host| ratio(host.cpu_busy_s, host.cpu_all_s))),
        ChartKind(
            Cpu,
            "CPUs that wait for disks",
            "share",
            Host(|host| ratio(host.cpu_wait_s, host.cpu_all_s)),
        ),
        ChartKind(
            Cpu,
            "Time in which a task waits for a CPU",
            "share",
            Host(|host| pressure(host, "cpu")),
        ),
        ChartKind(OfGpu, "GPU busy", "share", Gpu(|gpu| ratio(gpu.busy_s, gpu.busy_observed_s))),
        ChartKind(
            OfGpu,
            "SM active",
            "share",
            Gpu(|gpu| ratio(gpu.sm_active_s, gpu.sm_observed_s)),
        ),
        ChartKind(OfGpu, "Throttled", "share", Gpu(|gpu| ratio(gpu.throttled_s, gpu.observed_s))),
        ChartKind(OfGpu, "Power", "W", Gpu(|gpu| ratio(gpu.energy_j, gpu.energy_s))),
        ChartKind(OfGpu, "Temperature", "°C", Gpu(|gpu| gpu.temperature_max)),
        ChartKind(
            Memory,
            "Used memory of the host",
            "share",
            Host(|host| host.memory_available.map(|share| 1.0 - share)),
        ),
        ChartKind(
            Memory,
            "Time in which a task waits for memory",
            "share",
            Host(|host| pressure(host, "memory")),
        ),
        ChartKind(
            Memory,
            "Used memory of GPUs",
            "bytes",
            Gpu(|gpu| gpu.memory_used.map(|bytes| bytes as f64)),
        ),
        ChartKind(
            Network,
            "Network, received",
            "bytes/s",
            Host(|host| rate(host, "network receive")),
        ),
        ChartKind(Network, "Network, sent", "bytes/s", Host(|host| rate(host, "network transmit"))),
        ChartKind(
            Network,
            "InfiniBand, received",
            "bytes/s",
            Host(|host| rate(host, "infiniband receive")),
        ),
        ChartKind(
            Network,
            "InfiniBand, sent",
            "bytes/s",
            Host(|host| rate(host, "infiniband transmit")),
        ),
        ChartKind(Network, "Disks, read", "bytes/s", Host(|host| rate(host, "disk read"))),
        ChartKind(
            Network,
            "Time in which a task waits for disks",
            "share",
            Host(|host| pressure(host, "io")),
        ),
        ChartKind(
            Application,
            "Steps of a process",
            "1/s",
            Run(|run| ratio(run.all_steps as f64, run.process_s)),
        ),
        ChartKind(
            Application,
            "Mean step time",
            "s",
            Run(|run| ratio(run.time_s, run.steps as f64)),
        ),
        ChartKind(
            Application,
            "95th percentile of step times",
            "s",
            Run(|run| ratio(run.p95_sum_s, run.quantile_steps)),
        ),
        ChartKind(
            Application,
            "95th percentile over median",
            "×",
            Run(|run| ratio(run.p95_sum_s, run.p50_sum_s)),
        ),
    ]
};

/// Draws the charts of which there are values.
pub fn draw(facts: &DoctorFacts, length_s: u64) -> Vec<DoctorChart> {
    let charts = CHARTS.iter().filter_map(|ChartKind(tab, title, unit, value)| {
        let places = values(facts, value);
        // Rows may be rarer than points.
        let starts = |values: &PlaceValues| values.keys().copied().collect::<Vec<u64>>();
        let gap = |starts: Vec<u64>| starts.windows(2).map(|pair| pair[1] - pair[0]).min();
        let gap = places.iter().filter_map(|(_, values)| gap(starts(values))).min();
        let step_s = length_s.div_ceil(POINTS_MAX).max(gap.unwrap_or(1)).max(1);
        let step_s = step_s.div_ceil(facts.cell_s) * facts.cell_s;
        let lines = lines(places, step_s);
        let (tab, title, unit) = (*tab, *title, *unit);
        (!lines.is_empty()).then_some(DoctorChart { tab, title, unit, step_s, lines })
    });
    charts.collect()
}

fn values(facts: &DoctorFacts, value: &CellValue) -> Vec<(String, PlaceValues)> {
    fn per_cell<T>(cells: &BTreeMap<u64, T>, value: fn(&T) -> Option<f64>) -> PlaceValues {
        cells.iter().filter_map(|(start, cell)| Some((*start, value(cell)?))).collect()
    }
    let mut places: Vec<(String, PlaceValues)> = match value {
        CellValue::Gpu(value) => facts
            .gpus
            .iter()
            .map(|(gpu, facts)| (gpu.name(), per_cell(&facts.cells, *value)))
            .collect(),
        CellValue::Host(value) => facts
            .hosts
            .iter()
            .map(|(host, cells)| (host.clone(), per_cell(cells, *value)))
            .collect(),
        CellValue::Run(value) => {
            facts.steps.iter().map(|(one, cells)| (one.name(), per_cell(cells, *value))).collect()
        }
    };
    places.retain(|(_, values)| !values.is_empty());
    places
}

fn lines(places: Vec<(String, PlaceValues)>, step_s: u64) -> Vec<DoctorLine> {
    let means: Vec<(String, PlaceValues)> =
        places.into_iter().map(|(name, values)| (name, mean_by_step(&values, step_s))).collect();
    let line = |(name, values): (String, PlaceValues)| DoctorLine {
        name,
        points: values.into_iter().map(|(start, value)| [start as f64, value]).collect(),
    };
    if means.len() <= LINES_MAX {
        return means.into_iter().map(line).collect();
    }
    let mut by_start = BTreeMap::<u64, Vec<f64>>::new();
    for (start, value) in means.iter().flat_map(|(_, values)| values) {
        by_start.entry(*start).or_default().push(*value);
    }
    by_start.values_mut().for_each(|values| values.sort_by(f64::total_cmp));
    let count = means.len();
    let rank = |(at, name): (usize, &str)| {
        let value = |values: &[f64]| values[[values.len() - 1, values.len() / 2, 0][at]];
        let values = by_start.iter().map(|(start, values)| (*start, value(values)));
        line((format!("{name} of {count}"), values.collect()))
    };
    ["highest", "median", "lowest"].into_iter().enumerate().map(rank).collect()
}

fn mean_by_step(values: &PlaceValues, step_s: u64) -> PlaceValues {
    let mut sums = BTreeMap::<u64, (f64, f64)>::new();
    for (start, value) in values {
        let (sum, count) = sums.entry(start / step_s * step_s).or_default();
        (*sum, *count) = (*sum + value, *count + 1.0);
    }
    sums.into_iter().map(|(start, (sum, count))| (start, sum / count)).collect()
}
