//! What a rule reports: a cause of waste with its evidence, what it costs, and the edit of the
//! dependency graph that would remove it. Plain data; knows no rule.

use serde::{Deserialize, Serialize, Serializer};
use trace::store::TrackId;

use crate::facts::disturbance::Disturbance;
use crate::facts::interval::Interval;
use crate::graph::edit::Action;

/// How much is at stake, by the saving's share of a step; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// How sure a finding is; the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    High,
    /// A heuristic, or rests on inferred waits.
    Medium,
    /// The trace lacks what would prove it.
    Low,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingCategory {
    /// Whether the trace can be trusted.
    Quality,
    /// Launches and their grain.
    Launch,
    /// Devices that wait for the host.
    Host,
    Copy,
    Kernel,
    Communication,
    Memory,
    /// A rule of the user's.
    Own,
}

/// One occurrence of an antipattern in a job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The rule, such as `L01`.
    pub rule: String,
    /// What was found in a few words; the rule's title, unless it has one for each kind of finding.
    pub title: String,
    pub category: FindingCategory,
    pub severity: Severity,
    pub confidence: Confidence,
    /// The ranks that have it, ascending; empty where it is the job's.
    pub ranks: Vec<u32>,
    /// The numbers of the steps that were looked at; empty without steps.
    pub steps: Vec<i64>,
    /// What was found, with numbers, of the rank that has most of it.
    pub what: String,
    /// What to do about it.
    pub advice: String,
    /// Why it weighs less than its rows, if it does.
    pub held_back: Option<HeldBack>,
    /// What would decide without its rows, where the saving is far below what they add up to.
    #[serde(rename = "bound")]
    pub limiting_factor: Option<LimitingFactor>,
    /// What a step would gain; `None` where nothing can be saved or priced.
    pub saving: Option<Saving>,
    /// The same of host and devices apart, where the devices' steps are longer.
    #[serde(rename = "sides")]
    pub split: Option<HostDeviceSplit>,
    /// What was measured; per step where the name says so.
    pub numbers: Vec<Number>,
    /// The rows that show it, the most telling first.
    #[serde(rename = "proofs")]
    pub evidence: Vec<Evidence>,
    /// The limits it was held against.
    pub limits: Vec<Number>,
    /// What a suppression names: stable from run to run.
    pub key: String,
    /// The edit that removes it.
    pub remedy: Option<Remedy>,
}

/// Why a finding weighs less than its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// In words.
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
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Medium => "medium",
            Self::Info => "info",
        }
    }
}

/// What a step would gain. Savings of several findings do not add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Saving {
    /// `mid_ns` less what steps differ by anyway; 0 where that is more: see
    /// [`Saving::is_within_noise`].
    pub low_ns: i64,
    /// By the what-if on the dependency graph, never more than `high_ns`.
    pub mid_ns: i64,
    /// What the rows themselves add up to.
    pub high_ns: i64,
    /// `mid_ns` of a step.
    pub mid_pct: f64,
    /// What `mid_ns` was found on.
    pub source: SavingSource,
}

impl Saving {
    /// Whether steps differ by as much anyway, so that the saving is no gain that a user could
    /// count on or measure.
    pub fn is_within_noise(&self) -> bool {
        self.mid_ns > 0 && self.low_ns == 0
    }
}

/// A step on the host and on its devices, which run behind it, with and without what was found: of
/// the rank that is told of, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HostDeviceSplit {
    /// A step of the host.
    pub host_ns: i64,
    /// It would take with the cure.
    pub cured_host_ns: i64,
    /// A step of the devices.
    pub device_ns: i64,
    /// It would take with the cure.
    pub cured_device_ns: i64,
    /// It would take with half of what is found, where that is time of transfers.
    pub halved_device_ns: Option<i64>,
}

/// What a saving was found on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SavingSource {
    /// A simulated step, in which what starts, waits and transfers follows from costs.
    Simulation,
    /// The graph of the recording, with its waits as they were measured.
    #[default]
    Recording,
}

/// A measurement or a limit with its name, which says the unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Number {
    pub name: &'static str,
    pub value: f64,
}

/// A row that shows what was found, for all of its name.
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
    /// How many rows of this name.
    pub count: u64,
    pub total_ns: i64,
}

