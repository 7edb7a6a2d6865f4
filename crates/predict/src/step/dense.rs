//! Predicts the dense part of a step. Each operation is priced as the kernels that PyTorch runs for
//! it, and gradient reductions run beside the backward pass.

use kernel_model::formula_kernels::{MOVE_NS, MOVE_SHARE, MOVED};
use schema::CellType;
use schema::{GemmProduct, HardwareSpec, Op, Pass, Precision};
use serde::Serialize;

use super::Conditions;
use super::exchange::Peers;
use crate::program::from_trainer::ops;
use crate::workload::{DenseUpdates, Workload};
use kernel_model::Estimate;
use kernel_model::{Element, KernelModel, Kind, Price, Work, shipped};

/// Gap between consecutive kernels in nanoseconds, as in the public traces of V100 and 2080 Ti.
const GAP_NS: f64 = 1_000.0;
/// Assumed share of the 16-bit peak rate that large matrix products reach.
const HALF_SHARE: f64 = 0.6;
/// Lowest and highest factor on the time of products whose precision was not measured.
const UNMEASURED: (f64, f64) = (0.5, 2.0);
/// Bytes that an addition moves per element: two inputs and one output of 4 bytes.
const ADDED_BYTES: u64 = 12;

/// Evidence behind a price, ordered from most to least certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measured kernels of this device, within the measured sizes.
    Measured,
    /// Measured kernels of this device, outside the measured sizes or shorter than their launches.
    Extended,
    /// Measured kernels of other devices, without any of this device.
    OtherDevices,
    Formula,
}

/// The trained kernel models from which steps are priced.
#[derive(Clone, Debug)]
pub struct Models(Vec<(Kind, KernelModel)>);

impl Models {
    /// Loads the kernel models that are shipped with rowmill.
    ///
    /// # Errors
    /// [`kernel_model::Error::Model`] if the models were written by another version.
    pub fn shipped() -> Result<Self, kernel_model::Error> {
        Self(Vec::new()).with_shipped()
    }

    /// Loads the kernel models of the kinds that steps of configurations contain, by calling
    /// `model` for each kind.
    ///
    /// # Errors
    /// The first error that `model` returns.
    pub fn from_loader<E>(model: impl Fn(Kind) -> Result<KernelModel, E>) -> Result<Self, E> {
        let kinds = [Kind::ElementWise, Kind::Linear, Kind::Bmm].into_iter();
        kinds.map(|kind| Ok((kind, model(kind)?))).collect::<Result<_, _>>().map(Self)
    }

    /// Adds the shipped kernel models of all kinds that were not loaded.
    ///
    /// # Errors
    /// [`kernel_model::Error::Model`] if the models were written by another version.
    pub fn with_shipped(mut self) -> Result<Self, kernel_model::Error> {
        for kind in Kind::ALL {
            if !self.0.iter().any(|(known, _)| *known == kind) {
                self.0.push((kind, shipped::model(kind)?));
            }
        }
        Ok(self)
    }

    /// Returns the kernel model of a kind. Kinds that were not loaded get the first model.
    pub(super) fn model(&self, kind: Kind) -> &KernelModel {
        let own = self.0.iter().find(|(known, _)| *known == kind);
        &own.unwrap_or(&self.0[0]).1
    }
}

/// The predicted time of one operation, with the evidence for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpPrice {
    pub op: &'static str,
    pub shapes: Vec<Vec<usize>>,
    pub launches: u32,
    /// Time that the operation adds to the step.
    pub time: Estimate,
    /// The least certain evidence among the kernels of the operation.
    pub basis: Basis,
}

/// The priced dense part of a step on one rank.
#[derive(Clone, Debug)]
pub struct DensePart {
    pub ops: Vec<OpPrice>,
    /// Time from the first dense operation to the last update.
    pub time: Estimate,
    pub launches: u32,
}

/// Predicts the dense part of a step for the rank that has `samples` samples.
pub fn price(
    workload: Workload<'_>,
    samples: usize,
    conditions: Conditions<'_>,
    peers: &Peers,
) -> DensePart {
    let device = &conditions.topology.device;
    let mut part = DensePart { ops: Vec::new(), time: Estimate::default(), launches: 0 };
    // Each entry of `ready` is a number of gradient elements and the time at which they were
    // complete. `summed` is the end of the last all-reduce.
    let mut ready: Vec<(usize, Estimate)> = Vec::new();
    let (mut gradients, mut sent, mut summed) = (0, 0, Estimate::default());
    for op in ops::list_dense_ops(workload, samples, DenseUpdates::Apart) {
        if let Op::AllReduce { elements } = op {
            sent += elements;
            let start = ready.iter().find(|one| one.0 >= sent).map_or(part.time, |one| one.1);
            summed = summed.max(start).plus(peers.sum(4.0 * elements as f64));
            let time = summed.beyond(part.time);
            part.time = part.time.plus(time);
            let shapes = op.shapes();
            let (op, basis) = (op.name(), Basis::Formula);
            part.ops.push(OpPrice { op, shapes, launches: 1, time, basis });
            part.launches += 1;
            continue;
        }
        let priced = kernels(&op, conditions.models, device);
        part.time = part.time.plus(priced.time);
        part.launches += priced.launches;
        part.ops.push(priced);
        if let Op::Gemm { product: GemmProduct::BackwardWeight, m, n, .. } = op {
            gradients += m * n + m;
            ready.push((gradients, part.time));
        }
    }
    part
}

