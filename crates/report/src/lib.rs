//! Pictures and tables of a job's traces: one HTML file that needs nothing else.
//!
//! [`of`] runs every analysis once and keeps what the page shows; [`diff::of`] does so for two
//! jobs, [`training::of`] for the figures of a training run. [`html`] renders the result as one
//! file that needs no network. Pure: the same traces and options give the same bytes. Knows nothing
//! of where traces come from or where the page goes.

mod clock;
mod device;
pub mod diff;
mod finding;
mod host;
pub mod html;
mod idle;
mod memory;
mod network;
mod path;
pub mod predicted;
mod step;
pub mod timeline;
pub mod training;

use analyze::JobFacts;
use std::ops::Range;

use analyze::coverage;
use analyze::findings;
use analyze::quality;
use analyze::summary::{self, Summary};
use serde::Serialize;

pub use clock::Zero;
pub use device::DevicePart;
pub use diff::DiffReport;
pub use finding::FindingPart;
pub use host::HostPart;
pub use idle::IdlePart;
pub use memory::MemoryPart;
pub use network::NetworkPart;
pub use path::PathPart;
pub use step::StepPart;
pub use timeline::Timeline;
pub use training::TrainingReport;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the page calls the job.
    pub title: String,
    /// The program that made it, with its version.
    pub program: String,
    /// Which steps the timeline shows.
    pub steps: TimelineSteps,
    /// Events of the timeline, where `steps` does not say otherwise.
    pub events_max: usize,
}

/// Which steps the timeline holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineSteps {
    /// The first ones, as many as [`Options::events_max`] allows, one at least.
    Fitting,
    /// So many of the first ones.
    First(usize),
    /// Those with these numbers.
    Numbered(Range<i64>),
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Steps were asked for by numbers that the windows do not have.
    #[error("steps {}..{}: expected some of {known}, got none", asked.start, asked.end)]
    NoSuchStep {
        /// As they were asked for.
        asked: Range<i64>,
        /// The steps there are, in words.
        known: String,
    },
    /// A value has no JSON.
    #[error("cannot write the report's data: {0}")]
    Data(#[from] serde_json::Error),
}

impl Options {
    /// A timeline that stays smooth and a file that can be mailed.
    pub const EVENTS_MAX: usize = 200_000;
}

/// Everything that a page shows.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the page calls the job.
    pub title: String,
    pub program: String,
    /// What is missing of the recordings, in one line.
    pub missing: Option<String>,
    /// The job in one page.
    pub summary: Summary,
    /// What is wrong with the recordings, a line per kind.
    pub quality: Vec<IssueLine>,
    pub findings: FindingPart,
    pub steps: StepPart,
    /// Why devices do nothing.
    pub idle: IdlePart,
    pub device: DevicePart,
    /// What the hosts do.
    pub host: HostPart,
    /// Collectives and who was late.
    pub network: NetworkPart,
    pub memory: MemoryPart,
    /// What bounds the windows.
    pub path: PathPart,
    /// Every event of some steps.
    pub timeline: Timeline,
}

/// All issues of one kind and severity, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IssueLine {
    pub id: &'static str,
    pub severity: quality::Severity,
    /// What is wrong, and which ranks have exactly this, which the like.
    pub words: String,
    /// The analyses that suffer, and how.
    pub matters: &'static str,
    /// What to do about it.
    pub hint: &'static str,
}

fn line(kind: &quality::IssueKind, job: &JobFacts<'_>) -> IssueLine {
    IssueLine {
        id: kind.id,
        severity: kind.severity,
        words: kind.words(job.ranks.len() as u64),
        matters: kind.matters,
        hint: kind.hint,
    }
}

/// Kernels and operators that the summary names.
const TOP: usize = 8;

/// Analyses a job for a page; `found` is what wastes time in it.
///
/// # Cost
/// `O(n log n)` in the rows of the traces.
/// # Errors
/// [`Error::NoSuchStep`].
pub fn of(
    job: &JobFacts<'_>,
    found: &findings::FindingReport,
    options: &Options,
) -> Result<Report, Error> {
    let scopes = job.scopes();
    let zero = Zero::new(scopes, job.collectives());
    let (path, marked) = path::of(job.paths(), &zero);
    Ok(Report {
        title: options.title.clone(),
        program: options.program.clone(),
        missing: coverage::missing(scopes.iter().map(|scope| scope.trace)),
        quality: quality::by_kind(job.issues()).iter().map(|kind| line(kind, job)).collect(),
        summary: summary::summarize_job(job, TOP),
        findings: finding::of(scopes, found, &zero),
        steps: step::of(job, &zero),
        idle: idle::of(job, &zero),
        device: device::of(scopes),
        host: host::of(job),
        network: network::of(job, &zero),
        memory: memory::of(job, &zero),
        path,
        timeline: timeline::of(scopes, &marked, &zero, options)?,
    })
}
