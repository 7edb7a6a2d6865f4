//! Computes the rows of Table IV of arXiv:2201.07821 for a device whose kernels a suite measured.
//!
//! Each row compares errors of the paper's formula with errors of our model, which has seen none of
//! the device's measurements, twenty of them, or four fifths of them. A suite has few shapes per
//! kernel, so errors come from five-fold cross-validation.

use kernel_model::cpu::{CpuWork, KindModel};
use kernel_model::error_metrics::{gmae, mape};
use kernel_model::formula_kernels::{SingleKind, SingleWork};
use kernel_model::{KernelModel, Kind, Measured, Timed, Work, few_shot};
use schema::HardwareSpec;
use schema::random::mix;
use serde::Serialize;

use super::published_lookup::{self, Cache};
use setup::suite::{SuiteMeasured, SuiteWork};

/// Number of measurements of the new device that calibrate a model in the column `twenty`.
const SHOTS: usize = 20;
/// Number of random draws of calibration rows. Reported errors are means over the draws.
const DRAWS: u64 = 5;
/// Minimum number of measurements of a kernel. Kernels with fewer get no row in the table.
const ROWS_LEAST: usize = 10;
/// Number of folds of the cross-validation. Each fold is predicted from the other four.
const FOLDS: u64 = 5;
/// A kernel that moves more than this many times the L2 size is taken to read device memory.
const BEYOND_L2: f64 = 4.0;

/// Returns the cross-validation fold of a kernel, which is the same on every device.
fn fold_of(work: &SuiteWork) -> u64 {
    hash(work, 0) % FOLDS
}

fn hash(work: &SuiteWork, salt: u64) -> u64 {
    let (kind, sizes) = match work {
        SuiteWork::Learned(work) => (work.kind() as u64, work.sizes()),
        SuiteWork::Single(work) => (100 + work.kind() as u64, work.sizes()),
    };
    let start = mix(kind + 1) ^ mix(salt.wrapping_add(7));
    sizes.iter().fold(start, |hash, size| mix(hash.wrapping_mul(31).wrapping_add(*size)))
}

/// Errors of a set of predictions: geometric mean and mean of the absolute errors, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ErrorPair {
    pub gmae_pct: f64,
    pub mape_pct: f64,
}

impl ErrorPair {
    fn from_pairs(pairs: &[(f64, f64)]) -> Self {
        Self { gmae_pct: gmae(pairs.iter().copied()), mape_pct: mape(pairs.iter().copied()) }
    }

    fn mean(all: &[Self]) -> Option<Self> {
        let mean = |of: fn(&Self) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        (!all.is_empty()).then(|| Self {
            gmae_pct: mean(|pair| pair.gmae_pct),
            mape_pct: mean(|pair| pair.mape_pct),
        })
    }

    fn is_within(self, other: Self) -> bool {
        self.gmae_pct <= other.gmae_pct && self.mape_pct <= other.mape_pct
    }
}

/// One row of the table: the paper's errors and our models' errors for one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuiteRow {
    /// The paper's label for the kernel, if it has one: `L` means tables beyond L2, `H` means hit
    /// rates.
    pub kernel: &'static str,
    pub shapes: usize,
    /// Smallest errors among the three devices of the paper.
    pub paper: Option<ErrorPair>,
    /// Errors of the paper's formula on this device with measured peak rates. The field is `None`
    /// where the paper uses an MLP.
    pub published: Option<ErrorPair>,
    /// Errors of our model when it has seen no measurement of this device.
    pub no_rows: ErrorPair,
    /// Errors of our model after calibration by twenty measurements of this device.
    pub twenty: Option<ErrorPair>,
    /// Errors of our model after calibration by four fifths of the device's measurements.
    pub all: Option<ErrorPair>,
    /// Share of measured times that lie within the predicted interval.
    pub covered_pct: f64,
    /// Whether the errors in `all` are at most the paper's errors.
    pub is_met: Option<bool>,
}

