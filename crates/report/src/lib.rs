//! Builds reports as self-contained HTML pages about the traces of a job, a comparison of two jobs,
//! a prediction, or a training run.
//!
//! [`build_report`] runs every analysis of a job once and keeps the results that its page shows.
//! [`diff::build_report`] compares two jobs, [`predicted::build_page`] shows a prediction, and
//! [`training::build_report`] shows the metrics of a training run. [`html`] renders each result as
//! one file that needs no network. Equal traces and options give equal bytes.

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

use std::thread::ScopedJoinHandle;

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

/// All data that the page of a job shows, which are the results of all analyses.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    pub title: String,
    pub program: String,
    /// One line that describes the missing parts of the recordings.
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
    /// Description of the issue, with the ranks that have it or a similar one.
    pub words: String,
    /// Analyses whose results the issue affects.
    pub matters: &'static str,
    pub hint: &'static str,
}

/// Waits for a part that another thread builds, and passes on a panic of that thread.
fn join<T>(part: ScopedJoinHandle<'_, T>) -> T {
    part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
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

/// Number of kernels, and of operators, in the summary.
const TOP: usize = 8;

/// Runs all analyses of a job for its page. The findings are computed by the caller.
///
/// # Cost
/// `O(n log n)` in the number of rows of the traces.
/// # Errors
/// [`Error::NoSuchStep`] if the requested steps do not lie in the windows of the traces.
pub fn build_report(
    job: &JobFacts<'_>,
    findings: &findings::FindingReport,
    options: &Options,
) -> Result<JobReport, Error> {
    let scopes = job.scopes();
    let zero = Zero::new(scopes, job.collectives());
    std::thread::scope(|threads| {
        let device = threads.spawn(|| device::build_part(scopes));
        let memory = threads.spawn(|| memory::build_part(job, &zero));
        let idle = threads.spawn(|| idle::build_part(job, &zero));
        let path = threads.spawn(|| path::build_part(job, &zero));
        let marked = path::marked_rows(job);
        let timeline = timeline::build_timeline(scopes, &marked, &zero, options)?;
        Ok(JobReport {
            title: options.title.clone(),
            program: options.program.clone(),
            missing: coverage::missing(scopes.iter().map(|scope| scope.trace)),
            quality: quality::by_kind(job.issues()).iter().map(|kind| line(kind, job)).collect(),
            summary: summary::summarize_job(job, TOP),
            findings: finding::build_part(scopes, findings, &zero),
            steps: step::build_part(job, &zero),
            host: host::build_part(job),
            network: network::build_part(job, &zero),
            path: join(path),
            timeline,
            idle: join(idle),
            device: join(device),
            memory: join(memory),
        })
    })
}
