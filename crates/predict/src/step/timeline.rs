//! The order and overlap of a step's stages. A step takes the actions of the trainer's stage graph
//! in order, and exchanges that a schedule starts early run beside later stages.
//!
//! Ranks wait for each other at the end of an exchange alone. A rank that looked up fewer rows can
//! be as much later in the row updates before without delaying the step. [`RankClocks`] therefore
//! follows the time of every rank.

use kernel_model::Estimate;
use schema::stage::{ActionBatch, ActionPart, Resource, StageAction};
use schema::{Stage, StepGraph};

/// Most actions whose ends fit on the stack. Ready-made configurations have about 30.
const FEW: usize = 128;
/// Steps that are simulated. The first one has no exchange of its own batch behind it, so the
/// second one counts.
const STEPS: usize = 2;
/// Stages of the simulated steps whose time differs between ranks: lookups and row updates.
const OWN_STAGES: usize = 2 * STEPS;

/// The actions of a step's stage graph, with the times of those that no tile changes.
#[derive(Clone, Debug)]
pub struct StageTimeline {
    actions: Vec<TimedAction>,
    /// Time in which a message travels without keeping the link busy for the next one.
    latency: Estimate,
}

/// Times of the stages that depend on tiles.
#[derive(Clone, Copy, Debug)]
pub struct TileTimes<'a> {
    /// Times of the exchanges between ranks.
    pub ids: Estimate,
    pub pooled: Estimate,
    pub gradients: Estimate,
    pub terms: Estimate,
    /// Time in which a rank copies its samples' vectors out of messages, or their gradients into
    /// messages.
    pub copies: Estimate,
    /// Time in which a rank sums gradients of replicated tables by row, and copies them into
    /// messages and out of them.
    pub replicas: Estimate,
    pub ranks: &'a [RankTimes],
}

/// Times of a rank's own stages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankTimes {
    pub lookup: Estimate,
    pub update: Estimate,
    /// Time by which the thread that distributes the next batch's ids slows down computation. It
    /// runs from the start of the lookups on.
    pub lane: Estimate,
}

impl TileTimes<'_> {
    /// Returns the time of a stage, on the slowest rank, or `None` if no tile changes it.
    pub fn time_of(&self, stage: Stage) -> Option<Estimate> {
        match stage {
            Stage::InputDistribution => Some(self.ids),
            Stage::PooledExchange => Some(self.pooled),
            Stage::GradientExchange => Some(self.gradients),
            Stage::RowTerms => Some(self.terms),
            Stage::Lookup | Stage::EmbeddingUpdate => {
                let own = self.ranks.iter().map(|rank| rank.own(stage));
                Some(own.fold(Estimate::default(), Estimate::max))
            }
            _ => None,
        }
    }

    /// Returns the time by which the slowest distribution of ids lasts beyond the lookups beside
    /// it, or lasts alone.
    fn lane(&self, beside_lookup: bool) -> Estimate {
        let lane = |rank: &RankTimes| match beside_lookup {
            true => rank.lane.beyond(rank.lookup),
            false => rank.lane,
        };
        self.ranks.iter().map(lane).fold(Estimate::default(), Estimate::max)
    }
}

impl RankTimes {
    fn own(&self, stage: Stage) -> Estimate {
        if stage == Stage::Lookup { self.lookup } else { self.update }
    }
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
    /// Creates the timeline of a graph. `time_of` returns the time of a stage, of which messages
    /// travel for `latency` without keeping the link busy.
    pub fn new(graph: &StepGraph, latency: Estimate, time_of: impl Fn(Stage) -> Estimate) -> Self {
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
        Self { actions, latency }
    }

    /// Returns the actions of the step, in order.
    #[must_use]
    pub fn actions(&self) -> &[TimedAction] {
        &self.actions
    }

    /// Simulates steps in equilibrium, in which the next batch's exchanges run beside this step.
    /// `changed` may replace the time of a stage, and `added` receives the time that each stage
    /// adds to the step. Returns the time of a step.
    ///
    /// # Cost
    /// Two passes over the actions, and ten over the ranks. Graphs of at most [`FEW`] actions need
    /// no allocation.
    pub fn simulate(
        &self,
        times: &TileTimes<'_>,
        changed: &impl Fn(Stage, Estimate) -> Estimate,
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
        let mut link = LinkClock::default();
        let mut clocks = RankClocks::new(times.ranks);
        let mut begin = Estimate::default();
        for step in 0..STEPS {
            begin = clocks.latest;
            for (at, action) in self.actions.iter().enumerate() {
                let time = match action.stage {
                    Stage::Lookup | Stage::EmbeddingUpdate => Estimate::default(),
                    stage => changed(stage, times.time_of(stage).unwrap_or(action.time)),
                };
                if action.stage == Stage::RowTerms && time.mean_ns == 0.0 {
                    continue;
                }
                let before = clocks.latest;
                let is_done = action.part != ActionPart::Start;
                match (action.part, action.stage) {
                    (_, Stage::Lookup | Stage::EmbeddingUpdate) => {
                        clocks.run_own(action.stage, changed);
                    }
                    (ActionPart::Finish, _) => {
                        clocks.wait(action.started_by.map_or(before, |start| ends[start]));
                    }
                    (_, stage) if stage.resource() == Resource::Link => {
                        if stage == Stage::GradientExchange {
                            clocks.run(times.copies.plus(times.replicas));
                        }
                        let latency = self.latency.times(turns(stage));
                        ends[at] = link.send(clocks.latest, time, latency);
                        if is_done {
                            clocks.wait(ends[at]);
                        }
                        if stage == Stage::InputDistribution {
                            clocks.start_lane(times, is_done);
                        }
                    }
                    _ => clocks.run(time),
                }
                if is_done && action.stage == Stage::PooledExchange {
                    clocks.run(times.copies);
                }
                if step + 1 == STEPS && action.batch == ActionBatch::This {
                    added(action.stage, clocks.latest.beyond(before));
                }
            }
        }
        clocks.latest.beyond(begin)
    }
}

