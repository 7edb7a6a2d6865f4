//! A training run on a page: what it learnt, how fast, and what it made of its tables. Works on the
//! lines of a run's `metrics.jsonl`; knows neither files nor the trainer.

mod verdict;

use serde::{Deserialize, Serialize};

/// Points that a curve keeps: more than a picture has pixels.
const POINTS_MAX: usize = 1500;

/// What is known of a run beside its figures.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// What the page calls the run.
    pub title: String,
    /// The program that makes the page, with its version.
    pub program: String,
    /// The figure by which the run chose its best checkpoint, if it did.
    pub best_by: Option<schema::Figure>,
    pub tables: Vec<TableShape>,
}

/// The shape of a table.
#[derive(Clone, Debug, Default)]
pub struct TableShape {
    pub name: String,
    pub rows: u64,
    pub dim: u64,
}

/// Everything that the page shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    /// What the page calls the run.
    pub title: String,
    pub program: String,
    /// The run in a sentence or two.
    pub verdict: TrainingVerdict,
    pub steps: u64,
    pub samples: u64,
    /// Time in steps, without evaluations and checkpoints.
    pub seconds: f64,
    /// Samples per second of that time.
    pub samples_per_second: f64,
    /// Share of it spent waiting for input.
    pub input_wait_share: f64,
    /// Lines of the log, where there are many a few of them taken together.
    pub intervals: Vec<LogInterval>,
    /// How many lines of the log a point stands for, at most.
    pub lines_per_point: u64,
    /// Evaluations on held-out rows.
    pub evaluations: Vec<EvaluationAt>,
    pub checkpoints: Vec<SavedCheckpoint>,
    /// The tables, as they were configured.
    pub tables: Vec<TableView>,
    /// Lines that could not be read.
    pub lines_lost: u64,
}

/// What a reader is told first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingVerdict {
    /// Whether the model is worth something.
    pub outcome: TrainingOutcome,
    /// In a sentence or two.
    pub text: String,
    /// What else is to be known of it.
    pub detail: Option<String>,
    /// The step of the best evaluation.
    pub best_step: Option<u64>,
}

/// How a run went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingOutcome {
    /// Better than the base rate on held-out rows.
    Better,
    /// Worse than the base rate.
    Worse,
    /// Nothing was held out, or nothing evaluated.
    Unknown,
}

/// A line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogInterval {
    pub step: u64,
    /// Samples since the beginning.
    pub samples: u64,
    pub loss: f64,
    /// Base learning rate times the schedule's factor.
    pub learning_rate: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Share of the time spent waiting for input.
    pub input_wait_share: f64,
}

/// An evaluation; a figure without meaning is none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EvaluationAt {
    pub step: u64,
    #[serde(flatten)]
    pub figures: EvaluationFigures,
}

/// The figures of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationFigures {
    pub samples: u64,
    pub loss: Option<f64>,
    /// Area under the ROC curve.
    pub auc: Option<f64>,
    /// Cross-entropy ÷ that of the mean label.
    pub normalized_entropy: Option<f64>,
    /// Predicted clicks ÷ observed ones.
    pub calibration: Option<f64>,
    /// Share of right answers.
    pub accuracy: Option<f64>,
    #[serde(default)]
    pub by_group: Option<ByGroup>,
}

/// AUC within groups.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByGroup {
    pub auc: Option<f64>,
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedCheckpoint {
    pub step: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// A table over the checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableView {
    pub name: String,
    pub rows: u64,
    pub dim: u64,
    /// Root mean square of the rows' norms when they were drawn.
    pub drawn_norm: f64,
    pub uses: Vec<TableUse>,
}

/// A table at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TableUse {
    pub step: u64,
    /// Rows that training has changed.
    pub rows_changed: u64,
    /// Root mean square of their norms.
    pub row_norm: f64,
}

/// A line of the file, as far as it is shown.
#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum LogLine {
    Interval(LogInterval),
    Evaluation {
        step: u64,
        evaluation: EvaluationFigures,
    },
    Tables {
        step: u64,
        tables: serde_json::Map<String, serde_json::Value>,
    },
    Checkpoint(SavedCheckpoint),
    #[serde(other)]
    Other,
}

