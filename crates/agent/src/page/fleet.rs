//! Renders the page `/metrics` with metrics of GPUs, the host, control groups of jobs, runs and
//! their steps.
//!
//! Samples are labelled by host and GPU only. Ownership is a separate metric, `rowmill_run_info`,
//! with which queries join them. A new job thus adds one series instead of fifty.

use fleet::allocation::SchedulerRun;

use super::{Families, Metric, MetricLabel, agent, periodic};
use crate::counters::host::HostCounters;
use crate::counters::interval::IntervalSums;
use crate::owners::Owners;
use crate::state::{AgentState, GpuState, lock};

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    Metric::gauge(name, help)
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    Metric::counter(name, help)
}

const ERRORS: Metric =
    counter("hw_errors", "Number of hardware errors by kind; XID errors by their number.");
/// XIDs on which `deploy/prometheus/rules.yml` alerts. The counters of these XIDs are exported as 0
/// before the first error.
const ALERT_XIDS: [u64; 12] = [48, 63, 64, 74, 79, 92, 94, 95, 119, 120, 136, 140];

/// Collects all metrics of the page `/metrics`.
pub fn families(state: &AgentState) -> Families {
    let mut out = Families::default();
    for gpu in lock(&state.gpus).iter() {
        add_gpu(&mut out, state, gpu);
    }
    add_host(&mut out, state);
    add_runs(&mut out, state);
    periodic::add(&mut out, state);
    agent::add(&mut out, state);
    out
}

fn labels(gpu: &GpuState) -> Vec<MetricLabel> {
    let identity = &gpu.identity;
    let mut labels = vec![("gpu", identity.index.to_string()), ("UUID", identity.uuid.clone())];
    if let Some(instance) = identity.instance {
        // Prometheus reserves the label names `instance` and `job`, so they cannot be used here.
        labels.push(("gpu_instance", instance.to_string()));
    }
    labels
}

fn add_gpu(out: &mut Families, state: &AgentState, gpu: &GpuState) {
    let own = labels(gpu);
    let with =
        |name: &'static str, value: &str| [own.clone(), vec![(name, value.to_owned())]].concat();
    let identity = &gpu.identity;
    let model =
        [with("model", &identity.model), vec![("pci_bus_id", identity.pci.clone())]].concat();
    out.add(
        Metric::info("rowmill_gpu", "Model and PCI address of each GPU of this host."),
        model,
        1.0,
    );
    let is_up = if gpu.lost.is_none() { 1.0 } else { 0.0 };
    out.add(gauge("rowmill_gpu_up", "Whether the GPU can be read."), own.clone(), is_up);
    let is_held_idle = is_held_idle(&lock(&state.owners), gpu);
    out.add(
        gauge(
            "rowmill_gpu_held_idle",
            "Whether the GPU is allocated but was idle in the last interval.",
        ),
        own.clone(),
        is_held_idle.map(f64::from),
    );
    shares(out, gpu, &own);
    if let Some(row) = &gpu.intervals.last {
        let used = row.memory_used.map(|(last, _)| last as f64);
        out.add(
            gauge("hw_gpu_memory_usage_bytes", "GPU memory in use, in bytes."),
            own.clone(),
            used,
        );
        let help = "Mean power in the last interval, in watts.";
        let mean = gpu.intervals.share(|sums| sums.power_ws);
        out.add(gauge("hw_power_watts", help), with("hw_type", "gpu"), mean);
        let help = "Maximum temperature in the last interval, in degrees Celsius.";
        out.add(gauge("hw_temperature_celsius", help), own.clone(), row.temperature_max);
    }
    let limit = gpu.last.as_ref().and_then(|last| last.memory_total).map(|total| total as f64);
    out.add(gauge("hw_gpu_memory_limit_bytes", "Total GPU memory in bytes."), own.clone(), limit);
    totals(out, &gpu.intervals.total, &own);
    if let Some(remap) = gpu.last.as_ref().and_then(|last| last.remap) {
        let help = "Whether memory rows will be remapped at the next reset (pending), or could not be remapped (failed).";
        for (state, is_so) in [("pending", remap.is_pending), ("failed", remap.has_failed)] {
            let name = gauge("rowmill_gpu_row_remap", help);
            out.add(name, with("state", state), f64::from(u8::from(is_so)));
        }
    }
    // Prometheus computes no increase for a counter whose first sample is not zero. XIDs used in
    // alerts are therefore exported as 0 from the start.
    let xids = gpu.intervals.total.xids.iter().map(|(xid, count)| (*xid, *count));
    let none = ALERT_XIDS.into_iter().filter(|_| identity.instance.is_none()).map(|xid| (xid, 0));
    for (xid, count) in none.chain(xids).collect::<std::collections::BTreeMap<u64, u64>>() {
        out.add(ERRORS, with("type", &format!("xid_{xid}")), count as f64);
    }
}

