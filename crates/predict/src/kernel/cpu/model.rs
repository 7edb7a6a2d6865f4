//! A model of a CPU: times per unit by kind of operation, residuals of similar sizes, and
//! intervals; learnt from measured steps and stored as JSON.

use std::collections::BTreeMap;

use schema::random::mix;
use schema::{Granularity, Op};
use serde::{Deserialize, Serialize};

use super::fit;
use super::measured::{Machine, MeasuredStep};
use super::work::{Context, CpuWork};
use crate::kernel::Error;
use crate::kernel::embedding::lookup::Caches;
use crate::kernel::interval::quantiles;
use crate::lower::own::{self, Workload};

/// Version of the file.
pub const MODEL_VERSION: u32 = 1;
/// Steps whose cores read memory at a rate farther from the usual one ran elsewhere.
const STREAM_APART_MOST: f64 = 0.15;
/// Fewest steps to learn from.
const STEPS_LEAST: usize = 20;
/// Fewest works of a kind that near sizes can say something of.
const NEIGHBOURS_LEAST: usize = 30;
/// Most works of a kind that are kept: a file stays below 300 KB.
const NEIGHBOURS_MOST: usize = 700;
/// Bound of residuals, in logarithms.
const LEFT_OVER_MOST: f64 = 0.5;
/// Of steps in five, one is judged by.
const JUDGED_OF: u64 = 5;

/// A measured step with what it trained.
#[derive(Clone, Copy, Debug)]
pub struct Example<'a> {
    /// What it trained.
    pub workload: Workload<'a>,
    /// What it took.
    pub measured: &'a MeasuredStep,
}

/// What a kind of operation takes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindModel {
    /// ns of a unit of each amount; those not named take nothing.
    units: BTreeMap<String, f64>,
    /// Sizes of works, and what each had left over; empty where that says nothing of others.
    near: Vec<(Vec<f32>, f32)>,
    /// The least and the most that works took, of what is predicted, in logarithms: nine of ten.
    interval: (f64, f64),
    /// Works learnt from.
    works: usize,
    /// Least and most of each size.
    domain: Vec<(f32, f32)>,
}

/// Learnt times of a CPU's operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuModel {
    /// [`MODEL_VERSION`].
    rowmill_cpu: u32,
    /// The CPU.
    pub machine: Machine,
    /// Median read bandwidth of all threads while steps were measured, GB/s.
    pub stream_gb_per_s: f64,
    /// Steps learnt from, and all that were measured.
    pub steps: [usize; 2],
    /// Between two operations, ns.
    between_ns: f64,
    kinds: BTreeMap<String, KindModel>,
}

/// A priced operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuPrice {
    /// The estimate.
    pub mean_ns: f64,
    /// Nine of ten lie above this,
    pub low_ns: f64,
    /// and below this.
    pub high_ns: f64,
    /// Whether every size lies within the measured ones.
    pub is_inside: bool,
}

/// Errors of the prices of a kind, on held-out steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuKindErrors {
    /// The operation.
    pub kind: String,
    /// Works learnt from.
    pub learnt: usize,
    /// Works judged.
    pub judged: usize,
    /// Geometric mean of absolute errors.
    pub gmae_pct: f64,
    /// Their mean.
    pub mape_pct: f64,
    /// Share of works within the interval.
    pub covered_pct: f64,
    /// Share of the judged steps' time.
    pub share_pct: f64,
}

/// A measured work.
struct Row {
    work: CpuWork,
    ns: f64,
    is_judged: bool,
}

