//! Turns the actions of a step into stages that threads of the host launch: in which order, on
//! which thread, and where a thread waits for the device. Times are simulated by
//! [`crate::launched`].

use predict::step::host::StageHosts;
use predict::step::{StepPricer, TimedAction};
use schema::Stage;
use schema::stage::{ActionBatch, ActionPart, Resource};

use crate::launched::{AfterLaunch, LaunchQueue, LaunchedStage, StageInput, StepOfInput};

/// How the host launches the stages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    pub order: LaunchOrder,
    pub input: InputThread,
    pub dense: DenseLaunches,
    pub rounds: InputRounds,
    /// Number of lookups and of updates that the host launches one by one: 1 if a kernel serves all
    /// tables of a rank.
    pub embedding_calls: u32,
}

impl LaunchPlan {
    /// Stages are launched in the order of the stage graph, by one thread that never waits.
    pub const IN_GRAPH_ORDER: Self = Self {
        order: LaunchOrder::StageGraph,
        input: InputThread::Shared,
        dense: DenseLaunches::Eager,
        rounds: InputRounds::One,
        embedding_calls: 1,
    };

    /// TorchRec's pipeline before the optimizations of its text: one thread launches the input
    /// distribution behind the dense layers, and waits for the sizes of its messages.
    pub const TORCHREC: Self = Self {
        order: LaunchOrder::InputBehindDense,
        rounds: InputRounds::Three,
        ..Self::IN_GRAPH_ORDER
    };
}

/// The order in which stages are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchOrder {
    StageGraph,
    /// Lookups, dense layers, the input distribution of the next batch, row updates, dense updates.
    InputBehindDense,
}

/// The thread that launches the input distribution of the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputThread {
    /// The thread of all other stages.
    Shared,
    /// A thread of its own. The other thread waits for it at the beginning of the next step.
    Own,
}

/// How dense layers and the sums of their gradients are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseLaunches {
    Eager,
    /// One call launches them as a CUDA graph.
    Graph,
}

/// The exchanges of an input distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRounds {
    /// One exchange of lengths and ids, for which no thread waits.
    One,
    /// The sizes of messages, the lengths of bags, then the ids. The host reads the results of the
    /// first two, so its thread waits for both.
    Three,
    /// Lengths and ids. The host knows all sizes of messages, and waits for the lengths only.
    WithoutSizes,
}

/// A stage with its dependencies in the order of the stage graph.
struct OrderedStage {
    stage: Stage,
    batch: ActionBatch,
    device_ns: f64,
    inputs: Vec<StageInput>,
}

/// Lists the stages of a priced step with the time in which the host launches them.
#[must_use]
pub fn list_stages(
    pricer: &StepPricer<'_>,
    hosts: &StageHosts,
    plan: LaunchPlan,
) -> Vec<LaunchedStage> {
    let rounds_ns = pricer.input_rounds().map(|round| round.mean_ns);
    let mut actions = pricer.timed_actions();
    if plan.order == LaunchOrder::InputBehindDense {
        actions.sort_by_key(launch_group);
    }
    let ordered = find_inputs(&actions);
    let mut listed = Vec::new();
    // Position of the last part of each stage in the list.
    let mut position = Vec::new();
    let mut is_graph_launched = false;
    for stage in &ordered {
        let mut launched = LaunchedStage {
            name: stage.stage.to_string(),
            thread: 0,
            host_ns: hosts.ns(stage.stage),
            queue: queue(stage.stage),
            device_ns: stage.device_ns,
            after_device: stage.inputs.clone(),
            after_launch: Vec::new(),
            then: AfterLaunch::GoOn,
        };
        if matches!(stage.stage, Stage::Lookup | Stage::EmbeddingUpdate) {
            launched.host_ns *= f64::from(plan.embedding_calls);
        }
        if plan.dense == DenseLaunches::Graph && is_dense(stage.stage) {
            launched.host_ns = if is_graph_launched { 0.0 } else { hosts.graph_ns };
            is_graph_launched = true;
        }
        if stage.stage == Stage::InputDistribution && plan.rounds != InputRounds::One {
            push_rounds(&mut listed, &launched, rounds_ns, plan.rounds);
        } else {
            listed.push(launched);
        }
        position.push(listed.len() - 1);
    }
    for launched in &mut listed {
        launched.after_device.iter_mut().for_each(|input| input.stage = position[input.stage]);
    }
    if plan.input == InputThread::Own {
        move_input_to_thread(&mut listed, &ordered);
    }
    listed
}

