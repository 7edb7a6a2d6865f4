//! Makes the sharding plan of `rowmill train --sharding auto`, for the device of the run.

use std::borrow::Cow;

use kernel_model::host_costs::HostCosts;
use plan::search::BaselinePlan;
use plan::{Layout, PlanOptions, PlanProblem, PlanResult, PlanTarget};
use predict::step::{Conditions, Models, StepCost};
use schema::topology::{Flops, HARDWARE, HostFabric, Link};
use schema::{HardwareSpec, HostLayout, JobConfig, ShardingPlan, Topology};

use crate::Session;
use crate::device::ComputeDevice;
use crate::error::{Error, UsageError};
use crate::kernel_files::read_model;
use crate::machine::{self, available_memory};
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
        ComputeDevice::Cpu(_) => Some(host_costs(ranks_per_host, session)),
        ComputeDevice::Gpu(_) => None,
    };
    let problem = PlanProblem {
        config: &config,
        features: &features,
        conditions: Conditions { host: host.as_ref(), ..Conditions::new(&topology, &models) },
        constraints: &config.plan,
        target: PlanTarget::Rowmill,
    };
    let found = plan::plan(&problem, &PlanOptions::new(0))?;
    let whole = host.as_ref().and_then(|_| best_whole_tables(&found));
    let is_worth = whole.is_none_or(|whole| step_ns(&found.cost) < WORTH * step_ns(&whole.cost));
    session.console.say(format_args!(
        "--sharding auto: {} plans were priced; the best one takes {} of the time of whole tables \
         placed by size, by rates of {}{}",
        found.priced,
        share(&found),
        topology.device.name,
        if is_worth { "" } else { "; that is too little for a guess, so tables stay whole" }
    ));
    let chosen = whole.filter(|_| !is_worth).map_or(&found.plan, |whole| &whole.plan);
    let tables = &config.model.tables;
    chosen.to_sharding_plan(tables, hosts).map_err(|source| plan::Error::from(source).into())
}

/// Returns the fastest predicted plan of a heuristic that splits and replicates no table.
fn best_whole_tables(found: &PlanResult) -> Option<&BaselinePlan> {
    let is_whole = |one: &&BaselinePlan| {
        let mut placements = one.plan.placements.iter();
        one.fits && placements.all(|placement| placement.layout == Layout::Table)
    };
    let whole = found.baselines.iter().filter(is_whole);
    whole.min_by(|a, b| step_ns(&a.cost).total_cmp(&step_ns(&b.cost)))
}

fn step_ns(cost: &StepCost) -> f64 {
    cost.step.mean_ns
}

/// Returns the assumed costs of a rank on a CPU whose cores `ranks_per_host` ranks share.
pub fn host_costs(ranks_per_host: usize, session: &Session) -> HostCosts {
    let ranks = ranks_per_host.max(1);
    let threads = (session.threads / ranks).max(1);
    let has_spare_cores = ranks * (threads + 1) <= machine::cores();
    HostCosts::typical(threads, has_spare_cores)
}

/// Formats the predicted step relative to the greedy plan by size.
fn share(found: &PlanResult) -> String {
    let by_size = found.baselines.iter().find(|one| one.baseline == plan::Baseline::Size);
    let ratio = by_size.map_or(1.0, |one| found.cost.step.mean_ns / one.cost.step.mean_ns);
    format!("{:.0} %", 100.0 * ratio)
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
