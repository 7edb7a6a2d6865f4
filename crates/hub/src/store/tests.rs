use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use arrow_array::UInt64Array;
use fleet::proto::{
    Body, GpuInterval, GpuRun, HostEvent, HostInterval, OrderState, RunReport, StepInterval,
};
use testkit::Folder;

use super::compaction::{MergeScope, merge};
use super::ingest::{IngestTally, RowStore};
use super::{Partition, StoreFolder, column};
use crate::batch::QueuedEntry;
use crate::columns::RowTable;
use crate::error::Error;

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

fn stored(count: u64) -> IngestTally {
    IngestTally { stored: count, ..IngestTally::default() }
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
    assert_eq!(rows.append(entries()).unwrap(), stored(4));
    let repeated = IngestTally { repeated: 4, ..IngestTally::default() };
    assert_eq!(rows.append(entries()).unwrap(), repeated);
    drop((first, rows));
    let (store, mut rows) = open(&folder);
    assert_eq!(rows.append(entries()).unwrap(), repeated);
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
        assert_eq!((tally.stored, tally.repeated), if lives == 0 { (5, 0) } else { (0, 5) });
        // Another agent on the host describes the same process and interval.
        let tally = rows.append(vec![entry(2, 1, steps(41))]).unwrap();
        assert_eq!(tally.doubled.values().sum::<u64>(), 1);
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
        assert_eq!(tally.doubled, BTreeMap::from([("gpu-1".into(), 2)]));
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
    let ahead = BTreeMap::from([("gpu-1".into(), 1)]);
    assert_eq!(rows.append(entries).unwrap(), IngestTally { stored: 2, ahead, ..stored(0) });
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
