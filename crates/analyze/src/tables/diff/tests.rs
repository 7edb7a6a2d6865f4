use trace::store::{LaunchShape, NewSlice, Trace};

use super::*;
use crate::facts::classify::{ClassRule, Classifier};
use crate::facts::scope::Scope;
use crate::facts::window::WindowRule;

/// Builds steps of 100 ns. In each of them an operator launches a kernel that takes the given
/// number of nanoseconds.
fn run(kernels: &[i64]) -> Trace {
    run_of(["aten::linear", "aten::addmm"], kernels)
}

/// Builds the same steps as [`run`] with two nested operators of the given names.
fn run_of([outer, inner]: [&str; 2], kernels: &[i64]) -> Trace {
    let mut trace = Trace::default();
    for (step, ns) in kernels.iter().enumerate() {
        let start = 100 * step as i64;
        let name = format!("ProfilerStep#{step}");
        let mut slice = |category, name: &str, track, from, to, correlation| {
            let slice = NewSlice::new(category, name, track, (start + from, start + to));
            trace.push(&NewSlice { correlation, ..slice })
        };
        let id = Some(step as u64 + 1);
        slice("user_annotation", &name, (1, 1), 0, 100, None);
        slice("cpu_op", outer, (1, 1), 10, 40, None);
        slice("cpu_op", inner, (1, 1), 15, 35, None);
        slice("cuda_runtime", "cudaLaunchKernel", (1, 1), 20, 25, id);
        let row = slice("kernel", "gemm", (0, 7), 30, 30 + ns, id);
        let shape = LaunchShape {
            grid: [4, 1, 1],
            block: [128, 1, 1],
            registers: 0,
            shared_memory: 0,
            blocks_per_sm: 0.0,
            warps_per_sm: 0.0,
            occupancy_pct: 0.0,
        };
        trace.slices.launch_shape.push(row, shape);
    }
    trace
}

fn diff(before: &[Trace], after: &[Trace], rule: WindowRule) -> Diff {
    let classifier = Classifier::new(ClassRule::Category);
    let scopes = [before, after].map(|traces| {
        traces.iter().map(|trace| Scope::new(trace, rule, &classifier)).collect::<Vec<_>>()
    });
    compare_jobs(&JobFacts::new(&scopes[0]), &JobFacts::new(&scopes[1]))
}

fn change<'a>(diff: &'a Diff, subject: DiffSubject, name: &str) -> &'a SpentChange {
    diff.filter_subject(subject).find(|change| change.name == name).expect(name)
}

#[test]
fn parts_and_their_changes_add_up_to_the_step() {
    let diff = diff(&[run(&[20, 20, 20, 20])], &[run(&[50, 50, 50, 50])], WindowRule::Steps);
    assert_eq!((diff.unit, diff.before.unit_count, diff.after.unit_count), (DiffUnit::Step, 4, 4));
    let sum = |of: fn(&PartChange) -> i64| diff.parts.iter().map(of).sum::<i64>();
    assert_eq!((sum(|part| part.before_ns), sum(|part| part.after_ns)), (100, 100));
    assert_eq!(sum(|part| part.delta_ns), 0);
    let compute = &diff.parts[0];
    let figures = (compute.part, compute.before_ns, compute.after_ns, compute.before_pct);
    assert_eq!(figures, ("compute", 20, 50, Some(20.0)));
    assert_eq!((compute.noise_ns, compute.is_noise), (Some(0), false));
}

#[test]
fn a_change_within_the_scatter_of_the_steps_is_noise() {
    let steady = diff(&[run(&[20, 40, 20, 40])], &[run(&[22, 42, 22, 42])], WindowRule::Steps);
    let gemm = change(&steady, DiffSubject::Kernel, "gemm");
    assert_eq!((gemm.before_ns, gemm.after_ns, gemm.is_noise), (30, 32, true));
    // The standard error of each mean is √(400/3/4), and the noise is twice that of their
    // difference.
    assert_eq!(gemm.noise_ns, Some(17));
    let moved = diff(&[run(&[20, 22, 20, 22])], &[run(&[42, 40, 42, 40])], WindowRule::Steps);
    assert!(!change(&moved, DiffSubject::Kernel, "gemm").is_noise);
}

