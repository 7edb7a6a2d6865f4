//! The optimizer step of dense parameters, in place, from a whole gradient: on plain rows
//! ([`run`]), or on a weight in panels and the copies its products read ([`run_weight`]). Most
//! weight updates are fused into the product that computes the gradient ([`run_with_gradient`]).
//! The rules are [`crate::optimizer`]'s; this module only cuts parameters into chunks.
#![expect(unsafe_code, reason = "rows of panels are scattered, so slices cannot part them")]

pub mod cuda;
mod fused;
mod piece;
pub mod scalar;
mod simd;

pub use fused::{FusedArguments, is_fused, run_with_gradient};
use schema::{Granularity, Optimizer};

use crate::MatrixShape;
use crate::cpu::{Cpu, DisjointMut, Isa};
use crate::error::Error;
use crate::ops::extent;
use crate::ops::gemm::panels::{self, PANEL};
use crate::ops::gemm::{LinearWeight, Renewal};
use crate::optimizer::{UpdateRule, lamb, split_state};
use piece::{ParameterPiece, PieceTask};

/// Elements of a chunk; under row-wise Adagrad chunks hold whole rows.
const CHUNK: usize = lamb::BLOCK;

/// Arguments of [`run`]: a parameter in plain rows, its gradient and its state.
#[derive(Debug)]
pub struct DenseUpdate<'a> {
    /// The rule with this step's constants.
    pub rule: UpdateRule,
    /// Parameters, `[rows, dim]`, updated in place.
    pub weights: &'a mut [f32],
    /// Gradient, `[rows, dim]`.
    pub gradient: &'a [f32],
    /// Optimizer state: nothing for SGD, `[rows, dim]` for Adagrad, `[rows]` for row-wise Adagrad,
    /// `[2, rows, dim]` (means, then mean squares) for Adam, SparseAdam and LAMB.
    pub state: &'a mut [f32],
    /// Elements of a row, used only by row-wise Adagrad; a bias is one row.
    pub dim: usize,
}

/// Updates every value once. LAMB treats the parameter as one row, so it has one ratio per tensor.
///
/// # Cost
/// Reads 8 bytes and writes 4 per parameter, and both reads and writes 4 per state value:
/// bandwidth-bound. LAMB reads weights and state a second time.
/// # Numerics
/// The bytes of [`scalar::update`] on every instruction set and for any thread count.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn run(cpu: &Cpu, arguments: DenseUpdate<'_>) -> Result<(), Error> {
    const OP: &str = "dense_update";
    let DenseUpdate { rule, weights, gradient, state, dim } = arguments;
    let rows = weights.len().checked_div(dim).unwrap_or(0);
    extent::check(OP, "weights [rows, dim]", rows * dim, weights.len())?;
    extent::check(OP, "gradient [rows, dim]", weights.len(), gradient.len())?;
    extent::check(OP, "state", rows * rule.kind.state_per_row(dim), state.len())?;
    if weights.is_empty() {
        return Ok(());
    }
    // Only row-wise Adagrad depends on rows. For all other rules, any division into chunks gives
    // the same result.
    let row = if rule.kind.granularity() == Granularity::Row { dim } else { CHUNK };
    let parts = split_state(rule.kind, state);
    let whole = weights.len();
    let mut pieces = cut(weights, gradient, parts, whole, CHUNK.next_multiple_of(row));
    update(cpu, &rule, row, &mut pieces, None);
    Ok(())
}

/// Arguments of [`run_weight`]: a weight in panels, its gradient and its state.
#[derive(Debug)]
pub struct WeightArguments<'a> {
    /// The rule with this step's constants.
    pub rule: UpdateRule,
    /// `[N, K]`, updated in place with the forms that products read.
    pub weight: &'a mut LinearWeight,
    /// Gradient, `[N, K]` in panels, zeros beyond the last column.
    pub gradient: &'a [f32],
    /// Optimizer state, [`state_len`] values: nothing for SGD, panels for Adagrad, `[N]` for
    /// row-wise Adagrad, panels of means and then of mean squares for Adam, SparseAdam and LAMB.
    pub state: &'a mut [f32],
}

