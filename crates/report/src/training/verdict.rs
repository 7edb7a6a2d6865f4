//! Judges a training run: the quality of its model, its best step, and overfitting after that step.

use schema::Figure;
use schema::unit::count;

use super::page_data::{EvaluationAt, TrainingOutcome, TrainingReport, TrainingVerdict};

/// Judges a run whose evaluations are compared by the metric `by`.
pub fn judge(report: &TrainingReport, by: Figure) -> TrainingVerdict {
    let figure = |evaluation: &EvaluationAt| match by {
        Figure::Auc => evaluation.figures.auc,
        Figure::NormalizedEntropy => evaluation.figures.normalized_entropy,
        Figure::Loss => evaluation.figures.loss,
    };
    // Among equal evaluations, the first one is the best, as in the trainer.
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
    let best = &report.evaluations[at];
    let step = best.step;
    if best.figures.normalized_entropy.is_some_and(|entropy| entropy > 1.0) {
        let text = format!(
            "The model predicts worse than the base rate: normalized entropy {:.4}, above 1, at its \
             best evaluation, step {}.",
            best.figures.normalized_entropy.unwrap_or(f64::NAN),
            count(step)
        );
        let detail = Some("Predicting the mean label would be better.".to_owned());
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
        [one] => text += &format!(". One evaluation followed, at {}.", format_value(figure(one))),
        [.., last] => {
            let (more, last) = (later.len(), format_value(figure(last)));
            text += &format!(". {more} evaluations followed, none better; the last is at {last}.");
        }
    }
    let detail = describe_overfitting(report, best);
    TrainingVerdict { outcome: TrainingOutcome::Better, text, detail, best_step: Some(step) }
}

fn unknown(report: &TrainingReport) -> TrainingVerdict {
    let text = match report.evaluations.len() {
        0 => "No held-out rows were evaluated, so the quality on unseen data is unknown.",
        _ => "All held-out rows have the same label, so their metrics are meaningless.",
    };
    let (outcome, text) = (TrainingOutcome::Unknown, text.to_owned());
    TrainingVerdict { outcome, text, detail: None, best_step: None }
}

/// Smallest ratio by which the held-out loss must rise to be reported as overfitting.
const OVERFITTING_RATIO: f64 = 1.01;

/// Describes overfitting after the best evaluation, if there is any. The training loss then fell
/// while the held-out loss rose.
fn describe_overfitting(report: &TrainingReport, best: &EvaluationAt) -> Option<String> {
    let last = report.evaluations.last().filter(|last| last.step > best.step)?;
    let near = |step: u64| {
        let until = report.intervals.iter().take_while(|interval| interval.step <= step);
        until.last().map(|interval| interval.loss)
    };
    let (trained_then, trained_now) = (near(best.step)?, near(last.step)?);
    let (held_then, held_now) = (best.figures.loss?, last.figures.loss?);
    let is_overfitting = trained_now < trained_then && held_now > OVERFITTING_RATIO * held_then;
    is_overfitting.then(|| {
        format!(
            "Since then the training loss fell from {trained_then:.4} to {trained_now:.4} while the \
             held-out loss rose from {held_then:.4} to {held_now:.4}: the model overfits the \
             training rows."
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

fn format_value(value: Option<f64>) -> String {
    value.map_or_else(|| "no value".to_owned(), |value| format!("{value:.4}"))
}
