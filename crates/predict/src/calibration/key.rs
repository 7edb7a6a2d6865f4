//! What a sample of a calibration measures.

use crate::program::{Overhead, Part, Program, Segment, WorkKind};

/// What a sample is of: a class, an operator or a name, and sizes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key<C> {
    pub class: C,
    /// The operator, the call, the kernel.
    pub name: String,
    /// Tensor sizes, launch shape, bytes; between operators, what came before.
    pub detail: String,
}

/// The start or wait that a sample measures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// From the start of a launch to its kernel's, with nothing else to wait for.
    Launch,
    /// The same of copies and sets.
    CopyLaunch,
    /// Between two works of a stream.
    QueueGap,
    /// From awaited work of another stream.
    EventWait,
    /// From awaited work to the return of the call.
    SyncReturn,
    /// From a copy to the return of its call.
    CopyReturn,
    /// From one thread to another that goes on with what is named.
    HandOver(String),
}

impl Key<Overhead> {
    /// The key of the samples of a stretch of host time.
    pub(crate) fn from_segment(program: &Program, segment: Segment) -> Self {
        Self {
            class: segment.overhead,
            name: program.text(segment.op).to_owned(),
            detail: program.text(segment.detail).to_owned(),
        }
    }
}

impl Key<WorkKind> {
    /// The key of the samples of device work.
    pub(crate) fn from_part(program: &Program, part: Part) -> Self {
        Self {
            class: part.kind,
            name: program.text(part.name).to_owned(),
            detail: program.text(part.detail).to_owned(),
        }
    }
}
