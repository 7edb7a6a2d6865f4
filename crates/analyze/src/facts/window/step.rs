//! Defines a training step as a trace delimits it.

use serde::Serialize;

/// The kind of annotation that delimits the steps of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepMark {
    /// The annotation `ProfilerStep#N`, which the profiler writes.
    ProfilerStep,
    /// Inferred steps, from the end of one `Optimizer.step` to the end of the next.
    OptimizerStep,
    /// Inferred steps, from the start of one `Optimizer.zero_grad` to the start of the next.
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

    /// Returns what the steps were inferred from, in words, or `None` if the profiler names the
    /// steps.
    pub fn source(self) -> Option<&'static str> {
        match self {
            Self::ProfilerStep => None,
            Self::OptimizerStep => Some("the ends of Optimizer.step"),
            Self::ZeroGrad => Some("calls of Optimizer.zero_grad"),
        }
    }
}

/// One training step, delimited by annotations on a thread; see [`StepMark`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrainingStep {
    /// The number in `ProfilerStep#N`, or the index of an inferred step, counted from 0.
    pub number: i64,
    /// Row of the annotation that marks the step. For an inferred step, this is the annotation that
    /// ends the step.
    pub row: u32,
    /// Start of the step, in absolute nanoseconds.
    pub start: i64,
    /// End of the step, in absolute nanoseconds.
    pub end: i64,
    /// Whether all work of the step was recorded, and no earlier work ran among it.
    pub is_whole: bool,
    /// The reason why the step is not whole.
    pub lack: Option<Lack>,
}

/// The reason why a step is not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Lack {
    /// The recording ended before the step did.
    End,
    /// Device work that was launched before the recording began ran among the work of the step.
    EarlierLaunches,
    /// Launches of the step have no device work.
    DeviceWork,
    /// The step launched nothing although other steps did, because the recording ended as the step
    /// began.
    Launches,
}

impl Lack {
    /// Returns the reason as a phrase whose subject is the step.
    pub fn words(self) -> &'static str {
        match self {
            Self::End => "has no end",
            Self::EarlierLaunches => "runs work launched before the recording among its own",
            Self::DeviceWork => "has launches without device work",
            Self::Launches => "launches nothing, for the recording ended as it began",
        }
    }
}
