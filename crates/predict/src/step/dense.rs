//! Predicts the dense part of a step. Each operation is priced as the kernels that a framework runs
//! for it: PyTorch one by one, or a compiler that fuses element-wise operations.

use kernel_model::formula_kernels::moved;
use kernel_model::host_costs::HostCosts;
use schema::stage::Section;
use schema::topology::{HardwareError, ProductFormat};
use schema::{CellType, GemmProduct, HardwareSpec, Op, Pass, Stage, StepGraph};
use serde::Serialize;

use super::Conditions;
use super::exchange::Peers;
use super::timeline::StageTimeline;
use crate::program::from_trainer::dense::{self as trainer_dense, DenseWriter};
use crate::workload::{DenseUpdates, Workload};
use kernel_model::products::price_product;
use kernel_model::{Element, Estimate, KernelModel, Kind, Price, Work, roofline_ns, shipped};

/// Gap between consecutive kernels in nanoseconds, as in the public traces of V100 and 2080 Ti.
const GAP_NS: f64 = 1_000.0;
/// Lowest and highest factor on products of small matrices whose format was not measured.
const UNMEASURED: (f64, f64) = (0.5, 2.0);
/// Bytes that an addition moves per element: two inputs and one output of 4 bytes.
const ADDED_BYTES: u64 = 12;

/// The kernels that a framework runs for the dense operations of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "kebab-case")]
pub enum DenseKernels {
    /// One kernel after the other, as PyTorch runs a model that is not compiled.
    #[default]
    Eager,
    /// A compiler such as XLA or Inductor fuses neighboring element-wise operations into one
    /// kernel. Products and the dot interaction keep their kernels.
    Compiled,
    /// Compiled, and one kernel computes the whole dot interaction of the joined vectors.
    FusedInteraction,
}

impl DenseKernels {
    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Compiled => "compiled",
            Self::FusedInteraction => "fused-interaction",
        }
    }
}

/// The ranks that compute the bottom MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BottomMlp {
    /// Every rank computes it for its own samples.
    #[default]
    DataParallel,
    /// Rank 0 computes it for the samples of all ranks while others look up rows, and sends its
    /// output as it would send pooled vectors. NVIDIA's DLRM of TensorFlow 2 does this by default.
    FirstRank,
}

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
    /// The step's actions, with the times of its dense stages.
    pub timeline: StageTimeline,
    /// Time of the bottom MLP forward and backward, if rank 0 computes it for all ranks.
    pub bottom: [Estimate; 2],
    pub launches: u32,
}

/// Predicts the dense part of a step for the rank that has `samples` samples.
///
/// # Errors
/// [`HardwareError::Format`] if the device has no unit for the format of the products.
pub fn price(
    workload: Workload<'_>,
    samples: usize,
    conditions: Conditions<'_>,
    peers: &Peers,
) -> Result<DensePart, HardwareError> {
    conditions.topology.device.peak_rate(conditions.format)?;
    let graph = trainer_dense::graph(workload, conditions.schedule);
    let mut ops = Vec::new();
    let costs = DenseCosts { conditions, peers, graph: &graph };
    let mut stages = costs.price_stages(workload, samples, &mut ops);
    let mut bottom = [Estimate::default(); 2];
    if conditions.bottom_mlp == BottomMlp::FirstRank && peers.ranks() > 1 {
        let batch = workload.config.training.batch_size;
        let is_bottom = |stage: Stage| match stage {
            Stage::BottomMlp => Some(0),
            Stage::DenseBackward(bucket) => {
                let section = graph.buckets[usize::from(bucket)].section;
                (section == Section::Bottom).then_some(1)
            }
            _ => None,
        };
        for (stage, time) in costs.price_stages(workload, batch, &mut Vec::new()) {
            if let Some(pass) = is_bottom(stage) {
                bottom[pass] = bottom[pass].plus(time);
            }
        }
        for (stage, time) in &mut stages {
            if is_bottom(*stage).is_some() {
                *time = Estimate::default();
            }
        }
    }
    let time_of = |stage: Stage| {
        let known = stages.iter().find(|known| known.0 == stage);
        known.map_or_else(Estimate::default, |known| known.1)
    };
    let timeline = StageTimeline::new(&graph, peers.latency(), time_of);
    let launches = ops.iter().map(|op| op.launches).sum();
    Ok(DensePart { ops, timeline, bottom, launches })
}