/// Lists the stages of ordered actions, each with the stages that the device must have finished.
/// Compute stages wait for each other through their queue.
fn find_inputs(actions: &[TimedAction]) -> Vec<OrderedStage> {
    let mut ordered: Vec<OrderedStage> = Vec::new();
    let is_run =
        |action: &&TimedAction| action.stage != Stage::RowTerms || action.time.mean_ns > 0.0;
    let listed: Vec<&TimedAction> =
        actions.iter().filter(is_run).filter(|action| action.part != ActionPart::Finish).collect();
    let position = |stage: Stage| listed.iter().position(|action| action.stage == stage);
    let step_of = |batch: ActionBatch| match batch {
        ActionBatch::This => StepOfInput::This,
        ActionBatch::Next => StepOfInput::Previous,
    };
    let is_compute = |action: &TimedAction| action.stage.resource() != Resource::Link;
    let first_compute = listed.iter().position(|action| is_compute(action));
    // The end of a step is the beginning of the next one.
    let last_compute = listed.iter().rposition(|action| is_compute(action));
    let mut compute: Option<StageInput> =
        last_compute.map(|stage| StageInput { stage, step: StepOfInput::Previous });
    let tail = last_compute.map_or(0, |at| at + 1);
    let is_awaited = |at: &usize| listed[*at].part == ActionPart::Whole;
    let mut awaited: Vec<StageInput> = (tail..listed.len())
        .filter(is_awaited)
        .map(|stage| StageInput { stage, step: StepOfInput::Previous })
        .collect();
    for action in actions.iter().filter(is_run) {
        if action.part == ActionPart::Finish {
            let start = position(action.stage);
            awaited.extend(
                start.map(|stage| StageInput { stage, step: step_of(listed[stage].batch) }),
            );
            continue;
        }
        let this = StageInput { stage: ordered.len(), step: StepOfInput::This };
        let inputs = if is_compute(action) {
            compute = Some(this);
            std::mem::take(&mut awaited)
        } else {
            // Ids of the next batch are there as soon as the step begins.
            let inputs = match (action.batch, first_compute) {
                (ActionBatch::Next, Some(stage)) => {
                    vec![StageInput { stage, step: StepOfInput::This }]
                }
                _ => awaited.iter().copied().chain(compute).collect(),
            };
            if action.part == ActionPart::Whole {
                awaited.push(this);
            }
            inputs
        };
        ordered.push(OrderedStage {
            stage: action.stage,
            batch: action.batch,
            device_ns: action.time.mean_ns,
            inputs,
        });
    }
    ordered
}

/// Appends the exchanges of an input distribution, which share its host time equally.
fn push_rounds(
    listed: &mut Vec<LaunchedStage>,
    whole: &LaunchedStage,
    rounds_ns: [f64; 3],
    rounds: InputRounds,
) {
    let names = ["sizes", "lengths", "ids"];
    let first = usize::from(rounds == InputRounds::WithoutSizes);
    for round in first..names.len() {
        let is_last = round + 1 == names.len();
        listed.push(LaunchedStage {
            name: format!("{} {}", whole.name, names[round]),
            host_ns: whole.host_ns / names.len() as f64,
            device_ns: rounds_ns[round],
            then: if is_last { AfterLaunch::GoOn } else { AfterLaunch::Wait },
            ..whole.clone()
        });
    }
}

/// Moves the input distribution of the next batch to a thread of its own. It begins when the first
/// stage of the step has been launched, and the next step begins when it has been launched.
fn move_input_to_thread(listed: &mut [LaunchedStage], ordered: &[OrderedStage]) {
    let is_input = |stage: &LaunchedStage| stage.queue == LaunchQueue::InputDistribution;
    let is_ahead = ordered
        .iter()
        .any(|stage| stage.stage == Stage::InputDistribution && stage.batch == ActionBatch::Next);
    let first = listed.iter().position(|stage| !is_input(stage));
    let (Some(first), Some(last)) = (first, listed.iter().rposition(is_input)) else { return };
    if !is_ahead {
        return;
    }
    let mut begins = Some(StageInput { stage: first, step: StepOfInput::This });
    for stage in listed.iter_mut().filter(|stage| is_input(stage)) {
        stage.thread = 1;
        stage.after_launch.extend(begins.take());
    }
    listed[first].after_launch.push(StageInput { stage: last, step: StepOfInput::Previous });
}

fn queue(stage: Stage) -> LaunchQueue {
    match stage.resource() {
        Resource::Link if stage == Stage::InputDistribution => LaunchQueue::InputDistribution,
        Resource::Link => LaunchQueue::Exchanges,
        Resource::ComputeQueue | Resource::HostThread => LaunchQueue::Compute,
    }
}

/// Whether a stage belongs to the dense layers or to the sums of their gradients.
fn is_dense(stage: Stage) -> bool {
    matches!(
        stage,
        Stage::BottomMlp
            | Stage::Interaction
            | Stage::TopMlp
            | Stage::Loss
            | Stage::DenseBackward(_)
            | Stage::InteractionBackward
            | Stage::AllReduce(_)
    )
}

/// Returns the place of an action in the order of TorchRec's pipeline. A stage waits for an
/// exchange where it needs the result.
fn launch_group(action: &TimedAction) -> u8 {
    match (action.stage, action.part) {
        (Stage::InputDistribution, _) if action.batch == ActionBatch::Next => 3,
        (Stage::InputDistribution | Stage::Copy, _) => 0,
        (Stage::PooledExchange, ActionPart::Finish) => 2,
        (Stage::Lookup | Stage::PooledExchange, _) => 1,
        (Stage::DenseUpdate(_), _) | (Stage::AllReduce(_), ActionPart::Finish) => 5,
        (stage, _) if is_dense(stage) => 2,
        _ => 4,
    }
}
