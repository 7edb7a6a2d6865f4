//! The products for machines without our vector kernels. The functions call the `gemm` crate on
//! panels, after widening pairs to f32. The crate chooses its instruction set, and this file
//! computes the strides.
#![expect(unsafe_code, reason = "the `gemm` crate takes raw pointers, because panels are strided")]

use super::chunk::{Finish, RoundChunk, RowsChunk, SumSink, WeightChunk};
use super::pair;
use super::panels::{ACROSS, PANEL};
use super::word::Word;
use crate::ops::activation::scalar::{relu, relu_gradient};

/// A factor or a result of a product: its start, and the strides of its rows and of its columns.
#[derive(Clone, Copy)]
struct Strided<T>(T, usize, usize);

/// # Safety
/// The caller guarantees that the chunk's pointers are valid for the extents that its fields
/// state, and that no other thread writes the same part of the result.
pub(super) unsafe fn rows<W: Word>(chunk: &RowsChunk<'_, W>) {
    let RowsChunk { samples, inner, .. } = *chunk;
    let (count, width, values) = (chunk.rows.len(), PANEL / W::VALUES, inner * W::VALUES);
    let mut left = vec![0.0f32; count * values];
    for (row, to) in chunk.rows.clone().zip(left.chunks_exact_mut(values.max(1))) {
        for (i, to) in to.iter_mut().enumerate() {
            let at = (i / PANEL * samples + row) * width + i % PANEL / W::VALUES;
            // SAFETY: the caller guarantees that `chunk.a` holds all samples in panels.
            *to = unsafe { *chunk.a.add(at) }.value(i % W::VALUES);
        }
    }
    let mut c = vec![0.0f32; count * PANEL];
    for panel in chunk.panels.clone() {
        // SAFETY: the caller guarantees that `chunk.b` holds this panel, and each matrix has the
        // extents of the product.
        unsafe {
            let b = widened(chunk.b.wrapping_add(panel * inner * PANEL), inner);
            let factors = [Strided(left.as_ptr(), values, 1), Strided(b.as_ptr(), PANEL, 1)];
            multiply([count, PANEL, values], factors, Strided(c.as_mut_ptr(), PANEL, 1), false);
            put_rows(chunk, panel, &mut c);
        }
    }
}

/// Applies the chunk's finishing operation to a panel of sums and stores the results.
///
/// # Safety
/// The caller guarantees the same conditions as for [`rows`].
unsafe fn put_rows<W>(chunk: &RowsChunk<'_, W>, panel: usize, c: &mut [f32]) {
    let (samples, first) = (chunk.samples, chunk.rows.start);
    let start = (panel * samples + first) * PANEL;
    // SAFETY: the chunk's rows and panels lie inside C, and the caller guarantees that only this
    // thread writes them.
    unsafe {
        match chunk.sink {
            SumSink::F32(sink) => {
                let to = sink.part(start..start + c.len());
                finish(chunk.finish, start, panel, c, |i| to[i]);
                to.copy_from_slice(c);
            }
            SumSink::Bf16 { across, down } => {
                let across = across.part(start / 2..(start + c.len()) / 2);
                let there = |i: usize| pair::value(across[i / 2], i % 2);
                finish(chunk.finish, start, panel, c, there);
                let pair = (panel * samples.div_ceil(2) + first / 2) * PANEL;
                let down = down.part(pair..pair + chunk.rows.len().div_ceil(2) * PANEL);
                put_pairs(c, across, down);
            }
        }
    }
}

/// Applies the finishing operation to sums that begin at element `start` of C.
fn finish(
    finish: Finish<'_>,
    start: usize,
    panel: usize,
    c: &mut [f32],
    there: impl Fn(usize) -> f32,
) {
    for (i, sum) in c.iter_mut().enumerate() {
        let column = panel * PANEL + i % PANEL;
        *sum = match finish {
            Finish::Store => *sum,
            Finish::Add => *sum + there(i),
            Finish::Bias(bias) => *sum + bias[column],
            Finish::BiasRelu(bias) => relu(*sum + bias[column]),
            Finish::Mask(outputs) => relu_gradient(outputs[start + i], *sum),
            Finish::MaskPairs(outputs) => {
                relu_gradient(pair::value(outputs[(start + i) / 2], i % 2), *sum)
            }
        };
    }
}

