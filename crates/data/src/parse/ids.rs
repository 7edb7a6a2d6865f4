//! Counts ids outside their tables and applies the rules for them.
//!
//! Ids are stored as signed 64-bit numbers; unsigned ids from 2^63 on keep their bit pattern. A
//! column has negative ids or such large ones, but never both, so the bits identify the id.
//! `load::gather` maps ids to rows when a batch is made.

use schema::DataConfig;
use schema::source::{CategoricalColumn, CategoryKind, IdMode, OutOfRange};
use serde::Serialize;

use crate::error::Error;
use crate::loss::IdCount;
use crate::parse::parsed_columns::ParsedCategories;
use crate::parse::parsed_row::ParsedRow;

impl IdCount {
    /// Counts `values`, of which `large` are unsigned ids from 2^63 on.
    fn count(&mut self, values: &[i64], large: usize) {
        let negative = values.iter().filter(|&&value| value < 0).count();
        self.large += large as u64;
        // Large unsigned ids are stored as negative values, so they are subtracted.
        self.negative += (negative - large.min(negative)) as u64;
        if let Some(rows) = self.rows {
            self.ids += values.len() as u64;
            self.outside += count_outside(values, rows) as u64;
        }
    }
}

/// Counts the values outside `0..rows`, with one comparison each and no branch.
#[inline]
pub(crate) fn count_outside(values: &[i64], rows: u64) -> usize {
    values.iter().map(|value| usize::from(value.cast_unsigned() >= rows)).sum()
}

/// Returns the rule of a column for ids outside its table; `None` if the column has no such table
/// or its ids are not counted.
pub(crate) fn out_of_range_rule(
    column: &CategoricalColumn,
    config: &DataConfig,
) -> Option<OutOfRange> {
    let numbers = config.format.holds_numbers();
    match (column.kind, config.ids) {
        (CategoryKind::String, _) | (_, IdMode::Exact { .. }) => None,
        (CategoryKind::Hex, _) if !numbers => column.out_of_range,
        (CategoryKind::Hex | CategoryKind::Integer, _) => {
            Some(column.out_of_range.unwrap_or_default())
        }
    }
}

/// A categorical column whose ids are counted, with the rows of its table if known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedColumn {
    column: usize,
    rows: Option<u64>,
    refuses: bool,
}

/// Selects the columns whose ids are counted.
pub(crate) fn find_counted(
    columns: &[CategoricalColumn],
    config: &DataConfig,
) -> Vec<CountedColumn> {
    let numbers = columns.iter().enumerate().filter(|(_, c)| c.kind != CategoryKind::String);
    let counted = numbers.map(|(column, config_column)| {
        let rule = out_of_range_rule(config_column, config);
        let rows = rule.and_then(|_| config.table_rows.get(&config_column.column).copied());
        CountedColumn { column, rows, refuses: rule == Some(OutOfRange::Error) && rows.is_some() }
    });
    counted.collect()
}

/// An id outside its table, in a column whose rule is to refuse such ids.
pub(crate) struct RefusedId {
    pub column: usize,
    pub id: i64,
    pub rows: u64,
}

/// Finds the first id of `row` that its column refuses.
#[inline]
pub(crate) fn find_refused(row: &ParsedRow, counted: &[CountedColumn]) -> Option<RefusedId> {
    counted.iter().filter(|counted| counted.refuses).find_map(|counted| {
        let rows = counted.rows?;
        let mut ids = row.column(counted.column).iter().copied().flatten();
        let id = ids.find(|id| id.cast_unsigned() >= rows)?;
        Some(RefusedId { column: counted.column, id, rows })
    })
}

/// Counts the ids of an accepted row. `counts` has one entry per categorical column.
#[inline]
pub(crate) fn count_row(counts: &mut Vec<IdCount>, row: &ParsedRow, counted: &[CountedColumn]) {
    for counted in counted {
        let large = row.large.iter().filter(|&&column| column == counted.column).count();
        let (mut ids, mut negative, mut outside) = (0, 0, 0);
        for id in row.column(counted.column).iter().flatten() {
            ids += 1;
            negative += u64::from(*id < 0);
            outside += u64::from(counted.rows.is_some_and(|rows| id.cast_unsigned() >= rows));
        }
        // A column without a table is recorded only for its negative ids.
        if counted.rows.is_none() && negative == 0 {
            continue;
        }
        let count = entry(counts, counted);
        count.large += large as u64;
        count.negative += negative - large as u64;
        if counted.rows.is_some() {
            count.ids += ids;
            count.outside += outside;
        }
    }
}

/// Counts the ids of whole columns. Returns `false` without counting if a column has to refuse one
/// of them.
pub(crate) fn count_columns(
    counts: &mut Vec<IdCount>,
    columns: &[ParsedCategories<'_>],
    counted: &[CountedColumn],
) -> bool {
    let is_refused = |counted: &&CountedColumn| {
        let rows = counted.rows.filter(|_| counted.refuses);
        rows.is_some_and(|rows| count_outside(&columns[counted.column].values, rows) > 0)
    };
    if counted.iter().any(|counted| is_refused(&counted)) {
        return false;
    }
    for counted in counted {
        let column = &columns[counted.column];
        let mut count = IdCount { rows: counted.rows, ..IdCount::default() };
        count.count(&column.values, column.large.len());
        if counted.rows.is_some() {
            // Missing categories are stored as 0, which is a row of every table.
            count.ids -= column.missing.iter().filter(|&&missing| missing).count() as u64;
        }
        if counted.rows.is_some() || count.negative + count.large > 0 {
            entry(counts, counted).add(&count);
        }
    }
    true
}

fn entry<'a>(counts: &'a mut Vec<IdCount>, counted: &CountedColumn) -> &'a mut IdCount {
    if counts.len() <= counted.column {
        counts.resize(counted.column + 1, IdCount::default());
    }
    let count = &mut counts[counted.column];
    count.rows = counted.rows;
    count
}

/// Fails if a column has both negative ids and ids from 2^63 on, because their bits would be
/// ambiguous.
pub(crate) fn check_signs(counts: &[IdCount], columns: &[CategoricalColumn]) -> Result<(), Error> {
    let both = |(count, _): &(&IdCount, _)| count.negative > 0 && count.large > 0;
    match counts.iter().zip(columns).find(both) {
        None => Ok(()),
        Some((count, column)) => Err(Error::IdsOfBothSigns {
            column: column.column.clone(),
            negative: count.negative,
            large: count.large,
        }),
    }
}

/// Report on the ids of one column that are outside its table, as seen in batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IdsOutside {
    pub column: String,
    pub rows: u64,
    pub rule: OutOfRange,
    /// Number of ids, including those of missing categories.
    pub ids: u64,
    /// Number of ids outside the table.
    pub outside: u64,
}
