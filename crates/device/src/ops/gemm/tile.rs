//! A tile: the sums of some rows and some column registers of a product, which stay in registers.
//!
//! ```text
//! sums[row, column] = Σ_i a[row, i] · b[i, column]      over the whole inner extent
//! ```
//! A step `i` is one f32 or a pair of bf16. Both are words of 32 bits, so both precisions use the
//! same loop ([`Terms`]). The loop also prefetches the next operands, a few lines per step
//! between its multiply-adds, because prefetches in a burst stall each other and the loads after
//! them. This file sees matrices only as pointers and strides.
#![expect(unsafe_code, reason = "calls vector instructions on raw pointers to panels")]

use std::ops::Range;

use super::panels::PANEL;
use super::terms::Terms;
use crate::cpu::vector::{Vector, prefetch, prefetch_second};

/// Prefetch distance of loads, in steps.
const AHEAD: usize = 8;
/// Number of steps in one iteration of the unrolled loop.
pub(super) const STEPS: usize = 4;
/// Number of words in a cache line.
pub(super) const LINE: usize = 16;

/// The broadcast factor, with its inner extent divided into runs of consecutive steps. Step `s`
/// of row `r` of a run is at `r · row + s · step`.
#[derive(Clone, Copy)]
pub(super) struct Strip<W> {
    pub(super) first: *const W,
    /// Stride in words from one row to the next. The field `step` is the stride from one step to
    /// the next.
    pub(super) row: usize,
    pub(super) step: usize,
    pub(super) runs: usize,
    pub(super) steps: usize,
    pub(super) last_steps: usize,
    /// Stride in words from one run to the next.
    pub(super) stride: usize,
    /// The prefetch targets, of which the second and the third swap after each run.
    pub(super) ahead: [Ahead<W>; 3],
}

/// Words that later tiles read, and that are therefore prefetched into the second-level cache.
#[derive(Clone, Copy)]
pub(super) struct Ahead<W> {
    pub(super) next: *const W,
    /// Number of words to prefetch per step.
    pub(super) pace: usize,
}

impl<W> Ahead<W> {
    /// Prefetches the cache line of the next words, and advances by the words of `steps` steps.
    #[inline(always)]
    fn prefetch(&mut self, steps: usize) {
        prefetch_second(self.next);
        self.next = self.next.wrapping_add(steps * self.pace);
    }
}

impl<W> Strip<W> {
    /// Prefetches data that is read soon, at step `step + i` of `run`, where `i < STEPS` and the
    /// rows of the step begin at `at`. The target is a line of the next run's rows, or the line
    /// where the rows of a later step begin.
    #[inline(always)]
    fn prefetch_near<const R: usize>(&mut self, run: usize, step: usize, i: usize, at: *const W) {
        if self.step != 1 {
            prefetch(at.wrapping_add(AHEAD * self.step));
        } else if i < R.div_ceil(STEPS) {
            prefetch(self.row_line::<R>(run, step, i).wrapping_add(self.stride));
        } else if i + 1 == STEPS {
            self.ahead[1].prefetch(STEPS);
        }
    }

    /// Prefetches data that is read later: a line of the same run's rows in the next strip, or a
    /// line of the targets in `ahead`. The index must not come from a table, because the compiler
    /// then keeps the whole table in memory, and every product takes twice as long.
    #[inline(always)]
    fn prefetch_far<const R: usize>(&mut self, run: usize, step: usize, i: usize) {
        if self.step != 1 {
            match i {
                1 => self.ahead[1].prefetch(2),
                3 => self.ahead[2].prefetch(2),
                _ => self.ahead[0].prefetch(2),
            }
        } else if i == 0 {
            self.ahead[0].prefetch(STEPS);
        } else if i <= R.div_ceil(STEPS) {
            prefetch(self.row_line::<R>(run, step, i - 1).wrapping_add(R * self.row));
        }
    }

    /// Returns the address of line `i` among the lines that are prefetched from step `step` on.
    /// The lines belong to `R` rows of a run.
    #[inline(always)]
    fn row_line<const R: usize>(&self, run: usize, step: usize, i: usize) -> *const W {
        let line = step / STEPS * R.div_ceil(STEPS) + i;
        self.first.wrapping_add(run * self.stride + line * LINE)
    }
}

/// Computes `Σ_i a[row, i] · b[c][i · 32 + lane]` for `R` rows and `C` registers of columns. If
/// `columns` fit into one register, only that register is computed, and the others are zero.
///
/// # Safety
/// The caller guarantees that both factors are valid for as many steps as `a` has, and that the
/// machine has the registers of `T`.
#[inline(always)]
pub(super) unsafe fn sums<T: Terms, const R: usize, const C: usize>(
    a: Strip<T::Word>,
    b: [*const T::Word; C],
    columns: usize,
) -> [[T::Sum; C]; R] {
    // SAFETY: the caller guarantees the registers of `T`, and as many words of both factors as
    // `a` has steps.
    unsafe {
        if C > 2 || columns > T::Sum::LANES {
            return registers::<T, R, C>(a, b);
        }
        registers::<T, R, 1>(a, [b[0]]).map(|[low]| {
            let mut row = [T::Sum::splat(0.0); C];
            row[0] = low;
            row
        })
    }
}

