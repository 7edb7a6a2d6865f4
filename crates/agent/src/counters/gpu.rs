//! GPUs by NVML, loaded at run time: lists them, and reads each once.
//!
//! From Hopper on, GPM gives activity of the SMs, averaged between two samples; older GPUs have no
//! such figure here. A GPU that cannot be read is *lost* with its reason and read again later.

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::event::EventSet;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::{Device, Nvml};

use super::interval::{CounterReading, Pipes};

/// The largest share that is a share; anything above is a driver's way to say that it knows none.
const PERCENT_MAX: f64 = 100.5;
/// The GPM metrics requested, in this order.
const METRICS: [GpmMetricId; 10] = [
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
];
/// Reasons for a lower clock that cost time; the others are configured limits.
const REASONS: [(ThrottleReasons, &str); 6] = [
    (ThrottleReasons::SW_POWER_CAP, "sw_power_cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
    (ThrottleReasons::SYNC_BOOST, "sync_boost"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal_slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal_slowdown"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hw_power_brake"),
];
/// XID events that are taken in at one look.
const EVENTS_MAX: usize = 64;

/// What a GPU is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIdentity {
    /// Its place among the GPUs of the host.
    pub index: u32,
    /// Its name for ever.
    pub uuid: String,
    /// Its model.
    pub model: String,
    /// Where it is plugged in.
    pub pci: String,
    /// The instance, where it is one part of a GPU that is shared out (MIG).
    pub instance: Option<u32>,
    /// UUID of the whole GPU, where it is an instance.
    pub parent: Option<String>,
}

/// Loads NVML from `library`, or where the driver puts it.
pub fn load(library: Option<&Path>) -> Result<Nvml, String> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(path.as_os_str());
    }
    let name = library.map_or("libnvidia-ml.so.1".into(), |path| path.display().to_string());
    let from = library.is_none().then(|| std::ffi::OsStr::new("libnvidia-ml.so.1"));
    if let Some(from) = from {
        builder.lib_path(from);
    }
    builder.init().map_err(|error| format!("NVML: {name}: {error}"))
}

/// The GPUs of a host, one of them read at a time.
pub struct Gpus<'nvml> {
    nvml: &'nvml Nvml,
    events: Option<EventSet<'nvml>>,
    devices: Vec<KnownGpu<'nvml>>,
    xids: BTreeMap<String, Vec<u64>>,
}

struct KnownGpu<'nvml> {
    identity: GpuIdentity,
    device: Device<'nvml>,
    has_gpm: bool,
    sample: Option<GpmSample<'nvml>>,
}

impl<'nvml> Gpus<'nvml> {
    /// Finds them; what cannot be found is in the notes.
    pub fn find(nvml: &'nvml Nvml, notes: &mut Vec<String>) -> Self {
        let mut gpus = Self { nvml, events: None, devices: Vec::new(), xids: BTreeMap::new() };
        let count = nvml.device_count().unwrap_or_else(|error| {
            notes.push(format!("NVML: cannot count GPUs: {error}"));
            0
        });
        for index in 0..count {
            if let Err(error) = gpus.add(index) {
                notes.push(format!("GPU {index}: {error}"));
            }
        }
        if gpus.devices.iter().any(|known| !known.has_gpm) {
            notes.push(
                "SM activity, occupancy and pipes are null for GPUs before Hopper: NVML has no GPM there; \
                 name a dcgm-exporter with dcgm_page"
                    .to_owned(),
            );
        }
        if count > 0 {
            notes.push(
                "instructions, and SM activity at p5, p25 and p50 over SMs, are null: no interface of \
                 the driver gives them per SM on GPUs since Turing"
                    .to_owned(),
            );
            gpus.events = gpus.register(notes);
        }
        gpus
    }

    /// What each is, by the order in which they are read.
    pub fn identities(&self) -> Vec<GpuIdentity> {
        self.devices.iter().map(|known| known.identity.clone()).collect()
    }

    /// Takes in what was reported since: errors that come as events.
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

