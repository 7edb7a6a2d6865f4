//! Hosts send rows at their real pace, and the cost of the hub is measured.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use fleet::proto::{Body, Entry, EntryBatch, GpuInterval, GpuRun, HostInterval, VERSION};
use testkit::has_time;

use crate::fixture::{TestHub, hour_before, send_batch};

const GPUS: u32 = 8;
const INTERVAL: Duration = Duration::from_secs(10);
/// Number of hosts of each thread that sends, so that many batches arrive at once.
const SENDER_HOSTS: u64 = 10;
const MEMORY_MAX_MIB: u64 = 512;

fn batch(host: u64, round: u64, start_unix_s: u64) -> EntryBatch {
    let length_s = 10;
    let first = round * u64::from(GPUS + 1) + 1;
    let names = ["busy_s", "sm_active_s", "sm_occupancy_s", "tensor_s", "dram_s", "energy_j"];
    let sums = names.map(|name| (name.to_owned(), (host % 9 + round) as f64 / 7.0));
    let run = GpuRun { job: (host / 4).to_string(), user: "anna".to_owned(), ..GpuRun::default() };
    let gpu = |index: u32| {
        Body::Gpu(Box::new(GpuInterval {
            start_unix_s,
            length_s,
            index,
            uuid: format!("GPU-{host:04}-{index}"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            runs: vec![run.clone()],
            observed_s: 10.0,
            sums: BTreeMap::from(sums.clone()),
            ..GpuInterval::default()
        }))
    };
    let cpu_s = ["user", "system", "idle", "iowait"].map(|name| (name.to_owned(), 4.0));
    let row = HostInterval {
        start_unix_s,
        length_s,
        observed_s: 10.0,
        cpu_s: BTreeMap::from(cpu_s),
        ..HostInterval::default()
    };
    let bodies = (0..GPUS).map(gpu).chain([Body::Host(Box::new(row))]);
    let entries = bodies.zip(first..).map(|(body, sequence)| Entry { sequence, body: Some(body) });
    let mut queue = vec![0; 16];
    queue[..8].copy_from_slice(&host.to_le_bytes());
    let host = format!("host-{host:04}");
    EntryBatch {
        version: VERSION,
        host,
        queue,
        gone_through: first - 1,
        entries: entries.collect(),
        sent_unix_ms: None,
    }
}

/// The CPU seconds of a process since its start, and its largest memory in MiB.
fn cost(pid: u32) -> (f64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // User and system time, in hundredths of a second.
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (ticks as f64 / 100.0, kib >> 10)
}

/// Sends rows of hosts for a number of intervals. Returns the cores that the hub used.
fn measure_cores(hosts: u64, rounds: u64) -> f64 {
    let hub = TestHub::start("");
    let began = Instant::now();
    let start_s = hour_before(1);
    std::thread::scope(|scope| {
        for first in (0..hosts).step_by(SENDER_HOSTS as usize) {
            let hub = &hub;
            scope.spawn(move || {
                for round in 0..rounds {
                    // The intervals of hosts begin at different times.
                    let late = INTERVAL.mul_f64(first as f64 / hosts as f64);
                    let due = INTERVAL * u32::try_from(round).unwrap() + late;
                    std::thread::sleep(due.saturating_sub(began.elapsed()));
                    for host in first..first + SENDER_HOSTS {
                        let batch = batch(host, round, start_s + round * INTERVAL.as_secs());
                        let answer = send_batch(&hub.address, &hub.token, &batch).unwrap();
                        assert_eq!(answer.status, 200, "host {host}: {answer:?}");
                    }
                }
            });
        }
    });
    std::thread::sleep((INTERVAL * rounds as u32).saturating_sub(began.elapsed()));
    let (cpu_s, memory_mib) = cost(hub.child.id());
    let took_s = began.elapsed().as_secs_f64();
    let cores = cpu_s / took_s;
    let entries = hub.entries().len() as u64;
    let rate = entries as f64 / took_s;
    println!(
        "{hosts} hosts: {entries} entries, {rate:.0} per second, {cores:.3} cores, {memory_mib} MiB"
    );
    assert_eq!(entries, hosts * u64::from(GPUS + 1) * rounds);
    let allocated_s = hub.sums("user")["groups"]["anna"]["allocated_s"].as_f64().unwrap();
    assert_eq!(allocated_s, (hosts * u64::from(GPUS) * rounds * INTERVAL.as_secs()) as f64);
    assert!(memory_mib < MEMORY_MAX_MIB);
    cores
}

#[test]
fn a_thousand_hosts_need_a_fifth_of_a_core_and_ten_thousand_need_one() {
    if !has_time("a thousand hosts for two minutes") {
        return;
    }
    assert!(measure_cores(1000, 12) < 0.2);
    assert!(measure_cores(10_000, 6) < 1.0);
}
