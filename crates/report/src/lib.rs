//! Reports as self-contained HTML pages: a job's traces, a comparison, a prediction, a training
//! run.
//!
//! [`build_report`] runs every analysis once and keeps the results that the page shows. Likewise,
//! [`diff::build_report`] compares two jobs, [`predicted::build_page`] shows a prediction, and
//! [`training::build_report`] the metrics of a training run. [`html`] renders the result as one
//! file that needs no network. The same traces and options give the same bytes.

mod clock;
mod device;
pub mod diff;
mod error;
mod finding;
mod host;
pub mod html;
mod idle;
mod memory;
mod network;
mod options;
mod path;
pub mod predicted;
mod step;
pub mod timeline;
pub mod training;

use analyze::JobFacts;
use analyze::coverage;
use analyze::findings;
use analyze::quality;
use analyze::summary::{self, Summary};
use serde::Serialize;

pub use clock::Zero;
pub use device::DevicePart;
pub use diff::DiffReport;
pub use error::Error;
pub use finding::FindingPart;
pub use host::HostPart;
pub use idle::IdlePart;
pub use memory::MemoryPart;
pub use network::NetworkPart;
pub use options::{Options, TimelineSteps};
pub use path::PathPart;
pub use step::StepPart;
pub use timeline::Timeline;
pub use training::TrainingReport;

/// Everything that the page of a job shows: the results of all analyses.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    pub title: String,
    pub program: String,
    /// The missing parts of the recordings, in one line.
    pub missing: Option<String>,
    pub summary: Summary,
    /// Issues of the recordings, one line per kind.
    pub quality: Vec<IssueLine>,
    pub findings: FindingPart,
    pub steps: StepPart,
    pub idle: IdlePart,
    pub device: DevicePart,
    pub host: HostPart,
    pub network: NetworkPart,
    pub memory: MemoryPart,
    pub path: PathPart,
    pub timeline: Timeline,
}

/// All issues of one kind and severity, with texts for the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IssueLine {
    pub id: &'static str,
    pub severity: quality::Severity,
    /// The issue, and the ranks that have the same or a similar one.
    pub words: String,
    /// The analyses that the problem affects.
    pub matters: &'static str,
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

/// Number of kernels and of operators in the summary.
const TOP: usize = 8;

/// Runs all analyses of a job for its page. The findings were computed before.
///
/// # Cost
/// `O(n log n)` in the rows of the traces.
/// # Errors
/// [`Error::NoSuchStep`] if the windows have none of the requested steps.
pub fn build_report(
    job: &JobFacts<'_>,
    findings: &findings::FindingReport,
    options: &Options,
) -> Result<JobReport, Error> {
    let scopes = job.scopes();
    let zero = Zero::new(scopes, job.collectives());
    let (path, marked) = path::build_part(job.paths(), &zero);
    Ok(JobReport {
        title: options.title.clone(),
        program: options.program.clone(),
        missing: coverage::missing(scopes.iter().map(|scope| scope.trace)),
        quality: quality::by_kind(job.issues()).iter().map(|kind| line(kind, job)).collect(),
        summary: summary::summarize_job(job, TOP),
        findings: finding::build_part(scopes, findings, &zero),
        steps: step::build_part(job, &zero),
        idle: idle::build_part(job, &zero),
        device: device::build_part(scopes),
        host: host::build_part(job),
        network: network::build_part(job, &zero),
        memory: memory::build_part(job, &zero),
        path,
        timeline: timeline::build_timeline(scopes, &marked, &zero, options)?,
    })
}
