//! Predicts the host's time of a step of a configuration: that of PyTorch's operators for each
//! operation, by the overheads of recorded hosts. The table `host_operators.tsv` lists them.

use std::collections::BTreeMap;

use crate::calibration::Calibration;
use crate::overheads;
use crate::program::from_trainer::ops;
use crate::workload::{DenseUpdates, Workload};

const TEXT: &str = include_str!("host_operators.tsv");

/// The host's time of a step, with the number of operators that it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Nanoseconds of all operators, on the rank with the most samples.
    pub ns: f64,
    pub operators: u32,
    /// Number of the operators that the overheads do not contain, which take the time of a typical
    /// operator.
    pub modelled: u32,
}

/// Predicts the host's time of a step from the overheads of a host. Forward, backward and update
/// follow each other, although autograd runs on a thread of its own, because each waits for the
/// one before it.
#[must_use]
pub fn predict_host(workload: Workload<'_>, host: &Calibration) -> HostTime {
    let samples = (0..workload.ranks()).map(|rank| workload.samples(rank)).max().unwrap_or(0);
    let operators = operators();
    let mut time = HostTime::default();
    let mut known: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    let typical = overheads::typical_operator_ns(host);
    let mut add = |operation: &str| {
        for (name, count) in operators.get(operation).into_iter().flatten() {
            let own = *known.entry(name).or_insert_with(|| overheads::operator_host_ns(host, name));
            time.operators += count;
            time.modelled += if own.is_none() { *count } else { 0 };
            time.ns += f64::from(*count) * own.unwrap_or(typical);
        }
    };
    add("step");
    add("embedding");
    if workload.ranks() > 1 {
        add("exchange");
    }
    for op in ops::list_dense_ops(workload, samples, DenseUpdates::Apart) {
        add(op.name());
    }
    time
}

/// Parses the table. Spaces in names are written as underscores after a colon.
fn operators() -> BTreeMap<&'static str, Vec<(String, u32)>> {
    let lines = TEXT.lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let mut words = line.split_whitespace();
        let operation = words.next()?;
        let operators = words.filter(|word| *word != "-").map(|word| {
            let (name, count) = word.rsplit_once('*').unwrap_or((word, "1"));
            (name.replace(":_", ": "), count.parse().unwrap_or(1))
        });
        Some((operation, operators.collect()))
    };
    lines.filter_map(row).collect()
}
