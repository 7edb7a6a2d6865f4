//! Cases that TorchRec 1.9.2 planned: its estimates, its plan, and the number of its proposals.

use std::path::Path;

use schema::{HostLayout, Optimizer, TableConfig};
use serde::Deserialize;

use crate::torchrec::cost::price_plan;
use crate::torchrec::option::{ShardingOption, list_options};
use crate::torchrec::perf::ShardPerf;
use crate::torchrec::plan_form::{TorchrecPlan, export_plan, import_plan};
use crate::torchrec::problem::{
    Pipeline, StorageReservation, TorchrecProblem, TorchrecSetting, TorchrecTable,
};
use crate::torchrec::search::{Partitioner, TorchrecResult, search};
use crate::torchrec::sharding::{ComputeKernel, ShardingType};
use crate::torchrec::topology::{PlannedDevice, TorchrecTopology};

/// The file that `bench/compare/torchrec_planner.py` writes.
#[derive(Deserialize)]
struct Cases {
    torchrec: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    device: String,
    ranks: u32,
    ranks_per_host: u32,
    memory_bytes: u64,
    samples_per_rank: u32,
    pipeline: String,
    reservation: Reservation,
    partitioner: String,
    tables: Vec<CaseTable>,
    options: Vec<OptionRow>,
    plan: Option<TorchrecPlan>,
    rating_ms: Option<f64>,
    proposals: usize,
    plans: usize,
}

#[derive(Deserialize)]
struct Reservation {
    share: f64,
    dense_parameter_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct CaseTable {
    name: String,
    rows: u64,
    dim: usize,
    weight_bytes: u32,
    ids_per_bag: Vec<f64>,
    is_pooled: bool,
    is_weighted: bool,
    optimizer: Option<Optimizer>,
    least_columns: Option<usize>,
    allowed: Option<Vec<String>>,
}

/// An option: table, sharding type, kernel, and runs of equal shards.
#[derive(Deserialize)]
struct OptionRow(String, String, String, Vec<Run>);

/// Equal shards: their number, rows, columns, times in the order of TorchRec's `Perf`, and bytes.
#[derive(Deserialize)]
struct Run(usize, u64, usize, f64, f64, f64, f64, f64, u64);

impl Case {
    fn problem(&self) -> TorchrecProblem {
        let device = match &*self.device {
            "cuda" => PlannedDevice::Gpu,
            _ => PlannedDevice::Cpu,
        };
        let share = self.reservation.share;
        let setting = TorchrecSetting {
            topology: TorchrecTopology {
                memory_bytes: self.memory_bytes,
                ..TorchrecTopology::with_defaults(device, self.ranks, self.ranks_per_host)
            },
            samples_per_rank: self.samples_per_rank,
            pipeline: match &*self.pipeline {
                "none" => Pipeline::None,
                "sparse_dist" => Pipeline::SparseDist,
                _ => Pipeline::SparseDistAtPeak,
            },
            reservation: match self.reservation.dense_parameter_bytes {
                None => StorageReservation::Percentage { share },
                Some(dense_parameter_bytes) => {
                    StorageReservation::Heuristic { share, dense_parameter_bytes }
                }
            },
        };
        TorchrecProblem { setting, tables: self.tables.iter().map(CaseTable::convert).collect() }
    }

