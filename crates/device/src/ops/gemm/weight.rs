//! A layer's weight in the two forms its products read, made once per step.

use super::panels::{self, PANEL};
use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Rows of the weight that one chunk turns.
const BLOCK: usize = 8;

/// A weight `[N, K]` in panels: of N for the forward product, of K for the gradient of the input.
#[derive(Debug)]
pub struct PackedWeight {
    n: usize,
    k: usize,
    /// `[⌈N/32⌉][K][32]`.
    forward: Vec<f32>,
    /// `[⌈K/32⌉][N][32]`.
    backward: Vec<f32>,
}

impl PackedWeight {
    /// Room for `[n, k]`, all zero.
    #[must_use]
    pub fn new(n: usize, k: usize) -> Self {
        let zeros = |rows, columns| vec![0.0; panels::len(rows, columns)];
        Self { n, k, forward: zeros(k, n), backward: zeros(n, k) }
    }

    /// (N, K).
    #[must_use]
    pub fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    pub(super) fn forward(&self) -> &[f32] {
        &self.forward
    }

    pub(super) fn backward(&self) -> &[f32] {
        &self.backward
    }

    /// Takes over `weight` `[N, K]`.
    ///
    /// # Cost
    /// Reads `8·N·K` bytes and writes as many: a thousandth of the products of a large batch.
    /// # Errors
    /// [`Error::Shape`] before any work.
    pub fn pack(&mut self, cpu: &Cpu, weight: &[f32]) -> Result<(), Error> {
        let (n, k) = (self.n, self.k);
        extent::check("gemm pack", "weight [N, K]", n * k, weight.len())?;
        if k == 0 {
            return Ok(());
        }
        cpu.pool.run_slices(&mut self.forward, k * PANEL, |panel, part| {
            let rows = n.min((panel + 1) * PANEL) - panel * PANEL;
            for first in (0..rows).step_by(BLOCK) {
                let last = rows.min(first + BLOCK);
                for (column, to) in part.chunks_exact_mut(PANEL).enumerate() {
                    for (row, to) in (first..last).zip(&mut to[first..last]) {
                        *to = weight[(panel * PANEL + row) * k + column];
                    }
                }
            }
        });
        panels::pack(cpu, weight, (n, k), &mut self.backward)
    }
}
