//! The ready-made settings: Neo's job on 16 x 8 A100, and TorchRec's on 16 x 8 H100. Sources give
//! few facts of either job, so a setting lists its assumptions.

use std::fmt::Write;

use predict::calibration::Calibration;
use predict::step::{Conditions, Models, RowUpdates};
use predict::workload::Workload;
use schema::stage::Overlap;
use schema::topology::{HardwareError, ProductFormat};
use schema::{FeatureStats, HostLayout, JobConfig, Schedule, ShardingPlan, Topology};

use super::{LaunchCase, SimulatedCase, TORCHREC_CASES, simulate};
use crate::constraints::Constraints;
use crate::launch_plan::LaunchPlan;
use crate::published_steps::{PublishedModel, PublishedPlan};
use crate::{Error, PlanOptions, PlanProblem, PlanTarget};

/// Published steps of TorchRec before and after its optimizations, in nanoseconds.
const TORCHREC_NS: [f64; 2] = [7.6e6, 3.4e6];
/// Samples of a step, over all ranks. Neo's is assumed, and TorchRec's is that of MLPerf's model.
const BATCH: usize = 65_536;
/// Published samples per second of Neo on its largest model.
const NEO_SAMPLES_PER_S: f64 = 1.7e6;
/// Assumed host memory of a rank that holds rows beside those in GPU memory.
const HOST_BYTES_PER_RANK: u64 = 192 << 30;
/// Plans that the search for Neo's plan prices, so that the simulation takes seconds.
const PRICED_PLANS: u64 = 4_000;
/// Tables of the stand-in for Neo's model, largest first.
const NEO_TABLES: [TableClass; 3] = [
    TableClass { count: 20, rows: 3_200_000_000, ids: 20 },
    TableClass { count: 180, rows: 160_000_000, ids: 20 },
    TableClass { count: 800, rows: 1_000_000, ids: 5 },
];

/// Tables of equal size.
struct TableClass {
    count: usize,
    rows: u64,
    /// Number of ids in each bag.
    ids: u32,
}

/// The published jobs that are ready-made settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingName {
    Neo,
    Torchrec,
}

/// The format in which table weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableBits {
    Wide,
    /// 16 bits per weight.
    Narrow,
}

/// Where a case places the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CasePlan {
    /// The search decides for the complete setting, from all layouts.
    Searched,
    TableWise,
    /// Rows of each table are on all ranks of one host.
    TableRow,
}

/// A step of a setting, with or without a technique.
#[derive(Clone, Copy, Debug)]
pub struct SettingCase {
    pub launches: LaunchCase,
    schedule: Schedule,
    row_updates: RowUpdates,
    format: ProductFormat,
    tables: TableBits,
    plan: CasePlan,
}

/// A ready-made setting: hardware, model and cases.
#[derive(Clone, Debug)]
pub struct PublishedSetting {
    pub name: SettingName,
    pub topology: Topology,
    pub cases: Vec<SettingCase>,
    /// Facts that no source states.
    pub assumptions: &'static [&'static str],
}

/// A workload of a case that is ready to be simulated.
struct CaseWorkload {
    config: JobConfig,
    features: Vec<FeatureStats>,
    plan: ShardingPlan,
}

impl PublishedSetting {
    /// Returns a ready-made setting.
    ///
    /// # Errors
    /// [`Error::Step`] if the hardware is unknown.
    pub fn new(name: SettingName) -> Result<Self, Error> {
        let topology = |text| Topology::parse(text).map_err(wrong_hardware);
        Ok(match name {
            SettingName::Neo => {
                let mut topology = topology("16xzionex")?;
                topology.device.memory_bytes += HOST_BYTES_PER_RANK;
                Self { name, topology, cases: neo_cases(), assumptions: &NEO_ASSUMPTIONS }
            }
            SettingName::Torchrec => Self {
                name,
                topology: topology("16xdgx-h100")?,
                cases: torchrec_cases(),
                assumptions: &TORCHREC_ASSUMPTIONS,
            },
        })
    }

    /// Simulates all cases, by the overheads of a host.
    ///
    /// # Errors
    /// [`Error`] if a case cannot be planned or priced.
    pub fn simulate(
        &self,
        models: &Models,
        host: &Calibration,
    ) -> Result<Vec<SimulatedCase>, Error> {
        let mut searched: Option<ShardingPlan> = None;
        let mut simulated = Vec::new();
        for case in &self.cases {
            let ready = self.workload(case, models, &mut searched)?;
            let conditions = self.conditions(case, models);
            simulated.push(simulate(ready.borrowed(), conditions, host, case.launches)?);
        }
        Ok(simulated)
    }

