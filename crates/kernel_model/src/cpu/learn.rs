//! Trains the model of a CPU on measured steps and lookups, and evaluates it on the held-out ones.

use std::collections::BTreeMap;

use schema::random::mix;
use schema::{Op, Optimizer};
use serde::Serialize;

use super::kind::KindModel;
use super::measured::{EqualTables, Machine, MeasuredStep, MeasuredTables, TablesRound};
use super::model::{CpuModel, MODEL_VERSION};
use super::work::{Context, CpuWork};
use crate::Error;
use crate::embedding::Popularity;
use crate::embedding::lookup::Cores;
use crate::error_metrics::geometric_mean_pct;
use crate::parallel::in_parallel;
use crate::tile_use::TileUse;

/// Largest relative difference of a step's memory bandwidth from the most common one. Steps beyond
/// it are left out, because other cores of the host executed them.
const STREAM_APART_MOST: f64 = 0.15;
/// Minimum number of measured steps to train on.
const STEPS_LEAST: usize = 20;
/// One of this many steps and tables is held out for evaluation.
const JUDGED_OF: u64 = 5;

/// A measured step with the operations that its configuration implies.
#[derive(Clone, Debug)]
pub struct Example<'a> {
    pub measured: &'a MeasuredStep,
    /// Operations of the configuration, in the trainer's order.
    pub ops: Vec<Op>,
    /// Use of the configuration's tables by a batch.
    pub tiles: Vec<TileUse>,
    /// Optimizer fused into products of weight gradients, for rules that update each element
    /// independently.
    pub updates: Option<Optimizer>,
}

/// Prediction errors of one kind of operation on held-out steps and tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CpuKindErrors {
    pub kind: String,
    pub learned: usize,
    pub judged: usize,
    /// Geometric mean of the absolute errors.
    pub gmae_pct: f64,
    pub mape_pct: f64,
    /// Share of measured times that lie within the predicted interval.
    pub covered_pct: f64,
    /// Share of this kind of operation in the total time of held-out steps. The share is 0 for
    /// operations that were measured alone.
    pub share_pct: f64,
    /// Noise floor: geometric mean of the relative difference between the minima of even and odd
    /// rounds.
    pub floor_pct: Option<f64>,
}

/// One measured operation as amounts of work.
struct MeasuredWork {
    work: CpuWork,
    ns: f64,
    is_judged: bool,
    /// Relative difference between the minima of even and odd rounds. The difference is `None` if
    /// there is only one round.
    apart: Option<f64>,
}

/// Measured operations, grouped by kind.
type WorksByKind = BTreeMap<String, Vec<MeasuredWork>>;

/// Decides by a hash of its configuration whether a step is held out for evaluation.
#[must_use]
pub fn is_judged(measured: &MeasuredStep) -> bool {
    let pooling = u64::from(measured.pooling);
    let set = measured.set.iter().flat_map(|(key, value)| key.bytes().chain(value.bytes()));
    hashed(pooling, set).is_multiple_of(JUDGED_OF)
}

/// Decides by a hash of their shape whether tables are held out for evaluation.
#[must_use]
pub fn are_judged(tables: &EqualTables) -> bool {
    let shape = format!("{tables:?}");
    hashed(tables.rows, shape.bytes()).is_multiple_of(JUDGED_OF)
}

fn hashed(first: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(mix(first), |hash, byte| mix(hash.wrapping_mul(31).wrapping_add(u64::from(byte))))
}

/// Returns the memory bandwidth at which most steps were measured.
fn usual(rates: &[f64]) -> f64 {
    let count = |at: &&f64| rates.iter().filter(|rate| is_near(**rate, **at)).count();
    rates.iter().max_by_key(count).copied().unwrap_or(0.0)
}

fn is_near(rate: f64, usual: f64) -> bool {
    (rate / usual - 1.0).abs() <= STREAM_APART_MOST
}