/// Definition of one row of the table: which kernels it covers and which formula it evaluates.
struct TableLine {
    label: &'static str,
    kernel: TableKernel,
    /// Restricts lookups to tables larger than the L2 cache.
    is_large: bool,
    paper: Option<ErrorPair>,
    published: Published,
}

/// The kind of kernel that one row of the table covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TableKernel {
    Learned(Kind),
    Single(SingleKind),
}

/// The formula that the paper uses to predict a kernel.
#[derive(Clone, Copy)]
enum Published {
    /// The paper uses an MLP or does not cover the kernel.
    None,
    /// The lookup formula that ignores cache hits.
    Plain,
    /// The lookup formula that takes L2 hit rates into account.
    HitRate,
    /// Bytes moved, divided by the highest measured bandwidth.
    Bytes,
    /// The larger of the compute time and the memory time at the highest measured rates.
    Roofline,
}

const fn least(gmae_pct: f64, mape_pct: f64) -> Option<ErrorPair> {
    Some(ErrorPair { gmae_pct, mape_pct })
}

const fn line(
    label: &'static str,
    kernel: TableKernel,
    paper: Option<ErrorPair>,
    published: Published,
) -> TableLine {
    TableLine { label, kernel, is_large: false, paper, published }
}

const fn large(
    label: &'static str,
    kernel: TableKernel,
    paper: Option<ErrorPair>,
    published: Published,
) -> TableLine {
    TableLine { label, kernel, is_large: true, paper, published }
}

const FORWARD: TableKernel = TableKernel::Single(SingleKind::EmbeddingForward);
const BACKWARD: TableKernel = TableKernel::Single(SingleKind::EmbeddingBackward);

/// Table IV of the paper with the smallest errors among its three devices, followed by kernels that
/// only our suite measures.
const LINES: [TableLine; 23] = [
    line("EL-F", FORWARD, least(8.63, 33.19), Published::Plain),
    large("EL-FL", FORWARD, least(2.89, 5.52), Published::Plain),
    line("EL-FH", FORWARD, least(6.42, 13.06), Published::HitRate),
    large("EL-FHL", FORWARD, least(3.84, 7.02), Published::HitRate),
    line("EL-B", BACKWARD, least(8.31, 34.39), Published::Plain),
    large("EL-BL", BACKWARD, least(2.38, 2.95), Published::Plain),
    line("EL-BH", BACKWARD, least(5.57, 12.59), Published::HitRate),
    large("EL-BHL", BACKWARD, least(2.55, 3.21), Published::HitRate),
    line("concat", TableKernel::Single(SingleKind::Concat), least(3.30, 6.54), Published::Bytes),
    line(
        "memcpy",
        TableKernel::Single(SingleKind::CopyToDevice),
        least(0.57, 0.96),
        Published::Bytes,
    ),
    line("memcpy to host", TableKernel::Single(SingleKind::CopyToHost), None, Published::Bytes),
    line("memcpy on device", TableKernel::Single(SingleKind::Copy), None, Published::Bytes),
    line("GEMM", TableKernel::Learned(Kind::Linear), least(5.80, 10.00), Published::Roofline),
    line(
        "transpose",
        TableKernel::Single(SingleKind::Transpose),
        least(2.95, 5.47),
        Published::None,
    ),
    line(
        "tril-F",
        TableKernel::Single(SingleKind::TrilForward),
        least(2.13, 3.67),
        Published::None,
    ),
    line(
        "tril-B",
        TableKernel::Single(SingleKind::TrilBackward),
        least(2.71, 4.76),
        Published::None,
    ),
    line("batch norm-F", TableKernel::Single(SingleKind::BatchNorm), None, Published::Bytes),
    line(
        "batch norm-B",
        TableKernel::Single(SingleKind::BatchNormBackward),
        None,
        Published::Bytes,
    ),
    line("conv-F", TableKernel::Single(SingleKind::Conv2d), None, Published::None),
    line("bmm", TableKernel::Learned(Kind::Bmm), None, Published::Roofline),
    line("layer_norm", TableKernel::Learned(Kind::LayerNorm), None, Published::Roofline),
    line("softmax", TableKernel::Learned(Kind::Softmax), None, Published::Roofline),
    line("element_wise", TableKernel::Learned(Kind::ElementWise), None, Published::Roofline),
];

