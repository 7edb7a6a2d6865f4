//! A training step as data: its stages, the resource that each one uses, and the order of a
//! schedule.
//!
//! The trainer executes the actions of a [`StepGraph`]; recorder, predictor and planner read the
//! same list. What one stage computes is described by [`crate::Op`].

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::config::JobConfig;
use crate::model::{Interaction, ModelConfig};
use crate::plan::ShardingPlan;
use crate::row_scope::RowScope;

/// Least number of dense buckets, if the model has as many layers.
const BUCKETS_MIN: usize = 4;

/// A stage of a training step. A bucket is numbered in the order of the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Sends ids to the ranks that own their rows: lengths, then values.
    InputDistribution,
    /// Copies ids and dense features to the device.
    Copy,
    Lookup,
    /// Sends pooled vectors to the ranks of their samples.
    PooledExchange,
    BottomMlp,
    Interaction,
    TopMlp,
    Loss,
    /// Computes the gradients of the layers of a bucket.
    DenseBackward(u16),
    /// Splits the gradient of the interaction into those of its inputs.
    InteractionBackward,
    /// Sends gradients of pooled vectors to the owners of the rows, and sums those of the rows of
    /// replicated tables over ranks.
    GradientExchange,
    /// Exchanges sums over the columns of rows whose columns are split, if the update rule needs
    /// them of whole rows. Other steps lack this stage.
    RowTerms,
    EmbeddingUpdate,
    /// Sums the gradients of a bucket over ranks.
    AllReduce(u16),
    DenseUpdate(u16),
    /// Sums the losses over ranks. It follows the step and is not one of its actions.
    LossSum,
}

/// The resource that a stage occupies while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    HostThread,
    ComputeQueue,
    Link,
}

impl Stage {
    /// Returns the name of the stage in traces, without the number of a bucket.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::InputDistribution => "input_distribution",
            Self::Copy => "copy",
            Self::Lookup => "lookup",
            Self::PooledExchange => "pooled_exchange",
            Self::BottomMlp => "bottom_mlp",
            Self::Interaction => "interaction",
            Self::TopMlp => "top_mlp",
            Self::Loss => "loss",
            Self::DenseBackward(_) => "dense_backward",
            Self::InteractionBackward => "interaction_backward",
            Self::GradientExchange => "gradient_exchange",
            Self::RowTerms => "row_terms",
            Self::EmbeddingUpdate => "embedding_update",
            Self::AllReduce(_) => "all_reduce",
            Self::DenseUpdate(_) => "dense_update",
            Self::LossSum => "loss_sum",
        }
    }

    /// Returns the resource that the stage occupies.
    #[must_use]
    pub fn resource(self) -> Resource {
        match self {
            Self::InputDistribution
            | Self::PooledExchange
            | Self::GradientExchange
            | Self::RowTerms
            | Self::AllReduce(_)
            | Self::LossSum => Resource::Link,
            Self::Copy => Resource::HostThread,
            _ => Resource::ComputeQueue,
        }
    }

    /// Returns the overlap to whose exchange the stage belongs. It hides the stage, except for
    /// [`Self::RowTerms`].
    #[must_use]
    pub fn overlap(self) -> Option<Overlap> {
        match self {
            Self::InputDistribution => Some(Overlap::Input),
            Self::PooledExchange => Some(Overlap::Pooled),
            Self::GradientExchange | Self::RowTerms => Some(Overlap::Gradient),
            Self::AllReduce(_) => Some(Overlap::AllReduce),
            Self::LossSum => Some(Overlap::Control),
            _ => None,
        }
    }

    /// Whether the stage belongs to the forward pass, up to the logits.
    #[must_use]
    pub fn is_forward(self) -> bool {
        self < Self::Loss
    }

    /// Returns the stages of the same batch whose results this stage reads.
    fn inputs(self, buckets: &[DenseBucket], ranks: u32) -> Vec<Self> {
        let last_before = |section: Section| {
            let before = |bucket: &DenseBucket| bucket.section > section;
            let bucket = buckets.iter().rposition(before);
            bucket.map_or(Self::Loss, |bucket| Self::DenseBackward(bucket as u16))
        };
        match self {
            Self::InputDistribution => Vec::new(),
            Self::Copy => vec![Self::InputDistribution],
            Self::BottomMlp | Self::Lookup => vec![Self::Copy],
            Self::PooledExchange => vec![Self::Lookup],
            Self::Interaction => vec![Self::PooledExchange, Self::BottomMlp],
            Self::TopMlp => vec![Self::Interaction],
            Self::Loss | Self::LossSum => vec![Self::TopMlp],
            Self::DenseBackward(0) => vec![Self::Loss],
            Self::DenseBackward(bucket) if is_first_of_bottom(buckets, bucket) => {
                vec![Self::InteractionBackward]
            }
            Self::DenseBackward(bucket) => vec![Self::DenseBackward(bucket - 1)],
            Self::InteractionBackward => vec![last_before(Section::Bottom)],
            Self::GradientExchange => vec![Self::InteractionBackward],
            // The first bucket says whether the updates of any rank are stopped.
            Self::EmbeddingUpdate | Self::RowTerms if ranks > 1 => {
                vec![Self::GradientExchange, Self::AllReduce(0)]
            }
            Self::EmbeddingUpdate | Self::RowTerms => vec![Self::GradientExchange],
            Self::AllReduce(bucket) => vec![Self::DenseBackward(bucket)],
            Self::DenseUpdate(bucket) if ranks > 1 => vec![Self::AllReduce(bucket)],
            Self::DenseUpdate(bucket) => vec![Self::DenseBackward(bucket)],
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())?;
        match self {
            Self::DenseBackward(bucket) | Self::AllReduce(bucket) | Self::DenseUpdate(bucket) => {
                write!(out, " {bucket}")
            }
            _ => Ok(()),
        }
    }
}

