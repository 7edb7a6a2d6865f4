//! The trained weight of a layer, together with the copies that its matrix products read.
//!
//! ```text
//! values [⌈K/32⌉][N][32] in panels; updates change it, and in f32 the gradient of the input reads
//! it forward [⌈N/32⌉][K][32] transposed, 32 × 32 at a time in registers
//! ```
//! In bf16 both products read copies in pairs. An update refreshes the copies while the values
//! are in the cache, so a step reads and writes 16 bytes per weight besides the optimizer state.
//! This file does not depend on the optimizers.
#![expect(unsafe_code, reason = "blocks of the copies are not contiguous slices")]

use schema::Precision;

use super::chunk::RoundChunk;
use super::panels::{self, ACROSS, PANEL};
use super::{dispatch, pairs};
use crate::MatrixShape;
use crate::buffer::Array;
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::ops::transpose::{self, transpose_block};

/// Number of values in a block of 32 × 32.
const BLOCK: usize = PANEL * PANEL;

/// A weight `[N, K]` with the copies that products in one precision read.
#[derive(Debug)]
pub struct LinearWeight {
    n: usize,
    k: usize,
    pub(super) values: Array<f32>,
    pub(super) forms: Forms,
}

/// The copies that products read in addition to the values. In bf16 they are
/// `[⌈N/32⌉][⌈K/2⌉][32]` and `[⌈K/32⌉][⌈N/2⌉][32]` words, where each word is a pair.
#[derive(Debug)]
pub(super) enum Forms {
    F32 { forward: Array<f32> },
    Bf16 { forward: Array<u32>, backward: Array<u32> },
}

impl LinearWeight {
    /// Creates a weight of zeros with its copies.
    #[must_use]
    pub fn new(shape: MatrixShape, precision: Precision) -> Self {
        let MatrixShape { rows: n, columns: k } = shape;
        let forms = match precision {
            Precision::F32 => Forms::F32 { forward: Array::zeroed(panels::len(k, n)) },
            Precision::Bf16 => Forms::Bf16 {
                forward: Array::zeroed(pairs::down_len(k, n)),
                backward: Array::zeroed(pairs::down_len(n, k)),
            },
        };
        Self { n, k, values: Array::zeroed(panels::len(n, k)), forms }
    }

    /// Returns the memory size in bytes of a weight with all its copies.
    #[must_use]
    pub fn bytes(shape: MatrixShape, precision: Precision) -> usize {
        let MatrixShape { rows: n, columns: k } = shape;
        let forms = match precision {
            Precision::F32 => Array::<f32>::bytes(panels::len(k, n)),
            Precision::Bf16 => {
                Array::<u32>::bytes(pairs::down_len(k, n))
                    + Array::<u32>::bytes(pairs::down_len(n, k))
            }
        };
        Array::<f32>::bytes(panels::len(n, k)) + forms
    }

    /// Returns the shape of the weight: N rows of K columns.
    #[must_use]
    pub fn shape(&self) -> MatrixShape {
        MatrixShape::new(self.n, self.k)
    }

    /// Returns the precision in which the products read the weight.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self.forms {
            Forms::F32 { .. } => Precision::F32,
            Forms::Bf16 { .. } => Precision::Bf16,
        }
    }

    /// Returns the weight in panels along K, with zeros beyond the last column.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Copies the row-major `matrix` `[N, K]` into the values and into all copies.
    ///
    /// # Errors
    /// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
    pub fn set(&mut self, cpu: &Cpu, matrix: &[f32]) -> Result<(), Error> {
        let (n, k) = (self.n, self.k);
        panels::pack(cpu, matrix, self.shape(), &mut self.values)?;
        let (values, renewal) = self.parts_mut(cpu);
        let values = &*values;
        cpu.pool.run(panels::count(k), |panel| {
            // SAFETY: no other thread has access to this panel during the call.
            unsafe { renewal.renew(panel, 0, &values[panel * n * PANEL..][..n * PANEL]) };
        });
        Ok(())
    }

    /// Returns the values for an update, and the handle that refreshes the copies afterwards.
    pub(crate) fn parts_mut(&mut self, cpu: &Cpu) -> (&mut [f32], Renewal<'_>) {
        let forms = match &mut self.forms {
            Forms::F32 { forward } => FormsMut::F32 { forward: DisjointMut::new(forward) },
            Forms::Bf16 { forward, backward } => FormsMut::Bf16 {
                forward: DisjointMut::new(forward),
                backward: DisjointMut::new(backward),
            },
        };
        (&mut self.values, Renewal { n: self.n, k: self.k, isa: cpu.isa, forms })
    }
}

/// Refreshes the copies that products read, part by part. Several threads may share it.
pub(crate) struct Renewal<'a> {
    n: usize,
    k: usize,
    isa: Isa,
    forms: FormsMut<'a>,
}

/// The copies of a weight that an update rewrites: one in f32, and one for each direction in
/// bf16.
enum FormsMut<'a> {
    F32 { forward: DisjointMut<'a, f32> },
    Bf16 { forward: DisjointMut<'a, u32>, backward: DisjointMut<'a, u32> },
}

