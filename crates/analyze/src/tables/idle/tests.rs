use trace::store::{NewSlice, Trace};

use super::DeviceCause::*;
use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::interval::Interval;
use crate::facts::tree;
use crate::facts::window::WindowRule;
use crate::tables::breakdown;

/// Process and thread of a host row, or device and stream of a device row.
type Track = (i64, i64);

const MAIN: Track = (900, 901);

/// A trace under construction, with times in microseconds.
#[derive(Default)]
struct Sketch {
    trace: Trace,
    launches: u64,
}

impl Sketch {
    fn host(&mut self, category: &str, name: &str, span: Interval) -> &mut Self {
        let span = (span.0 * 1000, span.1 * 1000);
        self.trace.push(&NewSlice::new(category, name, MAIN, span));
        self
    }

    /// Adds a call of the main thread and the kernel that it launches.
    fn kernel(&mut self, call: Interval, stream: Track, span: Interval) -> &mut Self {
        self.launches += 1;
        let correlation = Some(self.launches);
        for (category, name, track, span) in
            [("cuda_runtime", "cudaLaunchKernel", MAIN, call), ("kernel", "gemm", stream, span)]
        {
            let span = (span.0 * 1000, span.1 * 1000);
            self.trace
                .push(&NewSlice { correlation, ..NewSlice::new(category, name, track, span) });
        }
        self
    }

    fn orphan(&mut self, stream: Track, span: Interval) -> &mut Self {
        let span = (span.0 * 1000, span.1 * 1000);
        self.trace.push(&NewSlice::new("kernel", "gemm", stream, span));
        self
    }

    /// Returns the idle causes of device 0 in microseconds, after checking their sum against the
    /// breakdown.
    fn causes(&self) -> Vec<(DeviceCause, i64)> {
        let scope = self.scope(WindowRule::All);
        let idle = compute_idle_time(&scope, &tree::build(&self.trace), &IdleSettings::USUAL);
        sums_match(&scope, &idle);
        let of_first = idle.devices.iter().filter(|row| row.device == 0);
        of_first.map(|row| (row.cause, row.idle_ns / 1000)).collect()
    }

    fn scope(&self, rule: WindowRule) -> Scope<'_> {
        Scope::new(&self.trace, rule, &Classifier::new(ClassRule::Category))
    }
}

fn sums_match(scope: &Scope<'_>, idle: &Idle) {
    for device in breakdown::by_device(scope) {
        let rows = idle.devices.iter().filter(|row| Some(row.device) == device.device);
        assert_eq!(rows.map(|row| row.idle_ns).sum::<i64>(), device.idle_ns);
    }
}

#[test]
fn a_gap_is_split_by_what_the_launching_thread_did() {
    let mut sketch = Sketch::default();
    sketch
        .kernel((0, 2), (0, 7), (2, 10))
        .host("cuda_runtime", "cudaStreamSynchronize", (3, 12))
        .host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter", (15, 25))
        .host("cpu_op", "aten::stack", (16, 20))
        .host("cpu_op", "aten::mm", (30, 50))
        .kernel((40, 43), (0, 7), (47, 60));
    // The gap consists, in µs, of sync from 10, untraced from 12, input from 15, untraced from 25,
    // `mm` from 30, launch from 40, and delay from 43 to 47.
    let causes = sketch.causes();
    let expected = [
        (SyncDrain, 2),
        (Input, 10),
        (CpuWork, 10),
        (Runtime, 3),
        (Untraced, 8),
        (LaunchDelay, 4),
        (Head, 2),
    ];
    assert_eq!(causes, expected);
    let scope = sketch.scope(WindowRule::All);
    let idle = compute_idle_time(&scope, &tree::build(&sketch.trace), &IdleSettings::USUAL);
    let after_sync = idle.devices.iter().map(|row| row.after_sync_ns / 1000);
    assert_eq!(after_sync.sum::<i64>(), 37);
    let top = idle.owners.iter().take(2).map(|row| row.owner.as_deref().unwrap());
    assert_eq!(
        top.collect::<Vec<_>>(),
        ["enumerate(DataLoader)#_SingleProcessDataLoaderIter", "aten::mm"]
    );
    let seen: Vec<_> = idle.gaps.iter().map(|gap| (gap.cause, gap.idle_ns / 1000)).collect();
    assert_eq!(seen, [(Head, 2), (Input, 37)]);
}

#[test]
fn work_launched_before_the_gap_waits_for_the_device() {
    let mut sketch = Sketch::default();
    sketch.kernel((0, 2), (0, 7), (2, 10)).kernel((3, 5), (0, 7), (20, 30)).kernel(
        (6, 8),
        (0, 7),
        (70, 80),
    );
    assert_eq!(sketch.causes(), [(KernelWait, 10), (Dependency, 40), (Head, 2)]);
}

