//! Counters of this host. One thread reads the counters twice a second and writes a row per
//! interval.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fleet::process::uid_of;
use nvml_wrapper::Nvml;
use serde::Serialize;

use crate::hub;
use crate::hub::activity::Activity;
use crate::state::{AgentState, GpuState, HostState, lock, unix_ns};
use gpu::{GpuIdentity, Gpus};
use interval::ReadingTime;
use machine::Watch;
use row_sink::take_reading;

pub mod dcgm;
pub mod gpu;
pub mod host;
pub mod interval;
pub mod machine;
mod row_sink;

pub use row_sink::RowSink;

/// Time between two readings of the counters.
const PERIOD: Duration = Duration::from_millis(500);
/// Time after which devices are listed again, and a lost device or driver is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// Number of readings after which the driver is queried again for the processes that compute on a
/// GPU.
const COMPUTING_EVERY: u64 = 10;
/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// The JSON line of the host for one interval, as written to the file of rows.
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

/// Reads counters until the agent ends. If the driver is missing or stops responding, it is loaded
/// again periodically. The counters of the host are read in the meantime.
pub fn run(state: &Arc<AgentState>, sink: RowSink) {
    let mut readings = Readings::new(state, sink);
    while !state.is_ending() {
        match gpu::load(state.config.nvml.as_deref()) {
            Ok(nvml) => readings.with_driver(&nvml),
            Err(problem) => readings.lose_driver(problem),
        }
        let again = Instant::now() + AGAIN;
        while !state.is_ending() && Instant::now() < again {
            readings.pass(None);
        }
    }
}

/// The state that the reading thread keeps between two readings.
struct Readings<'a> {
    state: &'a AgentState,
    sink: RowSink,
    page: dcgm::DcgmPage,
    watch: Watch,
    activity: Activity,
    began: Instant,
    last: ReadingTime,
    next: Instant,
    passes: u64,
    /// Lost devices by UUID, with the time at which each is tried again.
    retries: BTreeMap<String, Instant>,
}

impl<'a> Readings<'a> {
    fn new(state: &'a AgentState, sink: RowSink) -> Self {
        let began = Instant::now();
        Self {
            state,
            sink,
            page: dcgm::DcgmPage::new(state.config.dcgm_page.clone()),
            watch: Watch::new(state.config.interval_s()),
            activity: Activity::default(),
            began,
            last: moment(began),
            next: began,
            passes: 0,
            retries: BTreeMap::new(),
        }
    }

    /// Reads counters while the driver responds. Devices are listed again periodically, because
    /// devices and instances appear, disappear and return.
    fn with_driver(&mut self, nvml: &Nvml) {
        // Very old drivers do not report their version.
        self.state.set_driver_version(nvml.sys_driver_version().unwrap_or_default());
        let mut gpus = Gpus::new(nvml);
        let mut listed = None::<Instant>;
        while !self.state.is_ending() {
            if listed.is_none_or(|listed| listed.elapsed() >= AGAIN) {
                match gpus.list() {
                    Ok(Some(notes)) => adopt(self.state, &gpus, notes),
                    Ok(None) => {}
                    Err(error) => return self.lose_driver(format!("NVML: {error}")),
                }
                listed = Some(Instant::now());
            }
            let answers = self.pass(Some(&mut gpus));
            let has_devices = gpus.identities().next().is_some();
            if has_devices && answers == 0 && self.retries.len() >= gpus.identities().count() {
                return self.lose_driver("NVML: no GPU answers".to_owned());
            }
        }
    }

    /// Marks every GPU as lost, because the driver does not respond.
    fn lose_driver(&mut self, problem: String) {
        self.retries.clear();
        let mut gpus = lock(&self.state.gpus);
        for gpu in gpus.iter_mut().filter(|gpu| !gpu.is_from_page) {
            gpu.lost.get_or_insert_with(|| problem.clone());
        }
        drop(gpus);
        self.state
            .set_driver(false, vec![gpu::driver_note(&problem, self.state.config.nvml.as_deref())]);
    }

    /// Waits for the next reading time, reads all devices and the host once, and returns how many
    /// devices responded.
    fn pass(&mut self, gpus: Option<&mut Gpus<'_>>) -> usize {
        self.next += PERIOD;
        // After the machine was suspended, readings that were missed in the meantime are skipped.
        self.next = self.next.max(Instant::now());
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        let at = moment(self.began);
        self.watch_clock(at);
        let answered = gpus.map(|gpus| self.read_gpus(gpus, at)).unwrap_or_default();
        self.miss_others(&answered, at);
        self.page.look(self.state, at, &mut self.sink);
        let ended = read_host(self.state, &mut self.watch, at, &mut self.sink);
        if let Some(start_unix_s) = ended.filter(|_| self.state.hub.is_some()) {
            let now_unix_s = at.unix_ns / 1_000_000_000;
            self.sink
                .report(self.state, self.activity.report(self.state, start_unix_s, now_unix_s));
        }
        self.sink.flush(self.state);
        self.state.has_read();
        self.passes += 1;
        answered.len()
    }

