use trace::store::NewSlice;

use super::*;

#[test]
fn calls_that_put_work_on_a_device_are_launches() {
    let launches = [
        "cudaLaunchKernel",
        "cudaLaunchKernel_v7000",
        "cudaLaunchKernel_ptsz_v7000",
        "cudaLaunchKernelExC",
        "cuLaunchKernelEx",
        "cudaGraphLaunch_v10000",
        "cudaMemcpyAsync",
        "hipExtModuleLaunchKernel",
        "hipMemcpyWithStream",
    ];
    assert!(launches.iter().all(|call| is_launch(call)));
    let others = [
        "cudaLaunchHostFunc",
        "cudaStreamSynchronize",
        "cudaMalloc",
        "cudaGraphAddMemcpyNode",
        "aten::mm",
        "",
    ];
    assert!(!others.iter().any(|call| is_launch(call)));
}

fn starts(base: i64, hours: &[i64]) -> Trace {
    const HOUR: i64 = 3_600_000_000_000;
    let mut trace = Trace::default();
    trace.header.base_time_ns = base;
    for hour in hours {
        let start = base + hour * HOUR;
        trace.push(&NewSlice::new("kernel", "gemm", (0, 7), (start, start + 5)));
    }
    trace
}

#[test]
fn time_zero_is_lost_only_if_far_from_everything_else() {
    assert_eq!(lost_start(&starts(0, &[0, 1])), None);
    assert_eq!(lost_start(&starts(0, &[0, 100, 101])), Some(0));
    assert_eq!(lost_start(&starts(77, &[0, 100])), Some(77));
    assert_eq!(lost_start(&starts(0, &[0])), None);
    let trace = starts(77, &[0, 100]);
    assert_eq!(recorded(&trace).map(|(start, end)| end - start), Some(5));
    assert_eq!(recorded(&Trace::default()), None);
}

