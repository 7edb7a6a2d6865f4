//! Selects the analyzed part of one rank: its window, device rows, their classes and their
//! launches.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use trace::store::{EventKind, Trace};

use crate::facts::classify::{Classifier, WorkClass};
use crate::facts::device_step;
use crate::facts::frames::{self, Frames};
use crate::facts::interval::Interval;
use crate::facts::links::Links;
use crate::facts::window::{self, Lack, StepMark, TimeWindow, TrainingStep, WindowRule};

/// The input of every analysis of one rank: its trace, the analyzed window, and the device rows in
/// it with their classes.
///
/// ```
/// use analyze::classify::ClassRule;
/// use analyze::{Classifier, Scope, WindowRule, breakdown};
///
/// let text = r#"{"traceEvents": [
///     {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 30},
///     {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 50, "dur": 50}
/// ]}"#;
/// let trace = trace::open::parse(text.as_bytes())?;
/// let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
/// let breakdown = breakdown::compute_breakdown(&scope);
/// assert_eq!((breakdown.compute_ns, breakdown.idle_ns), (80_000, 20_000));
/// # Ok::<(), trace::Error>(())
/// ```
#[derive(Debug)]
pub struct Scope<'a> {
    pub trace: &'a Trace,
    pub window: TimeWindow,
    /// All steps of the trace, whole or not, sorted by start.
    pub steps: Vec<TrainingStep>,
    /// The kind of annotation that delimits the steps; `None` if there are no steps.
    pub step_mark: Option<StepMark>,
    /// Kernels, copies and memsets that overlap the window, sorted by start, then row.
    pub device_rows: Vec<u32>,
    /// Class of the device row at the same index of `device_rows`.
    pub classes: Vec<WorkClass>,
    /// The span of the devices' steps if it is longer than the window; see [`device_step::span`].
    pub device_span: Option<Interval>,
    /// If `device_span` is set, the work that ran after the window but was launched before its end,
    /// sorted by start.
    pub late_work: Vec<(u32, WorkClass)>,
    links: OnceLock<Links>,
    frames: OnceLock<Frames>,
}

/// Minimum share of the recorded time, in percent, that a few steps must cover to represent the
/// recording.
const STEPS_PCT: i64 = 75;

impl<'a> Scope<'a> {
    /// Selects the window of a trace and classifies the device rows in it.
    ///
    /// # Cost
    /// The cost is `O(n log n)` in the rows of the trace.
    pub fn new(trace: &'a Trace, rule: WindowRule, classifier: &Classifier) -> Self {
        let (links, frames) = (OnceLock::new(), OnceLock::new());
        let (step_mark, all_steps) = window::steps(
            trace,
            || links.get_or_init(|| Links::new(trace)),
            || frames.get_or_init(|| frames::build_frames(trace)),
        );
        let mut steps = all_steps.clone();
        let (window, mut device_rows) = match rule {
            WindowRule::Hta => {
                // Holistic Trace Analysis recognizes only the steps that the profiler itself marks.
                if step_mark != Some(StepMark::ProfilerStep) {
                    steps.clear();
                }
                let rows = kept_by_hta(trace, &steps);
                let start = rows.iter().map(|row| trace.slices.start(*row)).min();
                let end = rows.iter().map(|row| trace.slices.end(*row)).max();
                let (start, end) = start.zip(end).unwrap_or_default();
                (TimeWindow { rule, start, end, steps }, rows)
            }
            WindowRule::All | WindowRule::Steps => {
                let whole: Vec<_> = steps.iter().filter(|step| step.is_whole).cloned().collect();
                let applied = if rule == WindowRule::Steps && whole.len() >= 2 {
                    steps = whole;
                    WindowRule::Steps
                } else {
                    WindowRule::All
                };
                let (start, end) = match (applied, steps.first(), steps.last()) {
                    (WindowRule::Steps, Some(first), Some(last)) => (first.start, last.end),
                    _ => window::recorded(trace).unwrap_or_default(),
                };
                // A step that launched nothing is not a step of the job, so means must not include
                // it.
                steps.retain(|step| step.lack != Some(Lack::Launches));
                // If few steps cover little of the recording, figures per step would include time
                // outside the steps.
                let inside: i64 = steps.iter().map(|step| step.end - step.start).sum();
                if rule != applied && 100 * inside < STEPS_PCT * (end - start) {
                    steps.clear();
                }
                let lost = window::lost_start(trace);
                let overlaps = |row: &u32| {
                    let (from, to) = (trace.slices.start(*row), trace.slices.end(*row));
                    let inside = from < end && (start < to || start <= from);
                    trace.kind(*row).is_device_work()
                        && Some(from) != lost
                        && (inside || applied == WindowRule::All)
                };
                let rows = trace.rows().filter(overlaps).collect();
                (TimeWindow { rule: applied, start, end, steps }, rows)
            }
        };
        device_rows.sort_by_key(|row| (trace.slices.start(*row), *row));
        let classes = classifier.classes(trace, &device_rows);
        let mut scope = Self {
            trace,
            window,
            steps: all_steps,
            step_mark,
            device_rows,
            classes,
            device_span: None,
            late_work: Vec::new(),
            links,
            frames,
        };
        scope.add_late_work(classifier);
        scope
    }

