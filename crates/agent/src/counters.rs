//! Counters of this host: the thread that reads them twice a second, and what it writes every ten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet::process::uid_of;
use fleet::proto::Body;
use serde::Serialize;

use crate::hub::{self, Hub};
use crate::state::{AgentState, GpuState, HostState, lock, unix_ns};
use gpu::{GpuIdentity, Gpus};
use interval::{CounterReading, IntervalRow, ReadingTime};
use machine::Watch;

pub mod dcgm;
pub mod gpu;
pub mod host;
pub mod interval;
pub mod machine;

/// Between two readings.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after which a lost device is looked up again.
const AGAIN: Duration = Duration::from_secs(10);
/// Readings between two questions to the driver, whose processes compute on a GPU.
const COMPUTING_EVERY: u64 = 10;
/// Where control groups are.
const GROUPS: &str = "/sys/fs/cgroup";

/// A row of a GPU, as it is written.
#[derive(Debug, Serialize)]
struct GpuLine<'a> {
    host: &'a str,
    gpu: u32,
    uuid: &'a str,
    instance: Option<u32>,
    runs: Vec<String>,
    #[serde(flatten)]
    row: &'a IntervalRow,
}

/// A row of the host, as it is written.
#[derive(Debug, Serialize)]
struct HostLine<'a> {
    host: &'a str,
    start_unix_s: u64,
    observed_s: f64,
    counters: &'a host::HostCounters,
    memory_available_min: u64,
    cpu_busy_max: Option<f64>,
    cores_busy_p5_p25_p50_p75_p95: Option<[f64; 5]>,
    groups: &'a BTreeMap<String, host::ControlGroup>,
}

/// Where rows go: to a file or stdout, and to the hub.
pub struct RowSink {
    lines: Option<Box<dyn Write + Send>>,
    hub: Option<Arc<Hub>>,
    /// Rows of this look, which the queue takes at once.
    pending: Vec<Body>,
    start_unix_s: u64,
}

