//! A layer's trained weight, with the copies that its products read.
//!
//! ```text
//! values [⌈K/32⌉][N][32] in panels; updates change it, and in f32 the gradient of the input reads
//! it forward [⌈N/32⌉][K][32] transposed, 32 × 32 at a time in registers
//! ```
//! In bf16 both products read copies in pairs. An update refreshes the copies while the values are
//! in cache: a step reads and writes 16 bytes per weight besides the state. Independent of
//! optimizers.
#![expect(unsafe_code, reason = "blocks of the forms are scattered, so slices cannot part them")]

use schema::Precision;

use super::chunk::RoundChunk;
use super::panels::{self, ACROSS, PANEL};
use super::{dispatch, pairs};
use crate::MatrixShape;
use crate::buffer::Array;
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::ops::transpose::{self, transpose_block};

/// Values of a block of 32 × 32.
const BLOCK: usize = PANEL * PANEL;

/// A weight `[N, K]` with the copies that products in one precision read.
#[derive(Debug)]
pub struct LinearWeight {
    n: usize,
    k: usize,
    pub(super) values: Array<f32>,
    pub(super) forms: Forms,
}

/// The copies that products read in addition to the values. In bf16 they are `[⌈N/32⌉][⌈K/2⌉][32]`
/// and `[⌈K/32⌉][⌈N/2⌉][32]` words, each word a pair.
#[derive(Debug)]
pub(super) enum Forms {
    F32 { forward: Array<f32> },
    Bf16 { forward: Array<u32>, backward: Array<u32> },
}

impl LinearWeight {
    /// Creates a weight of zeros.
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

    /// Computes the bytes of a weight in all its forms.
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

    /// The shape of the weight: N rows of K columns.
    #[must_use]
    pub fn shape(&self) -> MatrixShape {
        MatrixShape::new(self.n, self.k)
    }

    /// The precision in which the products read the weight.
    #[must_use]
    pub fn precision(&self) -> Precision {
        match self.forms {
            Forms::F32 { .. } => Precision::F32,
            Forms::Bf16 { .. } => Precision::Bf16,
        }
    }

    /// The weight in panels along K, with zeros beyond the last column.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Copies the row-major `matrix` `[N, K]` into all forms.
    ///
    /// # Errors
    /// [`Error::Shape`] before any work.
    pub fn set(&mut self, cpu: &Cpu, matrix: &[f32]) -> Result<(), Error> {
        let (n, k) = (self.n, self.k);
        panels::pack(cpu, matrix, self.shape(), &mut self.values)?;
        let (values, renewal) = self.parts_mut(cpu);
        let values = &*values;
        cpu.pool.run(panels::count(k), |panel| {
            // SAFETY: no other thread has access to the panel during this call.
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

/// Refreshes the copies that products read, part by part, from several threads.
pub(crate) struct Renewal<'a> {
    n: usize,
    k: usize,
    isa: Isa,
    forms: FormsMut<'a>,
}

/// The layouts of a weight that an update rewrites: one in f32, and one for each direction in bf16.
enum FormsMut<'a> {
    F32 { forward: DisjointMut<'a, f32> },
    Bf16 { forward: DisjointMut<'a, u32>, backward: DisjointMut<'a, u32> },
}

impl Renewal<'_> {
    /// The address of the form that the forward product reads, for prefetching.
    pub(crate) fn forward(&self) -> *const f32 {
        match &self.forms {
            FormsMut::F32 { forward } => forward.as_ptr(),
            FormsMut::Bf16 { forward, .. } => forward.as_ptr().cast(),
        }
    }

    /// Refreshes the copies from `values`, the rows of `panel` from `row` on. `row` is a multiple
    /// of 32, and so is the number of rows except at the end.
    ///
    /// # Safety
    /// No other thread renews the same rows of that panel.
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
            // SAFETY: the block lies inside the weight, as checked above, and the caller guarantees
            // that no other thread renews it.
            unsafe { self.renew_block(panel, row, block) };
        }
    }

    /// Refreshes the block that begins at `row`, padded with zeros.
    ///
    /// # Safety
    /// The block begins inside the weight, and no other thread renews it.
    unsafe fn renew_block(&self, panel: usize, row: usize, block: &[[f32; PANEL]; PANEL]) {
        let columns = PANEL.min(self.k - panel * PANEL);
        match &self.forms {
            FormsMut::F32 { forward } => {
                let first = (row / PANEL * self.k + panel * PANEL) * PANEL;
                // SAFETY: the range lies inside the form, and the caller guarantees that only this
                // thread writes the block.
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
                // SAFETY: the ranges lie inside both forms, and the caller guarantees that only
                // this thread writes the block.
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
