//! Makes the sharding plan of `rowmill train --sharding auto`, for the device of the run.

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;

use kernel_model::host_costs::HostCosts;
use plan::{CandidatePlan, Layout, PlanOptions, PlanProblem, PlanResult, PlanTarget};
use predict::step::{Conditions, Models, StepCost, StepPricer};
use predict::workload::Workload;
use schema::topology::{Flops, HARDWARE, HostFabric, Link};
use schema::{HardwareSpec, HostLayout, JobConfig, ShardingPlan, Topology};

use crate::Session;
use crate::device::ComputeDevice;
use crate::error::{Error, UsageError};
use crate::kernel_files::read_model;
use crate::machine::{self, available_memory};
use crate::plan_search;
use crate::render::nanos;
use crate::workload::planned_features;

/// Rates of one core of a server's CPU: FLOP/s, bytes per second from memory, bytes of cache, and
/// GB/s of messages to another rank. A CPU is priced by [`HostCosts::typical`], so plans only
/// depend on these rates where hosts exchange messages.
const CORE_FLOPS: f64 = 1e11;
const CORE_DRAM: f64 = 1e10;
const CORE_CACHE: u64 = 2 << 20;
const CORE_MESSAGES: f64 = 5.0;

/// Share of the step of whole tables that a plan on a CPU must stay below. Costs of a CPU are a
/// guess, and whole tables need the fewest messages.
const WORTH: f64 = 0.9;

/// Searches for the plan of a run whose ranks of a group lie on `hosts`, with the batch of one of
/// `groups` groups.
///
/// # Errors
/// [`UsageError::PlanSearch`] if no plan fits, and [`UsageError::PlannedHosts`] if hosts have
/// different numbers of ranks.
pub fn plan_for_run(
    config: &JobConfig,
    hosts: &HostLayout,
    groups: u32,
    device: &ComputeDevice,
    session: &Session,
) -> Result<ShardingPlan, Error> {
    let ranks_per_host = hosts.ranks_per_host().map_err(|source| UsageError::Hosts { source })?;
    let topology = topology(hosts, ranks_per_host as u32, device, session);
    let models = Models::from_loader(|kind| read_model(None, kind))?;
    let mut config = config.clone();
    config.training.batch_size = config.training.batch_size.div_ceil(groups as usize);
    let features = planned_features(&config, None)?;
    let host = match device {
        ComputeDevice::Cpu(_) => {
            Some(host_costs(ranks_per_host, threads_per_rank(ranks_per_host, session)))
        }
        ComputeDevice::Gpu(_) => None,
    };
    let problem = PlanProblem {
        config: &config,
        features: &features,
        conditions: Conditions { host: host.as_ref(), ..Conditions::new(&topology, &models) },
        constraints: &config.plan,
        target: PlanTarget::Rowmill,
    };
    // Ctrl-C ends the command, because there is nothing to save yet.
    let stop = AtomicBool::new(false);
    let found = plan_search::search(&problem, &PlanOptions::new(0), &stop, session)?;
    let by_size = ShardingPlan::table_wise(&config.model.tables, problem.ranks());
    let by_size_ns = price(&problem, &by_size.on_hosts(hosts.clone()))?;
    let steps = FoundSteps::new(&found, by_size_ns);
    let is_guess = host.is_some();
    steps.describe(&found, &problem, session);
    let chosen = match steps.whole {
        Some(whole) if is_guess && steps.keeps_whole() => whole.plan,
        _ => &found.plan,
    };
    session.console.say(match (is_whole(chosen), steps.split_ns.is_some()) {
        (true, true) => {
            "--sharding auto: tables stay whole, because splitting them gains less than 10 %, which \
             is too little for prices that are a guess"
        }
        (true, false) => "--sharding auto: tables stay whole, because no plan that splits is faster",
        (false, _) => "--sharding auto: the run uses the plan with split or replicated tables",
    });
    let tables = &config.model.tables;
    chosen.to_sharding_plan(tables, hosts).map_err(|source| plan::Error::from(source).into())
}

/// Returns the predicted step of a plan in nanoseconds.
fn price(problem: &PlanProblem<'_>, plan: &ShardingPlan) -> Result<f64, plan::Error> {
    let PlanProblem { config, features, conditions, .. } = *problem;
    let workload = Workload { config, plan, features };
    Ok(step_ns(&StepPricer::new(workload, conditions)?.into_price().cost))
}

/// A plan of whole tables with its predicted step in nanoseconds.
#[derive(Clone, Copy)]
struct WholeTables<'a> {
    plan: &'a CandidatePlan,
    step_ns: f64,
}

/// The plans that are compared, and their predicted steps in nanoseconds.
struct FoundSteps<'a> {
    /// The plan of `--sharding table`.
    by_size_ns: f64,
    /// The best plan that splits and replicates no table, if constraints allow one.
    whole: Option<WholeTables<'a>>,
    /// The best plan, if it splits or replicates tables.
    split_ns: Option<f64>,
}

