//! The order and overlap of a step's stages. A step takes the actions of the trainer's stage graph
//! in order, and exchanges that a schedule starts early run beside later stages.

use kernel_model::Estimate;
use schema::stage::{ActionBatch, ActionPart, Resource, StageAction};
use schema::{Stage, StepGraph};

/// Most actions whose ends fit on the stack. Ready-made configurations have about 30.
const FEW: usize = 128;

/// The actions of a step's stage graph, with the times of those that no tile changes.
#[derive(Clone, Debug)]
pub struct StageTimeline {
    actions: Vec<TimedAction>,
}

/// An action of the stage graph, with the time of its stage.
#[derive(Clone, Copy, Debug)]
pub struct TimedAction {
    pub stage: Stage,
    pub part: ActionPart,
    pub batch: ActionBatch,
    /// Time of the stage, unless it depends on tiles.
    pub time: Estimate,
    /// Position of the action that starts this exchange, if this action finishes it.
    started_by: Option<usize>,
}

impl StageTimeline {
    /// Creates the timeline of a graph. `time_of` returns the time of a stage.
    pub fn new(graph: &StepGraph, time_of: impl Fn(Stage) -> Estimate) -> Self {
        let mut actions: Vec<TimedAction> = Vec::with_capacity(graph.actions.len() + 1);
        let has_terms = graph.actions.iter().any(|action| action.stage == Stage::RowTerms);
        for action in &graph.actions {
            let StageAction { stage, part, batch, .. } = *action;
            let timed =
                |stage| TimedAction { stage, part, batch, time: time_of(stage), started_by: None };
            // A table that moves may begin or end the exchange of row terms, so there is always an
            // action for it.
            if stage == Stage::EmbeddingUpdate && !has_terms {
                actions.push(timed(Stage::RowTerms));
            }
            actions.push(timed(stage));
        }
        for at in 0..actions.len() {
            if actions[at].part == ActionPart::Finish {
                let starts = |action: &TimedAction| {
                    action.stage == actions[at].stage && action.part == ActionPart::Start
                };
                actions[at].started_by = actions.iter().position(starts);
            }
        }
        Self { actions }
    }

    /// Returns the actions of the step, in order.
    #[must_use]
    pub fn actions(&self) -> &[TimedAction] {
        &self.actions
    }

    /// Simulates steps in equilibrium, in which the next batch's exchanges run beside this step.
    /// `embedding` returns the times of stages that depend on tiles, and `added` receives the time
    /// that each stage adds to the step. Returns the time of a step.
    ///
    /// # Cost
    /// Two passes over the actions. Graphs of at most [`FEW`] actions need no allocation.
    pub fn simulate(
        &self,
        embedding: impl Fn(Stage) -> Option<Estimate>,
        mut added: impl FnMut(Stage, Estimate),
    ) -> Estimate {
        let mut few = [Estimate::default(); FEW];
        let mut many = Vec::new();
        let ends: &mut [Estimate] = match self.actions.len() {
            0..=FEW => &mut few,
            count => {
                many.resize(count, Estimate::default());
                &mut many
            }
        };
        let mut link_end = Estimate::default();
        let mut now = Estimate::default();
        let mut begin = Estimate::default();
        // The first step has no exchange of its own batch behind it, so the second one counts.
        for step in 0..2 {
            begin = now;
            for (at, action) in self.actions.iter().enumerate() {
                let time = embedding(action.stage).unwrap_or(action.time);
                if action.stage == Stage::RowTerms && time.mean_ns == 0.0 {
                    continue;
                }
                let before = now;
                match (action.part, action.stage.resource()) {
                    (ActionPart::Start, _) => {
                        link_end = link_end.max(now).plus(time);
                        ends[at] = link_end;
                    }
                    (ActionPart::Finish, _) => {
                        if let Some(start) = action.started_by {
                            now = now.max(ends[start]);
                        }
                    }
                    (ActionPart::Whole, Resource::Link) => {
                        link_end = link_end.max(now).plus(time);
                        now = link_end;
                    }
                    (ActionPart::Whole, _) => now = now.plus(time),
                }
                if step == 1 && action.batch == ActionBatch::This {
                    added(action.stage, now.beyond(before));
                }
            }
        }
        now.beyond(begin)
    }
}
