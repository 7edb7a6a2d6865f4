//! Steps of two or three stages, computed by hand.

use super::{AfterLaunch, LaunchQueue, LaunchedStage, StageInput, StepOfInput, simulate};

fn stage(name: &str, queue: LaunchQueue, host_ns: f64, device_ns: f64) -> LaunchedStage {
    LaunchedStage {
        name: name.to_owned(),
        thread: 0,
        host_ns,
        queue,
        device_ns,
        after_device: Vec::new(),
        after_launch: Vec::new(),
        then: AfterLaunch::GoOn,
    }
}

fn this(stage: usize) -> StageInput {
    StageInput { stage, step: StepOfInput::This }
}

/// Dense layers of 100 ns, an exchange of ids of 60 ns whose copy blocks, and an update of 40 ns.
fn blocked_step() -> Vec<LaunchedStage> {
    let dense = stage("dense", LaunchQueue::Compute, 50.0, 100.0);
    let mut ids = stage("ids", LaunchQueue::InputDistribution, 10.0, 60.0);
    ids.then = AfterLaunch::Wait;
    let update = stage("update", LaunchQueue::Compute, 70.0, 40.0);
    vec![dense, ids, update]
}

#[test]
fn the_slower_of_host_and_device_decides() {
    let slow_device = [stage("a", LaunchQueue::Compute, 10.0, 30.0)];
    assert_eq!(simulate(&slow_device).step_ns, 30.0);
    let slow_host = [stage("a", LaunchQueue::Compute, 50.0, 30.0)];
    let step = simulate(&slow_host);
    assert_eq!((step.step_ns, step.host_ns, step.blocked_ns), (50.0, 50.0, 0.0));
}

#[test]
fn a_blocking_copy_stops_the_launches_of_its_thread() {
    // The host launches for 50 ns, waits from 50 to 110 for the ids, and launches for 70 ns.
    let step = simulate(&blocked_step());
    assert_eq!((step.step_ns, step.host_ns, step.blocked_ns), (180.0, 130.0, 50.0));
    assert_eq!((step.stages[1].begin, step.stages[1].host_end), (50.0, 110.0));
}

#[test]
fn another_thread_waits_while_the_first_one_launches() {
    let mut stages = blocked_step();
    stages[1].thread = 1;
    // 100 + 40 ns of work bind now, which exceed the 120 ns of launches.
    let step = simulate(&stages);
    assert_eq!((step.step_ns, step.host_ns), (140.0, 120.0));
}

#[test]
fn a_graph_is_launched_at_once() {
    let launches = [30.0, 30.0, 30.0];
    let layers = launches.map(|host| stage("layer", LaunchQueue::Compute, host, 20.0));
    assert_eq!(simulate(&layers).step_ns, 90.0);
    let graph = [6.0, 0.0, 0.0].map(|host| stage("layer", LaunchQueue::Compute, host, 20.0));
    assert_eq!(simulate(&graph).step_ns, 60.0);
}

#[test]
fn a_dropped_exchange_takes_its_time_and_its_wait_along() {
    let mut stages = blocked_step();
    stages.insert(1, stages[1].clone());
    stages[1].device_ns = 25.0;
    let both = simulate(&stages);
    stages.remove(1);
    let one = simulate(&stages);
    // The dropped exchange costs 10 ns of launching and blocks until it ends 15 ns later.
    assert_eq!(both.step_ns - one.step_ns, 25.0);
}

#[test]
fn exchanges_share_the_links_in_the_order_in_which_they_are_ready() {
    let mut first = stage("pooled", LaunchQueue::Exchanges, 0.0, 50.0);
    let ids = stage("ids", LaunchQueue::InputDistribution, 0.0, 30.0);
    let lookup = stage("lookup", LaunchQueue::Compute, 0.0, 10.0);
    first.after_device = vec![this(0)];
    let mut top = stage("top", LaunchQueue::Compute, 0.0, 5.0);
    top.after_device = vec![this(2)];
    let mut next = ids;
    next.after_device = vec![StageInput { stage: 3, step: StepOfInput::Previous }];
    // The ids are ready at 0 and pooled vectors at 10, so pooled vectors wait until 30.
    let step = simulate(&[lookup, next, first, top]);
    assert_eq!(step.step_ns, 85.0);
}

#[test]
fn a_stage_whose_input_never_runs_does_not_hang() {
    let mut stuck = stage("a", LaunchQueue::Compute, 1.0, 1.0);
    stuck.after_device = vec![this(0)];
    assert_eq!(simulate(&[stuck]).step_ns, 0.0);
    assert_eq!(simulate(&[]).step_ns, 0.0);
}