impl RowSink {
    /// Rows go to the end of a file, or to stdout for `-`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>, hub: Option<Arc<Hub>>) -> io::Result<Self> {
        let lines: Option<Box<dyn Write + Send>> = match path {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(Box::new(io::stdout())),
            Some(path) => Some(Box::new(File::options().append(true).create(true).open(path)?)),
        };
        Ok(Self { lines, hub, pending: Vec::new(), start_unix_s: 0 })
    }

    fn is_none(&self) -> bool {
        self.lines.is_none() && self.hub.is_none()
    }

    /// Puts a row aside for the hub.
    fn queue(&mut self, start_unix_s: u64, row: impl FnOnce() -> Body) {
        if self.hub.is_some() {
            self.pending.push(row());
            self.start_unix_s = self.start_unix_s.max(start_unix_s);
        }
    }

    /// Queues what was put aside.
    fn flush(&mut self, state: &AgentState) {
        let rows = std::mem::take(&mut self.pending);
        let Some(hub) = self.hub.as_ref().filter(|_| !rows.is_empty()) else { return };
        if let Err(error) = hub.add_rows(self.start_unix_s, rows) {
            state.note(format!("queue of the hub: {error}"));
        }
    }

    fn write(&mut self, line: &impl Serialize) {
        let Some(out) = &mut self.lines else { return };
        let mut text = serde_json::to_string(line).unwrap_or_default();
        text.push('\n');
        // Whoever read it has gone: the pages go on.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Reads until the agent ends.
pub fn run(state: &Arc<AgentState>, mut sink: RowSink) {
    let nvml = match gpu::load(state.config.nvml.as_deref()) {
        Ok(nvml) => Some(nvml),
        Err(problem) => {
            state.note(problem);
            None
        }
    };
    let mut notes = Vec::new();
    let mut gpus = nvml.as_ref().map(|nvml| Gpus::find(nvml, &mut notes));
    notes.into_iter().for_each(|note| state.note(note));
    if let Some(gpus) = &gpus {
        let gpu = |identity| GpuState::new(identity, state.config.interval_s());
        *lock(&state.gpus) = gpus.identities().into_iter().map(gpu).collect();
    }
    let mut page = dcgm::DcgmPage::new(state.config.dcgm_page.clone());
    let began = Instant::now();
    let mut watch = Watch::new(state.config.interval_s());
    let mut retry = vec![Instant::now(); lock(&state.gpus).len()];
    let mut next = Instant::now();
    while !state.is_ending() {
        let at = moment(began);
        if let Some(gpus) = &mut gpus {
            read_gpus(state, (gpus, &page), &mut retry, at, &mut sink);
        }
        page.look(state, at, &mut sink);
        read_host(state, &mut watch, at, &mut sink);
        sink.flush(state);
        next += PERIOD;
        // After a sleep of the machine the missed readings are not made up for.
        next = next.max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Writes the rows of a device that ended.
fn emit(state: &AgentState, sink: &mut RowSink, identity: &GpuIdentity, rows: &[IntervalRow]) {
    if rows.is_empty() || sink.is_none() {
        return;
    }
    let holders = lock(&state.owners).runs_on(&identity.uuid).to_vec();
    let runs: Vec<String> = holders.iter().map(|run| run.job.clone()).collect();
    let length_s = state.config.interval_s();
    for row in rows {
        sink.queue(row.start_unix_s, || hub::row::gpu(identity, &holders, length_s, row));
        sink.write(&GpuLine {
            host: &state.host,
            gpu: identity.index,
            uuid: &identity.uuid,
            instance: identity.instance,
            runs: runs.clone(),
            row,
        });
    }
}

/// Takes a reading of a device in.
fn take(
    state: &AgentState,
    at: usize,
    moment: ReadingTime,
    reading: Result<CounterReading, String>,
    sink: &mut RowSink,
) {
    let (identity, rows) = {
        let mut gpus = lock(&state.gpus);
        let Some(gpu) = gpus.get_mut(at) else { return };
        let reading = match reading {
            Ok(reading) => {
                gpu.lost = None;
                gpu.xid = reading.xids.last().copied().unwrap_or(gpu.xid);
                gpu.last = Some(reading.clone());
                Some(reading)
            }
            Err(problem) => {
                gpu.lost = Some(problem);
                gpu.last = None;
                None
            }
        };
        (gpu.identity.clone(), gpu.intervals.read(moment, reading))
    };
    emit(state, sink, &identity, &rows);
}

fn read_gpus(
    state: &AgentState,
    (gpus, page): (&mut Gpus<'_>, &dcgm::DcgmPage),
    retry: &mut [Instant],
    at: ReadingTime,
    sink: &mut RowSink,
) {
    gpus.hear();
    // All devices are read in step, so the first one counts for all.
    let reads = lock(&state.gpus).first().map_or(0, |gpu| gpu.intervals.total.reads);
    for (which, retry) in retry.iter_mut().enumerate() {
        if *retry > Instant::now() {
            let lost = lock(&state.gpus).get(which).and_then(|gpu| gpu.lost.clone());
            take(state, which, at, Err(lost.unwrap_or_default()), sink);
            continue;
        }
        let identity = lock(&state.gpus).get(which).map(|gpu| gpu.identity.clone());
        let Some(identity) = identity else { continue };
        let is_paused = state.paused(identity.index).is_some();
        let mut reading = gpus.read(which, is_paused);
        if let (Ok(reading), false) = (&mut reading, is_paused) {
            page.fill(&identity.uuid, reading);
        }
        if reads.is_multiple_of(COMPUTING_EVERY) && reading.is_ok() {
            let users = gpus.computing(which).into_iter().filter_map(uid_of).collect();
            if let Some(gpu) = lock(&state.gpus).get_mut(which) {
                gpu.computing = users;
            }
        }
        if reading.is_err() {
            // A call on a lost device can take long; the others are read meanwhile.
            *retry = Instant::now() + AGAIN;
        }
        take(state, which, at, reading.map_err(|error| error.to_string()), sink);
    }
}

fn read_host(state: &AgentState, watch: &mut Watch, at: ReadingTime, sink: &mut RowSink) {
    let ended = watch.look(at, host::look(), || (host::read(), groups(state)));
    let Some(ended) = ended else { return };
    sink.write(&HostLine {
        host: &state.host,
        start_unix_s: ended.start_unix_s,
        observed_s: ended.observed_s,
        counters: &ended.host,
        memory_available_min: ended.memory_available_min,
        cpu_busy_max: ended.cpu_busy_max,
        cores_busy_p5_p25_p50_p75_p95: ended.cores,
        groups: &ended.groups,
    });
    sink.queue(ended.start_unix_s, || hub::row::host(&ended, state.config.interval_s()));
    *lock(&state.machine) =
        HostState { host: ended.host, cores: ended.cores, groups: ended.groups };
}

/// The control groups of runs.
fn groups(state: &AgentState) -> BTreeMap<String, host::ControlGroup> {
    let paths: BTreeSet<String> = {
        let owners = lock(&state.owners);
        owners.run_groups().into_iter().map(str::to_owned).collect()
    };
    let read = |path: String| {
        let group = host::group(Path::new(GROUPS), &path);
        (path, group)
    };
    paths.into_iter().map(read).collect()
}

fn moment(began: Instant) -> ReadingTime {
    let monotonic_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    ReadingTime { monotonic_ns, unix_ns: unix_ns() }
}
