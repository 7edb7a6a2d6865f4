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
use crate::replica_groups::ReplicaGroups;
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
    /// Brings the rows of the batch that are only in files into their caches. Steps whose tables
    /// are all in memory lack this stage.
    FetchRows,
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
    /// Makes replica groups equal: sums the gradients of rows over groups before the update, or
    /// averages weights and optimizer states after it, in the steps in which that is due. Steps
    /// without groups lack this stage.
    GroupExchange,
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
            Self::FetchRows => "row_fetch",
            Self::Lookup => "lookup",
            Self::PooledExchange => "pooled_exchange",
            Self::BottomMlp => "bottom_mlp",
            Self::Interaction => "interaction",
            Self::TopMlp => "top_mlp",
            Self::Loss => "loss",
            Self::DenseBackward(_) => "dense_backward",
            Self::InteractionBackward => "interaction_backward",
            Self::GradientExchange => "gradient_exchange",
            Self::GroupExchange => "group_exchange",
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
            | Self::GroupExchange
            | Self::RowTerms
            | Self::AllReduce(_)
            | Self::LossSum => Resource::Link,
            Self::Copy | Self::FetchRows => Resource::HostThread,
            _ => Resource::ComputeQueue,
        }
    }

    /// Returns the overlap to whose exchange the stage belongs. It hides the stage, except for
    /// [`Self::RowTerms`] and averages of [`Self::GroupExchange`].
    #[must_use]
    pub fn overlap(self) -> Option<Overlap> {
        match self {
            Self::InputDistribution => Some(Overlap::Input),
            Self::PooledExchange => Some(Overlap::Pooled),
            Self::GradientExchange | Self::GroupExchange | Self::RowTerms => {
                Some(Overlap::Gradient)
            }
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
    /// Input distribution of the next batch, beside the dense part of this one. The rows of that
    /// batch that are only in files are read then, too.
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

    /// Returns the schedule of a job on a number of ranks. One rank has nobody to wait for, so its
    /// schedule is the serial one, but rows that are in files are still read ahead.
    #[must_use]
    pub fn for_job(self, config: &JobConfig, ranks: u32) -> Self {
        match ranks {
            0 | 1 if config.storage.is_some() && self.has(Overlap::Input) => {
                Self::SERIAL.with(Overlap::Input)
            }
            0 | 1 => Self::SERIAL,
            _ => self,
        }
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
    // The weight of the wide term is the last parameter. It belongs to the layer of the logit.
    if let Some(last) = buckets.last_mut().filter(|_| model.wide) {
        last.parameters.end += 1;
        last.elements += model.wide_width();
    }
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
        let mut order = StepOrder {
            schedule: schedule.for_job(config, ranks),
            ranks,
            has_stored_rows: config.storage.is_some(),
            groups: plan.groups(),
            has_row_terms: RowScope::exchanges_terms(&config.optimizer, plan),
            buckets: dense_buckets(&config.model, bucket_bytes),
            actions: Vec::new(),
        };
        order.push_forward();
        order.push_backward();
        Self { buckets: order.buckets, actions: order.actions }
    }
}

/// Puts the stages of a step in order.
struct StepOrder {
    schedule: Schedule,
    ranks: u32,
    has_stored_rows: bool,
    groups: ReplicaGroups,
    has_row_terms: bool,
    buckets: Vec<DenseBucket>,
    actions: Vec<StageAction>,
}

impl StepOrder {
    /// Returns the stages of the same batch whose results `stage` reads.
    fn inputs(&self, stage: Stage) -> Vec<Stage> {
        let last_before = |section: Section| {
            let before = |bucket: &DenseBucket| bucket.section > section;
            let bucket = self.buckets.iter().rposition(before);
            bucket.map_or(Stage::Loss, |bucket| Stage::DenseBackward(bucket as u16))
        };
        let sums_groups = self.groups.sums_gradients();
        match stage {
            Stage::InputDistribution => Vec::new(),
            Stage::Copy | Stage::FetchRows => vec![Stage::InputDistribution],
            Stage::Lookup if self.has_stored_rows => vec![Stage::Copy, Stage::FetchRows],
            Stage::BottomMlp | Stage::Lookup => vec![Stage::Copy],
            Stage::PooledExchange => vec![Stage::Lookup],
            Stage::Interaction => vec![Stage::PooledExchange, Stage::BottomMlp],
            Stage::TopMlp => vec![Stage::Interaction],
            Stage::Loss | Stage::LossSum => vec![Stage::TopMlp],
            Stage::DenseBackward(0) => vec![Stage::Loss],
            Stage::DenseBackward(bucket) if self.is_first_of_bottom(bucket) => {
                vec![Stage::InteractionBackward]
            }
            Stage::DenseBackward(bucket) => vec![Stage::DenseBackward(bucket - 1)],
            Stage::InteractionBackward => vec![last_before(Section::Bottom)],
            Stage::GradientExchange => vec![Stage::InteractionBackward],
            Stage::GroupExchange if sums_groups => vec![Stage::GradientExchange],
            Stage::GroupExchange => vec![Stage::EmbeddingUpdate],
            Stage::EmbeddingUpdate if self.has_row_terms => vec![Stage::RowTerms],
            Stage::EmbeddingUpdate | Stage::RowTerms => {
                let gradient =
                    if sums_groups { Stage::GroupExchange } else { Stage::GradientExchange };
                // The first bucket says whether the updates of any rank are stopped.
                let stopped = (self.ranks > 1).then_some(Stage::AllReduce(0));
                [gradient].into_iter().chain(stopped).collect()
            }
            Stage::AllReduce(bucket) => vec![Stage::DenseBackward(bucket)],
            Stage::DenseUpdate(bucket) if self.ranks > 1 => vec![Stage::AllReduce(bucket)],
            Stage::DenseUpdate(bucket) => vec![Stage::DenseBackward(bucket)],
        }
    }

    fn is_first_of_bottom(&self, bucket: u16) -> bool {
        let section = |i: u16| self.buckets[usize::from(i)].section;
        section(bucket) == Section::Bottom && section(bucket - 1) != Section::Bottom
    }

    fn push(&mut self, stage: Stage, part: ActionPart) {
        let inputs = self.inputs(stage);
        self.actions.push(StageAction { stage, part, batch: ActionBatch::This, inputs });
    }

    /// Starts a stage of the next batch. It ends in the next step.
    fn push_next(&mut self, stage: Stage) {
        let (part, batch) = (ActionPart::Start, ActionBatch::Next);
        self.actions.push(StageAction { stage, part, batch, inputs: Vec::new() });
    }

    fn push_forward(&mut self) {
        use ActionPart::{Finish, Start, Whole};
        let is_ahead = self.schedule.has(Overlap::Input);
        self.push(Stage::InputDistribution, if is_ahead { Finish } else { Whole });
        self.push(Stage::Copy, Whole);
        if is_ahead {
            self.push_next(Stage::InputDistribution);
        }
        if self.has_stored_rows {
            self.push(Stage::FetchRows, if is_ahead { Finish } else { Whole });
        }
        self.push(Stage::Lookup, Whole);
        let is_beside = self.schedule.has(Overlap::Pooled);
        self.push(Stage::PooledExchange, if is_beside { Start } else { Whole });
        self.push(Stage::BottomMlp, Whole);
        if is_beside {
            self.push(Stage::PooledExchange, Finish);
        }
        // Pooled vectors have arrived, so all ranks have sent the ids of the next batch, and this
        // action hardly waits for them.
        if self.has_stored_rows && is_ahead {
            self.push_next(Stage::FetchRows);
        }
        for stage in [Stage::Interaction, Stage::TopMlp, Stage::Loss] {
            self.push(stage, Whole);
        }
    }

    fn push_backward(&mut self) {
        use ActionPart::{Finish, Start, Whole};
        let count = self.buckets.len() as u16;
        let is_bottom = |bucket: &DenseBucket| bucket.section == Section::Bottom;
        let bottom = self.buckets.iter().position(is_bottom).map_or(count, |at| at as u16);
        let is_beside = self.schedule.has(Overlap::Gradient);
        let sums_beside = self.schedule.has(Overlap::AllReduce);
        for bucket in 0..=count {
            if bucket == bottom {
                self.push(Stage::InteractionBackward, Whole);
                self.push(Stage::GradientExchange, if is_beside { Start } else { Whole });
            }
            if bucket == count {
                break;
            }
            self.push(Stage::DenseBackward(bucket), Whole);
            if self.ranks == 1 {
                self.push(Stage::DenseUpdate(bucket), Whole);
            } else if sums_beside {
                self.push(Stage::AllReduce(bucket), Start);
            }
        }
        if self.ranks == 1 {
            return self.push_update();
        }
        if !sums_beside {
            (0..count).for_each(|bucket| self.push(Stage::AllReduce(bucket), Start));
        }
        // Sums over groups can only begin when the gradients of the group have arrived. Dense
        // updates then run beside them.
        let groups_beside = is_beside && self.groups.sums_gradients();
        if groups_beside {
            self.push(Stage::GradientExchange, Finish);
            self.push(Stage::GroupExchange, Start);
        }
        for bucket in 0..count {
            self.push(Stage::AllReduce(bucket), Finish);
            if bucket == 0 && !groups_beside {
                self.push_update();
            }
            self.push(Stage::DenseUpdate(bucket), Whole);
        }
        if groups_beside {
            self.push_update();
        }
    }

    fn push_update(&mut self) {
        use ActionPart::{Finish, Whole};
        let is_beside = self.schedule.has(Overlap::Gradient);
        if self.groups.sums_gradients() {
            self.push(Stage::GroupExchange, if is_beside { Finish } else { Whole });
        } else if is_beside {
            self.push(Stage::GradientExchange, Finish);
        }
        if self.has_row_terms {
            self.push(Stage::RowTerms, Whole);
        }
        self.push(Stage::EmbeddingUpdate, Whole);
        if self.groups.averages_tables() {
            self.push(Stage::GroupExchange, Whole);
        }
    }
}

#[cfg(test)]
mod tests;
