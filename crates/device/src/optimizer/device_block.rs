//! Encodes an update rule in the byte layout that kernels read, `struct Rule` of `rule.cu`. The
//! host writes the block before a step, so that the launches of every step have the same
//! arguments.

use schema::Optimizer;
use schema::random::CounterRng;

use super::rule::UpdateRule;
use crate::cuda::KernelArguments;

/// Size of the encoded rule in bytes.
pub const BYTES: usize = 48;

/// Encodes `rule` together with the random bits of this step.
#[must_use]
pub fn bytes(rule: &UpdateRule, rounding: CounterRng) -> Vec<u8> {
    let kind = match rule.kind {
        Optimizer::Sgd => 0,
        Optimizer::Adagrad => 1,
        Optimizer::RowwiseAdagrad => 2,
        Optimizer::Adam | Optimizer::SparseAdam => 3,
        Optimizer::Lamb => 4,
    };
    let factors = [rule.learning_rate, rule.epsilon, rule.l2, rule.decoupled];
    let moments = [rule.mean.take, rule.mean.correction, rule.square.take, rule.square.correction];
    let numbers = factors.into_iter().chain(moments);
    let block = numbers.fold(KernelArguments::new().u32(kind), KernelArguments::f32);
    block.u32(0).u64(rounding.key()).bytes()
}
