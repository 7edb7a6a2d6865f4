//! Defines what a rule reports: a cause of waste with its evidence, its cost, and the edit of the
//! dependency graph that would remove it. The types are plain data and do not depend on any rule.

use schema::CellType;
use serde::{Deserialize, Serialize, Serializer};
use trace::store::TrackId;

use crate::facts::disturbance::Disturbance;
use crate::facts::interval::Interval;
use crate::graph::edit::Action;

/// Severity of a finding by the share of a step that its remedy saves. The variants are sorted from
/// the worst severity to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The remedy saves at least 15 % of a step.
    Critical,
    /// The remedy saves at least 5 % of a step.
    High,
    /// The remedy saves at least 1 % of a step.
    Medium,
    /// The remedy saves less than 1 % of a step, or nothing can be saved.
    Info,
}

/// Confidence in a finding. The highest confidence comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    High,
    /// The rule is a heuristic, or the finding rests on inferred waits.
    Medium,
    /// The trace lacks the data that would prove the finding.
    Low,
}

/// The subsystem that a finding concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingCategory {
    /// Findings about whether the trace can be trusted.
    Quality,
    /// Findings about launches: their number, size and delay.
    Launch,
    /// Findings about devices that wait for the host.
    Host,
    Copy,
    Kernel,
    Communication,
    Memory,
    /// Findings of the user's custom rules.
    Own,
}

/// One occurrence of an antipattern in a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Id of the rule, such as `L01`.
    pub rule: String,
    /// Short description, which is the title of the rule unless the finding has a more specific
    /// one.
    pub title: String,
    pub category: FindingCategory,
    pub severity: Severity,
    pub confidence: Confidence,
    /// Affected ranks in ascending order; empty if the finding concerns the whole job.
    pub ranks: Vec<u32>,
    /// Numbers of the analyzed steps; empty if the recording has no steps.
    pub steps: Vec<i64>,
    /// Description with the figures of the most affected rank.
    pub what: String,
    /// Advice to the user about the finding.
    pub advice: String,
    /// Set if the finding is less important than the time of its rows suggests.
    pub held_back: Option<HeldBack>,
    /// Set if the saving is far below the total time of the finding's rows.
    #[serde(rename = "bound")]
    pub limiting_factor: Option<LimitingFactor>,
    /// Missing if nothing can be saved, or if the saving cannot be priced.
    pub saving: Option<Saving>,
    /// Set if the steps of the devices are longer than those of the host.
    #[serde(rename = "sides")]
    pub split: Option<HostDeviceSplit>,
    /// Measured figures of the finding, which are per step if their name says so.
    pub numbers: Vec<Number>,
    /// Supporting rows, most significant first.
    #[serde(rename = "proofs")]
    pub evidence: Vec<Evidence>,
    /// Thresholds that the rule applied.
    pub limits: Vec<Number>,
    /// Identifies the finding in suppressions and stays the same from run to run.
    pub key: String,
    /// Edits of the dependency graph that model the cure.
    pub remedy: Option<Remedy>,
}

/// The reason why a finding is less important than the time of its rows suggests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// The device is busy all the time, so nothing that the host does differently shortens a step.
    DeviceBound,
    /// Most of the finding's time is set-up or a first step.
    WarmUp,
    /// Most of the finding's time is first launches of kernels.
    FirstLaunch,
    /// Most of the finding's time is a search for the fastest kernels.
    Autotuning,
    /// Most of the finding's time is the capture of a graph.
    GraphCapture,
    /// Most of the finding's time is the profiler's own work.
    Profiler,
}

impl HeldBack {
    /// Returns the phrase that reports show for this reason.
    pub fn words(self) -> &'static str {
        match self {
            Self::DeviceBound => "the device is busy",
            Self::WarmUp => "warm-up",
            Self::FirstLaunch => "first launches",
            Self::Autotuning => "autotuning",
            Self::GraphCapture => "graph capture",
            Self::Profiler => "the profiler's own",
        }
    }
}

