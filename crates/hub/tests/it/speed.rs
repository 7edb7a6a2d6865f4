//! The time and the memory of queries over a day of rows and over three months of kept sums.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use fleet::proto::{Body, GpuInterval, GpuRun};
use hub::batch::QueuedEntry;
use hub::columns::{RowTable, encode};
use hub::config::Pools;
use hub::grouping::SumQuery;
use hub::rollup::{query, write_sums};
use hub::store::{Partition, StoreFolder};
use hub::sums::Dimension;
use testkit::{Folder, Random, has_time};

const HOSTS: u64 = 200;
const GPUS: u64 = 8;
const TIME_MAX: Duration = Duration::from_millis(500);
const MEMORY_MAX_MIB: u64 = 256;

/// One row of each GPU. A job has eight GPUs, lasts six hours, and belongs to one of fifty users.
fn rows(start_unix_s: u64, length_s: u32, random: &mut Random) -> Vec<QueuedEntry> {
    let entry = |at: u64| {
        let host = at / GPUS;
        let job = host + start_unix_s / 21_600 * HOSTS;
        let run = GpuRun {
            scheduler: "slurm".to_owned(),
            job: job.to_string(),
            name: format!("workflow-{}", job % 97),
            user: format!("user-{}", job % 50),
            ..GpuRun::default()
        };
        let length = f64::from(length_s);
        let busy_s = length * random.below(1_000_001_u64) as f64 / 1e6;
        let sm_active_s = busy_s * random.below(1_000_001_u64) as f64 / 1e6;
        let row = GpuInterval {
            start_unix_s,
            length_s,
            index: (at % GPUS) as u32,
            uuid: format!("GPU-{at:05}"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
            runs: if job.is_multiple_of(10) { Vec::new() } else { vec![run] },
            observed_s: length,
            sums: BTreeMap::from([
                ("busy_s".to_owned(), busy_s),
                ("sm_active_s".to_owned(), sm_active_s),
            ]),
            ..GpuInterval::default()
        };
        QueuedEntry {
            queue: [host as u8; 16].into(),
            host: format!("host-{host:04}").into(),
            sequence: start_unix_s * GPUS + at % GPUS,
            body: Body::Gpu(Box::new(row)),
        }
    };
    (0..HOSTS * GPUS).map(entry).collect()
}

/// Writes the rows of an hour as a merged file, as the hub does when the hour is over.
fn write_hour(folder: &StoreFolder, hour: u64, length_s: u32, random: &mut Random) {
    let partition = Partition { hour: Some(hour), table: "gpu" };
    let starts: Vec<u64> = (hour * 3600..(hour + 1) * 3600).step_by(length_s as usize).collect();
    let first = encode(RowTable::Gpu, &rows(starts[0], length_s, random)).unwrap();
    let written = folder.write(partition, 0..=starts.len() as u64, first.schema(), |writer| {
        for (at, &start) in starts.iter().enumerate() {
            let mut next = || encode(RowTable::Gpu, &rows(start, length_s, random)).unwrap();
            writer.write(&if at == 0 { first.clone() } else { next() }).unwrap();
        }
        Ok(())
    });
    written.unwrap();
}

/// Answers a query several times, and returns the 95th percentile of the time and the memory that
/// the process needed in MiB. Prints the seconds of CPUs too, which other programs lengthen less.
fn measure(folder: &StoreFolder, wanted: &SumQuery, name: &str) -> (Duration, u64) {
    let memory_mib = |key: &str| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    // Resets the largest memory of the process.
    fs::write("/proc/self/clear_refs", "5").unwrap();
    let cpu_s = || {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        // User and system time, in hundredths of a second.
        fields[11..13].iter().map(|field| field.parse::<f64>().unwrap() / 100.0).sum::<f64>()
    };
    let (mut groups, cpu_before) = (0, cpu_s());
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let began = Instant::now();
            groups = query(folder, &Pools::default(), wanted).unwrap().sums.len();
            began.elapsed()
        })
        .collect();
    times.sort();
    let memory = memory_mib("VmHWM");
    println!(
        "{name}: {groups} groups, median {:?}, p95 {:?}, {:.3} s of CPUs, {memory} MiB",
        times[times.len() / 2],
        times[times.len() * 95 / 100],
        (cpu_s() - cpu_before) / times.len() as f64
    );
    (times[times.len() * 95 / 100], memory)
}

#[test]
fn a_day_of_rows_and_three_months_of_sums_are_answered_in_half_a_second() {
    if !has_time("queries over 13.8 million rows and over 90 days of sums") {
        return;
    }
    let folder = Folder::new();
    let store = StoreFolder::open(&folder.path("store")).unwrap();
    let mut random = Random(7);
    let all = 0..u64::MAX / 2;
    for hour in 490_000..490_024 {
        write_hour(&store, hour, 10, &mut random);
    }
    let mut wanted = SumQuery { range: all.clone(), ..SumQuery::group(&[Dimension::User], None) };
    let (time, memory_mib) = measure(&store, &wanted, "a day of rows by user");
    wanted.by = [Dimension::Run, Dimension::Host].into();
    measure(&store, &wanted, "a day of rows by run and host");
    let is_met = time < TIME_MAX && memory_mib < MEMORY_MAX_MIB;
    fs::remove_dir_all(folder.path("store/gpu")).unwrap();
    for hour in 490_000..490_000 + 90 * 24 {
        write_hour(&store, hour, 3600, &mut random);
        write_sums(&store, &Pools::default(), hour).unwrap();
    }
    let view =
        |by: &[Dimension], step_s| SumQuery { range: all.clone(), ..SumQuery::group(by, step_s) };
    let mut slow = Vec::new();
    for (name, wanted) in [
        ("90 days in all", view(&[], None)),
        ("90 days by workflow and day", view(&[Dimension::Workflow], Some(86_400))),
        ("90 days by user", view(&[Dimension::User], None)),
        ("90 days by run", view(&[Dimension::Run, Dimension::User, Dimension::Workflow], None)),
        ("90 days by host", view(&[Dimension::Host], None)),
        ("90 days by hour", view(&[], Some(3600))),
    ] {
        let (time, _) = measure(&store, &wanted, name);
        slow.extend((time >= TIME_MAX).then_some(name));
    }
    assert!(is_met && slow.is_empty(), "a day: {is_met}, slow: {slow:?}");
}
