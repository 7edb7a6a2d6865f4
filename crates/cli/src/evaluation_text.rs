//! Formats the figures of an evaluation, and warns if they mean nothing or the model is useless.

use schema::TrainingConfig;
use setup::render::{self, Console};
use train::Evaluation;

/// Warns if the figures mean nothing because all labels are the same, or if the model is worse than
/// the mean label. The advice depends on the settings in `training`.
pub fn warn_of_evaluation(
    console: Console,
    evaluation: Option<&Evaluation>,
    training: &TrainingConfig,
) {
    let Some(evaluation) = evaluation else { return };
    // NaN means that all labels are the same. A model with scores that are not finite ends the run
    // earlier.
    let entropy = evaluation.normalized_entropy;
    if entropy.is_nan() {
        console.warn(
            "all held-out labels are the same, so that AUC and normalized entropy mean nothing; \
             see data.label, data.hold_out",
        );
    } else if entropy > 1.0 {
        let advice = against_overfitting(training);
        console.warn(format_args!(
            "normalized entropy {entropy:.4} is above 1: the model predicts worse than the base \
             rate, the mean label of these rows, would. Try lower learning rates{advice} or more \
             data; a calibration far from 1 means that the held-out rows have another share of \
             clicks than the training rows"
        ));
    }
}

/// Names the settings against overfitting that `training` does not use yet, as the end of a list in
/// a sentence.
pub fn against_overfitting(training: &TrainingConfig) -> &'static str {
    match (training.keep_best, training.patience) {
        (Some(_), Some(_)) => "",
        (Some(_), None) => ", training.patience",
        (None, _) => ", fewer epochs (or training.keep_best and patience)",
    }
}

/// Lists the figures of an evaluation with their labels, as rows of a table.
pub fn evaluation_rows(evaluation: &Evaluation) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("held-out samples", render::count(evaluation.samples)),
        ("held-out loss", format!("{:.6}", evaluation.loss)),
        ("AUC", format!("{:.6}", evaluation.auc)),
        ("normalized entropy", format!("{:.6}", evaluation.normalized_entropy)),
        ("calibration", format!("{:.4}", evaluation.calibration)),
        ("accuracy", format!("{:.4}", evaluation.accuracy)),
    ];
    if let Some(by) = evaluation.by_group {
        let groups = render::counted(by.groups, "group");
        let samples = render::counted(by.samples, "sample");
        let text = format!("{:.6} over {groups} with both labels, {samples}", by.auc);
        rows.push(("AUC by group", text));
    }
    rows
}
