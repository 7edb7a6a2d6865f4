//! The dense operations of a step: the forward and backward pass of each layer, and the parameter
//! updates in the order in which gradients are completed.

use schema::{GemmProduct, Granularity, Interaction, Op, Optimizer, Pass, Precision};

use crate::workload::{DenseUpdates, Workload};

/// Number of elements in a panel of the layout that matrix products use.
const PANEL: usize = 32;
/// Smallest number of gradient elements that ranks reduce in one call, which is the trainer's
/// default bucket size.
const BUCKET: usize = (25 << 20) / size_of::<f32>();

/// A dense parameter of the model, with its shape.
#[derive(Clone, Copy)]
enum Parameter {
    /// A weight matrix of shape `[n, k]`.
    Weight {
        n: usize,
        k: usize,
    },
    Vector {
        elements: usize,
    },
}

/// Collects the dense operations of one rank's step.
struct DenseWriter<'a> {
    workload: Workload<'a>,
    updates: DenseUpdates,
    batch: usize,
    ops: Vec<Op>,
    /// Parameters that are not yet updated or reduced. The last one is next, because gradients are
    /// completed in reverse order.
    left: Vec<Parameter>,
    /// Number of elements in the gradient bucket that is being filled, and the updates that wait
    /// for its reduction.
    bucket: (usize, Vec<Op>),
    /// Reductions and updates that run after the backward pass.
    sums: Vec<Op>,
}

/// Lists the dense operations of a step in which one rank has `batch` samples.
pub fn list_ops(workload: Workload<'_>, batch: usize, updates: DenseUpdates) -> Vec<Op> {
    let model = &workload.config.model;
    let (ops, bucket, sums) = (Vec::new(), (0, Vec::new()), Vec::new());
    let left = parameters(workload);
    let mut writer = DenseWriter { workload, updates, batch, ops, left, bucket, sums };
    let bottom = layers(model.dense_features, &model.bottom);
    let hidden = &model.top[..model.top.len().saturating_sub(1)];
    let top = layers(model.interaction_width(), hidden);
    let last = hidden.last().copied().unwrap_or(model.interaction_width());
    if batch > 0 {
        writer.forward(&bottom, &top, last);
    }
    writer.ops.push(Op::Loss { batch_size: batch });
    if batch > 0 {
        writer.backward(&bottom, &top, last);
    }
    writer.update_all_but(0);
    writer.close_bucket();
    writer.ops.append(&mut writer.sums);
    writer.ops
}

/// Returns the input and output width of each layer of an MLP.
fn layers(input: usize, widths: &[usize]) -> Vec<(usize, usize)> {
    let inputs = std::iter::once(input).chain(widths.iter().copied());
    inputs.zip(widths.iter().copied()).collect()
}

/// Lists the weight and bias of each layer in the order of the model: bottom MLP, cross layers, top
/// MLP, logit.
fn parameters(workload: Workload<'_>) -> Vec<Parameter> {
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
    found
}

/// Consecutive layers of an MLP, each as its numbers of inputs and outputs.
type Layers<'a> = &'a [(usize, usize)];

impl DenseWriter<'_> {
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

    /// Adds the rounding of inputs if the matrix products use lower precision.
    fn round(&mut self, columns: usize) {
        if self.precision() != Precision::F32 {
            self.ops.push(Op::Pack { elements: self.in_panels(columns) });
        }
    }

    fn forward(&mut self, bottom: Layers<'_>, top: Layers<'_>, last: usize) {
        let features = self.workload.config.model.dense_features;
        self.ops.push(Op::Pack { elements: self.batch * features });
        self.mlp_forward(bottom);
        self.interaction_forward();
        self.mlp_forward(top);
        self.logit(GemmProduct::Forward, self.batch, 1, last);
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

    fn backward(&mut self, bottom: Layers<'_>, top: Layers<'_>, last: usize) {
        self.logit(GemmProduct::BackwardWeight, 1, last, self.batch);
        self.logit(GemmProduct::BackwardInput, self.batch, last, 1);
        self.mlp_backward(top, true);
        self.interaction_backward();
        if !bottom.is_empty() {
            let elements = self.in_panels(self.workload.config.model.dense_width());
            self.ops.push(Op::ReluBackward { elements });
        }
        self.mlp_backward(bottom, false);
    }

    fn mlp_backward(&mut self, layers: Layers<'_>, of_input: bool) {
        if let Some((_, output)) = layers.last() {
            self.round(*output);
        }
        for (at, (inputs, outputs)) in layers.iter().enumerate().rev() {
            self.linear_backward(*inputs, *outputs, of_input || at > 0);
        }
    }

    fn interaction_backward(&mut self) {
        let model = &self.workload.config.model;
        let width = model.interaction_width();
        if let Interaction::Dot { .. } = model.interaction {
            return self.dot(Pass::Backward);
        }
        let elements = self.in_panels(width);
        if let Interaction::DcnV2 { layers, rank } = model.interaction {
            for _ in 0..layers {
                self.ops.push(Op::Cross { elements, pass: Pass::Backward });
                self.round(width);
                self.linear_backward(rank, width, true);
                self.linear_backward(width, rank, true);
            }
        }
        self.ops.push(Op::Concat { elements, pass: Pass::Backward });
    }

    /// Adds the gradients of a layer. Then adds the updates that are possible after it, of the
    /// layer's weight and all later parameters.
    fn linear_backward(&mut self, inputs: usize, outputs: usize, of_input: bool) {
        if of_input {
            self.gemm(GemmProduct::BackwardInput, self.batch, inputs, outputs);
        }
        self.gemm(GemmProduct::BackwardWeight, outputs, inputs, self.batch);
        let weight = Parameter::Weight { n: outputs, k: inputs };
        let is_it = |one: &Parameter| match (one, weight) {
            (Parameter::Weight { n, k }, Parameter::Weight { n: other, k: inner }) => {
                (*n, *k) == (other, inner)
            }
            _ => false,
        };
        let number = self.left.iter().rposition(is_it).unwrap_or(0);
        // On one rank, an elementwise optimizer is fused into the product that computes the
        // weight's gradient, so the weight needs no separate update.
        let is_fused = self.rule().granularity() == Granularity::Element;
        let within = self.updates == DenseUpdates::WithinProducts;
        if !self.has_peers() && is_fused && within {
            self.update_all_but(number + 1);
            self.left.truncate(number);
        } else {
            self.update_all_but(number);
        }
    }

    /// Updates or reduces the parameters from number `first` on, in reverse order.
    fn update_all_but(&mut self, first: usize) {
        while self.left.len() > first {
            if let Some(parameter) = self.left.pop() {
                self.update(parameter);
            }
        }
    }

    fn update(&mut self, parameter: Parameter) {
        let optimizer = self.rule();
        let (gradient, elements, packed) = match parameter {
            Parameter::Weight { n, k } => (n * k.next_multiple_of(PANEL), n * k, n * k),
            Parameter::Vector { elements } => (elements, elements, 0),
        };
        let update = Op::DenseUpdate { elements, packed, optimizer };
        if !self.has_peers() {
            return self.ops.push(update);
        }
        self.bucket.0 += gradient;
        self.bucket.1.push(update);
        if self.bucket.0 >= BUCKET {
            self.close_bucket();
        }
    }

    fn close_bucket(&mut self) {
        let (elements, updates) = std::mem::take(&mut self.bucket);
        if !updates.is_empty() {
            self.sums.push(Op::AllReduce { elements });
            self.sums.extend(updates);
        }
    }
}
