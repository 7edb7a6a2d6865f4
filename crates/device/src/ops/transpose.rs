//! Transposes 4 × 4 blocks of values within registers.

/// Number of rows and of columns in a block.
pub(crate) const BLOCK: usize = 4;

/// Transposes a block within four SSE registers.
#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "the compiler would use scalar moves, which cost as much as the product"
)]
#[inline(always)]
pub(crate) fn transpose_block(rows: [[f32; BLOCK]; BLOCK]) -> [[f32; BLOCK]; BLOCK] {
    use std::arch::x86_64::{
        __m128, _mm_movehl_ps, _mm_movelh_ps, _mm_unpackhi_ps, _mm_unpacklo_ps,
    };
    // SAFETY: a register and a row both consist of four floats, and every x86-64 CPU has SSE.
    unsafe {
        let [a, b, c, d]: [__m128; BLOCK] = std::mem::transmute(rows);
        let (ab, cd) = (_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d));
        std::mem::transmute([
            _mm_movelh_ps(ab, cd),
            _mm_movehl_ps(cd, ab),
            _mm_movelh_ps(ab_high, cd_high),
            _mm_movehl_ps(cd_high, ab_high),
        ])
    }
}

/// Transposes a block in plain Rust, on machines without SSE.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn transpose_block(rows: [[f32; BLOCK]; BLOCK]) -> [[f32; BLOCK]; BLOCK] {
    std::array::from_fn(|d| std::array::from_fn(|row| rows[row][d]))
}
