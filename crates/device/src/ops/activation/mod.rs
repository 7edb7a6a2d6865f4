//! Element-wise activations: the gradient of ReLU where no product precedes it, and the sigmoid.
//! ReLU itself is fused into `gemm`. Works on plain elements, in chunks of a fixed length, without
//! regard to the shape of a matrix.
//!
//! One loop serves every instruction set, because the compiler vectorizes it and memory is the
//! limit.

pub mod cuda;
pub mod scalar;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Elements of a chunk: 64 KiB, which fit in the second-level cache.
const CHUNK: usize = 16_384;

/// `d_y = 0 where y ≤ 0`, in place, from the output `y` of a ReLU.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ, before any work.
pub fn relu_backward(cpu: &Cpu, y: &[f32], d_y: &mut [f32]) -> Result<(), Error> {
    extent::check("relu backward", "y, one per element of d_y", d_y.len(), y.len())?;
    cpu.pool.run_slices(d_y, CHUNK, |chunk, d_y| {
        for (d_y, &y) in d_y.iter_mut().zip(&y[chunk * CHUNK..]) {
            *d_y = scalar::relu_gradient(y, *d_y);
        }
    });
    Ok(())
}

/// `probabilities = 1 / (1 + e^−logits)`, overwritten; computed in f64 and rounded once.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ, before any work.
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
