//! Reads the metrics page of a dcgm-exporter. The page provides the SM and pipe activity of GPUs
//! before Hopper, for which NVML has no such counters. On hosts without NVML, the page provides all
//! GPU counters.
//!
//! The page holds the values of the exporter's last update, and is fetched once per interval.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::gpu::GpuIdentity;
use super::interval::{CounterReading, Pipes, ReadingTime};
use super::row_sink::{RowSink, take_reading};
use crate::state::{AgentState, GpuState, lock};

/// Time between two fetches of the exporter's page.
const PERIOD: Duration = Duration::from_secs(10);
/// Timeout of a fetch of the exporter's page.
const PATIENCE: Duration = Duration::from_secs(2);
/// Largest size of a page in bytes. Larger pages are refused.
const SIZE_MAX: u64 = 8 << 20;
/// Largest number of lines that are read from a page.
const LINES_MAX: usize = 100_000;
/// Smallest number by which DCGM encodes an unknown value.
const BLANK: f64 = 140_737_488_355_328.0;

/// The page of a dcgm-exporter, with the GPU readings of the last fetch.
pub struct DcgmPage {
    url: Option<String>,
    agent: ureq::Agent,
    fetched: Option<Instant>,
    readings: BTreeMap<String, (GpuIdentity, CounterReading)>,
}

/// One sample of a page in the Prometheus text format: name, labels and value.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl DcgmPage {
    /// Fills in values that the NVML reading lacks, such as SM activity of GPUs before Hopper.
    pub fn fill(&self, key: &str, reading: &mut CounterReading) {
        let Some((_, page)) = self.readings.get(key) else { return };
        if key.contains('/') {
            // NVML does not report the utilization of an instance on which processes run.
            reading.busy = reading.busy.or(page.busy);
        }
        reading.combine_activity(page, Option::or);
    }

    /// Creates the source without fetching the page.
    pub fn new(url: Option<String>) -> Self {
        Self { url, agent: http_agent(), fetched: None, readings: BTreeMap::new() }
    }

    /// Fetches the page if a fetch is due. Readings of GPUs that NVML does not read are taken from
    /// the page.
    pub fn look(&mut self, state: &AgentState, at: ReadingTime, sink: &mut RowSink) {
        let Some(url) = &self.url else { return };
        if self.fetched.is_none_or(|fetched| fetched.elapsed() >= PERIOD) {
            self.fetched = Some(Instant::now());
            let answer = fetch(&self.agent, url);
            let text = answer.as_deref().unwrap_or_default();
            self.readings = readings(&samples(text));
            state.set_source("dcgm", answer.map(drop));
        }
        for (identity, reading) in self.readings.values() {
            let is_read_here = {
                let mut gpus = lock(&state.gpus);
                // The page labels an instance with the UUID of its whole GPU.
                let uuid = identity.parent.as_ref().unwrap_or(&identity.uuid);
                let is_known = |gpu: &&GpuState| gpu.identity.uuid == *uuid && !gpu.is_from_page;
                let known_gpu = gpus.iter().find(is_known);
                let is_same = |gpu: &&GpuState| gpu.identity.uuid == identity.uuid;
                match known_gpu.or_else(|| gpus.iter().find(is_same)) {
                    Some(gpu) => !gpu.is_from_page,
                    None => {
                        let new = GpuState::new(identity.clone(), state.config.interval_s());
                        gpus.push(GpuState { is_from_page: true, ..new });
                        false
                    }
                }
            };
            if !is_read_here && state.paused(identity.index).is_none() {
                take_reading(state, &identity.uuid, at, Ok(reading.clone()), sink);
            }
        }
    }
}

fn http_agent() -> ureq::Agent {
    ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().new_agent()
}

/// Fetches a page once, to check that it contains metrics of GPUs.
///
/// # Errors
/// Returns a note with the problem, its consequence and a remedy.
pub fn ask(url: &str) -> Result<(), String> {
    fetch(&http_agent(), url).map(drop)
}

fn fetch(agent: &ureq::Agent, url: &str) -> Result<String, String> {
    let answer = agent.get(url).call().and_then(|mut answer| {
        let body = answer.body_mut().with_config().limit(SIZE_MAX);
        body.read_to_string()
    });
    let problem = match answer {
        Ok(text) if text.contains("DCGM_FI_") => return Ok(text),
        Ok(_) => "the page has no DCGM metrics (DCGM_FI_…)".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(format!(
        "dcgm-exporter at {url}: {problem}. Figures that NVML lacks, such as the activity of tensor cores \
         before Hopper, stay empty. Start dcgm-exporter, correct `dcgm_page`, or remove it. The agent \
         tries again every {} s",
        PERIOD.as_secs()
    ))
}

/// Parses the samples of a page in Prometheus text. Malformed lines are skipped.
pub fn samples(text: &str) -> Vec<MetricSample> {
    text.lines().take(LINES_MAX).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<MetricSample> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(MetricSample { name: name.to_owned(), labels, value })
}

/// Parses the labels after an opening brace. Returns the labels and the text after the closing
/// brace.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels_by_name = BTreeMap::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels_by_name, behind));
        }
        let (name, behind) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = behind.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, letter) => value.push(letter),
            }
        };
        labels_by_name.insert(name.to_owned(), value);
        rest = &behind[end + 1..];
    }
}

