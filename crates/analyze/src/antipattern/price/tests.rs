use trace::store::{NewSlice, Trace};

use super::*;
use crate::classify::{ClassRule, Classifier};
use crate::collectives;
use crate::graph::measured;
use crate::window::WindowRule;

/// An operator (row 0) launches two kernels (1, 2) and waits (3); the kernels are rows 4 and 5.
fn step() -> Trace {
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

fn check(edits: &[(&[u32], Action)], saving: i64) {
    let trace = step();
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [Scope::new(&trace, WindowRule::All, &classifier)];
    let measured = measured::of(&scopes, &collectives::of(&scopes));
    let mut pricer = Pricer::new(&scopes, &measured);
    let edits: Vec<Edit> =
        edits.iter().map(|(rows, action)| Edit::new(0, rows.to_vec(), *action)).collect();
    assert_eq!(pricer.saving(&edits), saving, "{edits:?}");
    // Nothing of it is left.
    assert_eq!(pricer.saving(&[]), 0);
    assert_eq!(pricer.saving(&edits), saving, "{edits:?}, again");
}

#[test]
fn a_faster_kernel_saves_what_waited_for_it() {
    check(&[(&[4], Action::Scale(0.5))], 20);
    check(&[(&[4], Action::ShortenTo(20))], 20);
    check(&[(&[4], Action::ShortenTo(50))], 0);
    // The second kernel then waits for its launch.
    check(&[(&[4], Action::Overlap)], 21);
}

#[test]
fn a_host_that_does_not_wait_ends_with_the_device() {
    check(&[(&[3], Action::Unblock)], 14);
    check(&[(&[1], Action::Unblock)], 0);
}

#[test]
fn a_gap_that_closes_saves_its_length() {
    check(&[(&[5], Action::CloseGap)], 1);
}

#[test]
fn edits_are_made_together_and_each_row_once() {
    check(&[(&[4], Action::Scale(0.5)), (&[5], Action::Scale(0.5))], 30);
    check(&[(&[4, 4], Action::Scale(0.5))], 20);
}
