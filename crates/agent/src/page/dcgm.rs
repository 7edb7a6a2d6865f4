//! Renders the page `/metrics/dcgm` with the names, units and labels of dcgm-exporter, so that
//! existing dashboards keep working. Unknown values are omitted, as in dcgm-exporter.

use std::fmt::Write as _;
use std::path::Path;

use fleet::untrusted::{Privacy, read_trusted};

use crate::config::ConfigError;
use crate::counters::interval::CounterReading;
use crate::state::{AgentState, GpuState, lock};

/// Largest number of unsupported fields that a note names.
const NAMES_MAX: usize = 5;
const MIB: f64 = 1_048_576.0;

/// A field of the page, as listed in a CSV file of dcgm-exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// DCGM's name of the field, such as `DCGM_FI_DEV_GPU_UTIL`.
    pub name: String,
    /// The kind of the field: `gauge`, `counter` or `label`.
    pub kind: String,
    pub help: String,
}

impl Field {
    /// Whether the agent can provide a value for the field.
    fn is_known(&self) -> bool {
        FIELDS.lines().any(|line| line.split(',').next() == Some(self.name.as_str()))
    }
}

/// The default fields of the page, which are all fields that the agent supports.
const FIELDS: &str = "\
DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK, gauge, Memory clock frequency (in MHz).
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, Total number of PCIe retries.
DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).
DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.
DCGM_FI_DEV_FB_FREE, gauge, Framebuffer memory free (in MiB).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Ratio of time the graphics engine is active.
DCGM_FI_PROF_SM_ACTIVE, gauge, The ratio of cycles an SM has at least 1 warp assigned.
DCGM_FI_PROF_SM_OCCUPANCY, gauge, The ratio of number of warps resident on an SM.
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Ratio of cycles the tensor (HMMA) pipe is active.
DCGM_FI_PROF_PIPE_FP64_ACTIVE, gauge, Ratio of cycles the fp64 pipes are active.
DCGM_FI_PROF_PIPE_FP32_ACTIVE, gauge, Ratio of cycles the fp32 pipes are active.
DCGM_FI_PROF_PIPE_FP16_ACTIVE, gauge, Ratio of cycles the fp16 pipes are active.
DCGM_FI_PROF_DRAM_ACTIVE, gauge, Ratio of cycles the device memory interface is active.
DCGM_FI_PROF_PCIE_TX_BYTES, gauge, The rate of data transmitted over the PCIe bus (in bytes/s).
DCGM_FI_PROF_PCIE_RX_BYTES, gauge, The rate of data received over the PCIe bus (in bytes/s).
";

/// Reads the fields of the page from a file. Without a file, returns the default fields.
///
/// # Errors
/// If the file cannot be read, a line lacks a column, or the agent supports none of the fields.
pub fn fields(path: Option<&Path>) -> Result<Vec<Field>, ConfigError> {
    let Some(path) = path else { return parse(FIELDS, "fields") };
    let bytes = read_trusted(path, Privacy::Readable).map_err(ConfigError::file)?;
    let what = path.display().to_string();
    let text =
        String::from_utf8(bytes).map_err(|_| wrong(&what, "text in UTF-8", "other bytes"))?;
    let fields = parse(&text, &what)?;
    if !fields.iter().any(Field::is_known) {
        let expected = "at least one field that the agent has, such as DCGM_FI_DEV_GPU_UTIL";
        return Err(wrong(&what, expected, "none"));
    }
    Ok(fields)
}

/// Checks that the agent supports every field that a file lists.
///
/// # Errors
/// Returns a note that names the unsupported fields.
pub fn check_known(path: &Path) -> Result<(), String> {
    let fields = fields(Some(path)).map_err(|error| error.to_string())?;
    let is_missing = |field: &&Field| !field.is_known() && field.kind != "label";
    let missing: Vec<&str> =
        fields.iter().filter(is_missing).map(|field| field.name.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let shown = missing.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = missing.len().saturating_sub(NAMES_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Err(format!(
        "dcgm_fields: {}: the agent does not have {shown}{more}: /metrics/dcgm is without them. Correct \
         or remove these lines",
        path.display()
    ))
}

/// Parses lines of the form `name, kind, help`. As in dcgm-exporter's files, `#` begins a comment.
pub fn parse(text: &str, what: &str) -> Result<Vec<Field>, ConfigError> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(at, line)| {
            let mut columns = line.splitn(3, ',').map(|column| column.trim().trim_matches('"'));
            let row = (columns.next(), columns.next(), columns.next());
            let place = format!("{what}:{at}");
            let (Some(name), Some(kind), Some(help)) = row else {
                return Err(wrong(&place, "name, kind, help", line));
            };
            if !matches!(kind, "gauge" | "counter" | "label") {
                return Err(wrong(&place, "gauge, counter or label", kind));
            }
            let (name, kind, help) = (name.to_owned(), kind.to_owned(), help.to_owned());
            Ok(Field { name, kind, help })
        })
        .collect()
}

