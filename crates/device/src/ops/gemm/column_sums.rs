//! Sums over the rows of a matrix in panels, which are the gradient of a bias. Linear and cross
//! layers share this code.

use super::pair;
use super::panels::PANEL;
use crate::cpu::Cpu;

/// Number of rows that are summed separately before they are added to the total. Separate sums
/// keep the rounding errors of long columns small.
const BLOCK_ROWS: usize = 64;

/// Computes `sums[j] = Σ_i matrix[i, j]` for a `matrix` `[rows, sums.len()]` in panels. Blocks of
/// 64 rows are added in order, so any number of threads gives the same bytes.
pub(crate) fn run(cpu: &Cpu, matrix: &[f32], rows: usize, sums: &mut [f32]) {
    cpu.pool.run_slices(sums, PANEL, |index, sums| {
        sums.fill(0.0);
        add_panel(&matrix[index * rows * PANEL..][..rows * PANEL], sums);
    });
}

/// Adds the column sums of one panel `[rows][32]` to `sums`, for as many columns as `sums` has.
#[inline(always)]
pub(crate) fn add_panel(panel: &[f32], sums: &mut [f32]) {
    add(panel, BLOCK_ROWS, sums, |sum, value| *sum += value);
}

/// Adds the column sums of one panel of row pairs `[pairs][32]` to `sums`, for as many columns as
/// `sums` has.
#[inline(always)]
pub(crate) fn add_pairs(panel: &[u32], sums: &mut [f32]) {
    add(panel, BLOCK_ROWS / 2, sums, |sum, word| {
        *sum += pair::value(word, 0);
        *sum += pair::value(word, 1);
    });
}

#[inline(always)]
fn add<W: Copy>(panel: &[W], block_rows: usize, sums: &mut [f32], join: impl Fn(&mut f32, W)) {
    let mut total = [0.0f32; PANEL];
    total[..sums.len()].copy_from_slice(sums);
    for block in panel.chunks(block_rows * PANEL) {
        let mut partial = [0.0f32; PANEL];
        for row in block.as_chunks::<PANEL>().0 {
            for (sum, &word) in partial.iter_mut().zip(row) {
                join(sum, word);
            }
        }
        for (sum, &partial) in total.iter_mut().zip(&partial) {
            *sum += partial;
        }
    }
    sums.copy_from_slice(&total[..sums.len()]);
}
