//! Estimates the memory of each rank of a step on a GPU, by purpose. Weights and optimizer states
//! are exact. The memory of PyTorch and the driver is assumed.
//!
//! `train::memory` estimates the memory of rowmill's own trainer, from the code that allocates it.

use schema::Interaction;
use schema::topology::ProductFormat;
use serde::Serialize;

use crate::program::from_trainer::dense::{Parameter, parameters};
use crate::workload::Workload;
use kernel_model::rank_load::RankLoad;

/// Assumed size of the driver context, including PyTorch's kernels.
const CONTEXT: u64 = 500 << 20;
/// Assumed size of the buffers that collectives use.
const COLLECTIVES: u64 = 200 << 20;
/// Assumed size of the workspace of matrix products.
const PRODUCTS: u64 = 32 << 20;
/// Assumed share of temporary memory that the allocator keeps free.
const FRAGMENTS: f64 = 0.1;
/// Bytes per id while ids are sorted by row together with their positions, in two buffers.
const SORTED: f64 = 32.0;
/// Number of batches on the device at once, because the next batch is copied during a step.
const BATCHES: f64 = 2.0;
/// Upper bound of the search for the largest batch size.
const MOST_SAMPLES: usize = 1 << 30;

/// Memory of one rank in bytes, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Exact size of the weights of the rank's tiles.
    pub table_weights: u64,
    /// Exact size of the optimizer states of the rank's tiles.
    pub table_states: u64,
    /// Dense weights, gradients and optimizer states, and gradient buckets if there are other
    /// ranks.
    pub dense_parameters: u64,
    /// Layer outputs that are kept for the backward pass, and pooled vectors.
    pub activations: u64,
    /// Activation gradients that exist at the same time during the backward pass.
    pub gradients: u64,
    /// Ids and offsets of the batches on the device.
    pub ids: u64,
    /// Pooled vectors and gradients in transit between ranks.
    pub exchange: u64,
    /// Temporary memory for sorting ids and for matrix products.
    pub workspace: u64,
    /// Assumed memory of the driver and of collectives, and overhead of the allocator.
    pub reserve: u64,
}

impl Memory {
    /// Returns the sum of all parts, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.parts().iter().fold(0, |sum, part| sum.saturating_add(part.1))
    }

    /// Returns the name and the bytes of each part.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, u64); 9] {
        [
            ("table_weights", self.table_weights),
            ("table_states", self.table_states),
            ("dense_parameters", self.dense_parameters),
            ("activations", self.activations),
            ("gradients", self.gradients),
            ("ids", self.ids),
            ("exchange", self.exchange),
            ("workspace", self.workspace),
            ("reserve", self.reserve),
        ]
    }

    /// Returns the name and the bytes of the largest part.
    #[must_use]
    pub fn largest(&self) -> (&'static str, u64) {
        self.parts().into_iter().max_by_key(|part| part.1).unwrap_or(("none", 0))
    }
}

/// Terms of a rank's memory that do not depend on its tiles.
#[derive(Clone, Copy, Debug)]
pub struct MemoryTerms {
    ranks: usize,
    /// Number of dense parameters, followed by the number of values of their optimizer states.
    parameters: u64,
    states: u64,
    /// Values per sample that are kept for the backward pass, followed by activation gradients that
    /// exist at the same time.
    activation_columns: f64,
    gradient_columns: f64,
    /// Bytes of an activation, of its gradient, and of a pooled value in messages.
    value_bytes: f64,
    /// Ids per sample over all features, followed by bags per sample.
    ids: f64,
    bags: f64,
}