/// The calls of one step in order, each with its name and whether its device work was recorded.
type Calls<'a> = &'a [(&'a str, bool)];

const LAUNCH: &str = "cudaLaunchKernel";

/// Builds a trace with one step of 1,000 ns for each list of calls.
fn stepped(steps: &[Calls<'_>]) -> Trace {
    let mut trace = Trace::default();
    let mut id = 0;
    for (number, calls) in steps.iter().enumerate() {
        let at = 1_000 * number as i64;
        let name = format!("ProfilerStep#{number}");
        trace.push(&NewSlice::new("user_annotation", &name, (9, 9), (at, at + 1_000)));
        for (place, (name, is_there)) in calls.iter().enumerate() {
            let start = at + 2 * place as i64;
            id += 1;
            let correlation = Some(id);
            let call = NewSlice::new("cuda_runtime", name, (9, 9), (start, start + 1));
            trace.push(&NewSlice { correlation, ..call });
            if *is_there {
                let work = NewSlice::new("kernel", "gemm", (0, 7), (start + 1, start + 2));
                trace.push(&NewSlice { correlation, ..work });
            }
        }
    }
    trace
}

fn lacks(trace: &Trace) -> Vec<Option<Lack>> {
    let (links, frames) = (Links::new(trace), crate::facts::frames::build_frames(trace));
    steps(trace, || &links, || &frames).1.iter().map(|step| step.lack).collect()
}

#[test]
fn issue_24_only_the_tail_of_a_recording_loses_single_launches() {
    let full = vec![(LAUNCH, true); 300];
    let mut cut = full.clone();
    cut[299].1 = false;
    let mut odd = full.clone();
    odd[150].1 = false;
    assert_eq!(lacks(&stepped(&[&full, &full, &cut])), [None, None, Some(Lack::DeviceWork)]);
    // A call that lacks device work in every step, or in the middle of a step, does not mark the
    // end of a recording.
    assert_eq!(lacks(&stepped(&[&odd, &odd, &odd])), [None; 3]);
    assert_eq!(lacks(&stepped(&[&cut, &cut, &cut])), [None; 3]);
    // If more than one launch in a hundred is lost, the step is incomplete, wherever the lost
    // launches are.
    odd[10..14].fill((LAUNCH, false));
    assert_eq!(lacks(&stepped(&[&full, &odd, &full])), [None, Some(Lack::DeviceWork), None]);
}

#[test]
fn issue_24_captured_and_rowless_launches_are_not_lost() {
    let never: Calls<'_> = &[(LAUNCH, true), ("cudaMemsetAsync", false)];
    assert_eq!(lacks(&stepped(&[never, never])), [None; 2]);
    let captured: Calls<'_> = &[
        (LAUNCH, true),
        ("cudaStreamBeginCapture", false),
        (LAUNCH, false),
        (LAUNCH, false),
        ("cudaStreamEndCapture", false),
    ];
    assert_eq!(lacks(&stepped(&[captured])), [None]);
    let without: Calls<'_> = &[(LAUNCH, true), (LAUNCH, false), (LAUNCH, false)];
    assert_eq!(lacks(&stepped(&[without])), [Some(Lack::DeviceWork)]);
}

#[test]
fn issue_24_a_step_that_ends_with_the_recording_is_dropped() {
    let one: Calls<'_> = &[(LAUNCH, true)];
    let mut trace = stepped(&[one, one, &[]]);
    assert_eq!(lacks(&trace), [None; 3], "as long as the others");
    let last = trace.slices.duration.len() - 1;
    trace.slices.duration[last] = 50;
    assert_eq!(lacks(&trace), [None, None, Some(Lack::Launches)]);
}

#[test]
fn issue_24_earlier_work_within_the_first_step_marks_it() {
    let step: Calls<'_> = &[(LAUNCH, true), (LAUNCH, true)];
    for (start, lack) in [(2, Some(Lack::EarlierLaunches)), (-7, None), (1_003, None)] {
        let mut trace = stepped(&[step, step]);
        trace.push(&NewSlice::new("kernel", "early", (0, 8), (start, start + 1)));
        assert_eq!(lacks(&trace), [lack, None], "{start}");
    }
}

const HOST: (i64, i64) = (9, 9);

/// Builds operators and annotations of one thread, each 10 ns long, from (name, start).
fn host_rows(rows: &[(&str, i64)]) -> Trace {
    let mut trace = Trace::default();
    for (name, start) in rows {
        let category = if name.starts_with("Optimizer") { "user_annotation" } else { "cpu_op" };
        trace.push(&NewSlice::new(category, name, HOST, (*start, start + 10)));
    }
    trace
}

/// Returns the kind of annotation that delimits a trace's steps, and the spans of the steps.
fn steps_of(trace: &Trace) -> (Option<StepMark>, Vec<(i64, i64)>) {
    let (links, frames) = (Links::new(trace), crate::facts::frames::build_frames(trace));
    let (mark, steps) = steps(trace, || &links, || &frames);
    (mark, steps.iter().map(|step| (step.start, step.end)).collect())
}

#[test]
fn steps_without_profiler_steps_end_with_the_optimizer_step() {
    let trace = host_rows(&[
        ("Optimizer.zero_grad#SGD.zero_grad", 0),
        ("AddmmBackward0", 20),
        ("Optimizer.step#SGD.step", 40),
        ("Optimizer.zero_grad#SGD.zero_grad", 100),
        ("AddmmBackward0", 120),
        ("Optimizer.step#SGD.step", 140),
        ("AddmmBackward0", 220),
        ("Optimizer.step#SGD.step", 240),
        ("AddmmBackward0", 320),
        ("Optimizer.step#SGD.step", 340),
    ]);
    let steps = vec![(50, 150), (150, 250), (250, 350)];
    assert_eq!(steps_of(&trace), (Some(StepMark::OptimizerStep), steps));
}

#[test]
fn zero_grad_delimits_steps_where_the_optimizer_step_is_not_repeated() {
    let rows = [0, 100, 200, 300].map(|start| ("Optimizer.zero_grad#SGD.zero_grad", start));
    let steps = vec![(0, 100), (100, 200), (200, 300)];
    assert_eq!(steps_of(&host_rows(&rows)), (Some(StepMark::ZeroGrad), steps));
    assert_eq!(steps_of(&host_rows(&rows[..3])), (None, Vec::new()));
}

#[test]
fn several_optimizers_end_one_step_together() {
    let (mut rows, of_dense, of_sparse) =
        (Vec::new(), "Optimizer.step#Adam.step", "Optimizer.step#SparseAdam.step");
    for start in [0, 100, 200, 300] {
        rows.push(("AddmmBackward0", start));
        rows.extend([(of_dense, start + 20), (of_sparse, start + 40), (of_dense, start + 60)]);
    }
    let steps = vec![(70, 170), (170, 270), (270, 370)];
    assert_eq!(steps_of(&host_rows(&rows)), (Some(StepMark::OptimizerStep), steps));
}

#[test]
fn a_memset_of_no_bytes_has_lost_no_device_work() {
    let mut trace = Trace::default();
    for (id, start, end) in [(1, 0, 100), (2, 200, 310), (3, 400, 410), (4, 500, 590)] {
        let call = NewSlice::new("cuda_runtime", "cudaMemsetAsync", HOST, (start, end));
        trace.push(&NewSlice { correlation: Some(id), ..call });
        if id < 3 {
            let work = NewSlice::new("gpu_memset", "Memset (Device)", (0, 7), (end, end + 1));
            trace.push(&NewSlice { correlation: Some(id), ..work });
        }
    }
    let empty = empty_memsets(&trace, &arrived(&trace));
    // The third call is far shorter than the usual 110 ns, whereas the fourth is not.
    let names: Vec<i64> = empty.iter().map(|row| trace.slices.start(*row)).collect();
    assert_eq!(names, [400]);
}