/// The edits of the dependency graph that stand for a cure. Computes nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Remedy {
    pub edits: Vec<RowEdit>,
}

/// What happens to the nodes of some rows of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowEdit {
    pub rank: u32,
    /// Rows of its trace, ascending, each once; written as runs `[first, last]`.
    #[serde(serialize_with = "runs")]
    pub rows: Vec<u32>,
    /// Time of threads outside operators and calls that is scaled with them: host code that no row
    /// covers, or frames of Python. The spans of a thread do not overlap.
    #[serde(skip)]
    pub spans: Vec<(TrackId, Interval)>,
    pub action: Action,
}

/// What a rule found on one rank, or in a job.
#[derive(Clone, Debug)]
pub(super) struct RuleFindings {
    /// Instead of the title of the rule.
    pub title: Option<&'static str>,
    pub what: String,
    pub advice: String,
    /// What it is about, by name: with the rule it makes the key.
    pub subject: String,
    pub numbers: Vec<Number>,
    pub evidence: Vec<Evidence>,
    /// Over the whole window.
    pub high_ns: Option<i64>,
    pub edits: Vec<RowEdit>,
    /// At least this severe.
    pub severity: Severity,
    /// The time of threads it rests on, where that is not the time of its rows.
    pub spans: Vec<(TrackId, Interval)>,
    /// At most as sure as this.
    pub confidence: Confidence,
}

impl RuleFindings {
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

    /// A title that says more than that of the rule.
    pub fn titled(self, title: Option<&'static str>) -> Self {
        Self { title, ..self }
    }

    /// At most as sure as this.
    pub fn sure(self, confidence: Confidence) -> Self {
        Self { confidence, ..self }
    }

    /// The time of threads it rests on, where that is not the time of its rows.
    pub fn rests_on(self, spans: Vec<(TrackId, Interval)>) -> Self {
        Self { spans, ..self }
    }

    pub fn number(mut self, name: &'static str, value: f64) -> Self {
        let value = (value * 1e3).round() / 1e3;
        self.numbers.push(Number { name, value });
        self
    }

    /// The rows that show it; the first one's name becomes the subject.
    pub fn shown_by(mut self, evidence: Vec<Evidence>) -> Self {
        if self.subject.is_empty() {
            self.subject =
                evidence.first().map_or_else(String::new, |evidence| evidence.name.clone());
        }
        self.evidence = evidence;
        self
    }

    pub fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: subject.into(), ..self }
    }

    /// Nanoseconds of the window, and the edits that would save them.
    pub fn saves(self, high_ns: i64, edits: Vec<RowEdit>) -> Self {
        Self { high_ns: Some(high_ns.max(0)), edits, ..self }
    }

    pub fn at_least(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}

impl RowEdit {
    /// An edit of rows in any order.
    pub(super) fn new(rank: u32, mut rows: Vec<u32>, action: Action) -> Self {
        rows.sort_unstable();
        rows.dedup();
        Self { rank, rows, spans: Vec::new(), action }
    }
}

/// Ascending rows as runs of neighbours.
fn runs<S: Serializer>(rows: &[u32], to: S) -> Result<S::Ok, S::Error> {
    let runs = rows.chunk_by(|a, b| a + 1 == *b);
    to.collect_seq(runs.filter_map(|run| Some((run.first()?, run.last()?))))
}

/// What a rank's step would consist of without the rows of a finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LimitingFactor {
    pub rank: u32,
    /// The host's share of its critical path, percent.
    pub host_pct: f64,
    pub device_pct: f64,
    /// Waiting for other ranks.
    pub wait_pct: f64,
    /// Of what was recorded: whom the rank waits for in collectives, the longest first.
    pub waits: Vec<WaitFor>,
}

/// How long a rank waits for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WaitFor {
    /// The rank that comes last.
    pub rank: u32,
    pub wait_ns: i64,
    /// Collectives it comes last to.
    pub count: u64,
}

/// How severe a saving is, by its share of a step in percent.
pub(super) fn severity_of(share: f64) -> Severity {
    match share {
        15.0.. => Severity::Critical,
        5.0.. => Severity::High,
        1.0.. => Severity::Medium,
        _ => Severity::Info,
    }
}
