//! Prints the events of a run, either as JSON lines on stdout or as a progress bar and lines on
//! stderr. The events are also passed to the metrics files and to the agent of this host.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use train::run::{LoggedInterval, RunEvent};
use train::{Evaluation, TableUse};

use super::closing::ClosingFigures;
use super::metrics::Metrics;
use super::row_scope;
use super::steps::StepReporter;
use schema::Bytes;
use setup::args::OutputFormat;
use setup::error::Error;
use setup::progress::{Meter, ProgressUnit};
use setup::render::{self, Console};

/// Prints the progress of a run and writes its metrics, event by event.
pub struct Observer {
    console: Console,
    meter: Option<Meter>,
    /// The error of a failed write to stdout. The run continues without output, and the error is
    /// reported at the end.
    failed: Option<Error>,
    /// Loss and rate of the latest interval, which are shown beside the progress bar.
    latest: String,
    intervals_seen: bool,
    /// Number of steps that the trace files contain.
    recorded: u64,
    metrics: Option<Metrics>,
    steps: StepReporter,
}

impl Observer {
    /// Creates an observer without metrics files, for short runs of which only the outcome is
    /// needed.
    pub fn new(console: Console) -> Self {
        Self {
            console,
            meter: None,
            failed: None,
            latest: String::new(),
            intervals_seen: false,
            recorded: 0,
            metrics: None,
            steps: StepReporter::for_this_process(),
        }
    }

    /// Makes the observer also write metrics into the folder of the run.
    #[must_use]
    pub fn with_metrics_of(self, run: &Path) -> Self {
        Self { metrics: Some(Metrics::for_run(run)), ..self }
    }

    /// Prints one event of the run and writes its metrics.
    pub fn handle(&mut self, event: RunEvent<'_>) {
        self.steps.report_event(&event);
        match event {
            RunEvent::RowScope { optimizer, scope, before } => {
                let event = json!({ "optimizer": optimizer, "scope": scope, "before": before });
                self.write_line("row_scope", &event);
                for warning in row_scope::list_warnings(optimizer, scope, before) {
                    self.console.warn(warning);
                }
            }
            RunEvent::SetAside { from, to } => {
                let (from, to) = (from.display().to_string(), to.display().to_string());
                self.write_line("set_aside", &json!({ "checkpoint": from, "aside": to }));
                self.console.say(format_args!("set aside {from} as {to}"));
            }
            RunEvent::Started { step, total_steps, samples_per_epoch } => {
                self.started(step, total_steps, samples_per_epoch);
            }
            RunEvent::Stepped { step, .. } => self.stepped(step),
            // The agent has been told of this phase. Users see the event `Saved`, which follows.
            RunEvent::Saving => {}
            RunEvent::Interval(interval) => self.interval(interval),
            RunEvent::Evaluating { samples, total } => self.evaluating(samples, total),
            RunEvent::Evaluated { step, evaluation } => self.evaluated(step, evaluation),
            RunEvent::Tables { step, tables } => self.tables(step, tables),
            RunEvent::Saved { step, path, bytes, seconds } => {
                self.saved(step, path, bytes, seconds);
            }
            RunEvent::Traced { paths, steps } => {
                self.recorded = steps;
                let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                self.write_line("traced", &json!({ "paths": names, "steps": steps }));
                let steps = render::counted(steps, "step");
                for path in paths {
                    self.say(format_args!("trace written ({steps}): {}", path.display()));
                }
            }
            RunEvent::Answered { path, steps, problem } => {
                let steps = render::counted(steps, "step");
                match problem {
                    None => self.say(format_args!("trace for the agent written ({steps})")),
                    Some(problem) => self.console.warn(format_args!(
                        "{}: the agent ordered a trace that cannot be written: {problem}",
                        path.display()
                    )),
                }
            }
        }
    }

    /// Ends the progress bar of the training, so that the next part of the run can show its own.
    pub fn pause(&mut self) {
        if let Some(meter) = self.meter.take() {
            meter.finish();
        }
    }

    /// Writes the figures with which the run ends to the metrics files.
    pub fn close(&mut self, closing: Option<&ClosingFigures>) {
        let Some(closing) = closing else { return };
        if let Some(metrics) = &mut self.metrics {
            metrics.write(&json!({ "event": "closing", "step": closing.step, "closing": closing }));
        }
    }