/// Adds metrics of shares of time in the last complete interval of a GPU.
fn shares(out: &mut Families, gpu: &GpuState, own: &[MetricLabel]) {
    /// A function that reads one share from the sums of an interval. The function returns `None` if
    /// the GPU does not report the value.
    type Pick = fn(&IntervalSums) -> Option<f64>;
    let plain: [(Metric, Pick); 4] = [
        (
            gauge(
                "hw_gpu_utilization_ratio",
                "Share of the last interval in which the GPU was busy.",
            ),
            |s| s.busy_s,
        ),
        (
            gauge(
                "hw_gpu_sm_active_ratio",
                "Share of the last interval in which SMs were active, averaged over all SMs.",
            ),
            |s| s.sm_active_s,
        ),
        (
            gauge(
                "hw_gpu_sm_occupancy_ratio",
                "Resident warps divided by their maximum, averaged over all SMs and the last interval.",
            ),
            |s| s.sm_occupancy_s,
        ),
        (
            gauge(
                "hw_gpu_memory_bandwidth_utilization_ratio",
                "Share of the memory bandwidth in use in the last interval.",
            ),
            |s| s.dram_s,
        ),
    ];
    for (name, pick) in plain {
        out.add(name, own.to_vec(), gpu.intervals.share(pick));
    }
    let pipes: [(&str, Pick); 4] = [
        ("tensor", |s| s.tensor_s),
        ("fp64", |s| s.fp64_s),
        ("fp32", |s| s.fp32_s),
        ("fp16", |s| s.fp16_s),
    ];
    for (pipe, pick) in pipes {
        let labels = [own, &[("pipe", pipe.to_owned())]].concat();
        let name = gauge(
            "hw_gpu_pipe_active_ratio",
            "Share of the last interval in which a pipe of the SMs was active.",
        );
        out.add(name, labels, gpu.intervals.share(pick));
    }
    let clocks: [(&str, Pick); 2] =
        [("sm", |s| s.sm_clock_hz_s), ("memory", |s| s.memory_clock_hz_s)];
    for (domain, pick) in clocks {
        let labels = [own, &[("domain", domain.to_owned())]].concat();
        let name = gauge("hw_gpu_clock_hertz", "Mean clock rate in the last interval, in hertz.");
        out.add(name, labels, gpu.intervals.share(pick));
    }
}

