//! The products for machines without a vector form of ours: the `gemm` crate on panels.
//! It picks its own instruction set; this file owns the strides.
#![expect(unsafe_code, reason = "the gemm crate takes pointers, and panels are strided")]

use super::column_sums;
use super::panels::{self, PANEL};
use super::simd::{Finish, RowsChunk, WeightChunk};
use crate::ops::activation::scalar::{relu, relu_gradient};

/// One factor or result: where it starts, and the strides of its rows and columns.
#[derive(Clone, Copy)]
struct Strided<T>(T, usize, usize);

/// # Safety
/// The chunk's factors are as its fields say, and no other thread writes its part.
pub(super) unsafe fn rows(chunk: &RowsChunk) {
    let RowsChunk { samples, inner, finish, .. } = *chunk;
    let (first, count) = (chunk.rows.start, chunk.rows.len());
    // SAFETY: `a` holds all samples in panels.
    let a = unsafe { std::slice::from_raw_parts(chunk.a, panels::len(samples, inner)) };
    let mut left = vec![0.0f32; count * inner];
    for (row, to) in (first..).zip(left.chunks_exact_mut(inner.max(1))) {
        panels::read_row(a, samples, row, to);
    }
    for panel in chunk.panels.clone() {
        let at = (panel * samples + first) * PANEL;
        let b = Strided(chunk.b.wrapping_add(panel * inner * PANEL), PANEL, 1);
        let c = Strided(chunk.c.wrapping_add(at), PANEL, 1);
        let extents = [count, PANEL, inner];
        // SAFETY: the rows and the panel lie inside the matrices; this thread alone writes them.
        unsafe {
            multiply(extents, [Strided(left.as_ptr(), inner, 1), b], c, finish == Finish::Add);
            let other = |start: usize, len: usize| {
                std::slice::from_raw_parts(chunk.other.wrapping_add(start), len)
            };
            let c = std::slice::from_raw_parts_mut(c.0, count * PANEL);
            match finish {
                Finish::Store | Finish::Add => {}
                Finish::Mask => {
                    let outputs = other(at, count * PANEL);
                    c.iter_mut().zip(outputs).for_each(|(c, &y)| *c = relu_gradient(y, *c));
                }
                Finish::Bias | Finish::BiasRelu => {
                    let bias = other(panel * PANEL, PANEL);
                    for row in c.chunks_exact_mut(PANEL) {
                        for (c, &bias) in row.iter_mut().zip(bias) {
                            let sum = *c + bias;
                            *c = if finish == Finish::Bias { sum } else { relu(sum) };
                        }
                    }
                }
            }
        }
    }
}

/// # Safety
/// The chunk's factors are as its fields say, and no other thread writes its part.
pub(super) unsafe fn weight(chunk: &WeightChunk) {
    let WeightChunk { samples, n, k, n_panel, .. } = *chunk;
    let outputs = PANEL.min(n - n_panel * PANEL);
    let d_y = chunk.d_y.wrapping_add(n_panel * samples * PANEL);
    if !chunk.d_bias.is_null() {
        // SAFETY: `d_bias` has N elements, and this chunk alone writes those of its panel.
        unsafe {
            let sums = chunk.d_bias.wrapping_add(n_panel * PANEL);
            let sums = std::slice::from_raw_parts_mut(sums, outputs);
            column_sums::panel(std::slice::from_raw_parts(d_y, samples * PANEL), sums);
        }
    }
    for panel in chunk.k_panels.clone() {
        let x = Strided(chunk.x.wrapping_add(panel * samples * PANEL), PANEL, 1);
        let start = n_panel * PANEL * k + panel * PANEL;
        let d_weight = Strided(chunk.d_weight.wrapping_add(start), k, 1);
        let extents = [outputs, PANEL.min(k - panel * PANEL), samples];
        // SAFETY: the panels lie inside the matrices; this thread alone writes its rectangle.
        unsafe { multiply(extents, [Strided(d_y, 1, PANEL), x], d_weight, false) };
    }
}

/// `c = a b`, or `c += a b`, with `a` `[m, inner]` and `b` `[inner, n]`.
///
/// # Safety
/// The strided matrices are valid for those extents, and no other thread touches `c`.
unsafe fn multiply(
    [m, n, inner]: [usize; 3],
    [a, b]: [Strided<*const f32>; 2],
    c: Strided<*mut f32>,
    add: bool,
) {
    let stride = |stride: usize| stride as isize;
    // SAFETY: the caller vouches; strides fit isize because slices of that extent exist.
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