    /// Ends the progress bar, and returns the number of recorded steps.
    ///
    /// # Errors
    /// An earlier write to stdout failed.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.pause();
        self.failed.map_or(Ok(self.recorded), Err)
    }

    fn started(&mut self, step: u64, total: u64, samples_per_epoch: u64) {
        if let Some(metrics) = &mut self.metrics {
            metrics.begin(step);
        }
        let event = json!({
            "step": step, "total_steps": total, "samples_per_epoch": samples_per_epoch
        });
        self.write_line("started", &event);
        if step > 0 {
            self.say(format_args!("resuming from step {}", render::count(step)));
        }
        if step >= total {
            self.console.warn(format_args!(
                "nothing to train: {} of {} done; raise training.steps or training.epochs",
                render::count(step),
                render::counted(total, "step")
            ));
        }
        if self.console.format == OutputFormat::Table {
            let meter = Meter::start(self.console, "training", ProgressUnit::Steps, Some(total));
            self.meter = Some(meter.from(step));
        }
    }

    fn stepped(&mut self, step: u64) {
        if let Some(meter) = &mut self.meter {
            meter.advance(step, &self.latest);
        }
    }

    fn evaluating(&mut self, samples: u64, total: u64) {
        if let Some(meter) = &mut self.meter {
            meter
                .note(&format!("evaluating {:.0} %", 100.0 * samples as f64 / total.max(1) as f64));
        }
    }

    fn interval(&mut self, interval: &LoggedInterval) {
        self.write_line("interval", interval);
        self.latest = format!(
            "loss {:.5}, {} samples/s, {:.1} % input wait",
            interval.loss,
            render::count(interval.samples_per_second.round() as u64),
            100.0 * interval.input_wait_share
        );
        // The first loss is shown at once, because it shows the user that training works.
        if let Some(meter) = self.meter.as_mut().filter(|_| !self.intervals_seen) {
            meter.show_within(Duration::ZERO);
        }
        self.intervals_seen = true;
        self.stepped(interval.step);
    }

    fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {
        self.write_line("evaluation", &json!({ "step": step, "evaluation": evaluation }));
        let by_group = evaluation.by_group.map(|by| format!(" ({:.5} by group)", by.auc));
        let by_group = by_group.unwrap_or_default();
        self.say(format_args!(
            "step {}: held-out AUC {:.5}{by_group}, normalized entropy {:.5}, loss {:.5}",
            render::count(step),
            evaluation.auc,
            evaluation.normalized_entropy,
            evaluation.loss
        ));
    }

    fn tables(&mut self, step: u64, tables: &[TableUse]) {
        let figures = |table: &TableUse| {
            let figures = json!({ "rows_changed": table.rows_changed, "row_norm": table.row_norm });
            (table.table.clone(), figures)
        };
        let tables: serde_json::Map<_, _> = tables.iter().map(figures).collect();
        self.write_line("tables", &json!({ "step": step, "tables": tables }));
    }

    fn saved(&mut self, step: u64, path: &Path, bytes: u64, seconds: f64) {
        let checkpoint = path.display().to_string();
        let event = json!({
            "step": step, "checkpoint": checkpoint, "bytes": bytes, "seconds": seconds
        });
        self.write_line("checkpoint", &event);
        let rate = Bytes((bytes as f64 / seconds.max(1e-9)) as u64);
        self.say(format_args!("saved {} ({}, {rate}/s)", path.display(), Bytes(bytes)));
    }

    /// Prints an event as a JSON line if the output format is JSON, and writes it to the metrics
    /// files.
    fn write_line(&mut self, event: &'static str, content: &impl Serialize) {
        /// Puts the field `event` before the fields of the content, in the same JSON object.
        #[derive(Serialize)]
        struct Line<'a, T> {
            event: &'static str,
            #[serde(flatten)]
            content: &'a T,
        }
        if self.console.format == OutputFormat::Json && self.failed.is_none() {
            self.failed = self.console.json(&Line { event, content }).err();
        }
        let Some(metrics) = &mut self.metrics else { return };
        // The metrics files contain only events with numbers. Other events would be noise in plots.
        if ["interval", "evaluation", "tables", "checkpoint"].contains(&event) {
            metrics.write(&Line { event, content });
        }
        if let Some(error) = metrics.take_failure() {
            let path = metrics.path().display();
            self.console.warn(format_args!("{path}: metrics cannot be written: {error}"));
        }
    }

    fn say(&self, text: impl std::fmt::Display) {
        match (&self.meter, self.console.format) {
            (Some(meter), _) => meter.say(text),
            (None, OutputFormat::Json) => self.console.detail(text),
            (None, _) => self.console.say(text),
        }
    }
}
