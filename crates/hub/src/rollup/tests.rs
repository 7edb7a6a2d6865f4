use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fleet::proto::{Body, GpuInterval, GpuRun};
use testkit::{Folder, Random};

use super::{maintain, query, sum_rows};
use crate::batch::QueuedEntry;
use crate::config::Pools;
use crate::store::StoreFolder;
use crate::store::ingest::RowStore;
use crate::sums::{Dimension, FleetSums};

const HOUR: u64 = 490_000;
const START: u64 = HOUR * 3600;
const LENGTH_S: u32 = 10;

/// A row with its host.
type HostRow = (String, GpuInterval);

fn run(random: &mut Random) -> GpuRun {
    let job: u64 = random.below(6_u64);
    GpuRun {
        scheduler: "slurm".to_owned(),
        job: job.to_string(),
        name: format!("workflow-{}", job % 3),
        user: format!("user-{}", job % 2),
        ..GpuRun::default()
    }
}

/// Random rows of a fleet over two hours, some of them lost.
fn random_fleet(random: &mut Random, seconds: u64) -> Vec<HostRow> {
    let mut rows = Vec::new();
    for host in 0..4_u64 {
        for start in (0..seconds).step_by(LENGTH_S as usize * 20) {
            for index in 0..4_u32 {
                if random.below(10_u64) == 0 {
                    continue;
                }
                let mut sums = BTreeMap::new();
                let observed_s = random.below(101_u64) as f64 / 10.0;
                if random.below(5_u64) > 0 {
                    let busy_s = observed_s * random.below(100_u64) as f64 / 100.0;
                    sums.insert("busy_s".to_owned(), busy_s);
                    if host > 0 {
                        let active = random.below(100_u64) as f64 / 100.0;
                        sums.insert("sm_active_s".to_owned(), busy_s * active);
                    }
                }
                let runs = random.below(4_u64).saturating_sub(1);
                let row = GpuInterval {
                    start_unix_s: START + start,
                    length_s: LENGTH_S,
                    index,
                    uuid: format!("{host}-{index}"),
                    model: format!("model-{}", host % 2),
                    runs: (0..runs).map(|_| run(random)).collect(),
                    observed_s,
                    sums,
                    ..GpuInterval::default()
                };
                rows.push((format!("host-{host}"), row));
            }
        }
    }
    rows
}

/// The sums of rows by their definitions, without any of the code that is tested.
fn brute_force(rows: &[HostRow], range: &Range<u64>, by: Dimension) -> BTreeMap<String, [f64; 8]> {
    let mut groups: BTreeMap<String, [f64; 8]> = BTreeMap::new();
    for (host, row) in rows.iter().filter(|(_, row)| range.contains(&row.start_unix_s)) {
        let is_busy = rows.iter().any(|(other, another)| {
            let same = other == host && another.start_unix_s == row.start_unix_s;
            same && !another.runs.is_empty()
        });
        let length_s = f64::from(row.length_s);
        let (busy, sm) = (row.sums.get("busy_s"), row.sums.get("sm_active_s"));
        let holders: Vec<Option<&GpuRun>> = match row.runs.len() {
            0 => vec![None],
            _ => row.runs.iter().map(Some).collect(),
        };
        for holder in &holders {
            let share = 1.0 / holders.len() as f64;
            let held = if holder.is_some() { share } else { 0.0 };
            let name = match (by, holder) {
                (Dimension::Pool, _) => "default".to_owned(),
                (Dimension::Model, _) => row.model.clone(),
                (Dimension::User, Some(run)) => run.user.clone(),
                (Dimension::Workflow, Some(run)) => run.name.clone(),
                (Dimension::Run, Some(run)) => format!("slurm/{}", run.job),
                (_, None) => String::new(),
            };
            let sums = groups.entry(name).or_default();
            let observed = |sum: Option<&f64>| sum.map_or(0.0, |_| row.observed_s.min(length_s));
            sums[0] += length_s * share;
            sums[1] += length_s * share;
            sums[2] += if is_busy { length_s * share } else { 0.0 };
            sums[3] += length_s * held;
            sums[4] += busy.unwrap_or(&0.0) * held;
            sums[5] += sm.unwrap_or(&0.0) * held;
            sums[6] += observed(busy) * held;
            sums[7] += observed(sm) * held;
        }
    }
    groups
}