impl<'a> FoundSteps<'a> {
    fn new(found: &'a PlanResult, by_size_ns: f64) -> Self {
        let best = (&found.plan, &found.cost);
        let fitting = found.baselines.iter().filter(|one| one.fits);
        let plans = fitting.map(|one| (&one.plan, &one.cost)).chain([best]);
        let whole = plans
            .filter(|(plan, _)| is_whole(plan))
            .map(|(plan, cost)| WholeTables { plan, step_ns: step_ns(cost) })
            .min_by(|a, b| a.step_ns.total_cmp(&b.step_ns));
        let split_ns = (!is_whole(&found.plan)).then(|| step_ns(&found.cost));
        Self { by_size_ns, whole, split_ns }
    }

    /// Whether split tables gain too little for prices that are a guess.
    fn keeps_whole(&self) -> bool {
        let whole_ns = self.whole.map(|whole| whole.step_ns);
        let pair = whole_ns.zip(self.split_ns);
        pair.is_none_or(|(whole_ns, split_ns)| split_ns >= WORTH * whole_ns)
    }

    fn describe(&self, found: &PlanResult, problem: &PlanProblem<'_>, session: &Session) {
        let best = |what: &str, ns: Option<f64>| {
            ns.map_or_else(String::new, |ns| format!(", the best plan {what} {}", nanos(ns)))
        };
        session.console.say(format_args!(
            "--sharding auto: predicted steps by rates of {}: whole tables placed by size \
             (--sharding table) {}{}{}; {} plans were priced",
            problem.conditions.topology.device.name,
            nanos(self.by_size_ns),
            best("of whole tables", self.whole.map(|whole| whole.step_ns)),
            best("with split or replicated tables", self.split_ns),
            found.priced
        ));
    }
}

fn is_whole(plan: &CandidatePlan) -> bool {
    plan.placements.iter().all(|placement| placement.layout == Layout::Table)
}

fn step_ns(cost: &StepCost) -> f64 {
    cost.step.mean_ns
}

/// Returns the number of threads of each of `ranks_per_host` ranks that share the threads of this
/// command.
fn threads_per_rank(ranks_per_host: usize, session: &Session) -> usize {
    (session.threads / ranks_per_host.max(1)).max(1)
}

/// Returns the assumed costs of a rank with so many threads on a CPU whose cores `ranks_per_host`
/// ranks share.
pub fn host_costs(ranks_per_host: usize, threads: usize) -> HostCosts {
    let ranks = ranks_per_host.max(1);
    let has_spare_cores = ranks * (threads + 1) <= machine::cores();
    HostCosts::typical(threads, has_spare_cores)
}

/// Describes the device of a run and the links between its ranks. GPUs have their data sheets. A
/// CPU has the rates of a typical core for each thread of a rank.
fn topology(
    hosts: &HostLayout,
    ranks_per_host: u32,
    device: &ComputeDevice,
    session: &Session,
) -> Topology {
    let driver = match device {
        ComputeDevice::Gpu(driver) => Some(driver.name()),
        ComputeDevice::Cpu(_) => None,
    };
    let gpu = driver.and_then(|name| HARDWARE.iter().find(|spec| spec.name == name));
    let hosts = hosts.host_count() as u32;
    let Some(spec) = gpu else {
        let threads = (session.threads as f64 / f64::from(ranks_per_host)).max(1.0);
        return cpu_topology(hosts, ranks_per_host, threads);
    };
    let (within, between) = (HostFabric::for_device(spec), Link::network());
    Topology { device: spec.clone(), hosts, ranks_per_host, within, between }
}

/// Describes ranks on CPUs with the rates of a typical core for each of `threads` threads of a
/// rank.
pub fn cpu_topology(hosts: u32, ranks_per_host: u32, threads: f64) -> Topology {
    let memory = available_memory::read().map_or(u64::MAX, |memory| memory.bytes.0);
    let device = HardwareSpec {
        key: Cow::Borrowed("cpu"),
        name: Cow::Borrowed("a typical CPU"),
        peak: Flops { f32: CORE_FLOPS * threads, tf32: None, f16: None, bf16: None },
        sustained_f32: None,
        dram: CORE_DRAM * threads,
        dram_sustained: None,
        l2_bytes: CORE_CACHE * threads as u64,
        l2: None,
        multiprocessors: threads as u32,
        clock_mhz: 3000,
        power_w: 0,
        memory_bytes: memory / u64::from(ranks_per_host),
        launch_floor_ns: None,
        source: Cow::Borrowed("assumed"),
    };
    let within = HostFabric {
        name: Cow::Borrowed("shared memory"),
        ring: CORE_MESSAGES,
        all_to_all: CORE_MESSAGES,
    };
    Topology { device, hosts, ranks_per_host, within, between: Link::network() }
}