/// The number of state values that `optimizer` keeps for a weight.
#[must_use]
pub fn state_len(optimizer: Optimizer, shape: MatrixShape) -> usize {
    let MatrixShape { rows: n, columns: k } = shape;
    match optimizer.granularity() {
        Granularity::Row => n * optimizer.state_per_row(k),
        _ => optimizer.state_per_row(panels::len(n, k)),
    }
}

/// As [`run`] on the row-major weight; LAMB's sums of squares are added panel by panel.
///
/// # Cost
/// As [`run`], and 4 more bytes written per weight for the copies that products read. Row-wise
/// Adagrad copies the rows out of the panels and back.
/// # Errors
/// [`Error::Shape`] before any work.
pub fn run_weight(cpu: &Cpu, arguments: WeightArguments<'_>) -> Result<(), Error> {
    const OP: &str = "dense_update";
    let WeightArguments { rule, weight, gradient, state } = arguments;
    let shape @ MatrixShape { rows: n, .. } = weight.shape();
    let (values, renewal) = weight.parts_mut(cpu);
    extent::check(OP, "gradient [N, K] in panels", values.len(), gradient.len())?;
    extent::check(OP, "state", state_len(rule.kind, shape), state.len())?;
    if values.is_empty() {
        return Ok(());
    }
    if rule.kind.granularity() == Granularity::Row {
        let weight = WholeRows { shape, values, gradient, state };
        update_rows(cpu, &rule, weight, &renewal);
        return Ok(());
    }
    let parts = split_state(rule.kind, state);
    let mut pieces = cut(values, gradient, parts, n * PANEL, CHUNK);
    update(cpu, &rule, CHUNK, &mut pieces, Some(&renewal));
    Ok(())
}

/// Applies the rule to all pieces. The copies of the weights are refreshed while the weights are in
/// the cache.
fn update(
    cpu: &Cpu,
    rule: &UpdateRule,
    row: usize,
    pieces: &mut [ParameterPiece<'_>],
    renewal: Option<&Renewal<'_>>,
) {
    let task = if rule.kind == Optimizer::Lamb {
        run_task(cpu, rule, PieceTask::Moments, pieces, None);
        let add = |sums: [f32; 2], piece: &ParameterPiece<'_>| {
            [sums[0] + piece.squares[0], sums[1] + piece.squares[1]]
        };
        PieceTask::Apply { ratio: lamb::ratio(pieces.iter().fold([0.0; 2], add)) }
    } else {
        PieceTask::Update { row }
    };
    run_task(cpu, rule, task, pieces, renewal);
}

/// Splits each `run` elements of a parameter into pieces of `len` elements, each with its part of
/// the state.
fn cut<'a>(
    weights: &'a mut [f32],
    gradient: &'a [f32],
    state: [&'a mut [f32]; 2],
    run: usize,
    len: usize,
) -> Vec<ParameterPiece<'a>> {
    let elements = weights.len();
    let lens = [state[0].len(), state[1].len()];
    let mut rest = state;
    let mut pieces = Vec::with_capacity(elements / run * run.div_ceil(len));
    for (number, (weights, gradient)) in
        weights.chunks_mut(run).zip(gradient.chunks(run)).enumerate()
    {
        let parts = weights.chunks_mut(len).zip(gradient.chunks(len)).enumerate();
        pieces.extend(parts.map(|(i, (weights, gradient))| {
            // A state has one value per element, one value per row, or none. Rows are never
            // divided.
            let share = |part: usize| {
                let own = weights.len() / (elements / lens[part].max(1)).max(1);
                rest[part].split_off_mut(..own.min(lens[part])).unwrap_or_default()
            };
            let state = [0, 1].map(share);
            ParameterPiece { place: (number, i * len), weights, gradient, state, squares: [0.0; 2] }
        }));
    }
    pieces
}

