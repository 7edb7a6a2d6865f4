//! Reads the rows of a run or a host, and adds them up in cells of equal length.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{
    Array, BooleanArray, Float64Array, ListArray, MapArray, RecordBatch, StringArray,
    TimestampMillisecondArray, UInt32Array, UInt64Array,
};

use super::finding::{DoctorSubject, GpuPlace};
use crate::aggregate::MINUTE_S;
use crate::columns::{FURTHER_RUNS, RowTable};
use crate::error::Error;
use crate::faults::{CHOSEN, members};
use crate::store::{HOUR_S, Partition, RowChoice, StoreFolder, column};
use crate::sums::IDLE_BUSY_MAX;
use crate::time::DAY_S;

/// Kind of the events of processes that hang.
const HANG: &str = "hang";
const GPU_COLUMNS: [&str; 15] = [
    "host",
    "start",
    "length_s",
    "index",
    "instance",
    "observed_s",
    "run",
    FURTHER_RUNS,
    "busy_s",
    "sm_active_s",
    "energy_j",
    "throttle_s",
    "errors",
    "memory_used",
    "temperature_max",
];
const HOST_COLUMNS: [&str; 8] = [
    "host",
    "start",
    "observed_s",
    "cpu_s",
    "pressure_s",
    "memory_total",
    "memory_available_min",
    "bytes",
];
const STEP_COLUMNS: [&str; 12] = [
    "host",
    "start",
    "length_s",
    "scheduler",
    "job",
    "workflow",
    "pid",
    "steps",
    "timed_steps",
    "timed_s",
    "step_p50_s",
    "step_p95_s",
];
const EVENT_COLUMNS: [&str; 8] =
    ["host", "kind", "start", "length_s", "is_over", "scheduler", "job", "pid"];

/// What the rows of a run or a host say. Cells are sorted by their start in seconds since 1970.
#[derive(Debug, Default)]
pub struct DoctorFacts {
    /// Whether the rows are those of a run, not of a host.
    pub is_run: bool,
    /// Length of a cell.
    pub cell_s: u64,
    pub gpus: BTreeMap<GpuPlace, GpuFacts>,
    pub hosts: BTreeMap<String, BTreeMap<u64, HostCell>>,
    /// Training steps by run, or by process where no run is known.
    pub steps: BTreeMap<StepSource, BTreeMap<u64, StepCell>>,
    /// Seconds in which each run held GPUs.
    pub held_by_run_s: BTreeMap<String, f64>,
    /// Cells in which a host has rows of steps.
    pub step_cells: BTreeMap<String, BTreeSet<u64>>,
    pub hangs: BTreeMap<HungProcess, HangFacts>,
}

/// Whose steps rows count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StepSource {
    Run(String),
    /// A process of no run, with its workflow type.
    Process {
        workflow: String,
        pid: u32,
    },
}

impl StepSource {
    /// Returns a name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Run(run) => run.clone(),
            Self::Process { workflow, pid } => format!("process {pid} ({workflow})"),
        }
    }

    /// Returns the run, if one is known.
    pub fn run(&self) -> Option<&String> {
        match self {
            Self::Run(run) => Some(run),
            Self::Process { .. } => None,
        }
    }
}

/// What the rows of a GPU say.
#[derive(Debug, Default)]
pub struct GpuFacts {
    pub cells: BTreeMap<u64, GpuCell>,
    /// Seconds of throttling that nobody chose, by reason.
    pub throttled_s: BTreeMap<String, f64>,
    pub errors: BTreeMap<String, u64>,
}

/// Seconds of one GPU in one cell.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuCell {
    pub observed_s: f64,
    /// Time in which a run held the GPU, or the run that is looked at.
    pub held_s: f64,
    /// The part of `held_s` in which `busy_s` was observed.
    pub busy_observed_s: f64,
    pub busy_s: f64,
    /// The part of `busy_observed_s` in intervals in which the GPU was idle throughout.
    pub idle_s: f64,
    /// The part of `held_s` in which `sm_active_s` was observed, and of `busy_s`.
    pub sm_observed_s: f64,
    pub sm_busy_s: f64,
    pub sm_active_s: f64,
    pub throttled_s: f64,
    /// Joules of the time `energy_s`.
    pub energy_j: f64,
    pub energy_s: f64,
    pub memory_used: Option<u64>,
    pub temperature_max: Option<f64>,
}

