//! Compares steps that are derived from a configuration and a plan with steps that the trainer
//! recorded. The derived and the recorded step must have the same operations, in the same order,
//! with the same sizes.

use std::fs;
use std::path::Path;

use device::buffer::Counting;
use predict::program::from_trainer::ops;
use predict::step::{Conditions, Models, StepPricer};
use schema::{FeatureStats, JobConfig, Op, Rank, RowScope, ShardingPlan, TableId, Topology};
use serde_json::Value;

use crate::fixture::Place;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONFIGS: [(&str, &str); 7] = [
    ("adult-income", include_str!("../../../../configs/adult-income.toml")),
    ("dlrm-1000-tables", include_str!("../../../../configs/dlrm-1000-tables.toml")),
    ("dlrm-criteo-kaggle", include_str!("../../../../configs/dlrm-criteo-kaggle.toml")),
    ("dlrm-dcnv2", include_str!("../../../../configs/dlrm-dcnv2.toml")),
    ("dlrm-ddp", include_str!("../../../../configs/dlrm-ddp.toml")),
    ("dlrm-default", include_str!("../../../../configs/dlrm-default.toml")),
    ("dlrm-mlperf", include_str!("../../../../configs/dlrm-mlperf.toml")),
];

/// An operation, as it is recorded in a trace.
#[derive(Debug, PartialEq)]
struct Recorded {
    name: String,
    dims: Vec<Vec<usize>>,
    flops: u64,
    bytes: u64,
}

/// Returns the operations of the last recorded step, without the wait for input.
fn recorded(path: &Path) -> Vec<Recorded> {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or(-1.0);
    let is_step = |event: &&Value| {
        event["name"].as_str().is_some_and(|name| name.starts_with("ProfilerStep#"))
    };
    let step = events.iter().rfind(is_step).unwrap();
    let (begin, end) = (number(step, "ts"), number(step, "ts") + number(step, "dur"));
    let is_inside = |event: &&Value| {
        event["cat"] == "cpu_op" && begin <= number(event, "ts") && number(event, "ts") < end
    };
    let mut inside: Vec<&Value> = events.iter().filter(is_inside).collect();
    inside.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
    let read = |event: &Value| Recorded {
        name: event["name"].as_str().unwrap().to_owned(),
        dims: serde_json::from_value(event["args"]["Input Dims"].clone()).unwrap(),
        flops: event["args"]["flops"].as_u64().unwrap(),
        bytes: event["args"]["bytes"].as_u64().unwrap(),
    };
    inside.into_iter().map(read).filter(|op| op.name != "rowmill::input_wait").collect()
}

/// Whether the sizes of an operation depend on random ids. Such sizes are compared with their
/// expected values.
fn by_ids(op: &Op) -> bool {
    matches!(op, Op::EmbeddingForward { .. } | Op::EmbeddingBackward { .. })
}

fn same(written: &Op, recorded: &Recorded, sums_rows: bool, place: &str) {
    assert_eq!(format!("rowmill::{}", written.name()), recorded.name, "{place}");
    if let Op::AllReduce { elements } = written
        && sums_rows
    {
        // Gradients and terms of rows are summed for the distinct rows of random ids.
        let (got, expected) = (recorded.dims[0][0] as f64, *elements as f64);
        let most = 4.0 * expected.sqrt() + 0.12 * expected;
        assert!((got - expected).abs() <= most, "{place}: {got} elements, {written:?}");
        return;
    }
    if !by_ids(written) {
        let work = written.work();
        let (name, dims) = (recorded.name.clone(), written.shapes());
        let expected = Recorded { name, dims, flops: work.flops, bytes: work.bytes };
        assert_eq!(*recorded, expected, "{place}: {written:?}");
        return;
    }
    // The first size is the number of ids. The second one, of bags or pooled elements, does not
    // depend on the ids, so it must be equal.
    let shapes = written.shapes();
    assert_eq!(recorded.dims[1], shapes[1], "{place}: {written:?}");
    let (got, expected) = (recorded.dims[0][0] as f64, shapes[0][0] as f64);
    assert!(
        (got - expected).abs() <= 4.0 * expected.sqrt() + 0.12 * expected,
        "{place}: {got} ids, {written:?}"
    );
}

