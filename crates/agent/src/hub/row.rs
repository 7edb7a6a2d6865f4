//! Converts counters to rows in the format of the hub. Unknown values are absent from a row.

use std::collections::BTreeMap;

use fleet::allocation;
use fleet::proto::{Body, GpuInterval, GpuRun, HostInterval};

use crate::counters::gpu::GpuIdentity;
use crate::counters::host::{ControlGroup, HostCounters};
use crate::counters::interval::{IntervalRow, IntervalSums};
use crate::counters::machine::Ended;

/// Converts the sums of a GPU over one interval to a row.
pub fn gpu(
    identity: &GpuIdentity,
    runs: &[allocation::SchedulerRun],
    length_s: u64,
    row: &IntervalRow,
) -> Body {
    let sums = &row.sums;
    let named = |map: &BTreeMap<&'static str, f64>| {
        map.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let errors = sums.errors.iter().map(|(kind, count)| ((*kind).to_owned(), *count));
    let xids = sums.xids.iter().map(|(xid, count)| (format!("xid_{xid}"), *count));
    Body::Gpu(Box::new(GpuInterval {
        start_unix_s: row.start_unix_s,
        length_s: u32::try_from(length_s).unwrap_or(0),
        index: identity.index,
        uuid: identity.uuid.clone(),
        model: identity.model.clone(),
        instance: identity.instance,
        runs: runs.iter().map(run).collect(),
        observed_s: sums.observed_s,
        reads: sums.reads,
        suspect: sums.suspect,
        sums: known(sums),
        throttle_s: named(&sums.throttle_s),
        errors: errors.chain(xids).collect(),
        memory_used: row.memory_used.map(|(last, _)| last),
        memory_used_max: row.memory_used.map(|(_, largest)| largest),
        power_max_w: row.power_max_w,
        temperature_max: row.temperature_max,
    }))
}

/// Collects the sums that the device reported, by name. Sums that it did not report are left out.
fn known(sums: &IntervalSums) -> BTreeMap<String, f64> {
    let all = [
        ("busy_s", sums.busy_s),
        ("sm_active_s", sums.sm_active_s),
        ("sm_occupancy_s", sums.sm_occupancy_s),
        ("tensor_s", sums.tensor_s),
        ("fp64_s", sums.fp64_s),
        ("fp32_s", sums.fp32_s),
        ("fp16_s", sums.fp16_s),
        ("dram_s", sums.dram_s),
        ("pcie_sent_bytes", sums.pcie_sent_bytes),
        ("pcie_received_bytes", sums.pcie_received_bytes),
        ("nvlink_sent_bytes", sums.nvlink_sent_bytes),
        ("nvlink_received_bytes", sums.nvlink_received_bytes),
        ("energy_j", sums.energy_j),
        ("power_ws", sums.power_ws),
        ("sm_clock_hz_s", sums.sm_clock_hz_s),
        ("memory_clock_hz_s", sums.memory_clock_hz_s),
    ];
    all.into_iter().filter_map(|(name, sum)| Some((name.to_owned(), sum?))).collect()
}

/// Converts a run to its form in rows. A run that only its user's processes name has the user in
/// its name, and neither account nor partition. A user who names the job of another user therefore
/// adds nothing to that job.
pub fn run(run: &allocation::SchedulerRun) -> GpuRun {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let user = text(&run.user);
    let confirmed = |value: &Option<String>| if run.is_claim { String::new() } else { text(value) };
    // Mapping folders have Slurm's job numbers, and a run must have one name in all rows.
    let scheduler = if run.scheduler == "prolog" { "slurm" } else { run.scheduler };
    let namespace = run.partition.as_deref().filter(|_| scheduler == "kubernetes");
    let job = match namespace {
        _ if run.is_claim => format!("{}@{user}", run.job),
        // Names of pods and their jobs are unique within a namespace only.
        Some(namespace) => format!("{namespace}/{}", run.job),
        None => run.job.clone(),
    };
    GpuRun {
        scheduler: scheduler.to_owned(),
        job,
        name: text(&run.name),
        account: confirmed(&run.account),
        partition: confirmed(&run.partition),
        user,
    }
}

/// Converts the readings at the two ends of an interval of the host to a row of differences.
pub fn host(ended: &Ended, length_s: u64) -> Body {
    let (now, before) = (&ended.host, ended.before.as_ref());
    let mut row = HostInterval {
        start_unix_s: ended.start_unix_s,
        length_s: u32::try_from(length_s).unwrap_or(0),
        observed_s: ended.observed_s,
        cores_busy: ended.cores.map_or_else(Vec::new, Vec::from),
        memory_total: now.memory_total,
        memory_available_min: ended.memory_available_min,
        ..HostInterval::default()
    };
    let Some((before, groups)) = before else { return Body::Host(Box::new(row)) };
    let grown = |old: &BTreeMap<&'static str, f64>, new: &BTreeMap<&'static str, f64>| {
        let grown = new.iter().filter_map(|(name, new)| {
            let old = old.get(name)?;
            // The kernel's idle time may decrease slightly, so negative differences become 0.
            Some(((*name).to_owned(), (new - old).max(0.0)))
        });
        grown.collect()
    };
    row.cpu_s = grown(&before.cpu_s, &now.cpu_s);
    row.pressure_s = grown(&before.pressure_s, &now.pressure_s);
    row.bytes = bytes(before, now);
    row.group_cpu_s = group_cpu(groups, &ended.groups);
    Body::Host(Box::new(row))
}

/// Computes the bytes transferred between two readings, by device and direction. A device whose
/// counters restarted is left out.
fn bytes(before: &HostCounters, now: &HostCounters) -> BTreeMap<String, u64> {
    let mut bytes_by_device = BTreeMap::new();
    let mut add = |name: String, old: u64, new: u64| {
        if let Some(bytes) = new.checked_sub(old) {
            bytes_by_device.insert(name, bytes);
        }
    };
    for (device, new) in &now.networks {
        let Some(old) = before.networks.get(device) else { continue };
        add(format!("network/{device}/receive"), old.bytes.0, new.bytes.0);
        add(format!("network/{device}/transmit"), old.bytes.1, new.bytes.1);
    }
    for (port, new) in &now.infiniband {
        let Some(old) = before.infiniband.get(port) else { continue };
        add(format!("infiniband/{port}/receive"), old.0, new.0);
        add(format!("infiniband/{port}/transmit"), old.1, new.1);
    }
    for (device, new) in &now.disks {
        let Some(old) = before.disks.get(device) else { continue };
        add(format!("disk/{device}/read"), old.bytes.0, new.bytes.0);
        add(format!("disk/{device}/write"), old.bytes.1, new.bytes.1);
    }
    bytes_by_device
}

fn group_cpu(
    before: &BTreeMap<String, ControlGroup>,
    now: &BTreeMap<String, ControlGroup>,
) -> BTreeMap<String, f64> {
    let grown = now.iter().filter_map(|(path, group)| {
        let seconds = group.cpu_s? - before.get(path)?.cpu_s?;
        (seconds >= 0.0).then(|| (path.clone(), seconds))
    });
    grown.collect()
}
