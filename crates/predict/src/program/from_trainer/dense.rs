//! The dense operations of a step: the forward and backward pass of each layer, and the sums and
//! updates of each bucket of parameters.

use std::ops::Range;

use schema::stage::{ActionPart, DenseBucket, Section, StageAction};
use schema::{
    GemmProduct, Granularity, Interaction, Op, Optimizer, Pass, Precision, Schedule, Stage,
    StepGraph,
};

use crate::workload::{DenseUpdates, Workload};

/// Number of elements in a panel of the layout that matrix products use.
const PANEL: usize = 32;
/// The trainer's default bucket size.
const BUCKET_BYTES: usize = 25 << 20;

/// A dense parameter of the model, with its shape.
#[derive(Clone, Copy)]
pub(crate) enum Parameter {
    /// A weight matrix of shape `[n, k]`.
    Weight {
        n: usize,
        k: usize,
    },
    Vector {
        elements: usize,
    },
}

impl Parameter {
    /// Returns the numbers of rows and columns. A vector is one row.
    pub fn shape(self) -> [usize; 2] {
        match self {
            Self::Weight { n, k } => [n, k],
            Self::Vector { elements } => [1, elements],
        }
    }
}

/// Lists the dense operations of one rank's step, stage by stage.
pub struct DenseWriter<'a> {
    workload: Workload<'a>,
    updates: DenseUpdates,
    batch: usize,
    ops: Vec<Op>,
    /// Parameters in the order of the model.
    parameters: Vec<Parameter>,
    /// Layers of the bottom MLP, and those of the top MLP before the logit.
    bottom: Vec<(usize, usize)>,
    top: Vec<(usize, usize)>,
}

/// Returns the actions of a step under a schedule.
pub fn graph(workload: Workload<'_>, schedule: Schedule) -> StepGraph {
    StepGraph::new(workload.config, BUCKET_BYTES, schedule, workload.plan)
}

/// Returns the input and output width of each layer of an MLP.
fn layers(input: usize, widths: &[usize]) -> Vec<(usize, usize)> {
    let inputs = std::iter::once(input).chain(widths.iter().copied());
    inputs.zip(widths.iter().copied()).collect()
}

/// Lists the weight and bias of each layer in the order of the model: bottom MLP, cross layers, top
/// MLP, logit, wide term.
pub(crate) fn parameters(workload: Workload<'_>) -> Vec<Parameter> {
    let model = &workload.config.model;
    let mut found = Vec::new();
    let linear = |found: &mut Vec<Parameter>, layers: Vec<(usize, usize)>| {
        for (k, n) in layers {
            found.extend([Parameter::Weight { n, k }, Parameter::Vector { elements: n }]);
        }
    };
    linear(&mut found, layers(model.dense_features, &model.bottom));
    let width = model.interaction_width();
    if let Interaction::DcnV2 { layers, rank } = model.interaction {
        for _ in 0..layers {
            found.extend([
                Parameter::Weight { n: rank, k: width },
                Parameter::Weight { n: width, k: rank },
                Parameter::Vector { elements: width },
            ]);
        }
    }
    let hidden = &model.top[..model.top.len().saturating_sub(1)];
    linear(&mut found, layers(width, hidden));
    let last = hidden.last().copied().unwrap_or(width);
    found.extend([Parameter::Vector { elements: last }, Parameter::Vector { elements: 1 }]);
    if model.wide {
        found.push(Parameter::Vector { elements: width });
    }
    found
}

/// Consecutive layers of an MLP, each as its numbers of inputs and outputs.
type Layers<'a> = &'a [(usize, usize)];

impl<'a> DenseWriter<'a> {
    /// Begins a step in which the rank has `batch` samples.
    pub fn new(workload: Workload<'a>, batch: usize, updates: DenseUpdates) -> Self {
        let model = &workload.config.model;
        let hidden = &model.top[..model.top.len().saturating_sub(1)];
        Self {
            workload,
            updates,
            batch,
            ops: Vec::new(),
            parameters: parameters(workload),
            bottom: layers(model.dense_features, &model.bottom),
            top: layers(model.interaction_width(), hidden),
        }
    }