/// Work that a schedule may run beside other stages. Each is a switch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Input distribution of the next batch, beside the dense part of this one.
    Input,
    /// Pooled exchange, beside the bottom MLP.
    Pooled,
    /// Gradient exchange, beside the backward pass of the bottom MLP.
    Gradient,
    /// All-reduce of a bucket, beside the backward pass of later ones.
    AllReduce,
    /// Commands of rank 0 and sums of losses, beside a step.
    Control,
}

impl Overlap {
    /// All overlaps, in the order of their names in a list.
    pub const ALL: [Self; 5] =
        [Self::Input, Self::Pooled, Self::Gradient, Self::AllReduce, Self::Control];

    /// Returns the name in options and in recorded runs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Pooled => "pooled",
            Self::Gradient => "gradient",
            Self::AllReduce => "all_reduce",
            Self::Control => "control",
        }
    }
}

/// The set of overlaps of a run. Results have the same bytes under every schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Schedule {
    /// Bit `i` is set if overlap `i` is on.
    bits: u8,
}

impl Schedule {
    /// One stage after the other.
    pub const SERIAL: Self = Self { bits: 0 };
    /// All exchanges run beside other stages.
    pub const PIPELINED: Self = Self { bits: (1 << Overlap::ALL.len()) - 1 };

    /// Returns the schedule with one more overlap.
    #[must_use]
    pub fn with(self, overlap: Overlap) -> Self {
        Self { bits: self.bits | 1 << overlap as u8 }
    }

    /// Returns the schedule of a number of ranks. One rank has nobody to wait for, so its schedule
    /// is the serial one.
    #[must_use]
    pub fn for_ranks(self, ranks: u32) -> Self {
        if ranks > 1 { self } else { Self::SERIAL }
    }

    /// Returns the number of steps whose batches are known before the step before them is done.
    #[must_use]
    pub fn lookahead(self) -> usize {
        usize::from(self.has(Overlap::Input)) + usize::from(self.has(Overlap::Control))
    }

    /// Whether an overlap is on.
    #[must_use]
    pub fn has(self, overlap: Overlap) -> bool {
        self.bits & 1 << overlap as u8 != 0
    }
}

/// A schedule has an unknown name, or names an overlap twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "schedule: expected serial, pipelined, or a list of input, pooled, gradient, all_reduce and \
     control, each at most once, got {got:?}"
)]
pub struct ScheduleError {
    pub got: String,
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let overlap = |name: &str| Overlap::ALL.into_iter().find(|overlap| overlap.name() == name);
        match text {
            "serial" => Ok(Self::SERIAL),
            "pipelined" => Ok(Self::PIPELINED),
            _ => text.split(',').try_fold(Self::SERIAL, |schedule, name| {
                let wrong = |got: &str| ScheduleError { got: got.to_owned() };
                let overlap = overlap(name).ok_or_else(|| wrong(name))?;
                if schedule.has(overlap) { Err(wrong(text)) } else { Ok(schedule.with(overlap)) }
            }),
        }
    }
}