    /// Compares the demands of the setting's first case, in a step of `step_ns`, with Table 1 of
    /// Neo.
    ///
    /// # Errors
    /// [`Error`] if the case cannot be planned.
    pub fn demands(&self, models: &Models, step_ns: f64) -> Result<Vec<super::DemandRow>, Error> {
        let Some(case) = self.cases.first() else { return Ok(Vec::new()) };
        let ready = self.workload(case, models, &mut None)?;
        super::compare_demands(ready.borrowed(), case.format, step_ns)
    }

    fn conditions<'a>(&'a self, case: &SettingCase, models: &'a Models) -> Conditions<'a> {
        Conditions {
            schedule: case.schedule,
            row_updates: case.row_updates,
            format: case.format,
            ..Conditions::new(&self.topology, models)
        }
    }

    /// Builds the configuration and the plan of a case. A plan is searched once.
    fn workload(
        &self,
        case: &SettingCase,
        models: &Models,
        searched: &mut Option<ShardingPlan>,
    ) -> Result<CaseWorkload, Error> {
        let config = match self.name {
            SettingName::Torchrec => PublishedModel::Dcnv2.config(BATCH)?,
            SettingName::Neo => neo_config(case.tables)?,
        };
        let features = FeatureStats::with_bag_sizes(&config, 1);
        let (tables, ranks) = (&config.model.tables, self.topology.ranks() as u32);
        let plan = match case.plan {
            CasePlan::TableWise => ShardingPlan::table_wise(tables, ranks),
            CasePlan::TableRow => PublishedPlan::TableRow.tiling(tables, ranks)?,
            CasePlan::Searched => match searched {
                Some(plan) => plan.clone(),
                None => {
                    let conditions = self.conditions(case, models);
                    let plan = search(&config, &features, conditions)?;
                    searched.insert(plan).clone()
                }
            },
        };
        Ok(CaseWorkload { config, features, plan })
    }
}

impl CaseWorkload {
    fn borrowed(&self) -> Workload<'_> {
        Workload { config: &self.config, plan: &self.plan, features: &self.features }
    }
}

fn search(
    config: &JobConfig,
    features: &[FeatureStats],
    conditions: Conditions<'_>,
) -> Result<ShardingPlan, Error> {
    let constraints = Constraints::default();
    let problem = PlanProblem {
        config,
        features,
        conditions,
        constraints: &constraints,
        target: PlanTarget::Rowmill,
    };
    let options = PlanOptions { budget: Some(PRICED_PLANS), ..PlanOptions::new(0) };
    let found = crate::plan(&problem, &options)?;
    let hosts: HostLayout = problem.hosts()?;
    Ok(found.plan.to_sharding_plan(&config.model.tables, &hosts)?)
}

fn wrong_hardware(error: HardwareError) -> Error {
    Error::Step(predict::Error::Hardware(error))
}

const TORCHREC_ASSUMPTIONS: [&str; 6] = [
    "global batch 65,536, as in MLPerf's configuration",
    "rows of each table on all GPUs of one host",
    "bf16 products and messages, f32 tables",
    "host blocks after the exchanges of sizes and of lengths",
    "operators of PyTorch as in a public TorchRec job of 2023",
    "network: 0.8 of 400 Gbit/s per GPU after 15 us",
];

fn torchrec_cases() -> Vec<SettingCase> {
    let before = SettingCase {
        launches: TORCHREC_CASES[0],
        schedule: Schedule::SERIAL.with(Overlap::Input).with(Overlap::AllReduce),
        row_updates: RowUpdates::Fused,
        format: ProductFormat::Bf16,
        tables: TableBits::Wide,
        plan: CasePlan::TableRow,
    };
    let published = |at: usize| match at {
        0 => Some(TORCHREC_NS[0]),
        _ if at + 1 == TORCHREC_CASES.len() => Some(TORCHREC_NS[1]),
        _ => None,
    };
    let cases = TORCHREC_CASES.into_iter().enumerate();
    cases
        .map(|(at, launches)| SettingCase {
            launches: LaunchCase { published_ns: published(at), ..launches },
            ..before
        })
        .collect()
}

