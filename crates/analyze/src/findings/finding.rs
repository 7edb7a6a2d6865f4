//! What a rule reports: a cause of waste with its evidence, what it costs, and the edit of the
//! dependency graph that would remove it. Plain data; knows no rule.

use schema::CellType;
use serde::{Deserialize, Serialize, Serializer};
use trace::store::TrackId;

use crate::facts::disturbance::Disturbance;
use crate::facts::interval::Interval;
use crate::graph::edit::Action;

/// Severity of a finding, by the share of a step that its remedy saves; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// 15 % of a step or more.
    Critical,
    /// 5 % or more.
    High,
    /// 1 % or more.
    Medium,
    /// Less, or nothing that could be saved.
    Info,
}

/// Confidence in a finding; the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    High,
    /// A heuristic, or rests on inferred waits.
    Medium,
    /// The trace lacks what would prove it.
    Low,
}

/// The subsystem that a finding concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingCategory {
    /// Whether the trace can be trusted.
    Quality,
    /// Launches: their number, size and delay.
    Launch,
    /// Devices that wait for the host.
    Host,
    Copy,
    Kernel,
    Communication,
    Memory,
    /// Found by a rule of the user.
    Own,
}

/// One occurrence of an antipattern in a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule, such as `L01`.
    pub rule: String,
    /// Short description; the title of the rule unless it has one for each kind of finding.
    pub title: String,
    pub category: FindingCategory,
    pub severity: Severity,
    pub confidence: Confidence,
    /// Affected ranks, ascending; empty if the finding concerns the whole job.
    pub ranks: Vec<u32>,
    /// Numbers of the analyzed steps; empty without steps.
    pub steps: Vec<i64>,
    /// Description with numbers, for the most affected rank.
    pub what: String,
    /// What to do about it.
    pub advice: String,
    /// Set if the finding is less important than the time of its rows suggests.
    pub held_back: Option<HeldBack>,
    /// Set if the saving is far below the time of the rows.
    #[serde(rename = "bound")]
    pub limiting_factor: Option<LimitingFactor>,
    /// Missing if nothing can be saved or priced.
    pub saving: Option<Saving>,
    /// Set if the devices' steps are longer than the host's.
    #[serde(rename = "sides")]
    pub split: Option<HostDeviceSplit>,
    /// Measurements; per step if the name says so.
    pub numbers: Vec<Number>,
    /// Supporting rows, the most significant first.
    #[serde(rename = "proofs")]
    pub evidence: Vec<Evidence>,
    /// Thresholds that the rule used.
    pub limits: Vec<Number>,
    /// Identifies the finding in suppressions; stable from run to run.
    pub key: String,
    /// Graph edits that model the cure.
    pub remedy: Option<Remedy>,
}

/// Why a finding is less important than the time of its rows suggests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    /// The device is busy all the time: nothing the host does differently shortens a step.
    DeviceBound,
    /// Most of it is set-up or a first step.
    WarmUp,
    /// Most of it is first launches of kernels.
    FirstLaunch,
    /// Most of it is a search for the fastest kernels.
    Autotuning,
    /// Most of it is the capture of a graph.
    GraphCapture,
    /// Most of it is the profiler's.
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
    /// Returns the name used in settings and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Info => "info",
        }
    }
}

/// Time that a step would save with the remedy. Savings of several findings do not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Saving {
    /// `mid_ns` minus the usual variation of steps, at least 0; see [`Saving::is_within_noise`].
    pub low_ns: i64,
    /// Result of the what-if on the dependency graph, at most `high_ns`.
    pub mid_ns: i64,
    /// Total duration of the rows. A cure on the host saves no more than the devices' idle time
    /// and the device work that it removes, which limits this bound too.
    pub high_ns: i64,
    /// `mid_ns` relative to a step, in percent.
    pub mid_pct: f64,
    /// The model that `mid_ns` was computed with.
    pub source: SavingSource,
}

impl Saving {
    /// Returns whether the saving is smaller than the usual variation of steps, so that a user
    /// could not measure it.
    pub fn is_within_noise(&self) -> bool {
        self.mid_ns > 0 && self.low_ns == 0
    }
}

/// Step time of the host and of its devices, with and without the remedy. Reported for ranks whose
/// devices lag behind the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostDeviceSplit {
    pub host_ns: i64,
    /// Step time with the cure.
    pub cured_host_ns: i64,
    pub device_ns: i64,
    /// Step time with the cure.
    pub cured_device_ns: i64,
    /// Device step with half of the found time removed, for time of transfers.
    pub halved_device_ns: Option<i64>,
}

/// The model that a saving was computed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, CellType)]
#[serde(rename_all = "snake_case")]
pub enum SavingSource {
    /// A simulated step, in which starts, waits and transfers follow from costs.
    Simulation,
    /// The graph of the recording, with its waits as they were measured.
    #[default]
    Recording,
}

/// A measurement or a limit. The name ends in the unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Number {
    pub name: &'static str,
    pub value: f64,
}