/// The conditions, ranks and stage graph from which dense stages are priced.
#[derive(Clone, Copy)]
struct DenseCosts<'a> {
    conditions: Conditions<'a>,
    peers: &'a Peers,
    graph: &'a StepGraph,
}

impl DenseCosts<'_> {
    /// Prices the operations of each dense stage, and appends them to `ops`.
    fn price_stages(
        self,
        workload: Workload<'_>,
        samples: usize,
        ops: &mut Vec<OpPrice>,
    ) -> Vec<(Stage, Estimate)> {
        let mut writer = DenseWriter::new(workload, samples, DenseUpdates::Apart);
        let mut stages = Vec::new();
        for action in &self.graph.actions {
            let has_relu = match action.stage {
                Stage::BottomMlp | Stage::TopMlp => true,
                Stage::DenseBackward(bucket) => {
                    self.graph.buckets[usize::from(bucket)].section != Section::Interaction
                }
                _ => false,
            };
            let mut time = Estimate::default();
            for op in writer.list_stage(self.graph, action) {
                let mut kernels = Kernels::new(self.conditions, self.peers);
                kernels.add(&op);
                if has_relu {
                    kernels.add_activation(&op);
                }
                let priced = kernels.into_price(&op);
                time = time.plus(priced.time);
                ops.push(priced);
            }
            stages.push((action.stage, time));
        }
        // An exchange that is started and finished has its operations in the second action.
        stages.retain(|stage| stage.1.mean_ns > 0.0);
        stages
    }
}

/// Sums the kernels of one operation.
struct Kernels<'a> {
    models: &'a Models,
    device: &'a HardwareSpec,
    peers: &'a Peers,
    host: Option<&'a HostCosts>,
    format: ProductFormat,
    kind: DenseKernels,
    launches: u32,
    time: Estimate,
    basis: Basis,
}

impl<'a> Kernels<'a> {
    fn new(conditions: Conditions<'a>, peers: &'a Peers) -> Self {
        Self {
            peers,
            host: conditions.host,
            models: conditions.models,
            device: &conditions.topology.device,
            format: conditions.format,
            kind: conditions.kernels,
            launches: 0,
            time: Estimate::default(),
            basis: Basis::Measured,
        }
    }

    fn into_price(self, op: &Op) -> OpPrice {
        let Self { launches, time, basis, .. } = self;
        OpPrice { op: op.name(), shapes: op.shapes(), launches, time, basis }
    }

    /// Adds the kernels of an operation.
    fn add(&mut self, op: &Op) {
        match (*op, self.host) {
            (Op::AllReduce { elements }, host) => {
                let bytes = (self.format.bytes() * elements) as f64;
                let time = self.peers.sum(bytes);
                match host {
                    Some(_) => self.time = self.time.plus(time),
                    None => self.launch(time, Basis::Formula),
                }
            }
            (_, Some(host)) => self.time = self.time.plus(host.price_op(op)),
            (_, None) => self.add_kernels(op),
        }
    }

    /// Adds the kernels of a GPU.
    fn add_kernels(&mut self, op: &Op) {
        match *op {
            Op::Gemm { m, n, k, .. } => self.product([m, n, k].map(|size| size as u64)),
            Op::Interaction { batch_size, vectors, dim, pass } => {
                self.interaction([batch_size, vectors, dim].map(|size| size as u64), pass);
            }
            Op::Cross { elements, pass } => self.cross(elements, pass),
            Op::Loss { batch_size } => {
                (0..3).for_each(|_| self.added(ADDED_BYTES * batch_size as u64));
            }
            // Only a CPU packs weights for its matrix products, so the bytes of packing are
            // subtracted.
            Op::DenseUpdate { packed, .. } => self.added(op.work().bytes - 4 * packed as u64),
            // These operations move activations, which have the format of the products.
            _ => self.moved(op.work().bytes / 4 * self.format.bytes() as u64),
        }
    }

