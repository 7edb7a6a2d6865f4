//! Keys that identify the cost which a sample of a calibration measures.

use crate::program::{Overhead, Part, Program, Segment, WorkKind};

/// Identifies what a sample measures: class, name, and sizes. Samples with equal keys are
/// interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key<C> {
    pub class: C,
    /// Name of the operator, call or kernel.
    pub name: String,
    /// Tensor sizes, launch shape or bytes; between operators, the preceding operator.
    pub detail: String,
}

/// The latency or wait that a sample measures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waiting {
    /// From the start of a launch to the start of its kernel on an idle stream.
    Launch,
    /// From the start of a copy or set to the start of its work on an idle stream.
    CopyLaunch,
    /// Between two consecutive works of a stream.
    QueueGap,
    /// From the end of awaited work on another stream to the start of the waiting work.
    EventWait,
    /// From the end of awaited work to the return of the synchronizing call.
    SyncReturn,
    /// From the end of a copy to the return of its call.
    CopyReturn,
    /// From the last work of a thread to the next work, with this name, of the thread that waited
    /// for it.
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