fn run_task(
    cpu: &Cpu,
    rule: &UpdateRule,
    task: PieceTask,
    pieces: &mut [ParameterPiece<'_>],
    renewal: Option<&Renewal<'_>>,
) {
    cpu.pool.run_slices(pieces, 1, |_, pieces| {
        for piece in pieces {
            // SAFETY: `cut` made pieces of whole rows of one panel that do not overlap, and each is
            // run once.
            unsafe { run_piece(piece, cpu.isa, rule, task, renewal) };
        }
    });
}

/// Runs the task on a piece, and refreshes the copies of its weights while they are in the cache.
///
/// # Safety
/// With a renewal, the piece holds whole rows of one panel, and no other thread renews them.
unsafe fn run_piece(
    piece: &mut ParameterPiece<'_>,
    isa: Isa,
    rule: &UpdateRule,
    task: PieceTask,
    renewal: Option<&Renewal<'_>>,
) {
    simd::run(isa, rule, task, piece);
    if let Some(renewal) = renewal {
        let (panel, first) = piece.place;
        // SAFETY: the caller guarantees whole rows of one panel, which no other thread renews.
        unsafe { renewal.renew(panel, first / PANEL, piece.weights) };
    }
}

/// A weight `[n, k]` in panels, its gradient, and a state of each of its `n` rows.
struct WholeRows<'a> {
    shape: MatrixShape,
    values: &'a mut [f32],
    gradient: &'a [f32],
    state: &'a mut [f32],
}

/// Applies row-wise Adagrad, whose step for an element depends on the whole row.
fn update_rows(cpu: &Cpu, rule: &UpdateRule, weight: WholeRows<'_>, renewal: &Renewal<'_>) {
    let WholeRows { shape: MatrixShape { rows: n, columns: k }, values, gradient, state } = weight;
    let values = DisjointMut::new(values);
    cpu.pool.run_slices(state, PANEL, |chunk, state| {
        let rows = chunk * PANEL..chunk * PANEL + state.len();
        let [mut weights, mut gradients] = [(); 2].map(|()| vec![0.0; state.len() * k]);
        for panel in 0..panels::count(k) {
            let range = panels::rows_of(n, panel, &rows);
            // SAFETY: the range lies inside the values, and each chunk has its own rows.
            let values = unsafe { values.part(range.clone()) };
            for (to, from) in [(&mut weights, &*values), (&mut gradients, &gradient[range])] {
                each_row(to, k, panel).zip(from.chunks_exact(PANEL)).for_each(|(to, from)| {
                    to.copy_from_slice(&from[..to.len()]);
                });
            }
        }
        let mut piece = ParameterPiece {
            place: (0, 0),
            weights: &mut weights,
            gradient: &gradients,
            state: [state, &mut []],
            squares: [0.0; 2],
        };
        simd::run(cpu.isa, rule, PieceTask::Update { row: k }, &mut piece);
        for panel in 0..panels::count(k) {
            // SAFETY: the range lies inside the values, and each chunk has its own rows.
            let values = unsafe { values.part(panels::rows_of(n, panel, &rows)) };
            for (from, to) in each_row(&mut weights, k, panel).zip(values.chunks_exact_mut(PANEL)) {
                to[..from.len()].copy_from_slice(from);
            }
            // SAFETY: each chunk renews only its own rows.
            unsafe { renewal.renew(panel, rows.start, values) };
        }
    });
}

/// Iterates over the part of each row of `k` elements that lies in `panel`.
fn each_row(rows: &mut [f32], k: usize, panel: usize) -> impl Iterator<Item = &mut [f32]> {
    rows.chunks_exact_mut(k).map(move |row| &mut row[panel * PANEL..k.min((panel + 1) * PANEL)])
}