/// Returns the number of messages that follow each other in an exchange.
fn turns(stage: Stage) -> f64 {
    match stage {
        // Lengths of bags, then ids.
        Stage::InputDistribution => 2.0,
        // Parts of the vector, then their sums.
        Stage::AllReduce(_) | Stage::GroupExchange => 2.0,
        _ => 1.0,
    }
}

/// The link of a rank, which messages leave in the order of their exchanges.
#[derive(Clone, Copy, Default)]
struct LinkClock {
    /// Time at which the link has sent all messages.
    free: Estimate,
}

impl LinkClock {
    /// Sends the messages of an exchange that begins at `now`. The exchange takes `time`, of which
    /// messages travel for `latency`. Returns its end.
    fn send(&mut self, now: Estimate, time: Estimate, latency: Estimate) -> Estimate {
        if time.mean_ns <= 0.0 {
            // Nothing is sent, so nothing waits for the link.
            return now;
        }
        let sending = time.beyond(latency);
        self.free = self.free.max(now).plus(sending);
        self.free.plus(time.beyond(sending))
    }
}

/// The times of all ranks in simulated steps. Stages that take as long on every rank are added to
/// all of them at once, so only lookups and row updates cost a pass over the ranks.
struct RankClocks<'a> {
    ranks: &'a [RankTimes],
    /// Time of the latest rank.
    latest: Estimate,
    /// Least time of all ranks.
    floor: Estimate,
    /// Time that all ranks took since the last own stage.
    shift: Estimate,
    own: [OwnStage; OWN_STAGES],
    count: usize,
    /// Work of the thread that distributes ids, which slows down computation until it is done.
    lane: Estimate,
    /// Whether that thread starts with the next lookups.
    is_lane_due: bool,
}

/// A stage with a time of its own on each rank.
#[derive(Clone, Copy)]
struct OwnStage {
    stage: Stage,
    /// Least time of all ranks at the start of the stage.
    floor: Estimate,
    /// Time that all ranks took between the own stage before and this one.
    shift: Estimate,
    has_lane: bool,
}

impl<'a> RankClocks<'a> {
    fn new(ranks: &'a [RankTimes]) -> Self {
        let nothing = Estimate::default();
        let unused =
            OwnStage { stage: Stage::Lookup, floor: nothing, shift: nothing, has_lane: false };
        Self {
            ranks,
            latest: nothing,
            floor: nothing,
            shift: nothing,
            own: [unused; OWN_STAGES],
            count: 0,
            lane: nothing,
            is_lane_due: false,
        }
    }

    /// Runs a stage that takes `time` on every rank, and longer while it shares a core with the
    /// distribution of ids.
    fn run(&mut self, time: Estimate) {
        // Both threads get half of the core until one of them is done.
        let beside = time.least(self.lane);
        self.lane = self.lane.beyond(beside);
        let time = time.plus(beside);
        self.floor = self.floor.plus(time);
        self.shift = self.shift.plus(time);
        self.latest = self.latest.plus(time);
    }

    /// Runs a stage that has a time of its own on each rank.
    fn run_own(&mut self, stage: Stage, changed: &impl Fn(Stage, Estimate) -> Estimate) {
        let has_lane = stage == Stage::Lookup && std::mem::take(&mut self.is_lane_due);
        if self.floor.max(self.latest) == self.floor {
            // All ranks are at the same time, so what they did before no longer counts.
            self.count = 0;
        }
        self.own[self.count] = OwnStage { stage, floor: self.floor, shift: self.shift, has_lane };
        self.count += 1;
        let end = |rank: &RankTimes| {
            self.own[..self.count].iter().fold(Estimate::default(), |time, own| {
                let begin = time.plus(own.shift).max(own.floor);
                let stage = changed(own.stage, rank.own(own.stage));
                let beside =
                    if own.has_lane { stage.least(rank.lane) } else { Estimate::default() };
                begin.plus(stage).plus(beside)
            })
        };
        self.latest = self.ranks.iter().map(end).fold(self.floor, Estimate::max);
        self.shift = Estimate::default();
    }

    /// Lets all ranks wait for the end of an exchange.
    fn wait(&mut self, end: Estimate) {
        self.lane = self.lane.beyond(end.beyond(self.latest));
        self.floor = self.floor.max(end);
        self.latest = self.latest.max(end);
    }

    /// Starts the distribution of ids on a thread of its own, or runs it if it `is_done` at once.
    fn start_lane(&mut self, times: &TileTimes<'_>, is_done: bool) {
        if is_done {
            self.run(times.lane(false));
        } else {
            self.is_lane_due = true;
            self.lane = times.lane(true);
        }
    }
}

#[cfg(test)]
mod tests;
