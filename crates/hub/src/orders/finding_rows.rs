//! Stores the findings of a trace as rows of the table `finding`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, RecordBatch, UInt64Array};

use super::HubOrder;
use super::result::{StepSaving, TraceAnalysis, TraceFinding};
use crate::columns::{FINDINGS, text, timestamps};
use crate::error::Error;
use crate::store::{HOUR_S, Partition, StoreFolder};

/// Writes the findings of a trace. The first row has an empty rule and the joint saving, so that a
/// trace without findings has a row too.
///
/// # Errors
/// If the file cannot be written.
pub fn write(
    folder: &StoreFolder,
    order: &HubOrder,
    analysis: &TraceAnalysis,
) -> Result<(), Error> {
    let joint = analysis.share(analysis.joint_ns());
    let all = TraceFinding::default();
    let mut rows = vec![(&all, [joint; 3])];
    rows.extend(analysis.findings.iter().map(|finding| {
        let StepSaving { low_ns, mid_ns, high_ns } = finding.saving.unwrap_or_default();
        (finding, [low_ns, mid_ns, high_ns].map(|ns| analysis.share(ns)))
    }));
    let each = |value: fn(&TraceFinding) -> &str| text(rows.iter().map(|(one, _)| value(one)));
    let same = |value: &str| text(rows.iter().map(|_| value));
    let share = |at: usize| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|(_, saving)| saving[at])))
    };
    let left = order.left_band_unix_s.unwrap_or(0);
    let represents_s = order.sample.as_ref().map_or(0, |sample| sample.represents_ms) as f64 * 1e-3;
    let step_s = analysis.step_ns as f64 * 1e-9;
    let number = |value: f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|_| value)))
    };
    let batch = RecordBatch::try_from_iter([
        ("start", timestamps(rows.iter().map(|_| order.created_unix_s))),
        ("left_band", timestamps(rows.iter().map(|_| left))),
        (
            "order",
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|_| order.id))) as ArrayRef,
        ),
        ("run", same(&order.run)),
        ("workflow", same(&order.workflow)),
        ("user", same(&order.user)),
        ("rule", each(|row| &row.rule)),
        ("title", each(|row| &row.title)),
        ("severity", each(|row| &row.severity)),
        ("what", each(|row| &row.what)),
        ("advice", each(|row| &row.advice)),
        ("saving_low", share(0)),
        ("saving", share(1)),
        ("saving_high", share(2)),
        ("step_s", number(step_s)),
        ("represents_s", number(represents_s)),
    ])?;
    let partition = Partition { hour: Some(order.created_unix_s / HOUR_S), table: FINDINGS };
    let path = folder.path(partition);
    folder.write(partition, order.id..=order.id, batch.schema(), |writer| {
        writer.write(&batch).map_err(Error::parquet(&path))
    })
}