/// Computes [`sums`] for all `C` registers of columns.
///
/// # Safety
/// The caller guarantees the same conditions as for [`sums`].
#[inline(always)]
unsafe fn registers<T: Terms, const R: usize, const C: usize>(
    mut a: Strip<T::Word>,
    mut b: [*const T::Word; C],
) -> [[T::Sum; C]; R] {
    // SAFETY: the caller guarantees the registers of `T`, and as many words of both factors as
    // `a` has steps. Runs are processed one by one.
    unsafe {
        let mut sums = [[T::Sum::splat(0.0); C]; R];
        let Strip { runs, steps, last_steps, .. } = a;
        // All runs except the last have the same number of steps, which the compiler can treat as
        // a constant.
        for run in 0..runs.saturating_sub(1) {
            add_run::<T, R, C>(&mut a, run, steps, b, &mut sums);
            b = b.map(|b| b.wrapping_add(steps * PANEL));
        }
        if let Some(run) = runs.checked_sub(1) {
            add_run::<T, R, C>(&mut a, run, last_steps, b, &mut sums);
        }
        sums
    }
}

/// Adds the products of the first `steps` steps of a run to the sums.
///
/// # Safety
/// The caller guarantees the same conditions as for [`sums`], and that the run belongs to `a`.
#[inline(always)]
unsafe fn add_run<T: Terms, const R: usize, const C: usize>(
    a: &mut Strip<T::Word>,
    run: usize,
    steps: usize,
    mut b: [*const T::Word; C],
    sums: &mut [[T::Sum; C]; R],
) {
    a.ahead.swap(1, 2);
    let mut at = a.first.wrapping_add(run * a.stride);
    // SAFETY: the caller guarantees the registers of `T` and the run's words of both factors. The
    // loop stops at the run's number of steps.
    unsafe {
        for step in (0..steps - steps % STEPS).step_by(STEPS) {
            asking_step::<T, R, C, 0>(a, run, step, at, b, sums);
            asking_step::<T, R, C, 1>(a, run, step, at, b, sums);
            asking_step::<T, R, C, 2>(a, run, step, at, b, sums);
            asking_step::<T, R, C, 3>(a, run, step, at, b, sums);
            at = at.wrapping_add(STEPS * a.step);
            b = b.map(|b| b.wrapping_add(STEPS * PANEL));
        }
        for _ in 0..steps % STEPS {
            add_rows::<T, R, C>(at, a.row, 0..R, b.map(|b| T::load(b)), sums);
            (at, b) = (at.wrapping_add(a.step), b.map(|b| b.wrapping_add(PANEL)));
        }
    }
}

/// Adds the products of step `step + I` of a run to the sums, and prefetches between the
/// additions.
///
/// # Safety
/// The caller guarantees the same conditions as for [`sums`], and that the run has this step.
#[inline(always)]
unsafe fn asking_step<T: Terms, const R: usize, const C: usize, const I: usize>(
    a: &mut Strip<T::Word>,
    run: usize,
    step: usize,
    at: *const T::Word,
    b: [*const T::Word; C],
    sums: &mut [[T::Sum; C]; R],
) {
    let (at, row, b) = (at.wrapping_add(I * a.step), a.row, b.map(|b| b.wrapping_add(I * PANEL)));
    // SAFETY: the caller guarantees the registers of `T` and the step's words of both factors.
    // Prefetches accept any address.
    unsafe {
        let columns = b.map(|b| T::load(b));
        prefetch(b[0].wrapping_add(AHEAD * PANEL));
        add_rows::<T, R, C>(at, row, 0..R / 4, columns, sums);
        let line = LINE / T::Sum::LANES;
        (line..C).step_by(line).for_each(|c| prefetch(b[c].wrapping_add(AHEAD * PANEL)));
        add_rows::<T, R, C>(at, row, R / 4..R / 2, columns, sums);
        a.prefetch_near::<R>(run, step, I, at);
        add_rows::<T, R, C>(at, row, R / 2..R * 3 / 4, columns, sums);
        a.prefetch_far::<R>(run, step, I);
        add_rows::<T, R, C>(at, row, R * 3 / 4..R, columns, sums);
    }
}

/// Adds one step's products for some `rows`, whose words in `a` are `row` apart. Each call
/// processes only a few rows, because the compiler keeps the sums in memory if it does not unroll
/// the loop.
///
/// # Safety
/// The caller guarantees that the machine has the registers of `T`, and that `a` has a word for
/// each of the rows.
#[inline(always)]
unsafe fn add_rows<T: Terms, const R: usize, const C: usize>(
    a: *const T::Word,
    row: usize,
    rows: Range<usize>,
    columns: [T::Factor; C],
    sums: &mut [[T::Sum; C]; R],
) {
    for r in rows {
        // SAFETY: the caller guarantees the registers of `T`, and a word of `a` for each of the
        // rows.
        unsafe {
            let factor = T::splat(*a.add(r * row));
            for (sum, &columns) in sums[r].iter_mut().zip(&columns) {
                *sum = T::multiply_add(factor, columns, *sum);
            }
        }
    }
}
