//! Update rules for one row, given its summed gradient. Each rule has its own file, with a scalar
//! form and a vector form that round in the same way. The scalar form is generic over the float
//! type and serves as the oracle.
//!
//! Every rule has two factors for weight decay, each of which is 0 if it is unused. The factor of
//! L2 decay is added to the gradient, and the factor of decoupled decay is applied to the weight.
//! The rules do not depend on where rows and gradients come from; `ops::embedding_backward` and
//! `ops::dense_update` supply them.

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
    /// Updates one row in scalar code. The scalar code is the specification of the vector form,
    /// bit for bit in f32.
    ///
    /// # Shapes
    /// `weights` and `gradient` are `[dim]`, and `state` is as returned by [`split_state`].
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

    /// Computes the first half of an update of a row, or of a column tile's part of it: the two
    /// sums that the rule needs of the whole row. LAMB also updates its moments. Rules of single
    /// weights need no sums.
    ///
    /// # Shapes
    /// As for [`Self::update_row`].
    pub fn row_terms(&self, weights: &[R], gradient: &[R], state: [&mut [R]; 2]) -> [R; 2] {
        match self.kind {
            Optimizer::RowwiseAdagrad => rowwise_adagrad::terms(self, weights, gradient),
            Optimizer::Lamb => lamb::terms(self, weights, gradient, state),
            _ => [R::ZERO; 2],
        }
    }

    /// Computes the second half of an update, with the terms of the whole row.
    ///
    /// # Shapes
    /// As for [`Self::update_row`].
    pub fn finish_row(
        &self,
        terms: [R; 2],
        weights: &mut [R],
        gradient: &[R],
        state: [&mut [R]; 2],
    ) {
        match self.kind {
            Optimizer::RowwiseAdagrad => {
                let [state, _] = state;
                rowwise_adagrad::finish(self, terms, weights, gradient, &mut state[0]);
            }
            Optimizer::Lamb => lamb::apply(self, lamb::ratio(terms), weights, state),
            _ => self.update_row(weights, gradient, state),
        }
    }
}

/// Splits the state of a row into its parts: first the sums or means, then the mean squares if
/// the rule keeps any.
#[inline(always)]
pub fn split_state<R>(kind: Optimizer, state: &mut [R]) -> [&mut [R]; 2] {
    let (first, second) = state.split_at_mut(state.len() / kind.state_names().len().max(1));
    [first, second]
}

impl UpdateRule {
    /// Updates one row with vectors of type `V`. The shapes are those of
    /// [`UpdateRule::update_row`].
    ///
    /// # Safety
    /// The caller guarantees that the machine has the instruction set of `V`, and is compiled
    /// with its features.
    #[expect(unsafe_code, reason = "calls vector instructions")]
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
    /// Computes the first half of an update with vectors of type `V`, like
    /// [`UpdateRule::row_terms`].
    ///
    /// # Safety
    /// As for [`Self::update_row_vector`].
    #[expect(unsafe_code, reason = "calls vector instructions")]
    #[inline(always)]
    pub(crate) unsafe fn row_terms_vector<V: Vector>(
        &self,
        weights: &[f32],
        gradient: &[f32],
        state: [&mut [f32]; 2],
    ) -> [f32; 2] {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            match self.kind {
                Optimizer::RowwiseAdagrad => {
                    rowwise_adagrad::terms_vector::<V>(self, weights, gradient)
                }
                Optimizer::Lamb => lamb::terms_vector::<V>(self, weights, gradient, state),
                _ => [0.0; 2],
            }
        }
    }

    /// Computes the second half of an update with vectors of type `V`, like
    /// [`UpdateRule::finish_row`].
    ///
    /// # Safety
    /// As for [`Self::update_row_vector`].
    #[expect(unsafe_code, reason = "calls vector instructions")]
    #[inline(always)]
    pub(crate) unsafe fn finish_row_vector<V: Vector>(
        &self,
        terms: [f32; 2],
        weights: &mut [f32],
        gradient: &[f32],
        state: [&mut [f32]; 2],
    ) {
        // SAFETY: the caller guarantees the instruction set of `V`.
        unsafe {
            match self.kind {
                Optimizer::RowwiseAdagrad => {
                    let [state, _] = state;
                    let state = &mut state[0];
                    rowwise_adagrad::finish_vector::<V>(self, terms, weights, gradient, state);
                }
                Optimizer::Lamb => {
                    lamb::apply_vector::<V>(self, lamb::ratio(terms), weights, state);
                }
                _ => self.update_row_vector::<V>(weights, gradient, state),
            }
        }
    }
}
