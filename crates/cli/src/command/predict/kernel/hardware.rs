//! The command `rowmill predict kernels --list-hardware`, which prints the hardware data of devices
//! with their sources.

use std::borrow::Cow;

use device::Cpu;
use device::limits::{Arithmetic, RowSet, gflop_per_s};
use schema::HardwareSpec;
use schema::TableRow;
use schema::topology::{Flops, HARDWARE};
use serde::Serialize;

use crate::args::PredictKernels;
use setup::Session;
use setup::error::Error;
use setup::hardware_file::find_device;
use setup::machine;
use setup::table_output::{self, TableTarget};

/// A known device with its peak rates and its sustained rates.
#[derive(Serialize, TableRow)]
struct DeviceRow {
    key: String,
    name: String,
    f32_tflop_per_s: f64,
    f32_sustained_tflop_per_s: Option<f64>,
    tf32_tflop_per_s: Option<f64>,
    f16_tflop_per_s: Option<f64>,
    bf16_tflop_per_s: Option<f64>,
    dram_gb_per_s: f64,
    dram_sustained_gb_per_s: Option<f64>,
    l2_gb_per_s: Option<f64>,
    l2_bytes: u64,
    multiprocessors: u32,
    clock_mhz: u32,
    power_w: Option<u32>,
    memory_bytes: u64,
    shortest_kernel_ns: Option<u32>,
    source: String,
}

/// Prints the hardware data of the named devices, or of all known devices if none is named.
pub fn run(devices: &[String], args: &PredictKernels, session: &Session) -> Result<(), Error> {
    let named = devices.iter().map(|name| find_device(name));
    let mut specs: Vec<&HardwareSpec> = named.collect::<Result<_, _>>()?;
    if specs.is_empty() {
        specs.extend(&HARDWARE);
    }
    let own = args.this_machine.then(|| this_machine(session));
    let rows: Vec<DeviceRow> = specs.into_iter().chain(&own).map(row).collect();
    table_output::write_rows(
        session.console,
        &rows,
        TableTarget { output: args.output.as_deref(), top: None },
    )
}

fn row(spec: &HardwareSpec) -> DeviceRow {
    let tera = |value: f64| value / 1e12;
    let giga = |value: f64| value / 1e9;
    DeviceRow {
        key: spec.key.clone().into_owned(),
        name: spec.name.clone().into_owned(),
        f32_tflop_per_s: tera(spec.peak.f32),
        f32_sustained_tflop_per_s: spec.sustained_f32.map(tera),
        tf32_tflop_per_s: spec.peak.tf32.map(tera),
        f16_tflop_per_s: spec.peak.f16.map(tera),
        bf16_tflop_per_s: spec.peak.bf16.map(tera),
        dram_gb_per_s: giga(spec.dram),
        dram_sustained_gb_per_s: spec.dram_sustained.map(giga),
        l2_gb_per_s: spec.l2.map(giga),
        l2_bytes: spec.l2_bytes,
        multiprocessors: spec.multiprocessors,
        clock_mhz: spec.clock_mhz,
        power_w: (spec.power_w > 0).then_some(spec.power_w),
        memory_bytes: spec.memory_bytes,
        shortest_kernel_ns: spec.launch_floor_ns,
        source: spec.source.clone().into_owned(),
    }
}

/// Measures the rates that the threads of this machine's CPU reach at present.
pub fn this_machine(session: &Session) -> HardwareSpec {
    /// The buffer is larger than any cache, so that the bandwidth of memory is measured.
    const BYTES: usize = 1 << 30;
    /// Other processes may slow down some turns, so the best turn counts.
    const TURNS: usize = 5;
    let cpu = Cpu::new(session.threads);
    let best = |measure: &dyn Fn() -> f64| (0..TURNS).map(|_| measure()).fold(0.0, f64::max);
    let f32_forms = Arithmetic::f32_forms().into_iter();
    let f32 = f32_forms.map(|form| best(&|| gflop_per_s(&cpu.pool, form))).fold(0.0, f64::max);
    let bf16 = Arithmetic::bf16_form().map(|form| 1e9 * best(&|| gflop_per_s(&cpu.pool, form)));
    let rows = RowSet::new(&cpu.pool, BYTES, 256);
    let dram = 1e9 * best(&|| rows.stream_gb_per_s(&cpu));
    let ghz = best(&|| device::limits::apparent_ghz(&cpu.pool));
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = text("/proc/cpuinfo");
    let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = model.map_or("CPU", |(_, name)| name).to_owned();
    let cache = text("/sys/devices/system/cpu/cpu0/cache/index3/size");
    let kibibytes = cache.trim().strip_suffix('K').and_then(|size| size.parse::<u64>().ok());
    HardwareSpec {
        key: Cow::Borrowed("this-machine"),
        name: Cow::Owned(name),
        peak: Flops { f32: 1e9 * f32, tf32: None, f16: None, bf16 },
        sustained_f32: None,
        dram,
        dram_sustained: None,
        l2_bytes: kibibytes.unwrap_or_default() << 10,
        l2: None,
        multiprocessors: session.threads as u32,
        clock_mhz: (1e3 * ghz) as u32,
        power_w: 0,
        memory_bytes: machine::available_memory::read().map_or(0, |memory| memory.bytes.0),
        launch_floor_ns: None,
        source: Cow::Borrowed("best of five measurements: multiply-adds, and reading 1 GiB"),
    }
}
