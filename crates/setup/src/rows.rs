//! Sets the number of rows of tables with `rows = "auto"` according to the prepared training data.

use std::collections::BTreeMap;

use data::Dataset;
use schema::{JobConfig, TableConfig};

use crate::Session;
use crate::error::{Error, UsageError};
use crate::render;

/// Number of tables that a message lists.
const SHOWN: usize = 6;
/// Number of rows of a table with `rows = "auto"` if the data is generated.
pub const ROWS_OF_SYNTHETIC: u64 = 1000;

/// Gives tables with `rows = "auto"` the number of rows that `dataset` requires, and prints these
/// numbers.
pub fn size_tables(session: &Session, job: &mut JobConfig, dataset: &Dataset) -> Result<(), Error> {
    let fitted = dataset.fitted();
    let mut needed: BTreeMap<String, u64> = BTreeMap::new();
    for feature in job.model.features() {
        let table = &job.model.tables[feature.table];
        if !table.is_auto() {
            continue;
        }
        let column = fitted.categorical.iter().position(|column| column.column == feature.name);
        let rows = match column.and_then(|column| fitted.id_count(column)) {
            Some(rows) => rows,
            None => dataset.greatest_id(feature.name)?.map_or(1, |id| id.saturating_add(1)),
        };
        // Several features can share a table, which must have a row for the largest id of all of
        // them.
        let most = needed.entry(table.name.clone()).or_default();
        *most = rows.max(*most);
    }
    job.size_tables(|table| needed.get(&table.name).copied().unwrap_or(1));
    let sized = job.model.tables.iter().filter(|table| needed.contains_key(&table.name));
    let mut shown: Vec<String> = sized
        .take(SHOWN)
        .map(|table| format!("{} {}", table.name, render::count(table.rows)))
        .collect();
    if needed.len() > SHOWN {
        shown.push(format!("and {} more", needed.len() - SHOWN));
    }
    session.console.say(format_args!("rows of the tables, by the data: {}", shown.join(", ")));
    Ok(())
}

/// Rejects tables with `rows = "auto"`. `doing` names the task that needs their numbers of rows.
pub fn check_known(tables: &[TableConfig], doing: &'static str) -> Result<(), Error> {
    let auto: Vec<&str> =
        tables.iter().filter(|table| table.is_auto()).map(|table| table.name.as_str()).collect();
    if auto.is_empty() {
        return Ok(());
    }
    let shown = auto.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    let tables = match auto.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{shown} and {more} more"),
        _ => shown,
    };
    Err(UsageError::RowsUnknown { doing, tables }.into())
}