/// What a host did in one cell.
#[derive(Clone, Debug, Default)]
pub struct HostCell {
    pub observed_s: f64,
    /// CPU seconds: busy, waiting for disks, and all of them.
    pub cpu_busy_s: f64,
    pub cpu_wait_s: f64,
    pub cpu_all_s: f64,
    /// Seconds in which some task waited, by resource.
    pub pressure_s: BTreeMap<String, f64>,
    /// Smallest share of the memory that was available.
    pub memory_available: Option<f64>,
    /// Bytes by kind of device and direction, such as `network receive`.
    pub bytes: BTreeMap<String, u64>,
}

/// Training steps of all processes of a run in one cell.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepCell {
    /// All steps, and the seconds of the rows of all processes.
    pub all_steps: u64,
    pub process_s: f64,
    /// Steps whose time is known, and their time.
    pub steps: u64,
    pub time_s: f64,
    /// Number of the steps that the quantiles describe, and the quantiles multiplied by it.
    pub quantile_steps: f64,
    pub p50_sum_s: f64,
    pub p95_sum_s: f64,
}

/// A process that hung, from a time in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HungProcess {
    pub host: String,
    pub pid: u32,
    pub start_ms: i64,
}

/// For how long a process hung.
#[derive(Clone, Debug, Default)]
pub struct HangFacts {
    pub run: String,
    pub length_s: f64,
    pub is_over: bool,
}

/// What one look at the files needs.
struct FactReader<'a> {
    folder: &'a StoreFolder,
    range: &'a Range<u64>,
    cell_s: u64,
}

