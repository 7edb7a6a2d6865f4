//! Two recordings of a job beside each other: what changed, and one step of each on a timeline.

use analyze::diff::{self as analysis, Diff, DiffSubject, DiffUnit, SpentChange};
use analyze::{JobFacts, Scope, coverage, cpu_run};
use serde::Serialize;

use crate::clock::Zero;
use crate::step::{self, StepView};
use crate::timeline::{self, Timeline};
use crate::{Error, Options, TimelineSteps, path};

/// Changes that are listed of each subject, the greatest first.
const CHANGES: usize = 150;
/// Single times that are drawn of a side.
const TIMES: usize = 2000;
/// What is listed. Paths of the call tree are many and say the same as operators.
const SUBJECTS: [DiffSubject; 4] =
    [DiffSubject::Kernel, DiffSubject::Operator, DiffSubject::Host, DiffSubject::Call];

/// Everything that a page of a comparison shows.
#[derive(Clone, Debug, Serialize)]
pub struct DiffReport {
    /// What the page is called.
    pub title: String,
    pub program: String,
    /// Whether both are runs of ours on pools of CPU threads.
    pub is_pool: bool,
    /// What is missing of the recordings, in one line.
    pub missing: Option<String>,
    /// What changed; of the changes those that are no noise, as far as there is room.
    pub diff: Diff,
    /// Changes within the noise, and those there was no room for.
    pub left_out_count: u64,
    /// Before and after.
    pub sides: [SideView; 2],
}

/// One of the recordings.
#[derive(Clone, Debug, Serialize)]
pub struct SideView {
    /// What it is called.
    pub name: String,
    /// Each unit, in the order of ranks and time.
    pub units_ns: Vec<i64>,
    /// The step on the timeline, of each rank; empty where the traces name none.
    pub steps: Vec<StepView>,
    /// The step nearest to the median, of all ranks; without steps the beginning.
    pub timeline: Timeline,
}

/// A recording and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct RecordingSide<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Its ranks, and what is known of them.
    pub job: &'a JobFacts<'a>,
}

/// Puts a comparison and its sides on a page.
///
/// # Errors
/// None that a recording can cause: a step that is shown is one of its own.
pub fn of(
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
    let (_, marked) = path::of(job.paths(), &zero);
    let number = if unit == DiffUnit::Step { median_step(scopes) } else { None };
    let steps =
        number.map_or(TimelineSteps::Fitting, |number| TimelineSteps::Numbered(number..number + 1));
    // Two timelines share the room of one.
    let events_max = options.events_max / 2;
    let wanted = Options { steps, events_max, ..options.clone() };
    let timeline = timeline::of(scopes, &marked, &zero, &wanted)?;
    let mut units_ns = analysis::unit_lengths(job, unit);
    units_ns.truncate(TIMES);
    let mut steps = step::of(job, &zero).rows;
    steps.retain(|step| Some(step.number) == number);
    Ok(SideView { name: side.name.to_owned(), units_ns, steps, timeline })
}

/// The number of the step that takes as long as half of all steps do at most.
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
