//! Converts reports of runs, rows of training steps, and events to Arrow columns.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::Float64Type;
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int32Array, TimestampMillisecondArray, UInt64Array,
};
use arrow_schema::{ArrowError, DataType, Field};
use fleet::proto::{GpuRun, HostEvent, RunReport, StepInterval};

use super::values::{Column, add_interval, map, small, text, timestamps};

/// Adds the columns of reports of runs.
pub(super) fn add_run_columns(columns: &mut Vec<Column>, rows: &[&RunReport]) {
    let each = || rows.iter().copied();
    columns.push(("seen", timestamps(each().map(|row| row.seen_unix_s)), false));
    add_run(columns, each().map(|row| row.run.as_ref()));
    let ended = each().map(|row| row.ended_unix_s.map(|second| second.saturating_mul(1000)));
    let field = Field::new("item", DataType::Utf8, false);
    let mut gpus = ListBuilder::new(StringBuilder::new()).with_field(field);
    for row in rows {
        row.gpus.iter().for_each(|gpu| gpus.values().append_value(gpu));
        gpus.append(true);
    }
    columns.extend([
        ("alias", text(each().map(|row| row.alias.as_str())), false),
        ("workflow", text(each().map(|row| row.workflow.as_str())), false),
        ("state", text(each().map(|row| row.state.as_str())), false),
        ("started", timestamps(each().map(|row| row.started_unix_s)), false),
        ("ended", moments(ended), true),
        ("exit_code", Arc::new(each().map(|row| row.exit_code).collect::<Int32Array>()), true),
        ("exit_signal", small(each().map(|row| row.exit_signal)), true),
        ("ranks", small(each().map(|row| row.ranks)), true),
        ("processes", small(each().map(|row| Some(row.processes))), false),
        ("gpus", Arc::new(gpus.finish()), false),
    ]);
}

/// Adds the columns of rows of training steps.
///
/// # Errors
/// If the columns do not form a table, which would be a bug.
pub(super) fn add_step_columns(
    columns: &mut Vec<Column>,
    rows: &[&StepInterval],
) -> Result<(), ArrowError> {
    let each = || rows.iter().copied();
    let real = |value: fn(&StepInterval) -> Option<f64>| -> ArrayRef {
        Arc::new(each().map(value).collect::<Float64Array>())
    };
    let number = |value: fn(&StepInterval) -> Option<u64>| -> ArrayRef {
        Arc::new(each().map(value).collect::<UInt64Array>())
    };
    add_interval(columns, each().map(|row| (row.start_unix_s, row.length_s)));
    add_run(columns, each().map(|row| row.run.as_ref()));
    columns.extend([
        ("workflow", text(each().map(|row| row.workflow.as_str())), false),
        ("pid", small(each().map(|row| Some(row.pid))), false),
        ("rank", small(each().map(|row| row.rank)), true),
        ("phase", text(each().map(|row| row.phase.as_str())), false),
        ("phase_s", map::<Float64Type, _>(each().map(|row| row.phase_s.iter()))?, false),
        ("steps", number(|row| Some(row.steps)), false),
        ("timed_steps", number(|row| Some(row.timed_steps)), false),
        ("timed_s", real(|row| Some(row.timed_s)), false),
        ("step_p50_s", real(|row| row.step_p50_s), true),
        ("step_p95_s", real(|row| row.step_p95_s), true),
        ("step_max_s", real(|row| row.step_max_s), true),
        ("samples", number(|row| row.samples), true),
        ("exposed_s", real(|row| row.exposed_s), true),
    ]);
    Ok(())
}

/// Adds the columns of events.
pub(super) fn add_event_columns(columns: &mut Vec<Column>, rows: &[&HostEvent]) {
    let each = || rows.iter().copied();
    let lengths = Float64Array::from_iter_values(each().map(|row| row.length_ms as f64 * 1e-3));
    let over: BooleanArray = each().map(|row| Some(row.is_over)).collect();
    columns.extend([
        ("kind", text(each().map(|row| row.kind.as_str())), false),
        ("start", moments(each().map(|row| Some(row.start_unix_ms))), false),
        ("length_s", Arc::new(lengths) as ArrayRef, false),
        ("is_over", Arc::new(over), false),
    ]);
    add_run(columns, each().map(|row| row.run.as_ref()));
    columns.extend([
        ("pid", small(each().map(|row| row.pid)), true),
        ("rank", small(each().map(|row| row.rank)), true),
        ("details", text(each().map(|row| row.details.as_str())), false),
    ]);
}

/// Adds a column for each member of a run. The texts are empty if no run is known.
fn add_run<'a>(columns: &mut Vec<Column>, runs: impl Iterator<Item = Option<&'a GpuRun>> + Clone) {
    /// Returns one text of a run.
    type Member = fn(&GpuRun) -> &str;
    let members: [(&'static str, Member); 6] = [
        ("scheduler", |run| &run.scheduler),
        ("job", |run| &run.job),
        ("name", |run| &run.name),
        ("user", |run| &run.user),
        ("account", |run| &run.account),
        ("partition", |run| &run.partition),
    ];
    for (name, member) in members {
        columns.push((name, text(runs.clone().map(|run| run.map_or("", member))), false));
    }
}

/// Converts milliseconds since 1970 to a column of timestamps in UTC.
fn moments(milliseconds: impl Iterator<Item = Option<u64>>) -> ArrayRef {
    let signed = milliseconds.map(|ms| ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX)));
    Arc::new(signed.collect::<TimestampMillisecondArray>().with_timezone("UTC"))
}
