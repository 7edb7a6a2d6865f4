//! Tests of prediction intervals, which cover variation of samples, steps and runs and the errors
//! of scaled kernels. The tests also cover the gain of a step from faster parts.

use predict::calibration::{Calibration, Key, WorkSamples, collect, runs};
use predict::prediction::next::{self, Subject};
use predict::prediction::{self, Draws};
use predict::program::{
    Action, Call, Mark, MarkKind, Overhead, Program, Rank, Returns, Segment, Stream, Thread, Work,
    WorkKind,
};
use trace::store::StringId;

use crate::edits::step;

const DRAWS: Draws = Draws::new(400, 0);

/// Builds a step that launches one matrix product of a batch and waits for it.
fn product(batch: u64) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    let op = program.names.intern("mm");
    let detail = program.names.intern(&detail(batch));
    let work = Work {
        name: program.names.intern("k"),
        kind: WorkKind::Kernel,
        stream: 0,
        op,
        detail,
        shape: None,
        bytes: None,
        behind: None,
        after: Vec::new(),
        collective: None,
        parts: Vec::new(),
        scale: 1.0,
        is_launched: true,
        held_ns: 0,
        repeated: None,
    };
    let cost = Segment { overhead: Overhead::RuntimeCall, op, detail: StringId::default() };
    let call = |launches: Vec<u32>, awaits: Vec<u32>, returns| {
        Action::Call(Call { cost, launches, awaits, room: None, returns })
    };
    let actions = vec![
        Action::Begin(Mark::new(op, MarkKind::Operator)),
        call(vec![0], Vec::new(), Returns::AtOnce),
        call(Vec::new(), vec![0], Returns::AfterAwaited),
        Action::End,
    ];
    let threads = vec![Thread { pid: 1, tid: 1, actions }];
    let streams = vec![Stream { device: 0, number: 7 }];
    program.ranks.push(Rank { threads, streams, works: vec![work], ..Rank::default() });
    program
}

fn detail(batch: u64) -> String {
    format!("{batch}x8 float; {} FLOP, {} B", 100 * batch, batch)
}

/// Builds a calibration of products of three batch sizes with the given times.
fn calibration(took: [i64; 3]) -> Calibration {
    let mut calibration = Calibration::default();
    for (batch, ns) in [512, 1024, 2048].into_iter().zip(took) {
        let key = Key { class: WorkKind::Kernel, name: "k".to_owned(), detail: detail(batch) };
        calibration.works.insert(key, vec![ns].into());
    }
    calibration
}

/// Returns the low end, median and high end of a predicted step in microseconds.
fn interval(batch: u64, calibration: &Calibration) -> (i64, i64, i64) {
    let found =
        prediction::predict_never_run(&product(batch), calibration, DRAWS).expect("no cycle");
    let row = &found.rows[0];
    (row.low_ns / 1_000, row.median_ns / 1_000, row.high_ns / 1_000)
}

#[test]
fn intervals_of_scaled_kernels_use_leave_one_batch_out_errors() {
    let exact = calibration([512_000, 1_024_000, 2_048_000]);
    assert_eq!(interval(8192, &exact), (8192, 8192, 8192));
    // The middle shape takes 30 % more, which is e^0.262 times the time scaled from the other two.
    // The middle shape is the nearer neighbor of the other two, with a weight of 0.79, so they take
    // only e^-0.207 of their scaled times. The price is 8783 µs. Scaling factors have a mean of 1,
    // weighted by expected time: 0.244 · 1.394 + 0.756 · 0.873. A median of 1 would put the
    // interval above the price, because two of the three shapes take less than scaled.
    let bent = calibration([512_000, 1_331_000, 2_048_000]);
    assert_eq!(interval(8192, &bent), (7665, 7665, 12_248));
    // A kernel is not scaled if its size was recorded or lies between two recorded sizes.
    let (low, _, high) = interval(1500, &bent);
    assert_eq!(low, high);
    assert_eq!(interval(1024, &bent), (1331, 1331, 1331));
}

