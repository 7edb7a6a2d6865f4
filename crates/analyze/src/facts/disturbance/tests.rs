use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::interval::Interval;
use crate::facts::window::WindowRule;

const HOST: (i64, i64) = (9, 9);

/// A trace under construction, to which calls of one thread are appended one after the other.
#[derive(Default)]
struct Sketch {
    trace: Trace,
    launches: u64,
}

impl Sketch {
    fn call(&mut self, name: &str, (start, end): Interval) -> &mut Self {
        let span = (1000 * start, 1000 * end);
        self.trace.push(&NewSlice::new("cuda_runtime", name, HOST, span));
        self
    }

    fn row(&mut self, category: &str, name: &str, (start, end): Interval) -> &mut Self {
        let span = (1000 * start, 1000 * end);
        self.trace.push(&NewSlice::new(category, name, HOST, span));
        self
    }

    /// Adds a launch and a kernel that starts after the launch has ended.
    fn launch(&mut self, kernel: &str, (start, end): Interval) -> &mut Self {
        self.launches += 1;
        let correlation = Some(self.launches);
        let call =
            NewSlice::new("cuda_runtime", "cudaLaunchKernel", HOST, (1000 * start, 1000 * end));
        self.trace.push(&NewSlice { correlation, ..call });
        let work = NewSlice::new("kernel", kernel, (0, 7), (1000 * end, 1000 * end + 500));
        self.trace.push(&NewSlice { correlation, ..work });
        self
    }

    /// Returns the microseconds of one kind of disturbance within a span.
    fn within(&self, kind: Disturbance, (start, end): Interval) -> i64 {
        let scope = Scope::new(&self.trace, WindowRule::All, &Classifier::new(ClassRule::Category));
        let found = find_disturbances(&scope, &tree::build(&self.trace));
        let track = self.trace.slices.track[0];
        found.length_within(kind, track, (1000 * start, 1000 * end)) / 1000
    }
}

#[test]
fn a_capture_lasts_from_its_begin_to_its_end() {
    let mut sketch = Sketch::default();
    sketch
        .call("cudaStreamBeginCapture", (100, 101))
        .call("cudaLaunchKernel", (110, 112))
        .call("cudaStreamEndCapture", (200, 210))
        .launch("gemm", (300, 302));
    assert_eq!(sketch.within(Disturbance::GraphCapture, (0, 400)), 110);
    let captures = Captures::new(&sketch.trace, &crate::facts::frames::Frames::default());
    assert_eq!(captures.by_thread().count(), 1);
    let mut cut = Sketch::default();
    cut.call("hipStreamEndCapture", (50, 60)).launch("gemm", (70, 72));
    assert_eq!(cut.within(Disturbance::GraphCapture, (0, 400)), 60);
}

/// Adds `count` measurements of a kernel, after which their times are read.
fn measurements(sketch: &mut Sketch, kernels: &[&str], takes: usize) -> i64 {
    let mut at = 0;
    for kernel in kernels {
        sketch
            .call("cudaEventRecord", (at, at + 1))
            .launch(kernel, (at + 2, at + 4))
            .call("cudaEventRecord", (at + 5, at + 6));
        at += 10;
    }
    sketch.call("cudaDeviceSynchronize", (at, at + 3));
    for _ in 0..takes {
        at += 5;
        sketch.call("cudaEventElapsedTime", (at, at + 1));
    }
    at + 1
}

#[test]
fn repeated_measurements_of_one_kernel_are_autotuning() {
    let mut sketch = Sketch::default();
    let end = measurements(&mut sketch, &["gemm"; 4], 4);
    assert_eq!(sketch.within(Disturbance::Autotuning, (0, 1000)), end);
}

#[test]
fn measurements_of_the_job_are_not_autotuning() {
    // Autotuning must not be found in only two measurements, in measurements of different kernels,
    // or in measurements of a collective.
    for (kernels, takes) in
        [(&["gemm"; 2][..], 2), (&["gemm", "relu", "add"], 3), (&["ncclKernel"; 4], 4)]
    {
        let mut sketch = Sketch::default();
        measurements(&mut sketch, kernels, takes);
        assert_eq!(sketch.within(Disturbance::Autotuning, (0, 1000)), 0, "{kernels:?}");
    }
    let mut sketch = Sketch::default();
    for at in [0, 10, 20] {
        sketch
            .call("cudaEventRecord", (at, at + 1))
            .launch("gemm", (at + 2, at + 4))
            .call("cudaEventRecord", (at + 5, at + 6));
    }
    sketch.launch("optimizer", (30, 32));
    for at in [40, 42, 44] {
        sketch.call("cudaEventElapsedTime", (at, at + 1));
    }
    assert_eq!(sketch.within(Disturbance::Autotuning, (0, 1000)), 0);
}

#[test]
fn an_operator_that_takes_its_time_again_and_again_tries_algorithms() {
    let mut sketch = Sketch::default();
    sketch.row("cpu_op", "aten::cudnn_convolution", (0, 100));
    for (algorithm, at) in [("algorithm_0", 10), ("algorithm_1", 30), ("algorithm_2", 50)] {
        sketch
            .call("cudaEventRecord", (at, at + 1))
            .launch(algorithm, (at + 2, at + 4))
            .call("cudaEventRecord", (at + 5, at + 6))
            .call("cudaEventElapsedTime", (at + 8, at + 9));
    }
    sketch.row("cpu_op", "aten::relu", (100, 120)).launch("relu", (105, 110));
    assert_eq!(sketch.within(Disturbance::Autotuning, (0, 1000)), 100);
}