/// Highest rates that the training kernels reached, per nanosecond.
struct Reached {
    bytes: f64,
    flops: f64,
}

/// Computes the table of a device. `model` returns, for a kind of kernel, a model that has seen no
/// measurement of this device.
///
/// # Errors
/// Returns the error of `model` if it fails.
pub fn rows<E>(
    measured: &[SuiteMeasured],
    device: &'static HardwareSpec,
    model: impl Fn(Kind) -> Result<KernelModel, E>,
) -> Result<Vec<SuiteRow>, E> {
    let mut rows = Vec::new();
    for line in &LINES {
        let own: Vec<SuiteMeasured> =
            measured.iter().filter(|row| line.holds(&row.work, device)).copied().collect();
        if own.len() < ROWS_LEAST {
            continue;
        }
        let model = match line.kernel {
            TableKernel::Learned(kind) => Some(model(kind)?),
            TableKernel::Single(_) => None,
        };
        let mut judged = Judged { twenty: vec![Vec::new(); DRAWS as usize], ..Judged::default() };
        for fold in 0..FOLDS {
            let is_judged = |row: &&SuiteMeasured| fold_of(&row.work) == fold;
            let (tested, learned): (Vec<&SuiteMeasured>, Vec<&SuiteMeasured>) =
                own.iter().partition(is_judged);
            let learned: Vec<SuiteMeasured> = learned.into_iter().copied().collect();
            // Rates come from all kernels of the suite, because a single kernel may not reach the
            // peaks.
            let rates = find_rates(measured, fold, device);
            judged.published.extend(line.published_ns(&learned, device, &rates, &tested));
            match &model {
                Some(model) => evaluate_model(model, device, &learned, &tested, &mut judged),
                None => evaluate_formula(device, &learned, &tested, &mut judged),
            }
        }
        rows.push(judged.row(line, own.len()));
    }
    Ok(rows)
}

/// Pairs of a predicted time and a measured time, in nanoseconds.
type Pairs = Vec<(f64, f64)>;

/// Predictions of all folds, each made from the other folds.
#[derive(Default)]
struct Judged {
    published: Pairs,
    no_rows: Pairs,
    twenty: Vec<Pairs>,
    all: Pairs,
    inside: usize,
}

impl Judged {
    fn row(&self, line: &TableLine, shapes: usize) -> SuiteRow {
        let errors = |pairs: &Pairs| (!pairs.is_empty()).then(|| ErrorPair::from_pairs(pairs));
        let shots: Vec<ErrorPair> = self.twenty.iter().filter_map(errors).collect();
        let all = errors(&self.all);
        SuiteRow {
            kernel: line.label,
            shapes,
            paper: line.paper,
            published: errors(&self.published),
            no_rows: ErrorPair::from_pairs(&self.no_rows),
            twenty: ErrorPair::mean(&shots),
            all,
            covered_pct: 100.0 * self.inside as f64 / self.all.len().max(1) as f64,
            is_met: line.paper.zip(all).map(|(paper, all)| all.is_within(paper)),
        }
    }
}

impl TableLine {
    fn holds(&self, work: &SuiteWork, device: &HardwareSpec) -> bool {
        match (work, self.kernel) {
            (SuiteWork::Learned(work), TableKernel::Learned(kind)) => work.kind() == kind,
            (SuiteWork::Single(work), TableKernel::Single(kind)) => {
                work.kind() == kind && (!self.is_large || is_large(work, device))
            }
            _ => false,
        }
    }

