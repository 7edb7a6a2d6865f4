//! The dense update with vector instructions: the vector rules of [`crate::optimizer`] on
//! consecutive rows. The vector rules round exactly like the scalar rules, so results do not
//! depend on the instruction set.

use super::piece::{ParameterPiece, PieceTask};
use crate::cpu::Isa;
use crate::optimizer::{UpdateRule, lamb};

/// Runs the task on one piece with the instructions of `isa`.
pub(super) fn run(isa: Isa, rule: &UpdateRule, task: PieceTask, piece: &mut ParameterPiece<'_>) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::run_avx2(token, rule, task, piece),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::run_avx512(token, rule, task, piece),
        _ => run_scalar(rule, task, piece),
    }
}

fn run_scalar(rule: &UpdateRule, task: PieceTask, piece: &mut ParameterPiece<'_>) {
    let ParameterPiece { weights, gradient, state: [first, second], squares, .. } = piece;
    match task {
        PieceTask::Update { row } => {
            for_rows(weights, gradient, [first, second], row, |weights, gradient, state| {
                rule.update_row(weights, gradient, state);
            });
        }
        PieceTask::Moments => *squares = lamb::moments(rule, weights, gradient, [first, second]),
        PieceTask::Apply { ratio } => lamb::apply(rule, ratio, weights, [first, second]),
    }
}

/// Calls `update` with each row of `row` elements and its state.
#[inline(always)]
fn for_rows(
    weights: &mut [f32],
    gradient: &[f32],
    [first, second]: [&mut [f32]; 2],
    row: usize,
    mut update: impl FnMut(&mut [f32], &[f32], [&mut [f32]; 2]),
) {
    let rows = weights.len().div_ceil(row);
    let (per_first, per_second) = (first.len().div_ceil(rows), second.len().div_ceil(rows));
    for (at, (weights, gradient)) in weights.chunks_mut(row).zip(gradient.chunks(row)).enumerate() {
        let first = &mut first[at * per_first..][..per_first];
        let second = &mut second[at * per_second..][..per_second];
        update(weights, gradient, [first, second]);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(unsafe_code, reason = "calls functions that need an instruction set")]

    use super::{ParameterPiece, PieceTask, UpdateRule, for_rows, lamb};
    use crate::cpu::vector::Vector;
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512};

    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, and is compiled
    /// with its features.
    #[inline(always)]
    unsafe fn run<V: Vector>(rule: &UpdateRule, task: PieceTask, piece: &mut ParameterPiece<'_>) {
        let ParameterPiece { weights, gradient, state: [first, second], squares, .. } = piece;
        match task {
            PieceTask::Update { row } => {
                for_rows(weights, gradient, [first, second], row, |weights, gradient, state| {
                    // SAFETY: the caller guarantees the instruction set of `V`.
                    unsafe { rule.update_row_vector::<V>(weights, gradient, state) }
                });
            }
            // SAFETY: the caller guarantees the instruction set of `V`.
            PieceTask::Moments => unsafe {
                *squares = lamb::moments_vector::<V>(rule, weights, gradient, [first, second]);
            },
            // SAFETY: the caller guarantees the instruction set of `V`.
            PieceTask::Apply { ratio } => unsafe {
                lamb::apply_vector::<V>(rule, ratio, weights, [first, second]);
            },
        }
    }

    macro_rules! entry {
        ($token:ty, $vector:ty, $features:literal, $name:ident) => {
            pub(super) fn $name(
                _proof: $token,
                rule: &UpdateRule,
                task: PieceTask,
                piece: &mut ParameterPiece<'_>,
            ) {
                #[target_feature(enable = $features)]
                fn compiled(rule: &UpdateRule, task: PieceTask, piece: &mut ParameterPiece<'_>) {
                    // SAFETY: this function is compiled with the features of the vector type, and
                    // the token of its caller proved that the machine has them.
                    unsafe { run::<$vector>(rule, task, piece) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { compiled(rule, task, piece) }
            }
        };
    }

    entry!(Avx2, Float8, "avx2,fma", run_avx2);
    entry!(Avx512, Float16, "avx512f,avx512vl,avx512bw,avx512dq", run_avx512);
}
