//! Computes intervals of predictions by simulating the step repeatedly with randomly drawn samples.

use std::collections::BTreeMap;

use analyze::graph::{self, NodeId};
use schema::median;
use schema::random::CounterRng;
use trace::store::StringId;

use crate::calibration::price::Prices;
use crate::calibration::{Calibration, Key, runs};
use crate::program::{Action, Part, Program, Returns, Segment, WorkKind};
use crate::simulate::Simulation;

/// Number and seed of the random draws from which an interval is computed.
#[derive(Clone, Copy)]
pub struct Draws<'a> {
    pub count: u32,
    pub seed: u64,
    /// Receives the number of draws that are done.
    pub on_draw: &'a dyn Fn(u32),
}

impl Draws<'_> {
    /// Creates draws whose progress nobody sees.
    #[must_use]
    pub const fn new(count: u32, seed: u64) -> Self {
        Self { count, seed, on_draw: &|_| {} }
    }
}

/// An action or work whose cost is drawn at random from its samples.
struct Element<'a> {
    node: NodeId,
    rank: usize,
    /// Whether the element is host time of the rank rather than device time.
    is_host: bool,
    /// Whether the host computes the operator, whose time is taken from other sizes.
    is_grown: bool,
    /// Cost in an undisturbed step. Draws multiply this cost by factors if the calibration has
    /// factors.
    usual: f64,
    /// Samples of each part of the cost. A draw picks one sample of each part and adds up these
    /// samples.
    parts: Vec<Vec<&'a [i64]>>,
    /// Price divided by the mean of the samples. The quotient differs from 1 for unrecorded sizes
    /// and after edits.
    scale: f64,
    /// Index into the scaling errors, if the kernel was scaled with the roofline or the operator
    /// with the work of its tensors.
    scaled_as: Option<usize>,
}

/// Scaling errors as factors on the time: one list for each kernel name, then the list of operators
/// that the host computes.
type Scaling = Vec<Vec<f64>>;

/// Percentiles of the randomly drawn step times of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepInterval {
    /// 5th percentile of the draws.
    pub low_ns: i64,
    pub median_ns: i64,
    /// 95th percentile of the draws.
    pub high_ns: i64,
}

/// Simulates the program once per draw with random samples. Returns the percentiles of each rank's
/// step time.
pub(super) fn compute_intervals(
    program: &Program,
    calibration: &Calibration,
    prices: &Prices,
    simulation: &Simulation,
    draws: Draws<'_>,
) -> Vec<StepInterval> {
    let mut elements = Vec::new();
    let mut found = Found::default();
    for at in 0..program.ranks.len() {
        add(
            &mut elements,
            program,
            at,
            simulation,
            PricedSamples { calibration, prices },
            &mut found,
        );
    }
    let scaling = scaling(&mut elements, program, simulation, prices);
    let mut drawn: Vec<Vec<i64>> = vec![Vec::new(); program.ranks.len()];
    let mut again = simulation.clone();
    let runs = run_factors(calibration);
    for draw in 0..draws.count {
        (draws.on_draw)(draw);
        let random = CounterRng::new(draws.seed, u64::from(draw));
        let ranks = program.ranks.len();
        let hosts = factors(&calibration.factors, random.child(1), ranks);
        let works = factors(&calibration.work_factors, random.child(2), ranks);
        let run = factors(&runs, random.child(RUN), 1)[0].unwrap_or(1.0);
        let off: Vec<f64> = (0u64..)
            .zip(&scaling)
            .map(|(name, all)| all[random.child(SCALING).below(name, all.len() as u64) as usize])
            .collect();
        for (counter, element) in (0u64..).zip(&elements) {
            // Disturbances slow down all kernels of a step alike, so all kernels share one factor.
            if let (false, Some(factor)) = (element.is_host, works[element.rank]) {
                let off = element.scaled_as.map_or(1.0, |name| off[name]);
                let ns = (element.usual * factor * run * off).round() as i64;
                again.graph.set_node_weight(element.node, ns);
                continue;
            }
            let parts = (0u64..).zip(&element.parts);
            let picked = parts.map(|(at, samples)| pick(samples, random.child(3 + at), counter));
            let Some(ns) = picked.sum::<Option<i64>>() else { continue };
            let host = hosts[element.rank].filter(|_| element.is_host);
            let off = element.scaled_as.map_or(1.0, |name| off[name]);
            let factor = element.scale * host.unwrap_or(1.0) * off;
            again.graph.set_node_weight(element.node, (ns as f64 * factor).round() as i64);
        }
        graph::relax_into(&again.graph, &mut again.times);
        drawn.iter_mut().enumerate().for_each(|(rank, drawn)| drawn.push(again.step_ns(rank)));
    }
    let ends = |(rank, mut drawn): (usize, Vec<i64>)| {
        drawn.sort_unstable();
        let at = |share: f64| drawn.get((share * (drawn.len().max(1) - 1) as f64).round() as usize);
        let whole = simulation.step_ns(rank);
        let ns = |share| at(share).copied().unwrap_or(whole);
        // Ranks wait for the slowest of them, which is slower in draws than in the mean. The
        // interval contains the step nevertheless.
        let (low_ns, high_ns) = (ns(0.05).min(whole), ns(0.95).max(whole));
        let median_ns = median::integer_median(&mut drawn).unwrap_or(whole);
        StepInterval { low_ns, median_ns, high_ns }
    };
    drawn.into_iter().enumerate().map(ends).collect()
}

