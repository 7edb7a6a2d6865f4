//! The optimizer step of a weight, applied to each part of the weight as soon as the product has
//! computed the gradient of that part.
//!
//! ```text
//! apart:  product writes dW │ update reads dW, reads and writes W, writes the form
//! fused:  product writes dW, asks for W and the form │ update of 64 KiB of dW, all of it in L2
//! ```
//! Memory is idle while a product computes, so the memory traffic of the update is hidden.
#![expect(unsafe_code, reason = "parts of a weight are not contiguous slices")]

use std::ops::Range;

use schema::{Granularity, Optimizer};

use super::piece::{ParameterPiece, PieceTask};
use super::{CHUNK, run_piece, state_len};
use crate::MatrixShape;
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::panels::{self, PANEL};
use crate::ops::gemm::{self, Beside, Consumer, LinearBackwardWeight, LinearWeight, Renewal};
use crate::optimizer::{UpdateRule, split_state};

/// Arguments of [`run_with_gradient`]: a weight, its state, and the product that computes its
/// gradient.
#[derive(Debug)]
pub struct FusedArguments<'a> {
    /// The update rule with this step's constants. [`is_fused`] must hold for its kind.
    pub rule: UpdateRule,
    /// The weight, `[N, K]`, updated in place together with the copies that products read.
    pub weight: &'a mut LinearWeight,
    /// Optimizer state, which has [`state_len`] values.
    pub state: &'a mut [f32],
    /// The product that computes the gradient of the weight.
    pub product: LinearBackwardWeight<'a>,
}

/// Returns whether the rule updates each value independently, so that it can be fused. Row-wise
/// Adagrad needs whole rows of the gradient, and LAMB needs the whole gradient.
#[must_use]
pub fn is_fused(optimizer: Optimizer) -> bool {
    optimizer.granularity() == Granularity::Element
}

/// Runs [`gemm::backward_weight`] and then [`run_weight`](super::run_weight), fused into one
/// pass.
///
/// # Cost
/// The arithmetic of both functions. Most memory traffic of the update is hidden behind the
/// arithmetic of the product.
/// # Numerics
/// The results have the same bytes as those of the two functions in sequence.
/// # Errors
/// Fails with [`Error::Shape`] or [`Error::Precision`] before any work.
/// # Panics
/// Panics if the rule [is not fused](is_fused).
pub fn run_with_gradient(cpu: &Cpu, arguments: FusedArguments<'_>) -> Result<(), Error> {
    const OP: &str = "dense_update";
    let FusedArguments { rule, weight, state, product } = arguments;
    assert!(is_fused(rule.kind), "{:?} needs the whole gradient", rule.kind);
    let shape @ MatrixShape { rows: n, columns: k } = weight.shape();
    extent::check(OP, "outputs of the product", n, product.n)?;
    extent::check(OP, "inputs of the product", k, product.k)?;
    extent::check(OP, "state", state_len(rule.kind, shape), state.len())?;
    let (values, renewal) = weight.parts_mut(cpu);
    let states = split_state(rule.kind, state).map(DisjointMut::new);
    let values = DisjointMut::new(values);
    let update = Update { isa: cpu.isa, rule, n, values, states, renewal };
    gemm::backward_weight_into(cpu, product, Some(&update))
}

/// A weight and its optimizer state while the fused product updates them.
struct Update<'a> {
    isa: Isa,
    rule: UpdateRule,
    n: usize,
    values: DisjointMut<'a, f32>,
    /// Optimizer state in the layout of the values; a slice is empty if the rule does not use it.
    states: [DisjointMut<'a, f32>; 2],
    renewal: Renewal<'a>,
}

impl Consumer for Update<'_> {
    fn beside(&self) -> Beside {
        Beside { values: self.values.as_ptr(), forward: self.renewal.forward() }
    }

    unsafe fn take(&self, panel: usize, rows: Range<usize>, gradient: &[f32]) {
        let place = panels::rows_of(self.n, panel, &rows);
        // SAFETY: the caller passes each row inside the weight once, and a state slice that is
        // not empty has the same length as the values.
        unsafe {
            let state = self
                .states
                .each_ref()
                .map(|state| state.part(if state.is_empty() { 0..0 } else { place.clone() }));
            let weights = self.values.part(place);
            let squares = [0.0; 2];
            let first = (panel, rows.start * PANEL);
            let mut piece = ParameterPiece { place: first, weights, gradient, state, squares };
            let (task, renewal) = (PieceTask::Update { row: CHUNK }, Some(&self.renewal));
            run_piece(&mut piece, self.isa, &self.rule, task, renewal);
        }
    }
}
