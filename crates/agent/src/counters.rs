//! Counters of this host: the thread that reads them twice a second, and what it writes every ten.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::state::{Gpu, Machine, State, lock, unix_ns};
use gpu::{Gpus, Identity};
use interval::{INTERVAL_S, Moment, Reading, Row};

pub mod dcgm;
pub mod gpu;
pub mod host;
pub mod interval;

/// Between two readings.
const PERIOD: Duration = Duration::from_millis(500);
/// A device that is lost is looked for again after this.
const AGAIN: Duration = Duration::from_secs(10);
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
    row: &'a Row,
}

/// A row of the host, as it is written.
#[derive(Debug, Serialize)]
struct HostLine<'a> {
    host: &'a str,
    start_unix_s: u64,
    counters: &'a host::Host,
    cores_busy_p5_p25_p50_p75_p95: Option<[f64; 5]>,
    groups: &'a std::collections::BTreeMap<String, host::Group>,
}

/// Where rows go.
pub enum Sink {
    /// Nowhere.
    None,
    /// To a file, or stdout.
    Lines(Box<dyn Write + Send>),
}

impl Sink {
    /// Rows go to the end of a file, to stdout for `-`, or nowhere.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        Ok(match path {
            None => Self::None,
            Some(path) if path.as_os_str() == "-" => Self::Lines(Box::new(io::stdout())),
            Some(path) => {
                Self::Lines(Box::new(File::options().append(true).create(true).open(path)?))
            }
        })
    }

    fn write(&mut self, line: &impl Serialize) {
        let Self::Lines(out) = self else { return };
        let mut text = serde_json::to_string(line).unwrap_or_default();
        text.push('\n');
        // Whoever read it has gone: the pages go on.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Reads until the agent ends.
pub fn run(state: &Arc<State>, mut sink: Sink) {
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
        *lock(&state.gpus) = gpus.identities().into_iter().map(Gpu::new).collect();
    }
    let mut page = dcgm::Page::new(state.config.dcgm_page.clone());
    let began = Instant::now();
    let mut host_start = unix_ns() / 1_000_000_000 / INTERVAL_S;
    let mut retry = vec![Instant::now(); lock(&state.gpus).len()];
    let mut next = Instant::now();
    while !state.is_ending() {
        let at = moment(began);
        if let Some(gpus) = &mut gpus {
            read_gpus(state, (gpus, &page), &mut retry, at, &mut sink);
        }
        page.look(state, at, &mut sink);
        let start = at.unix_ns / 1_000_000_000 / INTERVAL_S;
        if start != host_start {
            read_host(state, host_start * INTERVAL_S, &mut sink);
            host_start = start;
        }
        next += PERIOD;
        // After a sleep of the machine the missed readings are not made up for.
        next = next.max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Writes the rows of a device that ended.
fn emit(state: &State, sink: &mut Sink, identity: &Identity, rows: &[Row]) {
    if rows.is_empty() || matches!(sink, Sink::None) {
        return;
    }
    let runs: Vec<String> =
        lock(&state.owners).of(identity).iter().map(|run| run.job.clone()).collect();
    for row in rows {
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
    state: &State,
    at: usize,
    moment: Moment,
    reading: Result<Reading, String>,
    sink: &mut Sink,
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
    state: &State,
    (gpus, page): (&mut Gpus<'_>, &dcgm::Page),
    retry: &mut [Instant],
    at: Moment,
    sink: &mut Sink,
) {
    gpus.hear();
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
        if reading.is_err() {
            // A call on a lost device can take long; the others are read meanwhile.
            *retry = Instant::now() + AGAIN;
        }
        take(state, which, at, reading.map_err(|error| error.to_string()), sink);
    }
}

fn read_host(state: &State, start_unix_s: u64, sink: &mut Sink) {
    let host = host::read();
    let now = Instant::now();
    let paths: std::collections::BTreeSet<String> = {
        let owners = lock(&state.owners);
        let of_runs = owners.groups.iter().filter(|(pid, _)| owners.runs.contains_key(pid));
        of_runs.map(|(_, path)| path.clone()).collect()
    };
    let groups = paths.into_iter().map(|path| {
        let group = host::group(Path::new(GROUPS), &path);
        (path, group)
    });
    let groups = groups.collect();
    let mut machine = lock(&state.machine);
    let before = machine.before.take();
    let cores = before
        .as_ref()
        .and_then(|(before, at)| host::core_quantiles(before, &host, (now - *at).as_secs_f64()));
    let line = HostLine {
        host: &state.host,
        start_unix_s,
        counters: &host,
        cores_busy_p5_p25_p50_p75_p95: cores,
        groups: &groups,
    };
    sink.write(&line);
    *machine = Machine { before: Some((host.clone(), now)), host, cores, groups };
}

fn moment(began: Instant) -> Moment {
    let monotonic_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Moment { monotonic_ns, unix_ns: unix_ns() }
}