    /// Lists the operations of an action. Stages of embeddings have none here, and an exchange has
    /// them where it is finished.
    pub fn list_stage(&mut self, graph: &StepGraph, action: &StageAction) -> Vec<Op> {
        let bucket = |number: u16| &graph.buckets[usize::from(number)];
        match action.stage {
            _ if action.part == ActionPart::Start => {}
            Stage::Loss => self.ops.push(Op::Loss { batch_size: self.batch }),
            Stage::AllReduce(number) => self.all_reduce(bucket(number)),
            Stage::DenseUpdate(number) => self.update(bucket(number)),
            _ if self.batch == 0 => {}
            Stage::Copy => {
                let elements = self.batch * self.workload.config.model.dense_features;
                self.ops.push(Op::Pack { elements });
            }
            Stage::BottomMlp => self.mlp_forward(&self.bottom.clone()),
            Stage::Interaction => self.interaction_forward(),
            Stage::TopMlp => {
                self.mlp_forward(&self.top.clone());
                self.logit(GemmProduct::Forward, self.batch, 1, self.last());
                if let Some(width) = self.wide() {
                    self.logit(GemmProduct::Forward, self.batch, 1, width);
                }
            }
            Stage::DenseBackward(number) => self.backward(bucket(number)),
            Stage::InteractionBackward => self.interaction_backward(),
            _ => {}
        }
        std::mem::take(&mut self.ops)
    }

    /// Returns the number of inputs of the logit.
    fn last(&self) -> usize {
        let width = self.workload.config.model.interaction_width();
        self.top.last().map_or(width, |(_, outputs)| *outputs)
    }

    /// Returns the number of inputs of the wide term, if there is one.
    fn wide(&self) -> Option<usize> {
        let model = &self.workload.config.model;
        model.wide.then(|| model.wide_width())
    }

    fn has_peers(&self) -> bool {
        self.workload.ranks() > 1
    }

    /// Returns the optimizer that updates the dense parameters.
    fn rule(&self) -> Optimizer {
        self.workload.config.optimizer.dense.kind
    }

    fn precision(&self) -> Precision {
        self.workload.config.training.precision
    }

    /// Returns the number of elements of a matrix with one row per sample, padded to whole panels.
    fn in_panels(&self, columns: usize) -> usize {
        self.batch * columns.next_multiple_of(PANEL)
    }

    fn gemm(&mut self, product: GemmProduct, m: usize, n: usize, k: usize) {
        self.ops.push(Op::Gemm { product, precision: self.precision(), m, n, k });
    }

    fn logit(&mut self, product: GemmProduct, m: usize, n: usize, k: usize) {
        self.ops.push(Op::Gemm { product, precision: Precision::F32, m, n, k });
    }

    /// Adds the rounding of inputs if the trainer's matrix products use lower precision. On a GPU
    /// of another framework, the kernels before a product round.
    fn round(&mut self, columns: usize) {
        let is_trainer = self.updates == DenseUpdates::WithinProducts;
        if is_trainer && self.precision() != Precision::F32 {
            self.ops.push(Op::Pack { elements: self.in_panels(columns) });
        }
    }

    fn mlp_forward(&mut self, layers: Layers<'_>) {
        if let Some((input, _)) = layers.first() {
            self.round(*input);
        }
        for (k, n) in layers {
            self.gemm(GemmProduct::Forward, self.batch, *n, *k);
        }
    }

    fn interaction_forward(&mut self) {
        let model = &self.workload.config.model;
        let width = model.interaction_width();
        if let Interaction::Dot { .. } = model.interaction {
            return self.dot(Pass::Forward);
        }
        let elements = self.in_panels(width);
        self.ops.push(Op::Concat { elements, pass: Pass::Forward });
        if let Interaction::DcnV2 { layers, rank } = model.interaction {
            for _ in 0..layers {
                self.round(width);
                self.gemm(GemmProduct::Forward, self.batch, rank, width);
                self.gemm(GemmProduct::Forward, self.batch, width, rank);
                self.ops.push(Op::Cross { elements, pass: Pass::Forward });
            }
        }
    }

    fn dot(&mut self, pass: Pass) {
        let model = &self.workload.config.model;
        let (vectors, dim) = (model.vectors(), model.dot_dim());
        self.ops.push(Op::Interaction { batch_size: self.batch, vectors, dim, pass });
    }