/// A row that supports a finding. It represents all such rows of its name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evidence {
    pub rank: u32,
    /// The longest such row of the trace.
    pub row: Option<u32>,
    pub name: String,
    /// The operators and annotations around it, outermost first.
    pub within: Vec<String>,
    /// The line of Python, where stacks were recorded.
    pub source: Option<String>,
    /// When the row starts, from the start of the window.
    pub start_ns: Option<i64>,
    /// Number of rows of this name.
    pub count: u64,
    pub total_ns: i64,
}

/// Edits of the dependency graph that model a cure. Pricing applies them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Remedy {
    pub edits: Vec<RowEdit>,
}

/// An edit of the graph nodes of some rows of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowEdit {
    pub rank: u32,
    /// Rows of its trace, ascending, each once; written as runs `[first, last]`.
    #[serde(serialize_with = "runs")]
    pub rows: Vec<u32>,
    /// Thread time outside operators and calls that the edit scales too: host code that no row
    /// covers, or Python frames. The spans of a thread do not overlap.
    #[serde(skip)]
    pub spans: Vec<(TrackId, Interval)>,
    pub action: Action,
}

/// Result of a rule for one rank or one job, before pricing.
#[derive(Clone, Debug)]
pub(super) struct RuleFindings {
    /// Replaces the title of the rule.
    pub title: Option<&'static str>,
    pub what: String,
    pub advice: String,
    /// Subject of the finding by name. Rule and subject form the key.
    pub subject: String,
    pub numbers: Vec<Number>,
    pub evidence: Vec<Evidence>,
    /// Total over the whole window.
    pub high_ns: Option<i64>,
    pub edits: Vec<RowEdit>,
    /// Lower bound of the severity.
    pub severity: Severity,
    /// Sets the thread times that the finding rests on, if they differ from the time of its rows.
    pub spans: Vec<(TrackId, Interval)>,
    /// Sets an upper bound of the confidence.
    pub confidence: Confidence,
}

impl RuleFindings {
    /// Creates a finding without numbers, evidence or saving, with severity info and high
    /// confidence.
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

    /// Sets a title more specific than that of the rule.
    pub fn titled(self, title: Option<&'static str>) -> Self {
        Self { title, ..self }
    }

    /// Sets an upper bound of the confidence of the finding.
    pub fn sure(self, confidence: Confidence) -> Self {
        Self { confidence, ..self }
    }

    /// Sets the thread times that the finding rests on, if they differ from the time of its rows.
    pub fn rests_on(self, spans: Vec<(TrackId, Interval)>) -> Self {
        Self { spans, ..self }
    }

    /// Adds a number to the finding, rounded to three decimals so that reports are stable.
    pub fn number(mut self, name: &'static str, value: f64) -> Self {
        let value = (value * 1e3).round() / 1e3;
        self.numbers.push(Number { name, value });
        self
    }

    /// Sets the evidence. The name of the first row becomes the subject, unless one is set.
    pub fn shown_by(mut self, evidence: Vec<Evidence>) -> Self {
        if self.subject.is_empty() {
            self.subject =
                evidence.first().map_or_else(String::new, |evidence| evidence.name.clone());
        }
        self.evidence = evidence;
        self
    }

    /// Sets the subject, which tells findings of the same rule apart.
    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    /// Sets the time that could be saved in the window, and the edits that would save it.
    pub fn saves(self, high_ns: i64, edits: Vec<RowEdit>) -> Self {
        Self { high_ns: Some(high_ns.max(0)), edits, ..self }
    }

    /// Sets a lower bound of the severity; see [`RuleFindings::severity`].
    pub fn at_least(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

impl RowEdit {
    /// Creates an edit. The rows may be in any order.
    pub(super) fn new(rank: u32, mut rows: Vec<u32>, action: Action) -> Self {
        rows.sort_unstable();
        rows.dedup();
        Self { rank, rows, spans: Vec::new(), action }
    }
}

/// Serializes ascending rows as runs of consecutive numbers.
fn runs<S: Serializer>(rows: &[u32], to: S) -> Result<S::Ok, S::Error> {
    let runs = rows.chunk_by(|a, b| a + 1 == *b);
    to.collect_seq(runs.filter_map(|run| Some((run.first()?, run.last()?))))
}

/// What would limit a rank's step if the rows of a finding were gone: the shares of its critical
/// path with the remedy applied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitingFactor {
    pub rank: u32,
    /// The host's share of its critical path, percent.
    pub host_pct: f64,
    pub device_pct: f64,
    /// Share of waiting for other ranks, in percent.
    pub wait_pct: f64,
    /// The ranks that it waited for in recorded collectives, the longest wait first.
    pub waits: Vec<WaitFor>,
}

/// Time that a rank waits for another one in collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WaitFor {
    /// The rank that comes last.
    pub rank: u32,
    pub wait_ns: i64,
    /// Number of collectives to which that rank comes last.
    pub count: u64,
}

/// Returns the severity of a saving, given its share of a step in percent.
pub(super) fn severity_of(share: f64) -> Severity {
    match share {
        15.0.. => Severity::Critical,
        5.0.. => Severity::High,
        1.0.. => Severity::Medium,
        _ => Severity::Info,
    }
}
