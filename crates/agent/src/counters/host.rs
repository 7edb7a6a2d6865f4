//! Counters of the host and of the control groups of its jobs, from `/proc` and `/sys`. The
//! kernel's counters have 64 bits, so they do not wrap while the host is up.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use procfs::prelude::*;
use procfs::{CpuPressure, IoPressure, KernelStats, Meminfo, MemoryPressure};
use serde::Serialize;

/// Bytes of a sector in `/proc/diskstats`, whatever the sector size of the disk.
const SECTOR: u64 = 512;
/// Largest number of bytes that are read from a file below `/sys` or `/proc`.
const TEXT_MAX: usize = 1 << 20;

/// Counters of the host, which the kernel has kept since it booted.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostCounters {
    /// CPU time in seconds, summed over all CPUs, by mode: `user`, `nice`, `system`, `idle`, ….
    pub cpu_s: BTreeMap<&'static str, f64>,
    /// Busy time in seconds of each CPU.
    pub cores_busy_s: Vec<f64>,
    /// Seconds in which at least one task waited for `cpu`, `memory` or `io`.
    pub pressure_s: BTreeMap<&'static str, f64>,
    pub memory_total: u64,
    /// Bytes of memory available to a new program.
    pub memory_available: u64,
    pub networks: BTreeMap<String, Network>,
    pub disks: BTreeMap<String, Disk>,
    /// Bytes received and sent, by InfiniBand device and port.
    pub infiniband: BTreeMap<String, (u64, u64)>,
}

/// Values of the host that are sampled twice a second, because their peaks are short and they are
/// cheap to read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostSample {
    /// Busy time in seconds, summed over all CPUs.
    pub busy_s: f64,
    pub cores: usize,
    /// Bytes of memory available to a new program.
    pub memory_available: u64,
}

/// Counters of one network device; each pair is received and sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Network {
    pub bytes: (u64, u64),
    pub packets: (u64, u64),
    pub errors: (u64, u64),
    pub dropped: (u64, u64),
}

/// Counters of one disk; each pair is read and written.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Disk {
    pub bytes: (u64, u64),
    pub operations: (u64, u64),
    /// Seconds during which the disk was busy.
    pub busy_s: f64,
}

/// Resource use of one control group. A value is `None` if its controller is not enabled.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ControlGroup {
    pub cpu_s: Option<f64>,
    pub memory: Option<u64>,
    /// Bytes read from disks and written to them.
    pub io_bytes: Option<(u64, u64)>,
}

/// Samples the CPUs and the memory. A sample is cheap, because only the first lines of two files
/// are read.
pub fn look() -> HostSample {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let ticks = procfs::ticks_per_second().max(1) as f64;
    let mut look = HostSample::default();
    for line in text("/proc/stat").lines().take_while(|line| line.starts_with("cpu")) {
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("cpu") {
            let modes: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            // Busy time is the sum of the same modes as in `read`: user, nice, system, irq and
            // softirq.
            let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|&at| modes.get(at)).sum();
            look.busy_s = busy as f64 / ticks;
        } else {
            look.cores += 1;
        }
    }
    let memory = text("/proc/meminfo");
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = available.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    look.memory_available = kib.unwrap_or(0) * 1024;
    look
}

/// Reads all counters of the host. Counters that cannot be read are left out.
pub fn read() -> HostCounters {
    let mut host = HostCounters::default();
    if let Ok(stats) = KernelStats::current() {
        let ticks = procfs::ticks_per_second().max(1) as f64;
        let total = &stats.total;
        let modes = [
            ("user", Some(total.user)),
            ("nice", Some(total.nice)),
            ("system", Some(total.system)),
            ("idle", Some(total.idle)),
            ("iowait", total.iowait),
            ("interrupt", total.irq),
            ("softirq", total.softirq),
            ("steal", total.steal),
        ];
        host.cpu_s =
            modes.into_iter().filter_map(|(mode, t)| Some((mode, t? as f64 / ticks))).collect();
        let busy = |cpu: &procfs::CpuTime| {
            let interrupts = cpu.irq.unwrap_or(0) + cpu.softirq.unwrap_or(0);
            (cpu.user + cpu.nice + cpu.system + interrupts) as f64 / ticks
        };
        host.cores_busy_s = stats.cpu_time.iter().map(busy).collect();
    }
    let seconds = |total_us: u64| total_us as f64 * 1e-6;
    if let Ok(pressure) = CpuPressure::current() {
        host.pressure_s.insert("cpu", seconds(pressure.some.total));
    }
    if let Ok(pressure) = MemoryPressure::current() {
        host.pressure_s.insert("memory", seconds(pressure.some.total));
    }
    if let Ok(pressure) = IoPressure::current() {
        host.pressure_s.insert("io", seconds(pressure.some.total));
    }
    if let Ok(memory) = Meminfo::current() {
        host.memory_total = memory.mem_total;
        host.memory_available = memory.mem_available.unwrap_or(memory.mem_free);
    }
    host.networks = networks();
    host.disks = disks();
    host.infiniband = infiniband(Path::new("/sys/class/infiniband"));
    host
}