#[test]
fn autotuning_is_recognized_by_name() {
    let mut sketch = Sketch::default();
    sketch
        .row("user_annotation", "CachingAutotuner.benchmark_all_configs", (10, 60))
        .launch("triton_poi_0", (20, 22))
        .launch("gemm", (80, 82));
    assert_eq!(sketch.within(Disturbance::Autotuning, (0, 100)), 50);
}

#[test]
fn only_a_first_launch_that_takes_far_longer_loads_code() {
    let mut sketch = Sketch::default();
    sketch.launch("slow_at_first", (0, 90)).launch("quick_at_once", (100, 104));
    for at in 0..20 {
        sketch.launch("quick_at_once", (200 + 10 * at, 204 + 10 * at));
    }
    sketch.launch("quick_at_once", (500, 590)).launch("slow_at_first", (600, 690));
    assert_eq!(sketch.within(Disturbance::FirstLaunch, (0, 1000)), 90);
}

#[test]
fn the_profiler_waits_before_and_behind_all_work() {
    let mut sketch = Sketch::default();
    sketch
        .row("user_annotation", "ProfilerStep#1", (0, 100))
        .call("cudaDeviceSynchronize", (1, 5))
        .launch("gemm", (10, 12))
        .call("cudaDeviceSynchronize", (20, 40))
        .launch("gemm", (50, 52))
        .call("cudaDeviceSynchronize", (110, 120));
    sketch.trace.push(&NewSlice::new(
        "overhead",
        "Activity Buffer Request",
        (-1, 0),
        (30_000, 33_000),
    ));
    assert_eq!(sketch.within(Disturbance::Profiler, (0, 25)), 4);
    assert_eq!(sketch.within(Disturbance::Profiler, (25, 50)), 3);
    assert_eq!(sketch.within(Disturbance::Profiler, (100, 200)), 10);
    // A synchronization inside an annotation that the user put after the loop belongs to the user,
    // not to the profiler.
    sketch.row("user_annotation", "evaluate", (130, 160)).call("cudaDeviceSynchronize", (140, 150));
    assert_eq!(sketch.within(Disturbance::Profiler, (125, 200)), 0);
}

#[test]
fn set_up_and_a_long_first_step_are_warm_up() {
    let mut sketch = Sketch::default();
    sketch.row("user_annotation", "ProfilerStep#0", (0, 100)).call("cudaMalloc", (10, 20));
    sketch.row("user_annotation", "ProfilerStep#1", (100, 190)).call("cudaMalloc", (110, 120));
    sketch.row("user_annotation", "ProfilerStep#2", (190, 280));
    assert_eq!(sketch.within(Disturbance::WarmUp, (0, 280)), 10);
    let mut slow = Sketch::default();
    slow.row("user_annotation", "ProfilerStep#0", (0, 200));
    slow.row("user_annotation", "ProfilerStep#1", (200, 290));
    slow.row("user_annotation", "ProfilerStep#2", (290, 380));
    assert_eq!(slow.within(Disturbance::WarmUp, (0, 380)), 200);
}

/// Builds three steps. The second captures a graph, compiles after the capture, and launches the
/// graph at `replay`.
fn capturing(replay: i64) -> Sketch {
    let mut sketch = Sketch::default();
    sketch.row("user_annotation", "ProfilerStep#0", (0, 100)).launch("gemm", (10, 12));
    sketch
        .row("user_annotation", "ProfilerStep#1", (100, 200))
        .call("cudaStreamBeginCapture", (110, 111))
        .call("cudaStreamEndCapture", (120, 130))
        .launch("gemm", (140, 142))
        .call("cuModuleLoadData", (150, 160))
        .call("cudaGraphLaunch", (replay, replay + 2))
        .row("user_annotation", "_compile.compile_inner (dynamo_timed)", (185, 195));
    sketch.row("user_annotation", "ProfilerStep#2", (200, 300)).launch("gemm", (210, 212)).row(
        "user_annotation",
        "_compile.compile_inner (dynamo_timed)",
        (250, 260),
    );
    sketch
}

#[test]
fn compilation_just_behind_a_capture_is_warm_up() {
    // Warm-up lasts until the graph is launched, and includes what compiles or loads code later in
    // that step.
    let early = capturing(145);
    assert_eq!(early.within(Disturbance::WarmUp, (100, 200)), (145 - 130) + 10 + 10);
    let late = capturing(180);
    assert_eq!(late.within(Disturbance::WarmUp, (100, 200)), (180 - 130) + 10);
    // If no later step launches the graph, warm-up lasts until the end of the step that captured
    // it.
    let never = capturing(5);
    assert_eq!(never.within(Disturbance::WarmUp, (0, 300)), 200 - 130);
}

#[test]
fn compilation_in_every_step_is_a_loss_of_steady_steps() {
    let late = capturing(180);
    assert_eq!(late.within(Disturbance::WarmUp, (200, 300)), 0);
}

#[test]
fn work_between_two_captures_warms_up_for_the_second() {
    let mut sketch = Sketch::default();
    sketch
        .call("cudaStreamBeginCapture", (0, 1))
        .call("cudaStreamEndCapture", (10, 12))
        .launch("gemm", (20, 22))
        .call("cudaStreamBeginCapture", (50, 51))
        .call("cudaStreamEndCapture", (60, 62))
        .launch("gemm", (70, 72));
    assert_eq!(sketch.within(Disturbance::WarmUp, (0, 100)), 50 - 12);
}

#[test]
fn launches_that_replay_kernels_for_counters_are_the_profilers() {
    let mut sketch = Sketch::default();
    sketch.launch("gemm", (100, 400)).launch("gemm", (500, 800));
    assert_eq!(sketch.within(Disturbance::Profiler, (0, 1000)), 0);
    sketch.row("cuda_profiler_range", "gemm", (150, 390));
    assert_eq!(sketch.within(Disturbance::Profiler, (0, 1000)), 600);
}
