//! The loss of a batch: the sum over its samples, the gradient with respect to the logits, and
//! the probabilities. This module does not depend on layers, and the caller chooses the divisor
//! of the sum.
//!
//! All values are computed in f64. With one logit per sample, the cost is negligible.

pub mod cuda;
pub mod scalar;

use schema::Loss;

use crate::cpu::Cpu;
use crate::error::Error;
use crate::ops::extent;

/// Number of samples in a chunk.
const CHUNK: usize = 512;

/// Arguments of [`run`]: logits and labels, and the outputs to write.
#[derive(Debug)]
pub struct LossArguments<'a> {
    pub kind: Loss,
    /// Logits of the samples, `[B]`.
    pub logits: &'a [f32],
    /// Labels of the samples, in `0..=1`, `[B]`.
    pub labels: &'a [f32],
    /// Divisor of the sum of losses, which is the batch size over all ranks.
    pub normaliser: f64,
    /// Gradient of the divided sum with respect to the logits, `[B]`, overwritten.
    pub gradient: &'a mut [f32],
    /// Probabilities of the samples, `sigmoid(logit)`, `[B]`, overwritten.
    pub probabilities: &'a mut [f32],
}

/// Computes the loss of a batch and returns the undivided sum of the samples' losses.
/// [`scalar::sample`] has the formulas.
///
/// # Numerics
/// All values are computed in f64 and are finite for every finite logit. Gradient and probability
/// are rounded once. Chunks of 512 samples are summed in order, so the results have the same
/// bytes for any number of threads and instruction set.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
pub fn run(cpu: &Cpu, arguments: LossArguments<'_>) -> Result<f64, Error> {
    const OP: &str = "loss";
    let LossArguments { kind, logits, labels, normaliser, gradient, probabilities } = arguments;
    extent::check(OP, "labels [B]", logits.len(), labels.len())?;
    extent::check(OP, "gradient [B]", logits.len(), gradient.len())?;
    extent::check(OP, "probabilities [B]", logits.len(), probabilities.len())?;
    let inputs = logits.chunks(CHUNK).zip(labels.chunks(CHUNK));
    let outputs = gradient.chunks_mut(CHUNK).zip(probabilities.chunks_mut(CHUNK));
    let mut parts: Vec<_> = inputs.zip(outputs).map(|slices| (slices, 0.0f64)).collect();
    cpu.pool.run_slices(&mut parts, 1, |_, parts| {
        for (((logits, labels), (gradient, probabilities)), sum) in parts {
            let samples = logits.iter().zip(*labels);
            let outputs = gradient.iter_mut().zip(probabilities.iter_mut());
            for ((&logit, &label), (gradient, probability)) in samples.zip(outputs) {
                let sample = scalar::sample(kind, f64::from(logit), f64::from(label));
                *sum += sample.loss;
                *gradient = (sample.gradient / normaliser) as f32;
                *probability = sample.probability as f32;
            }
        }
    });
    Ok(parts.iter().map(|(_, sum)| sum).sum())
}
