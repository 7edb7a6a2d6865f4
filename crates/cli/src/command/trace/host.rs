//! Tables of host work and memory: operators, annotations, sequences, steps, copies, allocations.

use analyze::{Scope, annotations, attribution, bandwidth, memory, ops, sequences, steps, tree};

use super::{Look, each};
use crate::args::{MemoryBy, OpsBy, StepsBy};
use crate::error::Error;
use crate::resolve::trace::Chosen;

/// `rowmill trace ops`.
pub fn ops(look: &Look<'_>, by: OpsBy, pattern: sequences::Request<'_>) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let with = |scope: &Scope<'_>| {
        let tree = tree::of(scope.trace);
        let work = attribution::of(scope, &tree);
        (tree, work)
    };
    match by {
        OpsBy::Name => look.put(&each(&scopes, |scope| {
            let (tree, work) = with(scope);
            ops::of(scope, &tree, &work)
        })),
        OpsBy::Annotation => look.put(&each(&scopes, |scope| {
            let (tree, work) = with(scope);
            annotations::of(scope, &tree, &work)
        })),
        OpsBy::Sequence => look.put(&each(&scopes, |scope| {
            let (tree, work) = with(scope);
            sequences::of(scope, &tree, &work, pattern)
        })),
        OpsBy::Attribution => look.put(&each(&scopes, |scope| with(scope).1.coverage(scope))),
    }
}

/// `rowmill trace steps`.
pub fn steps(look: &Look<'_>, by: StepsBy) -> Result<(), Error> {
    let scopes = Chosen::usable(look.chosen.scopes());
    let summary = |scope: &Scope<'_>| [steps::summary(scope.trace.rank, &steps::of(scope))];
    match by {
        StepsBy::Step => look.put(&each(&scopes, steps::of)),
        StepsBy::Rank => look.put(&each(&scopes, summary)),
    }
}

/// `rowmill trace memory`.
pub fn memory(look: &Look<'_>, by: MemoryBy) -> Result<(), Error> {
    let scopes = look.chosen.scopes();
    let of = |scope: &Scope<'_>| memory::of(scope.trace, &tree::of(scope.trace));
    match by {
        MemoryBy::Copy => look.put(&each(&scopes, bandwidth::of)),
        MemoryBy::Size => look.put(&each(&scopes, bandwidth::by_size)),
        MemoryBy::Peak => look.put(&each(&scopes, |scope| of(scope).peaks)),
        MemoryBy::Op => look.put(&each(&scopes, |scope| of(scope).operators)),
        MemoryBy::Point => look.put(&each(&scopes, |scope| of(scope).timeline)),
    }
}