impl Renewal<'_> {
    /// Returns the address of the copy that the forward product reads, for prefetching.
    pub(crate) fn forward(&self) -> *const f32 {
        match &self.forms {
            FormsMut::F32 { forward } => forward.as_ptr(),
            FormsMut::Bf16 { forward, .. } => forward.as_ptr().cast(),
        }
    }

    /// Refreshes the copies from `values`, which are the rows of `panel` from `row` on. `row`
    /// must be a multiple of 32, and so must the number of rows except at the end.
    ///
    /// # Safety
    /// The caller guarantees that no other thread renews the same rows of that panel.
    pub(crate) unsafe fn renew(&self, panel: usize, row: usize, values: &[f32]) {
        let rows = values.len() / PANEL;
        assert!(row.is_multiple_of(PANEL) && row + rows <= self.n && panel * PANEL < self.k);
        assert!(rows.is_multiple_of(PANEL) || row + rows == self.n);
        for (row, block) in (row..).step_by(PANEL).zip(values.chunks(BLOCK)) {
            let mut last = [[0.0; PANEL]; PANEL];
            let (whole, _) = block.as_chunks::<PANEL>();
            let block = whole.as_array::<PANEL>().unwrap_or_else(|| {
                last[..whole.len()].copy_from_slice(whole);
                &last
            });
            // SAFETY: the block lies inside the weight, as checked above, and the caller
            // guarantees that no other thread renews the block.
            unsafe { self.renew_block(panel, row, block) };
        }
    }

    /// Refreshes the copies of the block that begins at `row`. The block is padded with zeros.
    ///
    /// # Safety
    /// The caller guarantees that the block begins inside the weight, and that no other thread
    /// renews it.
    unsafe fn renew_block(&self, panel: usize, row: usize, block: &[[f32; PANEL]; PANEL]) {
        let columns = PANEL.min(self.k - panel * PANEL);
        match &self.forms {
            FormsMut::F32 { forward } => {
                let first = (row / PANEL * self.k + panel * PANEL) * PANEL;
                // SAFETY: the range lies inside `forward`, and the caller guarantees that only
                // this thread writes the block.
                transpose_into(block, unsafe { forward.part(first..first + columns * PANEL) });
            }
            FormsMut::Bf16 { forward, backward } => {
                let first = (panel * self.n.div_ceil(2) + row / 2) * PANEL;
                let column = (row / PANEL * self.k.div_ceil(2) + panel * PANEL / 2) * PANEL;
                let mut across = [[0; ACROSS]; PANEL];
                let rows = PANEL.min(self.n - row);
                let chunk = RoundChunk {
                    matrix: block.as_flattened().as_ptr(),
                    across: across.as_flattened_mut().as_mut_ptr(),
                    down: backward.write_ptr(first..first + rows.div_ceil(2) * PANEL),
                    rows,
                };
                // SAFETY: the ranges lie inside `forward` and `backward`, and the caller
                // guarantees that only this thread writes the block.
                let forward = unsafe {
                    dispatch::round(self.isa, &chunk);
                    forward.part(column..column + columns.div_ceil(2) * PANEL)
                };
                let across = across.map(|row| row.map(f32::from_bits));
                transpose_into(&across, bytemuck::cast_slice_mut(forward));
            }
        }
    }
}

/// Writes column `c` of `block` as row `c` of `to`, for as many rows as `to` holds.
fn transpose_into<const COLUMNS: usize>(block: &[[f32; COLUMNS]; PANEL], to: &mut [f32]) {
    for (row, rows) in block.as_chunks::<{ transpose::BLOCK }>().0.iter().enumerate() {
        let rows = rows.each_ref().map(|row| row.as_chunks::<{ transpose::BLOCK }>().0);
        for (column, to) in to.chunks_mut(transpose::BLOCK * PANEL).enumerate() {
            let transposed = transpose_block(rows.map(|row| row[column]));
            for (to, transposed) in to.chunks_exact_mut(PANEL).zip(transposed) {
                to[row * transpose::BLOCK..][..transpose::BLOCK].copy_from_slice(&transposed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use schema::Precision;

    use super::{Array, Forms, LinearWeight, MatrixShape};

    #[test]
    fn the_memory_of_a_weight_matches_its_estimate() {
        for precision in [Precision::F32, Precision::Bf16] {
            for (n, k) in [(0, 0), (1, 1), (7, 33), (64, 32)] {
                let shape = MatrixShape::new(n, k);
                let weight = LinearWeight::new(shape, precision);
                let forms = match &weight.forms {
                    Forms::F32 { forward } => Array::<f32>::bytes(forward.len()),
                    Forms::Bf16 { forward, backward } => {
                        Array::<u32>::bytes(forward.len()) + Array::<u32>::bytes(backward.len())
                    }
                };
                let held = Array::<f32>::bytes(weight.values.len()) + forms;
                assert_eq!(LinearWeight::bytes(shape, precision), held, "{shape:?}");
            }
        }
    }
}