    fn watch_clock(&mut self, at: ReadingTime) {
        let last = std::mem::replace(&mut self.last, at);
        let Some(ns) = interval::jump(last, at) else { return };
        self.state.clock.jumped(ns);
        let way = if ns > 0 { "forward" } else { "back" };
        self.state.note(format!(
            "the wall clock was set {way} while the agent ran: rows carry the time that it showed, and \
             intervals that it shows twice are written once"
        ));
    }

    /// Reads all devices and returns the UUIDs of those that responded.
    fn read_gpus(&mut self, gpus: &mut Gpus<'_>, at: ReadingTime) -> BTreeSet<String> {
        gpus.hear();
        let state = self.state;
        let mut answered = BTreeSet::new();
        let identities: Vec<GpuIdentity> = gpus.identities().cloned().collect();
        for (which, identity) in identities.iter().enumerate() {
            let uuid = &identity.uuid;
            if self.retries.get(uuid).is_some_and(|retry| *retry > Instant::now()) {
                continue;
            }
            let is_paused = state.paused(identity.index).is_some();
            match gpus.read(which, is_paused) {
                Ok(mut reading) => {
                    if let Some(key) = gpus.dcgm_key(which).filter(|_| !is_paused) {
                        self.page.fill(&key, &mut reading);
                    }
                    self.retries.remove(uuid);
                    answered.insert(uuid.clone());
                    if self.passes.is_multiple_of(COMPUTING_EVERY) {
                        let users = gpus.computing(which).into_iter().filter_map(uid_of).collect();
                        state.with_gpu(uuid, |gpu| gpu.computing = users);
                    }
                    take_reading(state, uuid, at, Ok(reading), &mut self.sink);
                }
                Err(error) => {
                    // A call on a lost device can block for long, so the device is skipped until
                    // the next retry.
                    self.retries.insert(uuid.clone(), Instant::now() + AGAIN);
                    state.with_gpu(uuid, |gpu| gpu.lost = Some(error.to_string()));
                }
            }
        }
        answered
    }

    /// Records that devices without a reading were not observed.
    fn miss_others(&mut self, answered: &BTreeSet<String>, at: ReadingTime) {
        let missed: Vec<(String, String)> = {
            let gpus = lock(&self.state.gpus);
            let missed = gpus.iter().filter(|gpu| !gpu.is_from_page);
            let missed = missed.filter(|gpu| !answered.contains(&gpu.identity.uuid));
            let why = |gpu: &GpuState| gpu.lost.clone().unwrap_or_default();
            missed.map(|gpu| (gpu.identity.uuid.clone(), why(gpu))).collect()
        };
        for (uuid, why) in missed {
            take_reading(self.state, &uuid, at, Err(why), &mut self.sink);
        }
    }
}

/// Updates the known GPUs from the driver's list. A whole GPU that is no longer listed is kept and
/// marked as lost. A removed instance is dropped.
fn adopt(state: &AgentState, gpus: &Gpus<'_>, notes: Vec<String>) {
    let mut known = lock(&state.gpus);
    for identity in gpus.identities() {
        match known.iter_mut().find(|gpu| gpu.identity.uuid == identity.uuid) {
            Some(gpu) => {
                gpu.identity.clone_from(identity);
                gpu.is_from_page = false;
            }
            None => known.push(GpuState::new(identity.clone(), state.config.interval_s())),
        }
    }
    let is_listed = |uuid: &str| gpus.identities().any(|identity| identity.uuid == uuid);
    known.retain_mut(|gpu| {
        let is_there = gpu.is_from_page || is_listed(&gpu.identity.uuid);
        if !is_there {
            gpu.lost = Some("the driver no longer lists it".to_owned());
        }
        is_there || gpu.identity.instance.is_none()
    });
    known.sort_by(|a, b| {
        (a.identity.index, a.identity.instance).cmp(&(b.identity.index, b.identity.instance))
    });
    drop(known);
    state.set_driver(true, notes);
}

/// Reads the host's counters. Returns the start of the interval if one has ended.
fn read_host(
    state: &AgentState,
    watch: &mut Watch,
    at: ReadingTime,
    sink: &mut RowSink,
) -> Option<u64> {
    let ended = watch.look(at, host::look(), || (host::read(), groups(state)))?;
    if ended.is_repeated {
        state.clock.discard(1);
    } else {
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
    }
    *lock(&state.machine) =
        HostState { host: ended.host, cores: ended.cores, groups: ended.groups };
    (!ended.is_repeated).then_some(ended.start_unix_s)
}

/// Reads the control groups of all training runs on this host.
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
