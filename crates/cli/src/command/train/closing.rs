//! The end of a run: the figures of its best checkpoint on validation and test rows, beside those
//! of simple baselines.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use data::Dataset;
use device::Backend;
use schema::JobConfig;
use serde::Serialize;
use setup::Session;
use setup::error::Error;
use setup::input::{HeldOutRows, InputRows};
use setup::progress::{Meter, ProgressUnit};
use setup::render::{self, Console};
use train::baseline::{self, BaselineRows, Baselines, HeldOutFigures, RowRange};
use train::run::{OpenDevice, RunOutcome};
use train::{Evaluation, Scorer};

/// The figures with which a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClosingFigures {
    /// The step of the evaluated checkpoint, which is the best one if the run keeps it.
    pub step: u64,
    /// Whether the checkpoint was chosen among several by its figures on the validation rows.
    pub is_best: bool,
    #[serde(flatten)]
    pub model: HeldOutFigures,
    pub baselines: Option<Baselines>,
}

impl ClosingFigures {
    /// Returns the figures that the summary shows, and describes them: those on the test rows, if
    /// there are any.
    pub fn shown(&self) -> (Evaluation, String) {
        let which = if self.is_best { "best" } else { "last" };
        let (evaluation, rows) = match self.model.test {
            Some(test) => (test, "test"),
            None => (self.model.validation, "held-out"),
        };
        let step = render::count(self.step);
        (evaluation, format!("the {which} checkpoint, of step {step}, on {rows} rows"))
    }
}

/// Evaluates the best checkpoint of a run, or the newest one, and fits the baselines that `config`
/// requests. Returns `None` if nothing is held out, or if the run was interrupted.
///
/// The test rows are read here for the first time.
pub fn evaluate<B: Backend>(
    open: impl OpenDevice<B>,
    outcome: &RunOutcome,
    rows: &HeldOutRows,
    fit: FitRequest<'_>,
    session: &Session,
) -> Result<Option<ClosingFigures>, Error> {
    let best = outcome.best.as_ref();
    let chosen = best.map(|best| &best.folder).or(outcome.checkpoint.as_ref());
    let (Some(validation), Some(folder), false) = (&rows.validation, chosen, outcome.interrupted)
    else {
        return Ok(None);
    };
    let step = best.map_or(outcome.step, |best| best.step);
    let known = match best {
        Some(best) => best.evaluation,
        None => outcome.evaluation,
    };
    let mut model = None;
    let mut evaluate = |rows: &InputRows, what: &str| {
        let model = match &mut model {
            Some(model) => model,
            // The tables are mapped, so that a checkpoint of many ranks needs no more memory here.
            none => none.insert(Scorer::open(folder, open(session.threads)?)?),
        };
        evaluate_rows(model, rows, what, session)
    };
    let validated = match known {
        Some(evaluation) => evaluation,
        None => evaluate(validation, "validating")?,
    };
    let test = rows.test.as_ref().map(|test| evaluate(test, "testing")).transpose()?;
    let baselines = match fit.config.training.baselines {
        true => Some(fit_baselines(fit, rows, validation, session)?),
        false => None,
    };
    let model = HeldOutFigures { validation: validated, test };
    Ok(Some(ClosingFigures { step, is_best: best.is_some(), model, baselines }))
}

/// The rows and the configuration with which baselines are fitted.
#[derive(Clone, Copy, Debug)]
pub struct FitRequest<'a> {
    pub config: &'a JobConfig,
    pub train: &'a Arc<Dataset>,
    pub train_rows: &'a Range<u64>,
}

fn evaluate_rows<B: Backend>(
    model: &mut Scorer<B>,
    rows: &InputRows,
    what: &str,
    session: &Session,
) -> Result<Evaluation, Error> {
    let (dataset, rows) = rows;
    let total = rows.end - rows.start;
    let mut meter = Meter::start(session.console, what, ProgressUnit::Rows, Some(total));
    let evaluation = model.evaluate(dataset, rows.clone(), &mut |done, _| meter.advance(done, ""));
    meter.finish();
    Ok(evaluation?)
}

fn fit_baselines(
    fit: FitRequest<'_>,
    rows: &HeldOutRows,
    validation: &InputRows,
    session: &Session,
) -> Result<Baselines, Error> {
    let range = |rows: &'_ InputRows| rows.1.clone();
    let rows = BaselineRows {
        train: RowRange::new(fit.train, fit.train_rows),
        validation: RowRange::new(&validation.0, &range(validation)),
        test: rows.test.as_ref().map(|test| RowRange::new(&test.0, &range(test))),
    };
    let mut meter = Meter::start(session.console, "fitting baselines", ProgressUnit::Rows, None);
    let fitted = baseline::fit(fit.config, rows, &mut |done, total| {
        meter.set_total(Some(total));
        meter.advance(done, "");
    });
    meter.finish();
    Ok(fitted?)
}