#[test]
fn work_without_a_launch_is_unlinked_and_the_tail_is_its_own() {
    let mut sketch = Sketch::default();
    sketch.orphan((0, 7), (0, 10)).orphan((0, 7), (15, 20)).host("cpu_op", "aten::mm", (0, 30));
    assert_eq!(sketch.causes(), [(Unlinked, 5), (Tail, 10)]);
}

#[test]
fn an_idle_stream_of_a_busy_device_is_no_gap_of_the_device() {
    let mut sketch = Sketch::default();
    sketch
        .kernel((0, 1), (0, 7), (0, 10))
        .kernel((2, 3), (0, 20), (5, 40))
        .kernel((20, 21), (0, 7), (30, 50))
        .kernel((20, 21), (1, 7), (25, 50));
    assert_eq!(sketch.causes(), []);
    let scope = sketch.scope(WindowRule::All);
    let idle = compute_idle_time(&scope, &tree::build(&sketch.trace), &IdleSettings::USUAL);
    let rows = idle.streams.iter();
    let seen: Vec<_> =
        rows.map(|row| (row.device, row.stream, row.cause, row.idle_ns / 1000)).collect();
    let expected = [
        (0, 7, StreamCause::HostWait, 20),
        (0, 20, StreamCause::Head, 5),
        (0, 20, StreamCause::Tail, 10),
        (1, 7, StreamCause::Head, 25),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_row_inside_another_of_its_stream_makes_no_negative_gap() {
    let mut sketch = Sketch::default();
    sketch.orphan((0, 7), (0, 50)).orphan((0, 7), (10, 20)).orphan((0, 7), (55, 60));
    let scope = sketch.scope(WindowRule::All);
    let idle = compute_idle_time(&scope, &tree::build(&sketch.trace), &IdleSettings::USUAL);
    let row = &idle.streams[0];
    assert_eq!((row.cause, row.gap_count, row.idle_ns), (StreamCause::Unlinked, 1, 5000));
}

#[test]
fn gaps_at_the_edge_of_whole_steps_are_labelled_by_what_lies_outside() {
    let mut sketch = Sketch::default();
    for step in 0..4 {
        let begin = step * 100;
        sketch
            .host("user_annotation", &format!("ProfilerStep#{step}"), (begin, begin + 100))
            .host("cpu_op", "aten::copy_", (begin, begin + 50))
            .kernel((begin + 50, begin + 52), (0, 7), (begin + 54, begin + 90));
    }
    // The first step contains work of an unknown call, and the last step a call whose work was
    // lost.
    sketch.orphan((0, 7), (60, 61)).host("cuda_runtime", "cudaLaunchKernel", (395, 396));
    let scope = sketch.scope(WindowRule::Steps);
    assert_eq!((scope.window.start, scope.window.end), (100_000, 300_000));
    let idle = compute_idle_time(&scope, &tree::build(&sketch.trace), &IdleSettings::USUAL);
    sums_match(&scope, &idle);
    let seen: Vec<_> = idle.devices.iter().map(|row| (row.cause, row.idle_ns / 1000)).collect();
    assert_eq!(seen, [(CpuWork, 100), (Runtime, 4), (Untraced, 20), (LaunchDelay, 4)]);
}

#[test]
fn python_frames_fill_time_without_operators() {
    let text = br#"{"traceEvents": [
        {"ph":"X","cat":"python_function","name":"train.py(3): step","pid":1,"tid":2,"ts":0,"dur":100,
         "args":{"Python id":1}},
        {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":5,"dur":5,"args":{"correlation":1}},
        {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":2,"ts":50,"dur":2,
         "args":{"correlation":2}},
        {"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":52,"dur":50,
         "args":{"correlation":2}}]}"#;
    let sketch = Sketch { trace: trace::open::parse(text).unwrap(), launches: 0 };
    assert_eq!(sketch.causes(), [(CpuWork, 40), (Runtime, 2), (Head, 5)]);
}

#[test]
fn an_empty_trace_has_no_idle_rows() {
    let sketch = Sketch::default();
    assert_eq!(sketch.causes(), []);
}

#[test]
fn each_gap_inside_many_nested_operators_has_the_innermost_as_its_owner() {
    const DEEP: i64 = 20_000;
    let mut sketch = Sketch::default();
    for at in 0..DEEP {
        let name = if at == DEEP - 1 { "aten::mm" } else { "aten::outer" };
        sketch.host("cpu_op", name, (at, 100 * DEEP - at));
    }
    for at in 0..DEEP {
        let start = DEEP + 40 * at;
        sketch.kernel((start, start + 1), (0, 7), (start + 1, start + 10));
    }
    let scope = sketch.scope(WindowRule::All);
    let idle = compute_idle_time(&scope, &tree::build(&sketch.trace), &IdleSettings::USUAL);
    sums_match(&scope, &idle);
    let owned = idle.owners.iter().find(|row| row.cause == CpuWork).expect("work");
    assert_eq!((owned.owner.as_deref(), owned.idle_ns), (Some("aten::mm"), (DEEP - 1) * 30_000));
}
