//! The optimizer step of dense parameters, in place, from a whole gradient. [`run`] updates a
//! parameter in plain rows. [`run_weight`] updates a weight in panels and the copies that its
//! products read. Most weight updates are fused into the product that computes the gradient
//! ([`run_with_gradient`]). The update rules are in [`crate::optimizer`]; this module only cuts
//! parameters into chunks.
#![expect(unsafe_code, reason = "rows of panels are not contiguous slices")]

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

/// Number of elements in a chunk. Under row-wise Adagrad it is rounded up to whole rows.
const CHUNK: usize = lamb::BLOCK;

/// Arguments of [`run`]: a parameter in plain rows, its gradient and its optimizer state.
#[derive(Debug)]
pub struct DenseUpdate<'a> {
    /// The update rule with this step's constants.
    pub rule: UpdateRule,
    /// Parameter values, `[rows, dim]`, updated in place.
    pub weights: &'a mut [f32],
    /// Gradient of the parameter, `[rows, dim]`.
    pub gradient: &'a [f32],
    /// Optimizer state of the parameter. SGD has no state; Adagrad has `[rows, dim]`, row-wise
    /// Adagrad `[rows]`, and Adam, SparseAdam and LAMB have `[2, rows, dim]` (means, then mean
    /// squares).
    pub state: &'a mut [f32],
    /// Number of elements per row, used only by row-wise Adagrad. A bias is one row.
    pub dim: usize,
}

/// Updates every value of a parameter once. LAMB treats the parameter as one row, so it computes
/// one ratio per tensor.
///
/// # Cost
/// Bandwidth-bound. Reads 8 bytes and writes 4 per parameter value, and reads and writes 4 bytes
/// per state value. LAMB reads weights and state a second time.
/// # Numerics
/// The results are bit-identical to those of [`scalar::update`] for every instruction set and
/// number of threads.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
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

/// Arguments of [`run_weight`]: a weight in panels, its gradient and its optimizer state.
#[derive(Debug)]
pub struct WeightArguments<'a> {
    /// The update rule with this step's constants.
    pub rule: UpdateRule,
    /// The weight, `[N, K]`, updated in place together with the copies that products read.
    pub weight: &'a mut LinearWeight,
    /// Gradient of the weight, `[N, K]` in panels, with zeros beyond the last column.
    pub gradient: &'a [f32],
    /// Optimizer state of the weight, [`state_len`] values. SGD has no state; Adagrad has panels,
    /// row-wise Adagrad `[N]`, and Adam, SparseAdam and LAMB have panels of means followed by
    /// panels of mean squares.
    pub state: &'a mut [f32],
}

/// Returns the number of state values that `optimizer` keeps for a weight.
#[must_use]
pub fn state_len(optimizer: Optimizer, shape: MatrixShape) -> usize {
    let MatrixShape { rows: n, columns: k } = shape;
    match optimizer.granularity() {
        Granularity::Row => n * optimizer.state_per_row(k),
        _ => optimizer.state_per_row(panels::len(n, k)),
    }
}

/// Updates every value of a weight, like [`run`] on the row-major weight. LAMB's sums of squares
/// are added panel by panel.
///
/// # Cost
/// The cost of [`run`], and 4 more bytes written per weight value for the copies that products
/// read. Row-wise Adagrad copies the rows out of the panels and back.
/// # Errors
/// Fails with [`Error::Shape`] if an argument has the wrong size, before any work.
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

/// Applies the rule to all pieces. The copies of the weights for products are refreshed while the
/// weights are still in the cache.
fn update(
    cpu: &Cpu,
    rule: &UpdateRule,
    row: usize,
    pieces: &mut [ParameterPiece<'_>],
    renewal: Option<&Renewal<'_>>,
) {
    // LAMB's ratio depends on the whole parameter, so a first pass computes the moments of all
    // pieces. The sums of squares of the pieces are added in order, whichever thread computed
    // them.
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

/// Splits a parameter into runs of `run` elements and each run into pieces of `len` elements.
/// Each piece gets its part of the optimizer state.
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
            // An optimizer state has one value per element, one value per row, or no values.
            // Pieces never divide a row.
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
            // SAFETY: `cut` made pieces of whole rows of one panel that do not overlap, and each
            // piece is run once.
            unsafe { run_piece(piece, cpu.isa, rule, task, renewal) };
        }
    });
}

/// Runs the task on a piece, and refreshes the copies of its weights while they are in the cache.
///
/// # Safety
/// The caller guarantees that a piece with a renewal holds whole rows of one panel, and that no
/// other thread renews these rows.
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
        // SAFETY: the caller guarantees that the piece has whole rows of one panel, which no
        // other thread renews.
        unsafe { renewal.renew(panel, first / PANEL, piece.weights) };
    }
}

/// A weight `[n, k]` in panels, its gradient, and the state of each of its `n` rows.
struct WholeRows<'a> {
    shape: MatrixShape,
    values: &'a mut [f32],
    gradient: &'a [f32],
    state: &'a mut [f32],
}

/// Applies row-wise Adagrad, whose step for an element depends on the whole row of the gradient.
fn update_rows(cpu: &Cpu, rule: &UpdateRule, weight: WholeRows<'_>, renewal: &Renewal<'_>) {
    let WholeRows { shape: MatrixShape { rows: n, columns: k }, values, gradient, state } = weight;
    let values = DisjointMut::new(values);
    cpu.pool.run_slices(state, PANEL, |chunk, state| {
        let rows = chunk * PANEL..chunk * PANEL + state.len();
        let [mut weights, mut gradients] = [(); 2].map(|()| vec![0.0; state.len() * k]);
        for panel in 0..panels::count(k) {
            let range = panels::rows_of(n, panel, &rows);
            // SAFETY: `range` lies inside the values, and each chunk accesses only its own rows.
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
            // SAFETY: the range lies inside the values, and each chunk accesses only its own
            // rows.
            let values = unsafe { values.part(panels::rows_of(n, panel, &rows)) };
            for (from, to) in each_row(&mut weights, k, panel).zip(values.chunks_exact_mut(PANEL)) {
                to[..from.len()].copy_from_slice(from);
            }
            // SAFETY: each chunk renews only its own rows of the weight's copies.
            unsafe { renewal.renew(panel, rows.start, values) };
        }
    });
}

/// Iterates over the part of each row of `k` elements that lies in `panel`.
fn each_row(rows: &mut [f32], k: usize, panel: usize) -> impl Iterator<Item = &mut [f32]> {
    rows.chunks_exact_mut(k).map(move |row| &mut row[panel * PANEL..k.min((panel + 1) * PANEL)])
}