/// Formats the figures as a table with a row per model. Returns `None` if there is nothing to
/// compare.
pub fn format_table(closing: &ClosingFigures) -> Option<String> {
    if closing.model.test.is_none() && closing.baselines.is_none() {
        return None;
    }
    let mut models = vec![("this model".to_owned(), closing.model)];
    if let Some(baselines) = &closing.baselines {
        let regression = baselines.logistic_regression;
        models.extend(regression.map(|figures| ("logistic regression".to_owned(), figures)));
        models.push(("base rate".to_owned(), baselines.base_rate));
    }
    let rows: Vec<Vec<String>> = models
        .into_iter()
        .map(|(name, figures)| {
            let mut row = vec![name];
            for evaluation in [Some(figures.validation), figures.test].into_iter().flatten() {
                row.push(format!("{:.5}", evaluation.auc));
                row.push(format!("{:.5}", evaluation.normalized_entropy));
            }
            row
        })
        .collect();
    let header = match closing.model.test {
        Some(_) => {
            &["", "validation AUC", "normalized entropy", "test AUC", "normalized entropy"][..]
        }
        None => &["", "held-out AUC", "normalized entropy"][..],
    };
    Some(render::grid(header, &rows))
}

/// Warns if a baseline ranks the rows at least as well as the model, and names settings that the
/// run does not use yet.
pub fn warn_of_baselines(console: Console, closing: &ClosingFigures, config: &JobConfig) {
    let Some(baselines) = &closing.baselines else { return };
    let Some(regression) = &baselines.logistic_regression else {
        console.say("the tables have too many rows for a logistic regression as a baseline");
        return;
    };
    let judged = |figures: &HeldOutFigures| figures.test.unwrap_or(figures.validation).auc;
    let (own, other) = (judged(&closing.model), judged(regression));
    if own >= other {
        return;
    }
    let rows = if closing.model.test.is_some() { "test" } else { "held-out" };
    console.warn(format_args!(
        "a logistic regression on the same columns ranks the {rows} rows better than the model: AUC \
         {other:.5} against {own:.5}. Try {}",
        list_remedies(config).join(", or ")
    ));
}

/// Lists settings that often help a model that loses to a logistic regression, without those that
/// `config` already uses.
fn list_remedies(config: &JobConfig) -> Vec<&'static str> {
    let (training, optimizer) = (&config.training, &config.optimizer);
    let remedies = [
        (training.keep_best.is_none(), "training.keep_best with evaluate_every"),
        (config.data.validation == 0.0, "data.validation"),
        (
            !config.model.tables.is_empty() && optimizer.sparse.weight_decay == 0.0,
            "weight decay of the tables (optimizer.sparse.weight_decay)",
        ),
        (
            optimizer.dense.weight_decay == 0.0,
            "weight decay of the layers (optimizer.dense.weight_decay)",
        ),
        (!config.model.wide && config.model.top.len() > 1, "a first-order term (model.wide)"),
        (config.model.top.len() > 1, "fewer layers (model.top)"),
        (true, "more training rows"),
    ];
    remedies.into_iter().filter(|(applies, _)| *applies).map(|(_, text)| text).collect()
}

/// The path of the checkpoint that a user should score with.
pub fn chosen_checkpoint(outcome: &RunOutcome) -> Option<&Path> {
    outcome.best.as_ref().map(|best| &*best.folder).or(outcome.checkpoint.as_deref())
}

#[cfg(test)]
mod tests {
    use super::list_remedies;

    #[test]
    fn remedies_leave_out_settings_in_use() {
        let list = |set: &[(&str, &str)]| {
            let set: Vec<_> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            list_remedies(&setup::config::job("dlrm-ddp", &set).unwrap().config).join("; ")
        };
        let all = list(&[]);
        for key in [
            "keep_best",
            "data.validation",
            "sparse.weight_decay",
            "dense.weight_decay",
            "model.wide",
        ] {
            assert!(all.contains(key), "{key}: {all}");
        }
        let used = list(&[
            ("training.keep_best", "auc"),
            ("data.validation", "0.1"),
            ("optimizer.sparse.weight_decay", "1e-5"),
            ("optimizer.sparse.weight_decay_mode", "l2"),
            ("optimizer.dense.weight_decay", "1e-5"),
            ("optimizer.dense.weight_decay_mode", "l2"),
            ("model.top", "[1]"),
        ]);
        assert_eq!(used, "more training rows");
    }
}