impl MemoryTerms {
    /// Derives the terms from the model's widths, the features and the number of ranks. Activations
    /// have the format of the products.
    pub fn new(workload: Workload<'_>, format: ProductFormat) -> Self {
        let (parameters, states) = dense(workload);
        let model = &workload.config.model;
        let widths = model.bottom.iter().chain(&model.top);
        let mut largest: Vec<usize> = widths.clone().copied().collect();
        largest.sort_unstable_by(|a, b| b.cmp(a));
        let of_layers: usize = widths.sum();
        let width = model.interaction_width();
        let joined = match model.interaction {
            Interaction::Dot { .. } => {
                model.vectors() * (model.dot_dim() + model.vectors()) + width
            }
            Interaction::Cat => width,
            Interaction::DcnV2 { layers, rank } => width + layers * (2 * width + rank),
        };
        let kept = model.dense_features + of_layers + model.pooled_width() + joined;
        let cross = if matches!(model.interaction, Interaction::DcnV2 { .. }) { 3 } else { 1 };
        let alive = model.pooled_width() + cross * width + largest.iter().take(2).sum::<usize>();
        Self {
            ranks: workload.ranks(),
            parameters,
            states,
            activation_columns: kept as f64,
            gradient_columns: alive as f64,
            value_bytes: format.bytes() as f64,
            ids: workload.features.iter().map(|stats| stats.ids_per_bag).sum(),
            bags: workload.features.len() as f64,
        }
    }

    /// Computes the memory of a rank that has `samples` of the `batch` samples. `load` describes
    /// the rank's tiles for a batch of `described` samples.
    pub fn memory(
        &self,
        load: &RankLoad,
        samples: usize,
        batch: usize,
        described: usize,
    ) -> Memory {
        let (own, all) = (samples as f64, batch as f64);
        // The load was described for another batch size, so the uses of rows are scaled to this
        // batch.
        let scale = all / described.max(1) as f64;
        let uses = load.uses * scale;
        let has_peers = self.ranks > 1;
        let values = load.width * all + load.replica_values;
        let exchange = if has_peers { 2.0 * self.value_bytes * values } else { 0.0 };
        let received = if has_peers {
            8.0 * scale * (load.distributed.ids + load.distributed.bags)
        } else {
            0.0
        };
        let copies = if has_peers { 3 } else { 2 };
        let mut memory = Memory {
            table_weights: load.weights,
            table_states: load.states,
            dense_parameters: 4 * (copies * self.parameters + self.states),
            activations: bytes(self.value_bytes * own * self.activation_columns),
            gradients: bytes(self.value_bytes * own * self.gradient_columns),
            ids: bytes(BATCHES * 8.0 * own * (self.ids + self.bags) + received),
            exchange: bytes(exchange),
            workspace: PRODUCTS + bytes(SORTED * uses),
            reserve: CONTEXT + if has_peers { COLLECTIVES } else { 0 },
        };
        let moving = memory.activations + memory.gradients + memory.exchange + memory.workspace;
        memory.reserve += bytes(FRAGMENTS * moving as f64);
        memory
    }
}

fn bytes(value: f64) -> u64 {
    value.ceil() as u64
}

/// Counts the dense parameters and the values of their optimizer states.
fn dense(workload: Workload<'_>) -> (u64, u64) {
    let rule = workload.config.optimizer.dense.kind;
    let shapes = parameters(workload).into_iter().map(Parameter::shape);
    shapes.fold((0, 0), |(values, states), [rows, columns]| {
        let own_states = rows * rule.state_per_row(columns);
        (values + (rows * columns) as u64, states + own_states as u64)
    })
}

/// Finds the largest batch that fits into `capacity` bytes on every rank, or `None` if not even one
/// sample fits.
#[must_use]
pub fn max_batch_size(
    sizes: &MemoryTerms,
    loads: &[RankLoad],
    described: usize,
    capacity: u64,
) -> Option<usize> {
    let fits = |batch: usize| {
        let own = batch.div_ceil(loads.len().max(1));
        loads.iter().all(|load| sizes.memory(load, own, batch, described).total() <= capacity)
    };
    largest_batch(fits)
}

/// Finds the largest batch that fits by bisection, or `None` if not even one sample fits. If a
/// batch fits, every smaller batch must fit as well.
pub fn largest_batch(fits: impl Fn(usize) -> bool) -> Option<usize> {
    if !fits(1) {
        return None;
    }
    let (mut low, mut high) = (1, MOST_SAMPLES);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    Some(low)
}