/// Whether a step is one that models are judged by: decided by what it trains.
#[must_use]
pub fn is_judged(measured: &MeasuredStep) -> bool {
    let mut hash = mix(u64::from(measured.pooling));
    for byte in measured.set.iter().flat_map(|(key, value)| key.bytes().chain(value.bytes())) {
        hash = mix(hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    }
    hash.is_multiple_of(JUDGED_OF)
}

/// Those whose cores were where most were.
fn in_place<'a, 'b>(examples: &'b [Example<'a>]) -> (f64, Vec<&'b Example<'a>>) {
    let rate = |example: &Example<'_>| example.measured.stream_gb_per_s;
    let near =
        |at: f64| move |other: &&Example<'a>| (rate(other) / at - 1.0).abs() <= STREAM_APART_MOST;
    let count = |example: &&Example<'a>| examples.iter().filter(near(rate(example))).count();
    let Some(middle) = examples.iter().max_by_key(count) else { return (0.0, Vec::new()) };
    let kept: Vec<&Example<'a>> = examples.iter().filter(near(rate(middle))).collect();
    (rate(middle), kept)
}

impl CpuModel {
    /// Learns from measured steps; also how far off it is on those it did not learn from.
    ///
    /// # Errors
    /// [`Error::TooFew`], and [`Error::Model`] for steps whose operations are not those that their
    /// configuration has.
    pub fn learn(
        machine: Machine,
        examples: &[Example<'_>],
    ) -> Result<(Self, Vec<CpuKindErrors>), Error> {
        let (stream_gb_per_s, kept) = in_place(examples);
        if kept.len() < STEPS_LEAST {
            return Err(Error::TooFew { kind: "steps", expected: STEPS_LEAST, got: kept.len() });
        }
        let caches = Caches::of(&machine.spec, machine.private_cache_bytes);
        let mut rows: BTreeMap<String, Vec<Row>> = BTreeMap::new();
        let mut between = Vec::new();
        for example in &kept {
            let (works, between_ns) = works(example, caches)?;
            let is_judged = is_judged(example.measured);
            if !is_judged {
                between.push(between_ns);
            }
            for (work, ns) in works {
                rows.entry(work.kind.clone()).or_default().push(Row { work, ns, is_judged });
            }
        }
        between.sort_by(f64::total_cmp);
        let between_ns = between.get(between.len() / 2).copied().unwrap_or(0.0);
        let kinds = rows
            .iter()
            .filter(|(_, rows)| rows.iter().any(|row| !row.is_judged))
            .map(|(kind, rows)| (kind.clone(), KindModel::learn(rows)))
            .collect();
        let steps = [kept.len(), examples.len()];
        let model =
            Self { rowmill_cpu: MODEL_VERSION, machine, stream_gb_per_s, steps, between_ns, kinds };
        let errors = model.errors(&rows);
        Ok((model, errors))
    }

    fn errors(&self, rows: &BTreeMap<String, Vec<Row>>) -> Vec<CpuKindErrors> {
        let judged =
            |rows: &[Row]| rows.iter().filter(|row| row.is_judged).map(|row| row.ns).sum::<f64>();
        let all: f64 = rows.values().map(|rows| judged(rows)).sum();
        let one = |(kind, rows): (&String, &Vec<Row>)| {
            let off: Vec<(f64, bool)> = rows
                .iter()
                .filter(|row| row.is_judged)
                .filter_map(|row| {
                    let price = self.price(&row.work)?;
                    let is_covered = (price.low_ns..=price.high_ns).contains(&row.ns);
                    Some(((price.mean_ns / row.ns - 1.0).abs(), is_covered))
                })
                .collect();
            let count = off.len().max(1) as f64;
            // As the paper counts: errors below 0.04 % as that much.
            let gmae = (off.iter().map(|one| (one.0 + 4e-4).ln()).sum::<f64>() / count).exp();
            CpuKindErrors {
                kind: kind.clone(),
                learnt: rows.iter().filter(|row| !row.is_judged).count(),
                judged: off.len(),
                gmae_pct: if off.is_empty() { f64::NAN } else { 100.0 * gmae },
                mape_pct: if off.is_empty() {
                    f64::NAN
                } else {
                    100.0 * off.iter().map(|one| one.0).sum::<f64>() / count
                },
                covered_pct: 100.0 * off.iter().filter(|one| one.1).count() as f64 / count,
                share_pct: 100.0 * judged(rows) / all.max(1.0),
            }
        };
        rows.iter().map(one).collect()
    }

    /// The time of a work; `None` for a kind that was not measured.
    #[must_use]
    pub fn price(&self, work: &CpuWork) -> Option<CpuPrice> {
        self.kinds.get(&work.kind).map(|kind| kind.price(work))
    }

    /// Between two operations, ns.
    #[must_use]
    pub fn between_ns(&self) -> f64 {
        self.between_ns
    }

    /// The CPU's caches.
    #[must_use]
    pub fn caches(&self) -> Caches {
        Caches::of(&self.machine.spec, self.machine.private_cache_bytes)
    }

    /// As JSON; [`CpuModel::parse`] gives it back.
    ///
    /// # Errors
    /// [`Error::Model`] for numbers that JSON cannot hold.
    pub fn to_text(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::Model {
            expected: "numbers that JSON holds".to_owned(),
            got: error.to_string(),
        })
    }