#[test]
fn single_windows_have_no_noise_and_all_ranks_count() {
    let job = [run(&[20, 20]), run(&[30, 30])];
    let diff = diff(&job[..1], &job, WindowRule::All);
    assert_eq!(
        (diff.unit, diff.before.unit_count, diff.after.unit_count),
        (DiffUnit::Window, 1, 2)
    );
    let gemm = change(&diff, DiffSubject::Kernel, "gemm");
    assert_eq!((gemm.before_count, gemm.after_count), (2, 4));
    assert_eq!((gemm.before_per_unit, gemm.after_per_unit), (2.0, 2.0));
    assert_eq!((gemm.before_ns, gemm.after_ns, gemm.noise_ns), (40, 50, None));
    assert!(!gemm.is_noise);
}

#[test]
fn subjects_are_keyed_by_name_shape_and_path() {
    let mut other = run(&[20, 20, 20]);
    // One side has a kernel of another shape, and an operator that the other side lacks.
    let shape = *other.slices.launch_shape.iter().next().expect("a shape").1;
    let slice = NewSlice::new("kernel", "gemm", (0, 7), (180, 190));
    let row = other.push(&slice);
    other.slices.launch_shape.push(row, LaunchShape { grid: [8, 1, 1], ..shape });
    other.push(&NewSlice::new("cpu_op", "aten::addmm", (1, 1), (150, 160)));
    let diff = diff(&[run(&[20, 20, 20])], &[other], WindowRule::Steps);

    let kernels: Vec<_> = diff
        .filter_subject(DiffSubject::Kernel)
        .map(|change| (change.shape.as_str(), change.presence, change.delta_ns))
        .collect();
    let expected = [
        ("grid 8x1x1 block 128x1x1", Presence::Added, 3),
        ("grid 4x1x1 block 128x1x1", Presence::Both, 0),
    ];
    assert_eq!(kernels, expected);
    let addmm = change(&diff, DiffSubject::Operator, "aten::addmm");
    assert_eq!((addmm.before_count, addmm.after_count), (3, 4));
    let paths: Vec<_> = diff
        .filter_subject(DiffSubject::Path)
        .map(|change| (change.name.as_str(), change.before_count, change.after_count))
        .collect();
    let expected =
        [("aten::addmm", 0, 1), ("aten::linear", 3, 3), ("aten::linear > aten::addmm", 3, 3)];
    assert_eq!(paths, expected);
    let host = change(&diff, DiffSubject::Host, "aten::linear");
    assert_eq!((host.before_ns, host.after_ns), (10, 10));
    assert_eq!(change(&diff, DiffSubject::Call, "cudaLaunchKernel").before_ns, 5);
}