    /// Predicts kernels with the paper's formula. Returns no pairs where the paper has no formula.
    fn published_ns(
        &self,
        learned: &[SuiteMeasured],
        device: &HardwareSpec,
        rates: &Reached,
        tested: &[&SuiteMeasured],
    ) -> Pairs {
        // Price lookups like the paper does, by the highest rate that any kernel reached on this
        // device.
        let here = HardwareSpec { dram_sustained: Some(1e9 * rates.bytes), ..device.clone() };
        let own = learned.iter().map(|row| bytes_moved(&row.work) / row.ns).fold(0.0, f64::max);
        let formula_ns = |work: &SuiteWork| -> Option<f64> {
            Some(match (self.published, work) {
                (Published::Bytes, _) if own > 0.0 => bytes_moved(work) / own,
                (Published::Roofline, SuiteWork::Learned(work)) => {
                    let (flops, bytes) = work.flops_and_bytes();
                    (flops / rates.flops).max(bytes / rates.bytes)
                }
                (Published::Plain, SuiteWork::Single(work)) => {
                    published_lookup::ns(work, &here, Cache::Ignored)
                }
                (Published::HitRate, SuiteWork::Single(work)) => {
                    published_lookup::ns(work, &here, Cache::Counted)
                }
                _ => return None,
            })
        };
        tested.iter().filter_map(|row| Some((formula_ns(&row.work)?, row.ns))).collect()
    }
}

fn is_large(work: &SingleWork, device: &HardwareSpec) -> bool {
    let tile = work.tile();
    4.0 * (work.sizes()[1] * tile.rows) as f64 * tile.dim as f64 > device.l2_bytes as f64
}

fn bytes_moved(work: &SuiteWork) -> f64 {
    match work {
        SuiteWork::Learned(work) => work.flops_and_bytes().1,
        SuiteWork::Single(work) => work.bytes(),
    }
}

/// Finds the highest rates over all measurements outside a fold. Uses the data-sheet rates if no
/// measurement qualifies.
fn find_rates(measured: &[SuiteMeasured], fold: u64, device: &HardwareSpec) -> Reached {
    let learned = || measured.iter().filter(|row| fold_of(&row.work) != fold);
    let is_over_memory = |row: &&SuiteMeasured| {
        let is_pass = match row.work {
            SuiteWork::Learned(work) => work.kind() == Kind::ElementWise,
            SuiteWork::Single(work) => work.kind() == SingleKind::Copy,
        };
        is_pass && bytes_moved(&row.work) > BEYOND_L2 * device.l2_bytes as f64
    };
    let flops = |row: &SuiteMeasured| match row.work {
        SuiteWork::Learned(work) if matches!(work.kind(), Kind::Linear | Kind::Bmm) => {
            Some(work.flops_and_bytes().0 / row.ns)
        }
        _ => None,
    };
    let bytes = learned().filter(is_over_memory).map(|row| bytes_moved(&row.work) / row.ns);
    let bytes = bytes.reduce(f64::max).unwrap_or(1e-9 * device.dram);
    let flops = learned().filter_map(flops).reduce(f64::max);
    Reached { bytes, flops: flops.unwrap_or(1e-9 * device.peak.f32) }
}

/// Draws the few measurements that calibrate a model.
fn draw_rows(learned: &[SuiteMeasured], draw: u64) -> Vec<SuiteMeasured> {
    let mut rows = learned.to_vec();
    // Sorting by a salted hash is a random draw that is the same on every machine.
    rows.sort_by_key(|row| (hash(&row.work, 1 + draw), row.work));
    rows.truncate(SHOTS);
    rows
}

