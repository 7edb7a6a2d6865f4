//! The dense update with vectors: the vector rules of [`crate::optimizer`] on consecutive rows.
//! They round as the scalar ones do, so the instruction set does not change a bit.

use crate::cpu::Isa;
use crate::optimizer::Rule;

/// One chunk, with the instructions of `isa`; see [`super::scalar::update`].
pub(super) fn update(
    isa: Isa,
    rule: &Rule,
    parameters: [&mut [f32]; 2],
    (gradient, dim): (&[f32], usize),
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2(token) => x86::update_avx2(token, rule, parameters, (gradient, dim)),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512(token) => x86::update_avx512(token, rule, parameters, (gradient, dim)),
        _ => super::scalar::update(rule, parameters, (gradient, dim)),
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(unsafe_code, reason = "functions of an instruction set, entered with its token")]

    use super::Rule;
    use crate::cpu::vector::Vector;
    use crate::cpu::vector::x86::{Float8, Float16};
    use crate::cpu::{Avx2, Avx512};

    /// # Safety
    /// The machine has the instruction set of `V`, and the caller is compiled with its features.
    #[inline(always)]
    unsafe fn update_rows<V: Vector>(
        rule: &Rule,
        [weights, state]: [&mut [f32]; 2],
        (gradient, dim): (&[f32], usize),
    ) {
        let per_row = rule.kind.state_per_row(dim);
        let rows = weights.chunks_mut(dim).zip(gradient.chunks(dim));
        for (row, (weights, gradient)) in rows.enumerate() {
            let end = state.len().min((row + 1) * per_row);
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                rule.update_row_vector::<V>(weights, gradient, &mut state[row * per_row..end]);
            }
        }
    }

    macro_rules! entry {
        ($token:ty, $vector:ty, $features:literal, $name:ident) => {
            pub(super) fn $name(
                _proof: $token,
                rule: &Rule,
                parameters: [&mut [f32]; 2],
                gradient: (&[f32], usize),
            ) {
                #[target_feature(enable = $features)]
                fn compiled(rule: &Rule, parameters: [&mut [f32]; 2], gradient: (&[f32], usize)) {
                    // SAFETY: this function is compiled with the features of the vector.
                    unsafe { update_rows::<$vector>(rule, parameters, gradient) }
                }
                // SAFETY: the token proves that the machine has the instruction set.
                unsafe { compiled(rule, parameters, gradient) }
            }
        };
    }

    entry!(Avx2, Float8, "avx2,fma", update_avx2);
    entry!(Avx512, Float16, "avx512f,avx512vl,avx512bw,avx512dq", update_avx512);
}
