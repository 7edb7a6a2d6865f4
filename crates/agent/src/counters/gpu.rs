//! Lists GPUs and reads their counters with NVML, which is loaded at run time.
//!
//! From Hopper on, NVML's GPM functions report the activity of the SMs, averaged between two
//! samples. Older GPUs lack these values. A GPU that cannot be read is marked as *lost* with the
//! reason, and is tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fleet::untrusted::{Privacy, open_trusted};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id;
use nvml_wrapper::{Device, Nvml};

use super::interval::{CounterReading, Pipes, RowRemap};

/// The largest valid percentage. Drivers report larger numbers for unknown values.
const PERCENT_MAX: f64 = 100.5;
/// The GPM metrics to request. `take_sample` refers to them by their position in this list.
const METRICS: [GpmMetricId; 12] = [
    GpmMetricId::GraphicsUtil,
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::Fp64Util,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::DramBwUtil,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
    GpmMetricId::NvlinkTotalTxPerSec,
    GpmMetricId::NvlinkTotalRxPerSec,
];
/// Error counters of NVML: field id, name, and width of the counter in bits.
const ERROR_FIELDS: [(u32, &str, u32); 6] = [
    (field_id::NVML_FI_DEV_REMAPPED_COR, "row_remap_corrected", 32),
    (field_id::NVML_FI_DEV_REMAPPED_UNC, "row_remap_uncorrected", 32),
    (field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, "nvlink_crc_flit", 64),
    (field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, "nvlink_crc_data", 64),
    (field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, "nvlink_replay", 64),
    (field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, "nvlink_recovery", 64),
];
/// NVML fields for memory rows that await a reset to be remapped, and for failed remappings.
const REMAP_FIELDS: [u32; 2] =
    [field_id::NVML_FI_DEV_REMAPPED_PENDING, field_id::NVML_FI_DEV_REMAPPED_FAILURE];
/// Number of readings between two queries of the error and remapping fields, which change rarely.
const FIELDS_EVERY: u64 = 10;
/// Throttle reasons that cost time, with their names. All other reasons are configured limits.
const REASONS: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync_boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hw_power_brake"),
];
/// Largest number of XID events that are read at once.
const EVENTS_MAX: usize = 64;

/// The identity of a whole GPU or of a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Index among the GPUs of the host.
    pub index: u32,
    pub uuid: String,
    pub model: String,
    /// PCI bus id, in the format of the driver.
    pub pci: String,
    /// Index of the MIG instance; `None` for a whole GPU.
    pub instance: Option<u32>,
    /// UUID of the whole GPU, if this is a MIG instance.
    pub parent: Option<String>,
}

/// Loads NVML from the path `library`, or by its usual name if there is no path.
pub fn load(library: Option<&Path>) -> Result<Nvml, String> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        // The library's code runs with the agent's rights, so other users must not be able to
        // replace the file.
        if path.is_absolute() {
            open_trusted(path, Privacy::Readable).map_err(|error| format!("NVML: {error}"))?;
        }
        builder.lib_path(path.as_os_str());
    }
    let name = library.map_or("libnvidia-ml.so.1".into(), |path| path.display().to_string());
    let from = library.is_none().then(|| std::ffi::OsStr::new("libnvidia-ml.so.1"));
    if let Some(from) = from {
        builder.lib_path(from);
    }
    builder.init().map_err(|error| match error {
        NvmlError::LibloadingError(error) => {
            let error = error.to_string();
            // The loader's message already begins with the name of the library, which is not
            // repeated.
            let why = error.strip_prefix(&format!("{name}: ")).unwrap_or(&error);
            format!("NVML: cannot load {name}: {why}")
        }
        error => format!("NVML: {name} cannot be initialized: {error}"),
    })
}

