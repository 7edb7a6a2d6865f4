use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arrow_array::UInt64Array;
use fleet::proto::{
    Body, GpuInterval, GpuRun, HostEvent, HostInterval, OrderState, RunReport, StepInterval,
};
use testkit::Folder;

use super::compaction::{MergeScope, merge};
use super::ingest::{HostProblem, IngestTally, RowStore};
use super::retention::remove_old_days;
use super::{Partition, StoreFolder, column};
use crate::batch::QueuedEntry;
use crate::columns::RowTable;
use crate::config::{DAY_S, Pools, Retention};
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::rollup;

const HOUR: u64 = 490_000;

fn entry(queue: u8, sequence: u64, body: Body) -> QueuedEntry {
    QueuedEntry { queue: [queue; 16].into(), host: "gpu-1".into(), sequence, body }
}

/// A row of a GPU or, if `index` is `None`, of the host, at an offset in seconds from the hour.
fn row(index: Option<u32>, offset_s: u64) -> Body {
    let start_unix_s = HOUR * 3600 + offset_s;
    let Some(index) = index else {
        return Body::Host(Box::new(HostInterval {
            start_unix_s,
            length_s: 10,
            observed_s: 10.0,
            cores_busy: vec![0.5; 5],
            cpu_s: BTreeMap::from([("user".to_owned(), 3.0)]),
            ..HostInterval::default()
        }));
    };
    let run = GpuRun { job: "7".to_owned(), ..GpuRun::default() };
    Body::Gpu(Box::new(GpuInterval {
        start_unix_s,
        length_s: 10,
        index,
        uuid: format!("GPU-{index}"),
        runs: vec![run; index as usize % 3],
        observed_s: 10.0,
        sums: BTreeMap::from([("busy_s".to_owned(), 5.0), ("new_s".to_owned(), 1.0)]),
        errors: BTreeMap::from([("xid_79".to_owned(), 1)]),
        ..GpuInterval::default()
    }))
}

fn open(folder: &Folder) -> (Arc<StoreFolder>, RowStore) {
    let store = Arc::new(StoreFolder::open(&folder.path("store")).unwrap());
    (Arc::clone(&store), RowStore::new(store))
}

fn hour(table: RowTable) -> Partition {
    Partition { hour: (table != RowTable::Order).then_some(HOUR), table: table.folder() }
}

/// The numbers of the entries that a table has.
fn sequences(store: &StoreFolder, table: RowTable) -> Vec<u64> {
    let mut numbers = Vec::new();
    store
        .read(hour(table), &["sequence"], |batch, path| {
            let sequences: &UInt64Array = column(batch, "sequence", path)?;
            numbers.extend_from_slice(sequences.values());
            Ok(())
        })
        .unwrap();
    numbers.sort_unstable();
    numbers
}

/// The numbers of stored and of repeated rows.
fn stored(tally: &IngestTally) -> [u64; 2] {
    [tally.stored, rows_of(tally, HostProblem::RepeatedRows)]
}

fn rows_of(tally: &IngestTally, problem: HostProblem) -> u64 {
    tally.problems.get(&("gpu-1".into(), problem)).map_or(0, |count| count.rows)
}

#[test]
fn an_entry_is_stored_once_also_by_the_next_hub() {
    let folder = Folder::new();
    let entries = || {
        let order = Body::Order(OrderState::ended(4, "trace", "late"));
        vec![
            entry(1, 1, row(Some(0), 0)),
            entry(1, 2, row(None, 0)),
            entry(1, 3, row(Some(0), 3600)),
            entry(1, 4, order),
        ]
    };
    let (first, mut rows) = open(&folder);
    assert_eq!(stored(&rows.append(entries()).unwrap()), [4, 0]);
    assert_eq!(stored(&rows.append(entries()).unwrap()), [0, 4]);
    drop((first, rows));
    let (store, mut rows) = open(&folder);
    assert_eq!(stored(&rows.append(entries()).unwrap()), [0, 4]);
    assert_eq!(store.hours("gpu").unwrap(), [HOUR, HOUR + 1]);
    assert_eq!(sequences(&store, RowTable::Gpu), [1]);
    assert_eq!(sequences(&store, RowTable::Host), [2]);
    assert_eq!(sequences(&store, RowTable::Order), [4]);
}

