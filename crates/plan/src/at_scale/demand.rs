//! The demands of a simulated step on memory, network and arithmetic, beside those that Neo's
//! Table 1 lists for a sample model.

use predict::program::from_trainer::ops;
use predict::workload::Workload;
use schema::topology::ProductFormat;
use schema::{Op, TableRow};
use serde::Serialize;

use crate::Error;

/// Bytes of a value in the trainer's own count of message bytes.
const COUNTED: f64 = 4.0;

/// A demand of a step beside the published one.
#[derive(Clone, Debug, Serialize, TableRow)]
pub struct DemandRow {
    pub demand: &'static str,
    pub unit: &'static str,
    pub simulated: f64,
    /// The figure in Table 1 of Neo, for a model that is not described.
    pub published: f64,
    pub ratio: f64,
}

/// Computes the demands of a step that takes `step_ns`.
///
/// Bytes and FLOPs are those that the operations must move and compute, so caches would lower and
/// intermediate results raise them. Half of all messages cross the middle of the network.
///
/// # Errors
/// [`Error::Step`] for a workload that the trainer cannot run.
pub fn compare_demands(
    workload: Workload<'_>,
    format: ProductFormat,
    step_ns: f64,
) -> Result<Vec<DemandRow>, Error> {
    let (mut flops, mut table_bytes, mut message_bytes, mut most) = (0.0, 0.0, 0.0, 0.0_f64);
    for rank_ops in ops::list_ops(workload)? {
        let mut sent = 0.0;
        for op in &rank_ops {
            let work = op.work();
            flops += work.flops as f64;
            let values = work.bytes as f64 / COUNTED * format.bytes() as f64;
            match op {
                Op::InputDist { .. } => sent += work.bytes as f64,
                Op::OutputDist { .. } | Op::GradientDist { .. } => sent += values,
                // A ring sends each value twice.
                Op::AllReduce { .. } => sent += 2.0 * values,
                _ => table_bytes += work.bytes as f64,
            }
        }
        message_bytes += sent;
        most = most.max(sent);
    }
    let tables = workload.config.model.tables.iter();
    let rule = workload.config.optimizer.sparse.kind;
    let stored: f64 = tables
        .map(|table| {
            let row = table.dim * table.data_type.bytes() + 4 * rule.state_per_row(table.dim);
            table.rows as f64 * row as f64
        })
        .sum();
    let per_s = |value: f64| 1e9 * value / step_ns.max(1.0);
    let row = |demand, unit, simulated: f64, published: f64| DemandRow {
        demand,
        unit,
        simulated,
        published,
        ratio: simulated / published,
    };
    Ok(vec![
        row("arithmetic", "PFLOP/s", per_s(flops) / 1e15, 1.0),
        row("memory", "TB", stored / 1e12, 1.0),
        row("memory bandwidth", "TB/s", per_s(table_bytes) / 1e12, 100.0),
        row("injection of the busiest rank", "GB/s", per_s(most) / 1e9, 100.0),
        row("bisection", "TB/s", per_s(message_bytes) / 2.0 / 1e12, 1.0),
    ])
}
