//! Keeps the sums of each minute and of each hour in files, and answers queries from them.
//!
//! A file of sums is named like a merged file of rows: by the commits whose rows it holds. It
//! counts only while these are all rows of its hour; otherwise the rows themselves are read.
//! Queries are therefore exact at any moment, whether or not sums have been computed.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, TimestampMillisecondArray};

use crate::aggregate::{COLUMNS, HourSums, MINUTE_S, OPTIONAL};
use crate::columns::{KEPT, KeptTable, RowTable, text, timestamps};
use crate::config::Pools;
use crate::error::Error;
use crate::faults;
use crate::grouping::{BucketSums, GroupKey, GroupedSums, SumQuery, TextColumn, TextNumbers};
use crate::kept::{is_current, last_commit, over_hours, write_kept};
use crate::mode_sums;
use crate::nodes::NodeStates;
use crate::store::compaction::{MergeScope, merge};
use crate::store::{HOUR_S, Partition, StoreFolder, column};
use crate::sums::Dimension::{Host, Model, Pool, Run, User, Workflow};
use crate::sums::{DIMENSIONS, Dimension, FleetSums};
use crate::trees::ResourceTree;

/// Sums that are kept in files, and read for queries that need neither shorter times nor further
/// dimensions.
struct SumTable {
    kept: KeptTable,
    tree: ResourceTree,
    step_s: u64,
    dimensions: &'static [Dimension],
}

/// The tables of sums. The first one that has what a query needs counts. Sums by host and run
/// together would be as many as the rows.
const TABLES: [SumTable; 4] = {
    const GPU: ResourceTree = ResourceTree::Gpu;
    const CPU: ResourceTree = ResourceTree::Cpu;
    const OF_RUNS: &[Dimension] = &[Pool, Model, Workflow, User, Run];
    let [by_minute, by_hour, by_host, _, by_cpu_host] = KEPT;
    [
        SumTable { kept: by_hour, tree: GPU, step_s: HOUR_S, dimensions: OF_RUNS },
        SumTable { kept: by_host, tree: GPU, step_s: HOUR_S, dimensions: &[Pool, Model, Host] },
        SumTable { kept: by_minute, tree: GPU, step_s: MINUTE_S, dimensions: OF_RUNS },
        SumTable { kept: by_cpu_host, tree: CPU, step_s: HOUR_S, dimensions: &[Pool, Host] },
    ]
};

/// The answer to a query.
#[derive(Clone, Debug, Default)]
pub struct QueryAnswer {
    pub sums: BucketSums,
    /// Number of hours that the answer lacks, because their rows were deleted and the remaining
    /// sums have not the dimensions or times of the query.
    pub hours_missing: u64,
}

impl SumTable {
    /// Whether the table has all that a query needs of the rows of an hour. They reach into the
    /// next hour, but not beyond it.
    fn answers(&self, query: &SumQuery, hour: u64) -> bool {
        let [start, middle, end] = [0, 1, 2].map(|hours| (hour + hours) * HOUR_S);
        let is_outside = |edge| edge <= start || edge == middle || end <= edge;
        let is_whole = is_outside(query.range.start) && is_outside(query.range.end);
        let has_times = self.step_s <= MINUTE_S
            || is_whole && query.step_s.is_none_or(|step_s| step_s.is_multiple_of(self.step_s));
        let mut others = Dimension::ALL.into_iter().filter(|one| !self.dimensions.contains(one));
        self.tree == query.tree && has_times && others.all(|dimension| !query.needs(dimension))
    }
}

/// Merges the files of all hours that need it, and computes the sums of hours that are over.
/// Returns the number of merged partitions.
///
/// # Errors
/// If a file cannot be read or written.
pub fn maintain(folder: &StoreFolder, pools: &Pools, now: SystemTime) -> Result<u64, Error> {
    let mut merged = 0;
    for table in RowTable::ALL {
        let hours: Vec<Option<u64>> = match table {
            RowTable::Order => vec![None],
            _ => folder.hours(table.folder())?.into_iter().map(Some).collect(),
        };
        for hour in hours {
            let partition = Partition { hour, table: table.folder() };
            let scope = MergeScope::choose(folder, partition, now)?;
            merged += u64::from(merge(folder, partition, scope)?);
            if let (RowTable::Gpu | RowTable::Host, Some(hour), MergeScope::All) =
                (table, hour, scope)
            {
                write_sums(folder, pools, hour)?;
            }
        }
    }
    Ok(merged)
}

/// Computes the sums of an hour from its rows and writes them, unless they are up to date.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write_sums(folder: &StoreFolder, pools: &Pools, hour: u64) -> Result<(), Error> {
    faults::write(folder, hour)?;
    for table in &TABLES {
        let Some(last) = last_commit(folder, hour, table.kept.sources)? else { continue };
        if is_current(folder, hour, table.kept)? {
            continue;
        }
        let query = SumQuery::group(table.dimensions, Some(table.step_s));
        let query = SumQuery { tree: table.tree, ..query };
        let batch = encode(&sum_rows(folder, pools, hour, &query)?, table)?;
        let partition = Partition { hour: Some(hour), table: table.kept.folder };
        write_kept(folder, partition, last, &batch)?;
    }
    Ok(())
}

/// Computes the sums of an hour from its rows.
///
/// # Errors
/// If a file cannot be read.
pub fn sum_rows(
    folder: &StoreFolder,
    pools: &Pools,
    hour: u64,
    query: &SumQuery,
) -> Result<BucketSums, Error> {
    let texts = TextNumbers::default();
    let mut groups = GroupedSums::new(query, &texts);
    add_rows(folder, pools, hour, &mut groups)?;
    Ok(groups.finish())
}