    fn add_late_work(&mut self, classifier: &Classifier) {
        if self.window.rule != WindowRule::Steps {
            return;
        }
        self.device_span = device_step::span(self.trace, self.links(), &self.window);
        if self.device_span.is_some() {
            let rows = device_step::late_rows(self.trace, self.links(), &self.window);
            let classes = classifier.classes(self.trace, &rows);
            self.late_work = rows.into_iter().zip(classes).collect();
        }
    }

    /// Returns the links between launches and device work of the whole trace, which are built on
    /// first use.
    pub fn links(&self) -> &Links {
        self.links.get_or_init(|| Links::new(self.trace))
    }

    /// Returns the Python frames of the whole trace, which are built on first use.
    pub fn frames(&self) -> &Frames {
        self.frames.get_or_init(|| frames::build_frames(self.trace))
    }

    /// Returns the part of a row that lies inside the window, which may be empty.
    pub fn clipped(&self, row: u32) -> Interval {
        self.clipped_by(row, 0)
    }

    /// Returns the part of a row that lies inside the window, after subtracting the nanoseconds by
    /// which its clock is ahead.
    pub fn clipped_by(&self, row: u32, ahead_ns: i64) -> Interval {
        let slices = &self.trace.slices;
        let (start, end) = (slices.start(row) - ahead_ns, slices.end(row) - ahead_ns);
        let start = start.clamp(self.window.start, self.window.end);
        (start, end.clamp(start, self.window.end))
    }

    /// Returns the times of the device rows that satisfy a predicate, clipped to the window and
    /// sorted by start.
    pub fn spans(&self, mut takes: impl FnMut(u32, WorkClass) -> bool) -> Vec<Interval> {
        let rows = self.device_rows.iter().zip(&self.classes);
        rows.filter(|(row, class)| takes(**row, **class))
            .map(|(row, _)| self.clipped(*row))
            .collect()
    }

    /// Returns the devices that have work in the window, in ascending order.
    pub fn devices(&self) -> Vec<i32> {
        let mut devices: BTreeSet<i32> = BTreeSet::new();
        for row in &self.device_rows {
            devices.insert(self.trace.device(*row));
        }
        devices.into_iter().collect()
    }

    /// Returns the total length of the window's steps, on the host or on the devices, whichever is
    /// longer.
    pub fn length_ns(&self) -> i64 {
        let device = self.device_span.map_or(0, |(start, end)| end - start);
        self.window.length().max(device)
    }

    /// Returns whether a host row starts inside the window.
    pub fn starts_inside(&self, row: u32) -> bool {
        let start = self.trace.slices.start(row);
        self.window.start <= start && start < self.window.end
    }
}

/// Returns the device work that Holistic Trace Analysis keeps. With two or more steps, that is the
/// work whose correlation id occurs on a host row that starts before the last step. With fewer
/// steps, all device work is kept.
///
/// # Source
/// The rule comes from traceinsight 0.6.1, `hta/common/trace.py`, `_filter_irrelevant_gpu_kernels`.
fn kept_by_hta(trace: &Trace, steps: &[window::TrainingStep]) -> Vec<u32> {
    let device = trace.rows().filter(|row| trace.kind(*row).is_device_work());
    let [.., _, last] = steps else { return device.collect() };
    let is_host = |row: &u32| {
        let kind = trace.kind(*row);
        !kind.is_device_work() && !matches!(kind, EventKind::DeviceAnnotation | EventKind::Sync)
    };
    let before = |row: &u32| trace.slices.start(*row) < last.start;
    let correlation = |row: u32| trace.slices.correlation(row);
    let mut launched: Vec<u64> =
        trace.rows().filter(is_host).filter(before).filter_map(correlation).collect();
    launched.sort_unstable();
    let is_kept =
        |row: &u32| correlation(*row).is_some_and(|id| launched.binary_search(&id).is_ok());
    device.filter(is_kept).collect()
}
