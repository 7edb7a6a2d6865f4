//! Finds the faults of GPUs: errors, and time in which hardware slowed a GPU down. Faults are few,
//! so they are kept one by one for each hour, beside the sums.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float64Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, MapArray, RecordBatch, StringArray, TimestampMillisecondArray,
    UInt32Array,
};
use serde::Serialize;

use crate::columns::{KEPT, KeptTable, RowTable, text, timestamps};
use crate::config::Pools;
use crate::error::Error;
use crate::grouping::SumQuery;
use crate::kept::{is_current, last_commit, over_hours, write_kept};
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::Dimension;
use crate::trees::ResourceTree;

/// Folder of the faults of each hour.
const FAULTS: KeptTable = KEPT[3];
/// Reasons of throttling that users choose, such as a power limit.
pub const CHOSEN: [&str; 2] = ["sw_power_cap", "sync_boost"];
/// Columns of rows that are needed.
const COLUMNS: [&str; 6] = ["host", "start", "index", "model", "throttle_s", "errors"];

/// Faults of one kind of one GPU.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuFault {
    pub host: String,
    /// Index of the GPU.
    pub gpu: u32,
    pub model: String,
    /// Kind of the fault, such as `throttled hw_thermal_slowdown` or `error xid_79`.
    pub kind: String,
    /// Seconds of throttling, or number of errors.
    pub amount: f64,
    /// The last minute or hour that has such a fault, in seconds since 1970.
    pub last_unix_s: u64,
}

/// Host, GPU, model and kind of a fault.
type FaultKey = (String, u32, String, String);
/// Amounts of faults with the time of the last one.
type Faults = BTreeMap<FaultKey, (f64, u64)>;

fn add(faults: &mut Faults, key: FaultKey, amount: f64, second: u64) {
    if amount > 0.0 {
        let (sum, last) = faults.entry(key).or_default();
        *sum += amount;
        *last = second.max(*last);
    }
}

/// Lists the faults of a range of time and a selection of hosts, pools and models.
///
/// # Errors
/// If a file cannot be read.
pub fn query(
    folder: &StoreFolder,
    pools: &Pools,
    query: &SumQuery,
) -> Result<Vec<GpuFault>, Error> {
    let parts = over_hours(folder, ResourceTree::Gpu, &query.range, |hours| {
        let mut faults = Faults::new();
        for &hour in hours {
            let is_whole =
                query.range.start <= hour * HOUR_S && (hour + 1) * HOUR_S <= query.range.end;
            let found = if is_whole && is_current(folder, hour, FAULTS)? {
                read_kept(folder, hour)?
            } else {
                read_rows(folder, hour, &query.range)?
            };
            for (key, (amount, last)) in found {
                add(&mut faults, key, amount, last);
            }
        }
        Ok(faults)
    })?;
    let mut faults = Faults::new();
    for (key, (amount, last)) in parts.into_iter().flatten() {
        add(&mut faults, key, amount, last);
    }
    let is_selected = |host: &str, model: &str| {
        let members = [
            (Dimension::Host, host),
            (Dimension::Pool, pools.pool_of(host)),
            (Dimension::Model, model),
        ];
        members.into_iter().all(|(dimension, member)| {
            query.selection.get(&dimension).is_none_or(|selected| selected.contains(member))
        })
    };
    let faults = faults.into_iter().filter(|((host, _, model, _), _)| is_selected(host, model));
    let fault = |((host, gpu, model, kind), (amount, last_unix_s))| GpuFault {
        host,
        gpu,
        model,
        kind,
        amount,
        last_unix_s,
    };
    Ok(faults.map(fault).collect())
}