fn wrong(what: &str, expected: &str, got: &str) -> ConfigError {
    let (what, expected, got) = (what.to_owned(), expected.to_owned(), got.to_owned());
    ConfigError::Value { what, expected, got }
}

/// Renders the page `/metrics/dcgm` with the given fields.
pub fn page_text(state: &AgentState, fields: &[Field]) -> String {
    let mut out = String::new();
    let gpus = lock(&state.gpus);
    for field in fields.iter().filter(|field| field.kind != "label") {
        let mut lines = String::new();
        for gpu in gpus.iter() {
            let Some(reading) = &gpu.last else { continue };
            if let Some(value) = value(&field.name, reading, gpu) {
                // Writing to a String cannot fail, so the result is ignored.
                let _ = writeln!(lines, "{}{{{}}} {value}", field.name, labels(gpu, &state.host));
            }
        }
        if !lines.is_empty() {
            let Field { name, kind, help } = field;
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
    }
    out
}

/// Formats the labels of a GPU. The host's label is written in both spellings, because
/// dcgm-exporter renamed it in 2026.
fn labels(gpu: &GpuState, host: &str) -> String {
    let identity = &gpu.identity;
    let mut pairs = vec![
        ("gpu", identity.index.to_string()),
        ("UUID", identity.uuid.clone()),
        ("pci_bus_id", identity.pci.clone()),
        ("device", format!("nvidia{}", identity.index)),
        ("modelName", identity.model.clone()),
    ];
    if let Some(instance) = identity.instance {
        pairs.push(("GPU_I_ID", instance.to_string()));
        pairs
            .push(("GPU_I_PROFILE", identity.model.rsplit("MIG ").next().unwrap_or("").to_owned()));
    }
    pairs.push(("Hostname", host.to_owned()));
    pairs.push(("hostname", host.to_owned()));
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pair = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
    pairs.iter().map(pair).collect::<Vec<_>>().join(",")
}

/// Returns the value of a field in the unit that DCGM uses.
fn value(name: &str, reading: &CounterReading, gpu: &GpuState) -> Option<f64> {
    let whole = |value: f64| value.round();
    let memory = || reading.memory_total.zip(reading.memory_used);
    match name {
        "DCGM_FI_DEV_SM_CLOCK" => reading.clocks_hz.map(|(sm, _)| whole(sm * 1e-6)),
        "DCGM_FI_DEV_MEM_CLOCK" => reading.clocks_hz.map(|(_, memory)| whole(memory * 1e-6)),
        "DCGM_FI_DEV_GPU_TEMP" => reading.temperature,
        "DCGM_FI_DEV_POWER_USAGE" => reading.power_w,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" => {
            reading.energy_j.map(|joules| whole(joules * 1e3))
        }
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER" => {
            let replays = reading.errors.iter().find(|(kind, ..)| *kind == "pcie_replay");
            replays.map(|(_, count, _)| *count as f64)
        }
        "DCGM_FI_DEV_GPU_UTIL" => reading.busy.map(|busy| whole(busy * 100.0)),
        "DCGM_FI_DEV_XID_ERRORS" => Some(gpu.xid as f64),
        "DCGM_FI_DEV_FB_FREE" => {
            memory().map(|(all, used)| whole((all - used.min(all)) as f64 / MIB))
        }
        "DCGM_FI_DEV_FB_USED" => reading.memory_used.map(|used| whole(used as f64 / MIB)),
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE" => reading.busy,
        "DCGM_FI_PROF_SM_ACTIVE" => reading.sm_active,
        "DCGM_FI_PROF_SM_OCCUPANCY" => reading.sm_occupancy,
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" => reading.pipes.tensor,
        "DCGM_FI_PROF_PIPE_FP64_ACTIVE" => reading.pipes.fp64,
        "DCGM_FI_PROF_PIPE_FP32_ACTIVE" => reading.pipes.fp32,
        "DCGM_FI_PROF_PIPE_FP16_ACTIVE" => reading.pipes.fp16,
        "DCGM_FI_PROF_DRAM_ACTIVE" => reading.dram,
        "DCGM_FI_PROF_PCIE_TX_BYTES" => reading.pcie.map(|(sent, _)| whole(sent)),
        "DCGM_FI_PROF_PCIE_RX_BYTES" => reading.pcie.map(|(_, received)| whole(received)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{fields, parse};

    #[test]
    fn files_of_dcgm_exporter_are_read_and_wrong_lines_named() {
        let text = "# Format\n# If line starts with a '#' it is considered a comment\n\n\
                    DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz), now.\n\
                    DCGM_FI_DRIVER_VERSION, label, Driver Version\n";
        let found = parse(text, "f.csv").unwrap();
        assert_eq!((found.len(), found[0].help.as_str()), (2, "SM clock frequency (in MHz), now."));
        let error = parse("DCGM_FI_DEV_SM_CLOCK, gauge", "f.csv").unwrap_err().to_string();
        assert!(error.starts_with("f.csv:1: expected name, kind, help"), "{error}");
        assert!(parse("A, wrong, x", "f").unwrap_err().to_string().contains("got wrong"));
        assert_eq!(fields(None).unwrap().len(), 20);
    }
}