impl DoctorFacts {
    /// Reads the rows of a run or a host that start in a range. `reporting_hosts` reported
    /// processes of the run, perhaps without GPUs and steps.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(
        folder: &StoreFolder,
        subject: &DoctorSubject,
        range: &Range<u64>,
        reporting_hosts: &BTreeSet<String>,
    ) -> Result<Self, Error> {
        // At most 1,440 cells for each GPU.
        let cell_s = MINUTE_S * (range.end - range.start).div_ceil(DAY_S).max(1);
        let reader = FactReader { folder, range, cell_s };
        let is_run = matches!(subject, DoctorSubject::Run(_));
        let mut facts = Self { is_run, cell_s, ..Self::default() };
        reader.read(RowTable::Gpu, &GPU_COLUMNS, &gpu_choice(subject), |batch, path, rows| {
            facts.add_gpus(batch, path, subject, rows)
        })?;
        let of_subject = activity_choice(subject);
        reader.read(RowTable::Step, &STEP_COLUMNS, &of_subject, |batch, path, rows| {
            facts.add_steps(batch, path, rows)
        })?;
        let hosts: BTreeSet<String> = match subject {
            DoctorSubject::Host(host) => [host.clone()].into(),
            DoctorSubject::Run(_) => {
                let with_gpus = facts.gpus.keys().map(|gpu| &gpu.host);
                with_gpus.chain(facts.step_cells.keys()).chain(reporting_hosts).cloned().collect()
            }
        };
        let is_own = move |host: &str| hosts.contains(host);
        let of_hosts = RowChoice::by_texts(&["host"], move |texts| is_own(texts[0]));
        reader.read(RowTable::Host, &HOST_COLUMNS, &of_hosts, |batch, path, rows| {
            facts.add_hosts(batch, path, rows)
        })?;
        if is_run {
            facts.keep_times_of_run();
        }
        reader.read(RowTable::Event, &EVENT_COLUMNS, &of_subject, |batch, path, rows| {
            facts.add_hangs(batch, path, rows)
        })?;
        Ok(facts)
    }

    /// Seconds in which GPUs were held.
    pub fn held_s(&self) -> f64 {
        // The sum of no numbers is -0.0.
        self.gpus.values().map(GpuFacts::held_s).sum::<f64>() + 0.0
    }

    /// Returns the share of the held time that a run has.
    pub fn share_of_run(&self, run: &str) -> f64 {
        let own_s = self.held_by_run_s.get(run).copied().unwrap_or(0.0);
        (own_s / self.held_s().max(1.0)).min(1.0)
    }

    /// Whether no row of the run or host exists.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.hosts.is_empty() && self.steps.is_empty()
    }

    /// Returns the share of the CPU time of all hosts that was busy.
    pub fn cpu_busy(&self) -> Option<f64> {
        let cells = || self.hosts.values().flat_map(BTreeMap::values);
        let all_s: f64 = cells().map(|cell| cell.cpu_all_s).sum();
        (all_s > 0.0).then(|| cells().map(|cell| cell.cpu_busy_s).sum::<f64>() / all_s)
    }

    /// Adds up the GPUs of a host in one cell.
    pub fn gpus_of(&self, host: &str, cell: u64) -> GpuCell {
        let first = GpuPlace { host: host.to_owned(), index: 0 };
        let gpus = self.gpus.range(first..).take_while(|(gpu, _)| gpu.host == host);
        let cells = gpus.filter_map(|(_, facts)| facts.cells.get(&cell));
        cells.fold(GpuCell::default(), |mut sum, one| {
            sum.held_s += one.held_s;
            sum.busy_observed_s += one.busy_observed_s;
            sum.busy_s += one.busy_s;
            sum
        })
    }

    /// Leaves out what hosts did while the run neither held their GPUs nor had steps on them. All
    /// times of a host with neither count, because its processes were only reported.
    fn keep_times_of_run(&mut self) {
        for (host, cells) in &mut self.hosts {
            let gpus = self.gpus.iter().filter(|(gpu, _)| gpu.host == *host);
            let mut own: BTreeSet<u64> =
                gpus.flat_map(|(_, gpu)| gpu.cells.keys().copied()).collect();
            own.extend(self.step_cells.get(host).into_iter().flatten());
            cells.retain(|start, _| own.is_empty() || own.contains(start));
        }
    }

    fn add_gpus(
        &mut self,
        batch: &RecordBatch,
        path: &Path,
        subject: &DoctorSubject,
        rows: &[RowCell],
    ) -> Result<(), Error> {
        let reals = |name| column::<Float64Array>(batch, name, path);
        let hosts: &StringArray = column(batch, "host", path)?;
        let indexes: &UInt32Array = column(batch, "index", path)?;
        let instances: &UInt32Array = column(batch, "instance", path)?;
        let lengths: &UInt32Array = column(batch, "length_s", path)?;
        let runs: &StringArray = column(batch, "run", path)?;
        let further = batch.column_by_name(FURTHER_RUNS).and_then(|array| array.as_list_opt());
        let further: &ListArray =
            further.ok_or_else(|| Error::Column { path: path.to_owned(), column: FURTHER_RUNS })?;
        let memory: &UInt64Array = column(batch, "memory_used", path)?;
        let throttled: &MapArray = column(batch, "throttle_s", path)?;
        let errors: &MapArray = column(batch, "errors", path)?;
        let (observed, busy, sm) = (reals("observed_s")?, reals("busy_s")?, reals("sm_active_s")?);
        let (energy, temperatures) = (reals("energy_j")?, reals("temperature_max")?);
        for &RowCell { row, cell, .. } in rows {
            // The whole GPU of an instance has a row too.
            if instances.is_valid(row) {
                continue;
            }
            let place = GpuPlace { host: hosts.value(row).to_owned(), index: indexes.value(row) };
            let gpu = self.gpus.entry(place).or_default();
            let sums = gpu.cells.entry(cell).or_default();
            let observed_s = observed.value(row);
            sums.observed_s += observed_s;
            let mut holders = further_runs(further, row);
            holders.extend(runs.is_valid(row).then(|| runs.value(row).to_owned()));
            let length_s = f64::from(lengths.value(row));
            let each = 1.0 / holders.len().max(1) as f64;
            let share = match subject {
                DoctorSubject::Host(_) => holders.len().min(1) as f64,
                DoctorSubject::Run(_) => each,
            };
            if share > 0.0 {
                sums.held_s += share * length_s;
                if busy.is_valid(row) {
                    let busy_s = busy.value(row);
                    sums.busy_observed_s += share * observed_s;
                    sums.busy_s += share * busy_s;
                    if busy_s < IDLE_BUSY_MAX * observed_s {
                        sums.idle_s += share * observed_s;
                    }
                    if sm.is_valid(row) {
                        sums.sm_observed_s += share * observed_s;
                        sums.sm_busy_s += share * busy_s;
                        sums.sm_active_s += share * sm.value(row);
                    }
                }
            }
            for run in holders {
                let is_own = !matches!(subject, DoctorSubject::Run(own) if *own != run);
                if is_own {
                    *self.held_by_run_s.entry(run).or_default() += each * length_s;
                }
            }
            if energy.is_valid(row) {
                sums.energy_j += energy.value(row);
                sums.energy_s += observed_s;
            }
            if memory.is_valid(row) {
                sums.memory_used = sums.memory_used.max(Some(memory.value(row)));
            }
            if temperatures.is_valid(row) {
                let last = sums.temperature_max.unwrap_or(f64::MIN);
                sums.temperature_max = Some(last.max(temperatures.value(row)));
            }
            let mut slowed_s: f64 = 0.0;
            for (reason, seconds) in members::<Float64Type>(throttled, row) {
                if seconds > 0.0 && !CHOSEN.contains(&reason.as_str()) {
                    // Several reasons may hold at the same time.
                    slowed_s = slowed_s.max(seconds);
                    *gpu.throttled_s.entry(reason).or_default() += seconds;
                }
            }
            sums.throttled_s += slowed_s;
            for (name, count) in members::<UInt64Type>(errors, row) {
                if count > 0 {
                    *gpu.errors.entry(name).or_default() += count;
                }
            }
        }
        Ok(())
    }

    fn add_hosts(
        &mut self,
        batch: &RecordBatch,
        path: &Path,
        rows: &[RowCell],
    ) -> Result<(), Error> {
        let maps = |name| column::<MapArray>(batch, name, path);
        let hosts: &StringArray = column(batch, "host", path)?;
        let observed: &Float64Array = column(batch, "observed_s", path)?;
        let totals: &UInt64Array = column(batch, "memory_total", path)?;
        let available: &UInt64Array = column(batch, "memory_available_min", path)?;
        let (cpu, pressure, bytes) = (maps("cpu_s")?, maps("pressure_s")?, maps("bytes")?);
        for &RowCell { row, cell, .. } in rows {
            let cells = self.hosts.entry(hosts.value(row).to_owned()).or_default();
            let sums = cells.entry(cell).or_default();
            sums.observed_s += observed.value(row);
            for (mode, seconds) in members::<Float64Type>(cpu, row) {
                sums.cpu_all_s += seconds;
                match mode.as_str() {
                    "idle" => {}
                    "iowait" => sums.cpu_wait_s += seconds,
                    _ => sums.cpu_busy_s += seconds,
                }
            }
            for (resource, seconds) in members::<Float64Type>(pressure, row) {
                *sums.pressure_s.entry(resource).or_default() += seconds;
            }
            if totals.value(row) > 0 {
                let share = available.value(row) as f64 / totals.value(row) as f64;
                sums.memory_available = Some(sums.memory_available.unwrap_or(1.0).min(share));
            }
            for (name, count) in members::<UInt64Type>(bytes, row) {
                let mut words = name.split('/');
                let kind = words.next().unwrap_or_default();
                let direction = words.next_back().unwrap_or_default();
                // Traffic within the host uses no network.
                if words.next() != Some("lo") {
                    *sums.bytes.entry(format!("{kind} {direction}")).or_default() += count;
                }
            }
        }
        Ok(())
    }

    fn add_steps(
        &mut self,
        batch: &RecordBatch,
        path: &Path,
        rows: &[RowCell],
    ) -> Result<(), Error> {
        let reals = |name| column::<Float64Array>(batch, name, path);
        let texts = |name| column::<StringArray>(batch, name, path);
        let (hosts, schedulers, jobs) = (texts("host")?, texts("scheduler")?, texts("job")?);
        let workflows = texts("workflow")?;
        let lengths: &UInt32Array = column(batch, "length_s", path)?;
        let pids: &UInt32Array = column(batch, "pid", path)?;
        let all_steps: &UInt64Array = column(batch, "steps", path)?;
        let steps: &UInt64Array = column(batch, "timed_steps", path)?;
        let (times, medians, high) =
            (reals("timed_s")?, reals("step_p50_s")?, reals("step_p95_s")?);
        for &RowCell { row, cell, .. } in rows {
            let source = match jobs.value(row) {
                "" => StepSource::Process {
                    workflow: workflows.value(row).to_owned(),
                    pid: pids.value(row),
                },
                job => StepSource::Run(format!("{}/{job}", schedulers.value(row))),
            };
            self.step_cells.entry(hosts.value(row).to_owned()).or_default().insert(cell);
            let sums = self.steps.entry(source).or_default().entry(cell).or_default();
            sums.all_steps += all_steps.value(row);
            sums.process_s += f64::from(lengths.value(row));
            if steps.value(row) == 0 {
                continue;
            }
            sums.steps += steps.value(row);
            sums.time_s += times.value(row);
            if medians.is_valid(row) && high.is_valid(row) {
                let count = steps.value(row) as f64;
                sums.quantile_steps += count;
                sums.p50_sum_s += count * medians.value(row);
                sums.p95_sum_s += count * high.value(row);
            }
        }
        Ok(())
    }

    fn add_hangs(
        &mut self,
        batch: &RecordBatch,
        path: &Path,
        rows: &[RowCell],
    ) -> Result<(), Error> {
        let texts = |name| column::<StringArray>(batch, name, path);
        let (hosts, kinds) = (texts("host")?, texts("kind")?);
        let (schedulers, jobs) = (texts("scheduler")?, texts("job")?);
        let lengths: &Float64Array = column(batch, "length_s", path)?;
        let over: &BooleanArray = column(batch, "is_over", path)?;
        let pids: &UInt32Array = column(batch, "pid", path)?;
        for &RowCell { row, start_ms, .. } in rows.iter().filter(|at| kinds.value(at.row) == HANG) {
            let pid = if pids.is_valid(row) { pids.value(row) } else { 0 };
            let process = HungProcess { host: hosts.value(row).to_owned(), pid, start_ms };
            let hang = self.hangs.entry(process).or_default();
            hang.run = format!("{}/{}", schedulers.value(row), jobs.value(row));
            hang.length_s = hang.length_s.max(lengths.value(row));
            hang.is_over |= over.value(row);
        }
        Ok(())
    }
}

