//! Update rules for one row, given its summed gradient: one file per rule, each with a scalar form
//! (generic over the float, the oracle) and a vector form with the same rounding.
//!
//! Every rule has two factors for weight decay, each 0 if unused: one for decay that is added to
//! the gradient (L2), and one for decay that is applied to the weight (decoupled). Independent of
//! where rows and gradients come from; see `ops::embedding_backward` and `ops::dense_update` for
//! those.

pub mod adagrad;
pub mod adam;
pub mod device_block;
pub mod lamb;
mod parts;
pub mod rowwise_adagrad;
mod rule;
pub mod sgd;

pub use rule::{RunningMean, UpdateRule};
use schema::Optimizer;

use crate::cpu::vector::Vector;
use crate::real::Real;

impl<R: Real> UpdateRule<R> {
    /// Updates one row in scalar code: the specification of the vector form, bit for bit in f32.
    ///
    /// # Shapes
    /// `weights` and `gradient` `[dim]`; `state` as returned by [`split_state`].
    #[inline]
    pub fn update_row(&self, weights: &mut [R], gradient: &[R], state: [&mut [R]; 2]) {
        let [first, second] = state;
        match self.kind {
            Optimizer::Sgd => sgd::update_row(self, weights, gradient),
            Optimizer::Adagrad => adagrad::update_row(self, weights, gradient, first),
            Optimizer::RowwiseAdagrad => {
                rowwise_adagrad::update_row(self, weights, gradient, &mut first[0]);
            }
            Optimizer::Adam | Optimizer::SparseAdam => {
                adam::update_row(self, weights, gradient, [first, second]);
            }
            Optimizer::Lamb => lamb::update_row(self, weights, gradient, [first, second]),
        }
    }
}

/// Splits a row's state into its parts: first the sums or means, then the mean squares if the rule
/// keeps any.
#[inline(always)]
pub fn split_state<R>(kind: Optimizer, state: &mut [R]) -> [&mut [R]; 2] {
    let (first, second) = state.split_at_mut(state.len() / kind.state_names().len().max(1));
    [first, second]
}

impl UpdateRule {
    /// Updates one row with vectors of `V`; shapes as in [`UpdateRule::update_row`].
    ///
    /// # Safety
    /// The machine has the instruction set of `V`, and the caller is compiled with its features.
    #[expect(unsafe_code, reason = "vector instructions")]
    #[inline(always)]
    pub(crate) unsafe fn update_row_vector<V: Vector>(
        &self,
        weights: &mut [f32],
        gradient: &[f32],
        state: [&mut [f32]; 2],
    ) {
        let [first, second] = state;
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            match self.kind {
                Optimizer::Sgd => sgd::update_row_vector::<V>(self, weights, gradient),
                Optimizer::Adagrad => {
                    adagrad::update_row_vector::<V>(self, weights, gradient, first);
                }
                Optimizer::RowwiseAdagrad => {
                    let state = &mut first[0];
                    rowwise_adagrad::update_row_vector::<V>(self, weights, gradient, state);
                }
                Optimizer::Adam | Optimizer::SparseAdam => {
                    adam::update_row_vector::<V>(self, weights, gradient, [first, second]);
                }
                Optimizer::Lamb => {
                    lamb::update_row_vector::<V>(self, weights, gradient, [first, second]);
                }
            }
        }
    }
}
