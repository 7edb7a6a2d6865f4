use trace::store::{NewSlice, SyncWait, Trace};

use super::*;
use crate::classify::{ClassRule, Classifier};
use crate::window::WindowRule;

type Track = (i64, i64);

/// A trace under construction.
#[derive(Default)]
struct Sketch {
    trace: Trace,
    ids: u64,
}

impl Sketch {
    fn host(&mut self, category: &str, name: &str, (track, span): (Track, Track)) -> u32 {
        self.trace.push(&NewSlice::new(category, name, track, span))
    }

    /// A call and the kernel it launches; the row of the kernel.
    fn kernel(&mut self, thread: Track, start: i64, stream: Track, span: Track) -> u32 {
        self.ids += 1;
        let correlation = Some(self.ids);
        let call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", thread, (start, start + 2));
        self.trace.push(&NewSlice { correlation, ..call });
        let kernel = NewSlice::new("kernel", "gemm", stream, span);
        self.trace.push(&NewSlice { correlation, ..kernel })
    }

    /// A call and the row of its wait on a stream of a device.
    fn wait(&mut self, name: &str, (thread, span): (Track, Track), stream: Track) -> (u32, u32) {
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
        of(&[RankFacts::new(&scope)], &Collectives::default())
    }
}

/// The rows joined by synchronization, as (source, target).
fn waits(graph: &MeasuredGraph) -> Vec<(u32, u32)> {
    let row = |node: NodeId| graph.origins[node.index()].row;
    let mut waits: Vec<_> = graph
        .graph
        .edges()
        .iter()
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
    // Streams 7 and 20 of both devices work; on device 1, 20 waits for 7.
    sketch.kernel(MAIN, 0, (0, 7), (5, 40));
    sketch.kernel(MAIN, 3, (0, 20), (8, 40));
    let a1 = sketch.kernel(MAIN, 6, (1, 7), (10, 50));
    let (_, wait) = sketch.wait("cudaStreamWaitEvent", (MAIN, (9, 10)), (1, 20));
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
        let (call, wait) = sketch.wait(name, (MAIN, (9, 60)), (1, 20));
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
        let call = sketch.host("cuda_runtime", name, (MAIN, (9, 60)));
        assert_eq!(waits(&sketch.graph()), [(a, call)], "{name}");
    }
}

#[test]
fn threads_of_two_processes_hand_nothing_over() {
    const BACKWARD: &str = "autograd::engine::evaluate_function: MmBackward0";
    // In one process the first operator hands over to the backward pass, and that to the second.
    for (process, hand_offs) in [(900, 2), (901, 0)] {
        let mut sketch = Sketch::default();
        sketch.host("cpu_op", "aten::mm", (MAIN, (0, 10)));
        sketch.host("cpu_op", "aten::mm", (MAIN, (30, 40)));
        sketch.host("cpu_op", BACKWARD, ((process, 2), (12, 20)));
        assert_eq!(sketch.graph().evidence.hand_offs, hand_offs, "process {process}");
    }
}

#[test]
fn sequence_numbers_join_the_passes_of_old_recordings() {
    for (forward_thread, hand_offs) in [(1, 2), (0, 0)] {
        let mut sketch = Sketch::default();
        // The profiler's own annotation, then an operator, is no work between the passes.
        sketch.host("Operator", "ProfilerStep#3", (MAIN, (0, 50)));
        for (name, track, span, thread) in
            [("aten::mm", MAIN, (0, 10), 0), ("MmBackward", (900, 2), (12, 20), forward_thread)]
        {
            let row = sketch.host("Operator", name, (track, span));
            sketch.trace.slices.sequence.push(row, 7);
            sketch.trace.slices.forward_thread.push(row, thread);
        }
        sketch.host("Operator", "aten::add_", (MAIN, (30, 40)));
        assert_eq!(sketch.graph().evidence.hand_offs, hand_offs, "{forward_thread}");
    }
}

#[test]
fn a_gap_no_launch_explains_is_a_wait_for_the_other_stream() {
    let mut sketch = Sketch::default();
    let ns = |us: i64| us * 1000;
    let span = |from: i64, to: i64| (ns(from), ns(to));
    // The other thread asks for the wait, so the order of calls on this one does not tell it.
    sketch.kernel(MAIN, ns(1), (0, 7), span(10, 20));
    let transfer = sketch.kernel(MAIN, ns(4), (0, 20), span(10, 500));
    sketch.host("cuda_runtime", "cudaStreamWaitEvent", ((900, 2), span(8, 9)));
    let next = sketch.kernel(MAIN, ns(12), (0, 7), span(510, 600));
    assert_eq!(waits(&sketch.graph()), [(transfer, next)]);
    // Work that begins long after the other stream's has ended did not wait for it.
    sketch.kernel(MAIN, ns(14), (0, 20), span(510, 610));
    sketch.kernel(MAIN, ns(16), (0, 7), span(700, 710));
    assert_eq!(waits(&sketch.graph()), [(transfer, next)]);
}