/// Trains a few steps, and compares the last recorded step of each rank with the derived
/// operations.
fn written_down(name: &str, (ranks, sharding): (u32, &str), set: &[(&str, &str)]) {
    let text = CONFIGS.iter().find(|one| one.0 == name).unwrap().1;
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let mut overrides = vec![("model.rows_cap", "4000"), ("training.batch_size", "66")];
    overrides.extend(set);
    let overrides: Vec<(String, String)> = overrides.iter().map(pair).collect();
    let config = JobConfig::parse(text, &overrides).unwrap();
    let said: Vec<String> =
        overrides.iter().map(|(key, value)| format!("--set {key}={value}")).collect();
    let place = Place::new();
    place.done(&format!(
        "train {name} {} --set synthetic.ids.kind=uniform --synthetic 264 --ranks {ranks} \
         --sharding {sharding} --threads 1 --run run --trace traces --trace-steps 2..3",
        said.join(" ")
    ));
    let tables = &config.model.tables;
    let plan = match sharding {
        "row" => ShardingPlan::row_wise(tables, ranks),
        "column" => ShardingPlan::column_wise(tables, ranks),
        "mixed" => ShardingPlan::mixed(tables, ranks),
        "replicated" => ShardingPlan::replicate(tables, ranks),
        _ => ShardingPlan::table_wise(tables, ranks),
    };
    let has_terms = RowScope::exchanges_terms(&config.optimizer, &plan);
    let sums_rows = has_terms || !plan.replicas().is_empty();
    let features = FeatureStats::with_bag_sizes(&config, 1);
    let workload =
        predict::workload::Workload { config: &config, plan: &plan, features: &features };
    for (rank, written) in ops::list_ops(workload).unwrap().iter().enumerate() {
        let recorded = recorded(&place.path(&format!("traces/kineto_rank{rank}.json")));
        let place = format!("{name}, {sharding}, rank {rank} of {ranks}");
        let names = |ops: Vec<String>| ops.join("\n");
        assert_eq!(
            names(written.iter().map(|op| format!("rowmill::{}", op.name())).collect()),
            names(recorded.iter().map(|op| op.name.clone()).collect()),
            "{place}"
        );
        for (written, recorded) in written.iter().zip(&recorded) {
            same(written, recorded, sums_rows, &place);
        }
    }
}

const SHARDINGS: [&str; 5] = ["table", "row", "column", "mixed", "replicated"];

#[test]
fn ready_made_steps_are_written_down_as_they_are_recorded() {
    // A model of each kind. The other configurations run only in the full stage.
    for (at, name) in ["adult-income", "dlrm-dcnv2", "dlrm-ddp"].into_iter().enumerate() {
        written_down(name, (2, SHARDINGS[at % SHARDINGS.len()]), &[]);
    }
}

#[test]
fn every_ready_made_step_under_every_plan_is_written_down_as_it_is_recorded() {
    if !testkit::has_time("all plans of all configurations") {
        return;
    }
    for (name, _) in CONFIGS {
        for sharding in SHARDINGS {
            written_down(name, (2, sharding), &[]);
        }
    }
}

#[test]
fn other_ranks_rules_and_precisions_are_written_down_as_they_are_recorded() {
    if !testkit::has_time("programs of other ranks, rules and precisions") {
        return;
    }
    written_down("adult-income", (1, "table"), &[]);
    written_down("adult-income", (1, "mixed"), &[]);
    written_down("adult-income", (3, "mixed"), &[("training.batch_size", "64")]);
    written_down("dlrm-dcnv2", (2, "table"), &[("training.precision", "bf16")]);
    written_down("dlrm-dcnv2", (1, "table"), &[("optimizer.dense.kind", "lamb")]);
    // With two samples per batch, one of the three ranks has no sample.
    written_down("adult-income", (3, "table"), &[("training.batch_size", "2")]);
}

/// Moving a table to another rank must not allocate memory, because a search makes millions of
/// moves.
#[test]
fn a_table_that_moves_is_priced_without_allocating() {
    let text = CONFIGS.iter().find(|one| one.0 == "dlrm-1000-tables").unwrap().1;
    let config = JobConfig::parse(text, &[]).unwrap();
    let topology = Topology::parse("16xh100x8").unwrap();
    let models = Models::shipped().unwrap();
    let plan = ShardingPlan::table_wise(&config.model.tables, 128);
    let features = FeatureStats::uniform(&config.model, 1);
    let workload =
        predict::workload::Workload { config: &config, plan: &plan, features: &features };
    let conditions = Conditions::new(&topology, &models);
    let mut pricer = StepPricer::new(workload, conditions).unwrap();
    let begin = Counting::allocations();
    for at in 0..1_000 {
        let cost = pricer.move_tile(TableId(at), 0, Rank((at * 37) % 128));
        assert!(cost.step.mean_ns > 0.0);
    }
    pricer.undo();
    assert_eq!(Counting::allocations(), begin);
}
