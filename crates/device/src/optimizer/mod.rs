//! Update rules for one row, given its summed gradient: one file per rule, each with a scalar form
//! (generic over the float, the oracle) and a vector form with the same rounding.
//!
//! Knows nothing of where rows and gradients come from; see `ops::embedding_backward` and
//! `ops::dense_update` for those.

pub mod adagrad;
pub mod rowwise_adagrad;
pub mod sgd;

use schema::Optimizer;

use crate::cpu::vector::Vector;
use crate::real::Real;

/// A rule with this step's constants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule<R = f32> {
    /// Which formula.
    pub kind: Optimizer,
    /// η of this step, schedule included.
    pub learning_rate: R,
    /// ε, added outside the root; unused by SGD.
    pub epsilon: R,
}

impl<R: Real> Rule<R> {
    /// Updates one row in scalar code: the specification of the vector form, bit for bit in f32.
    ///
    /// # Shapes
    /// `weights` and `gradient` `[dim]`; `state` `[Optimizer::state_per_row(dim)]`.
    #[inline]
    pub fn update_row(&self, weights: &mut [R], gradient: &[R], state: &mut [R]) {
        match self.kind {
            Optimizer::Sgd => sgd::update_row(self, weights, gradient),
            Optimizer::Adagrad => adagrad::update_row(self, weights, gradient, state),
            Optimizer::RowwiseAdagrad => {
                rowwise_adagrad::update_row(self, weights, gradient, &mut state[0]);
            }
        }
    }
}

impl Rule {
    /// Updates one row with vectors of `V`; shapes as in [`Rule::update_row`].
    ///
    /// # Safety
    /// The machine has the instruction set of `V`, and the caller is compiled with its features.
    #[expect(unsafe_code, reason = "vector instructions")]
    #[inline(always)]
    pub(crate) unsafe fn update_row_vector<V: Vector>(
        &self,
        weights: &mut [f32],
        gradient: &[f32],
        state: &mut [f32],
    ) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe {
            match self.kind {
                Optimizer::Sgd => sgd::update_row_vector::<V>(self, weights, gradient),
                Optimizer::Adagrad => {
                    adagrad::update_row_vector::<V>(self, weights, gradient, state);
                }
                Optimizer::RowwiseAdagrad => {
                    let state = &mut state[0];
                    rowwise_adagrad::update_row_vector::<V>(self, weights, gradient, state);
                }
            }
        }
    }
}