    fn backward(&mut self, bucket: &DenseBucket) {
        let (layers, width) = (&bucket.layers, self.workload.config.model.interaction_width());
        match (bucket.section, self.workload.config.model.interaction) {
            (Section::Top, _) => {
                if layers.end > self.top.len() {
                    let last = self.last();
                    self.logit(GemmProduct::BackwardWeight, 1, last, self.batch);
                    self.logit(GemmProduct::BackwardInput, self.batch, last, 1);
                    if let Some(width) = self.wide() {
                        self.logit(GemmProduct::BackwardWeight, 1, width, self.batch);
                        self.logit(GemmProduct::BackwardInput, self.batch, width, 1);
                    }
                }
                self.mlp_backward(&self.top.clone(), layers.clone(), true);
            }
            (Section::Bottom, _) => {
                self.mlp_backward(&self.bottom.clone(), layers.clone(), false);
            }
            (Section::Interaction, Interaction::DcnV2 { rank, .. }) => {
                let elements = self.in_panels(width);
                for _ in layers.clone() {
                    self.ops.push(Op::Cross { elements, pass: Pass::Backward });
                    self.round(width);
                    self.linear_backward(rank, width, true);
                    self.linear_backward(width, rank, true);
                }
            }
            (Section::Interaction, _) => {}
        }
    }

    fn mlp_backward(&mut self, layers: Layers<'_>, bucket: Range<usize>, of_input: bool) {
        let bucket = bucket.start..bucket.end.min(layers.len());
        let has_last = !bucket.is_empty() && bucket.end == layers.len();
        if let Some((_, output)) = layers.last().filter(|_| has_last) {
            self.round(*output);
        }
        for at in bucket.rev() {
            let (inputs, outputs) = layers[at];
            self.linear_backward(inputs, outputs, of_input || at > 0);
        }
    }

    fn interaction_backward(&mut self) {
        let model = &self.workload.config.model;
        if let Interaction::Dot { .. } = model.interaction {
            self.dot(Pass::Backward);
        } else {
            let elements = self.in_panels(model.interaction_width());
            self.ops.push(Op::Concat { elements, pass: Pass::Backward });
        }
        // Apart from the trainer, each layer has a mask of its own.
        if !self.bottom.is_empty() && self.updates == DenseUpdates::WithinProducts {
            let elements = self.in_panels(self.workload.config.model.dense_width());
            self.ops.push(Op::ReluBackward { elements });
        }
    }

    /// Adds the gradients of a layer.
    fn linear_backward(&mut self, inputs: usize, outputs: usize, of_input: bool) {
        if of_input {
            self.gemm(GemmProduct::BackwardInput, self.batch, inputs, outputs);
        }
        self.gemm(GemmProduct::BackwardWeight, outputs, inputs, self.batch);
    }

    /// Adds the updates of a bucket, from its last parameter to its first. On one rank, an
    /// elementwise optimizer is fused into the product that computes the gradient of a weight, so
    /// the weight needs no separate update.
    fn update(&mut self, bucket: &DenseBucket) {
        let optimizer = self.rule();
        let is_fused = optimizer.granularity() == Granularity::Element
            && self.updates == DenseUpdates::WithinProducts
            && !self.has_peers();
        for parameter in self.parameters[bucket.parameters.clone()].iter().rev() {
            let (elements, packed) = match *parameter {
                Parameter::Weight { .. } if is_fused => continue,
                Parameter::Weight { n, k } => (n * k, n * k),
                Parameter::Vector { elements } => (elements, 0),
            };
            self.ops.push(Op::DenseUpdate { elements, packed, optimizer });
        }
    }

    /// Adds the sum of a bucket's gradients, which are padded to whole panels.
    fn all_reduce(&mut self, bucket: &DenseBucket) {
        let gradient = |parameter: &Parameter| match *parameter {
            Parameter::Weight { n, k } => n * k.next_multiple_of(PANEL),
            Parameter::Vector { elements } => elements,
        };
        let elements = self.parameters[bucket.parameters.clone()].iter().map(gradient).sum();
        self.ops.push(Op::AllReduce { elements });
    }
}