    /// Reads the text.
    ///
    /// # Errors
    /// [`Error::Model`] for what is no model of this version.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let expected = format!("a CPU's model of rowmill predict learn, version {MODEL_VERSION}");
        let wrong = |got: String| Error::Model { expected: expected.clone(), got };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let version = value.get("rowmill_cpu").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(MODEL_VERSION)) {
            let got =
                version.map_or("no version".to_owned(), |version| format!("version {version}"));
            return Err(wrong(got));
        }
        let model: Self =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        let numbers = |kind: &KindModel| {
            let units = kind.units.values().copied();
            units.chain([kind.interval.0, -kind.interval.0, kind.interval.1]).collect::<Vec<f64>>()
        };
        let is_whole = |kind: &KindModel| {
            kind.units.values().all(|unit| unit.is_finite() && *unit >= 0.0)
                && numbers(kind).iter().all(|number| number.is_finite())
        };
        match model.kinds.iter().find(|(_, kind)| !is_whole(kind)) {
            Some((name, _)) => Err(wrong(format!("units of {name} that are no times"))),
            None => Ok(model),
        }
    }
}

/// The work and time of a step's operations, and the gaps between them.
fn works(example: &Example<'_>, caches: Caches) -> Result<(Vec<(CpuWork, f64)>, f64), Error> {
    let workload = example.workload;
    let wrong = |got: String| Error::Model {
        expected: "the operations of the configuration".to_owned(),
        got,
    };
    let ops = own::ops(workload).map_err(|error| wrong(error.to_string()))?;
    let ops = ops.first().map(Vec::as_slice).unwrap_or_default();
    let taken = &example.measured.ops;
    let is_same =
        ops.len() == taken.len() && ops.iter().zip(taken).all(|(op, taken)| op.name() == taken.0);
    if !is_same {
        return Err(wrong(format!(
            "{} operations for {} of the configuration",
            taken.len(),
            ops.len()
        )));
    }
    let tiles = workload.tiles();
    let context = context(workload, &tiles, caches);
    let priced = |(op, taken): (&Op, &(String, f64))| Some((CpuWork::of(op, &context)?, taken.1));
    let sum: f64 = taken.iter().map(|taken| taken.1).sum();
    let between = (example.measured.step_ns - sum).max(0.0) / taken.len().max(1) as f64;
    Ok((ops.iter().zip(taken).filter_map(priced).collect(), between))
}

/// What operations of a single rank do not say.
fn context<'a>(
    workload: Workload<'_>,
    tiles: &'a [crate::lower::tile_use::TileUse],
    caches: Caches,
) -> Context<'a> {
    let rule = workload.config.optimizer.dense.kind;
    let updates = (rule.granularity() == Granularity::Element).then_some(rule);
    Context { tiles: tiles.iter().collect(), caches, updates }
}

