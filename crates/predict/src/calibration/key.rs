//! Keys of samples: they identify the work or overhead whose duration a sample measures.

use serde::{Deserialize, Serialize};

use crate::program::{Overhead, Part, Program, Segment, WorkKind};

/// Identifies the measured work or overhead by class, name and sizes. Samples with equal keys are
/// interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key<C> {
    pub class: C,
    /// Name of the operator, call or kernel.
    pub name: String,
    /// Tensor sizes, launch shape or bytes of the measured work. For time between operators, the
    /// detail is the name of the preceding operator.
    pub detail: String,
}

/// The latency or wait that a sample measures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// Time from the start of a launch call to the start of its kernel on an idle stream.
    Launch,
    /// Time from the start of a copy or memory-set call to the start of its device work on an idle
    /// stream.
    CopyLaunch,
    /// Time between two consecutive works of a stream when the second was already queued.
    QueueGap,
    /// Time from the end of work on another stream to the start of the work that waited for it.
    EventWait,
    /// Time from the end of the awaited work to the return of the synchronizing call.
    SyncReturn,
    /// Time from the end of a copy to the return of the call that made it.
    CopyReturn,
    /// Time from the last work of one thread to the next work of the thread that waited for it. The
    /// string is the name of that next work.
    HandOver(String),
}

impl Key<Overhead> {
    /// Builds the key under which samples of a host segment are stored.
    pub(crate) fn from_segment(program: &Program, segment: Segment) -> Self {
        Self {
            class: segment.overhead,
            name: program.text(segment.op).to_owned(),
            detail: program.text(segment.detail).to_owned(),
        }
    }
}

impl Key<WorkKind> {
    /// Builds the key under which samples of a piece of device work are stored.
    pub(crate) fn from_part(program: &Program, part: Part) -> Self {
        Self {
            class: part.kind,
            name: program.text(part.name).to_owned(),
            detail: program.text(part.detail).to_owned(),
        }
    }
}