impl GpuFacts {
    /// Seconds in which the GPU was held.
    pub fn held_s(&self) -> f64 {
        self.sum(|cell| cell.held_s)
    }

    /// Adds up a value of all cells.
    pub fn sum(&self, value: impl Fn(&GpuCell) -> f64) -> f64 {
        self.cells.values().map(value).sum()
    }
}

/// A row with its cell, and its start in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct RowCell {
    row: usize,
    cell: u64,
    start_ms: i64,
}

impl FactReader<'_> {
    /// Reads the chosen rows of a table that start in the range.
    fn read(
        &self,
        table: RowTable,
        columns: &[&str],
        choice: &RowChoice,
        mut add: impl FnMut(&RecordBatch, &Path, &[RowCell]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let table = table.folder();
        for hour in self.folder.hours(table)? {
            if (hour + 1) * HOUR_S <= self.range.start || hour * HOUR_S >= self.range.end {
                continue;
            }
            let partition = Partition { hour: Some(hour), table };
            self.folder.read_chosen(partition, columns, choice, |batch, path| {
                let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
                let cell = |row| {
                    let start_ms = starts.value(row);
                    let start_s = u64::try_from(start_ms / 1000).unwrap_or(0);
                    let cell = start_s / self.cell_s * self.cell_s;
                    let is_inside = self.range.contains(&start_s);
                    is_inside.then_some(RowCell { row, cell, start_ms })
                };
                let rows: Vec<RowCell> = (0..batch.num_rows()).filter_map(cell).collect();
                add(batch, path, &rows)
            })?;
        }
        Ok(())
    }
}