const NEO_ASSUMPTIONS: [&str; 7] = [
    "stand-in model: 1,000 tables of dimension 128, 12 T weights, 8,000 ids per sample",
    "bottom MLP 1024-512-128, top MLP 512-512-256-1 on concatenated vectors, 1,000 dense features",
    "global batch 65,536",
    "16-bit tables and messages; f32 without them",
    "192 GiB of host memory per GPU hold rows, at the price of rows in GPU memory",
    "operators of PyTorch as in a public TorchRec job of 2023",
    "network: 0.8 of 200 Gbit/s per GPU after 15 us",
];

fn neo_cases() -> Vec<SettingCase> {
    // The text says nothing of launches, so no thread waits.
    let launches = LaunchPlan::IN_GRAPH_ORDER;
    let published_ns = Some(1e9 * BATCH as f64 / NEO_SAMPLES_PER_S);
    let all = SettingCase {
        launches: LaunchCase { name: "all", plan: launches, published_ns },
        schedule: Schedule::SERIAL
            .with(Overlap::Input)
            .with(Overlap::Pooled)
            .with(Overlap::AllReduce),
        row_updates: RowUpdates::Fused,
        format: ProductFormat::F16,
        tables: TableBits::Narrow,
        plan: CasePlan::Searched,
    };
    let without = |name: &'static str| SettingCase {
        launches: LaunchCase { name, plan: launches, published_ns: None },
        ..all
    };
    let serial = Schedule::SERIAL.with(Overlap::AllReduce);
    let tables: usize = NEO_TABLES.iter().map(|class| class.count).sum();
    let mut apart = without("no fused lookups and updates");
    // Each rank launches the lookup and the update of each of its tables.
    apart.launches.plan.embedding_calls = tables.div_ceil(128) as u32;
    apart.row_updates = RowUpdates::Scatter;
    vec![
        all,
        SettingCase { schedule: serial.with(Overlap::Pooled), ..without("no input pipelining") },
        SettingCase { schedule: serial.with(Overlap::Input), ..without("no pooled overlap") },
        apart,
        SettingCase { tables: TableBits::Wide, ..without("no 16-bit tables") },
        SettingCase { format: ProductFormat::Tf32, ..without("no 16-bit products and messages") },
        SettingCase { plan: CasePlan::TableRow, ..without("table-row-wise only") },
        SettingCase { plan: CasePlan::TableWise, ..without("no 4D sharding") },
    ]
}

/// Writes the configuration of the stand-in for Neo's model.
fn neo_config(bits: TableBits) -> Result<JobConfig, Error> {
    let data_type = if bits == TableBits::Narrow { "f16" } else { "f32" };
    let classes = NEO_TABLES.iter().flat_map(|class| (0..class.count).map(move |_| class));
    let (mut tables, mut bags) = (String::new(), String::new());
    let mut last = 0;
    for (at, class) in classes.enumerate() {
        // Writing to a text cannot fail.
        let _ = writeln!(
            tables,
            "  {{ name = \"t{at}\", rows = {}, dim = 128, data_type = \"{data_type}\" }},",
            class.rows
        );
        let _ = writeln!(bags, "t{at} = {}", class.ids);
        last = at;
    }
    let text = format!(
        "[model]\nname = \"neo-stand-in\"\ndense_features = 1000\nbottom = [1024, 512, 128]\n\
         top = [512, 512, 256, 1]\ninteraction = {{ kind = \"cat\" }}\n\
         loss = \"bce_with_logits\"\ntables = [\n{tables}]\n\n[optimizer]\n\
         sparse = {{ kind = \"rowwise_adagrad\", learning_rate = 0.01 }}\n\
         dense = {{ kind = \"adagrad\", learning_rate = 0.01 }}\n\n\
         [training]\nbatch_size = {BATCH}\n\n[data]\nformat = \"csv\"\n\
         label = {{ column = \"label\" }}\ndense = [{{ column = \"d{{0..999}}\" }}]\n\
         categorical = [{{ column = \"t{{0..{last}}}\", kind = \"integer\" }}]\n\n\
         [synthetic.bag_sizes]\n{bags}"
    );
    JobConfig::parse(&text, &[]).map_err(|error| {
        Error::Step(predict::Error::Workload {
            expected: "a valid configuration".to_owned(),
            got: error.to_string(),
        })
    })
}