#[test]
fn runs_steps_and_events_are_stored_once_also_by_the_next_hub() {
    let folder = Folder::new();
    let start_unix_s = HOUR * 3600;
    let run = Some(GpuRun { job: "7".to_owned(), ..GpuRun::default() });
    let report = RunReport {
        seen_unix_s: start_unix_s,
        run: run.clone(),
        gpus: vec!["GPU-0".to_owned(), "GPU-1".to_owned()],
        exit_code: Some(-1),
        ..RunReport::default()
    };
    let steps = |pid| {
        let phase_s = BTreeMap::from([("train".to_owned(), 9.0)]);
        let row = StepInterval { start_unix_s, length_s: 10, pid, phase_s, ..Default::default() };
        Body::Steps(Box::new(StepInterval { run: run.clone(), steps: 3, ..row }))
    };
    let (kind, start_unix_ms) = ("hang".to_owned(), start_unix_s * 1000 + 5);
    let details = "{}".to_owned();
    let event = HostEvent { kind, start_unix_ms, length_ms: 1500, details, ..Default::default() };
    let entries = || {
        let bodies = [
            Body::Run(Box::new(report.clone())),
            Body::Run(Box::new(report.clone())),
            Body::Event(Box::new(event.clone())),
            steps(40),
            steps(41),
        ];
        (1..).zip(bodies).map(|(at, body)| entry(1, at, body)).collect::<Vec<_>>()
    };
    for lives in 0..2 {
        let (store, mut rows) = open(&folder);
        let tally = rows.append(entries()).unwrap();
        assert_eq!(stored(&tally), if lives == 0 { [5, 0] } else { [0, 5] });
        // Another agent on the host describes the same process and interval.
        let tally = rows.append(vec![entry(2, 1, steps(41))]).unwrap();
        assert_eq!(rows_of(&tally, HostProblem::DoubledRows), 1);
        let tables = [RowTable::Run, RowTable::Event, RowTable::Step];
        let found = tables.map(|table| sequences(&store, table));
        assert_eq!(found, [vec![1, 2], vec![3], vec![4, 5]]);
    }
}

#[test]
fn a_second_row_of_an_interval_is_counted_and_left_out() {
    let folder = Folder::new();
    for lives in 0..2 {
        let (store, mut rows) = open(&folder);
        let first = vec![entry(1, 1, row(Some(0), 10)), entry(1, 2, row(Some(1), 10))];
        rows.append(first).unwrap();
        let second = vec![
            entry(2, 1, row(Some(0), 10)),
            entry(2, 2, row(Some(0), 15)),
            entry(2, 3 + lives, row(Some(0), 20 + 10 * lives)),
        ];
        let tally = rows.append(second).unwrap();
        assert_eq!(rows_of(&tally, HostProblem::DoubledRows), 2);
        assert_eq!(tally.stored, 1);
        assert_eq!(sequences(&store, RowTable::Gpu).len() as u64, 3 + lives);
    }
}

#[test]
fn rows_of_the_future_are_stored_and_counted() {
    let folder = Folder::new();
    let (_store, mut rows) = open(&folder);
    let year = 365 * 24 * 3600;
    let entries = vec![entry(1, 1, row(Some(0), 0)), entry(1, 2, row(Some(0), 100 * year))];
    let tally = rows.append(entries).unwrap();
    assert_eq!((tally.stored, rows_of(&tally, HostProblem::FutureRows)), (2, 1));
}

#[test]
fn merging_keeps_every_row_and_may_be_killed_between_its_steps() {
    let folder = Folder::new();
    let (store, mut rows) = open(&folder);
    for number in 0..100_u64 {
        let index = u32::try_from(number % 4).unwrap();
        rows.append(vec![entry(1, number + 1, row(Some(index), number / 4 * 10))]).unwrap();
    }
    let all: Vec<u64> = (1..=100).collect();
    let path = store.path(hour(RowTable::Gpu));
    let copies = folder.path("copies");
    fs::create_dir(&copies).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copies.join(entry.file_name())).unwrap();
    }
    assert!(merge(&store, hour(RowTable::Gpu), MergeScope::Singles).unwrap());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    // A killed merge leaves files that it replaced.
    for entry in fs::read_dir(&copies).unwrap().take(70) {
        let entry = entry.unwrap();
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    assert_eq!(sequences(&store, RowTable::Gpu), all);
    rows.append(vec![entry(1, 101, row(Some(0), 3000))]).unwrap();
    assert!(!merge(&store, hour(RowTable::Gpu), MergeScope::Singles).unwrap());
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
    assert!(merge(&store, hour(RowTable::Gpu), MergeScope::All).unwrap());
    assert_eq!(sequences(&store, RowTable::Gpu), (1..=101).collect::<Vec<_>>());
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["0000000000-0000000100.parquet"]);
}