/// Builds the note for a missing driver, with the consequence and a remedy. `library` is the path
/// in the configuration.
pub fn driver_note(problem: &str, library: Option<&Path>) -> String {
    let change = if library.is_some() { "correct or remove" } else { "set" };
    format!(
        "{problem}. GPUs are not read. On a host without NVIDIA GPUs nothing is wrong; otherwise make \
         `nvidia-smi` work, or {change} `nvml`, the path of libnvidia-ml.so.1. The agent tries again \
         every 10 s"
    )
}

/// The GPUs of a host, opened with NVML. Each GPU is read separately, so that a lost GPU does not
/// affect the others.
pub struct Gpus<'nvml> {
    nvml: &'nvml Nvml,
    events: Option<EventSet<'nvml>>,
    devices: Vec<KnownGpu<'nvml>>,
    xids: BTreeMap<String, Vec<u64>>,
}

/// A listed GPU or MIG instance. The entry keeps the driver's handle and the previous GPM sample,
/// because activity is computed between two samples.
struct KnownGpu<'nvml> {
    identity: GpuIdentity,
    device: Device<'nvml>,
    /// The whole GPU, if this is an instance. GPM samples of an instance are taken through it.
    whole: Option<Device<'nvml>>,
    /// The driver's id of the GPU instance, which is known once a process has run on it.
    gpu_instance: Option<u32>,
    /// Whether the GPU is partitioned (MIG). Memory and activity are then reported by its
    /// instances.
    is_split: bool,
    has_gpm: bool,
    sample: Option<GpmSample<'nvml>>,
    reads: u64,
    fields: Fields,
}

/// Values of the rarely changing NVML fields at their last reading.
#[derive(Clone, Debug, Default)]
struct Fields {
    errors: Vec<(&'static str, u64, u32)>,
    remap: Option<RowRemap>,
}

/// The listed devices, and notes about the devices that cannot be listed.
type Listing<'nvml> = (Vec<(GpuIdentity, Device<'nvml>)>, Vec<String>);

impl<'nvml> Gpus<'nvml> {
    /// Creates an empty list of devices, which [`Self::list`] fills.
    pub fn new(nvml: &'nvml Nvml) -> Self {
        Self { nvml, events: None, devices: Vec::new(), xids: BTreeMap::new() }
    }

    /// Lists the devices again. If the list has changed, returns notes about missing capabilities.
    ///
    /// # Errors
    /// If the driver does not respond and must be loaded again.
    pub fn list(&mut self) -> Result<Option<Vec<String>>, NvmlError> {
        let (listed, mut notes) = list(self.nvml)?;
        let old_identities = self.devices.iter().map(|old_identities| &old_identities.identity);
        if !listed.is_empty() && old_identities.eq(listed.iter().map(|(identity, _)| identity)) {
            return Ok(None);
        }
        // Samples and event registrations refer to the old device handles, so they are dropped with
        // them.
        (self.events, self.devices) = (None, Vec::new());
        let parents: BTreeSet<String> =
            listed.iter().filter_map(|(identity, _)| identity.parent.clone()).collect();
        for (identity, device) in listed {
            let is_instance = identity.instance.is_some();
            let whole =
                is_instance.then(|| self.nvml.device_by_index(identity.index).ok()).flatten();
            let has_gpm = whole.as_ref().unwrap_or(&device).gpm_support().unwrap_or(false);
            let is_split = parents.contains(&identity.uuid);
            self.devices.push(KnownGpu {
                identity,
                device,
                whole,
                gpu_instance: None,
                is_split,
                has_gpm,
                sample: None,
                reads: 0,
                fields: Fields::default(),
            });
        }
        if self.devices.iter().any(|old_identities| !old_identities.has_gpm) {
            notes.push(
                "SM activity, occupancy, pipes and NVLink traffic are null for GPUs before Hopper, and \
                 so is the activity of their instances with processes: NVML has no GPM there; name a \
                 dcgm-exporter with dcgm_page"
                    .to_owned(),
            );
        }
        if !self.devices.is_empty() {
            self.events = self.register(&mut notes);
        }
        Ok(Some(notes))
    }