    fn search(&self, problem: &TorchrecProblem) -> Option<TorchrecResult> {
        let partitioner = match &*self.partitioner {
            "greedy" => Partitioner::GreedyPerf,
            _ => Partitioner::MemoryBalanced,
        };
        search(problem, partitioner).ok()
    }
}

impl CaseTable {
    fn convert(&self) -> TorchrecTable {
        let find = |name: &String| ShardingType::ALL.into_iter().find(|known| known.name() == name);
        let allowed = |names: &Vec<String>| names.iter().map(|name| find(name).unwrap()).collect();
        TorchrecTable {
            name: self.name.clone(),
            rows: self.rows,
            dim: self.dim,
            weight_bytes: self.weight_bytes,
            ids_per_bag: self.ids_per_bag.clone(),
            is_pooled: self.is_pooled,
            is_weighted: self.is_weighted,
            optimizer: self.optimizer,
            least_columns: self.least_columns,
            allowed: self.allowed.as_ref().map(allowed),
        }
    }
}

fn cases() -> Vec<Case> {
    let file = "../../testdata/torchrec_planner/cases.json";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let cases: Cases = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(cases.torchrec.starts_with("1.9.2"), "{}", cases.torchrec);
    cases.cases
}

fn check_option(context: &str, option: &ShardingOption, expected: &OptionRow) {
    let kernel = [ComputeKernel::Dense, ComputeKernel::Fused]
        .into_iter()
        .find(|kernel| kernel.name() == expected.2);
    let names = (option.sharding.name(), Some(option.kernel));
    assert_eq!(names, (&*expected.1, kernel), "{context}");
    let mut shards = option.shards.iter();
    for run in &expected.3 {
        for shard in shards.by_ref().take(run.0) {
            let rows = shard.cell.rows.end - shard.cell.rows.start;
            let got = (rows, shard.cell.columns.len(), shard.bytes);
            assert_eq!(got, (run.1, run.2, run.8), "{context}, {}", expected.1);
            let perf = ShardPerf {
                forward_compute: run.3,
                forward_exchange: run.4,
                backward_compute: run.5,
                backward_exchange: run.6,
                input_exchange: run.7,
            };
            assert_eq!(shard.perf, perf, "{context}, {}", expected.1);
        }
    }
    assert_eq!(shards.next(), None, "{context}, {}", expected.1);
}

#[test]
fn estimates_of_all_options_are_torchrecs() {
    let mut numbers = 0;
    for case in cases() {
        let options: Vec<_> =
            list_options(&case.problem()).unwrap().into_iter().flatten().collect();
        assert_eq!(options.len(), case.options.len(), "{}", case.name);
        for (option, expected) in options.iter().zip(&case.options) {
            let table = &case.tables[option.table].name;
            assert_eq!(*table, expected.0, "{}", case.name);
            check_option(&format!("{}, {table}", case.name), option, expected);
            numbers += 8 * option.shards.len();
        }
    }
    assert!(numbers > 10_000, "{numbers}");
}

#[test]
fn plans_are_torchrecs() {
    let mut planned = 0;
    for case in cases() {
        let problem = case.problem();
        let result = case.search(&problem);
        assert_eq!(result.is_some(), case.plan.is_some(), "{}", case.name);
        let (Some(result), Some(plan)) = (result, case.plan) else { continue };
        planned += 1;
        let counts = (result.proposals, result.plans);
        assert_eq!(counts, (case.proposals, case.plans), "{}", case.name);
        assert_eq!(Some(result.rating_ms), case.rating_ms, "{}", case.name);
        for (option, ranks) in result.options.iter().zip(&result.ranks) {
            let name = &case.tables[option.table].name;
            let expected = &plan.plan["sparse"][name];
            let got = (option.sharding.name(), Some(ranks));
            let expected = (&*expected.sharding_type, expected.ranks.as_ref());
            assert_eq!(got, expected, "{}, {name}", case.name);
        }
        let times = price_plan(&result.to_candidate(), &problem);
        let rating = times.into_iter().fold(0.0, f64::max);
        let error = (rating / result.rating_ms - 1.0).abs();
        assert!(error < 1e-12, "{}: rated {} again as {rating}", case.name, result.rating_ms);
    }
    assert!(planned >= 40, "{planned} of the cases have a plan");
}

#[test]
fn plan_files_of_torchrec_come_back_the_same() {
    for case in cases() {
        let Some(mut file) = case.plan else { continue };
        let tables: Vec<TableConfig> = case.tables.iter().map(config).collect();
        let ranks = case.ranks as usize;
        let hosts = HostLayout::with_ranks_per_host(ranks, case.ranks_per_host).unwrap();
        let plan = import_plan(&file, &tables, &hosts).unwrap();
        let device = match &*case.device {
            "cuda" => PlannedDevice::Gpu,
            _ => PlannedDevice::Cpu,
        };
        let exported = export_plan(&plan, &tables, "sparse", device).unwrap();
        for sharding in file.plan.values_mut().flat_map(|tables| tables.values_mut()) {
            // Different types can have the same tiles, and the simplest name is exported.
            let shards = sharding.shards.as_ref().map_or(0, Vec::len) as u32;
            let name = match &*sharding.sharding_type {
                "data_parallel" => "data_parallel",
                _ if shards == 1 => "table_wise",
                "column_wise" | "table_column_wise" => "column_wise",
                "grid_shard" if shards > case.ranks_per_host => "grid_shard",
                _ if shards == case.ranks => "row_wise",
                _ => "table_row_wise",
            };
            sharding.sharding_type = name.to_owned();
        }
        assert_eq!(exported, file, "{}", case.name);
    }
}

fn config(table: &CaseTable) -> TableConfig {
    TableConfig {
        name: table.name.clone(),
        rows: table.rows,
        dim: table.dim,
        pooling: Default::default(),
        sequence_length: None,
        data_type: Default::default(),
        features: Vec::new(),
    }
}