impl From<Disturbance> for HeldBack {
    fn from(kind: Disturbance) -> Self {
        match kind {
            Disturbance::WarmUp => Self::WarmUp,
            Disturbance::FirstLaunch => Self::FirstLaunch,
            Disturbance::Autotuning => Self::Autotuning,
            Disturbance::GraphCapture => Self::GraphCapture,
            Disturbance::Profiler => Self::Profiler,
        }
    }
}

impl Severity {
    /// Returns the name of this reason in settings and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Info => "info",
        }
    }
}

/// Time that a step would save with the remedy. Savings of several findings cannot be added,
/// because they may concern the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Saving {
    /// `mid_ns` minus the usual variation of steps, but at least 0; see
    /// [`Saving::is_within_noise`].
    pub low_ns: i64,
    /// Result of the what-if on the dependency graph, but at most `high_ns`.
    pub mid_ns: i64,
    /// Total duration of the finding's rows per step. For a cure on the host, the bound is at most
    /// the idle time of the devices plus the device work that the cure removes.
    pub high_ns: i64,
    /// `mid_ns` relative to the step time, in percent.
    pub mid_pct: f64,
    /// The model with which `mid_ns` was computed.
    pub source: SavingSource,
}

impl Saving {
    /// Returns whether the saving is smaller than the usual variation of steps, so that a user
    /// could not measure it.
    pub fn is_within_noise(&self) -> bool {
        self.mid_ns > 0 && self.low_ns == 0
    }
}

/// Step time of the host and of the devices, with and without the remedy. The split is reported for
/// ranks whose devices lag behind the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostDeviceSplit {
    pub host_ns: i64,
    /// Host step time with the remedy applied.
    pub cured_host_ns: i64,
    pub device_ns: i64,
    /// Device step time with the remedy applied.
    pub cured_device_ns: i64,
    /// Device step time with the finding's time halved instead of removed, for findings about
    /// transfers.
    pub halved_device_ns: Option<i64>,
}

/// The model with which a saving was computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum SavingSource {
    /// A simulation of the step, in which starts, waits and transfers follow from costs.
    Simulation,
    /// The graph of the recording, which keeps the waits as they were measured.
    #[default]
    Recording,
}

/// A measured figure or a threshold of a rule. The name of the figure ends in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Number {
    pub name: &'static str,
    pub value: f64,
}

/// A row that supports a finding. The row represents all supporting rows of the same name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    pub rank: u32,
    /// The longest supporting row with this name in the trace.
    pub row: Option<u32>,
    pub name: String,
    /// Operators and annotations around the row, outermost first.
    pub within: Vec<String>,
    /// The line of Python that ran the row, if the trace has Python stacks.
    pub source: Option<String>,
    /// Start of the row, relative to the start of the window.
    pub start_ns: Option<i64>,
    /// Number of supporting rows with this name.
    pub count: u64,
    pub total_ns: i64,
}

/// Edits of the dependency graph that model a cure. The saving is found by applying these edits and
/// relaxing the graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Remedy {
    pub edits: Vec<RowEdit>,
}

/// An edit of the graph nodes that belong to some rows of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowEdit {
    pub rank: u32,
    /// Rows of the rank's trace, ascending and without repetition, serialized as runs `[first,
    /// last]`.
    #[serde(serialize_with = "runs")]
    pub rows: Vec<u32>,
    /// Thread time outside operators and calls that the edit also scales, which is host code
    /// without any row or with only Python frames. The spans of one thread must not overlap.
    #[serde(skip)]
    pub spans: Vec<(TrackId, Interval)>,
    pub action: Action,
}

/// The finding of a rule for one rank or one job, before it is priced.
#[derive(Clone, Debug)]
pub(super) struct RuleFindings {
    /// Title that replaces the title of the rule.
    pub title: Option<&'static str>,
    pub what: String,
    pub advice: String,
    /// Name of the subject of the finding. The rule and the subject together form the key of the
    /// finding.
    pub subject: String,
    pub numbers: Vec<Number>,
    pub evidence: Vec<Evidence>,
    /// Total time of the finding's rows over the whole window.
    pub high_ns: Option<i64>,
    pub edits: Vec<RowEdit>,
    /// Lower bound of the finding's severity.
    pub severity: Severity,
    /// Thread times on which the finding rests, if they differ from the time of its rows.
    pub spans: Vec<(TrackId, Interval)>,
    /// Upper bound of the finding's confidence.
    pub confidence: Confidence,
}