#[test]
fn the_verdict_names_parts_and_operators_or_the_noise() {
    let text = |before: &[Trace], after: &[Trace], rule| diff(before, after, rule).verdict.text;
    let slower = text(&[run(&[20, 20])], &[run(&[50, 50]), run(&[50, 50])], WindowRule::Steps);
    // Steps take 100 ns on both sides, so a change of kernel time does not change their length.
    assert_eq!(slower, "100 → 100 ns: no change");
    let long = |steps: &[i64]| {
        let mut trace = Trace::default();
        for (step, start) in steps.iter().enumerate() {
            let end = steps.get(step + 1).copied().unwrap_or(start + 1_000);
            let name = format!("ProfilerStep#{step}");
            let span = (*start, end);
            trace.push(&NewSlice::new("user_annotation", &name, (1, 1), span));
            let span = (*start, end - 100);
            let id = Some(step as u64 + 1);
            let call = NewSlice::new("cuda_runtime", "cudaLaunchKernel", (1, 1), span);
            trace.push(&NewSlice::new("cpu_op", "aten::mm", (1, 1), span));
            trace.push(&NewSlice { correlation: id, ..call });
            let kernel = NewSlice::new("kernel", "gemm", (0, 7), span);
            trace.push(&NewSlice { correlation: id, ..kernel });
        }
        trace
    };
    let (before, after) = (long(&[0, 1_000, 2_000]), long(&[0, 1_500, 3_000]));
    let diff = diff(std::slice::from_ref(&before), &[after], WindowRule::Steps);
    let verdict = &diff.verdict;
    // Three units of 1,000 ns are compared with two units of 1,500 ns and one of 1,000 ns.
    assert_eq!(
        (verdict.before_ns, verdict.after_ns, verdict.outcome),
        (1_000, 1_333, DiffOutcome::WithinNoise)
    );
    assert_eq!(verdict.text, "1.00 → 1.33 µs: no change beyond the noise (±334 ns)");
    let after = long(&[0, 1_500, 3_000, 4_500, 6_000, 7_500]);
    let verdict = super::compare_jobs(&JobFacts::new(&[]), &JobFacts::new(&[])).verdict;
    assert_eq!((verdict.outcome, verdict.delta_pct), (DiffOutcome::Same, None));
    let slower = text(&[before], &[after], WindowRule::Steps);
    let expected =
        "1.00 → 1.42 µs: slower by 42 %, of which compute +417 ns; most of it in aten::mm +417 ns";
    assert_eq!(slower, expected);
}

#[test]
fn empty_jobs_do_not_differ() {
    let diff = diff(&[Trace::default()], &[Trace::default()], WindowRule::Steps);
    assert!(diff.changes.is_empty());
    assert!(diff.parts.iter().all(|part| part.delta_ns == 0 && part.before_pct.is_none()));
}

#[test]
fn outlier_steps_are_distinguished_from_a_slower_job() {
    let mut long = run(&[20; 40]);
    // The last four steps are stretched to five times their length.
    for row in 0..long.slices.start.len() {
        let late = (long.slices.start[row] - 3600).max(0);
        long.slices.start[row] += 4 * (late - late % 100);
        let is_step = late > 0 || long.slices.start[row] == 3600;
        if is_step && long.slices.duration[row] == 100 {
            long.slices.duration[row] = 500;
        }
    }
    let verdict = diff(&[run(&[20; 40])], &[long], WindowRule::Steps).verdict;
    assert_eq!((verdict.before_median_ns, verdict.after_median_ns), (100, 100));
    assert_eq!((verdict.after_ns, verdict.outcome), (140, DiffOutcome::Slower), "{verdict:?}");
    assert!(verdict.text.contains("The median went 100 → 100 ns"), "{}", verdict.text);
}

#[test]
fn parts_are_medians_over_the_steps_and_their_means_add_up() {
    let diff = diff(&[run(&[20, 20, 20, 60])], &[run(&[28, 28, 28, 28])], WindowRule::Steps);
    let compute = &diff.parts[0];
    assert_eq!((compute.before_ns, compute.after_ns, compute.delta_ns), (20, 28, 8));
    assert_eq!((compute.before_mean_ns, compute.mean_delta_ns), (30, -2));
    let sum: i64 = diff.parts.iter().map(|part| part.before_mean_ns).sum();
    assert_eq!(sum, 100);
}

#[test]
fn recordings_of_different_jobs_are_doubted() {
    let same = diff(&[run(&[20; 4])], &[run(&[30; 4])], WindowRule::Steps);
    assert_eq!(same.shared_pct, Some(100.0));
    assert!(!same.verdict.text.contains("different jobs"), "{}", same.verdict.text);
    let other = run_of(["aten::conv2d", "aten::convolution"], &[20; 4]);
    let differs = diff(&[run(&[20; 4])], &[other], WindowRule::Steps);
    assert_eq!(differs.shared_pct, Some(0.0));
    assert!(differs.verdict.text.contains("different jobs"), "{}", differs.verdict.text);
}