/// Adds the sums since the agent started, from which Prometheus computes rates.
fn totals(out: &mut Families, sums: &IntervalSums, own: &[MetricLabel]) {
    let with = |name: &'static str, value: &str| [own, &[(name, value.to_owned())]].concat();
    let seconds: [(&'static str, &'static str, Option<f64>); 5] = [
        (
            "rowmill_gpu_observed_seconds",
            "Seconds that readings of the GPU cover without a gap.",
            Some(sums.observed_s),
        ),
        ("rowmill_gpu_busy_seconds", "Seconds in which the GPU was busy.", sums.busy_s),
        (
            "rowmill_gpu_sm_active_seconds",
            "Seconds in which SMs were active, averaged over all SMs.",
            sums.sm_active_s,
        ),
        (
            "rowmill_gpu_sm_occupancy_seconds",
            "SM occupancy multiplied by seconds.",
            sums.sm_occupancy_s,
        ),
        ("hw_energy_joules", "Energy in joules, from the GPU's own counter.", sums.energy_j),
    ];
    for (name, help, value) in seconds {
        out.add(counter(name, help), own.to_vec(), value);
    }
    let io = counter("hw_gpu_io_bytes", "Bytes transferred over PCIe.");
    out.add(io, with("direction", "transmit"), sums.pcie_sent_bytes);
    out.add(io, with("direction", "receive"), sums.pcie_received_bytes);
    let nvlink = counter("rowmill_gpu_nvlink_bytes", "Bytes transferred over all NVLink links.");
    out.add(nvlink, with("direction", "transmit"), sums.nvlink_sent_bytes);
    out.add(nvlink, with("direction", "receive"), sums.nvlink_received_bytes);
    for (reason, seconds) in &sums.throttle_s {
        let name = counter(
            "hw_gpu_throttle_seconds",
            "Seconds in which the clock was throttled, by reason.",
        );
        out.add(name, with("reason", reason), *seconds);
    }
    for (kind, count) in &sums.errors {
        out.add(ERRORS, with("type", kind), *count as f64);
    }
    let reads = counter("rowmill_gpu_reads", "Number of readings of the GPU.");
    out.add(reads, own.to_vec(), sums.reads as f64);
    let help =
        "Number of readings that contradict the previous one, such as a counter that restarted.";
    out.add(counter("rowmill_gpu_suspect_reads", help), own.to_vec(), sums.suspect as f64);
}

fn add_host(out: &mut Families, state: &AgentState) {
    let machine = lock(&state.machine);
    let host = &machine.host;
    if host.memory_total == 0 {
        return;
    }
    for (mode, seconds) in &host.cpu_s {
        let name = counter("system_cpu_time_seconds", "Seconds of all CPUs, by mode.");
        out.add(name, vec![("mode", (*mode).to_owned())], *seconds);
    }
    for (share, value) in
        ["p5", "p25", "p50", "p75", "p95"].iter().zip(machine.cores.into_iter().flatten())
    {
        let help = "Busy share of CPU cores in the last interval, as quantiles over cores.";
        out.add(
            gauge("rowmill_cpu_core_busy_ratio", help),
            vec![("stat", (*share).to_owned())],
            value,
        );
    }
    for (resource, seconds) in &host.pressure_s {
        let help = "Seconds in which at least one task waited for a resource.";
        out.add(
            counter("rowmill_pressure_seconds", help),
            vec![("resource", (*resource).to_owned())],
            *seconds,
        );
    }
    let memory = gauge("system_memory_limit_bytes", "Total memory of the host in bytes.");
    out.add(memory, vec![], host.memory_total as f64);
    let available =
        gauge("system_memory_available_bytes", "Memory available to a new program, in bytes.");
    out.add(available, vec![], host.memory_available as f64);
    add_devices(out, host);
    for (path, group) in &machine.groups {
        let label = || vec![("cgroup", path.clone())];
        let cpu = counter("rowmill_cgroup_cpu_seconds", "CPU seconds of a job's control group.");
        out.add(cpu, label(), group.cpu_s);
        let memory =
            gauge("rowmill_cgroup_memory_bytes", "Memory of a job's control group in bytes.");
        out.add(memory, label(), group.memory.map(|bytes| bytes as f64));
    }
}

fn add_devices(out: &mut Families, host: &HostCounters) {
    let way = |device: &str, direction: &str| {
        vec![("device", device.to_owned()), ("direction", direction.to_owned())]
    };
    let mut pair = |name: Metric, device: &str, (one, other): (&str, &str), values: (u64, u64)| {
        out.add(name, way(device, one), values.0 as f64);
        out.add(name, way(device, other), values.1 as f64);
    };
    let net = ("receive", "transmit");
    for (device, network) in &host.networks {
        pair(
            counter("system_network_io_bytes", "Bytes transferred by a network device."),
            device,
            net,
            network.bytes,
        );
        pair(
            counter("system_network_packets", "Number of packets of a network device."),
            device,
            net,
            network.packets,
        );
        pair(
            counter("system_network_errors", "Number of errors of a network device."),
            device,
            net,
            network.errors,
        );
        pair(
            counter("system_network_dropped", "Number of packets that a network device dropped."),
            device,
            net,
            network.dropped,
        );
    }
    for (device, bytes) in &host.infiniband {
        pair(
            counter("rowmill_infiniband_io_bytes", "Bytes transferred by an InfiniBand port."),
            device,
            net,
            *bytes,
        );
    }
    let disk = ("read", "write");
    for (device, counts) in &host.disks {
        pair(
            counter("system_disk_io_bytes", "Bytes read from or written to a disk."),
            device,
            disk,
            counts.bytes,
        );
        pair(
            counter("system_disk_operations", "Number of operations of a disk."),
            device,
            disk,
            counts.operations,
        );
    }
    for (device, counts) in &host.disks {
        let name = counter("system_disk_io_time_seconds", "Seconds in which a disk was busy.");
        out.add(name, vec![("device", device.clone())], counts.busy_s);
    }
}