impl RuleFindings {
    /// Creates a finding of severity info and high confidence, without numbers, evidence or saving.
    pub fn new(what: String, advice: impl Into<String>) -> Self {
        Self {
            title: None,
            what,
            advice: advice.into(),
            subject: String::new(),
            numbers: Vec::new(),
            evidence: Vec::new(),
            high_ns: None,
            edits: Vec::new(),
            severity: Severity::Info,
            spans: Vec::new(),
            confidence: Confidence::High,
        }
    }

    /// Sets a title that is more specific than the title of the rule.
    pub fn titled(self, title: Option<&'static str>) -> Self {
        Self { title, ..self }
    }

    /// Sets an upper bound for the confidence of the finding.
    pub fn sure(self, confidence: Confidence) -> Self {
        Self { confidence, ..self }
    }

    /// Sets the thread times on which the finding rests, if they differ from the time of its rows.
    pub fn rests_on(self, spans: Vec<(TrackId, Interval)>) -> Self {
        Self { spans, ..self }
    }

    /// Adds a number to the finding, rounded to three decimals so that reports are stable.
    pub fn number(mut self, name: &'static str, value: f64) -> Self {
        let value = (value * 1e3).round() / 1e3;
        self.numbers.push(Number { name, value });
        self
    }

    /// Sets the evidence of the finding. The name of the first row becomes the subject, unless a
    /// subject is already set.
    pub fn shown_by(mut self, evidence: Vec<Evidence>) -> Self {
        if self.subject.is_empty() {
            self.subject =
                evidence.first().map_or_else(String::new, |evidence| evidence.name.clone());
        }
        self.evidence = evidence;
        self
    }

    /// Sets the subject, which distinguishes findings of the same rule.
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    /// Sets the time that could be saved in the window, and the graph edits that would save it.
    pub fn saves(self, high_ns: i64, edits: Vec<RowEdit>) -> Self {
        Self { high_ns: Some(high_ns.max(0)), edits, ..self }
    }

    /// Sets a lower bound for the severity of the finding; see [`RuleFindings::severity`].
    pub fn at_least(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

impl RowEdit {
    /// Creates an edit of some rows. The rows may be in any order.
    pub(super) fn new(rank: u32, mut rows: Vec<u32>, action: Action) -> Self {
        rows.sort_unstable();
        rows.dedup();
        Self { rank, rows, spans: Vec::new(), action }
    }
}

/// Serializes ascending rows as runs of consecutive numbers, `[first, last]`.
fn runs<S: Serializer>(rows: &[u32], to: S) -> Result<S::Ok, S::Error> {
    let runs = rows.chunk_by(|a, b| a + 1 == *b);
    to.collect_seq(runs.filter_map(|run| Some((run.first()?, run.last()?))))
}

/// What would limit a rank's step if the rows of a finding were gone, as shares of the rank's
/// critical path with the remedy applied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitingFactor {
    pub rank: u32,
    /// Share of the host in the rank's critical path, in percent.
    pub host_pct: f64,
    pub device_pct: f64,
    /// Share of waits for other ranks in the rank's critical path, in percent.
    pub wait_pct: f64,
    /// The ranks that this rank waited for in recorded collectives, longest wait first.
    pub waits: Vec<WaitFor>,
}

/// Time that a rank waits in collectives for one other rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WaitFor {
    /// The rank that arrives last and is waited for.
    pub rank: u32,
    pub wait_ns: i64,
    /// Number of collectives to which that rank arrives last.
    pub count: u64,
}

/// Returns the severity of a saving, given the share of a step that it saves, in percent.
pub(super) fn severity_of(share: f64) -> Severity {
    match share {
        15.0.. => Severity::Critical,
        5.0.. => Severity::High,
        1.0.. => Severity::Medium,
        _ => Severity::Info,
    }
}