fn networks() -> BTreeMap<String, Network> {
    let devices = procfs::net::dev_status().unwrap_or_default();
    let row = |device: procfs::net::DeviceStatus| Network {
        bytes: (device.recv_bytes, device.sent_bytes),
        packets: (device.recv_packets, device.sent_packets),
        errors: (device.recv_errs, device.sent_errs),
        dropped: (device.recv_drop, device.sent_drop),
    };
    devices.into_iter().map(|(name, device)| (name, row(device))).collect()
}

/// Reads the counters of whole disks only, because partitions and memory devices would be counted
/// twice.
fn disks() -> BTreeMap<String, Disk> {
    let all = procfs::diskstats().unwrap_or_default();
    let is_disk = |name: &str| {
        !["loop", "ram", "zram"].iter().any(|kind| name.starts_with(kind))
            && Path::new("/sys/block").join(name.replace('/', "!")).exists()
    };
    let row = |disk: &procfs::DiskStat| Disk {
        bytes: (disk.sectors_read * SECTOR, disk.sectors_written * SECTOR),
        operations: (disk.reads, disk.writes),
        busy_s: disk.time_in_progress as f64 * 1e-3,
    };
    all.iter()
        .filter(|disk| is_disk(&disk.name))
        .map(|disk| (disk.name.clone(), row(disk)))
        .collect()
}

/// Reads the counters of InfiniBand ports, which count words of four bytes.
fn infiniband(folder: &Path) -> BTreeMap<String, (u64, u64)> {
    let mut bytes_by_port = BTreeMap::new();
    for device in fs::read_dir(folder).into_iter().flatten().flatten() {
        for port in fs::read_dir(device.path().join("ports")).into_iter().flatten().flatten() {
            let counter = |name: &str| {
                let text = fs::read_to_string(port.path().join("counters").join(name)).ok()?;
                text.trim().parse::<u64>().ok().map(|words| words * 4)
            };
            if let Some(bytes) = counter("port_rcv_data").zip(counter("port_xmit_data")) {
                let (device, port) = (device.file_name(), port.file_name());
                let name = format!("{}:{}", device.to_string_lossy(), port.to_string_lossy());
                bytes_by_port.insert(name, bytes);
            }
        }
    }
    bytes_by_port
}

/// Reads a control group by its path below `root`. Version 2 is tried first, then version 1, where
/// every controller has a folder of its own.
pub fn group(root: &Path, path: &str) -> ControlGroup {
    let path = path.trim_start_matches('/');
    let text = |controllers: &[&str], name: &str| {
        let folders = controllers.iter().map(|controller| root.join(controller).join(path));
        let mut texts = folders.filter_map(|folder| fs::read_to_string(folder.join(name)).ok());
        texts.find(|text| text.len() <= TEXT_MAX)
    };
    let number = |text: String| text.trim().parse::<u64>().ok();
    let usage = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse::<u64>().ok())
    };
    let cpu_us = text(&[""], "cpu.stat").and_then(usage);
    let cpu_ns = || text(&["cpu,cpuacct", "cpuacct"], "cpuacct.usage").and_then(number);
    let memory = text(&[""], "memory.current");
    // Lines of `io.stat` look like `8:0 rbytes=1 wbytes=2 …`.
    let io = |text: String| {
        let sum = |key: &str| -> u64 {
            let words = text.split_ascii_whitespace().filter_map(|word| word.strip_prefix(key));
            words.filter_map(|value| value.parse::<u64>().ok()).sum()
        };
        (sum("rbytes="), sum("wbytes="))
    };
    // Each device has lines such as `8:0 Read 1` and `8:0 Write 2`.
    let block_io = |text: String| {
        let sum = |way: &str| -> u64 {
            let words = |line: &str| {
                let mut words = line.split_ascii_whitespace().skip(1);
                (words.next() == Some(way)).then(|| words.next()?.parse::<u64>().ok()).flatten()
            };
            text.lines().filter_map(words).sum()
        };
        (sum("Read"), sum("Write"))
    };
    let block = || text(&["blkio"], "blkio.throttle.io_service_bytes_recursive");
    ControlGroup {
        cpu_s: cpu_us.map(|us| us as f64 * 1e-6).or_else(|| cpu_ns().map(|ns| ns as f64 * 1e-9)),
        memory: memory.or_else(|| text(&["memory"], "memory.usage_in_bytes")).and_then(number),
        io_bytes: text(&[""], "io.stat").map(io).or_else(|| block().map(block_io)),
    }
}