/// Puts the lines of a run's `metrics.jsonl` on a page.
#[must_use]
pub fn of(lines: &str, about: &About) -> TrainingReport {
    let mut report = empty(about);
    for line in lines.lines().filter(|line| !line.trim().is_empty()) {
        match serde_json::from_str(line) {
            Ok(LogLine::Interval(interval)) => report.intervals.push(interval),
            Ok(LogLine::Evaluation { step, evaluation }) => {
                report.evaluations.push(EvaluationAt { step, figures: evaluation });
            }
            Ok(LogLine::Tables { step, tables }) => {
                for view in &mut report.tables {
                    view.uses.extend(tables.get(&view.name).and_then(|value| used(step, value)));
                }
            }
            Ok(LogLine::Checkpoint(checkpoint)) => report.checkpoints.push(checkpoint),
            Ok(LogLine::Other) => {}
            Err(_) => report.lines_lost += 1,
        }
    }
    sums(&mut report);
    report.verdict = verdict::judge(&report, about.best_by.unwrap_or(schema::Figure::Auc));
    thin(&mut report);
    report
}

fn empty(about: &About) -> TrainingReport {
    let view = |table: &TableShape| TableView {
        name: table.name.clone(),
        rows: table.rows,
        dim: table.dim,
        // Of weights uniform in ±1/√R.
        drawn_norm: (table.dim as f64 / (3.0 * table.rows.max(1) as f64)).sqrt(),
        uses: Vec::new(),
    };
    let nothing = TrainingVerdict {
        outcome: TrainingOutcome::Unknown,
        text: String::new(),
        detail: None,
        best_step: None,
    };
    TrainingReport {
        title: about.title.clone(),
        program: about.program.clone(),
        verdict: nothing,
        steps: 0,
        samples: 0,
        seconds: 0.0,
        samples_per_second: 0.0,
        input_wait_share: 0.0,
        intervals: Vec::new(),
        lines_per_point: 1,
        evaluations: Vec::new(),
        checkpoints: Vec::new(),
        tables: about.tables.iter().map(view).collect(),
        lines_lost: 0,
    }
}

fn used(step: u64, value: &serde_json::Value) -> Option<TableUse> {
    let rows_changed = value.get("rows_changed")?.as_u64()?;
    Some(TableUse { step, rows_changed, row_norm: value.get("row_norm")?.as_f64()? })
}

/// Fills in what is over the whole run.
fn sums(report: &mut TrainingReport) {
    let ends = report.evaluations.iter().map(|evaluation| evaluation.step);
    let ends = ends.chain(report.checkpoints.iter().map(|checkpoint| checkpoint.step));
    let ends = ends.chain(report.intervals.iter().map(|interval| interval.step));
    report.steps = ends.max().unwrap_or(0);
    report.samples = report.intervals.last().map_or(0, |last| last.samples);
    let whole = together(&report.intervals, 0);
    report.seconds = whole.seconds;
    report.samples_per_second = whole.interval.samples_per_second;
    report.input_wait_share = whole.interval.input_wait_share;
}

/// Several lines of the log as one.
struct Together {
    interval: LogInterval,
    seconds: f64,
}

/// Takes consecutive lines together, the first of which began at `before` samples.
fn together(lines: &[LogInterval], before: u64) -> Together {
    let (mut seconds, mut waited, mut loss, mut at) = (0.0, 0.0, 0.0, before);
    for line in lines {
        let samples = line.samples.saturating_sub(at) as f64;
        let time = samples / line.samples_per_second.max(1e-9);
        seconds += time;
        waited += time * line.input_wait_share;
        loss += samples * line.loss;
        at = line.samples;
    }
    let samples = at.saturating_sub(before) as f64;
    let last = lines.last();
    let interval = LogInterval {
        step: last.map_or(0, |last| last.step),
        samples: at,
        loss: loss / samples.max(1.0),
        learning_rate: last.map_or(0.0, |last| last.learning_rate),
        samples_per_second: if seconds > 0.0 { samples / seconds } else { 0.0 },
        input_wait_share: if seconds > 0.0 { waited / seconds } else { 0.0 },
    };
    Together { interval, seconds }
}

/// Takes neighbouring lines of the log together where there are more than a picture can show.
fn thin(report: &mut TrainingReport) {
    let per_point = report.intervals.len().div_ceil(POINTS_MAX);
    if per_point <= 1 {
        return;
    }
    let mut before = 0;
    let point = |lines: &[LogInterval]| {
        let point = together(lines, before).interval;
        before = point.samples;
        point
    };
    report.intervals = report.intervals.chunks(per_point).map(point).collect();
    report.lines_per_point = per_point as u64;
}

#[cfg(test)]
mod tests;
