//! A training step as a trace delimits it.

use serde::Serialize;

/// The annotations that delimit the steps of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepMark {
    /// The profiler's own `ProfilerStep#N`.
    ProfilerStep,
    /// Inferred: from the end of one `Optimizer.step` to the end of the next.
    OptimizerStep,
    /// Inferred: from one `Optimizer.zero_grad` to the next.
    ZeroGrad,
}

impl StepMark {
    /// Returns the prefix of the annotation's name.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::ProfilerStep => "ProfilerStep#",
            Self::OptimizerStep => "Optimizer.step#",
            Self::ZeroGrad => "Optimizer.zero_grad#",
        }
    }

    /// Returns the source of inferred steps in words, or `None` if the profiler names the steps.
    pub fn source(self) -> Option<&'static str> {
        match self {
            Self::ProfilerStep => None,
            Self::OptimizerStep => Some("the ends of Optimizer.step"),
            Self::ZeroGrad => Some("calls of Optimizer.zero_grad"),
        }
    }
}

/// One step of training, delimited by annotations on a thread: see [`StepMark`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingStep {
    /// The number in `ProfilerStep#N`, or the index of an inferred step, from 0.
    pub number: i64,
    /// Row of the annotation. For an inferred step, the row of the annotation that ends it.
    pub row: u32,
    /// Absolute time in nanoseconds.
    pub start: i64,
    /// Absolute time in nanoseconds.
    pub end: i64,
    /// Whether all work that it launched was recorded, and no earlier work ran among it.
    pub is_whole: bool,
    /// Why it is not whole.
    pub lack: Option<Lack>,
}

/// Why a step is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// The recording has no end of the step.
    End,
    /// Device work that was launched before the recording began ran among its own.
    EarlierLaunches,
    /// Launches of it have no device work.
    DeviceWork,
    /// It launched nothing although other steps did: the recording ended as it began.
    Launches,
}

impl Lack {
    /// Returns the reason as a phrase about the step.
    pub fn words(self) -> &'static str {
        match self {
            Self::End => "has no end",
            Self::EarlierLaunches => "runs work launched before the recording among its own",
            Self::DeviceWork => "has launches without device work",
            Self::Launches => "launches nothing, for the recording ended as it began",
        }
    }
}