    /// Reads one. `is_paused` leaves its hardware counters to others.
    ///
    /// # Errors
    /// The device does not answer: it fell off the bus, or the driver is gone.
    pub fn read(&mut self, at: usize, is_paused: bool) -> Result<CounterReading, NvmlError> {
        let known = &mut self.devices[at];
        let device = &known.device;
        // One call that every device knows decides whether it is there.
        let memory = needed(device.memory_info())?;
        let mut reading = CounterReading {
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.as_ref().map(|memory| memory.total),
            busy: needed(device.utilization_rates())?.and_then(|rates| share(f64::from(rates.gpu))),
            power_w: needed(device.power_usage())?.map(|milliwatts| f64::from(milliwatts) * 1e-3),
            energy_j: needed(device.total_energy_consumption())?.map(|mj| mj as f64 * 1e-3),
            temperature: needed(device.temperature(TemperatureSensor::Gpu))?.map(f64::from),
            ..CounterReading::default()
        };
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
        reading.errors = counters
            .into_iter()
            .filter_map(|(kind, count, bits)| Some((kind, count?, bits)))
            .collect();
        // Instances have no events of their own.
        reading.xids = self.xids.remove(&known.identity.uuid).unwrap_or_default();
        if is_paused {
            known.sample = None;
        } else if known.has_gpm {
            known.sample_gpm(self.nvml, &mut reading)?;
        }
        Ok(reading)
    }

    /// Processes that compute on one, as the driver reports; none where it does not.
    pub fn computing(&self, at: usize) -> Vec<u32> {
        let running = self.devices[at].device.running_compute_processes().unwrap_or_default();
        running.into_iter().map(|process| process.pid).collect()
    }

    fn add(&mut self, index: u32) -> Result<(), NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let pci = device.pci_info().map(|info| info.bus_id).unwrap_or_default();
        let (uuid, model) = (device.uuid()?, device.name().unwrap_or_default());
        let is_split = device.mig_mode().is_ok_and(|mode| mode.current == 1);
        if is_split {
            for part in 0..device.mig_device_count().unwrap_or(0) {
                // Places that hold no instance are not found.
                let Ok(instance) = device.mig_device_by_index(part) else { continue };
                let identity = GpuIdentity {
                    index,
                    uuid: instance.uuid()?,
                    model: instance.name().unwrap_or_else(|_| model.clone()),
                    pci: pci.clone(),
                    instance: Some(part),
                    parent: Some(uuid.clone()),
                };
                self.push(identity, instance);
            }
        }
        let (instance, parent) = (None, None);
        let identity = GpuIdentity { index, uuid, model, pci, instance, parent };
        self.push(identity, device);
        Ok(())
    }

    fn push(&mut self, identity: GpuIdentity, device: Device<'nvml>) {
        // Instances have samples of another call, by their parent; they are left out here.
        let has_gpm = identity.instance.is_none() && device.gpm_support().unwrap_or(false);
        self.devices.push(KnownGpu { identity, device, has_gpm, sample: None });
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
                    // Those that were registered before are lost with the set.
                    set = self.nvml.create_event_set().ok();
                }
            }
        }
        set
    }
}

impl<'nvml> KnownGpu<'nvml> {
    /// Activity since the last sample, from GPM: better than the plain share of time.
    fn sample_gpm(
        &mut self,
        nvml: &'nvml Nvml,
        reading: &mut CounterReading,
    ) -> Result<(), NvmlError> {
        let Some(sample) = needed(self.device.gpm_sample())? else { return Ok(()) };
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
            // GPM counts MiB a second.
            let mib = |rate: f64| rate * 1_048_576.0;
            reading.pcie = rate(8).map(mib).zip(rate(9).map(mib));
        }
        self.sample = Some(sample);
        Ok(())
    }
}

/// What a device does not support is no failure; that it is gone is one.
fn needed<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error @ (NvmlError::GpuLost | NvmlError::Uninitialized | NvmlError::Unknown)) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// A share of time from per cent; blanks of the driver (all ones, NaN) are none.
fn share(percent: f64) -> Option<f64> {
    (0.0..=PERCENT_MAX).contains(&percent).then(|| (percent / 100.0).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn blanks_are_no_shares() {
        assert_eq!(share(50.0), Some(0.5));
        assert_eq!(share(100.4), Some(1.0));
        for blank in [f64::NAN, f64::INFINITY, -1.0, f64::from(u32::MAX), 140_737_488_355_328.0] {
            assert_eq!(share(blank), None, "{blank}");
        }
    }
}
