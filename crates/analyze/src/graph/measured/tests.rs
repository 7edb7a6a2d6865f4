use trace::store::{NewSlice, SyncWait, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::interval::Interval;
use crate::facts::window::WindowRule;

/// Process and thread of a host row, or device and stream of a device row.
type Track = (i64, i64);

/// A trace under construction, to which tests add rows.
#[derive(Default)]
struct Sketch {
    trace: Trace,
    ids: u64,
}

impl Sketch {
    fn host(&mut self, category: &str, name: &str, track: Track, span: Interval) -> u32 {
        self.trace.push(&NewSlice::new(category, name, track, span))
    }

    /// Adds a call and the kernel that it launches, and returns the row of the kernel.
    fn kernel(&mut self, thread: Track, start: i64, stream: Track, span: Interval) -> u32 {
        self.ids += 1;
        let correlation = Some(self.ids);
        let call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", thread, (start, start + 2));
        self.trace.push(&NewSlice { correlation, ..call });
        let kernel = NewSlice::new("kernel", "gemm", stream, span);
        self.trace.push(&NewSlice { correlation, ..kernel })
    }

    /// Adds a call and its wait on a stream of a device, and returns their rows.
    fn wait(&mut self, name: &str, thread: Track, span: Interval, stream: Track) -> (u32, u32) {
        self.ids += 1;
        let correlation = Some(self.ids);
        let call = NewSlice::new("cuda_runtime", name, thread, span);
        let call = self.trace.push(&NewSlice { correlation, ..call });
        let sync = NewSlice::new("cuda_sync", "Wait", stream, span);
        let device = i32::try_from(stream.0).ok();
        let stream = i32::try_from(stream.1).ok();
        let row = self.trace.push(&NewSlice { correlation, device, stream, ..sync });
        (call, row)
    }

    fn graph(&self) -> MeasuredGraph {
        let classifier = Classifier::new(ClassRule::Category);
        let scope = Scope::new(&self.trace, WindowRule::All, &classifier);
        build_measured_graph(&[RankFacts::new(&scope)], &Collectives::default())
    }
}

/// Returns the pairs of rows that are joined by synchronization edges, as (source, target).
fn waits(graph: &MeasuredGraph) -> Vec<(u32, u32)> {
    let row = |node: NodeId| graph.origins[node.index()].row();
    let mut waits: Vec<_> = graph
        .graph
        .edges()
        .map(|(_, edge)| edge)
        .filter(|edge| edge.kind == EdgeKind::Synchronization)
        .filter_map(|edge| Some((row(edge.source)?, row(edge.target)?)))
        .collect();
    waits.sort_unstable();
    waits
}

const MAIN: Track = (900, 1);
const OTHER: Track = (901, 1);

#[test]
fn a_recorded_wait_of_a_stream_is_of_its_device() {
    let mut sketch = Sketch::default();
    // Streams 7 and 20 of both devices have work, and on device 1 stream 20 waits for stream 7.
    sketch.kernel(MAIN, 0, (0, 7), (5, 40));
    sketch.kernel(MAIN, 3, (0, 20), (8, 40));
    let a1 = sketch.kernel(MAIN, 6, (1, 7), (10, 50));
    let (_, wait) = sketch.wait("cudaStreamWaitEvent", MAIN, (9, 10), (1, 20));
    let stream = Some(7);
    sketch.trace.slices.sync.push(wait, SyncWait { stream, ..SyncWait::default() });
    let b1 = sketch.kernel(MAIN, 12, (1, 20), (55, 60));
    assert_eq!(waits(&sketch.graph()), [(a1, b1)]);
}

#[test]
fn a_recorded_wait_of_the_host_is_of_its_device() {
    for name in ["cudaStreamSynchronize", "cudaDeviceSynchronize"] {
        let mut sketch = Sketch::default();
        sketch.kernel(MAIN, 0, (0, 20), (5, 40));
        let b1 = sketch.kernel(MAIN, 3, (1, 20), (8, 30));
        let (call, wait) = sketch.wait(name, MAIN, (9, 60), (1, 20));
        sketch.trace.slices.sync.push(wait, SyncWait::default());
        assert_eq!(waits(&sketch.graph()), [(b1, call)], "{name}");
    }
}

#[test]
fn an_inferred_wait_is_for_devices_the_thread_used() {
    for name in ["cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"] {
        let mut sketch = Sketch::default();
        let a = sketch.kernel(MAIN, 0, (0, 7), (5, 30));
        sketch.kernel(OTHER, 0, (1, 7), (5, 40));
        let call = sketch.host("cuda_runtime", name, MAIN, (9, 60));
        assert_eq!(waits(&sketch.graph()), [(a, call)], "{name}");
    }
}

#[test]
fn threads_of_two_processes_hand_nothing_over() {
    const BACKWARD: &str = "autograd::engine::evaluate_function: MmBackward0";
    // In one process, the first operator hands over to the backward pass, which hands over to the
    // second operator. Different processes must not be joined.
    for (process, hand_offs) in [(900, 2), (901, 0)] {
        let mut sketch = Sketch::default();
        sketch.host("cpu_op", "aten::mm", MAIN, (0, 10));
        sketch.host("cpu_op", "aten::mm", MAIN, (30, 40));
        sketch.host("cpu_op", BACKWARD, (process, 2), (12, 20));
        assert_eq!(sketch.graph().evidence.hand_offs, hand_offs, "process {process}");
    }
}

#[test]
fn sequence_numbers_join_the_passes_of_old_recordings() {
    for (forward_thread, hand_offs) in [(1, 2), (0, 0)] {
        let mut sketch = Sketch::default();
        // The profiler's annotation of the step was recorded as an operator in 2021. The annotation
        // of a step does not count as work between the passes.
        sketch.host("Operator", "ProfilerStep#3", MAIN, (0, 50));
        for (name, track, span, thread) in
            [("aten::mm", MAIN, (0, 10), 0), ("MmBackward", (900, 2), (12, 20), forward_thread)]
        {
            let row = sketch.host("Operator", name, track, span);
            sketch.trace.slices.sequence.push(row, 7);
            sketch.trace.slices.forward_thread.push(row, thread);
        }
        sketch.host("Operator", "aten::add_", MAIN, (30, 40));
        assert_eq!(sketch.graph().evidence.hand_offs, hand_offs, "{forward_thread}");
    }
}

#[test]
fn an_unexplained_gap_waits_for_the_other_stream() {
    let mut sketch = Sketch::default();
    let ns = |us: i64| us * 1000;
    let span = |from: i64, to: i64| (ns(from), ns(to));
    // Another thread requests the wait, so the order of calls on this thread does not show it.
    sketch.kernel(MAIN, ns(1), (0, 7), span(10, 20));
    let transfer = sketch.kernel(MAIN, ns(4), (0, 20), span(10, 500));
    sketch.host("cuda_runtime", "cudaStreamWaitEvent", (900, 2), span(8, 9));
    let next = sketch.kernel(MAIN, ns(12), (0, 7), span(510, 600));
    assert_eq!(waits(&sketch.graph()), [(transfer, next)]);
    // Work that begins long after the other stream's work has ended did not wait for that work.
    sketch.kernel(MAIN, ns(14), (0, 20), span(510, 610));
    sketch.kernel(MAIN, ns(16), (0, 7), span(700, 710));
    assert_eq!(waits(&sketch.graph()), [(transfer, next)]);
}

/// Returns the time per category on the critical path of the only rank.
fn spent(trace: &Trace) -> Vec<(PathCategory, i64)> {
    let scope = Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let scopes = [scope];
    let job = crate::facts::job::JobFacts::new(&scopes);
    let path = &job.paths().ranks[0];
    path.parts.iter().map(|part| (part.category, part.duration_ns)).collect()
}

/// Returns the length of the window after an edit has been applied.
fn after(trace: &Trace, edit: &str) -> i64 {
    let scopes = [Scope::new(trace, WindowRule::All, &Classifier::new(ClassRule::Category))];
    let edit = crate::graph::what_if::parse(edit).unwrap();
    crate::graph::what_if::answer_questions(&crate::facts::job::JobFacts::new(&scopes), &[edit])
        .windows[0]
        .new_window_ns
}

const FETCH: &str = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__";

#[test]
fn a_batch_comes_when_the_thread_that_pins_it_is_done() {
    const PINS: Track = (900, 2);
    let mut sketch = Sketch::default();
    sketch.host("cpu_op", "aten::zero", MAIN, (0, 10));
    sketch.host("user_annotation", FETCH, MAIN, (10, 60));
    sketch.host("cpu_op", "aten::mm", MAIN, (60, 100));
    sketch.host("cpu_op", "aten::pin_memory", PINS, (30, 50));
    // After the fetch, the loader thread pins the next batch, and nothing waits for that.
    sketch.host("cpu_op", "aten::pin_memory", PINS, (70, 110));
    sketch.host("cpu_op", "aten::add", MAIN, (100, 120));
    let trace = &sketch.trace;
    assert_eq!(sketch.graph().evidence.hand_offs, 1);
    // The path contains 30 until pinning began, 20 of pinning, and 10 until the batch was returned.
    let expected = [(PathCategory::HostOperator, 60), (PathCategory::DataLoading, 60)];
    assert_eq!(spent(trace), expected);
    // Without the pinning, the batch would arrive 20 earlier. Without any fetch, it would arrive 50
    // earlier.
    assert_eq!(after(trace, "name=aten::pin_memory x0"), 100);
    assert_eq!(after(trace, &format!("name={FETCH} unblock")), 80);
    assert_eq!(after(trace, "data_loading x0"), 70);
}

#[test]
fn python_frames_reveal_a_pinning_thread() {
    let frame = |id: u32, parent: &str, tid: u32, (start, end): (i64, i64), name: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"python_function\",\"name\":\"{name}\",\"pid\":9,\"tid\":{tid},\
             \"ts\":{start},\"dur\":{},\"args\":{{\"Python id\":{id},\"Python parent id\":{parent}}}}}",
            end - start
        )
    };
    let row = |category: &str, (start, end): (i64, i64), name: &str| {
        format!(
            "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":\"{name}\",\"pid\":9,\"tid\":1,\
             \"ts\":{start},\"dur\":{}}}",
            end - start
        )
    };
    let rows = [
        row("user_annotation", (10, 60), FETCH),
        row("cpu_op", (60, 100), "aten::mm"),
        frame(
            1,
            "null",
            2,
            (0, 120),
            "torch/utils/data/_utils/pin_memory.py(17): _pin_memory_loop",
        ),
        frame(2, "1", 2, (40, 50), "queue.py(122): put"),
        frame(3, "1", 2, (80, 90), "queue.py(122): put"),
    ];
    let text = format!("{{\"traceEvents\": [{}]}}", rows.join(","));
    let trace = trace::open::parse(text.as_bytes()).unwrap();
    let scope = Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category));
    let graph = build_measured_graph(&[RankFacts::new(&scope)], &Collectives::default());
    let hand_off = graph.graph.edges().find(|(_, edge)| edge.kind == EdgeKind::Data).unwrap().1;
    let row = |node: NodeId| graph.origins[node.index()].row();
    assert_eq!((row(hand_off.source), row(hand_off.target)), (Some(3), Some(0)));
}