/// Builds a step of one operator that the host computes.
fn computed_by_host(sizes: &str) -> Program {
    let mut program = Program::default();
    program.names.intern("");
    let op = program.names.intern("aten::relu");
    let detail = program.names.intern(sizes);
    let segment = Segment { overhead: Overhead::HostOnly, op, detail };
    let mark = Action::Begin(Mark::new(op, MarkKind::Operator));
    let threads =
        vec![Thread { pid: 1, tid: 1, actions: vec![mark, Action::Host(segment), Action::End] }];
    program.ranks.push(Rank { threads, ..Rank::default() });
    program
}

#[test]
fn operators_that_the_host_computes_grow_with_their_tensors() {
    let mut calibration = Calibration::default();
    let mut add = |name: &str, sizes: &str, ns: i64| {
        let key =
            Key { class: Overhead::HostOnly, name: name.to_owned(), detail: sizes.to_owned() };
        calibration.overheads.insert(key, vec![ns; 3]);
    };
    add("aten::relu", "64x8 float, Scalar", 1_000);
    add("aten::t", "8x8 float", 10);
    let predict = |sizes: &str, calibration: &Calibration| {
        let program = computed_by_host(sizes);
        prediction::predict_never_run(&program, calibration, DRAWS).unwrap().rows[0].clone()
    };
    // Of the 1,000 ns, 10 ns are those of an operator that computes nothing.
    let grown = predict("256x8 float", &calibration);
    assert_eq!((grown.step_ns, grown.modeled_pct), (3_970, 100.0));
    assert!(grown.low_ns < 2_300 && 6_500 < grown.high_ns, "{grown:?}");
    // Another spelling of the same sizes does not change the time.
    let same = predict("64x8 float", &calibration);
    assert_eq!((same.step_ns, same.measured_pct), (1_000, 100.0));
    // A host that launches kernels does not compute, so its time does not depend on sizes.
    let mut launching = calibration.clone();
    let key = Key { class: WorkKind::Kernel, name: "k".to_owned(), detail: String::new() };
    launching.works.insert(key, WorkSamples::from(vec![5]));
    assert_eq!(predict("256x8 float", &launching).step_ns, 1_000);
}

#[test]
fn run_factors_default_to_step_factors() {
    let mut noisy = calibration([512_000, 1_024_000, 2_048_000]);
    noisy.work_factors = vec![0.9, 1.0, 1.1];
    // Step and run factors combine to nine products. The smallest, 0.81, and the largest, 1.21,
    // each make up a ninth of the draws, and the median of the nine is 0.99.
    assert_eq!(interval(1024, &noisy), (829, 1013, 1239));
}

/// Builds a recording in which a product took the given nanoseconds in each step.
fn recording(steps: &[i64]) -> Calibration {
    let mut calibration = Calibration::default();
    let key = Key { class: WorkKind::Kernel, name: "k".to_owned(), detail: detail(1024) };
    calibration.works.insert(key, steps.to_vec().into());
    calibration.recordings = vec![steps.len() as u32];
    calibration
}

fn step_ns(calibration: &Calibration) -> i64 {
    prediction::predict_never_run(&product(1024), calibration, DRAWS).expect("no cycle").rows[0]
        .step_ns
}

#[test]
fn a_single_disturbed_step_does_not_change_prices() {
    // In two of five steps, another program ran on the same core.
    let disturbed = recording(&[1_000_000, 2_700_000, 1_010_000, 990_000, 1_900_000]);
    assert_eq!(step_ns(&disturbed), 1_010_000);
    // Two works of one kind differ within each step, because caches are cold or warm. The mean of
    // the two times is the price.
    let samples = vec![1_000_000, 3_000_000, 1_000_000, 3_000_000, 9_000_000, 3_000_000];
    let mut paired = recording(&[0]);
    for found in paired.works.values_mut() {
        *found = WorkSamples::default();
        (0..).zip(&samples).for_each(|(at, ns)| found.push(at / 2, *ns));
    }
    paired.recordings = vec![3];
    assert_eq!(step_ns(&paired), 2_000_000);
}

