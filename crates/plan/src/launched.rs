//! Simulates steps whose stages are launched by threads of the host. A stage waits until its thread
//! launches it, until its queue is free, and until the stages that it depends on are done.
//!
//! `predict::step` has the same step for a host that takes no time. What a stage costs is known
//! before: this file only computes when stages run.

use std::collections::VecDeque;

/// Number of steps that are simulated. The mean of the second half counts, because the first steps
/// begin with empty queues.
const STEPS: usize = 16;

/// A queue of the device. Stages of a queue run in the order in which they are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchQueue {
    Compute,
    /// Exchanges of pooled vectors and gradients.
    Exchanges,
    /// The input distribution, which has a communicator of its own.
    InputDistribution,
}

impl LaunchQueue {
    /// All queues of a device.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Exchanges, Self::InputDistribution];

    /// Returns the name in pictures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute queue",
            Self::Exchanges => "exchanges",
            Self::InputDistribution => "exchanges of ids",
        }
    }

    /// Returns the number of the resource that the queue occupies. All exchanges share the links,
    /// which serve one exchange after the other.
    fn resource(self) -> usize {
        usize::from(self != Self::Compute)
    }
}

/// The step of a stage on which another stage depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepOfInput {
    This,
    Previous,
}

/// A stage on which another stage depends, by its position in the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageInput {
    pub stage: usize,
    pub step: StepOfInput,
}

/// Whether a thread goes on after it has launched a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLaunch {
    GoOn,
    /// The thread waits until the device is done, as for a copy to pageable host memory.
    Wait,
}

/// A stage of a step with its costs. Stages of one thread are launched in the order of the step.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedStage {
    pub name: String,
    pub thread: usize,
    /// Time in which the thread launches the kernels of the stage.
    pub host_ns: f64,
    pub queue: LaunchQueue,
    pub device_ns: f64,
    /// Stages that the device finishes before it begins this one.
    pub after_device: Vec<StageInput>,
    /// Stages that other threads launch before this one is launched. A thread that waits for its
    /// stage has only then launched it.
    pub after_launch: Vec<StageInput>,
    pub then: AfterLaunch,
}

/// The times of a stage in one simulated step, in nanoseconds from the first launch of that step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageTimes {
    /// The thread begins and ends launching.
    pub launch_begin: f64,
    pub launch_end: f64,
    /// The thread goes on. It is later than `launch_end` if the thread waits.
    pub host_end: f64,
    /// The device begins and ends the stage.
    pub begin: f64,
    pub end: f64,
}

/// A simulated step in equilibrium.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedStep {
    /// Mean time from step to step, in nanoseconds.
    pub step_ns: f64,
    /// Launching time of the thread that launches longest, without waits.
    pub host_ns: f64,
    /// Time for which threads wait for the device in one step.
    pub blocked_ns: f64,
    /// Times of the stages of the last step, in the order of the step.
    pub stages: Vec<StageTimes>,
}

/// A stage of one of the simulated steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    step: usize,
    stage: usize,
}

/// The state of a simulation of several steps.
struct LaunchSimulation<'a> {
    stages: &'a [LaunchedStage],
    /// Positions of each thread's stages.
    threads: Vec<Vec<usize>>,
    /// Number of stages that each thread has launched over all steps, and the time from which it
    /// is free. A thread that waits is not free before its stage ends.
    launched: Vec<usize>,
    thread_free: Vec<f64>,
    waiting: Vec<Option<Pending>>,
    queues: [VecDeque<Pending>; 3],
    resource_free: [f64; 2],
    /// Times of each stage in each step, once they are known.
    begun: Vec<Vec<Option<StageTimes>>>,
    ended: Vec<Vec<bool>>,
}

/// Something that happens next in a simulation.
#[derive(Clone, Copy)]
enum LaunchEvent {
    Launch { thread: usize },
    Run { queue: usize },
}

/// Simulates steps that follow each other until they take equally long.
///
/// The device begins a stage as soon as its thread begins to launch it, because the first kernels
/// run while others are launched. It ends no earlier than the launches. Stages whose inputs never
/// end do not run, and the step then ends without them.
///
/// # Cost
/// 16 steps, each with one event for the launch and one for the end of every stage.
#[must_use]
pub fn simulate(stages: &[LaunchedStage]) -> LaunchedStep {
    let mut simulation = LaunchSimulation::new(stages);
    while let Some(event) = simulation.next_event() {
        match event {
            LaunchEvent::Launch { thread } => simulation.launch(thread),
            LaunchEvent::Run { queue } => simulation.run(queue),
        }
    }
    simulation.into_step()
}

impl<'a> LaunchSimulation<'a> {
    fn new(stages: &'a [LaunchedStage]) -> Self {
        let count = stages.iter().map(|stage| stage.thread + 1).max().unwrap_or(0);
        let stages_on =
            |thread: usize| (0..stages.len()).filter(|at| stages[*at].thread == thread).collect();
        Self {
            stages,
            threads: (0..count).map(stages_on).collect(),
            launched: vec![0; count],
            thread_free: vec![0.0; count],
            waiting: vec![None; count],
            queues: Default::default(),
            resource_free: [0.0; 2],
            begun: vec![vec![None; stages.len()]; STEPS],
            ended: vec![vec![false; stages.len()]; STEPS],
        }
    }

