//! Tests of steps in equilibrium, in which a queue of launches carries over from step to step.

use analyze::classify::ClassRule;
use analyze::graph::what_if as graph_what_if;
use analyze::job::Tensors;
use analyze::{Classifier, Scope, WindowRule};
use predict::calibration::price::Prices;
use predict::calibration::{Calibration, collect};
use predict::edit::Edit;
use predict::prediction::{Draws, PredictedStepRow, what_if};
use predict::recording::{Span, Step, TensorSizes};
use trace::store::Trace;

use crate::fixture::{self, HOST, Recording, Row, by_hand};

const DRAWS: Draws = Draws::new(20, 0);
const DEVICE: (i64, i64) = (0, 7);

/// Times of a made recording in microseconds.
const KERNEL: i64 = 30;
const STEPS: usize = 5;
const LAUNCHES: usize = 800;
/// Works that the device's queue holds.
const QUEUE: usize = 1024;

/// Records a job whose device needs 31 µs for each kernel and whose host needs 7 µs, so that the
/// queue fills in the second step.
fn bound_by_device() -> Trace {
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut ends: Vec<i64> = Vec::new();
    let (mut host, mut begin) = (0, 0);
    const MARKS: [&str; STEPS] =
        ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"];
    for launch in 0..STEPS * LAUNCHES {
        let call = host + 1;
        let room = launch.checked_sub(QUEUE).map_or(call, |earlier| ends[earlier].max(call));
        let returns = if room > call { room + 4 } else { call + 4 };
        let free = ends.last().map_or(0, |end| end + 1);
        let start = free.max(room + 7);
        ends.push(start + KERNEL);
        let id = launch as u64 + 1;
        rows.push(("cpu_op", "aten::mm", HOST, host, returns + 1, 0));
        rows.push(("cuda_runtime", "cudaLaunchKernel", HOST, call, returns, id));
        rows.push(("kernel", "gemm", DEVICE, start, start + KERNEL, id));
        host = returns + 2;
        if (launch + 1) % LAUNCHES == 0 {
            let mark = MARKS[launch / LAUNCHES];
            rows.push(("user_annotation", mark, HOST, begin, host, 0));
            begin = host;
        }
    }
    by_hand(&rows)
}

/// Predicts a step whose kernels take a multiple of their time.
fn scaled(step: &Step, factor: f64) -> PredictedStepRow {
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, step, &[0]);
    let setting = step.recorded.setting(&step.program);
    let edits = [Edit::Scale { kernels: "*".to_owned(), factor }];
    let found = what_if::Unedited::new(&step.program, &setting, &calibration)
        .and_then(|unedited| unedited.with("", &edits, DRAWS));
    found.expect("no cycle").rows.remove(0)
}

#[test]
fn a_step_bound_by_the_device_gains_from_faster_kernels() {
    let trace = bound_by_device();
    let scopes = fixture::scopes(std::slice::from_ref(&trace));
    let job = predict::recording::Job::new(&scopes, |_| Default::default());
    let spans: Vec<Span> = predict::recording::spans(&scopes[0]);
    let step = job.step(&[spans[3]]).expect("host rows");
    assert_eq!(step.recorded.ranks[0].step_ns, 24_800_000);
    let near = |ns: Option<i64>, expected: i64| {
        let ns = ns.expect("a base");
        assert!((ns - expected).abs() * 50 <= expected, "{ns} instead of {expected}");
    };
    let halved = scaled(&step, 0.5);
    near(halved.base_ns, 24_800_000);
    near(Some(halved.step_ns), 12_800_000);
    near(Some(halved.median_ns), 12_800_000);
    // With kernels of a tenth, the host takes longer than the device.
    near(Some(scaled(&step, 0.1).step_ns), 5_600_000);
    near(Some(scaled(&step, 2.0).step_ns), 48_800_000);
}

#[test]
fn a_device_that_falls_behind_binds_though_its_queue_was_empty() {
    let trace = by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 100, 0),
        ("cpu_op", "aten::a", HOST, 10, 30, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 12, 20, 1),
        ("kernel", "k", DEVICE, 20, 60, 1),
    ]);
    let step = fixture::step_of(&[trace]);
    assert_eq!(scaled(&step, 1.0).step_ns, 100_000);
    // The kernel of 100.4 µs ends after the next one could start, but only a little.
    assert_eq!(scaled(&step, 2.51).step_ns, 100_400);
    assert_eq!(scaled(&step, 5.0).step_ns, 200_000);
}