    /// Adds the element-wise kernels behind a layer with bias and ReLU. Forward, one kernel reads
    /// and writes the output. Backward, one kernel masks the gradient, and another sums it over
    /// samples for the bias unless a compiler fuses both. The logit has no ReLU.
    fn add_activation(&mut self, op: &Op) {
        // A CPU computes both in the product.
        let (Op::Gemm { product, m, n, k, .. }, None) = (*op, self.host) else { return };
        let value = self.format.bytes();
        match product {
            GemmProduct::Forward if n > 1 => self.added((2 * m * n * value) as u64),
            GemmProduct::BackwardWeight if m > 1 => {
                self.added((3 * m * k * value) as u64);
                if self.kind == DenseKernels::Eager {
                    self.added((m * k * value) as u64);
                }
            }
            _ => {}
        }
    }

    /// Adds the element-wise kernels of a cross layer. Forward: u + b, then the product with x₀
    /// that is added to x. Backward: the products for x₀ and for u, a sum, and the sum for the
    /// bias. A compiler fuses those of a pass, which then read each input once.
    fn cross(&mut self, elements: usize, pass: Pass) {
        let [eager, fused] = match pass {
            Pass::Forward => [6, 4],
            Pass::Backward => [12, 6],
        };
        let bytes = |passes: usize| (passes * elements * self.format.bytes()) as u64;
        if self.kind == DenseKernels::Eager {
            let one = bytes(3);
            (0..eager / 3).for_each(|_| self.added(one));
        } else {
            self.added(bytes(fused));
        }
    }

    /// Adds a matrix product, from trained models for f32 and from tables of tensor cores for other
    /// formats.
    fn product(&mut self, sizes: [u64; 3]) {
        if self.format == ProductFormat::F32 {
            return self.learned(Work::new(Kind::Linear, &sizes));
        }
        // The device supports the format, because `StepPricer::new` refuses other formats.
        let Ok(price) = price_product(sizes, self.format, self.device) else { return };
        // An empty product launches no kernel.
        if sizes.iter().all(|size| *size > 0) {
            let basis = if price.is_measured { Basis::Measured } else { Basis::OtherDevices };
            self.launch(price.time, basis);
        }
    }

    /// Adds a batch of small matrix products. Formats other than f32 keep the share of the roofline
    /// that the device's f32 products of these sizes reach: such products wait for memory.
    fn batched_product(&mut self, sizes: [u64; 4]) {
        let Ok(work) = Work::new(Kind::Bmm, &sizes) else { return };
        if self.format == ProductFormat::F32 {
            return self.learned(Ok(work));
        }
        let price = self.models.model(Kind::Bmm).price(&work, self.device);
        let (flops, bytes) = work.flops_and_bytes();
        let peak = self.device.peak.rate(self.format).unwrap_or(self.device.peak.f32);
        let bytes = bytes / 4.0 * self.format.bytes() as f64;
        let limit = 1e9 * (flops / peak).max(bytes / self.device.dram);
        let ratio = limit / roofline_ns(&work, self.device).max(1.0);
        self.launch(Estimate::within(price.mean_ns * ratio, UNMEASURED), Basis::Formula);
    }

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
            self.launch(moved(bytes as f64, self.device), Basis::Formula);
        }
    }

    /// Adds the dot interaction of vectors that are joined first, because lookups and the bottom
    /// MLP write them apart.
    fn interaction(&mut self, [samples, vectors, dim]: [u64; 3], pass: Pass) {
        let value = self.format.bytes() as u64;
        let inputs = value * samples * vectors * dim;
        let products = value * samples * vectors * vectors;
        let pairs = value * samples * vectors * vectors.saturating_sub(1) / 2;
        let is_fused = self.kind == DenseKernels::FusedInteraction;
        match pass {
            Pass::Forward => {
                self.moved(2 * inputs);
                if is_fused {
                    return self.moved(inputs + pairs);
                }
                self.batched_product([samples, vectors, vectors, dim]);
                self.moved(2 * pairs);
            }
            Pass::Backward => {
                if is_fused {
                    self.moved(2 * inputs + pairs);
                } else {
                    self.moved(products + pairs);
                    for _ in 0..2 {
                        self.batched_product([samples, vectors, dim, vectors]);
                    }
                    self.added(3 * inputs);
                }
                self.moved(2 * inputs);
            }
        }
    }
}