impl KindModel {
    fn learn(rows: &[Row]) -> Self {
        let learnt: Vec<&Row> = rows.iter().filter(|row| !row.is_judged).collect();
        let works: Vec<(&CpuWork, f64)> = learnt.iter().map(|row| (&row.work, row.ns)).collect();
        let units = fit::units(&works);
        let names = works.first().map(|(work, _)| &work.amounts);
        let named = names.into_iter().flatten().zip(&units).filter(|(_, unit)| **unit > 0.0);
        let mut model = Self {
            units: named.map(|((name, _), unit)| ((*name).to_owned(), *unit)).collect(),
            works: works.len(),
            domain: domain(&works),
            ..Self::default()
        };
        let left: Vec<f64> = works.iter().map(|(work, ns)| (ns / model.sum(work)).ln()).collect();
        // Each by all others: whether near sizes say anything of a work.
        let others = |at: usize| {
            let known = works.iter().zip(&left).enumerate().filter(move |(other, _)| *other != at);
            let known = known.map(|(_, ((work, _), left))| (work.sizes.as_slice(), *left));
            left[at]
                - fit::left_over(known, &works[at].0.sizes).clamp(-LEFT_OVER_MOST, LEFT_OVER_MOST)
        };
        let corrected: Vec<f64> = (0..works.len()).map(others).collect();
        let off = |values: &[f64]| values.iter().map(|left| left.abs()).sum::<f64>();
        let is_better = works.len() >= NEIGHBOURS_LEAST && off(&corrected) < 0.97 * off(&left);
        model.interval = quantiles(if is_better { corrected } else { left.clone() }.into_iter());
        if is_better {
            let kept = works.len().div_ceil(NEIGHBOURS_MOST);
            let near = works.iter().zip(&left).step_by(kept.max(1));
            let rounded = |value: f32| (1e3 * value).round() / 1e3;
            model.near = near
                .map(|((work, _), left)| {
                    (work.sizes.iter().map(|size| rounded(*size)).collect(), rounded(*left as f32))
                })
                .collect();
        }
        model
    }

    /// Without what is left over.
    fn sum(&self, work: &CpuWork) -> f64 {
        let time = |(name, amount): &(&'static str, f64)| {
            self.units.get(*name).copied().unwrap_or(0.0) * amount
        };
        work.amounts.iter().map(time).sum::<f64>().max(1.0)
    }

    fn price(&self, work: &CpuWork) -> CpuPrice {
        let known = || self.near.iter().map(|(sizes, left)| (sizes.as_slice(), f64::from(*left)));
        let left = if self.near.is_empty() { 0.0 } else { fit::left_over(known(), &work.sizes) };
        let mean_ns = self.sum(work) * left.clamp(-LEFT_OVER_MOST, LEFT_OVER_MOST).exp();
        let outside = self
            .domain
            .iter()
            .zip(&work.sizes)
            .map(|((least, most), size)| f64::from((least - size).max(size - most).max(0.0)));
        // A quarter wider for each factor of e beyond what was measured.
        let wider = 1.0 + 0.25 * outside.clone().sum::<f64>();
        let (low, high) = self.interval;
        CpuPrice {
            mean_ns,
            low_ns: mean_ns * (wider * low).exp().min(1.0),
            high_ns: mean_ns * (wider * high).exp().max(1.0),
            is_inside: outside.sum::<f64>() <= 1e-3,
        }
    }
}

fn domain(works: &[(&CpuWork, f64)]) -> Vec<(f32, f32)> {
    let count = works.first().map_or(0, |(work, _)| work.sizes.len());
    let of = |at: usize| {
        let sizes = works.iter().map(|(work, _)| work.sizes[at]);
        sizes.fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), size| {
            (least.min(size), most.max(size))
        })
    };
    (0..count).map(of).collect()
}
