//! Prints the tables about host work and memory: operators, annotations, sequences, steps, copies
//! and allocations.

use analyze::job::{JobFacts, RankFacts};
use analyze::{annotations, bandwidth, memory, ops, sequences, steps};

use super::query::{TraceQuery, rows_of_ranks};
use crate::args::{MemoryBy, OpsBy, StepsBy};
use setup::error::Error;
use setup::open_job::SelectedJob;

/// Prints the rows of `rowmill trace ops`.
pub fn ops(
    query: &TraceQuery<'_>,
    by: OpsBy,
    pattern: sequences::SequenceRequest<'_>,
) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        OpsBy::Name => query.put(&rows_of_ranks(&job, |rank| {
            ops::list_operators(rank.scope, rank.tree(), rank.attribution())
        })),
        OpsBy::Annotation => query.put(&rows_of_ranks(&job, |rank| {
            annotations::list_annotations(rank.scope, rank.tree(), rank.attribution())
        })),
        OpsBy::Sequence => query.put(&rows_of_ranks(&job, |rank| {
            sequences::find_sequences(rank.scope, rank.tree(), rank.attribution(), pattern)
        })),
        OpsBy::Attribution => {
            query.put(&rows_of_ranks(&job, |rank| rank.attribution().coverage(rank.scope)))
        }
    }
}

/// Prints the rows of `rowmill trace steps`.
pub fn steps(query: &TraceQuery<'_>, by: StepsBy) -> Result<(), Error> {
    let scopes = SelectedJob::usable(query.chosen.scopes());
    let job = JobFacts::new(&scopes);
    let summary = |rank: &RankFacts<'_>| [steps::summary(rank.rank(), rank.steps())];
    match by {
        StepsBy::Step => query.put(&rows_of_ranks(&job, |rank| rank.steps().to_vec())),
        StepsBy::Rank => query.put(&rows_of_ranks(&job, summary)),
    }
}

/// Prints the rows of `rowmill trace memory`.
pub fn memory(query: &TraceQuery<'_>, by: MemoryBy) -> Result<(), Error> {
    let scopes = query.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        MemoryBy::Copy => {
            query.put(&rows_of_ranks(&job, |rank| bandwidth::measure_bandwidth(rank.scope)))
        }
        MemoryBy::Size => query.put(&rows_of_ranks(&job, |rank| bandwidth::by_size(rank.scope))),
        MemoryBy::Peak => query.put(&rows_of_ranks(&job, |rank| rank.memory_peaks().to_vec())),
        MemoryBy::Op => query.put(&rows_of_ranks(&job, |rank| {
            memory::sum_by_operator(rank.scope.trace, rank.tree())
        })),
        MemoryBy::Point => {
            query.put(&rows_of_ranks(&job, |rank| memory::list_points(rank.scope.trace)))
        }
    }
}