impl CpuModel {
    /// Trains a model on measured steps and on lookups measured without a model. Returns the model
    /// and its errors on the held-out measurements.
    ///
    /// # Errors
    /// [`Error::TooFew`] if too few steps were measured at the usual bandwidth. [`Error::Model`] if
    /// the measured operations of a step differ from the operations of its configuration.
    pub fn learn(
        machine: Machine,
        examples: &[Example<'_>],
        tables: &[MeasuredTables],
    ) -> Result<(Self, Vec<CpuKindErrors>), Error> {
        let rates: Vec<f64> = examples.iter().map(|one| one.measured.stream_gb_per_s).collect();
        let stream_gb_per_s = usual(&rates);
        let is_here = |one: &&Example<'_>| is_near(one.measured.stream_gb_per_s, stream_gb_per_s);
        let kept: Vec<&Example<'_>> = examples.iter().filter(is_here).collect();
        if kept.len() < STEPS_LEAST {
            return Err(Error::TooFew { kind: "steps", expected: STEPS_LEAST, got: kept.len() });
        }
        let mut model = Self {
            rowmill_cpu: MODEL_VERSION,
            machine,
            stream_gb_per_s,
            steps: [kept.len(), examples.len()],
            between_ns: 0.0,
            kinds: BTreeMap::new(),
        };
        // Train the models of lookups measured alone first, because the time of lookups within
        // steps builds on them.
        let alone = alone(tables, stream_gb_per_s, model.machine.cores());
        model.learn_kinds(&alone);
        let (in_steps, between_ns) = model.in_steps(&kept)?;
        model.learn_kinds(&in_steps);
        model.between_ns = between_ns;
        let all: f64 = judged(in_steps.values().flatten()).map(|row| row.ns).sum();
        let share = |rows: &[MeasuredWork]| {
            judged(rows.iter()).map(|row| row.ns).sum::<f64>() / all.max(1.0)
        };
        let mut errors: Vec<CpuKindErrors> = in_steps
            .iter()
            .map(|(kind, rows)| model.errors(kind, rows, 100.0 * share(rows)))
            .collect();
        errors.extend(alone.iter().map(|(kind, rows)| model.errors(kind, rows, 0.0)));
        Ok((model, errors))
    }

    fn learn_kinds(&mut self, rows: &WorksByKind) {
        let kinds: Vec<(&String, &Vec<MeasuredWork>)> = rows.iter().collect();
        let learned = in_parallel(self.machine.threads as usize, kinds.len(), |at| {
            let learned = kinds[at].1.iter().filter(|row| !row.is_judged);
            let works: Vec<(&CpuWork, f64)> = learned.map(|row| (&row.work, row.ns)).collect();
            (!works.is_empty()).then(|| KindModel::learn(&works))
        });
        let named = kinds.iter().zip(learned);
        self.kinds.extend(named.filter_map(|((kind, _), model)| Some(((*kind).clone(), model?))));
    }

    /// Returns the operations of steps by kind, and the median time between two operations.
    fn in_steps(&self, kept: &[&Example<'_>]) -> Result<(WorksByKind, f64), Error> {
        let mut rows = WorksByKind::new();
        let mut between = Vec::new();
        for example in kept {
            let (works, between_ns) = works(example, self.machine.cores())?;
            let is_judged = is_judged(example.measured);
            if !is_judged {
                between.push(between_ns);
            }
            for (work, ns) in works {
                let work = self.within_step(work);
                let row = MeasuredWork { work, ns, is_judged, apart: None };
                rows.entry(row.work.kind.clone()).or_default().push(row);
            }
        }
        between.sort_by(f64::total_cmp);
        Ok((rows, between.get(between.len() / 2).copied().unwrap_or(0.0)))
    }

    fn errors(&self, kind: &str, rows: &[MeasuredWork], share_pct: f64) -> CpuKindErrors {
        let off: Vec<(f64, bool)> = judged(rows.iter())
            .filter_map(|row| {
                let price = self.kinds.get(kind)?.price(&row.work);
                let is_covered = (price.low_ns..=price.high_ns).contains(&row.ns);
                Some(((price.mean_ns / row.ns - 1.0).abs(), is_covered))
            })
            .collect();
        let errors: Vec<f64> = off.iter().map(|one| one.0).collect();
        let apart: Vec<f64> = rows.iter().filter_map(|row| row.apart).collect();
        let count = off.len().max(1) as f64;
        let mean = errors.iter().sum::<f64>() / count;
        CpuKindErrors {
            kind: kind.to_owned(),
            learned: rows.iter().filter(|row| !row.is_judged).count(),
            judged: off.len(),
            gmae_pct: geometric_mean_pct(errors.iter().copied()),
            mape_pct: if off.is_empty() { f64::NAN } else { 100.0 * mean },
            covered_pct: 100.0 * off.iter().filter(|one| one.1).count() as f64 / count,
            share_pct,
            floor_pct: (!apart.is_empty()).then(|| geometric_mean_pct(apart.into_iter())),
        }
    }
}

fn judged<'a>(
    rows: impl Iterator<Item = &'a MeasuredWork>,
) -> impl Iterator<Item = &'a MeasuredWork> {
    rows.filter(|row| row.is_judged)
}