impl TryFrom<String> for Schedule {
    type Error = ScheduleError;

    fn try_from(text: String) -> Result<Self, ScheduleError> {
        text.parse()
    }
}

impl From<Schedule> for String {
    fn from(schedule: Schedule) -> Self {
        schedule.to_string()
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SERIAL => out.write_str("serial"),
            Self::PIPELINED => out.write_str("pipelined"),
            _ => {
                let names = Overlap::ALL.into_iter().filter(|&overlap| self.has(overlap));
                out.write_str(&names.map(Overlap::name).collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// A part of the dense model, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    Bottom,
    /// The cross layers. Other interactions have no parameters.
    Interaction,
    /// The last layer computes the logit.
    Top,
}

/// Neighboring layers whose gradients are computed, summed over ranks and applied together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseBucket {
    pub section: Section,
    /// Layers of the section.
    pub layers: Range<usize>,
    /// Parameters, in the order of the model.
    pub parameters: Range<usize>,
    /// Number of weights, without padding.
    pub elements: usize,
}

/// Divides the dense layers of a model into buckets of about `bucket_bytes`, in the order of the
/// backward pass. There are at least four if the model has as many layers.
#[must_use]
pub fn dense_buckets(model: &ModelConfig, bucket_bytes: usize) -> Vec<DenseBucket> {
    let mut buckets: Vec<DenseBucket> = Vec::new();
    let mut add = |section, parameter_count, layers: Vec<usize>| {
        for (layer, elements) in layers.into_iter().enumerate() {
            let first = buckets.last().map_or(0, |before| before.parameters.end);
            let (layers, parameters) = (layer..layer + 1, first..first + parameter_count);
            buckets.push(DenseBucket { section, layers, parameters, elements });
        }
    };
    let widths = |widths: &[usize], input: usize| {
        let inputs = std::iter::once(input).chain(widths.iter().copied());
        widths.iter().copied().zip(inputs).map(|(width, input)| width * input + width).collect()
    };
    let cross = match model.interaction {
        Interaction::DcnV2 { layers, rank } => {
            let width = model.interaction_width();
            vec![2 * rank * width + width; layers]
        }
        _ => Vec::new(),
    };
    let bottom: Vec<usize> = widths(&model.bottom, model.dense_features);
    let top = widths(&model.top, model.interaction_width());
    add(Section::Bottom, 2, bottom);
    add(Section::Interaction, 3, cross);
    add(Section::Top, 2, top);
    while buckets.len() > BUCKETS_MIN && merge_smallest(&mut buckets, bucket_bytes / 4) {}
    buckets.reverse();
    buckets
}

/// Merges the two neighbors of one section that are smallest together, unless they would exceed
/// `limit` elements. Returns whether two were merged.
fn merge_smallest(buckets: &mut Vec<DenseBucket>, limit: usize) -> bool {
    let together = |i: &usize| buckets[*i].elements + buckets[*i + 1].elements;
    let pairs = (0..buckets.len() - 1)
        .filter(|&i| buckets[i].section == buckets[i + 1].section)
        .filter(|i| together(i) <= limit);
    let Some(first) = pairs.min_by_key(together) else { return false };
    let second = buckets.remove(first + 1);
    let merged = &mut buckets[first];
    merged.layers.end = second.layers.end;
    merged.parameters.end = second.parameters.end;
    merged.elements += second.elements;
    true
}

fn is_first_of_bottom(buckets: &[DenseBucket], bucket: u16) -> bool {
    let section = |i: u16| buckets[usize::from(i)].section;
    section(bucket) == Section::Bottom && section(bucket - 1) != Section::Bottom
}

/// The part of a stage that an action carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionPart {
    Whole,
    /// Begins an exchange, which goes on beside later actions.
    Start,
    /// Waits for the end of an exchange.
    Finish,
}

/// The batch that an action works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionBatch {
    This,
    /// The batch of the next step.
    Next,
}

/// An action of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageAction {
    pub stage: Stage,
    pub part: ActionPart,
    pub batch: ActionBatch,
    /// Stages of the same batch that are complete before this action.
    pub inputs: Vec<Stage>,
}

/// The actions of a step, in the order in which the compute thread carries them out. All ranks have
/// the same list, so they send the messages of a communicator in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepGraph {
    pub buckets: Vec<DenseBucket>,
    pub actions: Vec<StageAction>,
}