    /// The identities of all devices, in the order of the indices that [`Self::read`] takes.
    pub fn identities(&self) -> impl Iterator<Item = &GpuIdentity> {
        self.devices.iter().map(|known| &known.identity)
    }

    /// Collects the XID error events that the driver reported since the last call.
    pub fn hear(&mut self) {
        let Some(events) = &self.events else { return };
        for _ in 0..EVENTS_MAX {
            let Ok(event) = events.wait(0) else { return };
            let (Some(xid), Ok(uuid)) = (event.event_data, event.device.uuid()) else { continue };
            let number = match xid {
                XidError::Value(number) => number,
                XidError::Unknown => 999,
            };
            self.xids.entry(uuid).or_default().push(number);
        }
    }

    /// Reads the counters of one device. If `is_paused`, hardware counters are not used, so that
    /// other tools can use them.
    ///
    /// # Errors
    /// If the device does not respond, because it fell off the bus or the driver was unloaded.
    pub fn read(&mut self, at: usize, is_paused: bool) -> Result<CounterReading, NvmlError> {
        let gpu = &mut self.devices[at];
        if gpu.identity.instance.is_some() {
            return gpu.read_instance(self.nvml, is_paused);
        }
        let mut reading = gpu.read_whole()?;
        reading.xids = self.xids.remove(&gpu.identity.uuid).unwrap_or_default();
        if is_paused {
            gpu.sample = None;
        } else if gpu.has_gpm && !gpu.is_split {
            let sample = needed(gpu.device.gpm_sample())?;
            gpu.take_sample(self.nvml, sample, &mut reading);
        }
        Ok(reading)
    }

    /// The key of a device in DCGM's page: the UUID of the GPU, and for an instance also its
    /// number.
    pub fn dcgm_key(&self, at: usize) -> Option<String> {
        let gpu = &self.devices[at];
        match &gpu.identity.parent {
            Some(parent) => gpu.gpu_instance.map(|number| format!("{parent}/{number}")),
            None => Some(gpu.identity.uuid.clone()),
        }
    }

    /// Lists the processes that compute on a device. The list is empty if the driver does not
    /// report them.
    pub fn computing(&self, at: usize) -> Vec<u32> {
        let running = self.devices[at].device.running_compute_processes().unwrap_or_default();
        running.into_iter().map(|process| process.pid).collect()
    }

    fn register(&self, notes: &mut Vec<String>) -> Option<EventSet<'nvml>> {
        let mut set = self.nvml.create_event_set().ok();
        for known in self.devices.iter().filter(|known| known.identity.instance.is_none()) {
            let Some(events) = set.take() else { break };
            match known.device.register_events(EventTypes::CRITICAL_XID_ERROR, events) {
                Ok(events) => set = Some(events),
                Err(failed) => {
                    let error = failed.error;
                    notes.push(format!("GPU {}: no XID events: {error}", known.identity.index));
                    // The earlier registrations were lost together with the set, so an empty set
                    // replaces it.
                    set = self.nvml.create_event_set().ok();
                }
            }
        }
        set
    }
}

/// Lists whole GPUs, and the instances of partitioned GPUs (MIG).
fn list(nvml: &Nvml) -> Result<Listing<'_>, NvmlError> {
    let (mut listed, mut notes) = (Vec::new(), Vec::new());
    for index in 0..nvml.device_count()? {
        if let Err(error) = list_one(nvml, index, &mut listed) {
            notes.push(format!("GPU {index}: {error}"));
        }
    }
    Ok((listed, notes))
}

