//! Builds the page of a training run, with its metrics, its speed and the use of its embedding
//! tables.
//!
//! The input is the text of the file `metrics.jsonl` of a run.

mod page_data;
mod verdict;

use serde::Deserialize;

pub use page_data::{
    BaselinesView, ByGroup, ClosingView, EvaluationAt, EvaluationFigures, HeldOutView, LogInterval,
    RankPlacement, SavedCheckpoint, TableUse, TableView, TrainingOutcome, TrainingReport,
    TrainingVerdict,
};

/// Maximum number of points of a curve, which exceeds the number of pixels of a plot.
const POINTS_MAX: usize = 1500;

/// Facts about a training run that its metrics do not contain.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub title: String,
    /// Name and version of the program that writes the page.
    pub program: String,
    /// The metric by which the run chose its best checkpoint, if it chose one.
    pub best_by: Option<schema::Figure>,
    pub tables: Vec<TableShape>,
    /// The ranks of the run, if it recorded them.
    pub placement: Option<RankPlacement>,
}

/// Name and shape of an embedding table.
#[derive(Clone, Debug, Default)]
pub struct TableShape {
    pub name: String,
    pub rows: u64,
    pub dim: u64,
}

/// A line of `metrics.jsonl`, without the fields that the page does not show.
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
    Closing {
        closing: Box<ClosingView>,
    },
    #[serde(other)]
    Other,
}

/// Builds the data of the page from the text of `metrics.jsonl`. Lines that cannot be parsed are
/// counted.
#[must_use]
pub fn build_report(lines: &str, about: &About) -> TrainingReport {
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
            // A run that was resumed has ended several times, and the last time counts.
            Ok(LogLine::Closing { closing }) => report.closing = Some(*closing),
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
        // Expected norm of a row whose weights are drawn uniformly from ±1/√R.
        drawn_norm: (table.dim as f64 / (3.0 * table.rows.max(1) as f64)).sqrt(),
        uses: Vec::new(),
    };
    let unknown = TrainingVerdict {
        outcome: TrainingOutcome::Unknown,
        text: String::new(),
        detail: None,
        best_step: None,
    };
    TrainingReport {
        title: about.title.clone(),
        program: about.program.clone(),
        verdict: unknown,
        steps: 0,
        samples: 0,
        seconds: 0.0,
        samples_per_second: 0.0,
        input_wait_share: 0.0,
        intervals: Vec::new(),
        lines_per_point: 1,
        evaluations: Vec::new(),
        checkpoints: Vec::new(),
        closing: None,
        tables: about.tables.iter().map(view).collect(),
        placement: about.placement,
        lines_lost: 0,
    }
}

fn used(step: u64, value: &serde_json::Value) -> Option<TableUse> {
    let rows_changed = value.get("rows_changed")?.as_u64()?;
    Some(TableUse { step, rows_changed, row_norm: value.get("row_norm")?.as_f64()? })
}

/// Computes the total steps, samples and time of the run.
fn sums(report: &mut TrainingReport) {
    let ends = report.evaluations.iter().map(|evaluation| evaluation.step);
    let ends = ends.chain(report.checkpoints.iter().map(|checkpoint| checkpoint.step));
    let ends = ends.chain(report.intervals.iter().map(|interval| interval.step));
    report.steps = ends.max().unwrap_or(0);
    report.samples = report.intervals.last().map_or(0, |last| last.samples);
    let whole = average(&report.intervals, 0);
    report.seconds = whole.seconds;
    report.samples_per_second = whole.interval.samples_per_second;
    report.input_wait_share = whole.interval.input_wait_share;
}

/// The average of several log lines, with their total time.
struct AveragedLines {
    interval: LogInterval,
    seconds: f64,
}

/// Averages consecutive log lines. The first line began after `before` samples.
fn average(lines: &[LogInterval], before: u64) -> AveragedLines {
    let (mut seconds, mut waited, mut exposed, mut loss, mut at) = (0.0, 0.0, 0.0, 0.0, before);
    for line in lines {
        let samples = line.samples.saturating_sub(at) as f64;
        let time = samples / line.samples_per_second.max(1e-9);
        seconds += time;
        waited += time * line.input_wait_share;
        exposed += time * line.exchange_wait_share;
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
        exchange_wait_share: if seconds > 0.0 { exposed / seconds } else { 0.0 },
    };
    AveragedLines { interval, seconds }
}

/// Averages neighboring log lines if there are more lines than a plot can show.
fn thin(report: &mut TrainingReport) {
    let per_point = report.intervals.len().div_ceil(POINTS_MAX);
    if per_point <= 1 {
        return;
    }
    let mut before = 0;
    let point = |lines: &[LogInterval]| {
        let point = average(lines, before).interval;
        before = point.samples;
        point
    };
    report.intervals = report.intervals.chunks(per_point).map(point).collect();
    report.lines_per_point = per_point as u64;
}

#[cfg(test)]
mod tests;