/// Returns lookups and updates measured without a model, by kind. The time is the minimum over
/// rounds measured at the usual bandwidth, because other programs interfere only for some minutes.
fn alone(tables: &[MeasuredTables], stream_gb_per_s: f64, cores: Cores) -> WorksByKind {
    let mut rows = WorksByKind::new();
    for measured in tables {
        let here = |round: &&TablesRound| {
            round.calls[0] > 0 && is_near(round.stream_gb_per_s, stream_gb_per_s)
        };
        let rounds: Vec<&TablesRound> = measured.rounds.iter().filter(here).collect();
        if rounds.is_empty() {
            continue;
        }
        let tiles = measured.tables.tiles();
        let context = Context { tiles: tiles.iter().collect(), cores, updates: None };
        let times = |time: fn(&TablesRound) -> f64| -> Vec<f64> {
            rounds.iter().map(|round| time(round)).collect()
        };
        let works = [
            (CpuWork::lookups(&context), times(|round| round.forward_ns)),
            (
                CpuWork::row_updates(measured.tables.optimizer, &context),
                times(|round| round.backward_ns),
            ),
        ];
        for (work, ns) in works {
            // Even and odd rounds are independent, so the difference of their minima shows the
            // noise.
            let least = |from: usize, step: usize| {
                ns.iter().copied().skip(from).step_by(step).fold(f64::INFINITY, f64::min)
            };
            let work = CpuWork { kind: CpuModel::alone(&work.kind), ..work };
            let row = MeasuredWork {
                ns: least(0, 1),
                is_judged: are_judged(&measured.tables),
                apart: (ns.len() > 1).then(|| (least(1, 2) / least(0, 2) - 1.0).abs()),
                work,
            };
            rows.entry(row.work.kind.clone()).or_default().push(row);
        }
    }
    rows
}

/// Pairs the operations of a step with their measured times, and returns the mean gap between them.
fn works(example: &Example<'_>, cores: Cores) -> Result<(Vec<(CpuWork, f64)>, f64), Error> {
    let wrong = |got: String| Error::Model {
        expected: "the operations of the configuration".to_owned(),
        got,
    };
    // Paired by name, since a schedule may order the stages of a step in another way.
    let mut ops: Vec<&Op> = example.ops.iter().collect();
    let mut measured: Vec<&(String, f64)> = example.measured.ops.iter().collect();
    ops.sort_by_key(|op| op.name());
    measured.sort_by_key(|measured| &measured.0);
    let is_same = ops.len() == measured.len()
        && ops.iter().zip(&measured).all(|(op, measured)| op.name() == measured.0);
    if !is_same {
        return Err(wrong(format!(
            "{} operations for {} of the configuration",
            measured.len(),
            ops.len()
        )));
    }
    let context =
        Context { tiles: example.tiles.iter().collect(), cores, updates: example.updates };
    let priced = |(op, measured): (&&Op, &&(String, f64))| {
        Some((CpuWork::from_op(op, &context)?, measured.1))
    };
    let sum: f64 = measured.iter().map(|measured| measured.1).sum();
    // Operations do not overlap, so the time of the step that no operation takes is the time
    // between operations.
    let between = (example.measured.step_ns - sum).max(0.0) / measured.len().max(1) as f64;
    Ok((ops.iter().zip(&measured).filter_map(priced).collect(), between))
}

impl EqualTables {
    /// Returns one tile per table, with its use by a batch.
    #[must_use]
    pub fn tiles(&self) -> Vec<TileUse> {
        let popularity = Popularity::from_distribution(&self.ids, self.rows);
        let one = |table| TileUse {
            table,
            rank: 0,
            dim: self.dim,
            rows: self.rows,
            weight_bytes: self.data_type.bytes(),
            bags: self.batch_size,
            vectors: 1,
            uses: (self.batch_size * self.pooling) as f64,
            longest_bag: self.pooling as u64,
            row_share: 1.0,
            uses_of_all: None,
            popularity: popularity.clone(),
        };
        (0..self.count).map(one).collect()
    }
}
