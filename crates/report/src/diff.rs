//! Compares two recordings of a job: lists the changes, and shows one step of each recording on a
//! timeline.

use analyze::diff::{self as analysis, Diff, DiffSubject, DiffUnit, SpentChange};
use analyze::{JobFacts, Scope, coverage, cpu_run};
use serde::Serialize;

use crate::clock::Zero;
use crate::step::{self, StepView};
use crate::timeline::{self, Timeline};
use crate::{Error, Options, TimelineSteps, path};

/// Maximum number of listed changes per subject. The largest changes are listed.
const CHANGES: usize = 150;
/// Maximum number of unit times that are drawn for each recording.
const TIMES: usize = 2000;
/// Subjects whose changes are listed. Paths of the call tree are left out, because they are
/// numerous and repeat the changes of operators.
const SUBJECTS: [DiffSubject; 4] =
    [DiffSubject::Kernel, DiffSubject::Operator, DiffSubject::Host, DiffSubject::Call];

/// All data that the page of a comparison shows.
#[derive(Clone, Debug, Serialize)]
pub struct DiffReport {
    pub title: String,
    pub program: String,
    /// Whether both recordings are runs of rowmill's own trainer, whose device is a pool of CPU
    /// threads.
    pub is_pool: bool,
    /// One line that describes the missing parts of the recordings.
    pub missing: Option<String>,
    /// The comparison, with only the largest changes that are not noise.
    pub diff: Diff,
    /// Number of changes that are not listed, because they are noise or small.
    pub left_out_count: u64,
    /// Views of the recording before the change and of the recording after it.
    pub sides: [SideView; 2],
}

/// One of the two compared recordings, as the page shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SideView {
    pub name: String,
    /// Time of each compared unit, such as a step, in the order of ranks and time.
    pub units_ns: Vec<i64>,
    /// The step that the timeline shows, for each rank. The list is empty if the trace has no
    /// steps.
    pub steps: Vec<StepView>,
    /// Timeline of all ranks during the step closest to the median. Without steps, the timeline
    /// shows the beginning of the recording.
    pub timeline: Timeline,
}

/// One of the two recordings to compare, with the results of its analyses.
#[derive(Clone, Copy, Debug)]
pub struct RecordingSide<'a> {
    pub name: &'a str,
    pub job: &'a JobFacts<'a>,
}

/// Builds the data of the page from a comparison and its two recordings.
///
/// # Errors
/// Returns the errors of building a timeline. The shown step always exists, so no error occurs in
/// practice.
pub fn build_report(
    sides: [RecordingSide<'_>; 2],
    diff: &Diff,
    options: &Options,
) -> Result<DiffReport, Error> {
    let traces = || sides.iter().flat_map(|side| side.job.scopes()).map(|scope| scope.trace);
    let (missing, is_pool) = (coverage::missing(traces()), cpu_run::are_cpu_runs(traces()));
    let mut changes: Vec<SpentChange> = Vec::new();
    for subject in SUBJECTS {
        let real = diff.filter_subject(subject).filter(|change| !change.is_noise);
        changes.extend(real.take(CHANGES).cloned());
    }
    let all = SUBJECTS.iter().map(|subject| diff.filter_subject(*subject).count()).sum::<usize>();
    let left_out_count = all.saturating_sub(changes.len()) as u64;
    let [before, after] = sides;
    Ok(DiffReport {
        title: options.title.clone(),
        program: options.program.clone(),
        is_pool,
        missing,
        diff: Diff { changes, ..diff.clone() },
        left_out_count,
        sides: [view(before, diff.unit, options)?, view(after, diff.unit, options)?],
    })
}

fn view(side: RecordingSide<'_>, unit: DiffUnit, options: &Options) -> Result<SideView, Error> {
    let (job, scopes) = (side.job, side.job.scopes());
    let zero = Zero::new(scopes, job.collectives());
    let marked = path::marked_rows(job);
    let number = if unit == DiffUnit::Step { median_step(scopes) } else { None };
    let steps =
        number.map_or(TimelineSteps::Fitting, |number| TimelineSteps::Numbered(number..number + 1));
    // Each of the two timelines gets half of the limit for one page.
    let events_max = options.events_max / 2;
    let wanted = Options { steps, events_max, ..options.clone() };
    let timeline = timeline::build_timeline(scopes, &marked, &zero, &wanted)?;
    let mut units_ns = analysis::unit_lengths(job, unit);
    units_ns.truncate(TIMES);
    let mut steps = step::build_part(job, &zero).rows;
    steps.retain(|step| Some(step.number) == number);
    Ok(SideView { name: side.name.to_owned(), units_ns, steps, timeline })
}

/// Returns the number of the step with the median duration over all ranks, or `None` without steps.
fn median_step(scopes: &[Scope<'_>]) -> Option<i64> {
    let mut steps: Vec<(i64, i64)> = Vec::new();
    for scope in scopes {
        let own = &scope.window.steps;
        let ends = own.iter().skip(1).map(|next| next.start).chain([scope.window.end]);
        steps.extend(own.iter().zip(ends).map(|(step, end)| (end - step.start, step.number)));
    }
    steps.sort_unstable();
    steps.get(steps.len().saturating_sub(1) / 2).map(|(_, number)| *number)
}
