//! Tables of host work and memory: operators, annotations, sequences, steps, copies, allocations.

use analyze::job::{JobFacts, RankFacts};
use analyze::{annotations, bandwidth, memory, ops, sequences, steps};

use super::{TraceLook, each};
use crate::args::{MemoryBy, OpsBy, StepsBy};
use crate::error::Error;
use crate::resolve::trace::Chosen;

/// `rowmill trace ops`.
pub fn ops(
    look: &TraceLook<'_>,
    by: OpsBy,
    pattern: sequences::SequenceRequest<'_>,
) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    match by {
        OpsBy::Name => look.put(&each(&job, |rank| {
            ops::list_operators(rank.scope, rank.tree(), rank.attribution())
        })),
        OpsBy::Annotation => look.put(&each(&job, |rank| {
            annotations::list_annotations(rank.scope, rank.tree(), rank.attribution())
        })),
        OpsBy::Sequence => look.put(&each(&job, |rank| {
            sequences::find_sequences(rank.scope, rank.tree(), rank.attribution(), pattern)
        })),
        OpsBy::Attribution => look.put(&each(&job, |rank| rank.attribution().coverage(rank.scope))),
    }
}

/// `rowmill trace steps`.
pub fn steps(look: &TraceLook<'_>, by: StepsBy) -> Result<(), Error> {
    let scopes = Chosen::usable(look.chosen.scopes());
    let job = JobFacts::new(&scopes);
    let summary = |rank: &RankFacts<'_>| [steps::summary(rank.rank(), rank.steps())];
    match by {
        StepsBy::Step => look.put(&each(&job, |rank| rank.steps().to_vec())),
        StepsBy::Rank => look.put(&each(&job, summary)),
    }
}

/// `rowmill trace memory`.
pub fn memory(look: &TraceLook<'_>, by: MemoryBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let job = JobFacts::new(&scopes);
    let of = |rank: &RankFacts<'_>| memory::measure_memory(rank.scope.trace, rank.tree());
    match by {
        MemoryBy::Copy => look.put(&each(&job, |rank| bandwidth::measure_bandwidth(rank.scope))),
        MemoryBy::Size => look.put(&each(&job, |rank| bandwidth::by_size(rank.scope))),
        MemoryBy::Peak => look.put(&each(&job, |rank| of(rank).peaks)),
        MemoryBy::Op => look.put(&each(&job, |rank| of(rank).operators)),
        MemoryBy::Point => look.put(&each(&job, |rank| of(rank).timeline)),
    }
}