/// Sums the kernels of one operation.
struct Kernels<'a> {
    models: &'a Models,
    device: &'a HardwareSpec,
    launches: u32,
    time: Estimate,
    basis: Basis,
}

/// Predicts an operation as the kernels that PyTorch runs for it.
fn kernels(op: &Op, models: &Models, device: &HardwareSpec) -> OpPrice {
    let time = Estimate::default();
    let mut kernels = Kernels { models, device, launches: 0, time, basis: Basis::Measured };
    match *op {
        Op::Gemm { m, n, k, precision: Precision::F32, .. } => {
            kernels.learned(Work::new(Kind::Linear, &[m, n, k].map(|size| size as u64)));
        }
        Op::Gemm { m, n, k, .. } => kernels.half(op, [m, n, k]),
        Op::Interaction { batch_size, vectors, dim, pass } => {
            kernels.interaction([batch_size, vectors, dim].map(|size| size as u64), pass);
        }
        Op::Cross { elements, pass } => {
            // Forward runs two kernels: u + b, then the product with x₀ that is added to x.
            // Backward runs four: the products for x₀ and for u, a sum, and the sum for the bias.
            let count = if pass == Pass::Forward { 2 } else { 4 };
            (0..count).for_each(|_| kernels.added(ADDED_BYTES * elements as u64));
        }
        Op::Loss { batch_size } => {
            (0..3).for_each(|_| kernels.added(ADDED_BYTES * batch_size as u64));
        }
        Op::ReluBackward { .. } => kernels.added(op.work().bytes),
        // Only a CPU packs weights for its matrix products, so the bytes of packing are subtracted.
        Op::DenseUpdate { packed, .. } => kernels.added(op.work().bytes - 4 * packed as u64),
        _ => kernels.moved(op.work().bytes),
    }
    let Kernels { launches, time, basis, .. } = kernels;
    OpPrice { op: op.name(), shapes: op.shapes(), launches, time, basis }
}

impl Kernels<'_> {
    fn learned(&mut self, work: Result<Work, kernel_model::Error>) {
        // An operation of size zero launches no kernel.
        let Ok(work) = work else { return };
        let model = self.models.model(work.kind());
        let Price { mean_ns, low_ns, high_ns, domain } = model.price(&work, self.device);
        let basis = match domain {
            domain if domain.is_inside() => Basis::Measured,
            domain if domain.is_unseen_device => Basis::OtherDevices,
            _ => Basis::Extended,
        };
        self.launch(Estimate { mean_ns, low_ns, high_ns }, basis);
    }

    fn launch(&mut self, time: Estimate, basis: Basis) {
        self.launches += 1;
        self.time = self.time.plus(time).plus(Estimate::within(GAP_NS, (1.0, 2.0)));
        self.basis = self.basis.max(basis);
    }

    /// Adds an element-wise kernel, priced by the bytes it moves.
    fn added(&mut self, bytes: u64) {
        self.learned(Work::element_wise(Element::Add, bytes.div_ceil(ADDED_BYTES)));
    }

    /// Adds a copy, priced by the bytes it reads and writes.
    fn moved(&mut self, bytes: u64) {
        if bytes > 0 {
            let ns = MOVE_NS + 1e9 * bytes as f64 / (MOVE_SHARE * self.device.dram);
            self.launch(Estimate::within(ns, MOVED), Basis::Formula);
        }
    }

    /// Adds a matrix product of 16-bit values, priced by a roofline formula.
    fn half(&mut self, op: &Op, sizes: [usize; 3]) {
        if sizes.iter().product::<usize>() > 0 {
            let peak = self.device.peak.f16.unwrap_or(self.device.peak.f32);
            let work = op.work();
            let flops = work.flops as f64 / (HALF_SHARE * peak);
            let ns = MOVE_NS + 1e9 * flops.max(work.bytes as f64 / (MOVE_SHARE * self.device.dram));
            self.launch(Estimate::within(ns, UNMEASURED), Basis::Formula);
        }
    }

    fn interaction(&mut self, [samples, vectors, dim]: [u64; 3], pass: Pass) {
        let inputs = samples * vectors * dim;
        let (products, pairs) =
            (samples * vectors * vectors, samples * vectors * vectors.saturating_sub(1) / 2);
        match pass {
            Pass::Forward => {
                self.moved(8 * inputs);
                self.learned(Work::new(Kind::Bmm, &[samples, vectors, vectors, dim]));
                self.moved(8 * pairs);
            }
            Pass::Backward => {
                self.moved(4 * (products + pairs));
                for _ in 0..2 {
                    self.learned(Work::new(Kind::Bmm, &[samples, vectors, dim, vectors]));
                }
                self.added(ADDED_BYTES * inputs);
                self.moved(8 * inputs);
            }
        }
    }
}
