use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fleet::proto::{Body, GpuInterval, GpuRun, HostEvent, HostInterval};
use testkit::{Folder, Random};

use super::{maintain, query, sum_rows};
use crate::batch::QueuedEntry;
use crate::config::Pools;
use crate::grouping::SumQuery;
use crate::nodes::NODE;
use crate::store::StoreFolder;
use crate::store::ingest::RowStore;
use crate::sums::{Dimension, FleetSums, SUMS, SumKey};
use crate::trees::ResourceTree;

const HOUR: u64 = 490_000;
const START: u64 = HOUR * 3600;
/// Seconds of the intervals of each host.
const LENGTHS_S: [u32; 4] = [10, 60, 90, 200];
/// The host on which no job may start for some time, and that time.
const DRAINED: (&str, [u64; 2]) = ("host-2", [START + 1500, START + 5000]);

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
        let length_s = LENGTHS_S[host as usize];
        for start in (50..seconds).step_by(200) {
            for index in 0..4_u32 {
                if random.below(10_u64) == 0 {
                    continue;
                }
                let mut sums = BTreeMap::new();
                let observed_s = f64::from(length_s) * random.below(101_u64) as f64 / 100.0;
                if random.below(5_u64) > 0 {
                    let busy_s = observed_s * random.below(100_u64) as f64 / 100.0;
                    sums.insert("busy_s".to_owned(), busy_s);
                    if host > 0 {
                        let active = random.below(100_u64) as f64 / 100.0;
                        sums.insert("sm_active_s".to_owned(), busy_s * active);
                        if random.below(2_u64) == 0 {
                            sums.insert("sm_occupancy_s".to_owned(), busy_s * active * 0.5);
                        }
                    }
                }
                let runs = random.below(4_u64).saturating_sub(1);
                let row = GpuInterval {
                    start_unix_s: START + start,
                    length_s,
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
fn brute_force(rows: &[HostRow], query: &SumQuery) -> BTreeMap<(u64, SumKey), [f64; SUMS]> {
    let mut groups: BTreeMap<(u64, SumKey), [f64; SUMS]> = BTreeMap::new();
    let held = rows.iter().filter(|(_, row)| !row.runs.is_empty());
    let busy_hosts: BTreeSet<(&String, u64)> =
        held.map(|(host, row)| (host, row.start_unix_s)).collect();
    for (host, row) in rows {
        let is_drained = host == DRAINED.0
            && (DRAINED.1[0]..DRAINED.1[1]).contains(&row.start_unix_s)
            && row.runs.is_empty();
        let is_busy = !is_drained && busy_hosts.contains(&(host, row.start_unix_s));
        let length_s = f64::from(row.length_s);
        let (busy, sm) = (row.sums.get("busy_s"), row.sums.get("sm_active_s"));
        let occupancy = row.sums.get("sm_occupancy_s");
        let holders: Vec<Option<&GpuRun>> = match row.runs.len() {
            0 => vec![None],
            _ => row.runs.iter().map(Some).collect(),
        };
        for holder in &holders {
            let share = 1.0 / holders.len() as f64;
            let held = if holder.is_some() { share } else { 0.0 };
            let member = |dimension: Dimension| match (dimension, holder) {
                (Dimension::Pool, _) => "default".to_owned(),
                (Dimension::Model, _) => row.model.clone(),
                (Dimension::Host, _) => host.clone(),
                (Dimension::User, Some(run)) => run.user.clone(),
                (Dimension::Workflow, Some(run)) => run.name.clone(),
                (Dimension::Run, Some(run)) => format!("slurm/{}", run.job),
                (_, None) => String::new(),
            };
            if query.selection.iter().any(|(one, allowed)| !allowed.contains(&member(*one))) {
                continue;
            }
            let kept = |one| if query.by.contains(&one) { member(one) } else { String::new() };
            let key = SumKey { members: Dimension::ALL.map(|one| kept(one).into()) };
            let end = row.start_unix_s + u64::from(row.length_s);
            for second in (row.start_unix_s..end).filter(|second| query.range.contains(second)) {
                let bucket =
                    query.step_s.map_or(query.range.start, |step_s| second - second % step_s);
                let sums = groups.entry((bucket, key.clone())).or_default();
                let part = share / length_s;
                let held = held / length_s;
                let observed =
                    |sum: Option<&f64>| sum.map_or(0.0, |_| row.observed_s.min(length_s));
                sums[0] += length_s * part;
                sums[1] += if is_drained { 0.0 } else { length_s * part };
                sums[2] += if is_busy { length_s * part } else { 0.0 };
                sums[3] += length_s * held;
                sums[4] += busy.unwrap_or(&0.0) * held;
                sums[5] += sm.unwrap_or(&0.0) * held;
                sums[6] += observed(busy) * held;
                sums[7] += observed(sm) * held;
                sums[8] += if sm.is_none() { busy.unwrap_or(&0.0) * held } else { 0.0 };
                let is_idle = busy.is_some_and(|busy| *busy < 0.01 * row.observed_s);
                sums[9] += if is_idle { observed(busy) * held } else { 0.0 };
                sums[10] += occupancy.unwrap_or(&0.0) * held;
                sums[11] += observed(occupancy) * held;
            }
        }
    }
    groups
}

fn check(store: &StoreFolder, rows: &[HostRow], wanted: &SumQuery) {
    let got = query(store, &Pools::default(), wanted).unwrap();
    let expected = brute_force(rows, wanted);
    assert_eq!(got.hours_missing, 0);
    assert_eq!(got.sums.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (key, sums) in &got.sums {
        for (value, expected) in sums.values().into_iter().zip(expected[key]) {
            let error = (value - expected).abs() / expected.abs().max(1.0);
            assert!(error < 1e-9, "{wanted:?} {key:?}: {sums:?} {expected:?}");
        }
    }
}

/// A query with a random range, step, grouping and selection.
fn random_query(random: &mut Random) -> SumQuery {
    let ranges = [0..u64::MAX / 2, START..START + 3600, START + 1260..START + 5340];
    let range = ranges[random.below(3_usize)].clone();
    let step_s = [None, Some(60), Some(3600), Some(86_400)][random.below(4_usize)];
    let by = Dimension::ALL.into_iter().filter(|_| random.below(3_u64) == 0).collect();
    let mut selection: BTreeMap<Dimension, BTreeSet<String>> = BTreeMap::new();
    if random.below(2_u64) == 0 {
        let members = [
            (Dimension::User, "user-1"),
            (Dimension::User, ""),
            (Dimension::Run, "slurm/3"),
            (Dimension::Host, "host-2"),
            (Dimension::Model, "model-1"),
            (Dimension::Pool, "none"),
        ];
        for _ in 0..=random.below(2_u64) {
            let (dimension, member) = members[random.below(members.len())];
            selection.entry(dimension).or_default().insert(member.to_owned());
        }
    }
    SumQuery { tree: ResourceTree::Gpu, range, step_s, by, selection }
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

/// Adds the states of [`DRAINED`], each again after an hour.
fn append_states(store: &mut RowStore) {
    let (host, [since, until]) = DRAINED;
    let states =
        [(since - 1000, "idle"), (since, "drain"), (since + 3000, "drain"), (until, "idle")];
    let entries = states.into_iter().zip(1..).map(|((second, state), sequence)| {
        let event = HostEvent {
            kind: NODE.to_owned(),
            start_unix_ms: second * 1000,
            details: format!(
                r#"{{"state": ["{state}"], "reason": "", "gpus": 4, "gpus_used": 0}}"#
            ),
            ..HostEvent::default()
        };
        let body = Body::Event(Box::new(event));
        QueuedEntry { queue: [2; 16].into(), host: host.into(), sequence, body }
    });
    store.append(entries.collect()).unwrap();
}

#[test]
fn rows_and_kept_sums_equal_the_definitions_on_random_fleets() {
    let mut random = Random(11);
    let pools = Pools::default();
    for _ in 0..6 {
        let folder = Folder::new();
        let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
        let mut writer = RowStore::new(Arc::clone(&store));
        append_states(&mut writer);
        let rows = random_fleet(&mut random, 7200);
        let (early, late) = rows.split_at(rows.len() - 30);
        for (at, part) in early.chunks(41).enumerate() {
            append(&mut writer, part, 1 + at as u64 * 41);
        }
        let mut compare = |rows: &[HostRow]| {
            let all = 0..u64::MAX / 2;
            for by in Dimension::ALL {
                let query = SumQuery { range: all.clone(), ..SumQuery::group(&[by], None) };
                check(&store, rows, &query);
            }
            (0..40).for_each(|_| check(&store, rows, &random_query(&mut random)));
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
        // Rows may be deleted before their sums.
        std::fs::remove_dir_all(folder.path("store/gpu")).unwrap();
        let mut query = SumQuery { range: 0..u64::MAX / 2, ..SumQuery::group(&[], None) };
        check(&store, &rows, &query);
        query.by.extend([Dimension::Host, Dimension::User]);
        assert_eq!(super::query(&store, &pools, &query).unwrap().hours_missing, 2);
    }
}

/// Random rows of CPUs for the hosts and intervals of GPU rows. The last host has no GPUs, but a
/// control group of a run in each second interval.
fn random_cpus(random: &mut Random, rows: &[HostRow]) -> Vec<(String, HostInterval)> {
    let mut times: BTreeSet<(String, u64, u32)> = BTreeSet::new();
    for (host, row) in rows {
        times.insert((host.clone(), row.start_unix_s, row.length_s));
        times.insert(("host-9".to_owned(), row.start_unix_s, 100));
    }
    let row = |(at, (host, start_unix_s, length_s)): (usize, (String, u64, u32))| {
        let observed_s = f64::from(length_s) * (1 + random.below(100_u64)) as f64 / 100.0;
        let mut left = 8.0 * observed_s;
        let mut mode = |name: &str| {
            let seconds = left * random.below(80_u64) as f64 / 100.0;
            left -= seconds;
            (name.to_owned(), seconds)
        };
        let modes = ["user", "nice", "system", "softirq", "iowait"].map(&mut mode);
        let mut cpu_s = BTreeMap::from(modes);
        cpu_s.insert("idle".to_owned(), left);
        let has_group = host == "host-9" && at.is_multiple_of(2);
        let groups = has_group.then(|| ("/slurm/job_1".to_owned(), 1.0));
        let group_cpu_s = groups.into_iter().collect();
        let row = HostInterval {
            start_unix_s,
            length_s,
            observed_s,
            cpu_s,
            group_cpu_s,
            ..HostInterval::default()
        };
        (host, row)
    };
    times.into_iter().enumerate().map(row).collect()
}

#[test]
fn sums_of_cpus_equal_their_definitions_from_rows_and_from_kept_sums() {
    let mut random = Random(23);
    let folder = Folder::new();
    let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
    let mut writer = RowStore::new(Arc::clone(&store));
    append_states(&mut writer);
    let gpus = random_fleet(&mut random, 5400);
    append(&mut writer, &gpus, 1);
    let cpus = random_cpus(&mut random, &gpus);
    let entries = cpus.iter().zip(1..).map(|((host, row), sequence)| QueuedEntry {
        queue: [3; 16].into(),
        host: host.as_str().into(),
        sequence,
        body: Body::Host(Box::new(row.clone())),
    });
    writer.append(entries.collect()).unwrap();

    let held: BTreeSet<(&str, u64)> = gpus
        .iter()
        .filter(|(_, row)| !row.runs.is_empty())
        .map(|(host, row)| (host.as_str(), row.start_unix_s))
        .collect();
    let mut expected = BTreeMap::<&str, [f64; 6]>::new();
    for (host, row) in &cpus {
        let sums = expected.entry(host.as_str()).or_default();
        let deployed_s = 8.0 * f64::from(row.length_s);
        let is_busy =
            held.contains(&(host.as_str(), row.start_unix_s)) || !row.group_cpu_s.is_empty();
        let is_drained =
            host == DRAINED.0 && (DRAINED.1[0]..DRAINED.1[1]).contains(&row.start_unix_s);
        let user_s = row.cpu_s["user"] + row.cpu_s["nice"];
        let busy_s = user_s + row.cpu_s["system"] + row.cpu_s["softirq"];
        sums[0] += deployed_s;
        sums[1] += if is_busy || !is_drained { deployed_s } else { 0.0 };
        if is_busy {
            let of_row = [deployed_s, busy_s, user_s, 8.0 * row.observed_s];
            sums[2..].iter_mut().zip(of_row).for_each(|(sum, value)| *sum += value);
        }
    }
    let query = SumQuery {
        tree: ResourceTree::Cpu,
        range: 0..u64::MAX / 2,
        ..SumQuery::group(&[Dimension::Host], None)
    };
    let compare = || {
        let answer = super::query(&store, &Pools::default(), &query).unwrap();
        assert_eq!(answer.hours_missing, 0);
        let hosts = answer.sums.keys().map(|(_, key)| key.member(Dimension::Host));
        assert!(hosts.eq(expected.keys().copied()));
        for (sums, expected) in answer.sums.values().zip(expected.values()) {
            let FleetSums { deployed_s, schedulable_s, allocated_s, .. } = *sums;
            let FleetSums { busy_s, sm_active_s, busy_observed_s, .. } = *sums;
            let got =
                [deployed_s, schedulable_s, allocated_s, busy_s, sm_active_s, busy_observed_s];
            for (value, expected) in got.into_iter().zip(expected) {
                assert!((value - expected).abs() < 1e-9 * expected.max(1.0), "{sums:?}");
            }
            assert_eq!(sums.on_busy_hosts_s, allocated_s);
        }
    };
    compare();
    let future = SystemTime::now() + Duration::from_secs(1000);
    maintain(&store, &Pools::default(), future).unwrap();
    assert_eq!(store.hours("cpu_by_host").unwrap(), [HOUR, HOUR + 1]);
    compare();
    // Rows of GPUs may be deleted before those of CPUs.
    std::fs::remove_dir_all(folder.path("store/gpu")).unwrap();
    compare();
    std::fs::remove_dir_all(folder.path("store/host")).unwrap();
    compare();
}

#[test]
fn sums_of_two_fleets_add_up_to_those_of_both() {
    let mut random = Random(5);
    let rows = random_fleet(&mut random, 3600);
    let sums = |rows: &[HostRow]| {
        let folder = Folder::new();
        let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
        let mut writer = RowStore::new(Arc::clone(&store));
        append_states(&mut writer);
        append(&mut writer, rows, 1);
        sum_rows(&store, &Pools::default(), HOUR, &SumQuery::group(&Dimension::ALL, Some(60)))
            .unwrap()
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
