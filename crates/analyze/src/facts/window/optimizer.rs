//! Infers the steps of a trace without `ProfilerStep` annotations from the annotations of the
//! optimizer.
//!
//! An on-demand recording has no `ProfilerStep`, because nobody in the job calls `profiler.step()`.
//! PyTorch still annotates every `Optimizer.step` and `Optimizer.zero_grad`.

use std::collections::BTreeMap;

use trace::store::{EventKind, StringId, Trace, TrackId};

use super::step::{StepMark, TrainingStep};

/// Minimum number of inferred steps, because with fewer the time outside them is too large to be
/// left out.
const STEPS_MIN: usize = 3;

/// Prefix of the annotations that PyTorch writes around optimizer methods.
const OPTIMIZER: &str = "Optimizer.";

/// Infers steps from repeated optimizer annotations. A step lasts from the end of one
/// `Optimizer.step` to the end of the next, or else from one `Optimizer.zero_grad` to the next. The
/// result is `None` if neither annotation gives enough steps.
pub(super) fn infer_steps(trace: &Trace) -> Option<(StepMark, Vec<TrainingStep>)> {
    if !trace.strings.iter().any(|name| name.starts_with(OPTIMIZER)) {
        return None;
    }
    [StepMark::OptimizerStep, StepMark::ZeroGrad].into_iter().find_map(|mark| {
        let rows = last_of_each_step(trace, &most_frequent_rows(trace, mark)?);
        let boundary = |row: u32| match mark {
            StepMark::ZeroGrad => trace.slices.start(row),
            _ => trace.slices.end(row),
        };
        let step = |(number, pair): (usize, &[u32])| TrainingStep {
            number: number as i64,
            row: pair[1],
            start: boundary(pair[0]),
            end: boundary(pair[1]),
            is_whole: true,
            lack: None,
        };
        let steps: Vec<TrainingStep> = rows.windows(2).enumerate().map(step).collect();
        (steps.len() >= STEPS_MIN).then_some((mark, steps))
    })
}

/// Returns the rows of the annotation that occurs most often on one thread, sorted by start. A job
/// may have several optimizers, but the annotations of the rarer ones do not mark steps. Kineto's
/// recording by iterations ends inside the last `Optimizer.step`, which therefore marks no end.
fn most_frequent_rows(trace: &Trace, mark: StepMark) -> Option<Vec<u32>> {
    let mut by_name: BTreeMap<(TrackId, StringId), Vec<u32>> = BTreeMap::new();
    let is_mark = |row: &u32| {
        matches!(trace.kind(*row), EventKind::Annotation | EventKind::Operator)
            && trace.name(*row).starts_with(mark.prefix())
            && trace.slices.unfinished.get(*row).is_none()
    };
    for row in trace.rows().filter(is_mark) {
        let key = (trace.slices.track[row as usize], trace.slices.name[row as usize]);
        by_name.entry(key).or_default().push(row);
    }
    let first = |rows: &[u32]| rows.iter().map(|row| trace.slices.start(*row)).min();
    let mut rows =
        by_name.into_values().max_by_key(|rows| (rows.len(), std::cmp::Reverse(first(rows))))?;
    rows.sort_by_key(|row| (trace.slices.start(*row), *row));
    Some(rows)
}

/// Keeps only the last optimizer annotation of each training step. A job may run several optimizers
/// of one class in the same step, and each writes an annotation of the same name. Two annotations
/// belong to different steps if a backward pass began between them. In a trace that names no
/// backward pass, every annotation ends a step.
fn last_of_each_step(trace: &Trace, rows: &[u32]) -> Vec<u32> {
    let is_backward: Vec<bool> =
        trace.strings.iter().map(|name| name.contains("Backward")).collect();
    let name = |row: u32| trace.slices.name[row as usize].0 as usize;
    let mut backward: Vec<i64> = trace
        .rows()
        .filter(|row| is_backward[name(*row)] && trace.kind(*row) == EventKind::Operator)
        .map(|row| trace.slices.start(row))
        .collect();
    backward.sort_unstable();
    let starts_step = |row: u32, next: u32| {
        let (from, to) = (trace.slices.start(row), trace.slices.start(next));
        let at = backward.partition_point(|start| *start < from);
        backward.is_empty() || backward.get(at).is_some_and(|start| *start < to)
    };
    rows.chunk_by(|row, next| !starts_step(*row, *next))
        .filter_map(|of_step| of_step.last().copied())
        .collect()
}