/// Adds metrics of runs, by the GPUs that they hold, and of steps, by process.
fn add_runs(out: &mut Families, state: &AgentState) {
    let gpus = lock(&state.gpus);
    let owners = lock(&state.owners);
    let mut shown = Vec::<&SchedulerRun>::new();
    for gpu in gpus.iter() {
        for run in owners.runs_on(&gpu.identity.uuid) {
            shown.push(run);
            out.add(RUN, [labels(gpu), run_labels(run)].concat(), 1.0);
        }
    }
    for run in owners.runs().values() {
        let is_shown = |other: &&SchedulerRun| {
            other.is_same(run) && (other.uid.is_none() || other.uid == run.uid)
        };
        if !shown.iter().any(is_shown) {
            shown.push(run);
            out.add(RUN, run_labels(run), 1.0);
        }
    }
    for (why, count) in owners.refusals() {
        let help = "Number of rejected claims of processes to runs and GPUs, by reason.";
        let name = counter("rowmill_claims_refused", help);
        out.add(name, vec![("reason", why.word().to_owned())], count as f64);
    }
    let steps = lock(&state.steps);
    let help = "Number of step messages dropped because a user has too many processes.";
    out.add(counter("rowmill_step_messages_dropped", help), vec![], steps.dropped() as f64);
    for (pid, progress) in steps.all() {
        let label = || vec![("pid", pid.to_string())];
        out.add(
            counter("rowmill_steps", "Number of steps that a process has reported."),
            label(),
            progress.steps as f64,
        );
        out.add(
            counter("rowmill_samples", "Number of samples in the reported steps."),
            label(),
            progress.samples as f64,
        );
        let exposed = progress.exposed_ns as f64 * 1e-9;
        out.add(
            counter(
                "rowmill_exposed_communication_seconds",
                "Seconds of communication that did not overlap with computation.",
            ),
            label(),
            exposed,
        );
        let time = progress.step_time().map(|time| time.as_secs_f64());
        out.add(
            gauge("rowmill_step_seconds", "Median of the last step times, in seconds."),
            label(),
            time,
        );
        let hung = f64::from(u8::from(state.is_hung(*pid, progress, &gpus, &owners)));
        out.add(gauge("rowmill_process_hung", "Whether a process seems to hang."), label(), hung);
        if let Some(run) = owners.runs().get(pid) {
            let labels = [label(), run_labels(run)].concat();
            out.add(
                Metric::info(
                    "rowmill_process",
                    "Phase and run of each process that reports steps.",
                ),
                labels,
                1.0,
            );
        }
    }
}

const RUN: Metric =
    Metric::info("rowmill_run", "The run that holds each GPU; join on the label UUID.");

fn run_labels(run: &SchedulerRun) -> Vec<MetricLabel> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    vec![
        ("scheduler", run.scheduler.to_owned()),
        ("job_id", run.job.clone()),
        ("alias", text(&run.alias)),
        ("name", text(&run.name)),
        ("user", text(&run.user)),
        ("account", text(&run.account)),
        ("partition", text(&run.partition)),
    ]
}

/// Whether a GPU is allocated to a job but idle. `None` if the utilization of the GPU is unknown.
pub fn is_held_idle(owners: &Owners, gpu: &GpuState) -> Option<bool> {
    let busy = gpu.busy()?;
    Some(!owners.runs_on(&gpu.identity.uuid).is_empty() && busy < 0.01)
}
