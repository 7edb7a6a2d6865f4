//! What is looked at, and what a finding of the doctor consists of.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;

use super::limits::DoctorLimit;
use crate::api::FleetQuery;
use crate::sums::Dimension;

/// The run (scheduler and job, as in `slurm/7`) or host that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoctorSubject {
    Run(String),
    Host(String),
}

/// A GPU of a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuPlace {
    pub host: String,
    pub index: u32,
}

impl GpuPlace {
    /// Returns the name of the GPU for people.
    pub fn name(&self) -> String {
        format!("{} GPU {}", self.host, self.index)
    }
}

/// A tab of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DoctorTab {
    Cpu,
    Gpu,
    Memory,
    Network,
    Application,
}

/// How much a finding costs, from most to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DoctorSeverity {
    Critical,
    High,
    Medium,
    Info,
}

/// An issue of a run or a host.
#[derive(Clone, Debug, Serialize)]
pub struct DoctorFinding {
    pub rule: &'static str,
    pub tab: DoctorTab,
    pub title: &'static str,
    pub severity: DoctorSeverity,
    /// Where it is, with the figures of the worst place.
    pub what: String,
    pub advice: &'static str,
    /// GPU hours that the issue costs at most; `None` if this cannot be said. Those of several
    /// findings may be the same hours.
    pub lost_gpu_hours: Option<f64>,
    /// Lost GPU hours that are counted for this issue and for no other.
    pub explained_gpu_hours: f64,
    /// Number of GPUs, hosts, runs or processes with the issue.
    pub place_count: usize,
    /// The places that lose most.
    pub places: Vec<DoctorCase>,
    pub limits: &'static [DoctorLimit],
}

/// A GPU, host, run or process with an issue.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DoctorCase {
    pub place: String,
    pub numbers: Vec<DoctorNumber>,
    /// GPU seconds that are lost at most.
    pub lost_s: Option<f64>,
    /// Share of the time of steps that is lost at most, for runs without GPUs.
    #[serde(skip)]
    pub lost_share: Option<f64>,
    #[serde(skip)]
    pub explains: ExplainedLoss,
}

/// Which of the lost time of GPUs an issue explains.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ExplainedLoss {
    #[default]
    Nothing,
    /// Idle time of all GPUs of a host, in cells with these starts.
    HostIdle { host: String, cells: BTreeSet<u64> },
    /// Intervals in which a GPU was idle throughout.
    GpuIdle(GpuPlace),
    /// Idle multiprocessors of a busy GPU.
    GpuSm(GpuPlace),
    /// A share of what all GPUs lost in a time, in seconds since 1970.
    Time { time: Range<f64>, share: f64 },
    /// This many seconds of whatever other issues do not explain. They cannot be told apart.
    Estimate(f64),
}

/// A measured figure with its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DoctorNumber {
    pub name: String,
    pub value: f64,
    /// `share`, `s` or `1`.
    pub unit: &'static str,
}

impl DoctorSubject {
    /// Returns the one run or host that a query selects.
    ///
    /// # Errors
    /// The reason if it selects none, several or something else.
    pub fn from_query(query: &FleetQuery) -> Result<Self, &'static str> {
        let selection: Vec<_> = query.sums.selection.iter().collect();
        let is_plain = query.sums.by.is_empty() && query.sums.step_s.is_none();
        if let [(dimension, members)] = selection[..]
            && is_plain
            && let Some(member) = members.first().filter(|_| members.len() == 1)
        {
            match dimension {
                Dimension::Run => return Ok(Self::Run(member.clone())),
                Dimension::Host => return Ok(Self::Host(member.clone())),
                _ => {}
            }
        }
        Err("one run, as in run=slurm/7, or one host, and neither `by` nor `step`")
    }
}

impl DoctorNumber {
    /// Describes the figure with its unit.
    pub fn describe(&self) -> String {
        let Self { name, value, unit } = self;
        match *unit {
            "share" => format!("{name} {:.1} %", value * 100.0),
            "s" if *value >= 5400.0 => format!("{name} {:.1} h", value / 3600.0),
            "s" if *value >= 100.0 => format!("{name} {:.0} min", value / 60.0),
            "s" => format!("{name} {value:.3} s"),
            _ => format!("{name} × {value:.0}"),
        }
    }
}