#[test]
fn faster_kernels_gain_what_the_recorded_graph_says() {
    for name in ["a100_full_queue", "h100_timesformer"] {
        let path = format!("modern/{name}.json.gz");
        let (Some(recording), Some(read)) = (Recording::read(&path), fixture::job(&path)) else {
            return;
        };
        let classifier = Classifier::new(ClassRule::Category);
        let scopes: Vec<Scope<'_>> = read
            .traces
            .iter()
            .map(|trace| Scope::new(trace, WindowRule::Steps, &classifier))
            .collect();
        let job = analyze::JobFacts::new(&scopes);
        let half = graph_what_if::parse("kernel=~.* x0.5").expect("a question");
        let answer = graph_what_if::answer_questions(&job, &[half]);
        let expected = answer.windows[0].saving_pct.expect("a window");
        for number in 0..recording.spans()[0].len() {
            let step = recording.step(number);
            let row = scaled(&step, 0.5);
            let recorded_ns = step.recorded.ranks[0].step_ns;
            let off = row.base_ns.expect("a base") as f64 / recorded_ns as f64 - 1.0;
            assert!(off.abs() < 0.02, "{name}, step {number}: the base is off by {off}");
            let saving = row.saving_pct.expect("a saving");
            assert!((saving - expected).abs() < 3.0, "{name}, step {number}: {saving} {expected}");
        }
    }
}

/// Records a forward and a backward pass through a small and a large layer, whose kernels have the
/// same name.
fn two_layers() -> Trace {
    const BACKWARD: &str = "autograd::engine::evaluate_function: MmBackward0";
    let mut trace = by_hand(&[
        ("user_annotation", "ProfilerStep#1", HOST, 0, 2_400, 0),
        ("cpu_op", "aten::mm", HOST, 10, 20, 0),
        ("cpu_op", "aten::mm", HOST, 30, 40, 0),
        ("cpu_op", BACKWARD, HOST, 50, 60, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 51, 55, 1),
        ("cpu_op", BACKWARD, HOST, 70, 80, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 71, 75, 2),
        ("kernel", "gemm", DEVICE, 60, 1_834, 1),
        ("kernel", "gemm", DEVICE, 1_835, 1_907, 2),
        ("cuda_runtime", "cudaDeviceSynchronize", HOST, 90, 1_911, 0),
    ]);
    for (row, sequence, forward_thread) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (5, 1, 1)] {
        trace.slices.sequence.push(row, sequence);
        trace.slices.forward_thread.push(row, forward_thread);
    }
    trace
}

#[test]
fn a_backward_operator_has_the_sizes_of_its_forward_operator() {
    let trace = two_layers();
    let scopes = fixture::scopes(std::slice::from_ref(&trace));
    let sizes = |dims: u64| Tensors { dims: vec![vec![dims, dims]], types: vec!["float".into()] };
    let tensors = [((0, 1), sizes(72)), ((0, 2), sizes(1_774))].into();
    let job = predict::recording::Job::new(&scopes, |_| TensorSizes {
        tensors,
        ..TensorSizes::default()
    });
    let step = job.step(&predict::recording::spans(&scopes[0])).expect("host rows");
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &[0]);
    let setting = step.recorded.setting(&step.program);
    let without = |number: usize| {
        let operators = format!("autograd::engine::evaluate_function: MmBackward0[{number}]");
        let edits = [Edit::Remove { operators }];
        let found = what_if::Unedited::new(&step.program, &setting, &calibration)
            .and_then(|unedited| unedited.with("", &edits, DRAWS));
        found.expect("no cycle").rows[0].saving_ns.expect("a saving")
    };
    // One layer takes 1,774 µs and the other one 72 µs, besides the gap of 1 µs.
    assert_eq!((without(0), without(1)), (1_775_000, 73_000));
}

#[test]
fn a_slower_device_stays_slower() {
    let trace = |rank: u32, kernel: i64| {
        let mut trace = by_hand(&[
            ("user_annotation", "ProfilerStep#1", HOST, 0, 40 + kernel, 0),
            ("cpu_op", "aten::mm", HOST, 10, 20, 0),
            ("cuda_runtime", "cudaLaunchKernel", HOST, 11, 15, 1),
            ("kernel", "gemm", DEVICE, 20, 20 + kernel, 1),
            ("cuda_runtime", "cudaDeviceSynchronize", HOST, 25, 24 + kernel, 0),
        ]);
        trace.rank = rank;
        trace
    };
    let step = fixture::step_of(&[trace(0, 100), trace(1, 100), trace(2, 150)]);
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &[0, 1, 2]);
    let prices = Prices::new(&calibration);
    let setting = prices.setting_of_devices(&step);
    let factors: Vec<f64> = setting.ranks.iter().map(|rank| rank.device_factor).collect();
    assert_eq!(factors, [1.0, 1.0, 1.5]);
    let found = what_if::Unedited::new(&step.program, &setting, &calibration)
        .and_then(|unedited| unedited.with("", &[], DRAWS));
    let rows = found.expect("no cycle").rows;
    let bases: Vec<i64> = rows.iter().map(|row| row.step_ns / 1_000).collect();
    assert_eq!(bases, [140, 140, 190]);
}