#[test]
fn python_frame_time_has_its_own_category() {
    let text = br#"{"traceEvents": [
        {"ph":"X","cat":"python_function","name":"train.py(3): step","pid":9,"tid":1,"ts":0,"dur":80,
         "args":{"Python id":1}},
        {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":1,"ts":10,"dur":20},
        {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":1,"ts":70,"dur":10},
        {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":1,"ts":90,"dur":10}]}"#;
    let trace = trace::open::parse(text).unwrap();
    let expected = [
        (PathCategory::HostOperator, 40_000),
        (PathCategory::PythonFrame, 50_000),
        (PathCategory::UntracedHost, 10_000),
    ];
    assert_eq!(spent(&trace), expected);
    // The edit halves the pauses of 10 µs and 40 µs that lie in Python frames.
    assert_eq!(after(&trace, "python_frame x0.5"), 75_000);
    assert_eq!(after(&trace, "untraced_host x0"), 90_000);
}

#[test]
fn issue_24_stacks_of_operators_count_as_frames() {
    let text = br#"{"traceEvents": [
        {"ph":"X","cat":"Operator","name":"aten::mm","pid":9,"tid":1,"ts":10,"dur":20,
         "args":{"Call stack":"model.py(7): forward;train.py(3): step"}},
        {"ph":"X","cat":"Operator","name":"aten::mm","pid":9,"tid":1,"ts":70,"dur":10,
         "args":{"Call stack":"loss.py(2): loss;train.py(3): step"}},
        {"ph":"X","cat":"Operator","name":"aten::mm","pid":9,"tid":1,"ts":90,"dur":10,"args":{}}]}"#;
    let trace = trace::open::parse(text).unwrap();
    let expected = [
        (PathCategory::HostOperator, 40_000),
        (PathCategory::PythonFrame, 40_000),
        (PathCategory::UntracedHost, 10_000),
    ];
    assert_eq!(spent(&trace), expected);
    let scopes = [Scope::new(&trace, WindowRule::All, &Classifier::new(ClassRule::Category))];
    let job = crate::facts::job::JobFacts::new(&scopes);
    let path = &job.paths().ranks[0];
    let python = path.contributors.iter().find(|one| one.category == PathCategory::PythonFrame);
    assert_eq!(python.unwrap().name, "train.py(3): step");
    let rows = path.rows(job.path_job());
    let row = rows.iter().find(|row| row.category == PathCategory::PythonFrame).unwrap();
    assert_eq!((&*row.name, row.row), ("train.py(3): step", None));
}