/// Counters of the random streams for runs and scaling errors. These counters lie far from the
/// counters of hosts, works and parts.
const RUN: u64 = 1 << 32;
const SCALING: u64 = RUN + 1;

/// Marks kernels that were scaled with the roofline, and returns the scaling errors of each of
/// their names. A name with fewer than three errors uses the errors of all names.
fn scaling(
    elements: &mut [Element<'_>],
    program: &Program,
    simulation: &Simulation,
    prices: &Prices,
) -> Scaling {
    const FEWEST: usize = 3;
    let mut named: BTreeMap<String, Vec<NodeId>> = BTreeMap::new();
    for (at, rank) in program.ranks.iter().enumerate() {
        for (number, work) in (0u32..).zip(&rank.works) {
            let is_scaled = |part: &Part| prices.is_scaled(&Key::from_part(program, *part));
            if work.collective.is_none() && work.cost_parts().iter().any(is_scaled) {
                let name = program.text(work.name).to_owned();
                named.entry(name).or_default().push(simulation.work_node(at, number));
            }
        }
    }
    let residuals = if named.is_empty() { BTreeMap::new() } else { prices.residuals() };
    let every: Vec<(f64, f64)> = residuals.values().flatten().copied().collect();
    let mut places: BTreeMap<NodeId, usize> = BTreeMap::new();
    let mut found = Scaling::new();
    for (name, nodes) in named {
        let own = residuals.get(name.as_str()).filter(|all| all.len() >= FEWEST);
        let factors = centred(own.unwrap_or(&every));
        places.extend(nodes.into_iter().map(|node| (node, found.len())));
        found.push(factors);
    }
    for element in elements {
        let grown = element.is_grown.then_some(found.len());
        element.scaled_as = places.get(&element.node).copied().or(grown);
    }
    found.push((0..QUANTILES).map(|at| GROWN_MOST.powf(2.0 * share(at) - 1.0)).collect());
    found
}

/// Largest factor by which the time of operators that the host computes may differ from that which
/// other sizes imply.
const GROWN_MOST: f64 = 2.0;
/// Number of equally likely factors of a scaling error.
const QUANTILES: u32 = 41;

fn share(place: u32) -> f64 {
    (f64::from(place) + 0.5) / f64::from(QUANTILES)
}

/// Converts logarithmic errors to factors with a mean of 1. The errors are replaced by quantiles of
/// equal weight, so that each shape counts in proportion to its expected time.
fn centred(residuals: &[(f64, f64)]) -> Vec<f64> {
    let mut sorted = residuals.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let at = |share: f64| {
        let mut left = share * total;
        let found = sorted.iter().find(|(_, weight)| {
            left -= weight;
            left <= 0.0
        });
        found.or(sorted.last()).map_or(0.0, |(residual, _)| *residual)
    };
    let quantile = |place: u32| at(share(place)).exp();
    let factors: Vec<f64> = (0..QUANTILES).map(quantile).collect();
    let mean = factors.iter().sum::<f64>() / f64::from(QUANTILES);
    factors.into_iter().map(|factor| factor / mean).collect()
}

/// Returns run-to-run factors of configurations that were recorded more than once. Without such
/// recordings, returns the step-to-step factors divided by their median.
fn run_factors(calibration: &Calibration) -> Vec<f64> {
    let recorded = runs::factors(calibration);
    if !recorded.is_empty() {
        return recorded;
    }
    let usual = median::float_median(&mut calibration.work_factors.clone()).unwrap_or(1.0);
    calibration.work_factors.iter().map(|factor| factor / usual).collect()
}

/// Draws a factor for each rank. The factors are `None` if fewer than two are known.
fn factors(known: &[f64], random: CounterRng, ranks: usize) -> Vec<Option<f64>> {
    const FEWEST: usize = 2;
    let one = |rank: usize| {
        let at = random.below(rank as u64, known.len().max(1) as u64) as usize;
        known.get(at).copied().filter(|_| known.len() >= FEWEST)
    };
    (0..ranks).map(one).collect()
}

/// Computes the price of a node divided by the mean of its samples.
fn scale(simulation: &Simulation, node: NodeId, parts: &[Vec<&[i64]>]) -> f64 {
    let mean = |samples: &Vec<&[i64]>| {
        let all = || samples.iter().flat_map(|samples| samples.iter());
        all().sum::<i64>() as f64 / all().count().max(1) as f64
    };
    let usual: f64 = parts.iter().map(mean).sum();
    let price = simulation.graph.node(node).weight as f64;
    // Prices are rounded to whole nanoseconds, so a difference of 1 ns does not count as a scale.
    if usual <= 0.0 || (price - usual).abs() <= 1.0 { 1.0 } else { price / usual }
}

fn pick(samples: &[&[i64]], random: CounterRng, counter: u64) -> Option<i64> {
    let total: usize = samples.iter().map(|samples| samples.len()).sum();
    let mut at = match total {
        0 => return None,
        total => random.below(counter, total as u64) as usize,
    };
    for samples in samples {
        match samples.get(at) {
            Some(ns) => return Some(*ns),
            None => at -= samples.len(),
        }
    }
    None
}

/// The samples of a host segment, and whether its time is taken from other sizes.
#[derive(Clone)]
struct HostSamples<'a> {
    samples: Vec<&'a [i64]>,
    is_grown: bool,
}