impl StepGraph {
    /// Orders the stages of a job's step under a sharding plan.
    #[must_use]
    pub fn new(
        config: &JobConfig,
        bucket_bytes: usize,
        schedule: Schedule,
        plan: &ShardingPlan,
    ) -> Self {
        let ranks = plan.world_size();
        let schedule = schedule.for_ranks(ranks);
        let buckets = dense_buckets(&config.model, bucket_bytes);
        let mut graph = Self { buckets, actions: Vec::new() };
        graph.push_forward(schedule, ranks);
        graph.push_backward(schedule, ranks);
        if RowScope::exchanges_terms(&config.optimizer, plan) {
            graph.insert_row_terms(ranks);
        }
        graph
    }

    fn insert_row_terms(&mut self, ranks: u32) {
        let is_update = |action: &StageAction| action.stage == Stage::EmbeddingUpdate;
        let Some(update) = self.actions.iter().position(is_update) else { return };
        self.actions[update].inputs = vec![Stage::RowTerms];
        self.push(Stage::RowTerms, ActionPart::Whole, ranks);
        self.actions[update..].rotate_right(1);
    }

    fn push(&mut self, stage: Stage, part: ActionPart, ranks: u32) {
        let inputs = stage.inputs(&self.buckets, ranks);
        self.actions.push(StageAction { stage, part, batch: ActionBatch::This, inputs });
    }

    fn push_forward(&mut self, schedule: Schedule, ranks: u32) {
        use ActionPart::{Finish, Start, Whole};
        let is_ahead = schedule.has(Overlap::Input);
        self.push(Stage::InputDistribution, if is_ahead { Finish } else { Whole }, ranks);
        self.push(Stage::Copy, Whole, ranks);
        if is_ahead {
            self.actions.push(StageAction {
                stage: Stage::InputDistribution,
                part: Start,
                batch: ActionBatch::Next,
                inputs: Vec::new(),
            });
        }
        self.push(Stage::Lookup, Whole, ranks);
        let is_beside = schedule.has(Overlap::Pooled);
        self.push(Stage::PooledExchange, if is_beside { Start } else { Whole }, ranks);
        self.push(Stage::BottomMlp, Whole, ranks);
        if is_beside {
            self.push(Stage::PooledExchange, Finish, ranks);
        }
        for stage in [Stage::Interaction, Stage::TopMlp, Stage::Loss] {
            self.push(stage, Whole, ranks);
        }
    }

    fn push_backward(&mut self, schedule: Schedule, ranks: u32) {
        use ActionPart::{Finish, Start, Whole};
        let count = self.buckets.len() as u16;
        let is_bottom = |bucket: &DenseBucket| bucket.section == Section::Bottom;
        let bottom = self.buckets.iter().position(is_bottom).map_or(count, |at| at as u16);
        let is_beside = schedule.has(Overlap::Gradient);
        let sums_beside = schedule.has(Overlap::AllReduce);
        for bucket in 0..=count {
            if bucket == bottom {
                self.push(Stage::InteractionBackward, Whole, ranks);
                self.push(Stage::GradientExchange, if is_beside { Start } else { Whole }, ranks);
            }
            if bucket == count {
                break;
            }
            self.push(Stage::DenseBackward(bucket), Whole, ranks);
            if ranks == 1 {
                self.push(Stage::DenseUpdate(bucket), Whole, ranks);
            } else if sums_beside {
                self.push(Stage::AllReduce(bucket), Start, ranks);
            }
        }
        if ranks > 1 && !sums_beside {
            (0..count).for_each(|bucket| self.push(Stage::AllReduce(bucket), Start, ranks));
        }
        for bucket in (0..count).filter(|_| ranks > 1) {
            self.push(Stage::AllReduce(bucket), Finish, ranks);
            if bucket == 0 {
                self.push_update(is_beside, ranks);
            }
            self.push(Stage::DenseUpdate(bucket), Whole, ranks);
        }
        if ranks == 1 {
            self.push_update(is_beside, ranks);
        }
    }

    fn push_update(&mut self, is_beside: bool, ranks: u32) {
        if is_beside {
            self.push(Stage::GradientExchange, ActionPart::Finish, ranks);
        }
        self.push(Stage::EmbeddingUpdate, ActionPart::Whole, ranks);
    }
}

#[cfg(test)]
mod tests;