#[test]
fn repeated_recordings_give_run_factors() {
    let mut twice = recording(&[1_000_000, 1_000_000, 1_300_000]);
    assert_eq!(runs::factors(&twice), [0.0; 0]);
    twice.merge(recording(&[1_100_000, 1_050_000, 1_100_000]));
    assert_eq!((twice.recordings.as_slice(), twice.step_count()), ([3, 3].as_slice(), 6));
    // The price is the mean over runs of the undisturbed step, rather than the median of all steps.
    assert_eq!(step_ns(&twice), 1_050_000);
    // Each recording differs from the mean by 1/21. The factors are widened by √3, because two
    // recordings lie closer to their own mean than a third run would.
    let factors = runs::factors(&twice);
    let widened: Vec<f64> = factors.iter().map(|one| (one - 1.0) * 21.0 / 3f64.sqrt()).collect();
    assert!((widened[0] + 1.0).abs() < 1e-9 && (widened[1] - 1.0).abs() < 1e-9, "{factors:?}");
    // Disturbed steps are drawn as step factors. Disturbed steps do not make the whole run slow.
    twice.work_factors = vec![1.0, 1.0, 1.3, 1.0];
    assert_eq!(interval(1024, &twice), (963, 1136, 1477));
    // A recording of other work belongs to no group, and two recordings of different batch sizes do
    // not form one.
    twice.merge(calibration([512_000, 1_024_000, 2_048_000]));
    assert_eq!(runs::factors(&twice).len(), 2);
}

#[test]
fn a_calibration_comes_back_from_its_file_with_steps_and_recordings() {
    let mut twice = recording(&[1_000_000, 1_000_000, 1_300_000]);
    twice.merge(recording(&[1_100_000, 1_050_000]));
    let text = twice.to_json().expect("figures");
    assert_eq!(Calibration::from_json(&text).expect("a calibration"), twice);
    let refused = |from: &str, to: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        Calibration::from_json(&changed).expect_err("refused").to_string()
    };
    let error = refused("\"steps\":[0,1,2,3,4]", "\"steps\":[0,1,2,3]");
    assert!(error.contains("expected a step for each sample"), "{error}");
    let error = refused("\"steps\":[0,1,2,3,4]", "\"steps\":[0,1,3,2,4]");
    assert!(error.contains("in their order"), "{error}");
    let error = refused("\"steps\":[0,1,2,3,4]", "\"steps\":[0,1,2,3,5]");
    assert!(error.contains("expected samples of the 5 steps"), "{error}");
}

#[test]
fn critical_parts_are_ranked_first_for_speedup() {
    let step = step();
    let mut calibration = Calibration::default();
    collect::add(&mut calibration, &step, &[0]);
    let found = prediction::predict_step(&step, &calibration, DRAWS).expect("no cycle");
    let rows = next::rank_speedups(&step.program, &found.simulation);
    let row = |subject: Subject, name: &str| {
        let row = rows.iter().find(|row| (row.subject, row.name.as_str()) == (subject, name));
        let row = row.unwrap_or_else(|| panic!("{name}"));
        (row.count, row.total_ns / 1_000, row.gradient_ns / 1_000, row.saving_ns / 1_000)
    };
    // The step ends 210 µs after the wait, and all of this time is a single gap.
    assert_eq!(row(Subject::Between, "ProfilerStep#"), (2, 210, 210, 210));
    // k1 is critical until k2 no longer queues behind it, so only 71 of its 100 µs can be saved.
    assert_eq!(row(Subject::Work, "k1"), (1, 100, 100, 71));
    assert_eq!(row(Subject::Work, "k2"), (1, 50, 50, 50));
    // Only the bags' host time before the first launch is critical.
    assert_eq!(row(Subject::Operator, "bag"), (6, 40, 5, 5));
    assert_eq!(row(Subject::Operator, "c"), (3, 20, 0, 0));
    let order: Vec<i64> = rows.iter().map(|row| row.gradient_ns).collect();
    assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
}
