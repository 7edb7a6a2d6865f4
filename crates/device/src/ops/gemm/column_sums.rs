//! Sums over the rows of a matrix: the gradient of a bias. Shared by linear and cross layers.

use crate::cpu::Cpu;

/// Columns of a chunk.
const CHUNK_COLUMNS: usize = 64;
/// Rows summed on their own before they join the total: keeps rounding errors of long columns
/// small.
const BLOCK_ROWS: usize = 64;

/// `sums[j] = Σ_i matrix[i, j]`, overwritten; blocks of 64 rows in order, so any thread count gives
/// the same bytes. `matrix` is `[rows, sums.len()]`.
pub(crate) fn run(cpu: &Cpu, matrix: &[f32], sums: &mut [f32]) {
    let columns = sums.len();
    if columns == 0 {
        return;
    }
    cpu.pool.run_slices(sums, CHUNK_COLUMNS, |chunk, sums| {
        let first = chunk * CHUNK_COLUMNS;
        sums.fill(0.0);
        for block in matrix.chunks(BLOCK_ROWS * columns) {
            let mut partial = [0.0f32; CHUNK_COLUMNS];
            let partial = &mut partial[..sums.len()];
            for row in block.chunks_exact(columns) {
                for (sum, &value) in partial.iter_mut().zip(&row[first..first + sums.len()]) {
                    *sum += value;
                }
            }
            for (sum, &partial) in sums.iter_mut().zip(partial.iter()) {
                *sum += partial;
            }
        }
    });
}