/// Groups samples into readings by UUID, and by instance if a GPU is partitioned (MIG).
pub fn readings(samples: &[MetricSample]) -> BTreeMap<String, (GpuIdentity, CounterReading)> {
    let mut readings: BTreeMap<String, (GpuIdentity, CounterReading)> = BTreeMap::new();
    for sample in samples {
        let label = |name: &str| sample.labels.get(name).map(String::as_str);
        let Some(uuid) = label("UUID") else { continue };
        if sample.value.is_nan() || sample.value >= BLANK {
            continue;
        }
        let instance = label("GPU_I_ID").and_then(|id| id.parse().ok());
        let key = instance.map_or(uuid.to_owned(), |part: u32| format!("{uuid}/{part}"));
        let entry = readings.entry(key.clone()).or_insert_with(|| {
            let identity = GpuIdentity {
                index: label("gpu").and_then(|gpu| gpu.parse().ok()).unwrap_or(0),
                uuid: key,
                model: label("modelName").unwrap_or_default().to_owned(),
                pci: label("pci_bus_id").unwrap_or_default().to_owned(),
                instance,
                parent: instance.map(|_| uuid.to_owned()),
            };
            (identity, CounterReading::default())
        });
        set(&mut entry.1, &sample.name, sample.value);
    }
    // A value that the instances report is removed from their whole GPU, so that sums over devices
    // do not count it twice.
    let part = |(identity, reading): &(GpuIdentity, CounterReading)| {
        Some((identity.parent.clone()?, reading.clone()))
    };
    for (parent, part) in readings.values().filter_map(part).collect::<Vec<_>>() {
        if let Some((_, whole)) = readings.get_mut(&parent) {
            leave_to_part(whole, &part);
        }
    }
    readings
}

/// Removes the values that an instance reports from the reading of the whole GPU.
fn leave_to_part(whole: &mut CounterReading, part: &CounterReading) {
    whole.busy = whole.busy.filter(|_| part.busy.is_none());
    whole.combine_activity(part, |whole, part| whole.filter(|_| part.is_none()));
    if part.memory_used.is_some() {
        whole.memory_used = None;
    }
}

fn set(reading: &mut CounterReading, name: &str, value: f64) {
    let share = Some(value).filter(|value| (0.0..=1.0).contains(value));
    let Pipes { tensor, fp64, fp32, fp16 } = &mut reading.pipes;
    match name {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => reading.busy = share,
        "DCGM_FI_DEV_GPU_UTIL" => {
            // The profiler's busy share is exact, so it is preferred to the utilization, whose
            // resolution is one percent.
            reading.busy = reading.busy.or(Some((value / 100.0).clamp(0.0, 1.0)));
        }
        "DCGM_FI_PROF_SM_ACTIVE" => reading.sm_active = share,
        "DCGM_FI_PROF_SM_OCCUPANCY" => reading.sm_occupancy = share,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" => *tensor = share,
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE" => *fp64 = share,
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE" => *fp32 = share,
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE" => *fp16 = share,
        "DCGM_FI_PROF_DRAM_ACTIVE" => reading.dram = share,
        "DCGM_FI_DEV_POWER_USAGE" => reading.power_w = Some(value),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" => reading.energy_j = Some(value * 1e-3),
        "DCGM_FI_DEV_GPU_TEMP" => reading.temperature = Some(value),
        "DCGM_FI_DEV_FB_USED" => reading.memory_used = Some((value * 1_048_576.0) as u64),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{readings, samples};

    const PAGE: &str = "\
# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles.
# TYPE DCGM_FI_PROF_SM_ACTIVE gauge
DCGM_FI_PROF_SM_ACTIVE{gpu=\"1\",UUID=\"GPU-1\",pci_bus_id=\"00000000:3B:00.0\",device=\"nvidia1\",\
modelName=\"Tesla \\\"V100\\\", 32GB\",Hostname=\"a\"} 0.25
DCGM_FI_PROF_SM_OCCUPANCY{gpu=\"1\",UUID=\"GPU-1\"} 140737488355328.0
DCGM_FI_DEV_GPU_UTIL{gpu=\"1\",UUID=\"GPU-1\"} 80
DCGM_FI_DEV_FB_USED{gpu=\"1\",UUID=\"GPU-1\",GPU_I_ID=\"2\",GPU_I_PROFILE=\"1g.5gb\"} 512 1700000000000
broken{a=\"b
broken{a=b} 1
DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-0\"} NaN
";

    #[test]
    fn a_page_is_parsed_with_blanks_as_null() {
        let found = readings(&samples(PAGE));
        let (identity, reading) = &found["GPU-1"];
        assert_eq!((identity.index, identity.model.as_str()), (1, "Tesla \"V100\", 32GB"));
        assert_eq!(
            (reading.sm_active, reading.sm_occupancy, reading.busy),
            (Some(0.25), None, Some(0.8))
        );
        let (part, instance) = &found["GPU-1/2"];
        assert_eq!((part.instance, instance.memory_used), (Some(2), Some(512 << 20)));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_gpu_and_its_instances_are_not_counted_twice() {
        let page = "DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-0\"} 100\n\
                    DCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-0\"} 250\n\
                    DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-0\",GPU_I_ID=\"3\"} 60\n\
                    DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"GPU-0\",GPU_I_ID=\"4\"} 40\n";
        let found = readings(&samples(page));
        let used: u64 = found.values().filter_map(|(_, reading)| reading.memory_used).sum();
        assert_eq!((used, found["GPU-0"].1.power_w), (100 << 20, Some(250.0)));
        assert_eq!(found["GPU-0/3"].0.parent.as_deref(), Some("GPU-0"));
    }

    #[test]
    fn a_page_cut_anywhere_never_panics() {
        for end in 0..PAGE.len() {
            if PAGE.is_char_boundary(end) {
                let _ = readings(&samples(&PAGE[..end]));
            }
        }
    }
}
