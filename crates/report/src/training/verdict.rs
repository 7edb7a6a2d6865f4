//! What a reader of a training run is told first: how good the model is, when it was best, and
//! whether it went on to learn its rows by heart.

use schema::Figure;
use schema::unit::count;

use super::{EvaluationAt, TrainingOutcome, TrainingReport, TrainingVerdict};

/// The verdict on a run whose evaluations are compared by `by`.
pub fn judge(report: &TrainingReport, by: Figure) -> TrainingVerdict {
    let figure = |evaluation: &EvaluationAt| match by {
        Figure::Auc => evaluation.figures.auc,
        Figure::NormalizedEntropy => evaluation.figures.normalized_entropy,
        Figure::Loss => evaluation.figures.loss,
    };
    // The first of equals, as the run itself keeps it.
    let better = |a: f64, b: f64| if by == Figure::Auc { a > b } else { a < b };
    let mut best: Option<(usize, f64)> = None;
    for (at, evaluation) in report.evaluations.iter().enumerate() {
        if let Some(value) = figure(evaluation)
            && best.is_none_or(|(_, most)| better(value, most))
        {
            best = Some((at, value));
        }
    }
    let Some((at, value)) = best else { return unknown(report) };
    let of_best = &report.evaluations[at];
    let step = of_best.step;
    if of_best.figures.normalized_entropy.is_some_and(|entropy| entropy > 1.0) {
        let text = format!(
            "The model predicts worse than the base rate: normalized entropy {:.4}, above 1, at its \
             best evaluation, step {}.",
            of_best.figures.normalized_entropy.unwrap_or(f64::NAN),
            count(step)
        );
        let detail = Some("A constant, the mean label, would do better.".to_owned());
        return TrainingVerdict {
            outcome: TrainingOutcome::Worse,
            text,
            detail,
            best_step: Some(step),
        };
    }
    let mut text = format!("Held-out {} is best at step {}: {value:.4}", name(by), count(step));
    let later = &report.evaluations[at + 1..];
    match later {
        [] => text += ", the last evaluation.",
        [one] => text += &format!(". One evaluation followed, at {}.", shown(figure(one))),
        [.., last] => {
            let (more, last) = (later.len(), shown(figure(last)));
            text += &format!(". {more} evaluations followed, none better; the last is at {last}.");
        }
    }
    let detail = by_heart(report, of_best);
    TrainingVerdict { outcome: TrainingOutcome::Better, text, detail, best_step: Some(step) }
}

fn unknown(report: &TrainingReport) -> TrainingVerdict {
    let text = match report.evaluations.len() {
        0 => "No held-out rows were evaluated, so nothing says how good the model is for others.",
        _ => "The held-out rows have one label only, so their figures say nothing.",
    };
    let (outcome, text) = (TrainingOutcome::Unknown, text.to_owned());
    TrainingVerdict { outcome, text, detail: None, best_step: None }
}

/// A held-out loss that rose by less says nothing.
const WORTH_TELLING: f64 = 1.01;

/// Says so where the training loss fell on after the best evaluation and the held-out loss rose.
fn by_heart(report: &TrainingReport, best: &EvaluationAt) -> Option<String> {
    let last = report.evaluations.last().filter(|last| last.step > best.step)?;
    let near = |step: u64| {
        let until = report.intervals.iter().take_while(|interval| interval.step <= step);
        until.last().map(|interval| interval.loss)
    };
    let (trained_then, trained_now) = (near(best.step)?, near(last.step)?);
    let (held_then, held_now) = (best.figures.loss?, last.figures.loss?);
    let is_by_heart = trained_now < trained_then && held_now > WORTH_TELLING * held_then;
    is_by_heart.then(|| {
        format!(
            "Since then the training loss fell from {trained_then:.4} to {trained_now:.4} while the \
             held-out loss rose from {held_then:.4} to {held_now:.4}: the model learns the training \
             rows by heart."
        )
    })
}

fn name(by: Figure) -> &'static str {
    match by {
        Figure::Auc => "AUC",
        Figure::NormalizedEntropy => "normalized entropy",
        Figure::Loss => "loss",
    }
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| "no figure".to_owned(), |value| format!("{value:.4}"))
}