/// Rounds rows of a panel to bf16 and writes both layouts of pairs.
fn put_pairs(rows: &[f32], across: &mut [u32], down: &mut [u32]) {
    for (word, values) in across.iter_mut().zip(rows.as_chunks::<2>().0) {
        *word = pair::word(values[0], values[1]);
    }
    for (words, rows) in down.chunks_exact_mut(PANEL).zip(rows.chunks(2 * PANEL)) {
        for (column, word) in words.iter_mut().enumerate() {
            let below = rows.get(PANEL + column).copied().unwrap_or(0.0);
            *word = pair::word(rows[column], below);
        }
    }
}

/// # Safety
/// The caller guarantees that the chunk's pointers are valid for the extents that its fields
/// state, and that no other thread writes the same part of the result.
pub(super) unsafe fn round(chunk: &RoundChunk) {
    let rows = chunk.rows;
    // SAFETY: the caller guarantees that the chunk's matrices are valid for these extents.
    unsafe {
        let matrix = std::slice::from_raw_parts(chunk.matrix, rows * PANEL);
        let across = std::slice::from_raw_parts_mut(chunk.across, rows * ACROSS);
        let down = std::slice::from_raw_parts_mut(chunk.down, rows.div_ceil(2) * PANEL);
        put_pairs(matrix, across, down);
    }
}

/// # Safety
/// The caller guarantees that the chunk's pointers are valid for the extents that its fields
/// state, and that no other thread writes the same part of the result.
pub(super) unsafe fn weight<W: Word>(chunk: &WeightChunk<W>) {
    let inner = chunk.inner;
    for steps in chunk.blocks() {
        let values = |words: *const W, panel: usize| {
            let words = words.wrapping_add((panel * inner + steps.start) * PANEL);
            // SAFETY: the caller guarantees that the panels lie inside the matrices.
            unsafe { widened(words, steps.len()) }
        };
        let x: Vec<_> = chunk.k_panels.clone().map(|panel| values(chunk.x, panel)).collect();
        for n_panel in chunk.n_panels.clone() {
            let d_y = values(chunk.d_y, n_panel);
            // SAFETY: the caller guarantees that the panels lie inside the matrices and that only
            // this thread writes the chunk's rectangle of the result.
            unsafe {
                chunk.add_bias(&steps, n_panel);
                for (panel, x) in chunk.k_panels.clone().zip(&x) {
                    let place = (panel * chunk.n + n_panel * PANEL) * PANEL;
                    let d_weight = Strided(chunk.d_weight.wrapping_add(place), PANEL, 1);
                    let extents = [chunk.outputs(n_panel), PANEL, steps.len() * W::VALUES];
                    let factors = [Strided(d_y.as_ptr(), 1, PANEL), Strided(x.as_ptr(), PANEL, 1)];
                    multiply(extents, factors, d_weight, steps.start > 0);
                }
            }
        }
    }
}

/// Widens `steps` rows of 32 words to `steps · VALUES` rows of 32 values.
///
/// # Safety
/// The caller guarantees that the words of all steps are valid for reads.
unsafe fn widened<W: Word>(words: *const W, steps: usize) -> Vec<f32> {
    // SAFETY: the caller guarantees that the words of all `steps` are valid for reads.
    let words = unsafe { std::slice::from_raw_parts(words, steps * PANEL) };
    let row = |row: &[W], place: usize| row.iter().map(|w| w.value(place)).collect::<Vec<_>>();
    let rows = words.chunks_exact(PANEL);
    rows.flat_map(|words| (0..W::VALUES).flat_map(move |place| row(words, place))).collect()
}

/// Computes `c = a b` or `c += a b`, where `a` is `[m, inner]` and `b` is `[inner, n]`.
///
/// # Safety
/// The caller guarantees that the strided matrices are valid for those extents, and that no other
/// thread accesses `c`.
unsafe fn multiply(
    [m, n, inner]: [usize; 3],
    [a, b]: [Strided<*const f32>; 2],
    c: Strided<*mut f32>,
    add: bool,
) {
    let stride = |stride: usize| stride as isize;
    // SAFETY: the caller guarantees that the three matrices are valid. The strides fit into
    // `isize` because slices of those extents exist.
    unsafe {
        gemm::gemm(
            m,
            n,
            inner,
            c.0,
            stride(c.2),
            stride(c.1),
            add,
            a.0,
            stride(a.2),
            stride(a.1),
            b.0,
            stride(b.2),
            stride(b.1),
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