fn list_one<'nvml>(
    nvml: &'nvml Nvml,
    index: u32,
    listed: &mut Vec<(GpuIdentity, Device<'nvml>)>,
) -> Result<(), NvmlError> {
    let device = nvml.device_by_index(index)?;
    let pci = device.pci_info().map(|info| info.bus_id).unwrap_or_default();
    let (uuid, model) = (device.uuid()?, device.name().unwrap_or_default());
    if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
        for part in 0..device.mig_device_count().unwrap_or(0) {
            // A MIG slot without an instance has no device handle.
            let Ok(instance) = device.mig_device_by_index(part) else { continue };
            let identity = GpuIdentity {
                index,
                uuid: instance.uuid()?,
                model: instance.name().unwrap_or_else(|_| model.clone()),
                pci: pci.clone(),
                instance: Some(part),
                parent: Some(uuid.clone()),
            };
            listed.push((identity, instance));
        }
    }
    let (instance, parent) = (None, None);
    listed.push((GpuIdentity { index, uuid, model, pci, instance, parent }, device));
    Ok(())
}

impl<'nvml> KnownGpu<'nvml> {
    /// Reads all counters of a whole GPU except activity and events.
    fn read_whole(&mut self) -> Result<CounterReading, NvmlError> {
        let device = &self.device;
        // Every device supports this query, so an error means that the device is lost.
        let memory = needed(device.memory_info())?.filter(|_| !self.is_split);
        let mut reading = CounterReading {
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.as_ref().map(|memory| memory.total),
            busy: needed(device.utilization_rates())?.and_then(|rates| share(f64::from(rates.gpu))),
            power_w: needed(device.power_usage())?.map(|milliwatts| f64::from(milliwatts) * 1e-3),
            energy_j: needed(device.total_energy_consumption())?.map(|mj| mj as f64 * 1e-3),
            temperature: needed(device.temperature(TemperatureSensor::Gpu))?.map(f64::from),
            ..CounterReading::default()
        };
        if self.is_split {
            reading.busy = None;
        }
        let sm = needed(device.clock_info(Clock::SM))?;
        let memory_clock = needed(device.clock_info(Clock::Memory))?;
        reading.clocks_hz =
            sm.zip(memory_clock).map(|(sm, memory)| (f64::from(sm) * 1e6, f64::from(memory) * 1e6));
        if let Some(reasons) = needed(device.current_throttle_reasons())? {
            let held = REASONS.iter().filter(|(reason, _)| reasons.contains(*reason));
            reading.throttled = held.map(|(_, name)| *name).collect();
        }
        let uncorrected = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
        let corrected = device.total_ecc_errors(MemoryError::Corrected, EccCounter::Volatile);
        let counters = [
            ("ecc_uncorrected", needed(uncorrected)?, 64),
            ("ecc_corrected", needed(corrected)?, 64),
            ("pcie_replay", needed(device.pcie_replay_counter())?.map(u64::from), 32),
        ];
        if self.reads.is_multiple_of(FIELDS_EVERY) {
            self.fields = fields(&self.device)?;
        }
        self.reads += 1;
        let counters =
            counters.into_iter().filter_map(|(kind, count, bits)| Some((kind, count?, bits)));
        reading.errors = counters.chain(self.fields.errors.iter().copied()).collect();
        reading.remap = self.fields.remap;
        Ok(reading)
    }

    /// Reads memory and activity of an instance. Power, clocks and errors are reported by the whole
    /// GPU.
    fn read_instance(
        &mut self,
        nvml: &'nvml Nvml,
        is_paused: bool,
    ) -> Result<CounterReading, NvmlError> {
        let memory = needed(self.device.memory_info())?;
        let mut reading = CounterReading {
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.as_ref().map(|memory| memory.total),
            ..CounterReading::default()
        };
        let Some(processes) = needed(self.device.running_compute_processes())? else {
            return Ok(reading);
        };
        let number = processes.iter().find_map(|process| process.gpu_instance_id);
        self.gpu_instance = number.or(self.gpu_instance);
        if processes.is_empty() {
            // NVML does not report the utilization of instances. An instance on which no process
            // runs is idle, so its shares are zero.
            reading.busy = Some(0.0);
            reading.sm_active = self.has_gpm.then_some(0.0);
            reading.sm_occupancy = reading.sm_active;
        }
        let whole = self.whole.as_ref().filter(|_| self.has_gpm && !is_paused);
        let sample = match whole.zip(self.gpu_instance).filter(|_| !processes.is_empty()) {
            Some((whole, number)) => needed(whole.gpm_mig_sample(number))?,
            None => None,
        };
        if sample.is_none() {
            self.sample = None;
        }
        self.take_sample(nvml, sample, &mut reading);
        Ok(reading)
    }

