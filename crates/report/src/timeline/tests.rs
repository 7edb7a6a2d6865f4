use analyze::classify::ClassRule;
use analyze::collectives::Collectives;
use analyze::{Classifier, WindowRule};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use trace::store::NewSlice;

use super::*;
use crate::TimelineSteps;

fn options(steps: TimelineSteps, events_max: usize) -> Options {
    Options { title: "t".into(), program: "p".into(), steps, events_max }
}

/// Creates a trace with steps of 100 ns. Each step has an operator, a runtime call inside it, and a
/// kernel.
fn trace(steps: i64) -> Trace {
    let mut trace = Trace::default();
    for step in 0..steps {
        let at = 1000 + 100 * step;
        let name = format!("ProfilerStep#{step}");
        trace.push(&NewSlice::new("user_annotation", &name, (9, 9), (at, at + 100)));
        trace.push(&NewSlice::new("cpu_op", "aten::mm", (9, 9), (at + 1, at + 40)));
        let mut call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (9, 9), (at + 2, at + 8));
        call.correlation = Some(step as u64 + 1);
        trace.push(&call);
        let mut kernel = NewSlice::new("kernel", "gemm", (0, 7), (at + 20, at + 90));
        kernel.correlation = Some(step as u64 + 1);
        trace.push(&kernel);
    }
    trace
}

fn timeline(trace: &Trace, options: &Options) -> Timeline {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(trace, WindowRule::Steps, &classifier)];
    let zero = Zero::new(&scopes, &Collectives::default());
    build_timeline(&scopes, &[(0, 3)], &zero, options).unwrap()
}

/// Decodes the variable-length integers of a packed text.
fn unpacked(text: &str) -> Vec<u64> {
    let (mut values, mut value, mut shift) = (Vec::new(), 0u64, 0);
    for byte in STANDARD.decode(text).unwrap() {
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            values.push(value);
            (value, shift) = (0, 0);
        }
    }
    values
}

#[test]
fn lanes_hold_stacks_and_kernels_point_to_their_calls() {
    let found = timeline(&trace(2), &options(TimelineSteps::Fitting, 100));
    let names: Vec<&str> = found.tracks.iter().map(|track| track.name.as_str()).collect();
    assert_eq!(names, ["thread 9", "device 0 stream 7"]);
    assert_eq!(found.lanes, [(0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 2)]);
    let label =
        |name: &str| found.labels.iter().position(|(text, ..)| text == name).unwrap() as u64;
    let values = unpacked(&found.events);
    let (step_0, step_1) = (label("ProfilerStep#0"), label("ProfilerStep#1"));
    assert_eq!(values[..6], [0, 100, step_0, 0, 100, step_1]);
    assert_eq!(values[6..12], [1, 39, label("aten::mm"), 61, 39, label("aten::mm")]);
    // The calls are events 4 and 5. The codes of these calls are the zigzag differences 8 and 2,
    // plus one.
    let gemm = label("gemm");
    assert_eq!(values[18..], [20, 70, gemm, 9, 0, 30, 70, gemm, 3, 0]);
    assert_eq!(unpacked(&found.marked), [6]);
    assert_eq!(found.event_count, 8);
}

#[test]
fn the_timeline_holds_as_many_steps_as_fit() {
    let trace = trace(5);
    let all = timeline(&trace, &options(TimelineSteps::Fitting, 100));
    assert_eq!((all.steps.len(), all.event_count, all.is_cut), (0, 20, false));
    let some = timeline(&trace, &options(TimelineSteps::Fitting, 11));
    assert_eq!((some.steps.as_slice(), some.event_count), ([0, 1].as_slice(), 8));
    let asked = timeline(&trace, &options(TimelineSteps::First(3), 1));
    assert_eq!((asked.steps.as_slice(), asked.event_count), ([0, 1, 2].as_slice(), 12));
    let named = timeline(&trace, &options(TimelineSteps::Numbered(3..9), 1));
    assert_eq!((named.steps.as_slice(), named.event_count), ([3, 4].as_slice(), 8));
    assert_eq!((named.start_ns, named.end_ns), (300, 500));
    let cut = timeline(&trace, &options(TimelineSteps::Fitting, 2));
    assert!(cut.is_cut && cut.event_count == 2, "{cut:?}");
}

#[test]
fn error_lists_the_existing_steps() {
    let trace = trace(5);
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&trace, WindowRule::Steps, &classifier)];
    let zero = Zero::new(&scopes, &Collectives::default());
    let asked = options(TimelineSteps::Numbered(7..9), 100);
    let problem = build_timeline(&scopes, &[], &zero, &asked).unwrap_err().to_string();
    assert_eq!(problem, "steps 7..9: expected some of 0 to 4, got none");
}
