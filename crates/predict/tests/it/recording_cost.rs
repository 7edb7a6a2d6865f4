//! Tests of the profiler overhead, which is derived from steps without the profiler.

use predict::calibration::price::Prices;
use predict::calibration::recording_cost::event_ns;
use predict::calibration::{Calibration, collect};
use predict::recording::Step;
use predict::simulate;

use crate::fixture::{HOST, Recording, by_hand, step_of};

fn calibrated(steps: &[Step], event_ns: f64) -> Calibration {
    let ranks: Vec<usize> = (0..steps[0].program.ranks.len()).collect();
    let mut found = Calibration { event_ns, ..Calibration::default() };
    steps.iter().for_each(|step| collect::add(&mut found, step, &ranks));
    found
}

/// Predicts the mean step time of all ranks from a calibration.
fn predicted(step: &Step, calibration: &Calibration) -> f64 {
    let setting = step.recorded.setting(&step.program);
    let costs = Prices::new(calibration).price(&step.program, &setting);
    let simulation = simulate::run(&step.program, &costs).expect("no cycle");
    let ranks = step.program.ranks.len();
    (0..ranks).map(|rank| simulation.step_ns(rank) as f64).sum::<f64>() / ranks as f64
}

/// Builds a step of 100 µs with five events on the host.
fn by_hand_step() -> Step {
    step_of(&[by_hand(&[
        ("user_annotation", "ProfilerStep#0", HOST, 0, 100, 0),
        ("cpu_op", "aten::linear", HOST, 10, 60, 0),
        ("cpu_op", "aten::addmm", HOST, 20, 50, 0),
        ("cuda_runtime", "cudaLaunchKernel", HOST, 30, 40, 1),
        ("cpu_op", "aten::view", HOST, 70, 90, 0),
        ("kernel", "gemm", (0, 7), 45, 55, 1),
    ])])
}

#[test]
fn predictions_exclude_the_profiler_overhead() {
    let steps = [by_hand_step()];
    assert_eq!(steps[0].recorded.ranks[0].events[0].iter().sum::<u32>(), 5);
    let found = event_ns(&steps, 90_000, |event_ns| calibrated(&steps, event_ns));
    let found = found.expect("a cost");
    assert!((found - 2_000.0).abs() < 2.0, "10 µs in five events: {found}");
    let calibration = calibrated(&steps, found);
    assert!((predicted(&steps[0], &calibration) - 90_000.0).abs() < 10.0);
    let again = Calibration::from_json(&calibration.to_json().expect("text")).expect("the same");
    assert_eq!(again, calibration);
    let mut merged = calibrated(&steps, 0.0);
    merged.merge(calibration);
    assert_eq!(merged.event_ns, found);
}

#[test]
fn contradictory_unrecorded_times_are_rejected() {
    let steps = [by_hand_step()];
    let of = |ns| event_ns(&steps, ns, |event_ns| calibrated(&steps, event_ns));
    assert_eq!(of(100_000).expect("no cost"), 0.0);
    assert_eq!(of(120_000).expect("no cost"), 0.0);
    let text = of(0).expect_err("a refusal").to_string();
    assert!(text.contains("expected a time above 0 ns, got 0 ns"), "{text}");
    // A negative step time must be rejected as well.
    let text = of(-5).expect_err("a refusal").to_string();
    assert!(text.contains("got -5 ns"), "{text}");
}

#[test]
fn recording_a_real_job_costs_its_host_time() {
    let Some(recording) = Recording::read("dlrm8/dlrm_kineto.tar.gz") else { return };
    let steps = [recording.step(0)];
    let ranks = &steps[0].recorded.ranks;
    let mean = ranks.iter().map(|rank| rank.step_ns).sum::<i64>() / ranks.len() as i64;
    let of = |ns| event_ns(&steps, ns, |event_ns| calibrated(&steps, event_ns));
    let found = of(mean * 9 / 10).expect("a cost");
    let (with, without) = (
        predicted(&steps[0], &calibrated(&steps, 0.0)),
        predicted(&steps[0], &calibrated(&steps, found)),
    );
    assert!((without / with - 0.9).abs() < 0.001, "{with} {without} {found}");
    assert!((100.0..2_000.0).contains(&found), "nanoseconds of an event: {found}");
    let text = of(1_000).expect_err("a refusal").to_string();
    assert!(text.contains("the stretches without an event take"), "{text}");
}