/// Finds the faults of an hour and writes them, unless they are up to date.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(folder: &StoreFolder, hour: u64) -> Result<(), Error> {
    let Some(last) = last_commit(folder, hour, FAULTS.sources)? else { return Ok(()) };
    if is_current(folder, hour, FAULTS)? {
        return Ok(());
    }
    let faults = read_rows(folder, hour, &(0..u64::MAX))?;
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("start", timestamps(faults.values().map(|(_, second)| *second))),
        ("host", text(faults.keys().map(|(host, ..)| host.as_str()))),
        ("index", Arc::new(UInt32Array::from_iter_values(faults.keys().map(|(_, gpu, ..)| *gpu)))),
        ("model", text(faults.keys().map(|(_, _, model, _)| model.as_str()))),
        ("kind", text(faults.keys().map(|(.., kind)| kind.as_str()))),
        ("amount", Arc::new(Float64Array::from_iter_values(faults.values().map(|(sum, _)| *sum)))),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, false));
    let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
    write_kept(folder, Partition { hour: Some(hour), table: FAULTS.folder }, last, &batch)
}

fn read_kept(folder: &StoreFolder, hour: u64) -> Result<Faults, Error> {
    let mut faults = Faults::new();
    folder.read(Partition { hour: Some(hour), table: FAULTS.folder }, &[], |batch, path| {
        let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
        let indexes: &UInt32Array = column(batch, "index", path)?;
        let amounts: &Float64Array = column(batch, "amount", path)?;
        let [hosts, models, kinds] =
            ["host", "model", "kind"].map(|name| column(batch, name, path));
        let (hosts, models, kinds): (&StringArray, &StringArray, &StringArray) =
            (hosts?, models?, kinds?);
        for row in 0..batch.num_rows() {
            let [host, model, kind] = [hosts, models, kinds].map(|text| text.value(row).to_owned());
            let second = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
            add(&mut faults, (host, indexes.value(row), model, kind), amounts.value(row), second);
        }
        Ok(())
    })?;
    Ok(faults)
}

fn read_rows(folder: &StoreFolder, hour: u64, range: &Range<u64>) -> Result<Faults, Error> {
    let mut faults = Faults::new();
    let partition = Partition { hour: Some(hour), table: RowTable::Gpu.folder() };
    folder.read(partition, &COLUMNS, |batch, path| add_rows(&mut faults, batch, path, range))?;
    Ok(faults)
}

fn add_rows(
    faults: &mut Faults,
    batch: &RecordBatch,
    path: &Path,
    range: &Range<u64>,
) -> Result<(), Error> {
    let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
    let hosts: &StringArray = column(batch, "host", path)?;
    let indexes: &UInt32Array = column(batch, "index", path)?;
    let models: &StringArray = column(batch, "model", path)?;
    let throttled: &MapArray = column(batch, "throttle_s", path)?;
    let errors: &MapArray = column(batch, "errors", path)?;
    for row in 0..batch.num_rows() {
        let second = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
        let is_healthy = throttled.value_length(row) + errors.value_length(row) == 0;
        if is_healthy || !range.contains(&second) {
            continue;
        }
        let slowed = members::<Float64Type>(throttled, row).into_iter();
        let slowed = slowed.filter(|(name, _)| !CHOSEN.contains(&name.as_str()));
        let slowed = slowed.map(|(name, seconds)| (format!("throttled {name}"), seconds));
        let failed = members::<UInt64Type>(errors, row).into_iter();
        let failed = failed.map(|(name, count)| (format!("error {name}"), count as f64));
        for (kind, amount) in slowed.chain(failed) {
            let (host, model) = (hosts.value(row).to_owned(), models.value(row).to_owned());
            add(faults, (host, indexes.value(row), model, kind), amount, second);
        }
    }
    Ok(())
}

/// Returns the names and values of a map of a row.
pub fn members<T: ArrowPrimitiveType>(map: &MapArray, row: usize) -> Vec<(String, T::Native)> {
    let entries = map.value(row);
    let names: Option<&StringArray> = entries.column(0).as_string_opt();
    let values = entries.column(1).as_primitive_opt::<T>();
    let pairs = names.zip(values).map(|(names, values)| {
        let name = |at| names.value(at).to_owned();
        (0..entries.len()).map(|at| (name(at), values.value(at))).collect()
    });
    pairs.unwrap_or_default()
}