/// Evaluates a model trained on other devices: uncalibrated, and calibrated by this device's rows.
fn evaluate_model(
    model: &KernelModel,
    device: &'static HardwareSpec,
    learned: &[SuiteMeasured],
    tested: &[&SuiteMeasured],
    judged: &mut Judged,
) {
    let work = |row: &SuiteMeasured| match row.work {
        SuiteWork::Learned(work) => Some(work),
        SuiteWork::Single(_) => None,
    };
    let adapted = |learned: &[SuiteMeasured]| {
        let row = |(place, row): (u32, &SuiteMeasured)| {
            let (latency_ns, timed) = (row.ns, Timed::Kernel);
            Some(Measured { work: work(row)?, device, latency_ns, timed, place })
        };
        let rows: Vec<Measured> = (0..).zip(learned).filter_map(row).collect();
        few_shot::calibrate(model.clone(), &rows).ok()
    };
    let tested: Vec<(Work, f64)> =
        tested.iter().filter_map(|row| Some((work(row)?, row.ns))).collect();
    let alone = tested.iter().map(|(work, ns)| (model.price(work, device).mean_ns, *ns));
    judged.no_rows.extend(alone);
    for (draw, pairs) in (0..).zip(&mut judged.twenty) {
        let Some(model) = adapted(&draw_rows(learned, draw)) else { continue };
        pairs.extend(
            tested.iter().map(|(work, ns)| (model.predict_latency(work, device).mean_ns, *ns)),
        );
    }
    let Some(model) = adapted(learned) else { return };
    for (work, ns) in &tested {
        let predicted = model.predict_latency(work, device);
        judged.all.push((predicted.mean_ns, *ns));
        judged.inside += usize::from(predicted.covers(*ns));
    }
}

/// Evaluates the formula of a kernel and a model fitted to measurements. The fitted model is a sum
/// of amounts of work times unit costs, with a residual correction.
fn evaluate_formula(
    device: &HardwareSpec,
    learned: &[SuiteMeasured],
    tested: &[&SuiteMeasured],
    judged: &mut Judged,
) {
    let single = |row: &SuiteMeasured| match row.work {
        SuiteWork::Single(work) => Some(work),
        SuiteWork::Learned(_) => None,
    };
    let asked = |row: &SuiteMeasured| Some((amounts(&single(row)?, device), row.ns));
    let fitted = |rows: &[SuiteMeasured]| {
        let works: Vec<(CpuWork, f64)> = rows.iter().filter_map(asked).collect();
        KindModel::learn(&works.iter().map(|(work, ns)| (work, *ns)).collect::<Vec<_>>())
    };
    let alone = tested.iter().filter_map(|row| Some((single(row)?.price(device).mean_ns, row.ns)));
    judged.no_rows.extend(alone);
    let tested: Vec<(CpuWork, f64)> = tested.iter().filter_map(|row| asked(row)).collect();
    for (draw, pairs) in (0..).zip(&mut judged.twenty) {
        let model = fitted(&draw_rows(learned, draw));
        pairs.extend(tested.iter().map(|(work, ns)| (model.price(work).mean_ns, *ns)));
    }
    let model = fitted(learned);
    for (work, ns) in &tested {
        let price = model.price(work);
        judged.all.push((price.mean_ns, *ns));
        judged.inside += usize::from((price.low_ns..=price.high_ns).contains(ns));
    }
}

/// Describes a kernel as amounts of work, whose unit costs are fitted.
fn amounts(work: &SingleWork, device: &HardwareSpec) -> CpuWork {
    let bytes = work.bytes();
    let past = (bytes - device.l2_bytes as f64).max(0.0);
    let sizes: Vec<f64> = work.sizes().iter().map(|size| *size as f64).collect();
    let mut amounts = vec![("call", 1.0)];
    if let &[batch, tables, _, dim, pooling] = &sizes[..] {
        let (dram, l2) = published_lookup::traffic(work, device);
        let ids = batch * tables * pooling;
        amounts.extend([("memory_bytes", dram), ("cache_bytes", l2), ("ids", ids)]);
        amounts.extend([("bags", batch * tables), ("longest_bag", pooling)]);
        if work.kind() == SingleKind::EmbeddingBackward {
            let rows = tables * work.tile().rows_used();
            amounts.extend([("gradient_bytes", 4.0 * ids * dim), ("row_bytes", 4.0 * rows * dim)]);
        }
    } else {
        amounts.extend([("bytes", bytes), ("bytes_past_l2", past)]);
        let rows: f64 = sizes.iter().rev().skip(1).product();
        amounts.push(("rows", rows));
        if work.kind() == SingleKind::Conv2d {
            amounts.push(("flops", work.flops()));
        }
    }
    // Padding may be 0.
    let sizes = sizes.iter().map(|size| size.max(0.5).ln() as f32).collect();
    CpuWork { kind: work.kind().name().to_owned(), amounts, sizes }
}
