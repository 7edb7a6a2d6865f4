//! Embedding tables with the buffers that one call over all of them needs. The callers measure the
//! time.

use device::buffer::Array;
use device::ops::embedding_backward::TileOrigin;
use device::ops::{Slot, SlotOutput, embedding_backward, embedding_forward};
use device::optimizer::UpdateRule;
use device::weights::{StoredWeight, Weights};
use device::{Cpu, WeightsMut};
use kernel_model::cpu::EqualTables;
use schema::random::CounterRng;
use schema::{Bytes, JaggedTensor, Op, OptimizerConfig};

use setup::error::{Error, RunError};
use setup::machine;

/// Number of floats that one task of the thread pool initializes.
const FLOATS_PER_CHUNK: usize = 1 << 18;
const LEARNING_RATE: f64 = 0.01;

/// Embedding tables of equal size, each with its own feature.
pub struct BenchTables {
    weights: Vec<Weights>,
    states: Vec<Array<f32>>,
    rows: usize,
    dim: usize,
    slots: Vec<Slot>,
    config: OptimizerConfig,
    /// Number of backward passes so far.
    step: u64,
    scratch: embedding_backward::Scratch,
    /// Pooled vectors, which also serve as their own gradient. The vectors must be in the same type
    /// of memory as in the trainer, because otherwise the output would not be written past the
    /// caches.
    pooled: Array<f32>,
}

/// Returns an error if this machine has too little memory for the tables.
pub fn check_memory(shape: &EqualTables) -> Result<(), Error> {
    let state = size_of::<f32>() * shape.optimizer.state_per_row(shape.dim);
    let per_row = (shape.dim * shape.data_type.bytes() + state) as u64;
    let needed = Bytes((shape.count as u64).saturating_mul(shape.rows).saturating_mul(per_row));
    match machine::available_memory::read() {
        Some(available) if needed > available.bytes => {
            Err(RunError::BenchMemory { needed, available: available.bytes }.into())
        }
        _ => Ok(()),
    }
}

impl BenchTables {
    /// Builds tables with random weights and zeroed optimizer states.
    pub fn new(cpu: &Cpu, shape: &EqualTables) -> Self {
        let (rows, dim) = (shape.rows as usize, shape.dim);
        let filled = |table: usize| {
            let mut weights = Weights::zeroed(shape.data_type, rows * dim);
            match weights.view_mut() {
                WeightsMut::F32(weights) => fill(cpu, table, weights),
                WeightsMut::F16(weights) => fill(cpu, table, weights),
                WeightsMut::Bf16(weights) => fill(cpu, table, weights),
            }
            weights
        };
        let state = |_| {
            let mut state = Array::zeroed(rows * shape.optimizer.state_per_row(dim));
            // All pages of the state are written once. Without this write, the first updates would
            // include the time of allocating the pages.
            state.fill(0.0);
            std::hint::black_box(state)
        };
        Self {
            weights: (0..shape.count).map(filled).collect(),
            states: (0..shape.count).map(state).collect(),
            rows,
            dim,
            slots: (0..shape.count).map(|tile| Slot { tile, column: tile * dim }).collect(),
            config: OptimizerConfig::new(shape.optimizer, LEARNING_RATE),
            step: 0,
            scratch: embedding_backward::Scratch::default(),
            pooled: Array::default(),
        }
    }

    /// Returns the total bytes of the weights of all tables.
    pub fn bytes(&self) -> u64 {
        (self.weights.len() * self.rows * self.row_bytes()) as u64
    }

    /// Returns the bytes of the weights of one row.
    pub fn row_bytes(&self) -> usize {
        self.weights.first().map_or(0, |weights| self.dim * weights.data_type().bytes())
    }

    /// Looks up the rows of a batch and pools them.
    pub fn forward(&mut self, cpu: &Cpu, jagged: &JaggedTensor) -> Result<Op, Error> {
        let (rows, dim, name) = (self.rows, self.dim, "t");
        let views = self.weights.iter().map(Weights::view);
        let tiles: Vec<_> =
            views.map(|weights| embedding_forward::TileView { weights, rows, dim, name }).collect();
        let row_bytes = self.row_bytes();
        let len = jagged.batch_size * self.slots.len() * dim;
        if self.pooled.len() != len {
            self.pooled = Array::zeroed(len);
        }
        let out = &mut self.pooled;
        let op = Op::EmbeddingForward {
            bags: jagged.features * jagged.batch_size,
            ids: jagged.values.len(),
            elements: jagged.values.len() * dim,
            pooled_elements: out.len(),
            row_bytes: jagged.values.len() * row_bytes,
        };
        let arguments = embedding_forward::ForwardArguments {
            tiles: &tiles,
            slots: &self.slots,
            jagged,
            bag_scales: None,
            output: SlotOutput::Pooled,
            out,
        };
        embedding_forward::run(cpu, arguments)?;
        Ok(op)
    }

    /// Updates the rows of the last forward pass, whose output serves as the gradient.
    pub fn backward(&mut self, cpu: &Cpu, jagged: &JaggedTensor) -> Result<Op, Error> {
        let (rows, dim, name) = (self.rows, self.dim, "t");
        let tables = (0..).zip(self.weights.iter_mut().zip(&mut self.states));
        let mut tiles: Vec<_> = tables
            .map(|(table, (weights, state))| embedding_backward::TileMut {
                weights: weights.view_mut(),
                state: &mut state[..],
                rows,
                dim,
                name,
                // The random bits for rounding depend on the number of the table, so each table
                // needs its own number.
                origin: TileOrigin { table, row: 0, column: 0 },
            })
            .collect();
        let arguments = embedding_backward::BackwardArguments {
            tiles: &mut tiles,
            slots: &self.slots,
            jagged,
            bag_scales: None,
            output: SlotOutput::Pooled,
            gradient: &self.pooled,
            rule: UpdateRule::new(&self.config, 1.0, self.step),
            // Each step draws other random bits for rounding, as in training.
            rounding: CounterRng::new(0, self.step),
        };
        self.step += 1;
        let updated = embedding_backward::run(cpu, arguments, &mut self.scratch)?;
        Ok(Op::EmbeddingBackward {
            ids: jagged.values.len(),
            unique_rows: updated.unique_rows,
            elements: jagged.values.len() * dim,
            unique_elements: updated.unique_elements,
            unique_row_bytes: updated.unique_bytes,
            pooled_elements: self.pooled.len(),
            optimizer: self.config.kind,
        })
    }
}

/// Fills a table with uniform random values in `−0.5..0.5`.
fn fill<E: StoredWeight>(cpu: &Cpu, table: usize, weights: &mut [E]) {
    cpu.pool.run_slices(weights, FLOATS_PER_CHUNK, |chunk, part| {
        let rng = CounterRng::new(table as u64, chunk as u64);
        for (counter, value) in (0..).zip(part) {
            *value = E::nearest(rng.unit(counter) as f32 - 0.5);
        }
    });
}