/// A calibration and the prices that were computed from it.
#[derive(Clone, Copy)]
struct PricedSamples<'a, 'b> {
    calibration: &'a Calibration,
    prices: &'b Prices,
}

/// Cache of samples by host segment and by kind, name and detail of device work.
#[derive(Default)]
struct Found<'a> {
    hosts: BTreeMap<Segment, HostSamples<'a>>,
    works: BTreeMap<(WorkKind, StringId, StringId), Vec<&'a [i64]>>,
}

fn add<'a>(
    elements: &mut Vec<Element<'a>>,
    program: &Program,
    at: usize,
    simulation: &Simulation,
    priced: PricedSamples<'a, '_>,
    found: &mut Found<'a>,
) {
    let PricedSamples { calibration, prices } = priced;
    let rank = &program.ranks[at];
    for (place, thread) in rank.threads.iter().enumerate() {
        for (number, action) in thread.actions.iter().enumerate() {
            let segment = match action {
                Action::Host(segment) => *segment,
                Action::Call(call) if call.returns == Returns::AtOnce => call.cost,
                _ => continue,
            };
            let samples = || {
                let key = Key::from_segment(program, segment);
                let samples = Prices::samples(&calibration.overheads, &key);
                HostSamples { samples, is_grown: prices.is_grown(&key) }
            };
            let HostSamples { samples, is_grown } =
                found.hosts.entry(segment).or_insert_with(samples).clone();
            let node = simulation.action_node(at, place, number);
            let parts = vec![samples];
            let scale = scale(simulation, node, &parts);
            elements.push(Element {
                node,
                rank: at,
                is_host: true,
                is_grown,
                usual: 0.0,
                parts,
                scale,
                scaled_as: None,
            });
        }
    }
    for (number, work) in (0u32..).zip(&rank.works) {
        // Work that an earlier step launched keeps its recorded time, and collectives have no
        // samples in `calibration.works`.
        if work.collective.is_some() || !work.is_launched {
            continue;
        }
        let part_samples = |part: Part| {
            let samples = || Prices::samples(&calibration.works, &Key::from_part(program, part));
            let own = (part.kind, part.name, part.detail);
            found.works.entry(own).or_insert_with(samples).clone()
        };
        let parts = work.cost_parts().into_iter().map(part_samples).collect::<Vec<_>>();
        let node = simulation.work_node(at, number);
        let scale = scale(simulation, node, &parts);
        let usual = simulation.graph.node(node).weight as f64;
        elements.push(Element {
            node,
            rank: at,
            is_host: false,
            is_grown: false,
            usual,
            parts,
            scale,
            scaled_as: None,
        });
    }
}