/// Returns the runs that share a GPU with the first one.
fn further_runs(further: &ListArray, row: usize) -> Vec<String> {
    let names = || {
        let list = further.is_valid(row).then(|| further.value(row))?;
        let runs: &StringArray = list.as_struct_opt()?.column_by_name("run")?.as_string_opt()?;
        Some(runs.iter().flatten().map(str::to_owned).collect())
    };
    names().unwrap_or_default()
}

/// Chooses the rows of GPUs of a run, also of one that shares a GPU, or of a host.
fn gpu_choice(subject: &DoctorSubject) -> RowChoice {
    let run = match subject {
        DoctorSubject::Host(host) => {
            let host = host.clone();
            return RowChoice::by_texts(&["host"], move |texts| texts[0] == host);
        }
        DoctorSubject::Run(run) => run.clone(),
    };
    let choose = move |batch: &RecordBatch| -> BooleanArray {
        let first: Option<&StringArray> =
            batch.column_by_name("run").and_then(|array| array.as_string_opt());
        let further =
            batch.column_by_name(FURTHER_RUNS).and_then(|array| array.as_list_opt::<i32>());
        let shares =
            |row: usize| further.is_some_and(|list| further_runs(list, row).contains(&run));
        let is_first =
            |row: usize| first.is_some_and(|first| first.is_valid(row) && first.value(row) == run);
        (0..batch.num_rows()).map(|row| Some(is_first(row) || shares(row))).collect()
    };
    RowChoice { columns: &["run", FURTHER_RUNS], is_chosen: Arc::new(choose) }
}

/// Chooses the rows of steps and events of a run or a host.
fn activity_choice(subject: &DoctorSubject) -> RowChoice {
    match subject {
        DoctorSubject::Host(host) => {
            let host = host.clone();
            RowChoice::by_texts(&["host"], move |texts| texts[0] == host)
        }
        DoctorSubject::Run(run) => {
            let (scheduler, job) = run.split_once('/').unwrap_or(("", run));
            let own = [scheduler.to_owned(), job.to_owned()];
            RowChoice::by_texts(&["scheduler", "job"], move |texts| texts == own)
        }
    }
}