#[test]
fn one_hub_writes_and_unfinished_files_are_removed() {
    let folder = Folder::new();
    let (store, rows) = open(&folder);
    let again = StoreFolder::open(&folder.path("store"));
    assert!(matches!(again, Err(Error::Locked { .. })), "{again:?}");
    let unfinished = folder.write("store/tmp/3.parquet", "PAR1");
    drop((store, rows));
    open(&folder);
    assert!(!unfinished.exists());
}

/// The number of a day that lies some days before today.
fn day_before(days: u64) -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / DAY_S - days
}

/// An entry with a row of a GPU on a day.
fn row_of_day(sequence: u64, day: u64) -> QueuedEntry {
    let Body::Gpu(mut gpu) = row(Some(0), 0) else { panic!("a GPU") };
    gpu.start_unix_s = day * DAY_S + 600;
    entry(1, sequence, Body::Gpu(gpu))
}

#[test]
fn old_days_are_deleted_by_their_kind_and_their_sums_remain() {
    let folder = Folder::new();
    let (store, mut rows) = open(&folder);
    let days = |count: u64| Some(Duration::from_secs(count * DAY_S));
    let retention =
        Retention { rows: days(3), minutes: days(6), hours: days(12), ..Retention::default() };
    let ages = [1, 2, 5, 8, 14];
    let entries = (1..).zip(ages).map(|(at, age)| row_of_day(at, day_before(age))).collect();
    rows.append(entries).unwrap();
    let counts = |store: &StoreFolder| {
        ["gpu", "by_minute", "by_hour"].map(|table| store.days(table).unwrap().len())
    };
    let clock = SystemTime::now();
    // Rows are kept while their sums are missing.
    assert_eq!(remove_old_days(&store, &retention, clock).unwrap(), 0);
    let deployed_s = |store: &StoreFolder| {
        let all = SumQuery { range: 0..u64::MAX / 2, ..SumQuery::group(&[], None) };
        let sums = rollup::query(store, &Pools::default(), &all).unwrap().sums;
        sums.values().map(|sums| sums.deployed_s).sum::<f64>()
    };
    // The files are new, so they settle only in the future.
    let settled = clock + Duration::from_secs(1000);
    rollup::maintain(&store, &Pools::default(), settled).unwrap();
    assert_eq!(deployed_s(&store), 50.0);
    remove_old_days(&store, &retention, clock).unwrap();
    assert_eq!(counts(&store), [2, 3, 4]);
    // The sums of the oldest day have ended too.
    assert_eq!(deployed_s(&store), 40.0);
    assert_eq!(remove_old_days(&store, &retention, clock).unwrap(), 0);
    rollup::maintain(&store, &Pools::default(), settled).unwrap();
    assert_eq!((counts(&store), deployed_s(&store)), ([2, 3, 4], 40.0));
    // A row of a deleted day would be taken for all rows of its hour.
    let mut rows = rows.with_retention(retention);
    let tally = rows.append(vec![row_of_day(9, day_before(5)), row_of_day(10, day_before(3))]);
    let tally = tally.unwrap();
    assert_eq!((tally.stored, rows_of(&tally, HostProblem::ExpiredRows)), (1, 1));
    assert_eq!(deployed_s(&store), 50.0);
}

#[test]
fn a_deletion_that_is_killed_leaves_a_whole_day_or_none() {
    let folder = Folder::new();
    let (store, mut rows) = open(&folder);
    let day = day_before(6);
    rows.append(vec![row_of_day(1, day)]).unwrap();
    let path = store.day_path("gpu", day);
    // A killed hub moved the day and removed none of its files.
    fs::rename(&path, folder.path("store/tmp/7.removed")).unwrap();
    assert_eq!(store.hours("gpu").unwrap(), Vec::<u64>::new());
    drop((store, rows));
    let (store, _rows) = open(&folder);
    assert_eq!(fs::read_dir(folder.path("store/tmp")).unwrap().count(), 0);
    assert_eq!(store.hours("gpu").unwrap(), Vec::<u64>::new());
}
