//! Element-wise activations: the gradient of a ReLU that no product precedes, and the sigmoid.
//! ReLU itself is fused into `gemm`. The activations work on chunks of a fixed number of elements
//! and ignore the shape of a matrix.
//!
//! One loop serves every instruction set, because the compiler vectorizes it and memory is the
//! bottleneck.

pub mod cuda;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Number of elements in a chunk, 64 KiB of f32, which fit in the second-level cache.
const CHUNK: usize = 16_384;

/// Applies the gradient of ReLU in place: `d_y = 0 where y ≤ 0`, for the output `y` of a ReLU.
///
/// # Errors
/// Fails with [`Error::Shape`] if the lengths differ, before any work.
pub fn relu_backward(cpu: &Cpu, y: &[f32], d_y: &mut [f32]) -> Result<(), Error> {
    extent::check("relu backward", "y, one per element of d_y", d_y.len(), y.len())?;
    cpu.pool.run_slices(d_y, CHUNK, |chunk, d_y| {
        for (d_y, &y) in d_y.iter_mut().zip(&y[chunk * CHUNK..]) {
            *d_y = scalar::relu_gradient(y, *d_y);
        }
    });
    Ok(())
}

/// Computes `probabilities = 1 / (1 + e^−logits)` in f64, rounded once to f32.
///
/// # Errors
/// Fails with [`Error::Shape`] if the lengths differ, before any work.
pub fn sigmoid(cpu: &Cpu, logits: &[f32], probabilities: &mut [f32]) -> Result<(), Error> {
    const OP: &str = "sigmoid";
    extent::check(OP, "probabilities, one per logit", logits.len(), probabilities.len())?;
    cpu.pool.run_slices(probabilities, CHUNK, |chunk, probabilities| {
        for (probability, &logit) in probabilities.iter_mut().zip(&logits[chunk * CHUNK..]) {
            *probability = scalar::sigmoid(f64::from(logit)) as f32;
        }
    });
    Ok(())
}