fn check(got: &BTreeMap<String, FleetSums>, expected: &BTreeMap<String, [f64; 8]>) {
    assert_eq!(got.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, sums) in got {
        for (value, expected) in sums.values().into_iter().zip(expected[name]) {
            let error = (value - expected).abs() / expected.abs().max(1.0);
            assert!(error < 1e-9, "{name}: {sums:?} {expected:?}");
        }
    }
}

fn append(store: &mut RowStore, rows: &[HostRow], first: u64) {
    let entries = rows.iter().zip(first..).map(|((host, row), at)| QueuedEntry {
        queue: [1; 16].into(),
        host: host.as_str().into(),
        sequence: at,
        body: Body::Gpu(Box::new(row.clone())),
    });
    store.append(entries.collect()).unwrap();
}

const DIMENSIONS: [Dimension; 5] =
    [Dimension::Pool, Dimension::Model, Dimension::Workflow, Dimension::User, Dimension::Run];

#[test]
fn rows_and_kept_sums_equal_the_definitions_on_random_fleets() {
    let mut random = Random(11);
    let pools = Pools::default();
    for _ in 0..6 {
        let folder = Folder::new();
        let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
        let mut writer = RowStore::new(Arc::clone(&store));
        let rows = random_fleet(&mut random, 7200);
        let (early, late) = rows.split_at(rows.len() - 30);
        for (at, part) in early.chunks(41).enumerate() {
            append(&mut writer, part, 1 + at as u64 * 41);
        }
        let ranges = [0..u64::MAX / 2, START..START + 3600, START + 1260..START + 5340];
        let compare = |rows: &[HostRow]| {
            for (range, by) in ranges.iter().flat_map(|range| DIMENSIONS.map(|by| (range, by))) {
                let got = query(&store, &pools, range.clone(), by).unwrap();
                check(&got, &brute_force(rows, range, by));
            }
        };
        compare(early);
        // The files are new, so they settle only in the future.
        let future = SystemTime::now() + Duration::from_secs(1000);
        assert_eq!(maintain(&store, &pools, future).unwrap(), 2);
        assert_eq!(store.hours("by_hour").unwrap(), [HOUR, HOUR + 1]);
        compare(early);
        append(&mut writer, late, 1 + early.len() as u64);
        compare(&rows);
        assert!(maintain(&store, &pools, future).unwrap() > 0);
        compare(&rows);
        assert_eq!(maintain(&store, &pools, future).unwrap(), 0);
    }
}

#[test]
fn sums_of_two_fleets_add_up_to_those_of_both() {
    let mut random = Random(5);
    let rows = random_fleet(&mut random, 3600);
    let sums = |rows: &[HostRow]| {
        let folder = Folder::new();
        let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
        append(&mut RowStore::new(Arc::clone(&store)), rows, 1);
        sum_rows(&store, &Pools::default(), HOUR).unwrap()
    };
    // The rows are sorted by host, and the first two hosts are one of the fleets.
    let middle = rows.partition_point(|(host, _)| host.as_str() < "host-2");
    let (mut both, whole) = (sums(&rows[..middle]), sums(&rows));
    for (key, value) in sums(&rows[middle..]) {
        both.entry(key).or_default().merge(&value);
    }
    assert_eq!(both.len(), whole.len());
    for (key, value) in whole {
        let parts = both[&key].values();
        let pairs = value.values().into_iter().zip(parts);
        pairs.for_each(|(whole, parts)| assert!((whole - parts).abs() < 1e-9, "{key:?}"));
    }
}
