//! The facts of a searched plan that its rows do not contain: the step, its critical path, the
//! imbalance of ranks and the written files. Text and JSON are rendered from the same struct.

use std::path::PathBuf;

use plan::{PlanProblem, PlanResult};
use predict::step::{Stage, StepPrice};
use schema::{Bytes, TableRow};
use serde::Serialize;
use setup::Session;
use setup::args::OutputFormat;
use setup::error::Error;
use setup::render::{nanos, path_text_or_null};
use setup::table_output::{self, TableTarget};

use crate::args::PlanSearch;

/// Percentage of the memory above which the user is warned.
const FULL_PCT: f64 = 95.0;

/// A searched plan as a whole.
#[derive(Serialize)]
pub struct PlanSummary {
    model: String,
    hardware: String,
    hosts: u32,
    ranks: u32,
    step_ns: f64,
    step_low_ns: f64,
    step_high_ns: f64,
    /// Time of the step if the host took no time.
    device_ns: f64,
    samples_per_s: f64,
    /// Stages that lengthen the step, which add up to it.
    critical_path: Vec<PathStage>,
    /// Whether the host limits the step.
    is_host_bound: bool,
    /// Time of the slowest rank for its tables ÷ the mean over ranks.
    imbalance: f64,
    /// The rank that needs most memory, and its bytes.
    fullest_rank: u32,
    peak_bytes: u64,
    /// Bytes that the plan may use on each rank.
    capacity_bytes: u64,
    /// Number of plans that the search priced. TorchRec's planner does not count them.
    priced_plans: Option<u64>,
    /// Whether Ctrl-C ended the search before it priced all plans.
    pub is_ended_early: bool,
    #[serde(serialize_with = "path_text_or_null")]
    plan_file: Option<PathBuf>,
    #[serde(serialize_with = "path_text_or_null")]
    torchrec_file: Option<PathBuf>,
    #[serde(serialize_with = "path_text_or_null")]
    svg_file: Option<PathBuf>,
}

/// A stage of the critical path, with the time by which it lengthens the step.
#[derive(Serialize)]
struct PathStage {
    stage: &'static str,
    ns: f64,
}

impl PlanSummary {
    /// Summarizes the plan of a search.
    pub fn new(
        args: &PlanSearch,
        problem: &PlanProblem<'_>,
        result: Option<&PlanResult>,
        price: &StepPrice,
    ) -> Self {
        let (mean, most) = price.ranks.iter().fold((0.0, 0.0_f64), |(sum, most), rank| {
            let own = rank.stages[Stage::Lookup as usize].mean_ns
                + rank.stages[Stage::EmbeddingUpdate as usize].mean_ns;
            (sum + own / price.ranks.len() as f64, most.max(own))
        });
        let stages = Stage::ALL.into_iter();
        let mut critical_path: Vec<PathStage> = stages
            .map(|stage| PathStage {
                stage: stage.name(),
                ns: price.stages[stage as usize].mean_ns,
            })
            .filter(|one| one.ns > 0.0)
            .collect();
        let step = price.cost.step;
        let host_ns = step.mean_ns - price.cost.device_ns;
        if host_ns > 0.0 {
            critical_path.push(PathStage { stage: "waiting_for_host", ns: host_ns });
        }
        let fullest = price.ranks.iter().rev().max_by_key(|rank| rank.memory.total());
        let topology = problem.conditions.topology;
        Self {
            model: problem.config.model.name.clone(),
            hardware: topology.device.name.clone().into_owned(),
            hosts: topology.hosts,
            ranks: problem.ranks(),
            step_ns: step.mean_ns,
            step_low_ns: step.low_ns,
            step_high_ns: step.high_ns,
            device_ns: price.cost.device_ns,
            samples_per_s: price.samples_per_s,
            critical_path,
            is_host_bound: host_ns > 0.0,
            imbalance: if mean > 0.0 { most / mean } else { 1.0 },
            fullest_rank: fullest.map_or(0, |rank| rank.rank),
            peak_bytes: price.cost.peak_bytes,
            capacity_bytes: problem.capacity(),
            priced_plans: result.map(|result| result.priced),
            is_ended_early: false,
            plan_file: args.output.clone(),
            torchrec_file: args.torchrec.clone(),
            svg_file: args.svg.clone(),
        }
    }

    /// Prints the predicted step, its critical path and its imbalance.
    pub fn describe(&self, session: &Session) {
        let console = &session.console;
        console.say(format_args!(
            "predicted step {} ({} to {}), {:.0} samples/s",
            nanos(self.step_ns),
            nanos(self.step_low_ns),
            nanos(self.step_high_ns),
            self.samples_per_s
        ));
        let path = self.critical_path.iter().map(|one| format!("{} {}", one.stage, nanos(one.ns)));
        console.say(format_args!("critical path: {}", path.collect::<Vec<_>>().join(" + ")));
        if self.is_host_bound {
            console.say(format_args!(
                "the host limits the step and hides the {} of the devices: of the plans whose time \
                 it hides, one with little memory is chosen",
                nanos(self.device_ns)
            ));
        }
        console.say(format_args!(
            "imbalance: the slowest rank takes {:.2} times as long for its tables as the mean",
            self.imbalance
        ));
        self.describe_memory(session);
        if let Some(priced) = self.priced_plans {
            console.detail(format_args!("{priced} plans were priced"));
        }
    }

    /// Prints the memory of the fullest rank, as a warning if little is left.
    fn describe_memory(&self, session: &Session) {
        let share_pct = 100.0 * self.peak_bytes as f64 / self.capacity_bytes.max(1) as f64;
        let text = format!(
            "memory: the fullest rank, {}, needs {} of the {} that it may use ({share_pct:.0} %)",
            self.fullest_rank,
            Bytes(self.peak_bytes),
            Bytes(self.capacity_bytes)
        );
        match share_pct > FULL_PCT {
            true => session.console.warn(text),
            false => session.console.say(text),
        }
    }
}

/// The place where the rows of a plan are written. JSON contains its summary as well.
pub struct PlanOutput<'a> {
    pub summary: PlanSummary,
    pub session: &'a Session,
}

/// The summary of a plan with its rows, as programs read them.
#[derive(Serialize)]
struct PlanReport<'a, T> {
    #[serde(flatten)]
    summary: &'a PlanSummary,
    rows: &'a [T],
}

impl PlanOutput<'_> {
    /// Prints rows in the format of the console.
    pub fn write<T: Serialize + TableRow>(&self, rows: &[T]) -> Result<(), Error> {
        let console = self.session.console;
        match console.format {
            OutputFormat::Json => console.json(&PlanReport { summary: &self.summary, rows }),
            _ => table_output::write_rows(console, rows, TableTarget::default()),
        }
    }
}
