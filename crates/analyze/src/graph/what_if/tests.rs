use trace::store::{NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;

/// Builds an operator (row 0) that launches two kernels (rows 1 and 2) and waits for them (row 3).
/// The kernels are rows 4 and 5.
pub(crate) fn step() -> Trace {
    let mut trace = Trace::default();
    let rows = [
        ("cpu_op", "aten::mm", (9, 9), (0, 100), None),
        ("cuda_runtime", "cudaLaunchKernel", (9, 9), (10, 20), Some(1)),
        ("cuda_runtime", "cudaLaunchKernel", (9, 9), (30, 40), Some(2)),
        ("cuda_runtime", "cudaDeviceSynchronize", (9, 9), (50, 95), None),
        ("kernel", "gemm", (0, 7), (25, 65), Some(1)),
        ("kernel", "relu", (0, 7), (66, 86), Some(2)),
    ];
    for (category, name, track, span, correlation) in rows {
        let slice = NewSlice::new(category, name, track, span);
        trace.push(&NewSlice { correlation, ..slice });
    }
    trace
}

fn after(edit: &str) -> (i64, WhatIf) {
    let trace = step();
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&trace, WindowRule::All, &classifier)];
    let found = answer_questions(&JobFacts::new(&scopes), &[parse(edit).unwrap()]);
    (found.windows[0].new_window_ns, found)
}

#[test]
fn a_faster_kernel_shortens_what_waited_for_it() {
    assert_eq!(after("kernel=gemm x0.5").0, 80);
    assert_eq!(after("kernel=~^gemm$ x1").0, 100);
    assert_eq!(after("kernel=gemm x2").0, 140);
    // Without the first kernel, the second one begins when it is launched. The delay of 5 after the
    // first launch is kept.
    assert_eq!(after("kernel=gemm x0").0, 79);
}

#[test]
fn work_off_the_critical_path_saves_nothing() {
    let (window, found) = after("name=cudaLaunchKernel rank=0 x0.9");
    assert_eq!(window, 99);
    assert_eq!((found.edits[0].nodes, found.edits[0].old_ns), (2, 20));
    assert_eq!(after("kernel=nothing x0").1.edits[0].nodes, 0);
    let (_, found) = after("kernel=gemm earlier=1us");
    assert_eq!((found.edits[0].nodes, found.edits[0].changed), (1, 0));
    assert_eq!(after("launch_delay x0").0, 95);
    assert_eq!(after("op=aten::mm rank=1 x0").0, 100);
}

#[test]
fn actions_may_be_words() {
    assert_eq!(after("kernel=gemm overlap").0, 79);
    assert_eq!(after("kernel=gemm to=20ns").0, 80);
    assert_eq!(after("kernel=relu close-gap").0, 99);
    // The host does not wait any more, but the device is busy until 86.
    assert_eq!(after("name=cudaDeviceSynchronize unblock").0, 86);
}

#[test]
fn parts_sum_to_the_new_window() {
    let (window, found) = after("class=compute x0.25");
    let of_rank = found.parts.iter().filter(|part| part.rank == Some(0));
    assert_eq!(of_rank.clone().map(|part| part.new_duration_ns).sum::<i64>(), window);
    assert_eq!(of_rank.map(|part| part.duration_ns).sum::<i64>(), 100);
}

#[test]
fn a_wrong_edit_error_names_what_was_expected() {
    let check = |text: &str, expected: &str| {
        let said = parse(text).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    };
    check("", "expected SELECTOR… xFACTOR");
    check("kernel=gemm", "a factor at the end, such as x0.5, or unblock, overlap");
    check("kernel=gemm to=5", "a time with its unit");
    check("kernel=gemm earlier=-5ms", "a time with its unit");
    check("class=compute unblock", "a factor for a class");
    check("kernel=gemm x-1", "between 0 and 1000");
    check("kernel=gemm x1e300", "between 0 and 1000");
    check("x2", "kernel=~gemm x0.5");
    check("kernels=gemm x2", "kernel=, op=, name=");
    check("class=gemm x2", "compute, communication or memory");
    check("communication_wait x0", "what the last rank");
    check("kernel=~( x2", "pattern");
    check("rank=a x2", "rank=NUMBER");
    assert!(parse("name=\"Memcpy DtoH (Device -> Pageable)\" rank=3 x0").is_ok());
}
