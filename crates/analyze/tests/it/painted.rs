//! Compares the tables with random small traces that are painted nanosecond by nanosecond, which is
//! the simplest form of each definition.

use std::collections::{BTreeMap, BTreeSet};

use analyze::classify::{ClassRule, WorkClass};
use analyze::{Classifier, Scope, WindowRule, breakdown, idle, overlap, queue, tree};
use testkit::Random;
use trace::store::{NewSlice, Trace};

/// A kernel name for each class, by the rules of Holistic Trace Analysis.
const NAMES: [&str; 4] = ["gemm", "nccl", "Memcpy", "job_exe"];
const CLASSES: [WorkClass; 4] =
    [WorkClass::Compute, WorkClass::Communication, WorkClass::Memory, WorkClass::Other];
const LENGTH: i64 = 200;

/// Builds device work on two devices with two streams each, most of it with a launch, and some host
/// rows that overlap without nesting.
fn example(seed: u64) -> Trace {
    let mut random = Random(seed);
    let mut trace = Trace::default();
    trace.push(&NewSlice::new("user_annotation", "all", (90, 90), (0, LENGTH)));
    for id in 1..=random.below(30) as u64 {
        let start = random.below(LENGTH - 40);
        let span = (start, start + random.below(20));
        let name = NAMES[random.below(4) as usize];
        let track = (random.below(2), random.below(2));
        let work = NewSlice::new("kernel", name, track, span);
        trace.push(&NewSlice { correlation: Some(id), ..work });
        let launched = (start + 5 - random.below(30)).max(0);
        let call = NewSlice::new(
            "cuda_runtime",
            "cudaLaunchKernel",
            (90, 91 + random.below(2)),
            (launched, launched + random.below(8)),
        );
        if random.below(5) > 0 {
            trace.push(&NewSlice { correlation: Some(id), ..call });
        }
    }
    for _ in 0..random.below(30) {
        let start = random.below(LENGTH - 40);
        let span = (start, start + random.below(40));
        let name = ["aten::mm", "enumerate(DataLoader)", "aten::add"][random.below(3) as usize];
        trace.push(&NewSlice::new("cpu_op", name, (90, 91 + random.below(2)), span));
    }
    trace
}

fn check(seed: u64, trace: &Trace) {
    for rule in [WindowRule::All, WindowRule::Hta] {
        let scope = Scope::new(trace, rule, &Classifier::new(ClassRule::Hta));
        exclusive_classes(seed, &scope);
        idle_sums(seed, &scope);
        queues(seed, &scope);
    }
}

#[test]
fn random_traces_equal_their_painting() {
    for seed in 0..300 {
        check(seed, &example(seed));
    }
}

/// Returns the classes that run in one nanosecond on a given device, or on any device.
fn running(scope: &Scope<'_>, device: Option<i32>, time: i64) -> BTreeSet<WorkClass> {
    let slices = &scope.trace.slices;
    let rows = scope.device_rows.iter().zip(&scope.classes);
    rows.filter(|(row, _)| slices.start(**row) <= time && time < slices.end(**row))
        .filter(|(row, _)| device.is_none_or(|device| scope.trace.device(**row) == device))
        .map(|(_, class)| *class)
        .collect()
}

fn exclusive_classes(seed: u64, scope: &Scope<'_>) {
    let mut rows = overlap::compute_overlap(scope);
    rows.extend(overlap::by_device(scope));
    let devices: BTreeSet<Option<i32>> = rows.iter().map(|row| row.device).collect();
    for device in devices {
        let mut painted = BTreeMap::<String, i64>::new();
        for time in scope.window.start..scope.window.end {
            let set = running(scope, device, time);
            let names = CLASSES.iter().filter(|class| set.contains(class));
            let names = names.map(|class| format!("{class:?}").to_lowercase());
            *painted.entry(names.collect::<Vec<_>>().join("+")).or_default() += 1;
        }
        let mine = rows.iter().filter(|row| row.device == device && row.exclusive_ns > 0);
        let mut ours: BTreeMap<String, i64> =
            mine.map(|row| (row.classes.clone(), row.exclusive_ns)).collect();
        let row = match device {
            Some(_) => breakdown::by_device(scope).into_iter().find(|row| row.device == device),
            None => Some(breakdown::compute_breakdown(scope)),
        };
        let idle_ns = row.unwrap().idle_ns;
        if idle_ns > 0 {
            ours.insert(String::new(), idle_ns);
        }
        assert_eq!(ours, painted, "seed {seed}");
    }
}

fn idle_sums(seed: u64, scope: &Scope<'_>) {
    let tree = tree::build(scope.trace);
    let settings = idle::IdleSettings { kernel_wait_ns: 6, ..idle::IdleSettings::USUAL };
    let idle = idle::compute_idle_time(scope, &tree, &settings);
    for gap in &idle.gaps {
        for time in gap.start_ns..gap.end_ns {
            assert!(running(scope, Some(gap.device), time).is_empty(), "seed {seed}");
        }
    }
    for device in breakdown::by_device(scope) {
        let rows = idle.devices.iter().filter(|row| Some(row.device) == device.device);
        assert_eq!(rows.map(|row| row.idle_ns).sum::<i64>(), device.idle_ns, "seed {seed}");
    }
}

fn queues(seed: u64, scope: &Scope<'_>) {
    let slices = &scope.trace.slices;
    let series = queue::series(scope);
    for queue in queue::measure_queues(scope) {
        let stream = (queue.device, queue.stream);
        let points = series.iter().filter(|point| (point.device, point.stream) == stream);
        let points: Vec<_> = points.collect();
        for time in scope.window.start..scope.window.end {
            let waits = |row: &u32| {
                (scope.trace.device(*row), scope.trace.stream(*row)) == stream
                    && time < slices.start(*row)
                    && scope.links().call(*row).is_some_and(|call| slices.start(call) <= time)
            };
            let painted = scope.trace.rows().filter(|row| scope.trace.kind(*row).is_device_work());
            let painted = painted.filter(waits).count();
            let at = points.partition_point(|point| point.time_ns <= time);
            assert_eq!(points[at - 1].length as usize, painted, "seed {seed} at {time}");
        }
    }
}