    /// Computes the activity since the last GPM sample, which is more precise than NVML's
    /// utilization.
    fn take_sample(
        &mut self,
        nvml: &'nvml Nvml,
        sample: Option<GpmSample<'nvml>>,
        reading: &mut CounterReading,
    ) {
        let Some(sample) = sample else { return };
        if let Some(before) = &self.sample
            && let Ok(metrics) = gpm_metrics_get(nvml, before, &sample, &METRICS)
        {
            let value = |at: usize| Some(metrics.get(at)?.as_ref().ok()?.value);
            let part = |at: usize| value(at).and_then(share);
            reading.busy = part(0).or(reading.busy);
            (reading.sm_active, reading.sm_occupancy) = (part(1), part(2));
            let (tensor, fp64, fp32, fp16) = (part(3), part(4), part(5), part(6));
            reading.pipes = Pipes { tensor, fp64, fp32, fp16 };
            reading.dram = part(7);
            let rate = |at: usize| value(at).filter(|rate| rate.is_finite() && *rate >= 0.0);
            // GPM reports transfer rates in MiB per second.
            let mib = |rate: f64| rate * 1_048_576.0;
            reading.pcie = rate(8).map(mib).zip(rate(9).map(mib));
            reading.nvlink = rate(10).map(mib).zip(rate(11).map(mib));
        }
        self.sample = Some(sample);
    }
}

/// Reads error counters and remapping states, which NVML only provides as numbered fields.
fn fields(device: &Device<'_>) -> Result<Fields, NvmlError> {
    let ids = ERROR_FIELDS.iter().map(|(id, ..)| *id).chain(REMAP_FIELDS).map(FieldId);
    let ids: Vec<FieldId> = ids.collect();
    let Some(samples) = needed(device.field_values_for(&ids))? else {
        return Ok(Fields::default());
    };
    let value = |at: usize| match samples.get(at)?.as_ref().ok()?.value.as_ref().ok()? {
        SampleValue::U32(value) => Some(u64::from(*value)),
        SampleValue::U64(value) => Some(*value),
        SampleValue::I64(value) => u64::try_from(*value).ok(),
        SampleValue::F64(_) => None,
    };
    let errors = ERROR_FIELDS.iter().enumerate();
    let errors = errors.filter_map(|(at, (_, kind, bits))| Some((*kind, value(at)?, *bits)));
    let flag = |at: usize| value(ERROR_FIELDS.len() + at).map(|value| value != 0);
    let remap =
        flag(0).zip(flag(1)).map(|(is_pending, has_failed)| RowRemap { is_pending, has_failed });
    Ok(Fields { errors: errors.collect(), remap })
}

/// Returns `None` for a query that the device does not support. Keeps errors that mean that the
/// device is lost.
fn needed<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::Uninitialized | NvmlError::Unknown)) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// Converts a percentage of time into a share. Returns `None` for the driver's markers of a missing
/// value, which are all ones or NaN.
fn share(percent: f64) -> Option<f64> {
    (0.0..=PERCENT_MAX).contains(&percent).then(|| (percent / 100.0).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn blank_values_are_not_shares() {
        assert_eq!(share(50.0), Some(0.5));
        assert_eq!(share(100.4), Some(1.0));
        for blank in [f64::NAN, f64::INFINITY, -1.0, f64::from(u32::MAX), 140_737_488_355_328.0] {
            assert_eq!(share(blank), None, "{blank}");
        }
    }
}