fn add_rows(
    folder: &StoreFolder,
    pools: &Pools,
    hour: u64,
    groups: &mut GroupedSums,
) -> Result<(), Error> {
    if let Some(modes) = &groups.query.tree.description().modes {
        return mode_sums::add_hour(folder, pools, hour, modes, groups);
    }
    let partition = Partition { hour: Some(hour), table: RowTable::Gpu.folder() };
    let nodes = NodeStates::read(folder, hour)?;
    let mut sums = HourSums::new(pools, &nodes, groups, hour);
    folder.read_coded(partition, &COLUMNS, &OPTIONAL, |batch, path| sums.add(batch, path))?;
    sums.finish();
    Ok(())
}

/// Computes the sums of a query. Its range is extended to whole minutes.
///
/// # Errors
/// If a file cannot be read.
pub fn query(folder: &StoreFolder, pools: &Pools, query: &SumQuery) -> Result<QueryAnswer, Error> {
    let Range { start, end } = query.range;
    let range = start / MINUTE_S * MINUTE_S..end.div_ceil(MINUTE_S).saturating_mul(MINUTE_S);
    let query = &SumQuery { range: range.clone(), ..query.clone() };
    let texts = &TextNumbers::default();
    // Rows of the hour before may reach into the range.
    let hours = range.start.saturating_sub(HOUR_S)..range.end;
    let parts = over_hours(folder, query.tree, &hours, |hours| {
        query_hours(folder, pools, hours, query, texts)
    })?;
    let (mut total, mut hours_missing) = (GroupedSums::new(query, texts), 0);
    for (groups, missing) in parts {
        total.merge(&groups);
        hours_missing += missing;
    }
    Ok(QueryAnswer { sums: total.finish(), hours_missing })
}

/// Computes the sums of some hours, from kept sums where they are up to date. Also returns the
/// number of hours that are missing.
fn query_hours<'a>(
    folder: &StoreFolder,
    pools: &Pools,
    hours: &[u64],
    query: &'a SumQuery,
    texts: &'a TextNumbers,
) -> Result<(GroupedSums<'a>, u64), Error> {
    let (mut groups, mut missing) = (GroupedSums::new(query, texts), 0);
    for &hour in hours {
        let table = TABLES.iter().find(|table| table.answers(query, hour));
        if let Some(table) = table
            && is_current(folder, hour, table.kept)?
        {
            add_kept(folder, hour, table, &mut groups)?;
        } else if last_commit(folder, hour, &query.tree.description().sources[..1])?.is_some() {
            add_rows(folder, pools, hour, &mut groups)?;
        } else if (hour + 1) * HOUR_S > query.range.start {
            missing += 1;
        }
    }
    Ok((groups, missing))
}

fn encode(sums: &BucketSums, table: &SumTable) -> Result<RecordBatch, Error> {
    let mut columns = vec![("start", timestamps(sums.keys().map(|(start, _)| *start)))];
    for &dimension in table.dimensions {
        let members = sums.keys().map(|(_, key)| key.member(dimension));
        columns.push((dimension.name(), text(members)));
    }
    for (at, name) in FleetSums::NAMES.into_iter().enumerate() {
        let values = Float64Array::from_iter_values(sums.values().map(|sums| sums.values()[at]));
        columns.push((name, Arc::new(values) as ArrayRef));
    }
    let columns = columns.into_iter().map(|(name, array)| (name, array, false));
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Adds the kept sums of an hour.
fn add_kept(
    folder: &StoreFolder,
    hour: u64,
    table: &SumTable,
    groups: &mut GroupedSums,
) -> Result<(), Error> {
    let query = groups.query;
    let needed = table.dimensions.iter().copied().filter(|one| query.needs(*one));
    let dimensions: Vec<Dimension> = needed.collect();
    let mut columns = vec!["start"];
    columns.extend(dimensions.iter().map(|dimension| dimension.name()));
    columns.extend(FleetSums::NAMES);
    let partition = Partition { hour: Some(hour), table: table.kept.folder };
    folder.read_coded(partition, &columns, &[], |batch, path| {
        add_kept_rows(batch, path, &dimensions, groups)
    })
}

fn add_kept_rows(
    batch: &RecordBatch,
    path: &Path,
    dimensions: &[Dimension],
    groups: &mut GroupedSums,
) -> Result<(), Error> {
    let starts: &TimestampMillisecondArray = column(batch, "start", path)?;
    let mut members = Vec::new();
    for &dimension in dimensions {
        let number = |text: &str| groups.number(dimension, text);
        members.push((dimension, TextColumn::new(batch, dimension.name(), path, number)?));
    }
    let mut values: Vec<Option<&Float64Array>> = Vec::new();
    for (at, name) in FleetSums::NAMES.into_iter().enumerate() {
        let is_there = at < FleetSums::ALWAYS_KEPT || batch.column_by_name(name).is_some();
        values.push(if is_there { Some(column(batch, name, path)?) } else { None });
    }
    for row in 0..batch.num_rows() {
        let second = u64::try_from(starts.value(row) / 1000).unwrap_or(0);
        if groups.query.range.contains(&second) {
            let start = groups.query.bucket(second);
            let mut key = GroupKey { start, members: [0; DIMENSIONS] };
            for (dimension, texts) in &members {
                key.members[*dimension as usize] = texts.number(row);
            }
            let sums = FleetSums::from_values(std::array::from_fn(|at| {
                values[at].map_or(0.0, |one| one.value(row))
            }));
            groups.add(key, &sums);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