    /// Returns the event that happens first. A launch precedes a stage that is ready at the same
    /// time, and queues precede each other in the order in which their stages were launched.
    fn next_event(&self) -> Option<LaunchEvent> {
        let mut first: Option<(f64, Pending, LaunchEvent)> = None;
        for thread in 0..self.threads.len() {
            let Some((time, next)) = self.launch_time(thread).zip(self.next_launch(thread)) else {
                continue;
            };
            if first.is_none_or(|(earliest, ..)| time < earliest) {
                first = Some((time, next, LaunchEvent::Launch { thread }));
            }
        }
        for (queue, pending) in self.queues.iter().enumerate() {
            let Some((time, next)) = self.ready_time(queue).zip(pending.front()) else { continue };
            let is_first = first.is_none_or(|(earliest, other, event)| {
                let precedes = matches!(event, LaunchEvent::Run { .. }) && *next < other;
                time < earliest || (time == earliest && precedes)
            });
            if is_first {
                first = Some((time, *next, LaunchEvent::Run { queue }));
            }
        }
        first.map(|(.., event)| event)
    }

    /// Returns the stage that a thread launches next.
    fn next_launch(&self, thread: usize) -> Option<Pending> {
        let (own, count) = (&self.threads[thread], self.launched[thread]);
        let step = count / own.len().max(1);
        let is_next = step < STEPS && !own.is_empty() && self.waiting[thread].is_none();
        is_next.then(|| Pending { step, stage: own[count % own.len()] })
    }

    fn launch_time(&self, thread: usize) -> Option<f64> {
        let Pending { step, stage } = self.next_launch(thread)?;
        let known = self.input_time(step, &self.stages[stage].after_launch, |times, at| {
            let waits = self.stages[at.stage].then == AfterLaunch::Wait;
            (!waits || self.ended[at.step][at.stage]).then_some(times.host_end)
        })?;
        Some(known.max(self.thread_free[thread]))
    }

    fn ready_time(&self, queue: usize) -> Option<f64> {
        let Pending { step, stage } = *self.queues[queue].front()?;
        let inputs = self.input_time(step, &self.stages[stage].after_device, |times, at| {
            self.ended[at.step][at.stage].then_some(times.end)
        })?;
        let launch = self.begun[step][stage]?.launch_begin;
        Some(inputs.max(launch))
    }

    /// Returns the latest time of the inputs, or `None` if it is not known yet. Inputs before the
    /// first step are there from the beginning.
    fn input_time(
        &self,
        step: usize,
        inputs: &[StageInput],
        time: impl Fn(StageTimes, Pending) -> Option<f64>,
    ) -> Option<f64> {
        let mut latest = 0.0_f64;
        for input in inputs {
            let back = usize::from(input.step == StepOfInput::Previous);
            let Some(step) = step.checked_sub(back) else { continue };
            let times = self.begun[step][input.stage]?;
            latest = latest.max(time(times, Pending { step, stage: input.stage })?);
        }
        Some(latest)
    }

    fn launch(&mut self, thread: usize) {
        let (Some(begin), Some(next)) = (self.launch_time(thread), self.next_launch(thread)) else {
            return;
        };
        let stage = &self.stages[next.stage];
        let end = begin + stage.host_ns;
        self.begun[next.step][next.stage] = Some(StageTimes {
            launch_begin: begin,
            launch_end: end,
            host_end: end,
            ..StageTimes::default()
        });
        self.queues[stage.queue as usize].push_back(next);
        self.launched[thread] += 1;
        self.thread_free[thread] = end;
        self.waiting[thread] = (stage.then == AfterLaunch::Wait).then_some(next);
    }

    fn run(&mut self, queue: usize) {
        let Some(ready) = self.ready_time(queue) else { return };
        let Some(Pending { step, stage }) = self.queues[queue].pop_front() else { return };
        let Some(times) = &mut self.begun[step][stage] else { return };
        let cost = &self.stages[stage];
        let resource = cost.queue.resource();
        times.begin = ready.max(self.resource_free[resource]);
        times.end = (times.begin + cost.device_ns).max(times.launch_end);
        self.resource_free[resource] = times.end;
        if cost.then == AfterLaunch::Wait {
            times.host_end = times.end;
            self.thread_free[cost.thread] = times.end;
            self.waiting[cost.thread] = None;
        }
        self.ended[step][stage] = true;
    }

    fn into_step(self) -> LaunchedStep {
        let end_of = |step: usize| {
            let compute = self.stages.iter().zip(&self.begun[step]);
            let compute = compute.filter(|(stage, _)| stage.queue == LaunchQueue::Compute);
            compute.filter_map(|(_, times)| Some((*times)?.end)).fold(0.0, f64::max)
        };
        let half = STEPS / 2;
        let step_ns = (end_of(STEPS - 1) - end_of(STEPS - 1 - half)) / half as f64;
        let launching = |own: &Vec<usize>| own.iter().map(|at| self.stages[*at].host_ns).sum();
        let host_ns = self.threads.iter().map(launching).fold(0.0, f64::max);
        let mut stages: Vec<StageTimes> =
            self.begun[STEPS - 1].iter().map(|times| (*times).unwrap_or_default()).collect();
        let first = stages.iter().map(|times| times.launch_begin).fold(f64::INFINITY, f64::min);
        for times in &mut stages {
            for time in [
                &mut times.launch_begin,
                &mut times.launch_end,
                &mut times.host_end,
                &mut times.begin,
                &mut times.end,
            ] {
                *time -= first;
            }
        }
        let blocked_ns = stages.iter().map(|times| times.host_end - times.launch_end).sum();
        LaunchedStep { step_ns, host_ns, blocked_ns, stages }
    }
}

#[cfg(test)]
mod tests;
