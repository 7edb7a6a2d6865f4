//! Predicts the host's time of a step of a configuration: that of PyTorch's operators for each
//! operation, by the overheads of recorded hosts. The table `host_operators.tsv` lists them.

use std::collections::BTreeMap;

use schema::{Schedule, Stage};

use crate::calibration::Calibration;
use crate::overheads;
use crate::program::from_trainer::dense::{self, DenseWriter};
use crate::workload::{DenseUpdates, Workload};

const TEXT: &str = include_str!("host_operators.tsv");

/// The host's time of a step, with the number of operators that it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostTime {
    /// Host time of all operators in nanoseconds, on the rank with the most samples.
    pub ns: f64,
    pub operators: u32,
    /// Number of the operators that the overheads do not contain, which take the time of a typical
    /// operator.
    pub modeled: u32,
}

/// How the host launches the updates of dense weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DenseUpdateCalls {
    /// The operators of one layer's update serve all layers, as in PyTorch 2 on a GPU.
    #[default]
    Grouped,
    /// Each layer has operators of its own, as in PyTorch 1.
    ByLayer,
}

/// The host's time of each stage of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StageHosts {
    /// Times of operations, of which a stage may have several.
    pub stages: Vec<StageHost>,
    /// Nanoseconds of the host for launching a captured CUDA graph, which takes a single call.
    pub graph_ns: f64,
}

/// The host's time of one operation of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageHost {
    pub stage: Stage,
    pub time: HostTime,
}

impl StageHosts {
    /// Returns the nanoseconds in which the host launches a stage.
    #[must_use]
    pub fn ns(&self, stage: Stage) -> f64 {
        let own = self.stages.iter().filter(|host| host.stage == stage);
        own.map(|host| host.time.ns).sum()
    }
}

/// Predicts the host's time of a step from the overheads of a host. Forward, backward and update
/// follow each other, although autograd runs on a thread of its own, because each waits for the
/// one before it.
#[must_use]
pub fn predict_host(
    workload: Workload<'_>,
    host: &Calibration,
    updates: DenseUpdateCalls,
) -> HostTime {
    let stages = predict_stage_hosts(workload, host, updates).stages;
    stages.iter().fold(HostTime::default(), |sum, StageHost { time, .. }| HostTime {
        ns: sum.ns + time.ns,
        operators: sum.operators + time.operators,
        modeled: sum.modeled + time.modeled,
    })
}

/// Predicts the host's time of each stage of a step, from the overheads of a host. The time of
/// loading a batch belongs to [`Stage::Copy`].
#[must_use]
pub fn predict_stage_hosts(
    workload: Workload<'_>,
    host: &Calibration,
    updates: DenseUpdateCalls,
) -> StageHosts {
    let samples = (0..workload.ranks()).map(|rank| workload.samples(rank)).max().unwrap_or(0);
    let operators = operators();
    let mut stages = Vec::new();
    let mut known: BTreeMap<&str, Option<f64>> = BTreeMap::new();
    let typical = overheads::typical_operator_ns(host);
    let mut add = |stage: Stage, operation: &str| {
        let mut time = HostTime::default();
        for (name, count) in operators.get(operation).into_iter().flatten() {
            let own = *known.entry(name).or_insert_with(|| overheads::operator_host_ns(host, name));
            time.operators += count;
            time.modeled += if own.is_none() { *count } else { 0 };
            time.ns += f64::from(*count) * own.unwrap_or(typical);
        }
        stages.push(StageHost { stage, time });
    };
    add(Stage::Copy, "step");
    add(Stage::Lookup, "lookup");
    add(Stage::EmbeddingUpdate, "embedding_update");
    if workload.ranks() > 1 {
        add(Stage::InputDistribution, "input_dist");
        add(Stage::PooledExchange, "pooled_exchange");
        add(Stage::GradientExchange, "gradient_exchange");
    }
    let graph = dense::graph(workload, Schedule::PIPELINED);
    let mut writer = DenseWriter::new(workload, samples, DenseUpdates::Apart);
    let mut is_updated = false;
    for action in &graph.actions {
        for op in writer.list_stage(&graph, action) {
            let is_update = matches!(action.stage, Stage::DenseUpdate(_));
            if is_update && is_updated && updates == DenseUpdateCalls::Grouped {
                continue;
            }
            is_updated |= is_update;
            add(action.stage, op.name());
        }
    }
    StageHosts { stages, graph_ns: overheads::runtime_call_ns(host) }
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