/// Computes quantiles, over the cores, of each core's busy share between two readings.
pub fn core_quantiles(before: &HostCounters, now: &HostCounters, seconds: f64) -> Option<[f64; 5]> {
    if before.cores_busy_s.len() != now.cores_busy_s.len() || seconds <= 0.0 {
        return None;
    }
    let pairs = before.cores_busy_s.iter().zip(&now.cores_busy_s);
    let mut shares: Vec<f64> =
        pairs.map(|(old, new)| ((new - old) / seconds).clamp(0.0, 1.0)).collect();
    shares.sort_by(f64::total_cmp);
    let last = shares.len().checked_sub(1)?;
    // The quantile is the value at the nearest rank, without interpolation.
    Some(
        [0.05, 0.25, 0.5, 0.75, 0.95]
            .map(|part: f64| shares[(part * last as f64).round() as usize]),
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{HostCounters, core_quantiles, group, look, read};

    #[test]
    fn counters_of_this_host_are_read_and_only_grow() {
        let (first, second) = (read(), read());
        assert!(first.memory_total > first.memory_available && first.memory_available > 0);
        assert!(!first.cores_busy_s.is_empty() && first.cpu_s["user"] > 0.0);
        for (mode, seconds) in &first.cpu_s {
            assert!(second.cpu_s[mode] + 0.02 >= *seconds, "{mode}");
        }
        assert!(first.networks.contains_key("lo"), "{:?}", first.networks);
        let look = look();
        let busy: f64 = second.cores_busy_s.iter().sum();
        assert!(look.busy_s > busy - 1.0 && look.cores == second.cores_busy_s.len(), "{look:?}");
        assert!(look.memory_available > 0 && look.memory_available < second.memory_total);
    }

    #[test]
    fn control_groups_of_both_versions_are_read() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("slurm/job_7");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cpu.stat"), "usage_usec 2500000\nuser_usec 1\n").unwrap();
        fs::write(folder.join("memory.current"), "4096\n").unwrap();
        fs::write(
            folder.join("io.stat"),
            "8:0 rbytes=10 wbytes=20 rios=1\n8:16 rbytes=5 wbytes=1\n",
        )
        .unwrap();
        let found = group(root.path(), "/slurm/job_7");
        assert_eq!(
            (found.cpu_s, found.memory, found.io_bytes),
            (Some(2.5), Some(4096), Some((15, 21)))
        );
        assert_eq!(group(root.path(), "none"), super::ControlGroup::default());
        // The files of control groups version 1, as on RHEL 8.
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let job = "slurm/uid_1000/job_8";
        write(&format!("cpu,cpuacct/{job}/cpuacct.usage"), "1500000000\n");
        write(&format!("memory/{job}/memory.usage_in_bytes"), "8192\n");
        write(
            &format!("blkio/{job}/blkio.throttle.io_service_bytes_recursive"),
            "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\n8:16 Read 5\nTotal 35\n",
        );
        let found = group(root.path(), &format!("/{job}"));
        assert_eq!(
            (found.cpu_s, found.memory, found.io_bytes),
            (Some(1.5), Some(8192), Some((15, 20)))
        );
    }

    #[test]
    fn cores_have_quantiles() {
        let host =
            |busy: &[f64]| HostCounters { cores_busy_s: busy.to_vec(), ..HostCounters::default() };
        let (before, now) = (host(&[0.0; 5]), host(&[0.0, 10.0, 5.0, 2.5, 7.5]));
        assert_eq!(core_quantiles(&before, &now, 10.0), Some([0.0, 0.25, 0.5, 0.75, 1.0]));
        assert_eq!(core_quantiles(&before, &host(&[1.0]), 10.0), None);
    }
}
